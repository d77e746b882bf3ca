"""The inline cache: a call of the framework's that was recorded (see `call_cache`) is skipped after a glance at its arguments.

A signature of the arguments is not even made: they are compared one by one with those of the recorded call, and the cursor moves on. Entries stand at the
place of the call (`polymorphic_hit`); the one that was used last stands behind the node that the call starts from, too (`attempt`).
"""

from threading import get_ident

from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.fast_forward.cache.argument_patterns import CONSTANT, MARK, NESTED, OTHER, SAME, SCALAR, SHARED, SLICE, VALUE, ZEROS, are_new, matches, pattern_of
from terra.runtime.fast_forward.cache.replay_record import advance
from terra.runtime.fast_forward.cache.call_records import MISSED, WithAttributes, ExternalInput, note_mask
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tensors.value_key import ValueKey
from terra.tf import private_names as tfi

EagerTensor = tfi.EagerTensor
_MASK = object()  # a step of a `_FromArgument` path
NONE = {}  # no keyword arguments


class InlineCacheEntry:
    """The arguments of a recorded call, to be compared at a glance, and how to give its result.

    Where it is `monomorphic`, it stands behind the node that the call starts from, with all that the commonest calls need: cold memory is what takes most of their time.
    There the first argument is a value of the step (key, shape) or a certain object (key, None); what follows is compared by `kind`, `a` and `b`.
    """

    __slots__ = (
        "function", "location", "names", "length", "recording", "device", "version", "seen", "fresh", "key", "shape", "kind", "a", "b", "rest",
        "jumps", "hidden", "entry", "end", "tells", "dtype", "enum", "made_shape", "made_key", "monomorphic", "plain", "guarded", "pattern", "sequence", "outputs", "record")


class _FromArgument:
    """Stands for an argument that a call gives back: where it is among the arguments."""

    __slots__ = ("path",)

    def __init__(self, path):
        self.path = path


class _WithMask:
    """Stands for a tensor that gets a mask of Keras'."""

    __slots__ = ("tensor", "mask")

    def __init__(self, tensor, mask):
        self.tensor, self.mask = tensor, mask


_new, _uid, _tape_set_is_empty, _context_changes = object.__new__, tfi.new_uid, tfi.tape_set_is_empty, tfi.context_changes


def monomorphic_hit(step, function, args):
    """Jump over a call in a step of class `Step` that is not a block's, nor in segments, if the `monomorphic` entry is its; returns its result, else None.

    This is `call_cache.running`, `attempt_function`, `entry_fits`, `advance_by_entry` and `make_tensor` in one, without what is rare: calling them takes as long as what they do.
    """
    runner = step.mode
    if type(runner) is not PythonRunner or step.paused or not step.skips or step.thread != get_ident():
        return None
    cached = runner.node.monomorphic
    if cached is None or cached.function is not function or cached.location is not runner.cursor.current or cached.names or cached.length != len(args):
        return None
    if step.settings_seen != _context_changes[0]:
        step.look_at_settings()
    recording = cached.recording
    if not step.is_eager or step.device != cached.device or (runner.tapes.recording is None) is recording or _tape_set_is_empty() is recording:
        return None
    if cached.fresh or runner.observer is not None or not runner.modules_checked:
        return None
    version = cached.version
    if version is not None and version[0] != cached.seen:
        return None
    x, shape = args[0], cached.shape
    if shape is None:
        if x is not cached.key:
            return None
    elif type(x) is not TerraTensor or x._key is not cached.key or x._owner is not runner or (x._shp is not shape and x._shp != shape) or x._keras_mask is not None:
        return None
    kind = cached.kind
    if kind is not None:
        x = args[1]
        if kind == VALUE:
            if type(x) is not TerraTensor or x._key is not cached.a or x._owner is not runner or (x._shp is not cached.b and x._shp != cached.b) or x._keras_mask is not None:
                return None
        elif kind == SAME:
            if x is not cached.a:
                return None
        elif kind == SCALAR:
            if type(x) is not cached.a or x != cached.b:
                return None
        elif (kind == CONSTANT and x is cached.b and not x.__dict__) or (kind == ZEROS and x is cached.b and x.__dict__ == MARK):
            if step.data and step.is_data(x):
                return None
        elif kind == SLICE and type(x) is slice and x.start is cached.a[0] and x.stop is cached.a[1] and x.step is cached.a[2]:
            pass  # the commonest slices are of the small integers of which Python has one object each
        else:
            external = []
            if not matches(runner, cached.rest, args[1:], external) or (external and not are_new(runner, external)):
                return None
    cached.jumps += 1
    step.counts.fast_forwards += 1
    if cached.hidden:
        runner.note_jump(cached.record)
    entry = cached.entry
    if entry is not None:
        runner.log.append(entry)
    else:
        runner.log += cached.record.entries
    end = runner.node = cached.end
    runner.expected = end.expected
    if cached.tells:
        runner.tapes.skipped(cached.record)
    made = _new(TerraTensor)
    made.dtype = cached.dtype
    made._enum = cached.enum
    made._id = _uid()
    made._value = made._hidden = made._tensor_shape = None
    made._owner = runner
    made._key = cached.made_key
    made._shp = cached.made_shape
    runner.issued.append(made)
    return made


def entry_fits(runner, cached, args, kwargs):
    """Returns whether a call is the one of an `monomorphic` entry."""
    if kwargs:
        if cached.names != tuple(kwargs):
            return False
        args = (*args, *kwargs.values())
    elif cached.names:
        return False
    if cached.length != len(args) or cached.recording is (runner.tapes.recording is None) or cached.device != runner.step.device:
        return False
    if cached.version is not None and cached.version[0] != cached.seen:
        if not cached.record.guard.holds():
            return False
        cached.seen = cached.version[0]
    if cached.fresh and any([id(x) in runner.fed for x in cached.fresh]):
        return False
    x = args[0]
    if cached.shape is None:
        if x is not cached.key:
            return False
    elif type(x) is not TerraTensor or x._key is not cached.key or x._owner is not runner or x._shp != cached.shape or x._keras_mask is not None:
        return False
    kind = cached.kind
    if kind is None:
        return True
    x = args[1]
    if kind is VALUE:
        return type(x) is TerraTensor and x._key is cached.a and x._owner is runner and x._shp == cached.b and x._keras_mask is None
    if kind is SAME:
        return x is cached.a
    if kind is SCALAR:
        return type(x) is cached.a and x == cached.b
    if kind is CONSTANT and x is cached.b and not vars(x) and runner.observer is None:
        return True
    external = []
    if not matches(runner, cached.rest, args[1:], external) or (external and not are_new(runner, external)):
        return False
    if runner.observer is not None:
        for x in external:
            note_mask(runner, x)
    return True


def polymorphic_hit(runner, cache, args, kwargs):
    """Jump over a call by one of the inline cache entries of its place; gives the call's result, or MISSED."""
    if kwargs:
        given, names = (*args, *kwargs.values()), tuple(kwargs)
    else:
        given, names = args, ()
    recording = runner.tapes.recording is not None
    for cached in cache.inline:
        if cached.length != len(given) or cached.names != names or cached.recording is not recording:
            continue
        external = []
        if matches(runner, cached.pattern, given, external) and (not external or are_new(runner, external)) and \
                not (cached.fresh and any([id(x) in runner.fed for x in cached.fresh])) and \
                (cached.record.guard.holds() if cached.guarded else cached.device == tfi.device_name()) and \
                (not cached.record.needs or cached.record.comes_after(runner)):
            if runner.observer is not None:
                for x in external:
                    note_mask(runner, x)
            if cached.monomorphic:
                runner.node.monomorphic = cached
            return _apply_entry(runner, cached, given, external)
    return MISSED




def advance_by_entry(runner, cached):
    """`replay_record.advance` by an inline cache entry that is `plain`."""
    cached.jumps += 1
    runner.step.counts.fast_forwards += 1
    if runner.observer is not None:
        runner.observer.note_jump(cached.record)
    if cached.hidden:
        runner.note_jump(cached.record)
    if cached.entry is not None:
        runner.log.append(cached.entry)
    else:
        runner.log += cached.record.entries
    end = runner.node = cached.end
    runner.expected = end.expected
    if cached.tells:
        runner.tapes.skipped(cached.record)


def _apply_entry(runner, cached, given, external):
    """`replay_record.apply_record` by an inline cache entry."""
    if cached.plain:
        advance_by_entry(runner, cached)
    else:
        cached.jumps += 1
        advance(runner, cached.record, external)
    if cached.sequence is None:
        return _build_output(runner, given, cached.outputs)
    made = [_build_output(runner, given, x) for x in cached.outputs]
    return made if cached.sequence is list else tuple(made)


def _build_output(runner, given, output):
    """A part of the call's result (see `_output`)."""
    kind = type(output)
    if kind is tuple:
        made = make_tensor(*output, runner, None)
        runner.issued.append(made)
        return made
    if kind is _FromArgument:
        for k in output.path:
            given = given._keras_mask if k is _MASK else given[k]
        return given
    if kind is _WithMask:
        made = _build_output(runner, given, output.tensor)
        made._keras_mask = _build_output(runner, given, output.mask)
        return made
    return output


def add_entry(runner, call_site, record, args, kwargs, shared=False, monomorphic=True):
    """Make an inline cache entry of a record, if it is simple enough. `monomorphic`: whether it may stand behind a node."""
    cache = runner.program.call_sites.get(call_site)
    if not cache or record.draws or record.masks or record.fetches or record.losses or record.effects or record.opaque or runner.step.verifies:
        return
    cached = InlineCacheEntry()
    given = (*args, *kwargs.values())
    try:
        cached.pattern = pattern_of(runner, given, [], record)[2]
        if shared:
            cached.pattern = (SHARED, given[0], cached.pattern[:1]), *cached.pattern[1:]
        cached.fresh = _fresh(record)
        result = record.result
        cached.sequence = type(result) if type(result) in (list, tuple) else None
        cached.outputs = _output(record, result, given) if cached.sequence is None else [_output(record, x, given) for x in result]
    except LookupError:
        return
    cached.function, cached.location = call_site[1], call_site[-1]
    cached.length = len(given)
    cached.names = tuple(kwargs)
    cached.record, cached.end = record, record.end
    cached.entry = record.entries[0] if len(record.entries) == 1 else None
    cached.jumps = 0
    cached.plain = not (  # little to do: most calls of single operations
        record.patches or record.latest or record.needs or record.selects or record.context or record.by_value or record.has_other_shapes)
    cached.recording = runner.tapes.recording is not None
    cached.tells = bool(record.accessed or (cached.recording and record.records))
    guard = record.guard
    cached.guarded = guard.root is not None or len(guard.containers) > 0
    cached.device = guard.settings[0]
    outputs = [cached.outputs] if cached.sequence is None else cached.outputs
    outputs = [part for x in outputs for part in ((x.tensor, x.mask) if type(x) is _WithMask else (x,))]
    made = [x[3] for x in outputs if type(x) is tuple]
    if len(set(made)) < len(made):
        return  # one tensor comes twice
    cached.hidden = set(made) != set(record.shapes)  # whether it has values that are not made at once
    cached.version, cached.seen = guard.only_version() if cached.guarded else None, None
    cached.monomorphic = monomorphic and cached.plain and not (cached.guarded and cached.version is None) and _simplify(cached)
    cache.add_inline(cached)


def _simplify(cached):
    """Returns whether the arguments can be compared as `entry_fits` does it, which is then prepared."""
    if type(cached.outputs) is not tuple or not cached.pattern or cached.pattern[0][0] not in (VALUE, SAME):
        return False
    (_, cached.key, cached.shape), *cached.rest = cached.pattern
    cached.kind, cached.a, cached.b = (None, None, None) if not cached.rest else cached.rest[0] if len(cached.rest) == 1 else (OTHER, None, None)
    if cached.kind == NESTED and cached.a is slice:
        cached.kind, cached.a = SLICE, [b if kind == SCALAR else a for kind, a, b in cached.b]
    cached.dtype, cached.enum, cached.made_shape, cached.made_key = cached.outputs
    return True


def _fresh(record):
    """The tensors that the record feeds out of its own, which the step must not have been fed yet. Raises LookupError if more has to be checked."""
    if any(kind is not ExternalInput and kind is not EagerTensor for kind, _, _ in record.checks):
        raise LookupError
    return [x for kind, x, _ in record.checks if kind is EagerTensor]


def _output(record, x, given):
    """How a part of a call's result is made. Raises LookupError if that is not simple."""
    if type(x) is ValueKey:
        made = record.shapes.get(x)
        return (*made, x) if made is not None else _FromArgument(_path(given, x))
    if type(x) is WithAttributes and list(x.attributes) == ["_keras_mask"]:
        return _WithMask(_output(record, x.value, given), _output(record, x.attributes["_keras_mask"], given))
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
