"""Early start: whether the graph of a step starts with the step, or when its skeleton is done.

A step in the middle of which Python reads values has no choice. Any other is dispatched late, as a rule: no channels are needed, and Python goes on to the
next skeleton while the graph runs. But a program that reads the loss after each step waits for the graph then, and pays the sum of both. Where that is
observed, the graph is generated in its early form, too; both forms take turns for some steps (`trial.py`), and the faster one stays.
"""

import logging
import statistics

from terra.trial import Trial

log = logging.getLogger("terra")

STEPS = 12  # steps in a row over which is decided whether the early form is worth a trial
WORTH = 0.05  # of a step's time that might be saved at least


class EarlyStart:
    """Belongs to one co-executed function. Times are in seconds.

    Its methods are called by the thread that runs steps.
    """

    def __init__(self):
        self.wanted = False  # whether graphs are to be generated in both forms
        self.trial = Trial()
        self.reason = None  # why steps start late for good
        self._program = None  # of the last step
        self._step = 0  # its number
        self._began = self._ended = self._waited = 0.0
        self._savings = []  # what starting early might have saved of each step, as a part of it
        self._complete = False  # whether the last step was co-executed

    def begins(self, program, number, now, waited):
        """The form of the graph for step `number`; `waited` is how long Python has waited for graphs by now."""
        if program is not self._program:
            self._program = program
            self._step = 0
            if self.trial.second_is_better is None:
                self.trial = Trial()
        follows = self._complete and number == self._step + 1
        self._step, self._complete = number, False
        if program.early:
            return program.generated
        if program.early_form is not None:
            return self._choose(program, now, follows)
        if not self.wanted and self.reason is None and program.compiled is None and not (program.step_cache and program.step_cache.detached):
            if follows:
                # Early, the graph could have run during the skeleton, for as long as Python waited for it afterwards.
                self._savings.append(min(self._ended - self._began, waited - self._waited) / (now - self._began))
                if len(self._savings) == STEPS:
                    self.wanted = statistics.median(self._savings) > WORTH
                    self._savings.clear()
            else:
                self._savings.clear()
            self._began = now
        return program.generated

    def ends(self, now, waited):
        """The step was co-executed."""
        self._complete = True
        self._ended, self._waited = now, waited

    def _choose(self, program, now, follows):
        undecided = self.trial.second_is_better is None
        if undecided and not follows:  # few steps come here at all, where most are express steps
            self.trial.interrupt(now, follows=False)
            return program.generated
        early = self.trial.choose(now)
        if undecided and self.trial.second_is_better is not None:
            log.info("%s", self.describe())
        return program.early_form if early else program.generated

    def lacks_form(self, program):
        """Returns whether the early form of this program's graph is to be generated: not if it would never be used."""
        return self.wanted and self.trial.second_is_better is not False and program is not None and program.early_form is None \
            and not program.early and program.compiled is None

    def harmed(self):
        """A step fell back which would not have done so, had its graph not run already."""
        self._never("operations of the step that run imperatively change what the graph uses")

    def cannot(self, error):
        self._never(f"that form of it cannot be generated ({error})")

    def _never(self, reason):
        self.trial.second_is_better = False
        self.reason = reason

    def describe(self):
        """One sentence for `terra.explain`; None if there is nothing to tell."""
        trial = self.trial
        if self.reason is not None:
            return f"The graph is not started with the step, because {self.reason}."
        if trial.second_is_better is None:
            return "Whether steps are faster if the graph starts with the step is being tried out." if self.wanted else None
        took = f"steps took {trial.median(1) * 1e3:.2g} ms so, {trial.median(0) * 1e3:.2g} ms if it starts when Python is through with the step"
        return f"The graph {'starts' if trial.second_is_better else 'does not start'} with the step: {took}."
