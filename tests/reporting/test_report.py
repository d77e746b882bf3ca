"""`terra.report`: one page with the verdict, the marked source, the timeline, the graph, and the statistics, which a browser shows without a network."""

import html
import html.parser
import json
import os
import random
import re
import shutil
import subprocess
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.graph import listing
from terra.reporting.page import source
from terra.reporting.explanation import explain

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "br", "hr", "img", "input", "link"}

PROGRAM = '''
import random

import numpy as np
import tensorflow as tf

x = tf.random.stateless_normal([4, 4], seed=[1, 2])
w = tf.Variable(tf.random.stateless_normal([4, 4], seed=[3, 4]) * 0.3)


def net(x):
    return tf.tanh(x @ w)


def step(k):
    y = net(x)
    y = y * np.float32(random.random())  # fed: "quoted" <b>bold</b> & more
    if k % 20 == 17:
        y = tf.sin(y)
    loss = tf.reduce_mean(y * y)
    if float(loss) > 1e6:
        loss = loss * 2.0
    w.assign_sub(0.01 * (y @ w))
    return loss
''' + "\n".join(f"unused_{k} = {k}" for k in range(80)) + "\n"


class Page(html.parser.HTMLParser):
    """Looks whether all elements are closed, and collects the texts of lines of source, ids, and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.targets, self.texts = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.targets += [attributes[name] for name in ("href", "src", "data", "action") if name in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.texts.append(data)


def program(path, wrap):
    """Runs the program from a file: its step, and the values that it gave."""
    path.write_text(PROGRAM)
    namespace = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(PROGRAM, str(path), "exec"), namespace)
    random.seed(3)
    step = wrap(namespace["step"])
    return step, [float(step(k)) for k in range(40)], namespace["w"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(the co-executed step, the path of its source, the page), after a run that was compared with eager execution."""
    directory = tmp_path_factory.mktemp("report")
    path = directory / "marked_program.py"
    _, expected, of_eager = program(path, lambda f: f)
    with terra.profile():
        step, seen, w = program(path, lambda f: terra.coexecute(f, wait_for_graph=True, fast_forward="framework"))
        terra.report(step, directory / "r.html")
    assert seen == expected and w.numpy().tolist() == of_eager.numpy().tolist() and step.stats().coexecuted_steps >= 30, step.stats()
    return step, path, (directory / "r.html").read_text()


def row(page, path, statement):
    """The row of a line of the source in the page, up to the next one."""
    number = next(k for k, line in enumerate(PROGRAM.splitlines(), 1) if line.strip().startswith(statement))
    start = page.index(f'id="{source.anchor(str(path), number)}"')
    return page[start:page.index('<div class="line', start)]


def test_the_page_says_what_explain_says(ran):
    step, _, page = ran
    (diagnosis,) = explain(step).diagnoses
    assert f"<strong>{html.escape(diagnosis.verdict())}</strong>" in page and html.escape(diagnosis.since()) in page
    assert diagnosis.causes
    for cause in diagnosis.causes:
        assert f"<strong>{cause.title}</strong>" in page and f"Seen: {html.escape(cause.seen)}." in page and f"Do: {html.escape(cause.remedy)}." in page


def test_lines_are_marked(ran):
    step, path, page = ran
    assert ">step</b>" in row(page, path, "def step(k)") and f"{step.stats().coexecuted_steps} of 40 steps" in row(page, path, "def step(k)")
    assert re.search(r'class="m ops" title="co-executed: [^"]*1 MatMul', row(page, path, "return tf.tanh(x @ w)"))
    assert re.search(r'class="m below"[^>]*>\d within</b>', row(page, path, "y = net(x)"))
    assert 'class="m feed"' in row(page, path, "y = y * np.float32")
    assert 'class="m read"' in row(page, path, "if float(loss)") and 'class="m cause"' in row(page, path, "if float(loss)") and '<div class="note">' in row(page, path, "if float(loss)")
    assert re.search(r'class="m fall"[^>]*>falls back', row(page, path, "y = tf.sin(y)"))
    for statement in ("import random", "return loss"):
        assert "<b " not in row(page, path, statement)


def test_marks_of_skipped_calls():
    dense = tf.keras.layers.Dense(3)
    seen = []

    def step(x):
        exec("seen.append(1)", {"seen": seen})
        return dense(x), len(seen) < 0 and print("never")

    made = terra.coexecute(step, wait_for_graph=True)
    x = tf.ones([2, 3])
    for _ in range(30):
        np.testing.assert_array_equal(made(x)[0], dense(x))
    assert made.stats().coexecuted_steps >= 20 and made.stats().fast_forwards >= 10
    lines = source.look(explain(made).diagnoses)[os.path.abspath(__file__)]
    (line,) = [line for line in lines.values() if line.skipped]
    assert line.skipped >= 10 and ("skip", f"skipped {line.skipped}×") in [mark[:2] for mark in line.marks()]


def test_source_is_escaped_and_far_lines_are_folded(ran):
    _, path, page = ran
    assert html.escape('# fed: "quoted" <b>bold</b> & more') in page and "<b>bold</b>" not in page
    assert re.search(r"<summary>\d\d more lines</summary>", page) and "unused_70 = 70" in page


def test_the_page_is_whole_and_needs_nothing_else(ran):
    step, path, page = ran
    parsed = Page(page)
    assert parsed.open == [] and len(set(parsed.ids)) == len(parsed.ids)
    assert parsed.targets and all(target.startswith("#") and target[1:] in parsed.ids for target in parsed.targets)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|<script|<link|<iframe", page)
    text = html.unescape(" ".join(parsed.texts))
    for line in listing.listing(step.trace_graph).splitlines():
        assert line in text
    for name in ("coexecuted_steps", "python_stall_s", "fallbacks"):
        assert f"<td>{name}</td>" in page
    assert f"<td>Terra</td><td>{terra.__version__}</td>" in page and f"<td>TensorFlow</td><td>{tf.__version__}</td>" in page


def test_the_timeline_is_drawn(ran):
    _, _, page = ran
    drawn = page[page.index('<section id="timeline">'):page.index('<section id="source">')]
    assert {"Python", "graph", "builder"} <= set(re.findall(r'aria-label="([^"]+)"', drawn)) and "The last 8 steps" in drawn
    for kind in ("python", "graph", "wait", "builder", "feed", "fallback"):
        assert re.search(f'<rect class="k-{kind}[" ]', drawn), kind
    for x, width in re.findall(r'<rect class="[^"]+" x="(\d+)" y="\d+" width="(\d+)"', drawn):
        assert 0 <= int(x) and int(x) + int(width) <= 2001
    assert re.search(r"<title>wait marked_program\.py:\d+, [\d.]+ (ms|µs) \(of: step, line: marked_program\.py:\d+", drawn)


def test_a_page_without_a_recording(ran, tmp_path):
    step, _, _ = ran
    terra.report(step, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Nothing was recorded." in page and explain(step).diagnoses[0].verdict() in html.unescape(page)
    terra.report(None, tmp_path / "all.html")
    assert explain(step).diagnoses[0].verdict() in html.unescape((tmp_path / "all.html").read_text())


def test_steps_that_have_yet_to_run(tmp_path):
    terra.report(terra.coexecute(lambda x: x), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "not called yet" in page and Page(page).open == []
    with pytest.raises(TypeError, match="terra.explain takes a function made by terra.coexecute"):
        terra.report(3, tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()
    with pytest.raises(FileNotFoundError):
        terra.report(terra.coexecute(lambda x: x), tmp_path / "nowhere" / "r.html")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.all_variants
@pytest.mark.parametrize("width", [1300, 480])
def test_chromium_shows_the_page(ran, width, tmp_path):
    """Nothing is wider than the window, marks and strips are seen, and nothing is asked of the network."""
    _, _, page = ran
    probe = textwrap.dedent("""
        <script>
        const seen = selector => [...document.querySelectorAll(selector)].filter(e => { const box = e.getBoundingClientRect(); return box.width > 0 && box.height > 0; }).length;
        document.title = JSON.stringify({
            wide: document.documentElement.scrollWidth, window: document.documentElement.clientWidth, marks: seen(".marks .m"), strips: seen(".track svg"), boxes: seen(".k-graph"),
            outside: performance.getEntriesByType("resource").length, small: Math.min(...[...document.querySelectorAll("p, li, td, code, .m, .axis i")].map(e => parseFloat(getComputedStyle(e).fontSize)))});
        </script>""")
    (tmp_path / "r.html").write_text(page.replace("</body>", probe + "</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000"]
    done = subprocess.run([*command, "--dump-dom", f"file://{tmp_path / 'r.html'}"], capture_output=True, text=True, timeout=90, check=True)
    found = json.loads(html.unescape(re.search(r"<title>(\{.*?\})</title>", done.stdout)[1]))
    assert found["wide"] <= found["window"] and found["window"] <= width + 30, found  # (its windows are not narrower than some 480)
    assert found["marks"] >= 8 and found["strips"] >= 5 and found["boxes"] > 10 and found["outside"] == 0 and found["small"] >= 11, found
    subprocess.run([*command, f"--screenshot={tmp_path / 'r.png'}", f"file://{tmp_path / 'r.html'}"], capture_output=True, timeout=90, check=True)
    assert (tmp_path / "r.png").stat().st_size > 40_000
    if os.environ.get("TERRA_SCREENSHOTS"):
        shutil.copy(tmp_path / "r.png", os.path.join(os.environ["TERRA_SCREENSHOTS"], f"report_{width}.png"))
