"""Gradients of rolled steps: the tape's work piece by piece.

While a step runs in pieces, what a gradient tape would record is kept, as in `lazy_tape`, but bundled: one `Composite` for the operations of one piece. When the program
asks for gradients, the composites are gone through backwards. That of one composite is a piece of its own: the first time TensorFlow's tape and gradient functions
issue its operations, which are traced, and make a graph; from then on a `Plan` says which tensors go into that graph and what comes out, and the backward pass of one
iteration of a loop is one dispatch, whatever the number of its operations. Plans hold for one path through the forward piece, its shapes, which of its inputs are watched and
which of its outputs have a gradient.

A value that is used by several operations of one piece, and behind it, gets its gradients summed piece by piece, where TensorFlow's tape has one sum of all: the
last bits may differ from eager execution there, as they do for tf.function's While.

Tapes that this does not cover (nested, with Python functions recorded on them, asked while they record) are told all operations, and TensorFlow's own tape does the work.
"""

from terra.fallback.replay import execute_again, unrecorded
from terra.graph.trace import CONST, FEED, VALUE
from terra.runtime import internals as tfi
from terra.runtime import opschema
from terra.runtime.graph_runner import runner
from terra.runtime.lazy_tape import LazyTape, Tapes
from terra.runtime.program import ValueKey
from terra.runtime.tensor import TerraTensor, make_tensor, note_reads, record_on_tapes
from terra.runtime.tracer import RESOURCE_ENUM, SMALL, real
from terra.runtime.values import launched

EagerTensor = tfi.EagerTensor
MOST_PATHS = 2000  # remembered for each piece
MOST_SUMMED_INSIDE = 4  # gradients of one value that a backward piece sums itself


class PieceLazyTape(LazyTape):
    """A tape of a rolled step."""

    __slots__ = ("watches_variables", "watches", "bundled", "told")

    def __init__(self, tape, watches_variables, accessed):
        super().__init__(tape, None, None, accessed)
        self.opaque = 1  # its gradient is never skipped as a whole
        self.watches_variables = watches_variables
        self.watches = []  # (number of composites before, tensor): watched explicitly
        self.bundled = 0  # so many entries of `pending` are composites
        self.told = False  # whether TensorFlow's tape was told of operations: from then on it does the work


class Composite:
    """What one piece did, as far as a tape is concerned."""

    __slots__ = ("records", "path", "fed", "held", "log", "outputs", "piece")

    def __init__(self):
        self.records = None  # [(op, inputs, attributes, outputs)], unless `path` can stand for them
        self.path = None  # the Path through its program, if it was co-executed
        self.fed = ()  # the tensors that came from outside
        self.held = None  # key -> tensor of the values that the plans need
        self.log = ()
        self.outputs = ()  # (tensor id, key) of what outlived the piece
        self.piece = None


class Path:
    """One way through the program of a piece, with its shapes: the operations that tapes are told, and the plans of their gradients."""

    __slots__ = ("template", "handles", "static", "plans", "needed", "read", "_derived", "consumed")

    def __init__(self, template, handles, static):
        self.template = template  # [(op, inputs, attributes, output keys)]; an input is a key, a _Fed, or the tensor itself
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
                    if (type(x) is ValueKey and x in known) or (type(x) is _Fed and x.index in watched) or (
                            id(x) in handles and n_fed + handles[id(x)] in watched):
                        known.update(key for key in outputs if _differentiable(key))
                        break
            self._derived[mask] = known
        return known


def _differentiable(key):
    dtype = tfi.INTERN_DTYPES[key.node.payload.event.out_enums[key.out]]
    return dtype.is_floating or dtype.is_complex


class _Fed:
    """Stands for tensor `index` of those that a piece got from outside."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class _Source:
    """A tensor that goes into a backward pass: gradient, tensor from outside of the forward piece, or value of it (kind 0, 1, 2)."""

    __slots__ = ("kind", "what")

    def __init__(self, kind, what):
        self.kind, self.what = kind, what


class Plan:
    """The backward pass of a composite as one dispatch."""

    __slots__ = ("program", "feeds", "arguments", "outputs", "result", "log", "targets")


class PlanRecord:
    """How to run a planned backward pass imperatively, should its graph fail (see `replay.Record`)."""

    __slots__ = ("plan", "sources", "survivors")

    def __init__(self, plan, sources, survivors):
        self.plan, self.sources, self.survivors = plan, sources, survivors

    def landed(self):
        pass

    def replay(self):
        values = {}
        with unrecorded():
            for node, refs, random_attrs in self.plan.log:
                inputs = [values[x] if type(x) is ValueKey else real(self.sources[x.index]) if type(x) is _Fed else real(x) for x in refs]
                for (_, _, key), value in zip(node.outs, execute_again(node, inputs, random_attrs)):
                    values[key] = value
        for t in self.survivors:
            t._value = t._hidden = values[t._key]
            t._owner = None


class _Owner:
    """Stands for a runner where a tape begins: rolled steps do not skip gradients as a whole."""

    node = path = step = None


class PieceTapes(Tapes):
    """The lazy tapes of one rolled step."""

    def __init__(self, step):
        super().__init__(_Owner, True)
        self.step = step

    def begun(self, tape, watches_variables):
        return PieceLazyTape(tape, watches_variables, len(self.accessed))

    def _lazies(self):
        return [*self.closed.values(), *([self.recording] if self.recording is not None else [])]

    # -- recording -------------------------------------------------------------------------------------------------------------

    def record(self, op, inputs, attrs, outputs):
        super().record(op, inputs, attrs, outputs)
        if self.recording is not None and self.step.mode is self.step.between:
            self.bundle(None, None)

    def watched(self, lazy, name, thing):
        self.step.cut()
        handle = getattr(thing, "handle", thing)
        self.step.data[id(handle)] = handle  # no constant, though Python may have made it
        lazy.watches.append((len(lazy.pending), handle))

    def before_host(self, flat):
        """An imperative-only operation comes, perhaps a py_function, which records on the tapes itself."""
        if self.recording is not None and any(type(x) is TerraTensor for x in flat):
            self.give_up()

    def diverged(self, piece_runner):
        """The current piece falls back: what it skipped will have been issued."""
        for lazy in self._lazies():
            items = lazy.pending[lazy.bundled:]
            if any(type(item) is not tuple for item in items):
                lazy.pending[lazy.bundled:] = _expanded(piece_runner, items)

    def bundle(self, mode, program):
        """The piece of `mode` ends: make composites of what was recorded in it; `program` is None if it ran imperatively. Returns them."""
        made = []
        for lazy in self._lazies():
            items = lazy.pending[lazy.bundled:]
            if not items:
                continue
            composite = Composite()
            composite.piece = self.step.piece if mode is not None else None
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
            pending += _records(item) if type(item) is Composite else [item]
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
            step.pause()  # an operation for each one on the tape, as many as the loops made: they are no piece
            try:
                return original(tape, *args)
            finally:
                step.resume()
        return _Backward(self, lazy).run(*args)


def _all_held(composite):
    """key -> tensor of all values that the tapes were told of."""
    records = [r for r in _records(composite) if all(type(t) is TerraTensor for t in r[3])]
    return {key: t for (_, _, _, keys), (_, _, _, outs) in zip(composite.path.template, records, strict=True) for key, t in zip(keys, outs)}


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
    """The Path for a co-executed piece; None if a plan could not name all of its tensors."""
    fed = {id(x): _Fed(k) for k, x in enumerate(composite.fed)}
    handles = []
    template = []
    for op, inputs, attrs, outputs in composite.records:
        if not all(type(t) is TerraTensor for t in outputs):
            if any(type(t) is TerraTensor for t in outputs):
                return None
            continue  # small integers that the host computed
        named = []
        for x in inputs:
            if type(x) is TerraTensor and x._owner is mode:
                named.append(x._key)
                continue
            if type(x) is EagerTensor and x._datatype_enum() == tfi.types_pb2.DT_RESOURCE and id(x) not in fed:
                if not any(x is h for h in handles):
                    handles.append(x)
            named.append(fed.get(id(x), x))
        template.append((op, named, attrs, [t._key for t in outputs]))
    return Path(template, handles, _static(mode))


def _records(composite):
    """The operations of a composite, as the tape is to be told of them."""
    if composite.records is not None:
        return composite.records
    tensors = dict(composite.held)
    values = {key: real(t) for key, t in tensors.items()}
    with unrecorded():  # what was not kept is computed again from what was
        for node, refs, random_attrs in composite.log:
            keys = [key for _, _, key in node.outs]
            if node.category == opschema.VARIABLE or all(key in values for key in keys):
                continue
            inputs = [values[x] if type(x) is ValueKey else real(x) for x in refs]
            for key, value in zip(keys, execute_again(node, inputs, random_attrs)):
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
        (op, [tensor(x) if type(x) is ValueKey else composite.fed[x.index] if type(x) is _Fed else x for x in inputs], attrs,
         [tensor(key) for key in outputs])
        for op, inputs, attrs, outputs in composite.path.template]
    return composite.records


class _Backward:
    """One call of `tape.gradient`."""

    def __init__(self, tapes, lazy):
        self.tapes, self.lazy, self.step = tapes, lazy, tapes.step
        self.gradients = {}  # tensor id -> its gradients so far

    def run(self, targets, sources, output_gradients=None, sources_raw=None, unconnected="none"):
        masks = self._forward()
        for k, target in enumerate(targets):
            given = output_gradients[k] if output_gradients else None
            if given is None:
                self.step.pause()
                try:
                    given = _ones(target)
                finally:
                    self.step.resume()
            self.gradients.setdefault(target._id, []).append(given)
        connected = self._watched
        for target in targets:
            if target._id not in connected:
                self.gradients.pop(target._id, None)
        wanted = {x._id for x in sources}
        for composite, mask in zip(reversed(self.lazy.pending), reversed(masks)):
            if mask:
                self._through(composite, mask, wanted)
        results = []
        for k, source in enumerate(sources):
            found = self.gradients.get(source._id)
            if found is None:
                results.append(tfi.tf.zeros_like((sources_raw or sources)[k]) if unconnected == "zero" else None)
            else:
                results.append(self._sum(found, k))
        self.step.cut()
        return results

    def _forward(self):
        """What is watched, and through which composites it goes: for each of them which tensors from outside are."""
        lazy = self.lazy
        watched = set()
        if lazy.watches_variables:
            watched = {v.handle._id for v in self.tapes.accessed[lazy.accessed:] if v.trainable}
        explicit = list(lazy.watches)
        masks = []
        for k, composite in enumerate(lazy.pending):
            while explicit and explicit[0][0] <= k:
                watched.add(explicit.pop(0)[1]._id)
            path = composite.path
            if path is not None:
                handles = path.handles
                mask = [j for j, x in enumerate(composite.fed) if x._id in watched]
                mask += [j - len(handles) for j, h in enumerate(handles) if h._id in watched]
                mask = tuple(mask)
                if mask:
                    derived = path.derived(mask)
                    watched.update([uid for uid, key in composite.outputs if key in derived])
            else:
                mask = []
                own = set()
                for _, inputs, _, outputs in composite.records:
                    hit = False
                    for x in inputs:
                        uid = x._id
                        if uid in own:
                            hit = True
                        elif uid in watched:
                            hit = True
                            if not any(x is y for y in mask):
                                mask.append(x)
                    if hit:
                        own.update([t._id for t in outputs if t.dtype.is_floating or t.dtype.is_complex])
                watched |= own
            masks.append(mask)
        for _, handle in explicit:
            watched.add(handle._id)
        self._watched = watched
        return masks

    def _through(self, composite, mask, wanted):
        """Take the gradients of what a composite computed to what it computed it from."""
        path = composite.path
        gradients = self.gradients
        if path is None:
            self._untraced(composite, mask, wanted)
            return
        derived = path.derived(mask)
        outputs = [(uid, key) for uid, key in composite.outputs if uid in gradients and key in derived]
        if not outputs:
            return
        inner = tuple([(uid, key) for uid, key in composite.outputs if uid in wanted and key in path.consumed])
        for uid, _ in outputs:
            self._shorten(uid)
        pattern = (mask, tuple([(key, *map(type, gradients[uid])) for uid, key in outputs]))
        plan = path.plans.get((pattern, _values(path, composite))) if not inner else None
        if plan is not None and plan.program is self._piece(composite).program:
            results = self._dispatch(plan, composite, _flat([g for uid, _ in outputs for g in gradients[uid]]))
        else:
            results = self._learn(composite, path, mask, outputs, inner, pattern)
        handles = path.handles
        for j, result in zip(mask, results):
            if result is not None:
                x = handles[j + len(handles)] if j < 0 else composite.fed[j]
                gradients.setdefault(x._id, []).append(result)
        for (uid, _), result in zip(inner, results[len(mask):]):
            gradients[uid] = [result]

    def _shorten(self, uid):
        """Sum the gradients of a value here if there are so many that they must come from a loop."""
        found = self.gradients[uid]
        if len(found) > MOST_SUMMED_INSIDE:
            self.gradients[uid] = [self._sum(found, "inside")]

    def _sum(self, found, which):
        """The sum of the gradients of source number `which` ("inside": of a value between pieces), on its own if their number varies."""
        lengths = self.step.pieces.lengths.setdefault(("sum", which), set())
        lengths.add(len(found))
        if len(found) == 1:
            return found[0]
        self.step.cut()
        if len(lengths) == 1:
            return tfi.aggregate_gradients(found)
        self.step.pause()
        try:
            return _data(tfi.aggregate_gradients(found))
        finally:
            self.step.resume()

    def _piece(self, composite):
        return self.step.pieces.get(("gradient", id(composite.piece)))

    def _learn(self, composite, path, mask, outputs, inner, pattern):
        """By TensorFlow's tape, for the operations of this composite only; makes a plan if the graph of these operations did the work."""
        step, gradients = self.step, self.gradients
        records = _records(composite)
        tensors = {t._id: t for _, _, _, outs in records for t in outs}
        handles = path.handles
        stand_ins = {id(x): _stand_in(x) for x in composite.fed if type(x) is EagerTensor and x._datatype_enum() != RESOURCE_ENUM}
        fed = [stand_ins.get(id(x), x) for x in composite.fed]
        if stand_ins:
            records = [(op, [stand_ins.get(id(x), x) for x in inputs], attrs, outs) for op, inputs, attrs, outs in records]
        sources = [handles[j + len(handles)] if j < 0 else fed[j] for j in mask] + [tensors[uid] for uid, _ in inner]
        given = _flat([g for uid, _ in outputs for g in gradients[uid]])
        traced = step.traced
        self._begin(composite)
        read = []
        note_reads(read)
        try:
            results = self._ask_tape(records, [tensors[uid] for uid, _ in outputs], [gradients[uid] for uid, _ in outputs], sources)
            note_reads(None)
            mode = step.mode
            plan = None
            if step.function.options.fast_forward and mode is not step.between and hasattr(mode, "program") and not inner:
                plan = _plan(mode, path, fed, records, given, results)
            step.cut()
        finally:
            note_reads(None)
            step.one_region = False
        if plan is not None and step.traced == traced:
            places = {id(x): k for k, x in enumerate(fed)}
            if all(id(t) in places and t._num_elements() <= SMALL for t in read):
                path.read = tuple(sorted({*path.read, *(places[id(t)] for t in read)}))
                path.plans[pattern, _values(path, composite)] = plan
                path.needed = (path.needed or set()) | plan.targets | _reads(composite)
        return results

    def _begin(self, composite):
        """Begin the piece of a composite's backward pass."""
        step = self.step
        step.cut()
        step.begin_piece(("gradient", id(composite.piece)))
        step.one_region = True

    def _untraced(self, composite, mask, wanted):
        """For a piece that ran imperatively, or an operation that stands alone."""
        step, gradients = self.step, self.gradients
        records = composite.records
        made = {t._id: t for _, _, _, outs in records for t in outs}
        outputs = [uid for uid in made if uid in gradients]
        if not outputs:
            return
        inner = [uid for uid in made if uid in wanted]
        sources = mask + [made[uid] for uid in inner]
        step.cut()
        alone = composite.piece is None
        if not alone:
            self._begin(composite)
        else:
            step.pause()
        try:
            results = self._ask_tape(records, [made[uid] for uid in outputs], [gradients[uid] for uid in outputs], sources)
            step.cut()
        finally:
            step.one_region = False
            if alone:
                step.resume()
        if alone:
            results = [_data(x) for x in results]
        for x, result in zip(mask, results):
            if result is not None:
                gradients.setdefault(x._id, []).append(result)
        for uid, result in zip(inner, results[len(mask):]):
            gradients[uid] = [result]

    @staticmethod
    def _ask_tape(records, outputs, given, sources):
        """The gradients by a tape of TensorFlow's that knows these operations."""
        tfi.flush_zeros_cache()
        originals = tfi.tape_originals
        tape = originals["TFE_Py_TapeSetNew"](False, False)
        try:
            for x in sources:
                originals["TFE_Py_TapeWatch"](tape, x)
            for record in records:
                record_on_tapes(*record)
        finally:
            originals["TFE_Py_TapeSetRemove"](tape)
        given = [g[0] if len(g) == 1 else tfi.aggregate_gradients(g) for g in given]
        results = originals["TFE_Py_TapeGradient"](tape, outputs, sources, given, sources, "none")
        tfi.flush_zeros_cache()
        return list(results)

    def _dispatch(self, plan, composite, given):
        """One iteration's backward pass."""
        step = self.step
        fed, held = composite.fed, composite.held
        if held is None or not plan.targets <= held.keys():  # the plan was made after this piece
            held = composite.held = _all_held(composite)
        sources = []
        arguments = plan.arguments.copy()
        for position, kind, what in plan.feeds:
            x = given[what] if kind == 0 else fed[what] if kind == 1 else held[what]
            sources.append(x)
            arguments[position] = launched(x) if type(x) is TerraTensor else x
        manager = tfi.new_cancellation_manager()
        outputs = runner.dispatch(plan.program, arguments, manager)
        survivors = []
        for dtype, enum, shape, key in plan.outputs:
            t = make_tensor(dtype, enum, shape, key, None, outputs[key.result])
            survivors.append(t)
        step.flight = flight = runner.launch(outputs, PlanRecord(plan, sources, survivors), manager, step.counts)
        flight.last, flight.group = False, step
        for t in survivors:
            t._owner = flight
        step.launched += 1
        step.counts.fast_forwards += 1
        step.counts.feeds += len(sources)
        if step.kept is not None:
            step.kept.append((plan.program, arguments))

        def result(x):
            kind = type(x)
            if kind is int:
                return survivors[x]
            if kind is _Source:
                return given[x.what] if x.kind == 0 else fed[x.what] if x.kind == 1 else held[x.what]
            if kind is tuple:
                return tfi.tf.IndexedSlices(*map(result, x))
            return x

        return [result(x) for x in plan.result]


def _reads(composite):
    """Keys of the values that were read from variables: they cannot be computed again."""
    return {key for node, _, _ in composite.log if node.category == opschema.VARIABLE for _, _, key in node.outs}


def _flat(gradients):
    """The tensors of gradients, of which some may be IndexedSlices."""
    if tfi.tf.IndexedSlices not in map(type, gradients):
        return gradients
    return [t for g in gradients for t in ((g.values, g.indices, g.dense_shape) if type(g) is tfi.tf.IndexedSlices else (g,))]


def _static(mode):
    """Whether no shape depends on data."""
    return all(type(shape) is tuple for node, _, _ in mode.log for shapes in node.shapes.values() for shape in shapes)


def _stand_in(x):
    """A tensor of Terra's for one that Python made: it counts as data, and it is seen when its value is read."""
    enum = x._datatype_enum()
    t = make_tensor(tfi.INTERN_DTYPES[enum], enum, x._shape_tuple(), None, None, x)
    t._value = x
    return t


def _data(x):
    """A gradient that was computed imperatively: it is no constant, however small."""
    if type(x) is EagerTensor:
        return _stand_in(x)
    if type(x) is tfi.tf.IndexedSlices:
        return tfi.tf.IndexedSlices(_data(x.values), _data(x.indices), x.dense_shape)
    return x


def _values(path, composite):
    """What the gradient functions read of the tensors from outside."""
    return tuple([real(composite.fed[k])._numpy_internal().tobytes() for k in path.read])


def _plan(mode, path, fed_forward, records, given, results):
    """The plan for what `mode`, a PieceRunner at the end of a backward piece, has walked; None if it got a tensor of unknown origin."""
    program = mode.program
    if mode.node.end_selects is None or not path.static or not _static(mode):
        return None
    origin = {}
    for k, x in enumerate(given):
        origin.setdefault(id(x), _Source(0, k))
    for k, x in enumerate(fed_forward):
        origin.setdefault(id(x), _Source(1, k))
    named = [r for r in records if all(type(t) is TerraTensor for t in r[3])]
    for (_, _, _, keys), (_, _, _, outs) in zip(path.template, named, strict=True):
        for key, t in zip(keys, outs):
            origin.setdefault(id(t), _Source(2, key))
    plan = Plan()
    plan.program, plan.feeds, plan.log = program, [], []
    plan.targets = set()
    fed, constants = {}, []
    for node, refs, random_attrs in mode.log:
        if len(refs) != len(node.slots):
            return None  # it draws random numbers
        refs = list(refs)
        for k, slot in enumerate(node.slots):
            source = origin.get(id(refs[k])) if type(refs[k]) is not ValueKey else None
            if source is not None and slot.kind is CONST:
                return None  # it happened to have that value
            if slot.kind is FEED:
                if source is None:
                    if not _is_constant(refs[k], mode.step):
                        return None
                    constants.append((program.feed_positions[slot.feed.index], refs[k]))
                    continue
                fed.setdefault(id(source), len(plan.feeds))
                plan.feeds.append((program.feed_positions[slot.feed.index], source.kind, source.what))
                if source.kind == 2:
                    plan.targets.add(source.what)
            if source is not None and id(source) in fed:
                refs[k] = _Fed(fed[id(source)])
            elif source is not None and slot.kind is VALUE:
                return None
        plan.log.append((node, refs, random_attrs))
    selects = list(mode.selects)
    for switch_case, case in mode.node.end_selects:
        k = program.generated.select_index.get(switch_case)
        if k is not None:
            selects[k] = case
    plan.arguments = mode._arguments([None] * program.n_feeds, selects)
    for position, x in constants:
        plan.arguments[position] = x
    plan.outputs, numbers = [], {}

    def place(t):
        """Where a tensor of the result comes from. Raises LookupError if that cannot be told."""
        if type(t) is TerraTensor and t._owner is mode:
            if t._key not in numbers:
                if t._key.result < 0 or t._shp is None:
                    raise LookupError
                numbers[t._key] = len(plan.outputs)
                plan.outputs.append((t.dtype, t._enum, t._shp, t._key))
            return numbers[t._key]
        if id(t) in origin:
            source = origin[id(t)]
            if source.kind == 2:
                plan.targets.add(source.what)
            return source
        if _is_constant(t, mode.step):
            return t
        raise LookupError

    plan.result = []
    try:
        for x in results:
            if x is None:
                plan.result.append(None)
            elif type(x) is tfi.tf.IndexedSlices:
                plan.result.append(tuple(place(t) for t in (x.values, x.indices, x.dense_shape)))
            else:
                plan.result.append(place(x))
    except LookupError:
        return None
    return plan


def _is_constant(x, step):
    """Whether a small tensor was made by Python from shapes and attributes, and so is the same each time on this path."""
    return type(x) is EagerTensor and id(x) not in step.data and x._num_elements() <= SMALL


_scalar_ones = {}


def _ones(target):
    """The gradient that a target begins with."""
    shape = target._shape_tuple()
    if shape != ():
        return tfi.tf.constant(1, target.dtype, shape)
    known = _scalar_ones.get(target.dtype)
    if known is None:
        known = _scalar_ones[target.dtype] = tfi.tf.constant(1, target.dtype)
    return known
