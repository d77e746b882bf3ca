"""Trials: which of two forms of a graph makes steps shorter, and when something that came to nothing is tried again.

The two forms take turns for a while, a few steps each, and the wall times per step are compared.
"""

import statistics

BLOCK = 6  # steps in a row with one form
PASSED_OVER = 2  # of them at its beginning: steps of the other form are still in flight
ROUNDS = 4  # blocks of either form
HOPELESS = 1.5  # the second form is given up after its first block if its steps took at least so many times as long
LONGEST = 2  # times that are not counted where means are compared
_AT_ONCE, _LONGEST, _MOST_FAILED = 3, 10, 10_000  # failures that change nothing; doublings of the pause at most; keys that are kept
_COST, _LIMIT, _PAUSE = 8, 128, 1000  # successes that a failure costs; that failures may cost in all; times that something is not tried then
FASTER = 0.98  # the second form stays if its steps take at most so many times as long, in the median


class Trial:
    """Asked once a step which form to run; `second_is_better` is None until it is decided."""

    def __init__(self, rounds=None, block=BLOCK, passed_over=PASSED_OVER):
        self._rounds, self._block, self._passed_over = rounds or ROUNDS, block, passed_over
        self.second_is_better = None
        self.times = ([], [])
        self._steps = 0  # that took part
        self._last = None  # (when, form) of the step before, if its time counts

    def choose(self, now, follows=True):
        """Returns whether the step that is started at the time `now` takes the second form. follows: whether the time since the last one is what that took."""
        if self.second_is_better is not None:
            return self.second_is_better
        self.interrupt(now, follows)
        blocks, place = divmod(self._steps, self._block)
        if blocks == 2 and place == 0 and all(self.times) and min(self.times[1]) > HOPELESS * max(self.times[0]):
            self.second_is_better = False
            return False
        if blocks == 2 * self._rounds:
            if all(self.times):
                self.second_is_better = self.is_faster(1)
                return self.second_is_better
            self._steps = blocks = place = 0  # again: hardly two steps have followed each other
        self._steps += 1
        if place >= self._passed_over:
            self._last = now, blocks % 2
        return bool(blocks % 2)

    def interrupt(self, now, follows=True):
        """A step that takes no part is started. follows: as in `choose`."""
        if self._last is not None and follows:
            before, form = self._last
            self.times[form].append(now - before)
        self._last = None

    def median(self, form):
        return statistics.median(self.times[form])

    def is_faster(self, form, than=None):
        """Returns whether steps with a form take at most so many times (FASTER) as long as with the other one. What else runs on the machine makes
        steps longer, never shorter: the shorter ones must not say the opposite."""
        than = FASTER if than is None else than
        return self.median(form) <= than * self.median(1 - form) and self._lower_quartile(form) <= max(than, 1.0) * self._lower_quartile(1 - form)

    def _lower_quartile(self, form):
        times = sorted(self.times[form])
        return times[len(times) // 4]


class TrialOfMeans(Trial):
    """A trial where some steps of a form take much longer than others: the means are compared, but for the longest steps."""

    def is_faster(self, form, than=None):
        return self.mean(form) <= (FASTER if than is None else than) * self.mean(1 - form)

    def mean(self, form):
        """Of the steps with a form, but for the longest."""
        times = sorted(self.times[form])
        return statistics.fmean(times[:max(1, len(times) - LONGEST)])


class BackOff:
    """Says when something that came to nothing is tried again: further and further apart. What is tried has a key; a moment is the number of a step.

    Where it is asked for in one step after the other, though not before, something has changed: then the second of these is a moment, too, and the fourth, the eighth ...
    """

    def __init__(self):
        self._failed = {}  # key -> [failures in a row, the first step in which it is tried again, the last one that has asked, how many have asked one after the other]

    def failed(self, key, step, wait=0):
        """It was tried in vain in this step. `wait`: steps that it takes at least until that may change, which is no failure; 0 if that is not known."""
        if len(self._failed) >= _MOST_FAILED:
            self._failed.clear()
        times, _, last, row = self._failed.get(key, (0, 0, step, 1))
        times += not wait
        pause = 1 << min(times - _AT_ONCE, _LONGEST) if times > _AT_ONCE else 0
        self._failed[key] = [times, step + 1 + max(pause, wait), last, row]

    def succeeded(self, key):
        self._failed.pop(key, None)

    def left(self, key, step):
        """Returns in how many steps it is to be tried again; 0 if it is now."""
        known = self._failed.get(key)
        if known is None:
            return 0
        _, until, last, row = known
        if step != last:
            known[2:] = step, (row := row + 1 if step == last + 1 else 1)
            if is_power(row):
                return 0
        return max(0, until - step)


class Reliability:
    """Says whether it is still worth while to try something that fails now and then, where one failure costs as much as several successes save."""

    __slots__ = ("_debt",)

    def __init__(self):
        self._debt = 0  # what failures have cost, less what successes have saved

    def failed(self):
        self._debt += _COST
        if self._debt > _LIMIT:
            self._debt = _LIMIT + _PAUSE

    def succeeded(self):
        if self._debt:
            self._debt -= 1

    @property
    def pauses(self):
        return self._debt > _LIMIT

    def allows(self):
        """Returns whether it is to be tried now: after too many failures not for a while, and then once. (Each question is one time.)"""
        if self.pauses:
            self._debt -= 1
            return False
        return True


def is_power(n):
    """Returns whether a number is 2, 4, 8, 16 ..."""
    return n > 1 and not n & n - 1
