"""Files that are edited while the program runs: what Python has read of them counts, not what they say now."""

import ast
import importlib.util
import os
import textwrap

import pytest
import tensorflow as tf

import terra
from terra.runtime.tracing import catching
from terra.transform import source
from tests import forks

TEXT = textwrap.dedent('''
    import tensorflow as tf

    def helper(x):
        return x * 2.0

    scale = lambda x: x * 3.0

    class Model:
        def __call__(self, x):
            def inner(y):
                return y - 1.0
            return inner(x) * 4.0

    model = Model()

    def step(x):
        y = helper(x)
        try:
            tf.gather(x, tf.cast(x[0], tf.int32) + 1)
        except tf.errors.InvalidArgumentError:
            y = y * 0.0
        return scale(y) + model(y) + 1.0
''')
EDITS = {
    "the step": ("+ 1.0\n", "+ 100.0\n"), "a function": ("x * 2.0", "x * 200.0"), "a lambda": ("x * 3.0", "x * 300.0"), "a method": ("inner(x) * 4.0", "inner(x) * 400.0"),
    "a function within": ("y - 1.0", "y - 100.0"), "a name": ("helper(x)\n", "scale(x)\n"), "what is caught": ("tf.errors.InvalidArgumentError", "ZeroDivisionError"),
    "what follows": ("        y = y * 0.0\n", "        y = y * 0.0\n        y = y + 50.0\n"), "no try": ("    except tf.errors.InvalidArgumentError:\n        y = y * 0.0", "    finally:\n        pass"),
    "what does not compile": ("    y = helper(x)\n", "    y = helper(x)\n    nonlocal y\n"),
}
GIVEN = [tf.constant([0.5, k + 1.0]) for k in range(3)] + [tf.constant([1.5, 2.0])]


def loaded(path):
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location(f"edited_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(step):
    return [step(GIVEN[k % 4]).numpy().tolist() for k in range(24)]


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_is_edited_before_its_first_step(edit, tmp_path):
    module = loaded(tmp_path / "module.py")
    expected = run(module.step)
    (tmp_path / "module.py").write_text(TEXT.replace(*EDITS[edit]))
    step = terra.coexecute(module.step, wait_for_graph=True)
    assert run(step) == expected and step.stats().coexecuted_steps >= 5, step.stats()
    assert source.has_changed(str(tmp_path / "module.py"))


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_is_edited_in_the_middle(edit, tmp_path):
    """Some of its functions are observed later than others."""
    module = loaded(tmp_path / "module.py")
    expected = run(module.step) * 2
    step = terra.coexecute(module.step, wait_for_graph=True)
    first = [step(GIVEN[k % 4]).numpy().tolist() for k in range(5)]
    (tmp_path / "module.py").write_text(TEXT.replace(*EDITS[edit]))
    assert first + [step(GIVEN[k % 4]).numpy().tolist() for k in range(5, 48)] == expected and step.stats().coexecuted_steps >= 15, step.stats()


def test_a_file_that_is_loaded_anew(tmp_path):
    """What is there now counts again; the old functions run as they were."""
    old = loaded(tmp_path / "module.py")
    text = TEXT.replace(*EDITS["a function"])
    (tmp_path / "module.py").write_text(text)
    spec = importlib.util.spec_from_file_location("edited_anew", tmp_path / "module.py")
    new = importlib.util.module_from_spec(spec)
    exec(compile(text, str(tmp_path / "module.py"), "exec"), new.__dict__)
    for module, instrumented in ((old, False), (new, True)):
        step = terra.coexecute(module.step, wait_for_graph=True)
        assert run(step) == run(module.step)
        assert terra.transform.is_instrumented(terra.transform.instrument(module.helper)) == instrumented


def test_statements_around_are_those_of_what_runs(tmp_path):
    """A file that is edited and loaded anew, as by IPython's %autoreload, is looked into like others; what is left of the old one is not."""
    text = "import sys\n\ndef look():\n    try:\n        return sys._getframe()\n    except ValueError:\n        pass\n\ndef bare():\n    return sys._getframe()\n"
    path = tmp_path / "looking.py"
    spaces = []
    for edit in ("ValueError", "KeyError"):
        path.write_text(text.replace("ValueError", edit) + f"# {edit}\n")
        spaces.append({"__name__": "looking"})
        exec(compile(path.read_text(), str(path), "exec"), spaces[-1])
        instrumented = terra.transform.instrument(spaces[-1]["look"])
        assert terra.transform.is_instrumented(instrumented)
    assert source.has_changed(str(path))
    for look in (spaces[1]["look"], instrumented):
        assert [(kind, [ast.unparse(x) for x in caught or []]) for kind, _, _, caught in catching._around(look())][0] == (catching._TRY, ["KeyError"])
    assert catching._around(spaces[0]["look"]()) == [catching._ANY_STATEMENT]
    assert [found[0] for found in catching._around(spaces[0]["bare"]())] == [catching._SCOPE]  # it is still there


def test_what_the_user_is_told(tmp_path):
    module = loaded(tmp_path / "module.py")
    (tmp_path / "module.py").write_text(TEXT.replace(*EDITS["the step"]))
    assert "module.py was changed after it was imported" in terra.to_code(module.step)


def test_a_new_file_is_believed_where_it_compiles_to_what_runs(tmp_path):
    module = loaded(tmp_path / "module.py")
    assert ast.unparse(source.find(module.scale)[0].body) == "x * 3.0"
    os.utime(tmp_path / "module.py", (1, 1))  # the file itself tells when it was changed
    (tmp_path / "module.py").write_text(TEXT.replace("x * 3.0", "x * 4.0"))
    os.utime(tmp_path / "module.py", (1, 1))
    with pytest.raises(source.NoSource, match="changed"):
        source.find(module.scale)


SCRIPT = '''
import tensorflow as tf

text = open(__file__).read()
open(__file__, "w").write(text.replace("v * 2" + ".0", "v * 7" + ".0").replace("x + 1" + ".0", "x + 9" + ".0"))
v = tf.Variable(1.0)

def model(x):
    return x + 1.0

for k in range(30):
    with tf.GradientTape() as tape:
        loss = model(v * 2.0) + tf.cast(k, tf.float32)
    v.assign_sub(0.1 * tape.gradient(loss, v))
    print(float(loss), v.numpy())
'''


def test_an_import_hook_compiles_something_else(tmp_path, monkeypatch):
    """One that checks types at run time, say."""
    path = tmp_path / "hooked.py"
    path.write_text(TEXT)
    tree = ast.parse(TEXT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return):
            node.value = ast.parse(f"checked({ast.unparse(node.value)})", mode="eval").body
    module, seen = {"__name__": "hooked", "checked": lambda x: seen.append(1) or x}, []
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module)
    monkeypatch.setattr(source, "_STARTED", float("inf"))  # it is older than this process
    outcomes = []
    for step in (module["step"], terra.coexecute(module["step"], wait_for_graph=True)):
        seen.clear()
        outcomes.append((run(step), len(seen)))
    assert outcomes[0] == outcomes[1] and step.stats().coexecuted_steps >= 5 and len(seen) > 24


@pytest.mark.parametrize("started", [float("inf"), 0.0], ids=["before the process", "a moment ago"])
def test_assertions_that_pytest_has_rewritten(monkeypatch, started):
    """Whenever the file was written, their messages are in the instrumented form, too, and tell that it is the same."""
    monkeypatch.setattr(source, "_STARTED", started)

    def step(x):
        assert x.shape == (2,), x
        return x * 2.0

    form = terra.transform.instrument(step)
    assert "@pytest_ar" in step.__code__.co_names and "@pytest_ar" in form.__code__.co_names
    assert form is not step and terra.transform.is_instrumented(form) and not source.has_changed(__file__)


def test_a_script_is_edited_while_it_starts(tmp_path):
    script, outcomes = tmp_path / "train.py", []
    with forks.Interpreters(tmp_path, "import runpy, sys, numpy, tensorflow, keras", ".") as interpreters:
        for options in (None, ["--stats"]):
            script.write_text(SCRIPT)
            outcomes.append(interpreters.run_script(script, options=options))
            assert "v * 7.0" in script.read_text()
    plain, run = outcomes
    assert plain.returncode == run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout and plain.stdout.startswith("3.0 0.8")
    assert "30 steps" in run.stderr
