"""Single-threaded execution: whether the operations of a graph run one after another on one thread, or on TensorFlow's pool of threads.

TensorFlow's executor hands independent operations to several threads. Where operations are small, that gains little, and keeps cores busy which the
skeleton of the next step, or the program's own work between two steps, could use. TensorFlow has an executor of its own for one thread; kernels, and
so results, are the same, and large kernels still use several threads inside. Where a graph can run so, both take turns for some steps (`trial.py`),
and the faster one stays. That depends on what else the machine does, too: from time to time both take turns for a few steps again.

A graph with channels cannot: an operation that waits for Python would hold up another one that Python waits for. Nor can one for several devices. One
that calls functions (branches, loops, a tf.function in the step) is not tried: TensorFlow may turn these into operations that its executor for one
thread refuses, which shows only when it runs.
"""

import logging

from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.tf.private import hardware
from terra.trial import Trial

log = logging.getLogger("terra")

AGAIN, LATEST = 250, 4000  # steps after which it is found out again, each time twice as many, up to so many
AGAIN_ROUNDS = 2  # blocks of either form then
CLEARLY = 0.95  # times the time of the way that steps run: the other one is taken then if it takes at most that
LEARNED = 36  # steps of a program before the trial: until then the skeleton learns what it may skip
EXECUTOR = "SINGLE_THREADED_EXECUTOR"  # TensorFlow's name for it


def calls_functions(fdef):
    """Returns whether a node of a function calls another function."""
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
        self._again = None  # a later trial
        self._left, self._wait = AGAIN, AGAIN  # steps until then, and how many there were at first

    def begins(self, program, form, number, now):
        """Returns whether step `number`, which runs a form of the program's graph, is to run on one thread."""
        if program is not self._program:
            self._program, self._steps = program, 0
            if self.trial.second_is_better is None:
                self.trial = Trial()
            self._again, self._left = None, self._wait
        self._steps += 1
        follows, self._number = number == self._number + 1, number
        if self._failures is not None and GRAPH_RUNNER.failures > self._failures:
            self.cannot("a step failed")
            self.trial.second_is_better, self._failures = False, None
            return False
        is_late = form is program.late_form or form is program.conditional
        if program.single_threaded_attrs is None or not is_late:
            self.wanted = self.wanted or (self._steps >= LEARNED and self.reason is None and is_late and hardware.has_one_device())
            (self._again or self.trial).interrupt(now, follows)
            return False
        undecided = self.trial.second_is_better is None
        chosen = self.trial.choose(now, follows) if undecided else self._as_decided(now, follows)
        if chosen and self._failures is None:
            self._failures = GRAPH_RUNNER.failures
        if undecided and self.trial.second_is_better is not None:
            log.info("%s", self.describe())
        return chosen

    def _as_decided(self, now, follows):
        """Returns whether a step runs on one thread, now that it is known what is faster; from time to time that is found out again, unless one of
        those has failed."""
        if self.reason is not None:
            return self.trial.second_is_better
        if self._again is None:
            self._left -= 1
            if self._left:
                return self.trial.second_is_better
            self._again = Trial(AGAIN_ROUNDS)
        chosen = self._again.choose(now, follows)
        if self._again.second_is_better is None:
            return chosen
        tried, self._again = self._again, None
        other = int(not self.trial.second_is_better)
        changed = all(tried.times) and tried.is_faster(other, CLEARLY)
        if changed:
            self.trial.second_is_better, self.trial.times = bool(other), tried.times
        self._wait = self._left = AGAIN if changed else min(2 * self._wait, LATEST)
        return self.trial.second_is_better

    def lacks_attrs(self, program):
        """Returns whether this program's function is to be made ready to run on one thread."""
        return self.wanted and self.reason is None and self.trial.second_is_better is not False and program is not None \
            and program.single_threaded_attrs is None and program.late_form is not None and program.compiled is None

    def is_decided(self):
        """Returns whether there is nothing more to be tried."""
        return self.reason is not None or self.trial.second_is_better is not None or not hardware.has_one_device()

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
