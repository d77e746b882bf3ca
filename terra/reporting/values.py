"""Finders of values that go from Python to the graph and back: sizes, reads, numbers."""

from collections import Counter

from terra.graph.trace import is_value
from terra.reporting import places
from terra.reporting.causes import Cause, a_few, plural
from terra.reporting.facts import line_of

_FEW = 3  # sizes that need no remark
_SKIPPED = 0.9


def find(facts):
    """The causes among the values that the step is given, reads, or makes in Python."""
    sizes = _sizes(facts)
    return sizes + _reads(facts) + _numbers(facts, bool(sizes))


# -- sizes ---------------------------------------------------------------------------------------------------------------------

def _sizes(facts):
    if facts.leaves_sizes_unknown or facts.skipped > _SKIPPED:
        return []
    inputs = {key: shapes for key, shapes in facts.shapes_of_inputs().items() if len({len(shape) for shape in shapes}) == 1 and len(shapes) > _FEW}
    arguments = {key: shapes for key, shapes in inputs.items() if type(key) is int}
    inputs = arguments or {key: shapes for key, shapes in inputs.items() if any(shape for shape in shapes) and not _is_made_of_shapes(key)}
    if not inputs:
        return []
    count = max(map(len, inputs.values()))
    described = [f"{_name(facts, key)} {_range(list(shapes))}" for key, shapes in inputs.items()]
    line = facts.line or next(iter(next(iter(inputs.values())).values()))
    costs = [cost for cost in (facts.python_ms, facts.lost(facts.paused) if facts.paused else None) if cost is not None]
    if facts.in_block:
        remedy = "put the block into a function with @terra.coexecute(reduce_retracing=True), and the batch among its arguments"
    else:
        remedy = "terra.compile(..., reduce_retracing=True)" if facts.is_keras else "@terra.coexecute(reduce_retracing=True)"
    return [Cause("T01", line, f"{plural(count, 'size')}: {a_few(described)}", remedy, sum(costs) if costs else None, 17.5, places.statement(line))]


def _is_made_of_shapes(key):
    """Whether what is fed at (node, position) is itself a shape, or a number made of one."""
    node, k = key
    return all(type(shape) is tuple and (is_value(shape[k]) or shape[k] == ()) for shape in node.payload.shapes if type(shape) is tuple and k < len(shape))


def _name(facts, key):
    if type(key) is int:
        return facts.parameters[key] if key < len(facts.parameters) else f"tensor {key + 1} of the batch" if facts.is_keras else f"argument {key + 1}"
    return f"the tensor at {line_of(key[0])}"


def _range(shapes):
    """`(8..127, 20)`: what the sizes of these shapes have been."""
    sizes = [f"{min(found)}..{max(found)}" if min(found) != max(found) else str(found[0]) for found in zip(*shapes)]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


# -- reads ---------------------------------------------------------------------------------------------------------------------

def _reads(facts):
    if not facts.waits:
        return []
    lines = Counter(line_of(node) or facts.line for node in facts.reads)
    line = lines.most_common(1)[0][0]
    statement = places.statement(line) or ""
    others = len(lines) - 1
    also = f", and so do {plural(others, 'other line')}" if others else ""
    if statement.startswith("while "):
        seen, remedy = "Python decides by the value of a tensor how often it goes on, and waits for it each time", "write the loop as tf.while_loop, or with a fixed number of rounds"
    elif statement.startswith(("if ", "elif ")):
        seen, remedy = "Python decides by the value of a tensor, and waits for it in each step", "let the graph decide: tf.where or tf.cond"
    else:
        seen, remedy = "Python reads the value of a tensor, and waits for it in each step", "give the tensor back, and read it behind the step, every so many steps"
    return [Cause("T02", line, seen + also, remedy, facts.stall_ms, 5.0, places.statement(line))]


# -- numbers -------------------------------------------------------------------------------------------------------------------

def _numbers(facts, sizes_vary):
    """Python numbers that are others in each step, by the lines where they become tensors."""
    lines = Counter()
    for node, k in facts.fed:
        shapes = [key[k] for key in node.payload.shapes if type(key) is tuple and k < len(key)]
        line = line_of(node)
        if facts.waits and places.is_librarys(line):
            continue  # what the program has made of a value that it read, and has given the framework
        if shapes and all(shape == () for shape in shapes) and not (sizes_vary and len(shapes) > 1):
            lines[line or facts.line] += 1
    trial, names = facts.whole, []
    if trial is not None:
        names = sorted({place.label(trial.parameters) for place in [*trial.numbers.values(), *trial.integers.values()]})
        if trial.growing and not trial.variants or trial.growing > _FEW:
            names += [name for name in _growing(facts) if name not in names]
    if sizes_vary and not names or not lines and not (names and facts.skipped < _SKIPPED):
        return []
    line = lines.most_common(1)[0][0] if lines else facts.line
    called = a_few(names)
    ms = facts.python_ms if facts.skipped < _SKIPPED else None
    seen = "a Python number is another one in each step" + (f": {called}" if called else "")
    if len(lines) > 1:
        seen += f", and at {plural(len(lines) - 1, 'other line')}"
    arguments = [name for name in names if name in facts.parameters]
    if arguments:
        remedy = f"give {a_few(arguments)} as a tensor: tf.constant({arguments[0]}, tf.float32)"
    elif names:
        remedy = f"keep {a_few(names) if not names[0].startswith('what ') else 'it'} in a tf.Variable, and assign to that"
    elif facts.is_keras:
        remedy = "keep the number in a tf.Variable, and assign to that"
    else:
        remedy = "give the step the number as a tensor, in an argument"
    return [Cause("T03", line, seen, remedy, ms, 0.001, places.statement(line))]


def _growing(facts):
    """The names of parameters that were given integers, which grow."""
    trial = facts.whole
    return [trial.parameters[k] for k in trial.given if k < len(trial.parameters)]
