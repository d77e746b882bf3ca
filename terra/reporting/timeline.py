"""Takes the spans that were noted while a program ran, and makes a timeline of them: for Chrome and Perfetto, and for the report."""

import json
import os
import time
from typing import Any, Iterator

from terra.graph import lines
from terra.graph.lines import Place
from terra.runtime.generation.feeds import Feed
from terra.runtime.interpreter import spans
from terra.runtime.interpreter.spans import BUILDER, FALLBACK, FEED, GRAPH, PYTHON, SKIPPED, WAIT, Event

KINDS = {
    PYTHON: "a step's Python", SKIPPED: "a step that was skipped as a whole", GRAPH: "a run of a graph", WAIT: "Python waits for a graph", BUILDER: "a graph is built",
    FEED: "Python gives the graph a value", FALLBACK: "a step leaves its graph",
}  # fmt: skip
INSTANTS = frozenset([FEED, FALLBACK])


class Recording:
    """The spans from one moment on, up to now or to `end`.

    since: from which event on, if others record already; None for those from now on.
    """

    def __init__(self, since: int | None = None) -> None:
        self._recorder = spans.start()
        self._first = len(self._recorder.events) if since is None else since
        self._lost = self._recorder.lost
        self.start = time.perf_counter() if since is None else min([start for _, _, start, *_ in self._recorder.events[since:]], default=time.perf_counter())
        self.stop: float | None = None
        self.events: list[Event] = []
        self.lost = 0  # spans that were too many to be kept
        self._places: dict[Feed, Place | None] = {}
        self._texts: dict[tuple, tuple[str, dict[str, Any]]] = {}

    def end(self) -> None:
        """Takes the spans up to now; later ones do not count."""
        if self.stop is None:
            if self._recorder.users == 1:
                self._recorder.settle("running")
            self.look()
            self.stop = time.perf_counter()
            spans.stop()

    def look(self) -> "Recording":
        """Takes the spans so far; returns the recording."""
        if self.stop is None:
            self.events = [event for event in map(Event._make, self._recorder.events[self._first:]) if event.start >= self.start]
            self.lost = self._recorder.lost - self._lost
        return self

    @property
    def length(self) -> float:
        """Seconds from the beginning to the end, or to now."""
        return (self.stop or time.perf_counter()) - self.start

    def total(self, kind: str) -> float:
        """Seconds of all spans of one kind."""
        return sum(event.end - event.start for event in self.events if event.kind == kind)

    def tracks(self) -> dict[str, list[Event]]:
        """The events by what they happened on: threads of Python, the graph, threads that build graphs. Those of one track begin one after another."""
        found: dict[str, list[Event]] = {}
        builders = list(dict.fromkeys(event.thread for event in self.events if event.kind == BUILDER))
        names = {thread: "builder" if len(builders) == 1 else f"builder {k}" for k, thread in enumerate(builders, 1)}
        for event in sorted(self.events, key=lambda event: (event.start, -event.end)):
            found.setdefault(names[event.thread] if event.kind == BUILDER else self._track(event), []).append(event)
        order = {"graph": 1, "builder": 3}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0].split(" ")[0], 0 if item[0] == "Python" else 2)))

    def _track(self, event: Event) -> str:
        if event.kind == GRAPH:
            return "graph"
        name = self._recorder.threads.get(event.thread, "thread")
        return "Python" if name == "MainThread" else f"Python ({name})"

    def place_of(self, event: Event) -> Place | None:
        """Returns the line of the program that an event belongs to; None if it belongs to no single one."""
        details = event.details
        if type(details) is Feed:
            if details not in self._places:
                self._places[details] = lines.place_of(details.node)
            return self._places[details]
        return Place(*details) if event.kind == WAIT and details is not None else None

    def title(self, event: Event) -> str:
        """Returns the name of an event: its kind, and the line or the step."""
        place = self.place_of(event)
        return f"{event.kind} {place if place is not None else event.name}".rstrip()

    def arguments(self, event: Event) -> dict[str, Any]:
        """Returns all that is known of an event besides its times, by name."""
        place = self.place_of(event)
        found: dict[str, Any] = {"of": event.name} if event.name else {}
        if place is not None:
            found |= {"line": str(place), "statement": place.statement}
        if event.kind in (PYTHON, SKIPPED):
            found |= {"how": event.details[0], "step": event.details[1]}
        return found | (event.details if type(event.details) is dict else {})

    def trace(self) -> dict[str, Any]:
        """The recording as Chrome's trace format has it, `{"traceEvents": [...]}`: times in microseconds, complete events (X), instants (i) and names of tracks (M)."""
        return {"traceEvents": list(self._traces()), **self._rest()}

    def _rest(self) -> dict[str, Any]:
        return {"displayTimeUnit": "ms", "otherData": {"waited_s": round(self.total(WAIT), 6), "spans_lost": self.lost}}

    def _traces(self) -> Iterator[dict[str, Any]]:
        process = os.getpid()
        yield _meta(process, 0, "process_name", {"name": "terra"})
        for number, (track, events) in enumerate(self.tracks().items(), 1):
            yield _meta(process, number, "thread_name", {"name": track})
            yield _meta(process, number, "thread_sort_index", {"sort_index": number})
            for event in events:
                yield self._traced(event, process, number)

    def _traced(self, event: Event, process: int, track: int) -> dict[str, Any]:
        kind, _, start, end, _, details = event
        if kind in (WAIT, FEED) or details is None:  # those of one line are alike
            key = kind, event.name, details
            if key not in self._texts:
                self._texts[key] = self.title(event), self.arguments(event)
            name, arguments = self._texts[key]
        else:
            name, arguments = self.title(event), self.arguments(event)
        made: dict[str, Any] = {"name": name, "cat": kind, "ph": "X", "ts": round((start - self.start) * 1e6, 3), "pid": process, "tid": track, "args": arguments}
        if kind in INSTANTS:
            made |= {"ph": "i", "s": "t"}
        else:
            made["dur"] = round((end - start) * 1e6, 3)
        return made

    def save(self, path: str) -> None:
        """Writes the trace as JSON, one event to a line. Raises: OSError."""
        encode = json.JSONEncoder(separators=(",", ":")).encode
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"traceEvents":[')
            for k, event in enumerate(self._traces()):  # one by one: a million of them in memory keep the garbage collector busy
                file.write(("," if k else "") + "\n" + encode(event))
            file.write("]," + encode(self._rest())[1:])


def _meta(process: int, track: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, "pid": process, "tid": track, "args": arguments}


def steps_of(events: list[Event]) -> Iterator[Event]:
    """The steps among these events."""
    return (event for event in events if event.kind in (PYTHON, SKIPPED))
