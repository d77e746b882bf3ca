"""Gradients of rolled steps, segment by segment.

`tape.gradient` goes through the composites of a tape (`terra.runtime.loops.segment_tape`) backwards. The backward pass of one composite is a segment
of its own: the first time TensorFlow's tape and gradient functions issue its operations, which are traced, and make a graph; from then on a
`BackwardPlan` says which tensors go into that graph and what comes out, and the backward pass of one iteration of a loop is one dispatch, whatever
the number of its operations. A plan holds for one path through the forward segment, its shapes, which of its inputs are watched, which of its outputs
have a gradient, and the values that gradient functions read.

A value that is used by several operations of one segment, and behind it, gets its gradients summed segment by segment, where TensorFlow's tape has
one sum of all: the last bits may differ from eager execution there, as they do for tf.function's While.
"""

from terra.runtime.loops.piece_plans import is_constant, make_plan
from terra.runtime.loops.segment_tape import records_of
from terra.runtime.tensors.tensor import make_tensor, note_reads, record_on_tapes
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import RESOURCE_ENUM, SMALL

EagerTensor = tfi.EagerTensor
MOST_SUMMED_INSIDE = 4  # gradients of one value that a backward segment sums itself


def gradient(tapes, lazy, *args):
    """Does what TFE_Py_TapeGradient does, for a lazy tape of a rolled step."""
    return _Backward(tapes, lazy).run(*args)


class _Backward:
    """One call of `tape.gradient`."""

    def __init__(self, tapes, lazy):
        self.tapes, self.lazy, self.step = tapes, lazy, tapes.step
        self.gradients = {}  # tensor id -> its gradients so far
        self.ones = {}  # id -> a small constant that a target's gradient begins with: part of what a plan is for

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
                if is_constant(given, self.step):
                    self.ones[id(given)] = given
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
        """Finds what is watched, and through which composites it goes: gives for each of them which tensors from outside are."""
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
        pattern = (mask, tuple([(key, *map(self._kind, gradients[uid])) for uid, key in outputs]))
        plan = path.plans.get((pattern, _values(path, composite))) if not inner and not self.step.verifies else None
        if plan is not None and plan.program is self._piece(composite).program:
            results = plan.run(self.step, composite, _flat([g for uid, _ in outputs for g in gradients[uid]]))
        else:
            results = self._learn(composite, path, mask, outputs, inner, pattern)
        handles = path.handles
        for j, result in zip(mask, results):
            if result is not None:
                x = handles[j + len(handles)] if j < 0 else composite.fed[j]
                gradients.setdefault(x._id, []).append(result)
        for (uid, _), result in zip(inner, results[len(mask):]):
            gradients[uid] = [result]

    def _kind(self, gradient):
        """Returns what plans tell a gradient by."""
        return "ones" if id(gradient) in self.ones else type(gradient)

    def _shorten(self, uid):
        """Sum the gradients of a value here if there are so many that they must come from a loop."""
        found = self.gradients[uid]
        if len(found) > MOST_SUMMED_INSIDE:
            self.gradients[uid] = [self._sum(found, "inside")]

    def _sum(self, found, which):
        """The sum of the gradients of source number `which` ("inside": of a value between segments), on its own if their number varies."""
        lengths = self.step.segments.lengths.setdefault(("sum", which), set())
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
        return self.step.segments.get(("gradient", id(composite.segment)))

    def _learn(self, composite, path, mask, outputs, inner, pattern):
        """By TensorFlow's tape, for the operations of this composite only; makes a plan if the graph of these operations did the work."""
        step, gradients = self.step, self.gradients
        records = records_of(composite)
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
                plan = make_plan(mode, path, fed, records, given, results, self.ones)
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
        """Begin the segment of a composite's backward pass."""
        step = self.step
        step.cut()
        step.begin_segment(("gradient", id(composite.segment)))
        step.one_region = True

    def _untraced(self, composite, mask, wanted):
        """For a segment that ran imperatively, or an operation that stands alone."""
        step, gradients = self.step, self.gradients
        records = composite.records
        made = {t._id: t for _, _, _, outs in records for t in outs}
        outputs = [uid for uid in made if uid in gradients]
        if not outputs:
            return
        inner = [uid for uid in made if uid in wanted]
        sources = mask + [made[uid] for uid in inner]
        step.cut()
        alone = composite.segment is None
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

def _reads(composite):
    """Keys of the values that were read from variables: they cannot be computed again."""
    return {key for node, _, _ in composite.log if node.category == opschema.VARIABLE for _, _, key in node.outs}


def _flat(gradients):
    """The tensors of gradients, of which some may be IndexedSlices."""
    if tfi.tf.IndexedSlices not in map(type, gradients):
        return gradients
    return [t for g in gradients for t in ((g.values, g.indices, g.dense_shape) if type(g) is tfi.tf.IndexedSlices else (g,))]


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
    """Returns what the gradient functions read of the tensors from outside, as bytes."""
    return tuple([real(composite.fed[k])._numpy_internal().tobytes() for k in path.read])


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
