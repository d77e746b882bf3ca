"""Express steps: a step that is skipped as a whole, without a skeleton.

A skipped step (see `pure_functions`) still gets all that a step may need: a skeleton that walks the graph, a log, tapes, hooks. None of that is used where no
code runs, and what takes most of the time is to touch it: the graph has just driven it out of the processor's caches. So once a step was skipped as a whole,
what stays the same is prepared. A call like it then compares the arguments, and all that the skipped code has read; fills in the graph's arguments, and starts
it. Where anything is else, nothing has happened yet, and the step takes its ordinary way.

A step that branches on what it has computed is expected to branch as the last one did, or as the one that came after such steps before: the graph is told what it should compute there, and does nothing if that is
wrong. It runs as a whole before Python goes on, where otherwise Python waits for these values only; which is faster is tried out.
"""

import time
from threading import get_ident

from terra.runtime.fast_forward.guards import guard_set, patch_guard
from terra.runtime.fast_forward.steps.early_effects import Refused
from terra.runtime.fast_forward.steps.detached_step import MISSED, DetachedStep
from terra.tf import private_names as tfi
from terra.transform import edits
from terra.trial import TrialOfMeans

MOST_DETACHED = 8  # of one program: batches may come in several lengths
TIMES, TIMES_MORE = 2, 8  # steps that a record has skipped after which those like them are prepared; the same where another one must give way
MOST_NOTED = 64  # records that are counted
HISTORY = 12  # steps that branch by which the way of the next one is predicted
MOST_HISTORIES = 1000  # that are remembered
AGAIN = 250  # runs in vain after which it is tried again which way is faster
_context_changes, _executor_changes, _watchers, _tape_set_is_empty = tfi.context_changes, tfi.executor_changes, tfi.active_watchers, tfi.tape_set_is_empty


class StepCache:
    """Says what a co-executed function does in place of a step that is like one that was prepared: holds the `DetachedStep` of its program, the last one used first."""

    def __init__(self, function, program):
        self.function, self.program = function, program
        self.tail = function.tails.current  # these are steps of its head
        self.detached = []
        self._times = {}  # record -> how many steps were skipped by it that were not prepared
        self._modules_version = program.modules_version
        self._thread = get_ident()
        self._changes = self._executors = None
        self._callbacks = tfi.callbacks()
        self.expecting = TrialOfMeans()  # of steps that branch: the second way is to expect them to branch as before
        self._history = None  # ids of the last `DetachedStep` that branch, once there was one
        self._followed = {}  # such a history -> the one that has followed
        self._again = 0  # runs of the graph since, after which it turned out that a step branches otherwise
        self._number = 0  # of the last one

    def attempt(self, args, kwargs):
        """The result of a step with these arguments; MISSED if it has to take its ordinary way, and nothing was done."""
        function, program = self.function, self.program
        generation, policy, options = function.generation, function.policy, function.options
        if generation.task is not None and (options.wait_for_graph or not generation.task.runs):
            return MISSED  # what it has made is to be taken up
        if generation.retired or function.begins_anew or policy.pause_left or function.keeps_last or function.eviction.wants_traces or function.tails.current is not self.tail:
            return MISSED
        compiled = program.compiled
        if compiled is not None:
            if compiled.reason is not None:
                return MISSED
            compiled.advance(options.wait_for_graph)
        if not self.may_run_here() or _watchers or not _tape_set_is_empty() or self._callbacks or guard_set.is_traced() \
                or tfi.is_deterministic() is not function._deterministic or function._edits != edits.look() or patch_guard.modules.look() != self._modules_version:
            return MISSED
        start = time.perf_counter()
        names, given = tuple(kwargs), (*args, *kwargs.values()) if kwargs else args
        if self._history is not None:
            self._predict()
        tried = []  # steps that branch, each otherwise than this one
        for k, detached in enumerate(self.detached):
            tensors, arrays, held = [], [], []
            if not detached.fits(names, given, tensors, arrays, held):
                continue
            if detached.branches and not tried and not self._expects(function._stats.steps):
                return MISSED
            function._note_last_step()
            if not options.wait_for_graph and policy.wants_sample():
                return MISSED
            made = detached.makes(given, tensors, arrays, held)
            if made is None:
                continue
            if k:
                self.detached.insert(0, self.detached.pop(k))
            result = detached.step(function, program, options, start, tensors, arrays, held, *made)
            if not detached.branches:
                return result
            if result is not MISSED:
                self._note(detached)
                return result
            tried.append(detached)
            self._again += 1
            if self._again == AGAIN:
                self.expecting, self._again = TrialOfMeans(), 0
        for detached in tried:
            if detached.is_surprised():
                self.detached.remove(detached)
                self._times[detached.record] = None
        return MISSED

    def _expects(self, number):
        """Whether a step that branches is to be expected to branch as before; there were `number` steps."""
        follows, self._number = number == self._number + 1, number
        return self.expecting.choose(time.perf_counter(), follows)

    def describe(self):
        """One sentence for `terra.explain`; None if there is nothing to tell."""
        trial = self.expecting
        if trial.second_is_better is None:
            return None
        took = f"steps took {trial.mean(1) * 1e3:.2g} ms so, {trial.mean(0) * 1e3:.2g} ms if Python waits for what it looks at"
        return f"Steps that are skipped {'are' if trial.second_is_better else 'are not'} expected to branch as those before: {took}."

    def has(self, record):
        """Whether steps that this record skips are prepared; they are the first that are tried from now on."""
        for k, detached in enumerate(self.detached):
            if detached.record is record:
                self.detached.insert(0, self.detached.pop(k))
                if detached.branches:
                    self._note(detached)
                return True
        return False

    def _note(self, detached):
        """A step was like this one, which branches."""
        history = self._history or (0,) * HISTORY
        if len(self._followed) >= MOST_HISTORIES:
            self._followed.clear()
        self._followed[history] = detached
        self._history = *history[1:], id(detached)

    def _predict(self):
        """Expects the next step to branch as the one did that has followed on such steps before; else as the last one: some branch otherwise every so many steps."""
        expected, detached = self._followed.get(self._history), self.detached
        if expected is not None and detached and detached[0] is not expected and expected in detached:
            detached.remove(expected)
            detached.insert(0, expected)

    def may_run_here(self):
        """Whether what the context says of this thread is as it was when steps were prepared: looked at only when it may have changed."""
        if self._thread != get_ident():
            return False
        changes, executors = _context_changes[0], _executor_changes[0]
        if self._changes != changes:
            if not tfi.executing_eagerly() or tfi.device_name() or tfi.tf.distribute.has_strategy() or tfi.in_replica():
                return False
            self._changes = changes
        if self._executors != executors:
            if tfi.executes_asynchronously():
                return False
            self._executors = executors
        return True

    def is_worth_detaching(self, record):
        """Whether steps that this record skips are to be prepared: those that come again."""
        times = self._times.get(record, 0)
        if times is None:
            return False
        if len(self._times) >= MOST_NOTED:
            self._times.clear()
        self._times[record] = times + 1
        return times + 1 >= (1 if not self.detached else TIMES if len(self.detached) < MOST_DETACHED else TIMES_MORE)

    def add(self, record, detached):
        """prepared: None if that is not possible."""
        if detached is None:
            self._times[record] = None
            return
        self._times.pop(record, None)
        self.detached.insert(0, detached)
        del self.detached[MOST_DETACHED:]


def detach(function, step, skeleton, args, kwargs):
    """After a step that was skipped as a whole: have the next ones like it be express steps, if that is possible."""
    program, record = skeleton.program, skeleton._jumps[0][1]
    if function.early_start.trial.second_is_better:  # steps that start early cost hardly any more
        return
    if program.step_cache is None or program.step_cache.tail is not function.tails.current:
        program.step_cache = StepCache(function, program)
    elif function.generation.task is not None:  # there may be another graph in a moment
        return
    cache = program.step_cache
    if cache.has(record) or not cache.is_worth_detaching(record):
        return
    if program.early and (program.conditional if record.depends_on_values else program.deferred) is None:
        if program.compiled is None:  # it is generated meanwhile
            program.wants_conditional |= record.depends_on_values
            program.wants_deferred |= not record.depends_on_values
        return
    try:
        detached = DetachedStep(function, step, skeleton, args, kwargs)
    except Refused:
        detached = None
    cache.add(record, detached)
