"""The TraceGraph as people read it: the listing by the user's lines, the picture, the names of nodes."""

import html.parser
import inspect
import re
import shutil
import subprocess
import time

import keras
import pytest
import tensorflow as tf

import terra
from terra.graph.nodes import TraceOp
from terra.graph.tracegraph import TraceGraph


def line_of(text):
    """`test_listing.py:N` of the first line of this file that contains `text`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return f"test_listing.py:{next(k for k, line in enumerate(lines, 1) if text in line)}"


def make_step(layers=3):
    model = [keras.layers.Dense(4, activation="relu", name=f"dense_{k}") for k in range(layers)]
    optimizer = keras.optimizers.SGD(0.125, name="sgd")
    seen = []

    def step(x, scale):
        with tf.GradientTape() as tape:
            for layer in model:
                x = layer(x)
            y = tf.reduce_sum(x * scale)  # scaled
            if y > 0:  # the branch
                y = y * 2.0  # doubled
            else:
                y = tf.square(y)  # squared
        variables = [v for layer in model for v in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(y, variables), variables))
        seen.append(float(y))  # read
        return y

    return step, model, seen


def run(step, n=24):
    return [step(tf.random.stateless_normal([2, 4], seed=[k, 3]), tf.constant(1.0 if k % 3 else -1.0)).numpy() for k in range(n)]


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(3)
    step, _, seen = make_step()
    expected = run(step)
    keras.utils.set_random_seed(3)
    step, _, own = make_step()
    step = terra.coexecute(step, wait_for_graph=True)
    assert run(step) == expected and own == seen
    assert step.stats().coexecuted_steps > 10 and step.stats().traces == 2
    return step


def test_lines_of_the_listing(trained):
    lines = str(trained.trace_graph).splitlines()
    assert lines[0].startswith(f"TraceGraph: {len(trained.trace_graph)} operations from ") and "2 paths, which part in" in lines[0]

    def at(text, least=0):
        """The number of the first line on the statement that contains `text`."""
        return next(k for k, line in enumerate(lines) if k >= least and line_of(text) + " " in line)

    loop, layer = at("for layer in model:\n".strip()), at("x = layer(x)")
    assert "3 times" in lines[loop] and layer == loop + 1 and lines[layer].startswith("  ") and not lines[loop].startswith(" ")
    assert "3 MatMul" in lines[layer] and "[dense_0 ... dense_2, 3 layers]" in lines[layer]
    scaled, doubled, squared, read = at("# scaled"), at("# doubled"), at("# squared"), at("# read")
    assert layer < scaled < doubled < squared < read and "Mul, Sum" in lines[scaled] and "Square" in lines[squared]
    assert re.fullmatch(r"either, on 1 of 2 paths:", lines[doubled - 1]) and lines[doubled].startswith("  test_listing")
    assert re.fullmatch(r"or, on 1 of 2 paths:", lines[squared - 1]) and "then:" in lines[squared:read]
    assert "-> Python reads 1 value" in lines[read] and "-> Python reads 1 value" in lines[at("# the branch")]
    assert any(line_of("optimizer.apply_gradients") in line and "[sgd]" in line for line in lines)


def test_values_that_python_gives():
    numbers = iter(range(100))

    @terra.coexecute(wait_for_graph=True, fast_forward=False)
    def step(x):
        return x + tf.constant(float(next(numbers)))  # given

    results = [step(tf.constant([1.0])).numpy()[0] for _ in range(12)]
    assert results == [1.0 + k for k in range(12)] and step.stats().coexecuted_steps > 5
    assert any(line_of("# given") in line and "<- 1 value from Python" in line for line in step.trace_graph.listing().splitlines())


def make_large(n):
    layers = [keras.layers.Dense(3, name=f"layer_{k}") for k in range(9)]

    def step(x):
        for _ in range(n):
            for layer in layers:
                x = tf.nn.relu(layer(x))
            if tf.reduce_sum(x) > 1e6:
                x = x * 0.5
        return x

    return step


def test_a_large_graph_is_short_and_drawn_soon():
    function, x = make_large(150), tf.ones([1, 3])
    step = terra.coexecute(function, wait_for_graph=True, loops="unroll")
    for _ in range(5):
        result = step(x)
    assert step.stats().coexecuted_steps >= 1 and (result.numpy() == function(x).numpy()).all()
    graph = step.trace_graph
    assert len(graph) > 7000
    start = time.perf_counter()
    text = str(graph)
    assert len(text.splitlines()) < 200 and "150 times" in text and time.perf_counter() - start < 3
    for by in "line", "layer":
        drawn(graph, by)


def drawn(graph, by):
    """Draws a graph; returns the picture as SVG, or None where Graphviz is not installed."""
    text = graph.to_dot(by=by)
    if shutil.which("dot") is None:
        return None
    start = time.perf_counter()
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 5, by
    return done.stdout


def test_what_is_too_long_is_cut():
    graph = TraceGraph()
    for k in range(40):
        graph.merge([TraceOp("a"), TraceOp(f"b{k}"), *[TraceOp(f"c{k}{j}") for j in range(3)], TraceOp("d")])
    assert "or one of 33 more cases, with 132 operations in all" in str(graph)
    for most in 5, 10, 200:
        assert len(graph.listing(most=most).splitlines()) <= most
    assert "more lines: listing(most=None)" in graph.listing(most=5) and "more lines" not in graph.listing(most=None)
    assert repr(graph).startswith("<TraceGraph: ") and str(TraceGraph()) == "TraceGraph: 0 operations, no path"


def test_pictures_by_line_and_layer(trained):
    graph = trained.trace_graph
    by_op, by_line, by_layer = (graph.to_dot(by=by) for by in ("op", "line", "layer"))
    assert by_op.count(" [label=") > by_layer.count(" [label=") > 5 and by_op.count("MatMul") > by_line.count("MatMul")
    assert line_of("# doubled") in by_line and '"dense_1\\n' in by_layer and '"sgd\\n' in by_layer
    assert "style=dashed" in by_line and "start -> " in by_line and "-> end" in by_line
    for by in "op", "line", "layer":
        svg = drawn(graph, by)
        assert svg is None or "test_listing.py" in svg
    with pytest.raises(ValueError, match="'op', 'line', 'layer', not 'module'"):
        graph.to_dot(by="module")


def test_a_notebook_shows_the_listing(trained):
    text = trained.trace_graph._repr_html_()
    shown = []
    parser = html.parser.HTMLParser()
    parser.handle_data = shown.append
    parser.feed(text)
    assert "\n".join(shown).split() == str(trained.trace_graph).split() and "if y &gt; 0" in text


def test_names_of_nodes_have_line_and_layer(trained):
    names = [node.name for node in trained.graph.as_graph_def().node]
    line = line_of("x = layer(x)").rpartition(":")[2]
    for k in range(3):
        assert any(re.fullmatch(rf"test_listing\.py_L{line}/dense_{k}/MatMul_\d+", name) for name in names), names
    assert any("/sgd/" in name for name in names)
