"""GraphRunner: runs the generated function on TensorFlow's asynchronous eager executor, and the channels between it and Python.

One executor runs all steps strictly one after another. A step whose skeleton is done, but whose graph may still run, is a `Flight`; Python goes on
(run-ahead) until it needs a value, touches a variable, or too many flights are in the air. Where Python has waited for each step as soon as it was
dispatched, it runs the next one on its own thread: handing it over to the executor's thread, and being woken up by that, takes some 80 us.
"""

import collections
import contextlib
import functools
import logging
import threading
import time
import weakref

from terra.runtime.execution.swallowed import Remembered, Swallowed
from terra.runtime.generation import undo
from terra.runtime.generation.generated import CHECK_FAILED
from terra.runtime.interpreter import spans
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions

log = logging.getLogger("terra")

AT_ONCE = 200e-6  # seconds: after more of them Python has done something between dispatching a step and waiting for it
ENOUGH = 4  # steps in a row that Python waited for at once

_ASSERT = "T", (tfi.types_pb2.DT_STRING,), "summarize", 1
_channels = set()  # ids of the queues' handles


@functools.cache
def _text():
    return tfi.tf.constant(CHECK_FAILED)


def has_done(outputs):
    """Wait for the function that gives these outputs: whether it has done its work."""
    try:
        return bool(outputs[0]._numpy_internal())
    except (tfi.NotOkStatusException, tfi.OpError):
        return False


class Queue:
    """A channel: a TensorFlow FIFO queue of one or several tensors at a time, whose dequeue in the graph blocks no thread. Kept for the life of its
    graph, and drained."""

    __slots__ = ("ref", "enums", "_queue", "_put", "_get")

    def __init__(self, enums):
        self.ref = None
        self.enums = tuple(enums)
        dtypes = [tfi.dtypes.as_dtype(enum) for enum in enums]
        self._queue = tfi.tf.queue.FIFOQueue(capacity=2 ** 31 - 1, dtypes=dtypes)  # its deletion destroys the resource
        self.ref = self._queue.queue_ref
        _channels.add(id(self.ref))
        self._put = ("Tcomponents", self.enums, "timeout_ms", -1)
        self._get = ("component_types", self.enums, "timeout_ms", -1)

    def __del__(self):
        _channels.discard(id(self.ref))

    def put(self, handle, values):
        tfi.execute(handle, "", "QueueEnqueueV2", [self.ref, *values], self._put, 0)

    def get(self, manager):
        """Wait for a value, of a channel that takes one at a time; raises CancelledError if the graph fails or is cancelled meanwhile."""
        return runtime_functions.run_cancelable("QueueDequeueV2", [self.ref], self._get, 1, manager)[0]

    def drain(self, handle):
        size = int(tfi.execute(handle, "", "QueueSizeV2", [self.ref], (), 1)[0])
        for _ in range(size):
            tfi.execute(handle, "", "QueueDequeueV2", [self.ref], self._get, len(self.enums))


class Flight:
    """A dispatched step whose skeleton is done. It owns the tensors that outlive the step until their values are there."""

    __slots__ = ("runner", "outputs", "record", "error", "done", "manager", "counts", "last", "thread", "arguments", "_dispatched", "_resources")

    def __init__(self, runner, outputs, record, manager, counts, arguments):
        self.runner = runner
        self.arguments = arguments  # what its graphs were given
        self._resources = None
        self.outputs = outputs
        self.record = record  # how to replay the step imperatively, should a kernel fail
        self.manager = manager
        self.counts = counts  # where the time that Python waits for it is noted
        self._dispatched = time.perf_counter()
        self.error = None  # a `Remembered`
        self.done = False
        self.last = True  # whether its step ends with it: a rolled step has several flights
        self.thread = threading.get_ident()

    def read_again(self, tensor):
        pass

    def waited_for(self, now):
        """Python begins to wait for it."""
        self.counts.waited_at_once = self.counts.waited_at_once + 1 if now - self._dispatched < AT_ONCE else 0

    def land(self):
        """Its values are there, or its error: let go what was kept until then."""
        record = self.record
        if record is not None:  # else it has landed
            record.landed()
        self.done = True
        self.outputs = self.record = None
        self.arguments = self._resources = ()

    def resources(self):
        """The resources that its graphs use, other than channels; None if it cannot be told."""
        found = self._resources
        if found is None:
            resource = tfi.types_pb2.DT_RESOURCE
            if any(resource in queue.enums for queue in getattr(self.record, "queues", ())):  # a new variable, fed to a graph that ran already
                return None
            found = self._resources = [x for arguments in self.arguments for x in arguments if x._datatype_enum() == resource and id(x) not in _channels]
        return found

    def materialise(self, tensor):
        """Python reads a tensor that this step returned: wait for it."""
        try:
            if not self.done:
                self.runner.wait_for(self)
            if self.error is not None:
                raise self.error()
        except BaseException as error:
            self.runner.swallowed.note_read_failed(error)
            raise
        tensor._value = tensor._hidden
        tensor._owner = None
        return tensor._value


class GraphRunner:
    """There is one for the process."""

    def __init__(self):
        self._executors = None
        self.flights = collections.deque()
        self.failures = 0  # how often the executor lost what had been dispatched
        self._raised = lambda: None  # gives the last error of a step in flight
        self._dispatched = []  # arguments of the graphs started since the last launch
        self._unraised = collections.deque()  # errors that the steps of other threads have raised meanwhile
        self.swallowed = Swallowed()
        self._lock = threading.RLock()  # of `flights`: several threads may wait
        self._recovery = threading.Lock()  # held while failed steps are replayed: no graph starts then
        self._recovers = False  # whether the thread that holds `_lock` replays them
        self._waits = None  # the thread that waits for flights
        self.on_idle = None  # called when nothing is in flight any more
        self.undisturbed = contextlib.nullcontext  # keeps signal handlers, which might wait for what is being replayed, out of a block

    @property
    def executors(self):
        if self._executors is None:
            self._executors = runtime_functions.Executors()
        return self._executors

    @property
    def handle(self):
        return self.executors.context_handle

    def dispatch(self, program, args, manager, form=None, attrs=None):
        """Start a program's function, that of `form` if given; returns its outputs' handles. attrs: of the call, if not the program's own."""
        attrs = attrs or program.attrs
        self._dispatched.append(args)
        name, n_outputs = program.function_of(form or program.generated, args)
        recorder = spans.recorder
        start = time.perf_counter() if recorder is not None else 0.0
        try:
            with self._recovery:
                outputs = self.executors.dispatch(name, args, attrs, n_outputs, manager)
        except (tfi.NotOkStatusException, tfi.OpError):  # a step before it has failed: the executor takes nothing more
            self.sync()
            self.executors.wait()
            with self._recovery:
                outputs = self.executors.dispatch(name, args, attrs, n_outputs, manager)
        if program.compiled is not None:
            program.compiled.started(outputs)
            if program.compiled.checked:
                self._check(outputs[0], manager)
        if recorder is not None:
            recorder.dispatched(outputs, program.step, start, self.executors.stamp)
        return outputs

    def _check(self, ok, manager):
        """Let nothing run behind a step that has not done anything."""
        try:
            self.executors.dispatch("Assert", [ok, _text()], _ASSERT, 0, manager)
        except (tfi.NotOkStatusException, tfi.OpError):
            pass  # the step has failed, which is dealt with where Python waits

    def run(self, program, args, manager, form=None, attrs=None):
        """Like `dispatch`, but returns when the function has run. Nothing else may be in flight. Raises: NotOkStatusException, OpError: a kernel failed."""
        form = form or program.generated
        name, n_outputs = program.function_of(form, args)
        try:
            outputs = self.executors.run(name, args, attrs or program.attrs, n_outputs, manager)
        except (tfi.NotOkStatusException, tfi.OpError):
            undo.restore(form.undo)
            raise
        if program.compiled is not None:
            program.compiled.started(outputs)
            if program.compiled.checked and not outputs[0]._numpy_internal():
                raise tfi.tf.errors.InvalidArgumentError(None, None, CHECK_FAILED)
        self._dispatched.append(args)
        return outputs

    def run_and_wait(self, program, args, manager, form, counts, attrs):
        """Run a program's function, for which Python waits. Returns (its outputs' handles, seconds). Raises what `run` raises; that is no wait."""
        recorder = spans.recorder
        span = shown = None
        if recorder is not None:
            span, shown = recorder.begin_wait(program.step), spans.mark(spans.GRAPH, program.step)
        start = time.perf_counter()
        outputs = self.run(program, args, manager, form, attrs)
        end = time.perf_counter()
        counts.python_stall += end - start
        counts.waited_steps += 1
        if span is not None:
            recorder.add(spans.GRAPH, program.step, start, end, None, shown)
            recorder.end_wait(span, start, end)
        return outputs, end - start

    def start(self, program, args, form, counts, attrs=None):
        """Dispatch a program's function or, if Python is going to wait for it at once, run it. Returns (its outputs' handles, its cancellation
        manager, seconds that running it took)."""
        manager = tfi.new_cancellation_manager()
        if self.flights:
            counts.waited_at_once = 0
        elif counts.waited_at_once >= ENOUGH:
            try:
                outputs, took = self.run_and_wait(program, args, manager, form, counts, attrs)
            except (tfi.NotOkStatusException, tfi.OpError):
                manager = tfi.new_cancellation_manager()  # nothing of it was committed; it will fail again, and that is dealt with where Python waits
            else:
                return outputs, manager, took
        return self.dispatch(program, args, manager, form, attrs), manager, 0.0

    def launch(self, outputs, record, manager, counts):
        """Register a step whose skeleton is done."""
        flight = Flight(self, outputs, record, manager, counts, self._dispatched)
        self._dispatched = []
        self.flights.append(flight)
        return flight

    def rest(self):
        """Wait until TensorFlow's thread is through with the steps, which are done and have not failed: it may hold locks until then."""
        if self._executors is not None:
            self._executors.wait()

    def forked(self):
        """This is a forked process, whose threads are not there, and may have held locks. Returns what must not be deleted."""
        left, self._executors = self._executors, None
        self._lock, self._recovery = threading.RLock(), threading.Lock()
        return left

    def forget_dispatched(self):
        """Forgets what was run since the last launch: it is done, and no flight."""
        self._dispatched = []

    @property
    def has_left_over(self):
        """Whether there are errors that have yet to be raised."""
        return bool(self._unraised) or self.swallowed.pending

    def limit(self, run_ahead):
        """Wait until at most `run_ahead` steps are in flight."""
        with self._lock:
            self._raise_left_over()
            ends = [flight for flight in list(self.flights) if flight.last]
            if len(ends) > run_ahead:
                self.wait_for(ends[len(ends) - run_ahead - 1], False)

    def wait_for(self, flight, reads=True):
        """Wait until `flight` has landed (and so all before it). A failed one is replayed imperatively, and its error raised. reads: whether a line of the program's asks for it.

        Between any two of its bytecodes a signal handler, or a finalizer, may wait for the same flights on this thread, and raise.
        """
        recorder, me = spans.recorder, threading.get_ident()
        is_within = self._waits == me  # such a handler's wait is a part of the one that it has come into, where it is counted
        span = None if recorder is None or is_within else recorder.begin_wait(flight.counts.name, None, reads)
        start = seen = time.perf_counter()
        flight.waited_for(start)
        try:
            with self._lock:
                self._waits = me
                while not flight.done:
                    first = self._at(0)
                    if first is None:
                        break
                    outputs = first.outputs
                    if outputs is not None:
                        done = has_done(outputs)
                        if recorder is not None:
                            before, seen = seen, time.perf_counter()
                            recorder.landed(outputs, before, seen, done)
                        if not done and not first.done:
                            with self.undisturbed(), self._recovery:
                                self._recover(first)
                        first.land()
                    self._forget(first)
        finally:
            if not is_within:
                end = time.perf_counter()
                self._waits = None if self._waits == me else self._waits
                flight.counts.python_stall += end - start
                if span is not None:
                    recorder.end_wait(span, start, end)
            if not self.flights and self.on_idle is not None:
                self.on_idle()

    def sync(self):
        """Wait for everything in flight."""
        with self._lock:
            if self._recovers:
                return  # it is this thread that replays
            self._raise_left_over()
            last = self._at(-1)
            if last is not None:
                self.wait_for(last)

    def _at(self, place):
        """The flight at this place; None if there is none. (Whoever asks first finds that there was one.)"""
        try:
            return self.flights[place]
        except IndexError:
            return None

    def _forget(self, flight):
        """It is not in flight any more."""
        try:
            self.flights.remove(flight)
        except ValueError:
            pass  # nor was it

    def _raise_left_over(self):
        self.swallowed.raise_again()
        if self._unraised:
            raise self._unraised.popleft()

    def _recover(self, failed):
        """A kernel failed: nothing of the step was committed. Replay it as eager execution would run it. If it raises, what this thread has dispatched
        behind it is dropped: eagerly, the thread would not have come there. Otherwise that is replayed, and what other threads have dispatched is in
        any case."""
        cause = self.executors.wait()
        spans.settle("cancelled")
        self.failures += 1
        log.info("a graph kernel failed (%s); the step is replayed imperatively", cause)
        flights = list(self.flights)  # which stay there meanwhile: other threads wait for them
        errors = {}  # of threads
        self._recovers = True
        try:
            for flight in flights:
                if flight.thread in errors:
                    flight.record.drop()
                else:
                    try:
                        flight.record.replay()
                    except BaseException as error:
                        errors[flight.thread] = error
                flight.error = Remembered(errors[flight.thread]) if flight.thread in errors else None
                flight.done = True
                if flight is not failed or errors:
                    flight.land()
        finally:
            self._recovers = False
            for _ in flights:
                self.flights.popleft()
        if errors:
            error, *others = errors.values()
            self._unraised.extend(others)
            self._raised = weakref.ref(error) if isinstance(error, tfi.OpError) else lambda: None
            try:
                raise error
            finally:
                del error, errors, others  # its traceback has this frame
        # Nothing was raised: the failure did not repeat, the values are those of the replay.
        self.flights.appendleft(failed)

    def has_raised(self, error):
        """Returns whether this is the error of a step in flight."""
        return error is self._raised()

    def cancel(self, manager):
        """Cancel the running early step and leave the executor usable; steps before it are waited for first."""
        try:
            self.sync()
        finally:
            manager.start_cancel()
            error = self.executors.wait()
            spans.settle("cancelled")
            self._dispatched = []
        return error


GRAPH_RUNNER = GraphRunner()
