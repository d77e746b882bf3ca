"""The account of one step function: the time that its steps took, beside that of eager execution. Tracing, and graphs, are paid out of it.

At each moment a run may have taken `GRACE` seconds, the time of `LEARNING` steps, and a tenth more than eager execution. Where the next traced step would go beyond that,
steps run imperatively until it does not; savings of co-executed steps give credit. A graph that takes long to build waits until the run has taken as long, and is not too far behind.

What is skipped is recorded anew for each graph. So a graph that knows one more path takes the place of another one when steps on paths that this one does not know have taken as long as
recording has: whoever hires until that has cost as much as buying never pays more than twice what was needed (ski rental). Where the last steps have all fallen back, nothing is lost with the old one.
"""

import collections
import statistics

GRACE = 2.0  # seconds that may be spent before anything is saved
LEARNING = 12  # steps whose time may be spent besides: less, and steps of a second would not be learned for minutes
SHARE = 0.1  # of what eager execution takes, that may be spent besides
TRACED = 2  # steps that are traced before there is a graph
FIRST = 2  # steps that make variables and kernels, in any way to run: they do not count
DEAREST = 10  # times as long as eagerly, that a traced step takes at the most: what the first one took beyond that, it took for what is made once
SAMPLES = 15  # times of imperative steps that are kept
SECONDS_PER_OPERATION = 3e-4  # that a small graph takes to build: two cores; only the order of magnitude matters
TWICE_AS_LONG = 2500  # operations in a graph from which on each takes twice as long, and so on: 1,300 took 0.2 s, 7,500 took 10 s, 20,000 a minute
IN_A_ROW = 8  # steps that fall back, one after the other, after which nobody needs the graph that there is
FAR = 2  # times as far behind as it may be, that a graph may take a run at the most


def will_take(operations):
    """Returns how many seconds it takes to build a graph of so many operations, as a rule."""
    return operations * SECONDS_PER_OPERATION * (1 + operations / TWICE_AS_LONG)


class Account:
    """The times of one function's steps, in seconds."""

    def __init__(self):
        self.steps = 0  # that count
        self.elapsed = 0.0  # what they took
        self.traced = 0.0  # what those took that were traced, or ran while a graph was built
        self.building = 0.0  # what building graphs took, in the helper thread
        self._built = None  # (operations, seconds) of the last one
        self._run = 0.0  # what all steps took
        self._left = FIRST
        self._last_traced = 0.0
        self._was_first = False  # whether that was the run's first step
        self._recording = 0.0  # by how much co-executed steps were longer than eager ones since there is this graph
        self._coexecuted = 0.0  # what they have taken since then
        self._fallbacks = 0.0  # what steps have taken since then that fell back
        self._fell_back = False  # whether the step at hand did
        self._in_a_row = 0  # steps that fell back since the last one that was co-executed
        self._at_most = None  # what eager execution takes at most: the shortest step that was traced
        self.eager = None  # what a step takes that runs eagerly, as far as that is known
        self._alone = collections.deque(maxlen=SAMPLES)  # times of steps that were imperative, and nothing else

    def note(self, seconds, traced=False, alone=False):
        """A step is over; `traced`: or it ran while a graph was built; `alone`: it ran imperatively, and nothing else was done."""
        if traced:
            self._last_traced, self._was_first = seconds, not self._run
        self._run += seconds
        self._fallbacks += seconds * self._fell_back
        self._in_a_row += self._fell_back
        self._fell_back = False
        if self._left:
            self._left -= 1
            return
        self.steps += 1
        self.elapsed += seconds
        if traced:
            self.traced += seconds
            self._at_most = seconds if self._at_most is None else min(seconds, self._at_most)
        if alone:
            self._alone.append(seconds)
            self.eager = statistics.median(self._alone)

    def note_coexecuted(self, seconds):
        """A co-executed step is over."""
        self.note(seconds)
        self._in_a_row = 0
        self._recording += max(0.0, seconds - (self.eager or seconds))
        self._coexecuted += seconds

    def falls_back(self):
        """The step at hand takes a path that the graph does not know."""
        self._fell_back = True

    def note_graph(self):
        """There is another graph from now on."""
        self._recording = self._coexecuted = self._fallbacks = 0.0
        self._in_a_row = 0

    def may_replace(self):
        """Returns whether another graph may take the place of the one that there is."""
        return self._fallbacks >= self._recording or self._in_a_row >= IN_A_ROW

    def may_record_anew(self, times):
        """Returns whether calls may be recorded so many times more than they were, for another graph, with which steps may be shorter: once they have taken as long as that will."""
        return self._coexecuted >= times * self._recording

    @property
    def regret(self):
        """How much longer the run has taken than eager execution; less than nothing if it was shorter. As long as nobody knows, eager execution counts as nothing."""
        return self.traced + self.building if self.eager is None else self._behind(self.eager)

    def _behind(self, eager):
        return self.elapsed + self.building - eager * self.steps

    @property
    def allowed(self):
        """How much longer it may take."""
        return self._allowed(self.eager or 0.0)

    def _allowed(self, eager):
        return GRACE + (LEARNING + SHARE * self.steps) * eager

    def is_overdrawn(self):
        """Returns whether it is known that too much was spent."""
        return self.eager is not None and self.regret > self.allowed

    def may_trace(self):
        """Returns whether the next step may be traced, as far as the last one that was tells what that takes."""
        return self.regret + max(0.0, self._will_take_traced() - (self.eager or 0.0)) <= self.allowed

    def _will_take_traced(self):
        """Returns how long a traced step takes, as far as the last one tells."""
        return self._last_traced if not self._was_first or self.eager is None else min(self._last_traced, DEAREST * self.eager)

    def may_record(self):
        """Returns whether calls of co-executed steps may be recorded, which takes several times as long as to make them."""
        eager = self._at_most if self.eager is None else self.eager
        return eager is None or self._behind(eager) <= self._allowed(eager)

    def note_built(self, operations, seconds):
        """A graph of so many operations was built, or a form of it, which took so long."""
        self.building += seconds
        if self._built is None or operations != self._built[0]:
            self._built = operations, seconds

    def may_build(self, operations):
        """Returns whether a graph of so many operations may be built now, as far as the last one tells how long that takes: twice as many paths part in more than twice as many places."""
        seconds = will_take(operations)
        if self._built is not None:
            times = operations / max(self._built[0], 1)
            seconds = max(seconds, self._built[1] * times * max(times, 1.0))
        needed = self.building + seconds
        return needed <= GRACE or (needed <= self._run and (self.eager is None or self.regret + seconds <= FAR * self.allowed))

    def to_begin_anew(self, building):
        """Returns how long it takes to trace a function anew, as far as the last time tells; `building`: how long its graph does."""
        return TRACED * self._will_take_traced() + building

    def describe(self):
        """A line for the user."""
        if not self.steps:
            return []
        eager = self.eager
        would = f"; eagerly they would have taken about {eager * self.steps:.2g} s" if eager is not None else ""
        return [f"{self.steps} steps behind the first {FIRST} have taken {self.elapsed:.2g} s, and graphs {self.building:.2g} s in the background{would}."]
