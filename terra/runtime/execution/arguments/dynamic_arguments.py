"""Sizes of a step's arguments that vary are left unknown, as sizes that depend on data are: those of sparse and ragged tensors, those of a step that keeps
getting sizes which it has not had ("auto"), and with `reduce_retracing=True` all.

The framework's code looks at shapes, so what is recorded of it holds for one combination of them. An argument with sizes that have varied is given to
the step's code as the result of an operation that passes its value on and tells only its other sizes: all that follows is then recorded once (see
`open_shapes`). Of arrays, see `open_arrays`.
"""

import collections
import logging
from operator import is_

from terra.location import identity
from terra.runtime.execution.arguments.open_arrays import UsesOfArrays, arrays_of
from terra.runtime.tensors.comparing import attached
from terra.runtime.tensors.open_shapes import OPENS, PartialShape, common, fits, shape_given_by
from terra.runtime.tensors.tensor import EagerTensor, TerraTensor
from terra.tf import private_names as tfi
from terra.tf.private import composites

log = logging.getLogger("terra")

MOST = 100  # structures of arguments that are remembered
LATELY = 5  # steps that are looked at to tell whether a step keeps getting new sizes
NEW = 4  # of these, if it does
FEW = 64  # combinations of sizes that can be known one by one
SETTLED = 4  # times that each of them has come on average, with no new one, when that begins to pay
_DEEPEST = 100  # containers within each other that are looked into
_NUMBERS = frozenset([(tfi.types_pb2.DT_INT32, 0), (tfi.types_pb2.DT_INT64, 0)])  # (type, rank) of integers, which are how many of something there are where sizes vary
_CLOSED = frozenset([tfi.types_pb2.DT_RESOURCE, tfi.types_pb2.DT_VARIANT])


class DynamicArguments:
    """The sizes that the tensors among the arguments of one function have always had.

    mode: whether all that vary are left unknown (True), or only those of sparse and ragged tensors (False); "auto": all, as long as new ones keep coming.
    """

    def __init__(self, mode):
        self._of_all, self._is_decided = mode is True, mode != "auto"
        self._known = {}  # types and ranks of the tensors -> their shapes, each a PartialShape if some of its sizes have varied
        self._left = {}  # the same -> indices of those that were left unknown
        self._equal = {}  # the same -> {(index of a tensor, axis): a number that those have in common whose sizes were equal in all steps}
        self._seen = {}  # the same -> shapes that have come, until it is decided for good
        self._count = 0  # of these
        self.uses = UsesOfArrays()
        self._values = {}  # types and ranks of the tensors -> {index of a tensor that says what shape a sparse one has, or of a number: its values, None for those that have varied}
        self._lately = collections.deque(maxlen=LATELY)  # whether the last steps had new sizes
        self._since_new = 0  # steps

    @property
    def leaves_unknown(self):
        """Whether the sizes of all tensors that vary are left unknown."""
        return self._of_all

    @property
    def is_undecided(self):
        """Whether the sizes of all tensors that vary may be left unknown, or known, from some step on."""
        return not self._is_decided

    @property
    def may_turn(self):
        """Whether they may soon be left unknown: all sizes that have come so far were new."""
        return self.is_undecided and not self._of_all and 0 < len(self._lately) < NEW and all(self._lately)

    def close(self):
        """Leaving sizes unknown does not pay: know them all again, for good. Returns whether they were left unknown by themselves, and are not any more."""
        if self._is_decided or not self._of_all:
            return False
        self._of_all = False
        self._left.clear()
        self._decide()
        return True

    def look_at(self, step):
        """Note the shapes of a step's arguments, and tell the step which are open. Returns whether what was traced holds no longer: other sizes are unknown now."""
        if self._is_decided and not self._of_all and not step.parts:
            return False
        tensors, arrays, of_arrays = step.arg_list, arrays_of(step), []
        n, turns = len(tensors), not self._is_decided and self._turns(step, [x._shape_tuple() for x in tensors] + [x.shape for x in arrays])
        if arrays:
            self.uses.note(arrays)
            turns = self.uses.are_more() or turns
            of_arrays = self.uses.become_arguments(step, arrays) if self._of_all else []
        shapes = [x._shape_tuple() for x in tensors]
        structure = tuple([(x._datatype_enum(), x._rank()) for x in tensors])
        known = self._known.get(structure)
        if known is None:
            if len(self._known) == MOST:
                return turns
            known, self._equal[structure] = shapes[:n] + of_arrays, _classes(shapes, {})
            self._known[structure] = known
            if not of_arrays:
                return turns
        varies = False
        for k, (shape, seen) in enumerate(zip(shapes, known)):
            if not fits(shape, seen) and structure[k][0] not in _CLOSED:
                known[k] = PartialShape(common(shape, seen))
                varies = varies or self._of_all or k in step.parts
        step.partial_shapes = {
            k: shape for k, shape in enumerate(known) if type(shape) is PartialShape and (self._of_all or k in step.parts) and attached(vars(tensors[k])) is None}
        numbers = [k for k, kind in enumerate(structure) if kind in _NUMBERS and type(tensors[k]) is tfi.EagerTensor] if self._of_all else ()
        for k in (*step.sizes_given, *numbers):
            varies = self._look_at_values(step, k, self._values.setdefault(structure, {})) or varies
        before, equal = self._equal[structure], _classes(shapes, self._equal[structure])
        self._equal[structure] = equal
        if step.partial_shapes:
            self._left.setdefault(structure, set()).update(step.partial_shapes)
            unknown = [(k, axis) for k, shape in step.partial_shapes.items() for axis, size in enumerate(shape) if size is None]
            firsts = {}
            step.same_sizes = {place: firsts.setdefault(equal[place], place) for place in unknown}
            varies = varies or len(firsts) != len({before[place] for place in unknown})  # what was recorded rests on more equal ones
        return turns or varies

    def _look_at_values(self, step, k, values):
        """Notes the values of a tensor that says what shape a sparse one has, or of a number. Returns whether more of them are unknown than before."""
        x = step.arg_list[k]
        now = x.numpy().ravel().tolist() if type(x) is tfi.EagerTensor else [None] * x._shape_tuple()[0]  # (those of an earlier step may not be there yet)
        before = values.get(k, now)
        values[k] = known = common(now, before)
        if None in known:
            step.partial_shapes[k], step.partial_values[k] = PartialShape(x._shape_tuple()), known
        return known != before

    def describe(self):
        """A line for the user, if there is anything to tell."""
        shapes = [f"{tfi.INTERN_DTYPES[structure[k][0]].name} {tuple(self._known[structure][k])}" for structure, left in self._left.items() for k in sorted(left)]
        return [f"Sizes of arguments that vary, and are left unknown: {', '.join(dict.fromkeys(shapes))}."] if shapes else []

    def _turns(self, step, shapes):
        """Notes that the step's sizes have come. Returns whether it follows that more sizes are left unknown from now on, or less."""
        shapes = tuple([shape for k, shape in enumerate(shapes) if k not in step.parts])  # those of parts are left unknown anyway
        structure = tuple([len(shape) for shape in shapes])
        seen = self._seen.get(structure)
        if seen is None:
            if len(self._seen) < MOST:
                self._seen[structure] = {shapes}
            return False
        is_new = shapes not in seen
        self._lately.append(is_new)
        if is_new:
            seen.add(shapes)
            self._count += 1
        self._since_new = 0 if is_new else self._since_new + 1
        function = step.function
        if not self._of_all:
            if sum(self._lately) < NEW or function.segments is not None or function.lengths:  # (the loops of RNN layers have a way of their own)
                return False
            self._of_all = True
            log.info("%s keeps getting arguments of new sizes: they are left unknown from now on", function.policy.name)
            return True
        if self._count > SETTLED * FEW:  # there are many: it stays as it is
            self._decide()
            return False
        return self._count <= FEW and self._since_new > SETTLED * self._count and 2 * function.counts.whole_steps < function.n_steps \
            and function.policy.account.may_record_anew(self._count) and self.close()

    def _decide(self):
        self._is_decided = True
        self._seen = {}


def _classes(shapes, known):
    """Returns {(index, axis): number} of these shapes: the same number where sizes are equal, and have the same one in `known`."""
    numbers, found = {}, {}
    for k, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            found[k, axis] = numbers.setdefault((known.get((k, axis)), size), len(numbers))
    return found


class OpenArguments:
    """`with OpenArguments(step, args, kwargs) as args, kwargs:` has other tensors in the place of those that are open.

    Lists and dicts that hold such stay what they are, since the step may change them; they get their own tensors back at the end. Tuples are others.
    """

    def __init__(self, step, args, kwargs):
        self._given = step, args, kwargs
        self._pairs = []
        self._changed = []  # lists and dicts
        self._copies = {}  # id of a container -> (the container, what takes its place)

    def __enter__(self):
        step, args, kwargs = self._given
        for k, shape in step.partial_shapes.items():
            x = step.arg_list[k]
            stand_in = getattr(tfi.tf.raw_ops, OPENS)(input=x, shape=tfi.tensor_shape.TensorShape(shape))
            step.opened[id(x)] = step.args.pop(id(x))  # whoever comes by it in another way uses a tensor from outside
            if k in step.open_uses:
                step.open_uses[k].stand_in = stand_in
                continue
            pair = identity.pairs[id(x)] = identity.pairs[id(stand_in)] = x, stand_in
            self._pairs.append(pair)
        return self._replace(args, 0), {name: self._replace(x, 0) for name, x in kwargs.items()}

    def __exit__(self, *raised):
        stand_ins = {id(stand_in): x for x, stand_in in self._pairs}
        for held in self._changed:
            for k, x in [*(held.items() if type(held) is dict else enumerate(held))]:
                if id(x) in stand_ins:
                    held[k] = stand_ins[id(x)]
        for it in [it for pair in self._pairs for it in pair]:
            identity.pairs.pop(id(it), None)

    def _replace(self, value, depth):
        kind, step = type(value), self._given[0]
        if kind is EagerTensor or kind is TerraTensor:
            pair = identity.pairs.get(id(value))
            return value if pair is None else pair[1]
        if composites.is_composite(kind):
            parts = composites.composite_parts(value)
            replacements = [self._replace(x, depth + 1) for x in parts]
            for sizes in composites.vectors_of_sizes([value]):
                k = next((k for k in step.partial_values if step.arg_list[k] is sizes), None)
                if k is not None:
                    replacements[-1] = shape_given_by(self._replace(sizes, depth), step.partial_values[k])
            return value if all(map(is_, replacements, parts)) else composites.composite(kind, replacements)
        if (kind is not tuple and kind is not list and kind is not dict) or depth > _DEEPEST:
            return value
        known = self._copies.get(id(value))
        if known is not None:
            return known[1]
        self._copies[id(value)] = value, value  # what it may contain itself
        found = [*(value.items() if kind is dict else enumerate(value))]
        replacements = [(k, self._replace(x, depth + 1)) for k, x in found]
        if all([a is b for (_, a), (_, b) in zip(replacements, found)]):
            return value
        if kind is tuple:
            made = tuple([x for _, x in replacements])
            self._copies[id(value)] = value, made
            return made
        self._changed.append(value)
        for k, x in replacements:
            value[k] = x
        return value
