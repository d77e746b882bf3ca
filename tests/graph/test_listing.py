"""The TraceGraph as people read it: the listing by the user's lines, the picture, the names of nodes."""

import bisect
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
    for by in "op", "line", "layer":
        drawn(graph, by)


def branching(n_places, n_ways, length):
    """A graph of paths that part and meet again so often; on the first of them nothing happens in between, and the second one ends early."""
    graph = TraceGraph()
    for way in range(n_ways):
        names = [name for k in range(n_places) for name in (f"a{k}", f"b{k}", *[f"c{k}_{way}_{j}" for j in range(length * min(way, 1) + way % 7)])]
        graph.merge([TraceOp(name) for name in (names[:len(names) // 2] if way == 1 else names)])
    return graph


@pytest.mark.all_variants
@pytest.mark.parametrize("of", [(450, 3, 8), (50, 12, 8), (2, 300, 8), (1, 2, 14_000)], ids=lambda of: "{} places, {} ways, {} operations".format(*of))
def test_a_large_graph_that_branches_is_drawn_soon(of):
    graph = branching(*of)
    assert len(graph) > 5000
    svg = drawn(graph, "op")
    if svg is None:
        pytest.skip("Graphviz is not installed")
    assert svg.count('<g id="node') == len(graph) + 2 and svg.count('<g id="edge') == len(set(graph.edges()))
    width, height = map(float, re.search(r'<svg width="(\d+)pt" height="(\d+)pt"', svg).groups())
    assert max(width, height) < 60_000
    if of[1] < 100:
        assert 0.5 < width / height < 2
    assert_nothing_is_covered(svg)


def assert_nothing_is_covered(svg):
    """No box lies on another one, no edge runs through a box, and each edge ends at its boxes."""
    places, rows = {}, {}
    for name, corners in re.findall(r'class="node">\n<title>(\w+)</title>\n<polygon [^>]*points="([^"]*)"', svg):
        xs, ys = zip(*(map(float, point.split(",")) for point in corners.split()))
        places[name] = min(xs), max(xs), min(ys), max(ys)
        rows.setdefault(round(sum(places[name][2:]) / 2), []).append(places[name])
    for row in rows.values():
        row.sort()
        assert all(one[1] < other[0] for one, other in zip(row, row[1:]))
    tops = sorted(rows)
    for title, corners in re.findall(r'class="edge">\n<title>(\w+&#45;&gt;\w+)</title>\n<path [^>]*d="([^"]*)"', svg):
        points = [tuple(map(float, point.split(","))) for point in re.split("[MC ]", corners) if point]
        points = points[::3]
        for (x, y), (to_x, to_y) in zip(points, points[1:]):
            if y == to_y:  # between two rows
                assert all(abs(row - y) >= 18 for row in tops[max(0, bisect.bisect(tops, y) - 1):][:2]), title
            elif x == to_x and abs(to_y - y) > 100:  # in a lane
                assert not any(box[0] < x < box[1] for row in tops if min(y, to_y) < row < max(y, to_y) for box in rows[row]), title
        source, target = title.split("&#45;&gt;")
        if source in places:
            left, right, _, bottom = places[source]
            assert left < points[0][0] < right and abs(points[0][1] - bottom) < 1, title
        if target in places:
            left, right, top, _ = places[target]
            assert left < points[-1][0] < right and 0 < top - points[-1][1] < 10, title


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
