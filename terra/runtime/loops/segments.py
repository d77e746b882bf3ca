"""Segments: how a step whose loops run another number of times each time, or branch anew in each iteration, or that recurses over data, is co-executed.

A loop with one trip count is unrolled in the step's own graph. Once the count has varied, the step is *rolled*: it is cut into segments where an
iteration of such a loop, or a recursive call, begins or ends, and where Python reads a value. Each segment has a TraceGraph of its own (all
iterations of a loop are traces of the same one, with its branches, feeds and constants) and a graph of its own, in the late form; a nested loop is
segments again. Python, which decides anyway whether the loop goes on, dispatches the body's graph once for each iteration on the asynchronous
executor: 6 us of Python, some 20 us on the executor. So nothing but the code decides how many graphs there are: not trip counts, not the shapes of
    trees, not the number of elements that a list has after the loop.

It differs from the supplement, where a loop node becomes a While operation whose predicate is a Case Select for each iteration. Segments need no such
channel, no accumulators (values of all iterations are plain tensors, which Python keeps in its lists), allow any recursion, and a segment that leaves
the known paths is replayed
alone: what the step did before it stays done, since segments are dispatched in program order. The gradients of rolled steps are in
    `terra.runtime.loops.segment_gradient`.

Operations on lists whose length varies (a stack over all iterations, the sum of their gradients) run on their own between the segments.
"""

from threading import get_ident

from terra.graph.trace import TraceStore
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.sources.normalised_locations import NormalisedLocations
from terra.runtime.loops.segment_gradient import gradient
from terra.runtime.loops.segment_modes import SegmentRunner, SegmentTracer
from terra.runtime.loops.segment_tape import SegmentTapes
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tracing.structures import flat_outputs
from terra.runtime.tracing.tracer import DTYPES, real
from terra.tf import private_names as tfi
from terra.tf import interrupts

EagerTensor = tfi.EagerTensor
_FEW_LENGTHS = 2  # of an operation's list, at one place: with more it runs on its own
_MANY_OWNERS = 3  # a list with values of so many earlier segments is one that a loop made


class Segment:
    """One segment of a function: its traces, and the program made of them."""

    __slots__ = ("store", "program", "version", "quiet")

    def __init__(self):
        self.store = TraceStore()
        self.program = None
        self.version = 0  # of the store, when the program was made
        self.quiet = 0  # traces since something was new


class Segments:
    """All segments of one function."""

    def __init__(self, varying):
        self.places = NormalisedLocations(varying)
        self.table = {}  # place of the first operation (or a key of `segment_gradient`'s) -> Segment
        self.dirty = set()  # segments whose program is not up to date
        self.due = set()  # those of them that are to get a new one now
        self.lengths = {}  # (place, operation) -> lengths that its lists have had

    def get(self, key):
        segment = self.table.get(key)
        if segment is None:
            segment = self.table[key] = Segment()
        return segment

    @property
    def programs(self):
        """Those of the segments that can be co-executed."""
        return [segment.program for segment in self.table.values() if segment.program is not None]

    @property
    def ready(self):
        """Whether any segment can be co-executed."""
        return any(segment.program is not None for segment in self.table.values())


class NormalisedCursor:
    """Where the step is, as its segments see it: `current` is the place of the location `here`."""

    __slots__ = ("current", "here", "region")

    def __init__(self):
        self.current = self.here = self.region = None


class _BetweenSegments:
    """The mode of a step between two segments: the next operation begins one."""

    tapes = None

    def __init__(self, step):
        self.step = step

    def fast(self, *args):
        self.step.begin_segment()
        return self.step.mode.fast(*args)

    def slow(self, *args):
        self.step.begin_segment()
        return self.step.mode.slow(*args)


class SegmentedStep(Step):
    """One call of a function whose steps are rolled."""

    in_pieces = True

    def __init__(self, function, args, kwargs):
        super().__init__(function, args, kwargs)
        self.segments = function.segments
        self.real_cursor = self.cursor
        self.cursor = NormalisedCursor()
        self.store = None  # of the current segment
        self.segment = None
        for t in self.arg_list:  # arguments are data like any other from outside of a segment
            self.data[id(t)] = t
        self.args, self.arg_list = {}, []
        self.tapes = SegmentTapes(self, gradient)
        self.between = self.mode = _BetweenSegments(self)
        self.between.tapes = self.tapes
        self.traced = 0  # segments that ran imperatively
        self.locations = set()  # of the operations in them
        self.learned = False  # whether they were new in any way
        self.launched = 0  # segments that were dispatched
        self.path = 0  # a digest of them and of their branches
        self.operations = 0  # how many are in them
        self.flight = None  # the last of them
        self.kept = [] if function.keeps_last else None
        self.modules_version = None  # of the framework's functions, once fast-forward has looked at them in this step
        self.one_region = False  # whether the segment goes on whatever the location

    def note_indices(self, x):
        if type(x) is EagerTensor and self.is_running_here() and not self.paused:
            self.hold_data(x)  # as a rule another one in each iteration

    # -- from one segment to the next --------------------------------------------------------------------------------------------

    def begin_segment(self, key=None):
        cursor = self.cursor
        cursor.here = self.real_cursor.current
        cursor.current, cursor.region = self.segments.places(cursor.here)
        self.segment = segment = self.segments.get(key or cursor.current)
        self.store = segment.store
        program = segment.program
        if program is None:
            self.mode = SegmentTracer(self)
        else:
            self.mode = SegmentRunner(self, program)
            self.mode.modules_checked = program.modules_version == self.modules_version

    def leaves_region(self):
        """The location has changed: note it; True if it belongs to another segment."""
        cursor = self.cursor
        here = self.real_cursor.current
        place, region = self.segments.places(here)
        if region is not cursor.region and not self.one_region:
            return True
        cursor.here, cursor.current = here, place
        return False

    def leave_graph(self, reason):
        self.cut()

    def cut(self):
        """End the current segment, if there is one."""
        mode = self.mode
        if mode is self.between:
            return
        held = interrupts.hold()
        try:
            if type(mode) is SegmentRunner:
                if mode.modules_checked:
                    self.modules_version = mode.program.modules_version
                if not mode.end():
                    mode = self.mode  # it diverged
            if type(mode) is SegmentTracer:
                self._end_traced(mode)
        finally:
            self.mode = self.between
            interrupts.release(held)

    def _end_traced(self, tracer):
        self.tapes.bundle(tracer, None)
        raw = tracer.finish()
        if not raw.events:
            return
        self.traced += 1
        segment, function = self.segment, self.function
        raw.creates_variables = False
        if function.begins_anew:
            return
        with function.generation.lock:
            new = segment.store.add(raw, may_grow=segment.store.n_traces < function.options.max_traces)
        segment.quiet = 0 if new else segment.quiet + 1
        self.learned |= new
        self.locations.update([event.location for event in raw.events])
        if segment.store.version != segment.version:
            self.segments.dirty.add(segment)

    def note_fallback(self, reason):
        if self.fallback_reason is None:
            super().note_fallback(reason)

    # -- what the runtime asks of a step ---------------------------------------------------------------------------------------

    def skipping(self):
        if self.thread != get_ident() or self.paused or not self.skips:
            return None
        if self.mode is self.between:
            self.begin_segment()
        elif self.real_cursor.current is not self.cursor.here and self.leaves_region():
            self.cut()
            self.begin_segment()
        mode = self.mode
        return mode if type(mode) is SegmentRunner else None

    def before_outside_access(self, op, inputs):
        if self.crossing:
            super().before_outside_access(op, inputs)
        else:
            self.cut()
            GRAPH_RUNNER.sync()

    def finish(self):
        """The function has returned."""
        self.cut()
        self.tapes.finish()
        if self.deferred_destroys:
            GRAPH_RUNNER.sync()
        if self.flight is not None:
            self.flight.last = True

    def abort(self):
        """The function raised: what it did before is done."""
        try:
            mode = self.mode
            if type(mode) is SegmentRunner:
                mode.diverge("the step raised")
                mode = self.mode
            self.tapes.finish()
            if type(mode) is SegmentTracer:
                mode.finish()
        finally:
            self.mode = self.between

    # -- operations on their own -----------------------------------------------------------------------------------------------

    def stands_alone(self, schema, op, inputs, attrs):
        """Returns whether an operation with lists runs on its own: their lengths vary at this place, or they hold values of many earlier segments."""
        mode = self.mode
        if self.one_region:
            return False
        lengths, owners = [], set()
        for x in inputs:
            if type(x) is list or type(x) is tuple:
                lengths.append(len(x))
                for t in x:
                    if type(t) is TerraTensor and t._owner is not mode:
                        owners.add(id(t._owner))
        for _, number, types in schema.outputs:
            if number or types:
                lengths += [v if type(v) is int else len(v) for name, v in zip(attrs[::2], attrs[1::2]) if name == (number or types)]
        seen = self.segments.lengths.setdefault((self.cursor.current, op), set())
        seen.add(tuple(lengths))
        return len(seen) > _FEW_LENGTHS or len(owners) >= _MANY_OWNERS

    def run_alone(self, op, inputs, attrs, tell_tapes=None):
        """Run an operation imperatively between two segments; returns its outputs, flat, with the nesting template of the fast path.

        tell_tapes: (flat inputs, attributes) as tapes record them, unless the caller does.
        """
        self.cut()
        values = [[real(t) for t in x] if type(x) is list or type(x) is tuple else real(x) for x in inputs]
        recording = not tfi.tape_set_is_empty()
        if recording:
            tfi.tape_stop()
        try:
            result = tfi.fast_execute(tfi.ctx(), op, None, *values, *attrs)
        finally:
            if recording:
                tfi.tape_restart()
        eager, template = flat_outputs(result)
        outs = []
        for e in eager:
            enum = e._datatype_enum()
            t = make_tensor(DTYPES[enum], enum, e._shape_tuple(), None, None, e)
            t._value = e
            outs.append(t)
        if recording and tell_tapes is not None:
            self.tapes.record(op, *tell_tapes, outs)
        return outs, template


class LastSegments:
    """The graph's side of a rolled step, kept so that it can be run again without a skeleton (for measurements)."""

    def __init__(self, kept):
        self.kept = kept

    def run(self):
        outputs = None
        managers = []  # the deletion of a manager would cancel its run
        for program, arguments in self.kept:
            managers.append(tfi.new_cancellation_manager())
            outputs = GRAPH_RUNNER.dispatch(program, arguments, managers[-1])
        if outputs is not None:
            outputs[0].numpy()
