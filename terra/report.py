"""`terra.explain`: what Terra did with a step function, in words."""

from collections import Counter

from terra.graph.trace import CONST
from terra.runtime.coexecution import BoundStep, Coexecuted
from terra.runtime.tracer import CHECK, FETCH

_ADVICE = (
    ("was a constant so far", "The value is fed from now on; nothing to change."),
    ("Python reads the value", "From now on the value is an Output Fetching of the graph; if it is read rarely, read it after the step instead."),
    ("another value than before", "A condition that skipped code looks at has changed; that code runs, and is skipped again once the condition is steady."),
    ("never seen there", "A new dataflow or a new input shape; it is known from now on."),
    ("never followed", "A new path; it is known from now on. If new paths keep coming, lift what differs each time out of the step."),
    ("beyond the step", "The tensor is an output of the graph from now on."),
    ("raised", "A step that raises is always finished imperatively."),
    ("uses variables", "An imperative-only operation sees variables that the step has updated: move it to the beginning of the step, or out of it."),
)


def explain(function):
    """A report on a function made by `terra.coexecute`.

    It tells what was traced, how large the TraceGraph is, where the step reads values (fetch points) and takes values in (feed points), why each fallback
    happened (file:line) with what to do about it, and why there is no graph if there is none.

    Returns: the text, as one string.
    Raises: TypeError if `function` was not made by `terra.coexecute`.
    """
    function = function.__func__ if isinstance(function, BoundStep) else function
    if not isinstance(function, Coexecuted):
        raise TypeError(f"terra.explain takes a function made by terra.coexecute, not {function!r}.")
    stats = function.stats()
    graph = function.trace_graph
    lines = [
        f"{function.policy.name}: {stats.steps} steps, of them {stats.coexecuted_steps} co-executed, {stats.tracing_steps} traced, "
        f"{stats.imperative_steps} imperative.",
        f"TraceGraph: {stats.traces} traces, {len(graph)} nodes, {sum(c.n_choices > 1 for c in graph.switch_cases())} switch-cases; "
        f"{stats.graphs} graphs generated in {stats.generation_s * 1e3:.0f} ms.",
    ]
    if function.pieces is not None:
        table = function.pieces.table.values()
        nodes = sum(len(piece.store.graph) for piece in table)
        lines.append(
            f"Steps are cut into pieces, because {stats.rolled_loops} loops run another number of times each time or branch anew in each iteration, or functions "
            f"are recursive: {len(table)} pieces with {nodes} nodes in all, {len(function.pieces.programs)} of them with a graph.")
    elif function.program is not None:
        if function.program.early:
            lines.append("The graph starts with the step, because Python reads values in the middle.")
        else:
            lines.append(function.early_start.describe() or "The graph is dispatched when the skeleton is done, because Python reads no value in the middle.")
        lines += filter(None, [function.single_threaded.describe()])
    if function.turnover.narrowed:
        lines.append("Paths that had not been taken for long were forgotten.")
    if stats.recurrent_layers:
        lines.append(f"The loops over time of {stats.recurrent_layers} RNN layers are one operation each, because the lengths of sequences vary.")
    own = [] if function.recurring is None else [made for made in function.recurring.functions.values() if made is not None and made.program is not None]
    if own:
        lines.append(f"{len(own)} structures of arguments came again and again, and have a graph of their own: it ran {stats.recurring_steps} steps.")
    if function.compiled is not None:
        lines.append(function.compiled.describe())
    lines += _own_code(function, stats)
    lines += _assumptions([function.store] if function.pieces is None else [piece.store for piece in function.pieces.table.values()])
    fetches, checks = ([n for n in graph.nodes if n.payload.event.info.op_type == kind] for kind in (FETCH, CHECK))
    feeds = [n for n in graph.nodes if any(k[0] == "f" for k in n.payload.kinds)]
    lines += _places("Values that Python reads in the middle of the step", fetches)
    lines += _places("Operations that Python waits for, because the program would catch their failure", checks)
    lines += _places("Values that Python feeds to the step", feeds)
    if function.fallback_reasons:
        lines.append(f"Fallbacks ({stats.fallbacks}):")
        for reason, count in function.fallback_reasons.items():
            advice = next((text for key, text in _ADVICE if key in reason), "")
            lines.append(f"  {count} x {reason}")
            if advice:
                lines.append(f"      {advice}")
    if function.generation.error is not None:
        lines.append(f"No graph could be generated: {function.generation.error}")
    if function.policy.pause_left:
        until = "from now on" if function.policy.for_good else f"for the next {function.policy.pause_left} steps"
        lines.append(f"It runs imperatively {until}: {function.policy.reason}.")
    return "\n".join(lines)


def _own_code(function, stats):
    """Whether the step's own Python is skipped, and why not."""
    whole = function.program.whole if function.program is not None and function.pieces is None else None
    lines = []
    if stats.whole_steps:
        lines.append(f"The step's own code was skipped in {stats.whole_steps} steps: it does nothing but compute, and nothing that it reads had changed.")
    if whole is not None and whole.reason is not None and not whole.regions:
        lines.append(f"The step's own code runs at each step, because it {whole.reason}.")
    return lines


def _assumptions(stores):
    """What is speculated of tensors from outside, most special first: their values, their shapes (which are only remembered, never built in), their types."""
    constants = sum(kind[0] == CONST for store in stores for node in store.graph.nodes for kind in node.payload.kinds)
    relaxed = [location for store in stores for (_, location), _, _ in store.relaxed]
    lines = [f"Assumed: {constants} inputs are small constants, whose values are part of the graph (compared at each step); the types of all others. "
             "Shapes are not assumed: a new one is looked up."]
    if relaxed:
        lines.append(f"No longer assumed constant, because they changed: {_lines_of(relaxed)}.")
    return lines


def _places(title, nodes):
    if not nodes:
        return []
    return [f"{title}: {_lines_of(node.payload.event.location for node in nodes)}."]


def _lines_of(locations):
    """The lines of these locations, each with how many there are, if more than one."""
    counts = Counter(location.line() or "the step's own function" for location in locations)
    return ", ".join(line if n == 1 else f"{line} ({n})" for line, n in counts.items())
