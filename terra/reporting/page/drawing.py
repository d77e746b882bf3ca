"""Draws the spans of a recording: each track is a strip that is as wide as the page, so that texts keep their size on a narrow one."""

import html
import math

from terra.reporting.causes import amount
from terra.reporting.timeline import INSTANTS, KINDS, Recording, steps_of
from terra.runtime.interpreter.spans import Event

_WIDTH = 2000  # units of a strip
_HEIGHT = 24
_STEPS = 8  # that are drawn one by one
_ONE_BY_ONE = 600  # spans that are told apart; more are drawn as what they cover
_WHOLE = ("python", "skipped", "graph")  # kinds of which one may follow on another without a gap
_INSET = {"wait": 8, "feed": 2, "fallback": 0}  # how far from the upper edge a kind begins, so that what lies under it is seen


def to_html(recording: Recording) -> str:
    """The whole recording, its last steps one by one, and a table of what took how long."""
    if not recording.events:
        return "<p>No step has run while it was recorded.</p>"
    end = max(event.end for event in recording.events)
    first = min(event.start for event in recording.events)
    parts = [_panel("All of it", recording, first, end)]
    steps = list(steps_of(recording.events))
    if len(steps) > 2 * _STEPS:
        last = sorted(steps, key=lambda event: event.start)[-_STEPS:]
        parts.append(_panel(f"The last {_STEPS} steps", recording, last[0].start, max(event.end for event in last)))
    parts.append(_table(recording, end - first))
    if recording.lost:
        parts.append(f"<p>{recording.lost} more spans were too many to be kept.</p>")
    return "".join(parts)


def _panel(name: str, recording: Recording, start: float, end: float) -> str:
    length = max(end - start, 1e-9)
    strips = []
    for track, events in recording.tracks().items():
        events = [event for event in events if event.end >= start and event.start <= end]
        if events:
            strips.append(f'<div class="track"><span>{html.escape(track)}</span><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
                          f'aria-label="{html.escape(track)}">{_strip(recording, events, start, length)}</svg></div>')
    return f'<figure><figcaption>{name}: {_duration(length)}</figcaption>{"".join(strips)}{_axis(length)}</figure>'


def _strip(recording: Recording, events: list[Event], start: float, length: float) -> str:
    found, apart = [], len(events) <= _ONE_BY_ONE
    by_kind: dict[str, list[Event]] = {kind: [] for kind in KINDS}
    for event in events:
        by_kind[event.kind].append(event)
    for kind, own in by_kind.items():  # in the order of `KINDS`: those that lie within others come later
        least, boxes = 3 if kind in INSTANTS else 1, []
        for event in own:
            x = max(int((event.start - start) / length * _WIDTH), 0)
            right = min(max(math.ceil((event.end - start) / length * _WIDTH), x + least), _WIDTH)
            if not apart and boxes and x <= boxes[-1][1]:
                boxes[-1][1] = max(boxes[-1][1], right)
            else:
                boxes.append([x, right, event])
        top = _INSET.get(kind, 0)
        edge = " apart" if apart and kind in _WHOLE else ""
        for x, right, event in boxes:
            text = f"<title>{html.escape(_told(recording, event))}</title>" if apart else ""
            found.append(f'<rect class="k-{kind}{edge}" x="{x}" y="{top}" width="{max(right - x, 1)}" height="{_HEIGHT - top}">{text}</rect>')
    return "".join(found)


def _told(recording: Recording, event: Event) -> str:
    more = ", ".join(f"{name}: {value}" for name, value in recording.arguments(event).items())
    took = "" if event.kind in INSTANTS else f", {_duration(event.end - event.start)}"
    return f"{recording.title(event)}{took}" + (f" ({more})" if more else "")


def _axis(length: float) -> str:
    """Round times below the strips."""
    step = 10 ** math.floor(math.log10(length))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if length / s <= 5.5)
    ticks = [f'<i style="left:{k * step / length * 100:.2f}%">{_duration(k * step) if k else "0"}</i>' for k in range(int(length / step) + 1) if k * step / length < 0.94]
    return f'<div class="axis">{"".join(ticks)}</div>'


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{amount(seconds)} s"
    return f"{amount(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{amount(seconds * 1e6)} µs"


def _table(recording: Recording, length: float) -> str:
    rows = []
    for kind, text in KINDS.items():
        own = [event for event in recording.events if event.kind == kind]
        if own:
            total = sum(event.end - event.start for event in own)
            times = ("", "") if kind in INSTANTS else (_duration(total), f"{total / max(length, 1e-9) * 100:.0f} %")
            rows.append(f'<tr><td><i class="swatch k-{kind}"></i>{text}</td><td>{len(own)}</td><td>{times[0]}</td><td>{times[1]}</td></tr>')
    return f'<div class="wide"><table><tr><th>What</th><th>How often</th><th>In all</th><th>Of the time</th></tr>{"".join(rows)}</table></div>'
