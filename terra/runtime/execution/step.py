"""A step: one call of a co-executed function, in whatever phase it is."""

import sys
from threading import get_ident

from terra.location import current_step, location
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.process.cross_thread import Visit
from terra.runtime.execution.arguments.open_arrays import stand_in
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.interpreter import frames
from terra.runtime.tensors.draws import rows_of
from terra.runtime.tensors.tensor import holds_numbers, tensor_of
from terra.runtime.tracing.structures import collect_args
from terra.tf.private import composites, tables
from terra.tf import private_names as tfi
from terra.tf import iterators, opschema, samplers, variable_use

EagerTensor = tfi.EagerTensor
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE


class Counts:
    """The numbers that a step counts."""

    __slots__ = ("name", "feeds", "fetches", "fast_forwards", "whole_steps", "python_stall", "waited_at_once", "waited_steps", "verified_calls", "verified_graphs", "walked_calls")

    def __init__(self, name=""):
        self.name = name  # of the step function
        self.feeds = self.fetches = self.fast_forwards = self.whole_steps = 0
        self.python_stall = 0.0
        self.waited_at_once = 0  # steps in a row that Python waited for as soon as they were dispatched
        self.waited_steps = 0
        self.verified_calls = self.verified_graphs = self.walked_calls = 0


class Step:
    """One call of a co-executed function, in whatever phase."""

    guarded = False  # whether the program would catch the failure of this very step, and its operations are waited for because of that
    in_block = False  # whether it is a tape's block, or what follows it
    in_pieces = False  # whether it is rolled
    open_ended = False  # whether anything that must not be part of the step may end it: see `terra.frontends.block_step`

    def __init__(self, function, args, kwargs):
        self.function = function
        self.store = function.store
        self.counts = function.counts
        self.thread = get_ident()
        self.look_at_settings()
        self.cursor = location.tls.cursor if function.located else frames.FrameCursor(location.tls.cursor, sys._getframe(3))  # (the frame that has the step begun)
        self.lock = function.read_lock
        self.paused = 1
        self.crossing = True  # it has yet to begin, or is about to end: what a finalizer runs meanwhile is no part of it
        self.data = {}  # id -> tensors that imperative-only operations gave: data, though Python holds them
        self.args = {}  # id -> (index, tensor) of the tensors among the arguments
        self.arrays = {}  # id -> array, of the arrays among them
        found = collect_args(args, self.args, self.arrays)
        if kwargs:
            found += collect_args(kwargs, self.args, self.arrays)
        self.parts = {self.args[id(x)][0] for x in composites.parts_of_any_number(found) if id(x) in self.args} if found else ()  # indices of those that a sparse or ragged tensor has any number of
        self.sizes_given = {self.args[id(x)][0] for x in composites.vectors_of_sizes(found) if id(x) in self.args} if found else ()  # indices of those whose values are the sizes of a sparse tensor
        self.partial_values = {}  # index of one of these, some of whose values are to be unknown -> its values, None for those
        self.arg_list = [t for _, t in self.args.values()]
        self.partial_shapes = {}  # index of an argument some of whose sizes are to be unknown -> a PartialShape
        self.opened = {}  # those of `args` for which other tensors stand
        self.open_uses = {}  # index of an argument that was made of an array -> `open_arrays.OpenUse`
        self.same_sizes = {}  # (index of an argument, axis) of these sizes -> the first one that has been equal to it in all steps so far
        self._args_signature = self._shapes = None
        self.records = function.options.wait_for_graph or function.options.verify or function.policy.account.may_record()  # calls that are to be skipped
        self.lazy_tapes = function.options.fast_forward
        self.skips = self.lazy_tapes and not tfi.tf.distribute.has_strategy()  # in whose scope the framework does other things
        self.verifies = function.options.verify
        if self.verifies:
            self.differences = []  # from eager execution, that were found by that
        self.enters = None  # an `entered.Entered` while the framework's code makes a call that cannot be skipped: its parts may be
        self.draws = []  # (state before, state after) of Python's and NumPy's own generators, for each call that draws of them and is recorded
        self.creates_variables = False
        self.new_handles = {}  # id -> handle of the variables that the step created
        self._kept_seeds = []
        self.drawn_seeds = set()  # op seeds that TensorFlow drew during the step
        self.collects = self.collects_now = None  # the thresholds of garbage collection before it, and in it if they are others
        self.handlers = ()  # of signals, that are put off while Terra is at work
        self.failed = None  # the operation that raised because of a value while the step was traced
        self.error = None  # that was raised where the program was already further on: see `fails`
        self.deferred_destroys = []  # of such variables, until the graph has used them
        self.fallback_reason = None
        self.shown = None  # the `dynamic_values.DynamicValues` of a run of the step's function that is observed
        self.kept = ()  # tensors that outlive the step, though the graph does not give them: kept until the trace is merged
        self.mode = None

    def look_at_settings(self):
        """Note what the context says of the step's thread: it holds until `context_changes` does."""
        self.settings_seen = tfi.context_changes[0]
        self.is_eager = tfi.executing_eagerly()
        self.device = tfi.device_name()

    def fails(self, error):
        """An operation before the one at hand turns out to have failed: eagerly, the program would not have come here. Should it take the error for
        another one's and catch it (as `float(x)` in a `try` statement), then it is raised again, by its next operation or at the step's end."""

        def fail(*args):
            raise error

        self.error, self.mode.fast, self.mode.slow = error, fail, fail

    def begins(self):
        self.crossing = False
        self.paused -= 1

    def ends(self):
        if not self.crossing:
            self.crossing = True
            self.paused += 1

    def pause(self):
        self.paused += 1

    def resume(self):
        self.paused -= 1

    def visit(self):
        """`with step.visit():` the calling thread may look into the step, and change it, as the step's own thread may at any time."""
        return Visit(self)

    def is_running_here(self):
        return current_step.active is self and self.thread == get_ident()

    def began_in(self):
        """(the outermost frame with code of the step in it, or the code object of the frame around it; the line behind which the former's is the step's)."""
        return self.function.step_code, 0

    def takes_tensors(self):
        """Returns whether the arrays that code of the framework's is given are to be converted beforehand: in traced steps as in co-executed ones."""
        return self.skips and self.is_running_here() and not self.paused and tfi.executing_eagerly()

    def varies(self, array):
        """Returns whether the step was given an array, or a residual call gave it: it may be another one each time."""
        return id(array) in self.arrays or (self.shown is not None and array in self.shown)

    def as_data(self, array):
        """The tensor that TensorFlow makes of an array of numbers, for a call that makes one first thing; an array of anything else as it is.

        Integers, and all that the step was given, are data, no constants on which the host could operate.
        """
        if not holds_numbers(array):
            return array
        made = self.shown.tensor_of(array) if self.shown is not None else stand_in(self, array)
        if made is not None:
            return made
        if array.dtype.kind not in "iu" and not self.varies(array):
            return tfi.eager_constant(array, None)
        return self.hold_data(tensor_of(array))

    def as_shown(self, array, dtype):
        """The tensor of this floating type that TensorFlow makes of an array which varies, in a run that is observed, or has unknown sizes; else None."""
        if type(dtype) is not tfi.tf.DType or not dtype.is_floating or array.dtype.kind not in "iuf" or not holds_numbers(array):
            return None
        return self.shown.tensor_of(array, dtype) if self.shown is not None else stand_in(self, array, dtype)

    def hold_data(self, tensor):
        """Take the tensor for data, though Python holds it; returns it."""
        self.data[id(tensor)] = tensor
        return tensor

    def is_data(self, x):
        """Returns whether a tensor is to be taken for another one in each step, though Python holds it."""
        return id(x) in self.data

    def may_be_read(self, x):
        """Returns whether the framework's code may look at the value of a tensor in a call that is recorded: not at one that is another one in each step, unless the call's signature tells it."""
        key = id(x)
        return key not in self.data and (key not in self.args or (x._rank() == 0 and x._datatype_enum() in opschema.HOST_KNOWN_ENUMS))

    def is_lasting_handle(self, x):
        """Returns whether a tensor is the handle of a variable or table that the step has not made."""
        return _is_handle(x) and not self.is_data(x)

    def note_indices(self, x):
        """`x` is about to be looked up in a table by a layer of the framework's."""

    def before_read(self):
        """Python is about to read a value; True if the step ended because of that."""
        return False

    @property
    def skeleton(self):
        """The Tracer or PythonRunner of the step."""
        return self.mode

    def skipping(self):
        """The runner that may skip a call on this thread now, or None."""
        mode = self.mode
        return mode if type(mode) is PythonRunner and self.skips and not self.paused and self.thread == get_ident() else None

    def args_signature(self):
        """[(dtype enum, shape)] of the tensor arguments; the shape is a PartialShape if it is open."""
        if self._args_signature is None:
            self._args_signature = [(t._datatype_enum(), self.partial_shapes.get(k) or t._shape_tuple()) for k, t in enumerate(self.arg_list)]
        return self._args_signature

    def shapes(self):
        """A key for the types and shapes of the step's arguments."""
        if self._shapes is None:
            are_open = {id(use.array) for use in self.open_uses.values()}
            self._shapes = *self.args_signature(), *[(x.dtype, x.shape if key not in are_open else None) for key, x in self.arrays.items()]
        return self._shapes

    def seeded(self, schema, inputs, attrs):
        """The attributes of a stateful random op; where no seed is set anywhere, with one drawn for this call: any stream will do, but the graph and
        a replay must draw the same.

        None if it must run imperatively: an eager kernel with the same seeds goes on in its stream when it is used again, so only seeds that were
        drawn for this one op (never the user's own) have a stateless twin. So must one that shuffles many rows, or nobody knows how many, and one
        that samples many candidates.
        """
        if schema.name == opschema.SHUFFLE and rows_of(inputs[0]) is None:
            return None
        found = dict(zip(attrs[::2], attrs[1::2]))
        if schema.name in opschema.SAMPLERS and not samplers.can_draw(found):
            return None
        if found["seed"] or found["seed2"]:
            return attrs if found["seed2"] in self.drawn_seeds else None
        found["seed"], found["seed2"] = self.fresh_seeds()
        return tuple(x for pair in found.items() for x in pair)

    def fresh_seeds(self):
        """Two seeds for a random operation where none is set: those first that were put back, since the graph may have been told of them."""
        if not self._kept_seeds:
            return tfi.fresh_seeds()
        seeds = self._kept_seeds.pop(0)
        self.drawn_seeds.add(seeds[1])
        return seeds

    def seeds(self):
        """From where seeds are drawn now: for `put_back`."""
        return tfi.seed_state(), set(self.drawn_seeds)

    def put_back(self, seeds, drawn):
        """Takes back the seeds that were drawn since, so that they are drawn again: the attributes `drawn` of random operations have them."""
        state, known = seeds
        self.drawn_seeds &= known
        if state is not None:
            tfi.set_seed_state(state)
        else:
            found = [dict(zip(attrs[::2], attrs[1::2])) for attrs in drawn]
            self._kept_seeds = [(seeds["seed"], seeds["seed2"]) for seeds in found] + self._kept_seeds

    def note_host_outputs(self, schema, outputs):
        for t in outputs:
            self.data[id(t)] = t
        if schema.name == "VarHandleOp":
            self.creates_variables = True
            self.new_handles[id(outputs[0])] = outputs[0]

    def touches_variables(self, schema, flat):
        """Returns whether an imperative-only op works on the values of variables (not on a queue, a table, or an iterator whose pipeline uses none)."""
        if schema.name in variable_use.LEAVING or (schema.name == variable_use.ASKING and tfi.is_initialized(flat[0])):  # which it stays
            return False
        if schema.name in iterators.PIPELINE_OPS:
            reach = iterators.reach_of(flat)
            if reach is None or reach:
                self._before_pipeline(schema.name, reach)
                return True
        if schema.hides_variables:
            self._before_hidden(schema.name)
            return True
        for x in flat:
            if x._datatype_enum() == RESOURCE_ENUM:
                if tfi.is_of_variable(x) or id(x) in self.new_handles:
                    return True
                if tables.is_in_graphs(x) and not tables.only_reads(schema.name):
                    return True
        return False

    def runs_imperatively(self, schema, attrs, flat):
        """Returns whether an operation with these attributes and inputs, which is about to be issued, is to run imperatively."""
        if schema.is_imperative(attrs):
            self.note_change(schema.name, flat)
            return True
        return schema.reads_tables and (self.function.changes_tables or any(
            _is_handle(x) and self.is_data(x) for x in flat))  # a table that this step has made

    def note_change(self, op, flat):
        """An operation of the step is about to run imperatively; if it changes a table, all lookups of the step are to run imperatively from now on."""
        if tables.changes(op) and not self.is_data(flat[0]) and not self.function.changes_tables:
            self.function.changes_tables = self.function.begins_anew = True

    def leave_graph(self, reason):
        """Fall back, if the step is co-executed, in the middle of the program's code: what follows must not need the graph."""
        if isinstance(self.mode, PythonRunner):
            self.mode.diverge(reason)

    def before_outside_access(self, op, inputs):
        """Plain eager code inside the step is about to use a variable: it must see what eager execution would have left."""
        mode = self.mode
        name = op.decode() if type(op) is bytes else op
        schema = opschema.get_schema(name)
        if inputs:
            self.note_change(name, inputs)
        if self.crossing:
            if iterators.must_wait(name, [x for x in inputs if type(x) is EagerTensor or hasattr(x, "handle")], GRAPH_RUNNER.flights):
                GRAPH_RUNNER.sync()
            return
        if name in iterators.PIPELINE_OPS:
            handles = [x for x in inputs if type(x) is EagerTensor]
            reach = iterators.reach_of(handles)
            if reach is None or reach:
                self._before_pipeline(name, reach)
            if not iterators.must_wait(name, handles, GRAPH_RUNNER.flights):
                return
        elif schema is not None and schema.hides_variables:
            self._before_hidden(name)
        elif isinstance(mode, PythonRunner) and mode.conflicts(schema, inputs):
            mode.diverge(f"plain eager code ({name}) uses variables that the step has updated, or updates some that it has read")
        GRAPH_RUNNER.sync()

    def _before_pipeline(self, op, reach):
        """An input pipeline that may use variables is about to run: it must see what eager execution would have left."""
        mode = self.mode
        if not isinstance(mode, PythonRunner):
            return
        if reach is None:  # Python code, as a rule: it may read any variable
            conflict = mode.conflicts(opschema.get_schema("ReadVariableOp"), mode.program.handles.values())
        else:
            conflict = mode.conflicts(None if reach.writes else opschema.get_schema("ReadVariableOp"), reach.handles.values())
        if conflict:
            mode.diverge(f"{op} runs an input pipeline that {'may use' if reach is None else 'uses'} variables which the step has updated before it")

    def _before_hidden(self, op):
        """Something that may use any variable, without being given one, is about to run."""
        mode = self.mode
        if isinstance(mode, PythonRunner) and mode.conflicts(None, mode.program.handles.values()):
            mode.diverge(f"{op} runs Python code, or a dataset, that may use variables which the step has used before it")

    def line_here(self):
        """Where the step's code is, `file.py:12`; None behind it."""
        return frames.line_inside(self.function.step_code) if self.function.located else location.tls.cursor.current.line()

    def note_fallback(self, reason):
        line = self.line_here()
        if line:
            reason = f"{reason} ({line})"
        self.fallback_reason = reason
        self.args.update(self.opened)  # operations that are run again are given these
        self.function.lifecycle.note_fallback(reason)


def _is_handle(x):
    return type(x) is EagerTensor and x._datatype_enum() == RESOURCE_ENUM
