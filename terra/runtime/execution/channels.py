"""Feeds, selects and fetches: how a skeleton and its graph talk to each other."""

import time

from terra.graph.trace import CHECK, FETCH
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.process.cross_thread import Visit
from terra.runtime.execution.placeholders import unwaited
from terra.runtime.fallback.replay import snapshot
from terra.runtime.interpreter import spans
from terra.tf import private_names as tfi
from terra.tf.constants import dummy


class Channels:
    """The part of `PythonRunner` that talks to the graph."""

    before = ()  # values of variables that a graph which starts with the step updates in their place, where it is verified

    def _select(self, selects):
        self.chosen.append(selects)
        self.path = hash((self.path, selects))
        generated = self.form
        if self.late:
            for switch_case, case in selects:
                index = generated.select_index.get(switch_case)
                if index is not None:
                    self.selects[index] = case
        else:
            for switch_case, case in selects:
                queue = generated.select_queues.get(switch_case)
                if queue is not None:
                    self._put(queue, [tfi.eager_constant(case, tfi.dtypes.int32)])

    def _feed(self, slot, value):
        recorder = spans.recorder
        if recorder is not None:
            recorder.instant(spans.FEED, self.step.counts.name, slot.feed)
        if self.late:
            self.feeds[slot.feed.index] = value
        else:
            queue, place, n = self.form.feed_queues[slot.feed.index]
            if n == 1:
                self._put(queue, [value])
            else:
                values = self._gathered.get(queue)
                if values is None:
                    values = self._gathered[queue] = {}
                values[place] = value
                if len(values) == n:
                    self._put(queue, [values[k] for k in range(n)])
        self.step.counts.feeds += 1

    def position(self):
        """Returns the state at the beginning of a jump, for `go_back`."""
        return len(self.chosen), self.path, len(self.fed), self.step.counts.feeds, self.step.counts.fetches

    def go_back(self, place, feeds):
        """A jump is taken back, with its `feeds` and branches: the call is made, and the graph is not told again what it knows."""
        n_chosen, self.path, n_fed, self.step.counts.feeds, self.step.counts.fetches = place
        queues = self.form.select_queues
        self._told.update([queues.get(switch_case) for selects in self.chosen[n_chosen:] for switch_case, _ in selects])
        self._told.update([self.form.feed_queues[slot.feed.index][0] for slot, _ in feeds])  # (no fetch comes between feeds that share a queue: it has all of them)
        del self.chosen[n_chosen:]
        for key in list(self.fed)[n_fed:]:
            del self.fed_by_key[self.fed.pop(key)[0]]

    def _put(self, queue, values):
        if queue in self._told:
            return
        self._touched.add(queue)  # first: an interrupt may come in between
        queue.put(GRAPH_RUNNER.handle, values)
        if self.puts is not None:
            self.puts.append((queue, values))

    def _arguments(self, feeds, selects):
        if self.form.lasting is None:
            self.form.lasting = self.lasting_arguments(self.form)
        lasting, others = self.form.lasting
        values = lasting.copy()
        args = self.step.arg_list
        for k, spec in others:
            kind = spec[0]
            if kind == "arg":
                values[k] = self._arg_value(args, spec)
            elif kind == "feed":
                value = feeds[spec[1]]
                values[k] = value if value is not None else dummy(spec[2])
            else:
                values[k] = tfi.eager_constant(selects, tfi.dtypes.int32)
        return values

    def lasting_arguments(self, form):
        """(the arguments that are the same at each step, None for the others; (position, spec) of those)."""
        known = {"res": self.program.handles.__getitem__, "queue": lambda queue: queue.ref}
        specs = form.arg_specs
        return [known[spec[0]](spec[1]) if spec[0] in known else None for spec in specs], \
            [(k, spec) for k, spec in enumerate(specs) if spec[0] not in known]

    @staticmethod
    def _arg_value(args, spec):
        """The tensor argument; a dummy if it is missing or of another dtype: then no path that uses it is taken."""
        if spec[1] < len(args):
            value = unwaited(args[spec[1]])
            if value._datatype_enum() == spec[2]:
                return value
        return dummy(spec[2])

    def _start(self):
        """Early form: the graph starts with the step."""
        generated = self.form
        self._touched = set()
        self.manager = tfi.new_cancellation_manager()
        if self.step.verifies and generated.in_place:
            GRAPH_RUNNER.sync()
            self.before = snapshot(generated.in_place)
        self.puts = [] if self.step.function.keeps_last else None
        self.arguments = self._arguments(None, None)
        self.outputs = GRAPH_RUNNER.dispatch(self.program, self.arguments, self.manager, self.form)
        self.failures = GRAPH_RUNNER.failures

    def read_again(self, tensor):
        self.read_twice.append(tensor._key)
        self.reads[tensor._key] = self.reads.get(tensor._key, 0) + 1

    def materialise(self, tensor):
        """Python reads the value of a placeholder: fetch it from the running graph."""
        step = self.step
        self.reads[tensor._key] = self.reads.get(tensor._key, 0) + 1
        with Visit(step):  # worker threads of the step may read, too
            if tensor._value is not None:
                return tensor._value
            if step.mode is not self or step.before_read():
                return tensor._eager()
            location = self.cursor.current
            for node, selects in self.node.successors:
                if node.op_type == FETCH and node.location is location and self._is_of(node, tensor):
                    return self._fetch(node, selects, tensor)
            self.diverge("Python reads the value of a tensor where it did not before")
        return tensor._eager()

    def note_deferred(self, value, key, how, n=1):
        """The framework gives back a number that it has read of the tensor `key`, and has not looked at."""
        self.deferred_fetches[id(value)] = value, key, how, n
        if self.observer is not None:
            self.observer.deferred.held[id(value)] = value, key, how, n

    def read_within(self, value, held):
        """Notes for the record of a call a value that was read in it, if that is noted in `held`."""
        if id(value) in held:
            self.deferred_fetches[id(value)] = held[id(value)]

    def note_formatted(self, keys):
        """A call is over, and may be skipped, in which texts were made of the values of these tensors: nothing else of them has come out of it."""
        for key in keys:
            for read in (self.deferred_fetches, self.observer.deferred.held if self.observer is not None else {}):
                for number in [number for number, (x, k, *_) in read.items() if k is key and type(x) is str]:
                    del read[number]
            self.note_deferred(object(), key, None)

    def _is_of(self, node, tensor):
        """Returns whether a fetch is that of this tensor."""
        slot = node.slots[0]
        return slot.key is tensor._key or (slot.multi is not None and self.latest.get(slot.multi) is tensor._key)

    def _check(self, outs):
        """Wait for the operation that was matched last and gives `outs`: the program would catch its failure."""
        step = self.step
        with Visit(step):
            if step.mode is self and not step.before_read():
                for node, selects in self.node.successors:
                    of = [t for t in outs if self._is_of(node, t)] if node.op_type == CHECK else ()
                    if of:
                        self._fetch(node, selects, of[0])
                        return

    def _fetch(self, node, selects, tensor):
        if selects:
            self._select(selects)
        self.log.append((node, (tensor._key,), None))
        self.node = node
        self.expected = node.expected
        value = self.receive(node)
        if value is None:
            return tensor._eager()
        tensor._value = tensor._hidden = value
        return value

    def receive(self, node):
        """The value that the graph sends for a fetch; None if the step had to fall back."""
        self.step.counts.fetches += 1
        if self.step.error is not None:
            raise self.step.error
        if node in self.received:  # by a jump that was taken back
            return self.received[node]
        if GRAPH_RUNNER.flights:  # this graph runs after those: waiting for them takes no longer, and one that fails takes this graph with it
            try:
                GRAPH_RUNNER.sync()
            except tfi.OpError as error:
                self.step.fails(error)
                raise
        if GRAPH_RUNNER.failures != self.failures:
            self.diverge("a step before it failed")
            return None
        try:
            value = self.received[node] = self._get(node)
            return value
        except (tfi.NotOkStatusException, tfi.OpError):
            # The graph failed somewhere: replaying the step so far raises the error where eager execution raises it, or gives the value.
            self.has_failed = True
            if self.form.fixed:
                self.step.function.generation.fixes_shapes = False
            self.diverge("a graph kernel failed")
            return None

    def _get(self, node):
        """Wait for the value of a fetch. Raises what `Queue.get` raises."""
        counts = self.step.counts
        recorder = spans.recorder
        span = None if recorder is None else recorder.begin_wait(counts.name, node.location.origin())
        start = time.perf_counter()
        try:
            return node.fetch_queue.get(self.manager)
        finally:
            end = time.perf_counter()
            counts.python_stall += end - start
            if span is not None:
                recorder.end_wait(span, start, end)
