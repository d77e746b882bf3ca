"""Tells what `terra.explain(..., full=True)` says besides the causes: what was recorded, assumed, read and handed over, and how the graph is run."""

from collections import Counter

from terra.graph.trace import CONST
from terra.reporting.skipping import in_plain_words
from terra.runtime.fallback import account
from terra.runtime.fast_forward.sources.effects import Append
from terra.runtime.interpreter.profilers import in_the_way

_MOST_LINES = 12  # of one list

_ADVICE = (
    ("was a constant so far", "The value is handed over from now on; nothing to change."),
    ("Python reads the value", "From now on the graph gives the value; if it is read rarely, read it after the step instead."),
    ("never seen there", "Tensors come from another place, or have other shapes; that is known from now on."),
    ("never followed", "A new path; it is known from now on. If new paths keep coming, lift what differs each time out of the step."),
    ("beyond the step", "The tensor is an output of the graph from now on."),
    ("raised", "A step that raises is always finished eagerly."),
    ("uses variables", "An operation that no graph has sees variables that the step has updated: move it to the beginning of the step, or out of it."),
)


def steps(stats):
    """One sentence on how many steps there were of each kind."""
    return f"{stats.steps} steps, of them {stats.coexecuted_steps} co-executed, {stats.tracing_steps} traced, {stats.imperative_steps} imperative."


def whole(diagnosis, lines):
    """All that is known of a step function, below the lines on its causes."""
    facts = diagnosis.facts
    if not facts.stats.steps:
        return "\n".join(lines)
    more = [f"{facts.policy.name}: {steps(facts.stats)}", *_graph(facts), *_of_shapes(facts), *_own_code(facts), *_assumptions(facts.stores, facts.programs), *_handed_over(facts), *_fallbacks(facts), *facts.policy.account.describe(), *_left_alone(facts)]
    return "\n".join([*lines, "", *more])


def _graph(facts):
    """How large the graph is, and how it is run."""
    function, stats = facts.function, facts.stats
    graph = function.trace_graph
    lines = [f"{stats.traces} paths with {len(graph)} operations, which part in {sum(c.n_choices > 1 for c in graph.switch_cases())} places; "
             f"{stats.graphs} graphs were made in {stats.generation_s * 1e3:.0f} ms."]
    if stats.traces >= facts.options.max_traces:
        lines.append(f"max_traces ({facts.options.max_traces}) is reached: no path is added any more, unless the step uses other variables.")
    if function.segments is not None:
        table = function.segments.table.values()
        nodes = sum(len(segment.store.graph) for segment in table)
        why = f"{stats.rolled_loops} loops run another number of times each time or branch anew in each iteration" if stats.rolled_loops else "functions are recursive"
        lines.append(f"Steps are cut into pieces, because {why}: {len(table)} pieces with {nodes} operations in all, {len(function.segments.programs)} of them with a graph.")
    elif function.program is not None:
        if function.program.early:
            skipped = " Steps that are skipped, and only give back what they read, run it at once and read in the end." if function.program.deferred else ""
            lines.append("The graph starts with the step, because Python reads values in the middle." + skipped)
        else:
            lines.append(function.early_start.describe() or "The graph starts when Python is through with the step, because Python reads no value in the middle.")
        lines += filter(None, [function.program.step_cache and function.program.step_cache.describe(), function.single_threaded.describe()])
    return lines


def _of_shapes(facts):
    """Says what was made for steps of several kinds."""
    function, stats, lines = facts.function, facts.stats, []
    if function.eviction.narrowed:
        lines.append("Paths that had not been taken for long were forgotten.")
    if stats.recurrent_layers:
        why = "XLA may compile them so" if function.recurrences.for_xla else "the lengths of sequences vary"
        lines.append(f"The loops over time of {stats.recurrent_layers} RNN layers are one operation each, because {why}.")
    lines += function.dynamic_arguments.describe()
    own = [] if function.specialisation is None else [made for made in function.specialisation.functions.values() if made is not None and made.program is not None]
    if own:
        lines.append(f"{len(own)} structures of arguments came again and again, and have a graph of their own: it ran {stats.recurring_steps} steps.")
    if function.compiled is not None:
        lines.append(function.compiled.describe())
    if in_the_way():
        lines.append(f"Calls were not recorded, so that they are not skipped, while the profiler {' or '.join(in_the_way())} looked on: start it when the steps have run some 20 times.")
    return lines


def _handed_over(facts):
    """The lines where values go from the graph to Python, and the other way."""
    return [*_places("Values that Python reads in the middle of the step", facts.reads), *_places("Operations that Python waits for, because the program would catch their failure", facts.checks),
            *_places("Values that Python gives to the step", dict.fromkeys(node for node, _ in facts.fed))]


def _fallbacks(facts):
    """Steps that left the graph, with the reasons."""
    function, lines = facts.function, []
    full = facts.stats.traces >= facts.options.max_traces
    if function.fallback_reasons:
        lines.append(f"Fallbacks ({facts.stats.fallbacks}):")
    for reason, count in function.fallback_reasons.items():
        advice = next((text for key, text in _ADVICE if key in reason), "")
        if full and "known from now on" in advice:
            advice = "A new path, which is not added, because max_traces is reached: raise it, or lift what differs each time out of the step."
        lines.append(f"  {count} x {reason}")
        if advice:
            lines.append(f"      {advice}")
    if function.raised:
        lines.append("Steps that taught nothing while they were traced: " + ", ".join(f"{count} x {why}" for why, count in function.raised.items()) + ".")
    return lines


def _left_alone(facts):
    """Why steps ran imperatively."""
    policy, lines = facts.policy, []
    if facts.function.generation.is_due:
        lines.append("Its graph is built as soon as the run has taken as long as that will take." if facts.function.program is None else
                     "A graph that knows its new paths is built as soon as fallbacks have taken as long as it takes to record anew what is skipped.")
    elif facts.function.program is None and facts.function.segments is None and not policy.account.may_trace():
        lines.append(f"It runs imperatively until tracing has taken no more than {account.SHARE:.0%} of eager execution, the time of {account.LEARNING} steps, and {account.GRACE:g} s.")
    if facts.function.generation.error is not None:
        lines.append(f"No graph could be generated: {facts.function.generation.error}")
    if policy.pause_left:
        until = "from now on" if policy.for_good else f"for the next {policy.pause_left} steps"
        lines.append(f"It runs imperatively {until}: {policy.reason}.")
    elif policy.pauses:
        lines.append(f"It ran imperatively for a while {'once' if policy.pauses == 1 else f'{policy.pauses} times'}, most recently because {policy.reason}.")
    return lines


def _effects(whole):
    """Says what the step's own code does besides computing, which is done when it is skipped, too."""
    effects = [effect for records in whole.all_variants() for record in records for effect in record.effects] if whole is not None else []
    names = {"set": [], "count": [], "append to": []}
    for effect in effects:
        how = "append to" if isinstance(effect, Append) else "set" if effect.added is None else "count"
        names[how].append(effect.label)
    return [f"{how} {', '.join(dict.fromkeys(found))}" for how, found in names.items() if found]


def _own_code(facts):
    """Whether the step's own Python is skipped, and which calls are not; and why not."""
    stats, programs, whole, lines = facts.stats, facts.programs, facts.whole, []
    if stats.whole_steps:
        also = "".join(f", {text}" for text in _effects(whole))
        lines.append(f"The step's own code was skipped in {stats.whole_steps} steps: it does nothing but compute{also}, and nothing that it reads had changed.")
    if whole is not None and whole.variants:
        if whole.numbers:
            lines.append(f"Numbers that vary, and count as arguments: {', '.join(sorted(place.label(whole.parameters) for place in whole.numbers.values()))}.")
        return lines
    if whole is not None and whole.reason is not None:
        lines.append(f"The step's own code runs at each step, because it {in_plain_words(whole.reason)}.")
    theirs = [(f"{trial.name}{_at(place[2])}", trial.reason) for program in programs for place, trial in program.trials.items()
              if trial is not program.whole and trial.reason is not None and not trial.variants]
    frameworks = [(f"{place[1].__qualname__}{_at(place[-1])}", why) for program in programs for place, (_, why) in program.unskippable.items()
                  if why and not program.call_sites.get(place)]
    for title, found in (("Functions of the program's own that run at each step", theirs), ("Calls of the framework that run operation by operation", frameworks)):
        counts = Counter(f"{name}, because it {in_plain_words(why)}" for name, why in found)
        if counts:
            lines.append(title + ":")
            lines += [f"  {text}" for text in list(counts)[:_MOST_LINES]]
            if len(counts) > _MOST_LINES:
                lines.append(f"  ... and {len(counts) - _MOST_LINES} more")
    return lines


def _at(location):
    line = location.line()
    return f" ({line})" if line else ""


def _assumptions(stores, programs):
    """Says what is speculated of tensors, most special first: values from outside, shapes (which are only remembered, but for those of `Generated.fixed`), types."""
    constants = sum(kind[0] == CONST for store in stores for node in store.graph.nodes for kind in node.payload.kinds)
    relaxed = [location.line() for store in stores for (_, location), _, _ in store.relaxed]
    lines = [f"Assumed: {constants} inputs are small constants, whose values are part of the graph (compared at each step); the types of all others."]
    fixed = Counter(node.payload.event.info.op_type for program in programs for node in program.generated.fixed)
    if fixed:
        others = "has a general form of the graph" if any(program.general for program in programs) else "would run imperatively and make a general form of the graph"
        lines.append(f"Shapes are assumed of {fixed.total()} operations that are faster as others with the same result ({_lines_of(fixed.elements())}): a step with other ones {others}.")
    lines.append("Shapes of all other operations are not assumed: a new one is looked up." if fixed else "Shapes are not assumed: a new one is looked up.")
    if relaxed:
        lines.append(f"No longer assumed constant, because they changed: {_lines_of(relaxed)}.")
    return lines


def _places(title, nodes):
    if not nodes:
        return []
    return [f"{title}: {_lines_of(node.payload.event.line or node.payload.event.location.line() for node in nodes)}."]


def _lines_of(lines):
    """These lines, each with how many there are, if more than one."""
    counts = Counter(line or "the step's own function" for line in lines)
    return ", ".join(line if n == 1 else f"{line} ({n})" for line, n in counts.items())
