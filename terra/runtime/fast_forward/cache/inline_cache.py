"""Quick entries: a call of the framework's that was recorded (see `call_cache`) is skipped after a glance at its arguments.

A signature of the arguments is not even made: they are compared one by one with those of the recorded call, and the cursor moves on. Entries stand at the
place of the call (`jump`); the one that was used last stands behind the node that the call starts from, too (`attempt`).
"""

from threading import get_ident

from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.fast_forward.cache.replay_record import advance
from terra.runtime.fast_forward.cache.call_records import MISSED, Attached, Foreign, note_mask
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import is_librarys_container
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tensors.value_key import ValueKey
from terra.tf import private_names as tfi
from terra.tf.constants import const_key, known_to_host

EagerTensor = tfi.EagerTensor
_VALUE, _SCALAR, _SAME, _SHARED, _NESTED, _ARGUMENT, _FED, _CONSTANT, _ZEROS, _FOREIGN, _MASKED, _OTHER, _SLICE = range(13)
_MASK = object()  # a step of a `_Given` path
NONE = {}  # no keyword arguments


class _Quick:
    """What the arguments of a recorded call were, and how to give its result.

    Where it is `express`, it stands behind the node that the call starts from, with all that the commonest calls need: cold memory is what takes most of their time.
    There the first argument is a value of the step (key, shape) or a certain object (key, None); what follows is compared by `kind`, `a` and `b`.
    """

    __slots__ = (
        "function", "location", "names", "length", "recording", "device", "version", "seen", "fresh", "key", "shape", "kind", "a", "b", "rest",
        "jumps", "hidden", "entry", "end", "tells", "dtype", "enum", "made_shape", "made_key", "express", "plain", "guarded", "pattern", "sequence", "outputs", "region")


class _Given:
    """Stands for an argument that a call gives back: where it is among the arguments."""

    __slots__ = ("path",)

    def __init__(self, path):
        self.path = path


class _Masked:
    """Stands for a tensor that gets a mask of Keras'."""

    __slots__ = ("tensor", "mask")

    def __init__(self, tensor, mask):
        self.tensor, self.mask = tensor, mask


_new, _uid, _tape_set_is_empty, _context_changes = object.__new__, tfi.new_uid, tfi.tape_set_is_empty, tfi.context_changes


def glance(step, function, args):
    """Jump over a call in a step of class `Step` that is not a block's, nor in pieces, if the `express` entry is its; returns its result, else None.

    This is `call_cache.running`, `attempt_function`, `fits`, `walk` and `make_tensor` in one, without what is rare: calling them takes as long as what they do.
    """
    runner = step.mode
    if type(runner) is not PythonRunner or step.paused or not step.skips or step.thread != get_ident():
        return None
    quick = runner.node.express
    if quick is None or quick.function is not function or quick.location is not runner.cursor.current or quick.names or quick.length != len(args):
        return None
    if step.settings_seen != _context_changes[0]:
        step.look_at_settings()
    recording = quick.recording
    if not step.is_eager or step.device != quick.device or (runner.tapes.recording is None) is recording or _tape_set_is_empty() is recording:
        return None
    if quick.fresh or runner.observer is not None or not runner.modules_checked:
        return None
    version = quick.version
    if version is not None and version[0] != quick.seen:
        return None
    x, shape = args[0], quick.shape
    if shape is None:
        if x is not quick.key:
            return None
    elif type(x) is not TerraTensor or x._key is not quick.key or x._owner is not runner or (x._shp is not shape and x._shp != shape) or x._keras_mask is not None:
        return None
    kind = quick.kind
    if kind is not None:
        x = args[1]
        if kind == _VALUE:
            if type(x) is not TerraTensor or x._key is not quick.a or x._owner is not runner or (x._shp is not quick.b and x._shp != quick.b) or x._keras_mask is not None:
                return None
        elif kind == _SAME:
            if x is not quick.a:
                return None
        elif kind == _SCALAR:
            if type(x) is not quick.a or x != quick.b:
                return None
        elif (kind == _CONSTANT and x is quick.b and not x.__dict__) or (kind == _ZEROS and x is quick.b and x.__dict__ == _MARK):
            if step.data and step.is_data(x):
                return None
        elif kind == _SLICE and type(x) is slice and x.start is quick.a[0] and x.stop is quick.a[1] and x.step is quick.a[2]:
            pass  # the commonest slices are of the small integers of which Python has one object each
        else:
            foreign = []
            if not alike(runner, quick.rest, args[1:], foreign) or (foreign and not _are_new(runner, foreign)):
                return None
    quick.jumps += 1
    step.counts.fast_forwards += 1
    if quick.hidden:
        runner.note_jump(quick.region)
    entry = quick.entry
    if entry is not None:
        runner.log.append(entry)
    else:
        runner.log += quick.region.entries
    end = runner.node = quick.end
    runner.expected = end.expected
    if quick.tells:
        runner.tapes.skipped(quick.region)
    made = _new(TerraTensor)
    made.dtype = quick.dtype
    made._enum = quick.enum
    made._id = _uid()
    made._value = made._hidden = made._tensor_shape = None
    made._owner = runner
    made._key = quick.made_key
    made._shp = quick.made_shape
    runner.issued.append(made)
    return made


def fits(runner, quick, args, kwargs):
    """Whether a call is the one of an `express` entry."""
    if kwargs:
        if quick.names != tuple(kwargs):
            return False
        args = (*args, *kwargs.values())
    elif quick.names:
        return False
    if quick.length != len(args) or quick.recording is (runner.tapes.recording is None) or quick.device != runner.step.device:
        return False
    if quick.version is not None and quick.version[0] != quick.seen:
        if not quick.region.guard.holds():
            return False
        quick.seen = quick.version[0]
    if quick.fresh and any([id(x) in runner.fed for x in quick.fresh]):
        return False
    x = args[0]
    if quick.shape is None:
        if x is not quick.key:
            return False
    elif type(x) is not TerraTensor or x._key is not quick.key or x._owner is not runner or x._shp != quick.shape or x._keras_mask is not None:
        return False
    kind = quick.kind
    if kind is None:
        return True
    x = args[1]
    if kind is _VALUE:
        return type(x) is TerraTensor and x._key is quick.a and x._owner is runner and x._shp == quick.b and x._keras_mask is None
    if kind is _SAME:
        return x is quick.a
    if kind is _SCALAR:
        return type(x) is quick.a and x == quick.b
    if kind is _CONSTANT and x is quick.b and not vars(x) and runner.observer is None:
        return True
    foreign = []
    if not alike(runner, quick.rest, args[1:], foreign) or (foreign and not _are_new(runner, foreign)):
        return False
    if runner.observer is not None:
        for x in foreign:
            note_mask(runner, x)
    return True


def jump(runner, known, args, kwargs):
    """Jump over a call by one of the quick entries of its place; gives the call's result, or MISSED."""
    if kwargs:
        given, names = (*args, *kwargs.values()), tuple(kwargs)
    else:
        given, names = args, ()
    recording = runner.tapes.recording is not None
    for quick in known.quick:
        if quick.length != len(given) or quick.names != names or quick.recording is not recording:
            continue
        foreign = []
        if alike(runner, quick.pattern, given, foreign) and (not foreign or _are_new(runner, foreign)) and \
                not (quick.fresh and any([id(x) in runner.fed for x in quick.fresh])) and \
                (quick.region.guard.holds() if quick.guarded else quick.device == tfi.device_name()) and \
                (not quick.region.needs or quick.region.comes_after(runner)):
            if runner.observer is not None:
                for x in foreign:
                    note_mask(runner, x)
            if quick.express:
                runner.node.express = quick
            return _jump(runner, quick, given, foreign)
    return MISSED


def alike(runner, pattern, given, foreign):
    """Whether the arguments are those of a recorded call; those that are tensors from outside of the step are appended to `foreign`."""
    for x, (kind, a, b) in zip(given, pattern):
        if kind is _VALUE:
            if type(x) is not TerraTensor or x._key is not a or x._owner is not runner or x._shp != b or x._keras_mask is not None:
                return False
        elif kind is _SCALAR:
            if type(x) is not a or x != b:
                return False
        elif kind is _SAME:
            if x is not a:
                return False
        elif kind is _SHARED:
            if x is not a and not alike(runner, b, (x,), foreign):
                return False
        elif kind is _NESTED:
            if type(x) is not a:
                return False
            if a is slice:
                x = (x.start, x.stop, x.step)
            if len(x) != len(b) or not alike(runner, b, x, foreign):
                return False
        elif kind is _ARGUMENT:
            argument = runner.step.args.get(id(x))
            if argument is None or argument[0] != a or runner.step.args_signature()[a] != b or vars(x):
                return False
        elif kind is _FED:
            known = runner.fed.get(id(x))
            if known is None or known[0] is not a or (known[1], known_to_host(runner, x)) != b or vars(x):
                return False
            note_mask(runner, x)
        elif kind is _CONSTANT:
            if type(x) is not EagerTensor or runner.step.is_data(x) or vars(x) or not _is_constant(x, a, b):
                return False
            foreign.append(x)
        elif kind is _ZEROS:
            if type(x) is not EagerTensor or runner.step.is_data(x) or not _is_marked(x) or not _is_constant(x, a, b):
                return False
            foreign.append(x)
        elif kind is _MASKED:
            if type(x) is not TerraTensor or x._key is not a[0] or x._owner is not runner or x._shp != a[1] or x._keras_mask is None \
                    or not alike(runner, b, (x._keras_mask,), foreign):
                return False
        else:
            if type(x) is not a or _identity(x) != b[0] or runner._from_outside(x) is not b[1] or (a is TerraTensor and x._owner is runner):
                return False
            foreign.append(x)
    return True


def _is_constant(x, key, known):
    """Whether a tensor is `known`, or another one with the same value."""
    return x is known or ((x._datatype_enum(), x._shape_tuple()) == key[:2] and const_key(x, *key[:2]) == key)


_MARK = {"_is_zeros_tensor": True}


def _is_marked(x):
    """Whether nothing is attached to a tensor but what `tf.zeros` attaches."""
    return vars(x) == _MARK


def _identity(x):
    """(dtype enum, shape) of a tensor, with a third entry if `tf.zeros` has made it; None if anything else is attached to it (Keras does that), or its shape depends on data."""
    if type(x) is EagerTensor:
        attached = vars(x)
        if not attached:
            return x._datatype_enum(), x._shape_tuple()
        return (x._datatype_enum(), x._shape_tuple(), attached["_is_zeros_tensor"]) if attached.keys() == _MARK.keys() else None
    return (x._enum, x._shp) if type(x._shp) is tuple and not x.__dict__ else None


def _are_new(runner, foreign):
    """Whether the step has not met these tensors from outside before, no gradient is asked for one of them, and none has come twice."""
    ids = set(map(id, foreign))
    return len(ids) == len(foreign) and ids.isdisjoint(runner.fed) and ids.isdisjoint(runner.step.args) and ids.isdisjoint(runner.tapes.watched_ids)


def walk(runner, quick):
    """`jumps.advance` by a quick entry that is `plain`."""
    quick.jumps += 1
    runner.step.counts.fast_forwards += 1
    if runner.observer is not None:
        runner.observer.note_jump(quick.region)
    if quick.hidden:
        runner.note_jump(quick.region)
    if quick.entry is not None:
        runner.log.append(quick.entry)
    else:
        runner.log += quick.region.entries
    end = runner.node = quick.end
    runner.expected = end.expected
    if quick.tells:
        runner.tapes.skipped(quick.region)


def _jump(runner, quick, given, foreign):
    """`jumps.jump` by a quick entry."""
    if quick.plain:
        walk(runner, quick)
    else:
        quick.jumps += 1
        advance(runner, quick.region, foreign)
    if quick.sequence is None:
        return _give(runner, given, quick.outputs)
    made = [_give(runner, given, x) for x in quick.outputs]
    return made if quick.sequence is list else tuple(made)


def _give(runner, given, output):
    """A part of the call's result (see `_output`)."""
    kind = type(output)
    if kind is tuple:
        made = make_tensor(*output, runner, None)
        runner.issued.append(made)
        return made
    if kind is _Given:
        for k in output.path:
            given = given._keras_mask if k is _MASK else given[k]
        return given
    if kind is _Masked:
        made = _give(runner, given, output.tensor)
        made._keras_mask = _give(runner, given, output.mask)
        return made
    return output


def learn(runner, place, region, args, kwargs, shared=False, express=True):
    """Make a quick entry of a recorded region, if it is simple enough. `express`: whether it may stand behind a node."""
    known = runner.program.regions.get(place)
    if not known or region.draws or region.masks or region.fetches or region.losses or region.effects or region.opaque or runner.step.verifies:
        return
    quick = _Quick()
    given = (*args, *kwargs.values())
    try:
        quick.pattern = pattern(runner, given, [], region)[2]
        if shared:
            quick.pattern = (_SHARED, given[0], quick.pattern[:1]), *quick.pattern[1:]
        quick.fresh = _fresh(region)
        result = region.result
        quick.sequence = type(result) if type(result) in (list, tuple) else None
        quick.outputs = _output(region, result, given) if quick.sequence is None else [_output(region, x, given) for x in result]
    except LookupError:
        return
    quick.function, quick.location = place[1], place[-1]
    quick.length = len(given)
    quick.names = tuple(kwargs)
    quick.region, quick.end = region, region.end
    quick.entry = region.entries[0] if len(region.entries) == 1 else None
    quick.jumps = 0
    quick.plain = not (  # little to do: most calls of single operations
        region.patches or region.latest or region.needs or region.selects or region.context or region.by_value or region.has_other_shapes)
    quick.recording = runner.tapes.recording is not None
    quick.tells = bool(region.accessed or (quick.recording and region.records))
    guard = region.guard
    quick.guarded = guard.root is not None or len(guard.containers) > 0
    quick.device = guard.settings[0]
    outputs = [quick.outputs] if quick.sequence is None else quick.outputs
    outputs = [part for x in outputs for part in ((x.tensor, x.mask) if type(x) is _Masked else (x,))]
    made = [x[3] for x in outputs if type(x) is tuple]
    if len(set(made)) < len(made):
        return  # one tensor comes twice
    quick.hidden = set(made) != set(region.shapes)  # whether it has values that are not made at once
    quick.version, quick.seen = guard.only_version() if quick.guarded else None, None
    quick.express = express and quick.plain and not (quick.guarded and quick.version is None) and _simplify(quick)
    known.add_quick(quick)


def _simplify(quick):
    """Whether the arguments can be compared as `_fits` does it, which is then prepared."""
    if type(quick.outputs) is not tuple or not quick.pattern or quick.pattern[0][0] not in (_VALUE, _SAME):
        return False
    (_, quick.key, quick.shape), *quick.rest = quick.pattern
    quick.kind, quick.a, quick.b = (None, None, None) if not quick.rest else quick.rest[0] if len(quick.rest) == 1 else (_OTHER, None, None)
    if quick.kind == _NESTED and quick.a is slice:
        quick.kind, quick.a = _SLICE, [b if kind == _SCALAR else a for kind, a, b in quick.b]
    quick.dtype, quick.enum, quick.made_shape, quick.made_key = quick.outputs
    return True


def _fresh(region):
    """The tensors that the region feeds out of its own, which the step must not have been fed yet. Raises LookupError if more has to be checked."""
    if any(kind is not Foreign and kind is not EagerTensor for kind, _, _ in region.checks):
        raise LookupError
    return [x for kind, x, _ in region.checks if kind is EagerTensor]


def _output(region, x, given):
    """How a part of a call's result is made. Raises LookupError if that is not simple."""
    if type(x) is ValueKey:
        made = region.shapes.get(x)
        return (*made, x) if made is not None else _Given(_path(given, x))
    if type(x) is Attached and list(x.attributes) == ["_keras_mask"]:
        return _Masked(_output(region, x.value, given), _output(region, x.attributes["_keras_mask"], given))
    if type(x) in SCALARS or tfi.is_variable(x):
        return x
    raise LookupError


def _path(given, key):
    """Where the value `key` is among the arguments. Raises LookupError if it is not."""
    for k, x in enumerate(given):
        if type(x) is TerraTensor:
            if x._key is key:
                return (k,)
            if type(x._keras_mask) is TerraTensor and x._keras_mask._key is key:
                return k, _MASK
        if type(x) is tuple or type(x) is list:
            try:
                return (k, *_path(x, key))
            except LookupError:
                continue
    raise LookupError


def pattern(runner, x, foreign=None, region=None):
    """How an argument is compared. Raises LookupError if that takes more than a glance.

    foreign: a list for the tensors from outside of the step, if there may be any; `region` is what the call did with them.
    """
    kind = type(x)
    if kind is TerraTensor and x._owner is runner:
        if "_keras_logits" in x.__dict__:
            raise LookupError
        if x._keras_mask is not None:
            return _MASKED, (x._key, x._shp), (pattern(runner, x._keras_mask, foreign, region),)
        return _VALUE, x._key, x._shp
    if kind is TerraTensor or kind is EagerTensor:
        identity = _identity(x)
        if identity is None:
            raise LookupError
        enum, shape = identity[:2]
        if len(identity) == 3 and (id(x) in runner.step.args or id(x) in runner.fed):
            raise LookupError
        argument, fed = runner.step.args.get(id(x)), runner.fed.get(id(x))
        if argument is not None and shape != ():
            return _ARGUMENT, argument[0], (enum, shape)
        if argument is not None or foreign is None or any(x is other for other in foreign):
            raise LookupError
        if fed is not None and not any(slot.key is fed[0] for slot, _ in region.feeds):
            return _FED, fed[0], (fed[1], known_to_host(runner, x))
        index = len(foreign)
        foreign.append(x)
        if not any(kind is Foreign and place == index for kind, place, _ in region.checks):
            return _FOREIGN, kind, (identity, runner._from_outside(x))
        if kind is TerraTensor or runner.step.is_data(x) or (len(identity) == 3 and not _is_marked(x)):
            raise LookupError
        return _ZEROS if len(identity) == 3 else _CONSTANT, const_key(x, enum, shape), x
    if x is None or kind is bool or x is Ellipsis or kind is tfi.tf.DType or tfi.is_variable(x):
        return _SAME, x, None
    if kind in SCALARS:
        if kind is float and x == 0.0:
            raise LookupError  # 0.0 == -0.0
        return _SCALAR, kind, x
    if kind is tuple or kind is list or (kind is tfi.tensor_shape.TensorShape and x.rank is not None) or (is_librarys_container(kind) and isinstance(x, list)):
        return _NESTED, kind, tuple([pattern(runner, y, foreign, region) for y in x])
    if kind is slice:
        return _NESTED, kind, tuple([pattern(runner, y, foreign, region) for y in (x.start, x.stop, x.step)])
    raise LookupError
