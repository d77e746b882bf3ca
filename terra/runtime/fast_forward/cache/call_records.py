"""Call records: the part of a program that one call of framework code walked, recorded so that the same call can be jumped over.

A record knows the nodes that were matched, what they told the gradient tape, which variables they touched, and how to make the call's result
out of new placeholders. It holds no value of a step: values of the step are named by their keys, tensor arguments of the step by their index, other tensors
from outside by their place among the arguments of the call, or, once they were fed, by the key that they have since.
"""

import collections

from terra.frameworks.keras import call_context
from terra.runtime.execution.slicing import Assign
from terra.runtime.fast_forward.cache.conditions import is_expected
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.tapes.backward import TapeRecord
from terra.runtime.tensors.comparing import SCALARS, ById, Unskippable, logits_of, mask_of, scalar
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import const_key, is_small_constant, known_to_host
from terra.trial import Reliability

EagerTensor = tfi.EagerTensor
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE


def note_mask(runner, x):
    """Tells the observer of the run, if there is one, what is attached to a tensor from outside of the step: the next time it may be something else."""
    if runner.observer is not None and getattr(x, "_owner", None) is not runner and id(x) not in runner.step.args \
            and not runner.step.is_data(x):
        runner.observer.masks.setdefault(id(x), (x, mask_of(x), logits_of(x)))


def lacks(runner, x, name):
    """Returns whether a tensor has no such attribute of those that Keras attaches, of which the observer is told then."""
    if name not in ("_keras_mask", "_keras_logits"):
        return False
    note_mask(runner, x)
    return name not in vars(x)


class CallContext:
    """Keras' call context round a call: layers that have an argument like `training` by default leave it there for those that are called after them."""

    def __init__(self):
        self._held = call_context()
        self._before = None if self._held is None else dict(self._held)
        self.changes = {}

    def without_changes(self, holds):
        """`holds()`, but for what the call has changed in the context; False if that cannot be done again."""
        held, before = self._held, self._before
        if held is None:
            return holds()
        if call_context() is not held or held.keys() != before.keys():
            return False
        self.changes = {name: value for name, value in held.items() if value is not before[name]}
        if not all(type(value) in SCALARS for value in self.changes.values()):
            return False
        held.update(before)
        try:
            return holds()
        finally:
            held.update(self.changes)


class StepArgument:
    """Stands for tensor argument `index` of the step."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class ExternalInput:
    """Stands for the tensor from outside of the step that came as number `index` among those in the call's arguments."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class FedValue:
    """Stands for a tensor that was fed, and has had the key `key` since."""

    __slots__ = ("key",)

    def __init__(self, key):
        self.key = key


class Seeds:
    """Stands for what is made of the seeds of the record's entry `index`, which shuffles so many `rows` if it shuffles any."""

    __slots__ = ("index", "rows")

    def __init__(self, place, rows):
        self.index, self.rows = place, rows


class Constant:
    """Stands for a tensor that the framework itself makes anew in each call, out of what the signature and the guard hold still."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


RESULT = object()  # what an effect leaves, if it is the very object that the call gives
FELL_BACK, MISSED = object(), object()  # what a jump gives if the call is to be made, because the step had to fall back or it reads something new
MOST_RECORDS = 4  # kept per place and signature: a step that alternates between so many states of an object still jumps
MOST_VARIANTS = 8  # the same where the call reads values


class Inputs:
    """The tensors among the arguments of a call."""

    __slots__ = ("values", "external", "enclosed", "composites", "indices", "fed", "masks", "numbers", "drawn", "arrays", "opaque", "evaluate")

    def known_elsewhere(self, runner, reads):
        """Returns whether a tensor that comes with the step, or with the call, was read from an object, too. What is recorded does not tell which of
        the two was used."""
        return reads.holds_any({*runner.step.args, *map(id, self.external), *self.composites})

    def __init__(self):
        self.values = {}  # key -> tensor, of values of the step
        self.external = []  # tensors that are neither values nor arguments of the step, in order
        self.enclosed = set()  # ids of tensors that are parts of an argument, or attached to one: who looks at that may look at them
        self.composites = set()  # ids of sparse and ragged tensors, and the like, among the arguments
        self.indices = set()  # of the tensor arguments of the step
        self.fed = set()  # keys of tensors that were fed before
        self.masks = []  # (tensor, its mask), of each of them
        self.numbers = ()  # those that vary, see `dynamic_values`
        self.drawn = self.arrays = ()  # what residual calls have given; the arrays that the step is given
        self.opaque = ()  # what opaque calls have given
        self.evaluate = None  # tells what the numbers are now

    def numbers_hold(self):
        """Returns whether the numbers are what they were before opaque calls were made."""
        return self.evaluate is None or self.evaluate() == self.numbers

    def describe(self, runner, x, found):
        """Append what identifies the tensor `x`, and what is attached to it, to `found`; of the handle of a variable or table itself, which no code looks into."""
        if type(x) is EagerTensor and runner.step.is_lasting_handle(x):
            found.append(ById(x))
            return
        self._describe(runner, x, found)
        mask = mask_of(x)
        self.masks.append((x, mask))
        note_mask(runner, x)
        attached = vars(x)
        if attached:
            self._describe_attached(runner, attached, mask, found)

    def _describe_attached(self, runner, attached, mask, found):
        if mask is not None:
            if not (type(mask) is TerraTensor or type(mask) is EagerTensor) or mask_of(mask) is not None:
                raise Unskippable("is given a mask of its own kind")
            found.append("mask")
            self.enclosed.add(id(mask))
            self.describe(runner, mask, found)
        for name, value in attached.items():
            if name == "_keras_logits":  # Keras' losses take them instead
                if not (type(value) is TerraTensor or type(value) is EagerTensor):
                    raise Unskippable("is given what was computed of an array")
                found.append(name)
                self.enclosed.add(id(value))
                self.describe(runner, value, found)
            elif type(value) is Assign:
                found += (name, id(value.variable))  # which the value was read from, so that it is compared anyway
            elif name != "_keras_mask" and value is not None:
                if type(value) not in SCALARS:
                    raise Unskippable(f"is given a tensor with something attached to it, {name}")
                found.append((name, scalar(value)))

    def _describe(self, runner, x, found):
        if type(x) is TerraTensor and x._owner is runner:
            key = x._key
            found.append(key)
            found.append(x._shp)
            self.values[key] = x
            return
        argument = runner.step.args.get(id(x))
        if argument is not None:
            index = argument[0]
            enum, shape = x._datatype_enum(), x._shape_tuple()
            found += (index, enum, shape)
            if shape == () and enum in opschema.HOST_KNOWN_ENUMS:
                found.append(const_key(real(x), enum, shape))  # Python may branch on it
            self.indices.add(index)
            return
        known = runner.fed.get(id(x))
        if known is not None:
            found += (*known[:2], known_to_host(runner, x))
            self.fed.add(known[0])
            return
        for k, other in enumerate(self.external):
            if other is x:
                found.append(("again", k))
                return
        enum = x._datatype_enum()
        if enum == RESOURCE_ENUM or enum == tfi.types_pb2.DT_VARIANT:
            raise Unskippable("is given a handle")
        shape, watched = x._shape_tuple(), None
        if id(x) in runner.tapes.watched_ids and is_small_constant(enum, shape):  # a gradient is asked for this very object, not for its value
            if type(x) is not EagerTensor:
                raise Unskippable
            watched = ById(x)
        self.external.append(x)
        found.append((enum, shape, runner._from_outside(x), watched))


class RecordVariants(list):
    """The records of one place and signature: other states of an object that was read then, or other values that the call read on its way."""

    __slots__ = ("missing", "reliability")

    def __init__(self):
        self.missing = 0  # how many more there had to be recorded, for values that were read, than were good for a jump since
        self.reliability = Reliability()

    def learn(self, record):
        self.append(record)
        record.reliability = self.reliability
        if record.depends_on_values:
            self.missing += 1
        if len(self) > (MOST_VARIANTS if record.depends_on_values else MOST_RECORDS):
            del self[0]

    @property
    def is_hopeless(self):
        """Whether the call hardly reads the same values twice."""
        return self.missing > 2 * MOST_VARIANTS

    def variant_for(self, runner, inputs, record, values):
        """The record that has the same fetches as `record` so far, but expects these values; None if there is none."""
        n = len(values)
        places = [(node, *place) for node, _, *place in record.fetches[:n]]
        for other in self:
            fetches = other.fetches[:n]
            if [(node, *place) for node, _, *place in fetches] == places and all(map(is_expected, [fetch[1] for fetch in fetches], values)) \
                    and other.answers_like(record) and other.fits(runner, inputs):
                return other
        return None


class CallRecord:
    """A recorded call: what it depended on (guard, checks), and what it did."""

    __slots__ = (
        "guard", "keep", "checks", "entries", "patches", "feeds", "draws", "selects", "end", "latest", "needs", "result", "records", "functions",
        "accessed", "shapes", "repeated", "masks", "context", "fetches", "by_value", "has_other_shapes", "losses", "effects", "carried", "states", "numbers", "calls", "takes_arrays",
        "formatted", "opaque", "n_early", "stages", "late_feeds", "reliability")

    def __init__(self):
        self.reliability = Reliability()  # of the records of its signature: whether their opaque calls give what they gave
        self.opaque = ()  # the opaque calls, see `opaque_calls`
        self.n_early = 0  # how many of them are made before anything is read: the rest is given what was read
        self.stages = ()  # for each of the rest: how many values are read before it
        self.late_feeds = ()  # see `late_values.LateFeed`
        self.formatted = ()  # keys of tensors of whose values it makes texts for messages, and nothing else
        self.states = ()  # `StateInput`s: the attributes that count as arguments
        self.carried = ()  # what identifies what they hold
        self.context = {}  # what it sets in Keras' call context
        self.effects = ()
        self.repeated = ()  # see `dynamic_values.DynamicValues`
        self.numbers = ()  # its `sources`
        self.calls = ()  # the live ones, see `residual_calls`
        self.takes_arrays = False  # whether what it gives is calculated of arrays that the step is given
        self.has_other_shapes = False  # whether the graph's general form has to run
        self.fetches = []  # (node, what identifies the value, or bounds of it; None if it is only waited for, how many feeds, and branches, come before it) of what it reads

    @property
    def does_nothing(self):
        """Whether a jump over it only gives a result."""
        return not (self.entries or self.fetches or self.draws or self.by_value or self.records or self.accessed)

    @property
    def depends_on_values(self):
        """Whether it is what the call does when what it reads is as recorded."""
        return any(value is not None for _, value, *_ in self.fetches)

    def expanded(self, runner):
        """Yields what the call would have told the tape, had it not been skipped: (op, inputs, attributes, outputs), or a Record, for each operation."""
        for item in self.records:
            if type(item) is CallRecord:
                yield from item.expanded(runner)
            elif type(item) is TapeRecord:
                yield item.mapped(lambda x: self.find(runner, x), lambda key: runner.placeholder(key, self.shapes))
            else:
                op, ins, attrs, outs = item
                yield op, [self.find(runner, x) for x in ins], attrs, [self.find(runner, x) for x in outs]

    def find(self, runner, x):
        """Returns the tensor that `x` stands for in this record: a value of the step, an argument, or what was fed; anything else as it is."""
        kind = type(x)
        if kind is ValueKey:
            return runner.placeholder(x, self.shapes)
        if kind is StepArgument:
            return runner.step.arg_list[x.index]
        return runner.fed_by_key.get(x.key, x) if kind is FedValue else x

    def comes_after(self, runner):
        """Returns whether the path to here has made the values that the call uses last of those that may be used in their places: the graph takes the
        last ones."""
        latest = runner.latest
        for multi, key in self.needs:
            if latest.get(multi) is not key:
                return False
        return True

    def answers_like(self, other):
        """Returns whether numbers that vary, and residual calls, answer in both what they answer in the other: they are asked before anything is read."""
        return not (self.opaque or other.opaque) and (self.repeated, self.numbers, self.calls) == (other.repeated, other.numbers, other.calls)

    def is_outdated(self, unsteady):
        """Returns whether an opaque call is to give a number that turned out to be another one each time: another record holds for all of them."""
        return any([call.key in unsteady and call.assumes_a_number() for call in self.opaque])

    def fits(self, runner, inputs):
        """Returns whether the call may be jumped over, its signature being the same."""
        if (self.needs and not self.comes_after(runner)) or (self.opaque and (self.is_outdated(runner.program.unsteady) or not self.reliability.allows())):
            return False
        for kind, index, expected in self.checks:
            x = inputs.external[index] if kind is ExternalInput else runner.step.arg_list[index] if kind is StepArgument else index
            if kind is EagerTensor:
                if id(x) in runner.fed:
                    return False
                continue
            enum, shape = x._datatype_enum(), x._shape_tuple()
            if enum != expected[0] or shape != expected[1] or (len(expected) == 3 and const_key(real(x), enum, shape) != expected):
                return False
        if self.draws and self.draws[1] != tfi.global_seed():
            return False
        return self.guard.holds() and (not self.losses or added_losses.fit(runner, self.losses, inputs))


class WithAttributes:
    """A tensor to which the framework has attached something."""

    __slots__ = ("value", "attributes")

    def __init__(self, value, attributes):
        self.value, self.attributes = value, attributes


class DynamicNumber:
    """Stands for a number that varies, by its place among the call's `numbers`."""

    __slots__ = ("index",)

    def __init__(self, place):
        self.index = place


class Named:
    """A named tuple, or a list as a `tf.Module` wraps it."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind, parts):
        self.kind, self.parts = kind, parts


class Instance:
    """An instance of a data class; its attributes with these `names` are its items, too, if it is an ordered dict."""

    __slots__ = ("kind", "attributes", "names")

    def __init__(self, kind, attributes, names=None):
        self.kind, self.attributes, self.names = kind, attributes, names

    def filled(self, attributes):
        if self.names is None:
            made = object.__new__(self.kind)
        else:
            made = collections.OrderedDict.__new__(self.kind)
            for name in self.names:
                collections.OrderedDict.__setitem__(made, name, attributes[name])
        vars(made).update(attributes)
        return made


class CompositeTemplate:
    """A sparse or ragged tensor, or a gradient in slices."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind, parts):
        self.kind, self.parts = kind, parts
