"""When to stop trying: a function that keeps diverging runs imperatively for a while, says so once, and is tried again later."""

import logging

log = logging.getLogger("terra")

WINDOW = 20  # steps over which fallbacks are counted
TOO_MANY = 10  # fallbacks in a window that make co-execution a loss
FIRST_PAUSE = 50  # imperative steps before the next try; doubled after each pause
LONGEST_PAUSE = 10_000
PATIENCE = 40  # tracing steps in a row without a covered trace


class Policy:
    """Decides for one step function whether the next step may be traced or co-executed."""

    def __init__(self, name):
        self.name = name
        self.pause_left = 0
        self._pause = FIRST_PAUSE
        self._window = []
        self._uncovered = 0
        self.told = False
        self.reason = None  # why it last gave up

    def imperative(self):
        """True if the next step should be left alone."""
        if self.pause_left:
            self.pause_left -= 1
            return True
        return False

    def coexecuted(self):
        self._note(0)

    def fell_back(self, reason):
        self._note(1)
        if sum(self._window) >= TOO_MANY:
            self._give_up(f"{sum(self._window)} of the last {len(self._window)} steps left the known paths (the last one: {reason})")

    def traced(self, covered):
        self._uncovered = 0 if covered else self._uncovered + 1
        if self._uncovered >= PATIENCE:
            self._give_up(f"{PATIENCE} steps in a row took a path that was never seen")

    def cannot(self, reason):
        """Its graph cannot be generated: a long pause."""
        self._pause = max(self._pause, 1000)
        self._give_up(reason)

    def _note(self, fell_back):
        self._window.append(fell_back)
        if len(self._window) > WINDOW:
            del self._window[0]

    def _give_up(self, reason):
        self.reason = reason
        self.pause_left = self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._window = []
        self._uncovered = 0
        if not self.told:
            self.told = True
            log.warning("terra: %s runs imperatively for now: %s; it is tried again later.", self.name, reason)
