"""Single-threaded execution: whether the operations of a graph run one after another on one thread, or on TensorFlow's pool of threads.

TensorFlow's executor hands independent operations to several threads. Where operations are small, that gains little, and keeps cores busy which the skeleton of the next step, or the
program's own work between two steps, could use. TensorFlow has an executor of its own for one thread; kernels, and so results, are the same, and large kernels
still use several threads inside. Where a graph can run so, both take turns for some steps (`trial.py`), and the faster one stays.

A graph with channels cannot: an operation that waits for Python would hold up another one that Python waits for. Nor can one for several devices. One that calls functions (branches,
loops, a tf.function in the step) is not tried: TensorFlow may turn these into operations that its executor for one thread refuses, which shows only when it runs.
"""

import logging

from terra.runtime import internals as tfi
from terra.runtime.graph_runner import runner
from terra.runtime.trial import Trial

log = logging.getLogger("terra")

LEARNED = 36  # steps of a program before the trial: until then the skeleton learns what it may skip
EXECUTOR = "SINGLE_THREADED_EXECUTOR"  # TensorFlow's name for it


def calls_functions(fdef):
    """Whether a node of a function calls another function."""
    return any(value.WhichOneof("value") == "func" or value.list.func for node in fdef.node_def for value in node.attr.values())


class SingleThreaded:
    """Belongs to one co-executed function. Times are in seconds."""

    def __init__(self):
        self.wanted = False  # whether graphs are to be made ready for both
        self.trial = Trial()
        self.reason = None  # why no graph of the function can run so
        self._program = None  # of the last step
        self._steps = 0  # with it
        self._number = 0  # of the last step
        self._failures = None  # of graphs, before the first that ran on one thread

    def begins(self, program, form, number, now):
        """Whether step `number`, which runs a form of the program's graph, is to run on one thread."""
        if program is not self._program:
            self._program, self._steps = program, 0
            if self.trial.second_is_better is None:
                self.trial = Trial()
        self._steps += 1
        follows, self._number = number == self._number + 1, number
        if self._failures is not None and runner.failures > self._failures:
            self.cannot("a step failed")
            self.trial.second_is_better, self._failures = False, None
            return False
        if program.single_threaded_attrs is None or form is not program.generated:
            self.wanted = self.wanted or (self._steps >= LEARNED and self.reason is None and form is program.generated and tfi.has_one_device())
            self.trial.interrupt(now, follows)
            return False
        undecided = self.trial.second_is_better is None
        chosen = self.trial.choose(now, follows)
        if chosen and self._failures is None:
            self._failures = runner.failures
        if undecided and self.trial.second_is_better is not None:
            log.info("terra: %s", self.describe())
        return chosen

    def lacks_attrs(self, program):
        """Whether this program's function is to be made ready to run on one thread."""
        return self.wanted and self.reason is None and self.trial.second_is_better is not False and program is not None \
            and program.single_threaded_attrs is None and not program.early and program.compiled is None

    def is_decided(self):
        """Whether there is nothing more to be tried."""
        return self.reason is not None or self.trial.second_is_better is not None or not tfi.has_one_device()

    def cannot(self, reason):
        self.wanted, self.reason = False, reason

    def describe(self):
        """One sentence for `terra.explain`; None if there is nothing to tell."""
        better = self.trial.second_is_better
        if self.reason is not None:
            return f"The graph does not run on one thread: {self.reason}."
        if better is None:
            return None
        took = f"steps took {self.trial.median(1) * 1e3:.2g} ms so, {self.trial.median(0) * 1e3:.2g} ms on several"
        return f"The graph's operations {'run' if better else 'do not run'} one after another on one thread: {took}."
