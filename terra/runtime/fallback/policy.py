"""When to stop trying: a function that keeps diverging runs imperatively for a while, says so once, and is tried again later."""

import collections
import logging
import statistics

from terra.runtime.fallback.account import Account

log = logging.getLogger("terra")

WINDOW = 20  # steps over which fallbacks are counted
TOO_MANY = 10  # fallbacks in a window that make co-execution a loss
FEW_IF_OVERDRAWN = 3  # the same, if the run has already taken too much longer than eager execution
FIRST_PAUSE = 50  # imperative steps before the next try; doubled after each pause
LONGEST_PAUSE = 10_000
WELL = 20  # co-executed steps, times the length of a pause, after which the next pause is as short as the first
PATIENCE = 40  # tracing steps in a row without a covered trace
SAMPLES = 15  # step times that are kept of either way to run
FEW_SAMPLES = 5  # of imperative steps, to compare with
CLOSE = 0.25  # co-execution that takes less than so many times as long needs no other imperative steps to compare with
FAR = 0.1  # and where it takes less than so many times as long as the shorter one of two of them, these are enough
LONGEST = 2  # times that do not count where the mean is told: something else ran on the machine
ALWAYS = 20  # steps in a row that raised, and taught nothing
SLOWER = 1.1  # co-execution that takes so many times as long is a loss


advise = None  # gives the first remedy for a step function that is given up, as a sentence: set by `reporting`, which stands above


class Policy:
    """Decides for one step function whether the next step may be traced or co-executed."""

    def __init__(self, name):
        self.name = name
        self.account = Account()
        self._waits = False  # whether it was said that tracing waits
        self.pause_left = 0
        self._pause = FIRST_PAUSE
        self._went_well = 0  # steps that were co-executed since it last gave up
        self._window = []
        self._uncovered = 0
        self._raised = 0
        self._imperative_times = collections.deque(maxlen=SAMPLES)
        self._coexecuted_times = collections.deque(maxlen=SAMPLES)
        self._alone = collections.deque(maxlen=SAMPLES)  # of imperative steps beside which no graph was built: what eager execution takes
        self._at_most = None  # what it takes at most: the shortest step that ran eagerly while it was traced, or while a graph was built
        self._since_compared = 0
        self._is_far = False  # whether co-executed steps are so much shorter that nothing needs to be compared
        self._asked = False  # whether the imperative steps that are compared with were run for that
        self._renewed = False  # whether there were such ones
        self.told = False
        self.for_good = False
        self.reason = None  # why it last gave up
        self.first = self.last_other = None  # the number of the first step that was co-executed, and of the last one that was not because it was new, or raised
        self.pauses = 0  # times that it did
        self.owner = None  # the `Coexecuted`, weakly
        self.stall = None  # seconds that Python has waited for the graph in each of the last co-executed steps
        self._stall_before = 0.0, 0  # (how long it had waited, how many co-executed steps there had been) when that was last looked at
        self.told_first = False  # whether it was said that it is co-executed
        self.closes = None  # called when it does not pay: whether sizes of arguments that were left unknown are known again from now on
        self.otherwise = None  # called when steps keep leaving the known paths: whether they are co-executed in another way from now on

    def imperative(self):
        """True if the next step should be left alone."""
        if self.pause_left:
            self.pause_left -= not self.for_good
            return True
        return False

    def may_trace(self):
        """Returns whether the next step may be traced: else it runs imperatively, until there is credit for that."""
        may = self.account.may_trace()
        if not may and not self._waits:
            self._waits = True
            log.info("%s waits with tracing: that has taken %.2g s so far", self.name, self.account.traced)
        return may

    def coexecuted(self):
        self._note(0)
        self._raised = 0
        self._went_well += 1

    def took(self, coexecuted, seconds):
        """Notes how long a step took, in either way; co-execution that does not pay is given up."""
        ours, imperative = self._coexecuted_times, self._imperative_times
        if not coexecuted:
            imperative.append(seconds)
            self._look_how_far()
            return
        ours.append(seconds)
        self.account.note_coexecuted(seconds)
        self._since_compared += 1
        if self._since_compared < SAMPLES:
            return
        if self._since_compared % SAMPLES == 0:
            self._note_stall()
            if not self.told_first and self.first is not None:
                self._tell_first()
        if len(imperative) < FEW_SAMPLES:
            if self._since_compared % SAMPLES == 0:
                self._look_how_far()
        else:
            self._since_compared = 0
            if not self._asked and self._takes_longer(SLOWER if self._renewed else CLOSE):
                # They were run while a graph was generated, or had something else to do: compare with the next ones.
                imperative.clear()
                self._renewed = True
                return
            if self._asked and self._takes_longer(SLOWER) and min(ours) > min(imperative):
                took = f"{statistics.median(ours) * 1e3:.2g} ms a step, imperative execution {statistics.median(imperative) * 1e3:.2g}"
                ours.clear()
                if self.closes is None or not self.closes():
                    self._give_up(f"co-execution took {took}")
            self._asked = False

    def times(self):
        """(what a co-executed step takes, what eager execution takes, whether that is only known to be the most that it takes), in seconds; None for what is not known."""
        ours, alone = list(self._coexecuted_times), list(self._alone)
        eager = statistics.median(alone) if alone else self._at_most
        return statistics.fmean(sorted(ours)[:max(1, len(ours) - LONGEST)]) if ours else None, eager, not alone

    def note_eager(self, seconds, alone):
        """A step ran eagerly, and took so long; `alone`: it was neither traced, nor was a graph built meanwhile."""
        self.account.note(seconds, not alone, alone)
        if alone:
            self._alone.append(seconds)
        elif self._at_most is None or seconds < self._at_most:
            self._at_most = seconds

    def _look_how_far(self):
        ours, imperative = self._coexecuted_times, self._imperative_times
        self._is_far = len(ours) == SAMPLES and len(imperative) > 1 and statistics.median(ours) < FAR * min(imperative)

    def _takes_longer(self, times):
        """Returns whether co-executed steps take so many times as long, in the median and in the mean: they need not all do the same."""
        return all(of(self._coexecuted_times) > times * of(self._imperative_times) for of in (statistics.median, statistics.mean))

    def wants_sample(self):
        """Returns whether the next step should run imperatively to have something to compare with."""
        wanted = not self._is_far and len(self._coexecuted_times) == SAMPLES and len(self._imperative_times) < FEW_SAMPLES
        self._asked = self._asked or wanted
        return wanted

    def raised(self, error):
        """A step raised `error`, be it that it was traced or that it had to fall back because of that."""
        self._raised += 1
        if self._raised >= ALWAYS:
            self._give_up(f"{ALWAYS} steps in a row raised (the last one: {type(error).__name__})")

    def fell_back(self, reason):
        self._note(1)
        self._raised = 0
        times = sum(self._window)
        if times >= (FEW_IF_OVERDRAWN if self.account.is_overdrawn() else TOO_MANY) and not self._goes_on_otherwise(times >= TOO_MANY):
            self._give_up(f"{times} of the last {len(self._window)} steps left the known paths (the last one: {reason})")

    def traced(self, covered):
        self._uncovered = 0 if covered else self._uncovered + 1
        self._raised = 0
        if self._uncovered >= PATIENCE and not self._goes_on_otherwise():
            self._give_up(f"{PATIENCE} steps in a row took a path that was never seen")

    def _goes_on_otherwise(self, may_close=True):
        """Returns whether there is another way to go on. `may_close`: whether it may be for sizes that are left unknown that nothing is won: a few new paths say nothing of that."""
        if not any(way is not None and way() for way in ((self.closes,) * may_close + (self.otherwise,))):
            return False
        self._window = []
        self._uncovered = 0
        return True

    def cannot(self, reason):
        """Its graph cannot be generated: a long pause."""
        self._pause, self._went_well = max(self._pause, 1000), 0
        self._give_up(reason)

    def never(self, reason):
        """Co-execution cannot be right: a pause for good."""
        self.for_good = True
        self._give_up(reason)

    def _note(self, fell_back):
        self._window.append(fell_back)
        if len(self._window) > WINDOW:
            del self._window[0]

    def _give_up(self, reason):
        self.reason = reason
        self.pauses += 1
        if self._went_well >= WELL * self._pause:
            self._pause = FIRST_PAUSE
        self._went_well = 0
        self.pause_left = self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._window = []
        self._uncovered = self._raised = 0
        if not self.told:
            self.told = True
            remedy = self._remedy()
            if self.for_good:
                log.warning("%s runs imperatively: %s.%s", self.name, reason, remedy)
            else:
                log.warning("%s runs imperatively for now: %s; it is tried again later.%s", self.name, reason, remedy)

    def _remedy(self):
        """Returns what to do about it, for the log."""
        function = self.owner() if self.owner is not None else None
        try:
            return " " + advise(function) if advise is not None and function is not None else ""
        except RuntimeError:  # the helper thread looked at a graph while a step was merged into it
            return ""

    def _note_stall(self):
        """Every so many co-executed steps: how long Python has waited in them."""
        function = self.owner() if self.owner is not None else None
        if function is not None:
            (waited, steps), now = self._stall_before, (function.counts.python_stall, function._stats.coexecuted_steps)
            self.stall, self._stall_before = (now[0] - waited) / max(now[1] - steps, 1), now

    def _tell_first(self):
        """The first co-executed steps have been timed: say so."""
        self.told_first = True
        ours, eager, is_bound = self.times()
        faster = f", {'up to ' if is_bound else ''}{eager / ours:.2g} x faster than eager" if eager and ours and eager > ours else ""
        log.info("%s is co-executed from step %d on%s", self.name, self.first, faster)
