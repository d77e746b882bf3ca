"""Spans of time: what Python, the graphs and the threads that build them did, and when. They are noted while somebody asks: `terra.profile`, or TensorFlow's profiler.

Code that runs often looks at `recorder` and nothing else; it is None as a rule. TensorFlow's profiler shows a span where it began and ended on its own thread (a `TraceMe`). What the
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
MOST = 1_000_000  # spans that are kept
SHARE = 60  # times as long as a stamp takes is what must pass between two of them
AT_ONCE = 50e-6  # seconds: who gets an answer later than that has waited for it
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
    details: Any  # a dict; (path, line number) of the program's; for a feed its `Feed`; None


class Span:
    """A span that has begun."""

    __slots__ = ("_recorder", "kind", "name", "place", "_mark")

    def __init__(self, of: "Recorder", kind: str, name: str, place: "tuple[str, int] | None" = None):
        self._recorder, self.kind, self.name, self.place = of, kind, name, place
        self._mark = None
        if tfi.is_profiling():
            where = "" if place is None else f" {os.path.basename(place[0])}:{place[1]}"
            self._mark = tfi.ProfilerTrace(f"terra:{kind} {name}{where}")

    def end(self, start: float, end: float, details: Any = None, kind: "str | None" = None) -> None:
        """Ends it. start, end: its times; kind: if it turned out to be another one than it began as."""
        if self._mark is not None:
            if type(details) is dict:
                self._mark.set_metadata(**details)
            self._mark.__exit__(None, None, None)
        self._recorder.add(kind or self.kind, self.name, start, end, self.place if details is None else details)


    def ran(self, start: float, end: float) -> None:
        """Ends it, as the wait for a graph that this thread has run itself."""
        self.end(start, end)
        self._recorder.add(GRAPH, self.name, start, end)


class _Running:
    """A graph that was started and is not known to have ended."""

    __slots__ = ("done", "name", "start", "stamp")

    def __init__(self, done: Any, name: str, start: float, stamp: Any):
        self.done, self.name, self.start, self.stamp = done, name, start, stamp


class Recorder:
    """Notes spans for all who ask at a time; there is one in the process, or none."""

    def __init__(self):
        self.users = 0  # how many keep what is noted; without any, it is shown to TensorFlow's profiler only
        self.events: "list[Event]" = []
        self.lost = 0  # spans that were too many to be kept
        self.threads: "dict[int, str]" = {}  # ids and names of those that have a span
        self._running: "list[_Running]" = []  # those that were started first stand first
        self._wall = time.time() - time.perf_counter()  # what the clock of the stamps says when `perf_counter` says 0
        self._next_stamp = 0.0
        self._blocked = False  # whether Python was waiting when the last graph ended: then that it has ended tells when
        self._free = 0.0  # when the last graph ended

    # -- what Python does ------------------------------------------------------------------------------------------------------

    def begin(self, kind: str, name: str = "") -> Span:
        """Begins a span on this thread."""
        return Span(self, kind, name)

    def begin_wait(self, name: str, line: "tuple[str, int] | None" = None) -> Span:
        """Begins the span of a wait, for a graph of the step of this name; line: (path, number), if not that of the innermost frame of the program's."""
        return Span(self, WAIT, name, line or frames.place_inside(None))

    def instant(self, kind: str, name: str, details: Any = None) -> None:
        """Notes what happens at this moment."""
        if tfi.is_profiling():
            with tfi.ProfilerTrace(f"terra:{kind} {name}"):
                pass
        now = time.perf_counter()
        self.add(kind, name, now, now, details)

    def add(self, kind: str, name: str, start: float, end: float, details: Any = None) -> None:
        """Keeps a span of this thread."""
        if not self.users:
            return
        if len(self.events) >= MOST:
            self.lost += 1
            return
        thread = get_ident()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.events.append(Event(kind, name, start, end, thread, details))

    # -- what the executor does ------------------------------------------------------------------------------------------------

    def dispatched(self, outputs: Any, name: str, start: float, stamp: Any) -> None:
        """A graph of the step of this name was started at `start`. stamp: called to have the executor note the time when the graph has ended; returns a tensor."""
        if not self.users:
            return
        noted, begun = None, time.perf_counter()
        if begun >= self._next_stamp and not self._blocked:
            try:
                noted = stamp()
            except _ERRORS:  # of the graph: the executor takes nothing more
                noted = None
            now = time.perf_counter()
            self._next_stamp = now + SHARE * (now - begun)
        self._running.append(_Running(outputs[0], name, start, noted))

    def landed(self, outputs: Any, seen: float, now: float, well: bool) -> None:
        """The graph with these outputs is known to have ended at `now`: Python has begun to look at `seen`. well: whether it did what it should."""
        self._blocked = now - seen > AT_ONCE
        done, running = outputs[0], self._running[:]
        last = next((graph for graph in running if graph.done is done), None)
        if last is None:
            return  # it was started before anybody asked
        for graph in running:
            is_last = graph is last
            self._ended(graph, now, self._blocked and is_last, {} if well or not is_last else {"failed": True})
            if is_last:
                return

    def settle(self, how: str) -> None:
        """Nothing is known of what was started and has not ended, but this one word: it was `cancelled`, say."""
        now = time.perf_counter()
        for graph in self._running[:]:
            self._ended(graph, now, False, {how: True})

    def _ended(self, graph: _Running, now: float, is_exact: bool, details: "dict[str, Any]") -> None:
        try:
            self._running.remove(graph)
        except ValueError:  # a signal handler was quicker
            return
        end = now
        if graph.stamp is not None and not details:
            try:
                end, is_exact = float(graph.stamp._numpy_internal()) - self._wall, True
            except _ERRORS:  # those of the graph
                end = now
        start = max(graph.start, self._free)
        end = self._free = max(min(end, now), start)
        if not is_exact and not details:
            details = {"ended": "at this time or earlier"}
        self.add(GRAPH, graph.name, start, end, details or None)


def start() -> Recorder:
    """Has spans be kept, until as many `stop` as `start` were called. Returns the recorder, whose events so far are those of others."""
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
    if recorder is None or not recorder.users:
        with _lock:
            if recorder is None or not recorder.users:
                recorder = Recorder() if tfi.is_profiling() else None
    return recorder


def forget() -> None:
    """This is a forked process: what is noted is the parent's."""
    global recorder, _lock
    recorder, _lock = None, threading.Lock()
