"""Plans: the backward pass of one segment as one dispatch, where it goes the same way as one that was walked before (see `segment_gradient`)."""

from terra.graph.trace import CONST, FEED, VALUE
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.placeholders import launched
from terra.runtime.fallback.replay import execute_again, unrecorded
from terra.runtime.loops.segment_tape import SegmentInput, all_held, is_static, values_of
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf.constants import SMALL

EagerTensor = tfi.EagerTensor


class Source:
    """A tensor that goes into a backward pass: gradient, tensor from outside of the forward segment, or value of it (kind 0, 1, 2)."""

    __slots__ = ("kind", "what")

    def __init__(self, kind, what):
        self.kind, self.what = kind, what


class Plan:
    """The backward pass of a composite as one dispatch."""

    __slots__ = ("program", "feeds", "arguments", "outputs", "result", "log", "targets")

    def run(self, step, composite, given):
        """One iteration's backward pass."""
        fed, held = composite.fed, composite.held
        if held is None or not self.targets <= held.keys():  # the plan was made after this segment
            held = composite.held = all_held(composite)
        sources = []
        arguments = self.arguments.copy()
        for position, kind, what in self.feeds:
            x = given[what] if kind == 0 else fed[what] if kind == 1 else held[what]
            sources.append(x)
            arguments[position] = launched(x) if type(x) is TerraTensor else x
        manager = tfi.new_cancellation_manager()
        outputs = GRAPH_RUNNER.dispatch(self.program, arguments, manager)
        survivors = []
        for dtype, enum, shape, key in self.outputs:
            t = make_tensor(dtype, enum, shape, key, None, outputs[key.result])
            survivors.append(t)
        step.flight = flight = GRAPH_RUNNER.launch(outputs, BackwardRecord(self, sources, survivors), manager, step.counts)
        flight.last = False
        for t in survivors:
            t._owner = flight
        step.launched += 1
        step.counts.fast_forwards += 1
        step.counts.feeds += len(sources)
        if step.kept is not None:
            step.kept.append((self.program, arguments))

        def result(x):
            kind = type(x)
            if kind is int:
                return survivors[x]
            if kind is Source:
                return given[x.what] if x.kind == 0 else fed[x.what] if x.kind == 1 else held[x.what]
            if kind is tuple:
                return tfi.tf.IndexedSlices(*map(result, x))
            return x

        return [result(x) for x in self.result]


class BackwardRecord:
    """How to run a planned backward pass imperatively, should its graph fail (see `replay.StepRecord`)."""

    __slots__ = ("plan", "sources", "survivors")

    def __init__(self, plan, sources, survivors):
        self.plan, self.sources, self.survivors = plan, sources, survivors

    def landed(self):
        pass

    def drop(self):
        pass

    def replay(self):
        values = {}
        with unrecorded():
            for node, refs, own_attrs in self.plan.log:
                inputs = [values[x] if type(x) is ValueKey else real(self.sources[x.index]) if type(x) is SegmentInput else real(x) for x in refs]
                for (_, _, key), value in zip(node.outs, execute_again(node, inputs, own_attrs)):
                    values[key] = value
        for t in self.survivors:
            t._value = t._hidden = values[t._key]
            t._owner = None


def make_plan(mode, path, fed_forward, records, given, results, ones):
    """The plan for what `mode`, a SegmentRunner at the end of a backward segment, has walked; None if it got a tensor of unknown origin.

    Of the gradients that were `given` to it, those among `ones` are the same each time.
    """
    program = mode.program
    if mode.node.end_selects is None or not path.static or not is_static(mode):
        return None
    origin = _origins(path, fed_forward, records, given, ones)
    plan = Plan()
    plan.program, plan.feeds, plan.log = program, [], []
    plan.targets = set()
    fed, constants = {}, []
    for node, refs, own_attrs in mode.log:
        if len(refs) != len(node.slots) or node.info.schema.varies:
            return None  # it draws random numbers, or tells this step's message
        refs = list(refs)
        for k, slot in enumerate(node.slots):
            source = origin.get(id(refs[k])) if type(refs[k]) is not ValueKey else None
            if source is not None and slot.kind is CONST:
                return None  # it happened to have that value
            if slot.kind is FEED:
                if source is None:
                    if not is_constant(refs[k], mode.step):
                        return None
                    constants.append((program.feed_positions[slot.feed.index], refs[k]))
                    continue
                fed.setdefault(id(source), len(plan.feeds))
                plan.feeds.append((program.feed_positions[slot.feed.index], source.kind, source.what))
                if source.kind == 2:
                    plan.targets.add(source.what)
            if source is not None and id(source) in fed:
                refs[k] = SegmentInput(fed[id(source)])
            elif source is not None and slot.kind is VALUE:
                return None
        plan.log.append((node, refs, own_attrs))
    selects = list(mode.selects)
    for switch_case, case in mode.node.end_selects:
        k = program.generated.select_index.get(switch_case)
        if k is not None:
            selects[k] = case
    plan.arguments = mode._arguments([None] * program.n_feeds, selects)
    for position, x in constants:
        plan.arguments[position] = x
    return plan if _places_results(plan, mode, results, origin) else None


def _origins(path, fed_forward, records, given, ones):
    """{id of a tensor: its `Source`}."""
    origin = {}
    for k, x in enumerate(given):
        if id(x) not in ones:
            origin.setdefault(id(x), Source(0, k))
    for k, x in enumerate(fed_forward):
        origin.setdefault(id(x), Source(1, k))
    for key, t in values_of(path, records):
        origin.setdefault(id(t), Source(2, key))
    return origin


def _places_results(plan, mode, results, origin):
    """Note in the plan where the results come from. Returns whether that can be told."""
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
        if is_constant(t, mode.step):
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
        return False
    return True


def is_constant(x, step):
    """Returns whether a small tensor was made by Python from shapes and attributes, and so is the same each time on this path."""
    return type(x) is EagerTensor and not step.is_data(x) and x._num_elements() <= SMALL
