"""Spans of time: what Python, the graphs and the threads that build them did, and when. They are noted while somebody asks: `terra.profile`, or TensorFlow's profiler.

Code that runs often looks at `recorder` and nothing else, and once, as another thread may end it; it is None as a rule. TensorFlow's profiler shows a span where it began and ended on its own thread (a `TraceMe`). What the
executor's thread does cannot be told it so: there, a graph is what TensorFlow itself shows.
"""

import os
import threading
import time
from threading import get_ident
from typing import Any, NamedTuple

from terra.runtime.interpreter import frames
from terra.tf import private_names as tfi

PYTHON, SKIPPED, GRAPH, BUILDER, WAIT, FEED, FALLBACK = "python", "skipped", "graph", "builder", "wait", "feed", "fallback"
MOST = 500_000  # spans that are kept
SHARE = 250  # times as long as a stamp takes is what must pass between two of them
AT_MOST = {"ended": "at this time or earlier"}
LONGEST_STAMP = 100e-6  # seconds: the first one takes longer
_ANSWERED = 50e-6  # seconds: who gets an answer later than that has waited for it
_ERRORS = tfi.NotOkStatusException, tfi.OpError

recorder: "Recorder | None" = None
_lock = threading.Lock()


class Event(NamedTuple):
    """One span of a recording; what has no length is an instant."""

    kind: str  # one of those above
    name: str  # of the step, or empty
    start: float  # seconds, as `time.perf_counter` counts
    end: float
    thread: int
    details: Any  # of a step (which way it took, its number); of a wait (path, line number); of a feed its `Feed`; else a dict; None if there is nothing to tell


def mark(kind: str, name: str, place: "tuple[str, int] | None" = None) -> Any:
    """Begins a span for TensorFlow's profiler, which ends when its `__exit__` is called; None if that is not at work."""
    if not tfi.is_profiling():
        return None
    return tfi.ProfilerTrace(f"terra:{kind} {name}" if place is None else f"terra:{kind} {name} {os.path.basename(place[0])}:{place[1]}")


class Recorder:
    """Notes spans for all who ask at a time; there is one in the process, or none."""

    def __init__(self):
        self.users = 0  # how many keep what is noted; without any, it is shown to TensorFlow's profiler only
        self.events: "list[tuple]" = []  # the fields of an `Event`; to make one takes longer than all else
        self.lost = 0  # spans that were too many to be kept
        self.threads: "dict[int, str]" = {}  # ids and names of those that have a span
        self._running: "list[tuple]" = []  # (the first output, name, start, stamp) of graphs that are not known to have ended, in the order in which they were started
        self._wall = time.time() - time.perf_counter()  # what the clock of the stamps says when `perf_counter` says 0
        self._next_stamp = 0.0
        self._blocked = False  # whether Python was waiting when the last graph ended: then that it has ended tells when
        self._free = 0.0  # when the last graph ended

    # -- what Python does ------------------------------------------------------------------------------------------------------

    def begin_wait(self, name: str, place: "tuple[str, int] | None" = None, looks: bool = True) -> tuple:
        """Begins the wait for a graph of the step of this name. place: the line that waits; looks: whether it is that of the innermost frame of the program's else. Returns what `end_wait` takes."""
        if place is None and looks:
            place = frames.place_inside(None)
        return name, place, mark(WAIT, name, place)

    def end_wait(self, wait: tuple, start: float, end: float) -> None:
        """Ends a wait: it took from start to end."""
        name, place, shown = wait
        self.add(WAIT, name, start, end, place, shown)

    def instant(self, kind: str, name: str, details: Any = None) -> None:
        """Notes what happens at this moment."""
        now = time.perf_counter()
        self.add(kind, name, now, now, details, mark(kind, name))

    def add(self, kind: str, name: str, start: float, end: float, details: Any = None, shown: Any = None) -> None:
        """Keeps a span of this thread. shown: its `mark`, which ends."""
        if shown is not None:
            shown.__exit__(None, None, None)
        if not self.users:
            return
        if len(self.events) >= MOST:
            self.lost += 1
            return
        thread = get_ident()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.events.append((kind, name, start, end, thread, details))

    # -- what the executor does ------------------------------------------------------------------------------------------------

    def dispatched(self, outputs: Any, name: str, start: float, stamp: Any) -> None:
        """A graph of the step of this name was started at `start`. stamp: called to have the executor note the time when the graph has ended; returns a tensor."""
        if not self.users:
            return
        noted = None
        if start >= self._next_stamp and not self._blocked:
            begun = time.perf_counter()
            try:
                noted = stamp()
            except _ERRORS:  # of the graph: the executor takes nothing more
                noted = None
            now = time.perf_counter()
            self._next_stamp = now + SHARE * min(now - begun, LONGEST_STAMP)
        self._running.append((outputs[0], name, start, noted))

    def landed(self, outputs: Any, seen: float, now: float, well: bool) -> None:
        """The graph with these outputs is known to have ended at `now`: Python has begun to look at `seen`. well: whether it did what it should."""
        self._blocked = blocked = now - seen > _ANSWERED
        done, running = outputs[0], self._running
        if not running or running[0][0] is not done:  # they end one after another; those that were cancelled are told otherwise
            if all(graph[0] is not done for graph in running[:]):
                return  # it was started before anybody asked
            while running and running[0][0] is not done:
                self._ended(running[0], now, False, None)
        if running:
            self._ended(running[0], now, blocked, None if well else {"failed": True})

    def settle(self, how: str) -> None:
        """Nothing is known of what was started and has not ended, but this one word: it was `cancelled`, say."""
        now = time.perf_counter()
        for graph in self._running[:]:
            self._ended(graph, now, False, {how: True})

    def _ended(self, graph: tuple, now: float, is_exact: bool, details: "dict[str, Any] | None") -> None:
        running = self._running
        if not running or running.pop(0) is not graph:  # a signal handler was quicker
            return
        _, name, start, stamp = graph
        end = now
        if details is None:
            if stamp is not None:
                try:
                    end, is_exact = float(stamp._numpy_internal()) - self._wall, True
                except _ERRORS:  # those of the graph
                    end = now
            if not is_exact:
                details = AT_MOST
        start = start if start > self._free else self._free
        end = self._free = max(min(end, now), start)
        self.add(GRAPH, name, start, end, details)


def start() -> Recorder:
    """Lets spans be kept, until as many `stop` as `start` were called. Returns the recorder, whose events so far are those of others."""
    global recorder
    with _lock:
        if recorder is None:
            recorder = Recorder()
        recorder.users += 1
        return recorder


def stop() -> None:
    """One of those who asked does so no more."""
    global recorder
    with _lock:
        if recorder is not None:
            recorder.users -= 1
            if not recorder.users:
                recorder = None


def look() -> "Recorder | None":
    """Returns the recorder, where a step begins: one that keeps nothing comes and goes with TensorFlow's profiler."""
    global recorder
    found = recorder
    if found is None or not found.users:
        with _lock:
            if recorder is None or not recorder.users:
                recorder = (recorder or Recorder()) if tfi.is_profiling() else None
            found = recorder
    return found


def settle(how: str) -> None:
    """Calls the recorder's `settle`, if there is one."""
    found = recorder  # read once: another thread may end it
    if found is not None:
        found.settle(how)


def forget() -> None:
    """This is a forked process: what is noted is the parent's."""
    global recorder, _lock
    recorder, _lock = None, threading.Lock()
