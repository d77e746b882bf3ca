"""`terra.explain`: what Terra did with a step, and what would make it faster, in words."""

from types import MethodType

from terra.frontends import keras_support, script
from terra.frontends.gradient_tape import GradientTape
from terra.location import current_step
from terra.reporting import details
from terra.reporting.causes import plural
from terra.reporting.diagnosis import Diagnosis
from terra.runtime.fallback import policy
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.methods import BoundStep
from terra.runtime.step_function.registry import departed, instances

_MOST_LINES = 25
_MOST_CAUSES = 7  # of one step
_MOST_STEPS = 7  # where there are several
NOTHING = "terra: no step was run, there is nothing to explain."


class Explanation(str):
    """The text of `terra.explain`; `to_dict()` gives what it says as plain values.

    `diagnoses` has one entry for each step function, with its `causes` (see `terra.reporting.causes.Cause`).
    """

    def __new__(cls, text, diagnoses=()):
        made = super().__new__(cls, text)
        made.diagnoses = tuple(diagnoses)
        return made

    @property
    def causes(self):
        """The causes of all steps, in the order of the text."""
        return [cause for diagnosis in self.diagnoses for cause in diagnosis.causes]

    def to_dict(self):
        """{"steps": [one dict for each step: name, line, verdict, speedup, times, stats, causes]}."""
        return {"steps": [diagnosis.to_dict() for diagnosis in self.diagnoses]}

    def __repr__(self):
        return str(self)  # as a prompt, or a notebook's cell, shows it


def explain(function=None, *, full=False):
    """How fast a step is, since when it is co-executed, and what would make it faster: at most 25 lines.

    Takes a function made by `terra.coexecute` (or a method, through its instance or its class), a tape whose block was a step, what `terra.compile` has returned or the
    model that it was given, a function with a tape in a script under `python -m terra run`; without an argument, all steps of this process. The first line is the verdict,
    with the times of both ways to run as far as steps ran in both. Each cause has a code (docs/performance.md describes them), the line of the program, what it costs at
    most, what was seen there, and one remedy; the cause that costs most is the first one.

    full: say all that is known: each cause, and what was recorded, assumed, read and handed over, with all the lines.
    Returns: an `Explanation`, which is a string.
    Raises: TypeError if `function` is none of these, or a tape that was no step.
    """
    head, functions = _functions_of(function)
    diagnoses = [Diagnosis(f) for f in functions]
    gone = [f"{name.replace('<locals>.', '')}, {plural(count, 'function')} that {'is' if count == 1 else 'are'} gone: {details.steps(stats)}" for name, (count, stats) in departed.items()] if function is None else []
    if not diagnoses and not gone:
        return Explanation(NOTHING if not current_step.all_are_left_alone() else f"{NOTHING[:-1]}: TERRA_DISABLE or terra.set_stance('imperative') is set.")
    if full:
        blocks = [details.whole(diagnosis, _described(diagnosis, len(diagnosis.causes))) for diagnosis in diagnoses]
        return Explanation("\n\n".join([*head, *blocks, *gone]), diagnoses)
    if len(diagnoses) == 1 and not head:
        return Explanation("\n".join((_described(diagnoses[0], _MOST_CAUSES) + gone)[:_MOST_LINES]), diagnoses)
    shown = sorted(diagnoses, key=lambda diagnosis: -diagnosis.facts.stats.steps)[:_MOST_STEPS]
    lines = [*head, *[line for diagnosis in shown for line in _in_short(diagnosis)]]
    rest = len(diagnoses) - len(shown)
    lines += [f"... and {rest} more: terra.explain(full=True) has all of them"] if rest else []
    return Explanation("\n".join([*lines, *gone][:_MOST_LINES]), diagnoses)


def _advise(function):
    """The first remedy for a step function that is given up, as a sentence for the log."""
    causes = Diagnosis(function).causes
    return f"{causes[0].code} ({causes[0].line or 'in the step'}): {causes[0].remedy}." if causes else ""


policy.advise = _advise


def used():
    """The co-executed functions and blocks that have run a step, those with the most steps first."""
    return sorted((f for f in instances if f.stats().steps), key=lambda f: (-f.stats().steps, f.policy.name))


def _functions_of(given):
    """Returns what users may ask about as ([a line ahead of the rest], [the functions])."""
    if given is None:
        return [], [own for f in used() for own in (f.of_instances() or [f])]
    if isinstance(given, GradientTape) and given.block is not None:
        return [], [given.block]
    steps = keras_support.steps_of(given)
    if steps is not None:
        return [], [f for step in steps for f in _functions_of(step)[1] if f.stats().steps] or _functions_of(steps[0])[1]
    if script.steps_of(given) is not None:
        given = script.steps_of(given)
    own = isinstance(given, BoundStep)
    function = given.__func__ if own else given
    if isinstance(function, MethodType) and isinstance(function.__func__, Coexecuted):  # a class method, from Python 3.13 on
        function = function.__func__.instances.for_arguments((function.__self__,))
    if not isinstance(function, Coexecuted):
        raise TypeError("terra.explain takes a function made by terra.coexecute, the tape of a block that was a step, or a model that terra.compile was given, "
                        f"not {given!r}.")
    parts = [] if own else function.of_instances()
    if not parts:
        return [], [function]
    head = f"{function.policy.name.replace('<locals>.', '')}: {details.steps(function.stats())} Each of its {len(parts)} instances has a graph of its own:"
    return [head], parts + ([function] if function.store.n_traces else [])


def _described(diagnosis, most):
    """The lines on one step."""
    causes = diagnosis.causes
    lines = [diagnosis.verdict(), *filter(None, [diagnosis.since()])]
    for cause in causes[:most]:
        lines += _of_cause(cause)
    if len(causes) > most:
        lines.append(f"... and {len(causes) - most} more causes: terra.explain(step, full=True) has all of them")
    if not causes and diagnosis.facts.stats.coexecuted_steps:
        skipped = diagnosis.facts.skipped > 0.5 or not diagnosis.facts.stats.coexecuted_steps
        lines.append("Nothing was seen that should be changed." if skipped else "Nothing was seen that keeps its Python from being skipped; it may be learned yet.")
    return lines


def _in_short(diagnosis):
    """The lines on one of several steps."""
    lines = [diagnosis.verdict()]
    if diagnosis.causes:
        head, _, remedy = _of_cause(diagnosis.causes[0])
        lines += [head, remedy]
    return lines


def _of_cause(cause):
    cost = cause.cost and f"   {cause.cost}"
    code = f"{cause.code}  {cause.line or 'in the step'}" + (f"  {cause.statement}" if cause.statement else "")
    return [code + cost, f"     seen: {cause.seen}", f"     do:   {cause.remedy}"]
