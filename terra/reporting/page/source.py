"""The program's source, with what happened on each line of it in the margin."""

import html
import linecache
from collections import Counter
from typing import Iterable

from terra.graph import lines
from terra.reporting import places
from terra.reporting.causes import LITTLE, Cause, plural
from terra.reporting.diagnosis import Diagnosis
from terra.transform import policy

_AROUND = 4  # lines that are shown before and behind one with a mark
_SHORT = 60  # lines of a file that is shown as a whole
_FEWEST = 4  # lines that are worth folding
_MOST = 4000  # lines of one file


class Line:
    """Counts what happened on one line of the program."""

    __slots__ = ("kinds", "below", "reads", "fed", "skipped", "fallbacks", "raised", "step", "causes")

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()  # operations that it issues itself
        self.below = 0  # operations that are issued in what it calls
        self.reads = self.fed = self.skipped = self.fallbacks = self.raised = 0
        self.step: str | None = None  # what is said of the step that is defined here
        self.causes: list[Cause] = []

    def marks(self) -> list[tuple[str, str, str]]:
        """(its class, its text, the text behind it) of each mark in the margin."""
        found = [("cause", cause.code, cause.title) for cause in self.causes]
        if self.step:
            found.append(("step", "step", self.step))
        if self.kinds:
            count = sum(self.kinds.values())
            found.append(("ops", plural(count, "op"), "co-executed: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common(6))))
        elif self.below:
            found.append(("below", f"{self.below} within", f"co-executed: {plural(self.below, 'operation')} in what is called here"))
        named = ("read", "reads", self.reads, "Python reads a value of the graph here"), ("feed", "feeds", self.fed, "Python gives the graph a value here"), (
            "skip", "skipped", self.skipped, "calls that were skipped, as their outcome was known"), ("fall", "falls back", self.fallbacks, "steps that left their graph here"), (
            "fall", "raised", self.raised, "steps that raised here")
        found += [(kind, f"{word} {count}×" if count > 1 else word, text) for kind, word, count, text in named if count]
        return found


def look(diagnoses: Iterable[Diagnosis]) -> dict[str, dict[int, Line]]:
    """{path: {number: what happened on this line}} of the program's files, those with steps first."""
    found: dict[str, dict[int, Line]] = {}

    def line(path: str, number: int) -> Line:
        return found.setdefault(path, {}).setdefault(number, Line())

    def named(text: str | None) -> Line | None:
        path, number = places.file_of(text)
        return line(path, number) if path and policy.is_user_module("", path) else None

    diagnoses = list(diagnoses)
    for diagnosis in diagnoses:
        here = named(diagnosis.facts.line)
        if here is not None and diagnosis.facts.stats.steps:
            here.step = diagnosis.since()
    for diagnosis in diagnoses:
        _add_nodes(diagnosis.facts.nodes, line)
        _add_skipped(diagnosis.facts.programs, line)
        for name, reasons in (("fallbacks", diagnosis.facts.function.fallback_reasons), ("raised", diagnosis.facts.function.raised)):
            for reason, count in reasons.items():
                here = named(places.split(reason)[1])
                if here is not None:
                    setattr(here, name, getattr(here, name) + count)
        for cause in diagnosis.causes:
            here = named(cause.line)
            if here is not None:
                here.causes.append(cause)
    return found


def _add_nodes(nodes, line) -> None:
    """Adds what the nodes of a graph are, at their lines and at those that call these."""
    for node in nodes:
        way = [place for place, _ in lines.way_to(node)]
        if not way:
            continue
        here = line(*way[-1][:2])
        here.fed += lines.fed(node)
        if lines.is_read(node):
            here.reads += 1
            continue
        here.kinds[lines.operation_of(node)] += 1
        for place in {outer[:2] for outer in way[:-1]} - {way[-1][:2]}:
            line(*place).below += 1


def _add_skipped(programs, line) -> None:
    """Adds how often calls were skipped, the framework's and those of the program's own functions."""
    for program in programs:
        counted = [(place[-1], cache.all_jumps()) for place, cache in list(program.call_sites.items()) if cache]
        counted += [(place[2], trial.jumps) for place, trial in list(program.trials.items()) if trial is not program.whole]
        for location, count in counted:
            origin = location.origin()
            if count and origin is not None and policy.is_user_module("", origin[0]):
                line(*origin).skipped += count


def anchor(path: str, number: int) -> str:
    """The name of a line in the page."""
    return f"{path}-{number}".replace(" ", "_")


def to_html(path: str, marked: dict[int, Line]) -> str:
    """One file with its marks. Lines far from any mark are folded."""
    text = linecache.getlines(path)[:_MOST]
    near = {k for number in marked for k in range(number - _AROUND, number + _AROUND + 1)}
    rows, folded = [], []
    for number, source in enumerate(text, 1):
        row = _row(path, number, source.rstrip("\n"), marked.get(number))
        if number in near or len(text) <= _SHORT:
            rows += _fold(folded)
            folded = []
            rows.append(row)
        else:
            folded.append(row)
    rows += _fold(folded)
    return f'<div class="source"><div class="rows">{"".join(rows)}</div></div>'


def _fold(rows: list[str]) -> list[str]:
    return rows if len(rows) < _FEWEST else [f"<details class=\"fold\"><summary>{len(rows)} more lines</summary>{''.join(rows)}</details>"]


def _row(path: str, number: int, source: str, line: Line | None) -> str:
    marks = line.marks() if line is not None else []
    badges = "".join(f'<b class="m {kind}" title="{html.escape(title)}">{html.escape(text)}</b>' for kind, text, title in marks)
    kinds = " ".join(dict.fromkeys(kind for kind, _, _ in marks))
    row = (f'<div class="line {kinds}" id="{html.escape(anchor(path, number))}"><span class="n">{number}</span><span class="marks">{badges}</span>'
           f'<code>{html.escape(source) or " "}</code></div>')
    return row + "".join(_note(cause) for cause in (line.causes if line is not None else []))


def _note(cause: Cause) -> str:
    cost = f", {cause.cost}" if cause.cost not in ("", LITTLE) else ""
    return (f'<div class="note"><p><b class="m cause">{cause.code}</b> <span><strong>{html.escape(cause.title)}</strong>{cost}: {html.escape(cause.seen)}. '
            f"<em>Do:</em> {html.escape(cause.remedy)}.</span></p></div>")
