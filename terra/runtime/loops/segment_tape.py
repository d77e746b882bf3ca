"""The records for the gradient tapes of a rolled step, bundled segment by segment.

While a step runs in segments, what a gradient tape would record is kept, as in `lazy_tape`; when a segment ends, its operations become one
`SegmentRecord`. Gradients are taken composite by composite (`terra.runtime.loops.segment_gradient`). Tapes that this does not cover (nested ones,
those on which Python functions were recorded or that are asked while they record) are told all operations, and TensorFlow's own tape does the work.
"""

from terra.runtime.fallback.replay import execute_again, unrecorded
from terra.runtime.tapes.lazy_tape import LazyTape, Tapes
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.tf.constants import RESOURCE_ENUM
from terra.tf.private import symbolic

EagerTensor = tfi.EagerTensor
MOST_PATHS = 2000  # remembered for each segment


class SegmentLazyTape(LazyTape):
    """A tape of a rolled step."""

    __slots__ = ("watches_variables", "watches", "bundled", "told")

    def __init__(self, tape, watches_variables, accessed):
        super().__init__(tape, None, None, accessed)
        self.opaque = 1  # its gradient is never skipped as a whole
        self.watches_variables = watches_variables
        self.watches = []  # (number of composites before, tensor): watched explicitly
        self.bundled = 0  # so many entries of `pending` are composites
        self.told = False  # whether TensorFlow's tape was told of operations: from then on it does the work


class SegmentRecord:
    """One segment, as far as a tape is concerned."""

    __slots__ = ("records", "path", "fed", "held", "log", "outputs", "segment")

    def __init__(self):
        self.records = None  # [(op, inputs, attributes, outputs)], unless `path` can stand for them
        self.path = None  # the Path through its program, if it was co-executed
        self.fed = ()  # the tensors that came from outside
        self.held = None  # key -> tensor of the values that the plans need
        self.log = ()
        self.outputs = ()  # (tensor id, key) of what outlived the segment
        self.segment = None


class Path:
    """One way through the program of a segment, with its shapes: the operations that tapes are told, and the plans of their gradients."""

    __slots__ = ("template", "handles", "static", "plans", "needed", "read", "_derived", "consumed")

    def __init__(self, template, handles, static):
        self.template = template  # [(op, inputs, attributes, output keys)]; an input is a key, a SegmentInput, or the tensor itself
        self.handles = handles  # of the variables that it uses
        self.static = static  # whether no shape depends on data: else there can be no plan
        self.plans = {}
        self.needed = None  # keys of the values that the plans use; None before there is one
        self.read = ()  # which of the tensors from outside gradient functions read the values of
        self._derived = {}
        self.consumed = {x for _, inputs, _, _ in template for x in inputs if type(x) is ValueKey}

    def derived(self, mask):
        """Keys of the values through which gradients flow to the watched ones among the tensors from outside."""
        known = self._derived.get(mask)
        if known is None:
            known = set()
            watched = set(mask)
            n_fed = -len(self.handles)
            handles = {id(h): k for k, h in enumerate(self.handles)}
            for _, inputs, _, outputs in self.template:
                for x in inputs:
                    if (type(x) is ValueKey and x in known) or (type(x) is SegmentInput and x.index in watched) or (
                            id(x) in handles and n_fed + handles[id(x)] in watched):
                        known.update(key for key in outputs if _differentiable(key))
                        break
            self._derived[mask] = known
        return known


def _differentiable(key):
    dtype = tfi.INTERN_DTYPES[key.node.payload.event.out_enums[key.out]]
    return dtype.is_floating or dtype.is_complex


class SegmentInput:
    """Stands for tensor `index` of those that a segment got from outside."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class _Owner:
    """Stands for a runner where a tape begins: rolled steps do not skip gradients as a whole."""

    node = path = step = None


class SegmentTapes(Tapes):
    """The lazy tapes of one rolled step."""

    def __init__(self, step, backward):
        super().__init__(_Owner, True)
        self.step = step
        self.backward = backward  # what takes gradients: `segment_gradient.gradient`

    def begun(self, tape, watches_variables):
        return SegmentLazyTape(tape, watches_variables, len(self.accessed))

    def _lazies(self):
        return [*self.closed.values(), *([self.recording] if self.recording is not None else [])]

    # -- recording -------------------------------------------------------------------------------------------------------------

    def record(self, op, inputs, attrs, outputs):
        super().record(op, inputs, attrs, outputs)
        if self.recording is not None and self.step.mode is self.step.between:
            self.bundle(None, None)

    def record_function(self, op, outputs, inputs, function):
        return False  # a plan has no place for it

    def watched(self, lazy, name, thing):
        self.step.cut()
        handle = getattr(thing, "handle", thing)
        self.step.data[id(handle)] = handle  # no constant, though Python may have made it
        lazy.watches.append((len(lazy.pending), handle))

    def before_host(self, op, flat):
        """An imperative-only operation comes, perhaps a py_function, which records on the tapes itself; nothing flows through one that has no gradient."""
        if self.recording is not None and any(type(x) is TerraTensor for x in flat) and not symbolic.is_not_differentiable(op):
            self.give_up()

    def diverged(self, piece_runner):
        """The current segment falls back: what it skipped will have been issued."""
        for lazy in self._lazies():
            items = lazy.pending[lazy.bundled:]
            if any(type(item) is not tuple for item in items):
                lazy.pending[lazy.bundled:] = _expanded(piece_runner, items)

    def bundle(self, mode, program):
        """The segment of `mode` ends: make composites of what was recorded in it; `program` is None if it ran imperatively. Returns them."""
        made = []
        for lazy in self._lazies():
            items = lazy.pending[lazy.bundled:]
            if not items:
                continue
            composite = SegmentRecord()
            composite.segment = self.step.segment if mode is not None else None
            if program is None:
                composite.records = items
            else:
                self._bundle_known(composite, mode, program, items)
            lazy.pending[lazy.bundled:] = [composite]
            lazy.bundled += 1
            made.append(composite)
        return made

    @staticmethod
    def _bundle_known(composite, mode, program, items):
        fed = mode.fed.values()
        composite.fed = [x for _, _, x in fed]
        composite.log = mode.log
        key = (mode.node, mode.path, tuple([shape for _, shape, _ in fed]), tuple([_first_key(x) if type(x) is tuple else x for x in items]))
        path = program.paths.get(key)
        if path is None or path.needed is None:
            composite.records = _expanded(mode, items)
            if path is None:
                if len(program.paths) > MOST_PATHS:
                    program.paths.clear()
                path = program.paths[key] = _path(composite, mode)
        composite.path = path
        if path is not None and path.needed is not None:
            shapes = mode.jumped_shapes(0)
            composite.held = {key: mode.placeholder(key, shapes) for key in path.needed}

    # -- TensorFlow's own tape -------------------------------------------------------------------------------------------------

    def flush(self, lazy):
        self.step.cut()
        pending = []
        for item in lazy.pending:
            pending += records_of(item) if type(item) is SegmentRecord else [item]
        lazy.pending, lazy.bundled, lazy.told = pending, 0, True
        super().flush(lazy)

    # -- gradients -------------------------------------------------------------------------------------------------------------

    def gradient(self, lazy, tape, *args):
        step = self.step
        step.cut()
        if lazy is None or lazy.told or not tfi.tape_set_is_empty() or lazy is self.recording:
            if lazy is not None:
                self.flush(lazy)
            original = tfi.tape_originals["TFE_Py_TapeGradient"]
            if not tfi.tape_set_is_empty():
                return original(tape, *args)
            step.cut()
            step.pause()  # an operation for each one on the tape, as many as the loops made: they are no segment
            try:
                return original(tape, *args)
            finally:
                step.resume()
        return self.backward(self, lazy, *args)


def is_static(mode):
    """Returns whether no shape depends on data."""
    return all(type(shape) is tuple for node, _, _ in mode.log for shapes in node.shapes.values() for shape in shapes)


def all_held(composite):
    """key -> tensor of all values that the tapes were told of, as outputs or as inputs (what `tf.stop_gradient` gives is an input only)."""
    return dict(values_of(composite.path, records_of(composite)))


def values_of(path, records):
    """(key, tensor) of the values in the records of a segment that took this path."""
    named = [r for r in records if all(type(t) is TerraTensor for t in r[3])]
    for (_, names, _, keys), (_, inputs, _, outs) in zip(path.template, named, strict=True):
        for key, t in zip((*keys, *names), (*outs, *inputs)):
            if type(key) is ValueKey:
                yield key, t


def _first_key(record):
    t = record[3][0] if record[3] else None  # an assignment has no outputs
    return t._key if type(t) is TerraTensor else None


def _expanded(mode, items):
    records = []
    for item in items:
        if type(item) is tuple:
            records.append(item)
        else:
            records += mode.expand(item)
    return records


def _path(composite, mode):
    """The Path for a co-executed segment; None if a plan could not name all of its tensors."""
    fed = {id(x): SegmentInput(k) for k, x in enumerate(composite.fed)}
    handles = []
    template = []
    for op, inputs, attrs, outputs in composite.records:
        if not all(type(t) is TerraTensor for t in outputs):
            if any(type(t) is TerraTensor for t in outputs):
                return None
            continue  # small integers that the host computed
        if op in variable_use.CHECKS:
            return None  # its gradient tells this step's message
        named = []
        for x in inputs:
            if type(x) is TerraTensor and x._owner is mode:
                named.append(x._key)
                continue
            if type(x) is EagerTensor and x._datatype_enum() == RESOURCE_ENUM and id(x) not in fed:
                if not any(x is h for h in handles):
                    handles.append(x)
            named.append(fed.get(id(x), x))
        template.append((op, named, attrs, [t._key for t in outputs]))
    return Path(template, handles, is_static(mode))


def records_of(composite):
    """The operations of a composite, as the tape is to be told of them."""
    if composite.records is not None:
        return composite.records
    tensors = dict(composite.held)
    values = {key: real(t) for key, t in tensors.items()}
    with unrecorded():  # what was not kept is computed again from what was
        for node, refs, own_attrs in composite.log:
            keys = [key for _, _, key in node.outs]
            if node.category == opschema.VARIABLE or all(key in values for key in keys):
                continue
            inputs = [values[x] if type(x) is ValueKey else real(x) for x in refs]
            for key, value in zip(keys, execute_again(node, inputs, own_attrs)):
                values.setdefault(key, value)
    ids = {key: uid for uid, key in composite.outputs}

    def tensor(key):
        t = tensors.get(key)
        if t is None:
            enum = key.node.payload.event.out_enums[key.out]
            dtype = tfi.INTERN_DTYPES[enum]
            t = tensors[key] = make_tensor(dtype, enum, values[key]._shape_tuple(), None, None, values[key])
            t._value = values[key]
            t._id = ids.get(key, t._id)
        return t

    composite.records = [
        (op, [tensor(x) if type(x) is ValueKey else composite.fed[x.index] if type(x) is SegmentInput else x for x in inputs], attrs,
         [tensor(key) for key in outputs])
        for op, inputs, attrs, outputs in composite.path.template]
    return composite.records
