"""`terra.report`: one page on what Terra did with the steps of a program, as a file that works by itself."""

import dataclasses
import html
import os
import platform
import sys
import time
from typing import Any

from terra.graph import listing
from terra.options import Stats
from terra.reporting import doctor
from terra.reporting.causes import Cause
from terra.reporting.diagnosis import Diagnosis
from terra.reporting.explanation import Explanation, explain
from terra.reporting.page import drawing, source, style
from terra.reporting.timeline import Recording
from terra.runtime.interpreter import spans
from terra.version import __version__

_MOST_STEPS = 20
_MOST_FILES = 12
_PACKAGES = {"tensorflow": "TensorFlow", "keras": "Keras", "tf_keras": "tf_keras", "numpy": "NumPy"}
_LEGEND = (("ops", "3 ops", "co-executed operations"), ("below", "40 within", "those of what is called here"), ("read", "reads", "Python waits for a value"), (
    "feed", "feeds", "Python gives a value"), ("skip", "skipped 9×", "calls whose outcome was known"), ("fall", "falls back 2×", "steps that left their graph"), (
    "cause", "T02", "a cause of slowness"))


def report(step: Any, path: "str | os.PathLike[str]") -> None:
    """Write a page on a step: one HTML file that needs no network.

    It has the verdict and the causes of `terra.explain`, the program's source with marks in the margin, the graph's listing, the statistics and the versions. Within a
    `terra.profile` it also has the timeline so far. step: what `terra.explain` takes; None for all steps of this process.

    Raises: TypeError for a step that is none; OSError if the file cannot be written.
    """
    said = explain(step, full=True) if step is not None else explain(full=True)
    recorder = spans.recorder
    recording = None
    if recorder is not None and recorder.users:
        recording = Recording(since=0)
        recording.end()
    save(path, said, recording)


def save(path: "str | os.PathLike[str]", said: Explanation, recording: "Recording | None") -> None:
    """Writes the page on what `terra.explain` said, with the timeline of a recording. Raises: OSError."""
    text = page(said, recording)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def page(said: Explanation, recording: "Recording | None") -> str:
    """The page on what `terra.explain` said, as HTML."""
    diagnoses = sorted((d for d in said.diagnoses if d.facts.stats.steps or len(said.diagnoses) == 1), key=lambda d: -d.facts.stats.steps)[:_MOST_STEPS]
    sections = {"Verdict": _verdicts(diagnoses) or f"<p>{html.escape(said)}</p>"}
    if recording is not None:
        sections["Timeline"] = drawing.to_html(recording)
    else:
        sections["Timeline"] = "<p>Nothing was recorded. <code>with terra.profile(report=\"r.html\"):</code> around the steps, or <code>python -m terra run --report</code>, draws it here.</p>"
    sections["Source"] = _sources(diagnoses)
    sections["Graph"] = "".join(_graph(diagnosis, len(diagnoses) < 4) for diagnosis in diagnoses)
    sections["Statistics"] = _statistics(diagnoses)
    sections["All that is known"] = f"<details><summary>terra.explain(full=True)</summary><pre>{html.escape(said)}</pre></details>"
    versions = _versions()
    sections["Versions"] = _table(versions)
    sections = {name: text for name, text in sections.items() if text}
    made = "".join(f'<section id="{_id(name)}"><h2>{name}</h2>{text}</section>' for name, text in sections.items())
    links = "".join(f'<a href="#{_id(name)}">{name}</a>' for name in sections)
    program = os.path.basename(sys.argv[0] or "")
    if not program or program.startswith("__main__"):  # a package, a notebook, or a test
        program = next((diagnosis.facts.line.rpartition(":")[0] for diagnosis in diagnoses if diagnosis.facts.line), program) or "a program"
    head = " · ".join([" ".join([program, *sys.argv[1:]]), *(f"{name} {versions[name]}" for name in ("Terra", "TensorFlow", "Python") if name in versions), time.strftime("%Y-%m-%d %H:%M")])
    return style.PAGE.format(title=html.escape(f"Terra: {program}"), css=style.CSS, head=html.escape(head), links=links, sections=made)


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _verdicts(diagnoses: "list[Diagnosis]") -> str:
    found = []
    for diagnosis in diagnoses:
        since = diagnosis.since()
        found.append(f'<div class="verdict"><strong>{html.escape(diagnosis.verdict())}</strong>' + (f"<span>{html.escape(since)}</span>" if since else "") + "</div>")
        causes = diagnosis.causes
        found.append(f'<ol class="causes">{"".join(map(_cause, causes))}</ol>' if causes else "<p>Nothing was seen that should be changed.</p>")
    return "".join(found)


def _cause(cause: Cause) -> str:
    cost = cause.cost and f" · {cause.cost}"
    where, number = source.places.file_of(cause.line)
    line = html.escape(cause.line or "in the step")
    if where is not None:
        line = f'<a href="#{html.escape(source.anchor(where, number))}">{line}</a>'
    statement = f"<code>{html.escape(cause.statement)}</code>" if cause.statement else ""
    return (f'<li><b class="m cause">{cause.code}</b> <strong>{html.escape(cause.title)}</strong> · {line}{cost}{statement}<div>Seen: {html.escape(cause.seen)}.</div>'
            f"<div>Do: {html.escape(cause.remedy)}.</div></li>")


def _sources(diagnoses: "list[Diagnosis]") -> str:
    found = source.look(diagnoses)
    if not found:
        return ""
    legend = "".join(f'<span><b class="m {kind}">{text}</b> {meaning}</span>' for kind, text, meaning in _LEGEND)
    return f'<div class="legend">{legend}</div>' + "".join(
        f"<h3>{html.escape(os.path.basename(path))}</h3>{source.to_html(path, marked)}" for path, marked in list(found.items())[:_MOST_FILES] if os.path.exists(path))


def _graph(diagnosis: Diagnosis, is_open: bool) -> str:
    head, *rest = listing.listing(diagnosis.facts.function.trace_graph).split("\n")
    name = html.escape(diagnosis.facts.name)
    return f"<details{' open' * is_open}><summary><strong>{name}</strong>: {html.escape(head)}</summary><pre>{html.escape(chr(10).join(rest))}</pre></details>" if rest else ""


def _statistics(diagnoses: "list[Diagnosis]") -> str:
    if not diagnoses:
        return ""
    names = [field.name for field in dataclasses.fields(Stats)]
    head = "".join(f"<th>{html.escape(diagnosis.facts.name)}</th>" for diagnosis in diagnoses)
    rows = "".join(f"<tr><td>{name}</td>{''.join(_figure(getattr(diagnosis.facts.stats, name)) for diagnosis in diagnoses)}</tr>" for name in names
                   if any(getattr(diagnosis.facts.stats, name) for diagnosis in diagnoses))
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>'


def _figure(value: "int | float") -> str:
    return f"<td>{value:.3f}</td>" if isinstance(value, float) else f"<td>{value}</td>"


def _versions() -> "dict[str, str]":
    """Returns the versions of all that the program ran on, by name."""
    found = {"Terra": __version__, "Python": platform.python_version()}
    found |= {_PACKAGES[package]: version for package, version in doctor.installed(*_PACKAGES).items()}
    return found | {"processors": str(os.cpu_count()), "system": platform.platform()}


def _table(rows: "dict[str, str]") -> str:
    return '<div class="wide"><table>' + "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows.items()) + "</table></div>"
