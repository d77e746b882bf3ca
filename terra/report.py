"""`terra.explain`: what Terra did with a step function, in words."""

from collections import Counter
from types import MethodType

from terra.frontends.gradient_tape import GradientTape
from terra.graph.trace import CHECK, CONST, FETCH
from terra.runtime.fast_forward.sources.effects import Append
from terra.runtime.interpreter.profilers import in_the_way
from terra.runtime.step_function.registry import departed, instances
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.methods import BoundStep

_MOST_LINES = 12  # of one list

_ADVICE = (
    ("was a constant so far", "The value is fed from now on; nothing to change."),
    ("Python reads the value", "From now on the value is an Output Fetching of the graph; if it is read rarely, read it after the step instead."),
    ("never seen there", "A new dataflow or a new input shape; it is known from now on."),
    ("never followed", "A new path; it is known from now on. If new paths keep coming, lift what differs each time out of the step."),
    ("beyond the step", "The tensor is an output of the graph from now on."),
    ("raised", "A step that raises is always finished imperatively."),
    ("uses variables", "An imperative-only operation sees variables that the step has updated: move it to the beginning of the step, or out of it."),
)


def explain(function=None):
    """A report on a function made by `terra.coexecute`, on the block of a `terra.GradientTape`, or, without an argument, on all steps of this process.

    It tells what was traced, how large the TraceGraph is, where the step reads values (fetch points) and takes values in (feed points), which calls are not
    skipped and why, why each fallback happened (file:line) with what to do about it, and why there is no graph if there is none. Of a method asked through
    its class, it reports on each instance that is still there.

    Returns: the text, as one string.
    Raises: TypeError if `function` is none of these, or a tape that was no step.
    """
    if function is None:
        gone = [f"{name}, {count} functions that are gone: {_steps(stats)}" for name, (count, stats) in departed.items()]
        return "\n\n".join([*map(explain, used()), *gone]) or "terra: no step was run, there is nothing to explain."
    if isinstance(function, GradientTape) and function.block is not None:
        return _explain(function.block)
    own = isinstance(function, BoundStep)
    function = function.__func__ if own else function
    if isinstance(function, MethodType) and isinstance(function.__func__, Coexecuted):  # a class method, from Python 3.13 on
        function = function.__func__.instances.for_arguments((function.__self__,))
    if not isinstance(function, Coexecuted):
        raise TypeError(f"terra.explain takes a function made by terra.coexecute, or the tape of a block that was a step, not {function!r}.")
    parts = [] if own else function.of_instances()
    if not parts:
        return _explain(function)
    return "\n\n".join([f"{function.policy.name}: {_steps(function.stats())} Each of its {len(parts)} instances has a graph of its own:",
                        *map(_explain, parts), *([_explain(function)] if function.store.n_traces else [])])


def used():
    """The co-executed functions and blocks that have run a step, those with the most steps first."""
    return sorted((f for f in instances if f.stats().steps), key=lambda f: (-f.stats().steps, f.policy.name))


def _steps(stats):
    return f"{stats.steps} steps, of them {stats.coexecuted_steps} co-executed, {stats.tracing_steps} traced, {stats.imperative_steps} imperative."


def _explain(function):
    stats = function.stats()
    if not stats.steps:
        return f"{function.policy.name}: not called yet."
    graph = function.trace_graph
    full = stats.traces >= function.options.max_traces
    lines = [
        f"{function.policy.name}: {_steps(stats)}",
        f"TraceGraph: {stats.traces} traces, {len(graph)} nodes, {sum(c.n_choices > 1 for c in graph.switch_cases())} switch-cases; "
        f"{stats.graphs} graphs generated in {stats.generation_s * 1e3:.0f} ms.",
    ]
    if full:
        lines.append(f"max_traces ({function.options.max_traces}) is reached: no path is added any more, unless the step uses other variables.")
    if function.segments is not None:
        table = function.segments.table.values()
        nodes = sum(len(segment.store.graph) for segment in table)
        why = f"{stats.rolled_loops} loops run another number of times each time or branch anew in each iteration" if stats.rolled_loops else "functions are recursive"
        lines.append(f"Steps are cut into pieces, because {why}: {len(table)} pieces with {nodes} nodes in all, {len(function.segments.programs)} of them with a graph.")
    elif function.program is not None:
        if function.program.early:
            skipped = " Steps that are skipped, and only give back what they read, run it at once and read in the end." if function.program.deferred else ""
            lines.append("The graph starts with the step, because Python reads values in the middle." + skipped)
        else:
            lines.append(function.early_start.describe() or "The graph is dispatched when the skeleton is done, because Python reads no value in the middle.")
        lines += filter(None, [function.program.step_cache and function.program.step_cache.describe(), function.single_threaded.describe()])
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
    programs = [p for p in ([function.program] if function.segments is None else function.segments.programs) if p is not None]
    if in_the_way():
        lines.append(f"Calls were not recorded, so that they are not skipped, while the profiler {' or '.join(in_the_way())} looked on: start it when the steps have run some 20 times.")
    lines += _own_code(function, stats, programs)
    lines += _assumptions([function.store] if function.segments is None else [segment.store for segment in function.segments.table.values()], programs)
    fetches, checks = ([n for n in graph.nodes if n.payload.event.info.op_type == kind] for kind in (FETCH, CHECK))
    feeds = [n for n in graph.nodes if any(k[0] == "f" for k in n.payload.kinds)]
    lines += _places("Values that Python reads in the middle of the step", fetches)
    lines += _places("Operations that Python waits for, because the program would catch their failure", checks)
    lines += _places("Values that Python feeds to the step", feeds)
    if function.fallback_reasons:
        lines.append(f"Fallbacks ({stats.fallbacks}):")
        for reason, count in function.fallback_reasons.items():
            advice = next((text for key, text in _ADVICE if key in reason), "")
            if full and "known from now on" in advice:
                advice = "A new path, which is not added, because max_traces is reached: raise it, or lift what differs each time out of the step."
            lines.append(f"  {count} x {reason}")
            if advice:
                lines.append(f"      {advice}")
    if function.raised:
        lines.append("Steps that taught nothing while they were traced: " + ", ".join(f"{count} x {why}" for why, count in function.raised.items()) + ".")
    if function.generation.error is not None:
        lines.append(f"No graph could be generated: {function.generation.error}")
    policy = function.policy
    if policy.pause_left:
        until = "from now on" if policy.for_good else f"for the next {policy.pause_left} steps"
        lines.append(f"It runs imperatively {until}: {policy.reason}.")
    elif policy.pauses:
        lines.append(f"It ran imperatively for a while {'once' if policy.pauses == 1 else f'{policy.pauses} times'}, most recently because {policy.reason}.")
    return "\n".join(lines)


def _effects(whole):
    """What the step's own code does besides computing, which is done when it is skipped, too."""
    effects = [effect for records in whole.all_variants() for record in records for effect in record.effects] if whole is not None else []
    names = {"set": [], "count": [], "append to": []}
    for effect in effects:
        how = "append to" if isinstance(effect, Append) else "set" if effect.added is None else "count"
        names[how].append(effect.label)
    return [f"{how} {', '.join(dict.fromkeys(found))}" for how, found in names.items() if found]


def _own_code(function, stats, programs):
    """Whether the step's own Python is skipped, and which calls are not; and why not."""
    whole = function.program.whole if function.program is not None and function.segments is None else None
    lines = []
    if stats.whole_steps:
        also = "".join(f", {text}" for text in _effects(whole))
        lines.append(f"The step's own code was skipped in {stats.whole_steps} steps: it does nothing but compute{also}, and nothing that it reads had changed.")
    if whole is not None and whole.variants:
        if whole.numbers:
            lines.append(f"Numbers that vary, and count as arguments: {', '.join(sorted(place.label(whole.parameters) for place in whole.numbers.values()))}.")
        return lines
    if whole is not None and whole.reason is not None:
        lines.append(f"The step's own code runs at each step, because it {whole.reason}.")
    theirs = [(f"{trial.name}{_at(place[2])}", trial.reason) for program in programs for place, trial in program.trials.items()
              if trial is not program.whole and trial.reason is not None and not trial.variants]
    frameworks = [(f"{place[1].__qualname__}{_at(place[-1])}", why) for program in programs for place, (_, why) in program.unskippable.items()
                  if why and not program.call_sites.get(place)]
    for title, found in (("Functions of the program's own that run at each step", theirs), ("Calls of the framework that run operation by operation", frameworks)):
        counts = Counter(f"{name}, because it {why}" for name, why in found)
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
    """What is speculated of tensors, most special first: values from outside, shapes (which are only remembered, but for those of `Generated.fixed`), types."""
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
