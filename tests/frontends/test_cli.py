"""`python -m terra run` runs a program as `python` does, co-executed; `python -m terra code` prints instrumented source."""

import ast
import contextlib
import functools
import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
import traceback

import pytest
import tensorflow as tf

import terra
from terra.cli import functions_in, main
from terra.frontends import gradient_tape, launch, script
from tests import forks


def python(directory, *words):
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    return subprocess.run([sys.executable, *map(str, words)], cwd=directory, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("interpreters"), "import os, runpy, sys, tensorflow") as made:
        yield made


@pytest.fixture(scope="module")
def terra_run(interpreters):
    """`python -m terra run` in a directory, in a fork: for programs that do not mind how their interpreter was started."""
    return functools.partial(forks.run_script, interpreters)


@pytest.fixture(scope="module")
def plain_run(interpreters):
    """`python` in a directory, likewise."""
    return lambda directory, *words: interpreters.run(
        f"os.chdir({str(directory)!r})\nsys.path[0], sys.argv[:] = os.getcwd(), {[*words]!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')")


OPTIONS = ("--stats", "--wait-for-graph")


def printed_here(path):
    """What a script prints that does not mind what its process is."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        runpy.run_path(str(path), run_name="__main__")
    return text.getvalue()


def coexecuted_steps(done):
    found = re.search(r"^terra: (\d+) steps, (\d+) of them co-executed", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return int(found[2])


def write(directory, **files):
    for name, text in files.items():
        path = directory / (name.replace("__DOT__", ".").replace("_slash_", "/") + ".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))


TRAINING = '''
    import tensorflow as tf

    class Net:
        def __init__(self):
            self.w = tf.Variable([[1.0], [2.0]])

        def step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ self.w - 1.0) ** 2)
            self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
            return loss
'''


# -- run -----------------------------------------------------------------------------------------------------------------------

def test_a_script_finds_everything_as_under_python(tmp_path):
    write(tmp_path, project_slash_training=TRAINING, project_slash_train='''
        """A docstring."""
        from __future__ import annotations
        import argparse
        import os
        import pickle
        import sys
        import numpy as np
        import tensorflow as tf
        from training import Net

        here = os.path.dirname(__file__)
        print(__name__, __doc__, __file__, __package__, __spec__, type(__loader__).__name__, sys.argv, sys.path[0], __annotations__)

        class Thing:
            pass

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--steps", type=int)
            parser.add_argument("--stats", action="store_true")
            options = parser.parse_args()
            data = np.loadtxt(os.path.join(here, "data.txt"), dtype=np.float32)
            net = Net()
            for i in range(options.steps):
                loss = net.step(tf.constant(data + i % 3))
                print(i, float(loss))
            print(options.stats, net.w.numpy().tolist(), type(pickle.loads(pickle.dumps(Thing()))) is sys.modules["__main__"].Thing)
            sys.exit(3)

        if __name__ == "__main__":
            main()
    ''')
    (tmp_path / "project" / "data.txt").write_text("1 2\n3 4\n5 6\n")
    path = "./project/../project/train.py"
    words = path, "--steps", "90", "--stats"
    plain, run = python(tmp_path, *words), python(tmp_path, "-m", "terra", "run", *OPTIONS, *words)
    assert (plain.returncode, run.returncode) == (3, 3), run.stderr
    assert run.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 92 and path in plain.stdout  # the file's name is as it was given
    assert coexecuted_steps(run) >= 5
    assert "Net.step" in run.stderr


def test_a_package_with_relative_imports(tmp_path, monkeypatch, terra_run):
    write(tmp_path, pkg_slash___init__="NAME = 'pkg'", pkg_slash_training=TRAINING, pkg_slash___main__='''
        import sys
        import tensorflow as tf
        from . import NAME
        from .training import Net

        print(NAME, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])
        net = Net()
        losses = [net.step(tf.ones((3, 2)) * (i % 2)) for i in range(int(sys.argv[2]))]
        print([float(loss) for loss in losses])
    ''')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["-m", "--steps", "90"])
    with contextlib.redirect_stdout(io.StringIO()) as plain:
        runpy.run_module("pkg", run_name="__main__", alter_sys=True)  # as `python -m pkg` does
    for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
        del sys.modules[name]
    run = terra_run(tmp_path, *OPTIONS, "-m", "pkg", "--steps", "90")
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.getvalue()
    assert coexecuted_steps(run) >= 5


def test_a_traceback_shows_the_script_s_lines_only_where_it_can(tmp_path, terra_run):
    write(tmp_path, train='''
        import tensorflow as tf

        w = tf.Variable(1.0)

        def check(i):
            if i == 90:
                raise ValueError("ninety")

        def step(i):
            with tf.GradientTape() as tape:
                loss = w * w
                check(i)
            w.assign_sub(0.1 * tape.gradient(loss, w))

        try:
            for i in range(100):
                step(i)
        finally:
            print(w.numpy())
    ''')
    with contextlib.redirect_stdout(io.StringIO()) as plain, pytest.raises(ValueError) as raised:
        runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    run = terra_run(tmp_path, "--stats", "--explain", "--wait-for-graph", "train.py")
    assert run.returncode == 1 and run.stdout == plain.getvalue()
    shown, expected = re.compile(r'File ".*train\.py"'), "".join(traceback.format_exception(raised.value)).splitlines()
    expected = [line for line in expected if shown.search(line)]
    trace = run.stderr[run.stderr.index("Traceback"):]
    assert len(expected) == 3
    assert [line for line in trace.splitlines() if shown.search(line)] == expected
    assert trace.splitlines()[1] == expected[0]
    assert "ValueError: ninety" in trace
    assert coexecuted_steps(run) >= 2
    assert "step: " in run.stderr and "paths with " in run.stderr and "co-executed" in run.stderr


def test_an_error_of_the_last_step_in_flight_is_not_lost(tmp_path, terra_run):
    write(tmp_path, train='''
        import tensorflow as tf

        w = tf.Variable(tf.ones(10))

        def step(i):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(w * 2.0, i))
            w.assign_sub(0.001 * tape.gradient(loss, w))
            return loss

        for i in range(90):
            step(tf.constant([i % 9, 17 if i == 89 else 1]))
    ''')
    with pytest.raises(tf.errors.InvalidArgumentError):
        printed_here(tmp_path / "train.py")
    run = terra_run(tmp_path, *OPTIONS, "train.py")
    assert run.returncode == 1 and "InvalidArgumentError" in run.stderr, run.stderr
    assert coexecuted_steps(run) >= 3


@pytest.mark.parametrize("words, sentence", [
    (["run", "nothing_here.py"], "terra run: cannot read nothing_here.py: No such file or directory."),
    (["run", os.curdir], "terra run: . is a directory; name a script in it, or use -m for a package."),
    (["run", "-m", "no_such_module_at_all"], "terra run: no module named no_such_module_at_all."),
    (["run", "-m", "json.nothing"], "terra run: no module named json.nothing."),
    (["code", "nothing_here.py"], "terra code: cannot read nothing_here.py: No such file or directory."),
])
def test_what_cannot_be_started_is_told_in_one_sentence(words, sentence, capsys, monkeypatch):
    monkeypatch.setattr(script, "install", lambda *given: None)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    assert main(words) == 2
    assert capsys.readouterr().err == sentence + "\n"


@pytest.mark.parametrize("words, text", [
    (["run"], "name a script, or a module after -m."),
    (["run", "--stat_", "train.py"], "there is no option --stat_; the script's own options"),
    ([], "required: COMMAND"),
])
def test_a_wrong_command_line(words, text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


def test_help(capsys):
    for words in (["--help"], ["run", "--help"], ["code", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
    shown = capsys.readouterr().out
    for word in ("run", "code", "--stats", "--explain", "-m MODULE", "FILE[:FUNCTION]"):
        assert word in shown


def test_options_of_the_steps(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(launch, "run_path", lambda path, words, load: given.append((path, words, load.__self__.steps)))
    main(["run", "--wait-for-graph", "--verify", "--run-ahead", "0", "--fast-forward", "framework", "train.py", "--loops", "5"])
    main(["run", "--fast-forward", "no", "--loops", "roll", "--jit-compile", "--optimize", "--max-traces", "3", "train.py"])
    main(["run", "train.py"])
    assert given == [
        ("train.py", ["--loops", "5"], {"wait_for_graph": True, "verify": True, "run_ahead": 0, "fast_forward": "framework"}),
        ("train.py", [], {"fast_forward": False, "loops": "roll", "jit_compile": True, "optimize": True, "max_traces": 3}),
        ("train.py", [], {}),
    ]
    for wrong in (["--run-ahead", "-1"], ["--run-ahead", "two"], ["--loops", "often"]):
        with pytest.raises(SystemExit) as stop:
            main(["run", *wrong, "train.py"])
        assert stop.value.code == 2 and f"argument {wrong[0]}" in capsys.readouterr().err


def test_the_code_of_a_function_with_a_tape():
    @script.step(1)
    def step(x):
        return tf.square(x)

    assert "def step(x)" in terra.to_code(step) and "tf.square" in terra.to_code(step)
    assert "tf.square" in terra.to_code(terra.coexecute(step))


def test_steps_have_the_options(monkeypatch):
    for home in (tf, tf.autodiff, tf.compat.v1, tf.compat.v2, tf.compat.v2.autodiff):
        monkeypatch.setattr(home, "GradientTape", home.GradientTape)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setattr(gradient_tape, "defaults", {})
    script.install({"run_ahead": 0, "loops": "roll"}, {})
    assert script.steps_of(script.step(1)(lambda: None)).options == terra.Options(run_ahead=0, loops="roll")
    assert tf.GradientTape()._options == terra.Options(run_ahead=0, loops="roll")
    assert terra.GradientTape(run_ahead=5)._options == terra.Options(run_ahead=5, loops="roll")
    with pytest.raises(terra.errors.OptionError):
        script.install({"run_ahed": 0}, {})


KERAS = """
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_keras

    def of(K):
        class Own(K.Model):
            seen = 0

            def __init__(self):
                super().__init__()
                self.dense = K.layers.Dense(1)

            def call(self, x):
                Own.seen += 1
                return self.dense(x)

        class WithTape(Own):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
                return {"loss": loss}

        K.utils.set_random_seed(1)
        x = np.random.RandomState(0).randn(64, 4).astype("float32")

        def train(model, **how):
            model.compile("sgd", "mse", **how)
            history = model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0)
            print(history.history, model.evaluate(x, x.sum(1), verbose=0), model.predict(x[:2], verbose=0), Own.seen, "train_step" in vars(model))

        own = Own()
        train(own, run_eagerly=True)
        eagerly = Own.seen
        train(own)
        assert Own.seen < eagerly + 12  # traced
        train(own, run_eagerly=True)
        train(WithTape(), run_eagerly=True)
        train(WithTape())

    of(keras)
    of(tf_keras)
"""


def test_models_that_are_to_run_eagerly_are_co_executed(tmp_path, terra_run):
    """And those that are not are Keras' own affair, also where the same model is compiled anew."""
    write(tmp_path, train=KERAS)
    plain, run = printed_here(tmp_path / "train.py"), terra_run(tmp_path, *OPTIONS, "train.py")
    assert run.returncode == 0, run.stderr
    shown = [(out[:out.rindex(" ")], out.endswith("True")) for out in run.stdout.strip().split("\n{")]
    assert [out for out, _ in shown] == [out[:out.rindex(" ")] for out in plain.strip().split("\n{")]
    assert [put for _, put in shown] == [True, False, True, False, False] * 2
    assert coexecuted_steps(run) >= 70


# -- what becomes a step -------------------------------------------------------------------------------------------------------

def decorated(source):
    """{function: the decorator it got} in a module."""
    tree = launch.rewrite(ast.parse(textwrap.dedent(source)))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            text = ast.unparse(node.decorator_list[-1])
            if "terra" in text:
                found[node.name] = "step" if "('step')" in text else "instrumented"
                assert node.decorator_list[-1].lineno == node.lineno
    return found


def test_which_functions_are_steps():
    assert decorated('''
        def step(x):
            with tf.GradientTape() as tape:
                pass

        def two(x):
            if x:
                with open(x), GradientTape(persistent=True) as tape:
                    pass

        def loop(x):
            for _ in x:
                with tf.GradientTape() as tape:
                    pass

        def generator(x):
            with tf.GradientTape() as tape:
                yield

        @tf.function
        def traced(x):
            with tf.GradientTape() as tape:
                pass

        async def coroutine(x):
            with tf.GradientTape() as tape:
                pass

        class A:
            @staticmethod
            def method(x):
                with tf.GradientTape() as tape:
                    pass

        def outer():
            def inner():
                with tf.GradientTape() as tape:
                    pass

        def other():
            pass
    ''') == {"step": "step", "two": "step", "loop": "instrumented", "generator": "instrumented", "method": "step", "inner": "step"}


def test_a_block_at_the_top_level_has_all_functions_instrumented():
    assert decorated('''
        def net(x):
            pass

        for i in range(3):
            with tf.GradientTape() as tape:
                net(i)
    ''') == {"net": "instrumented"}


def test_a_function_that_trains_a_whole_model_is_no_step():
    import tensorflow as tf

    import terra

    w, counted = tf.Variable(1.0), []

    def inner():
        with terra.GradientTape(wait_for_graph=True) as tape:
            loss = w * w
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return tape.block

    def trains():
        inner()
        for _ in range(4):
            counted.append(inner())

    step = script.step(1)(trains)
    for _ in range(3):
        step()
    assert script.steps_of(step).stats().steps == 0
    assert counted[0].stats().coexecuted_steps >= 5
    assert w.numpy() == pytest.approx(0.98 ** 15, rel=1e-5)


# -- code ----------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent('''
        import sys

        sys.exit("this file is not to be run")

        def plain(x):
            return x

        def train(xs):
            """Trains."""
            for x in xs:
                plain(x)

            def inner(y):
                return plain(y)

        class Net:
            def call(self, x):
                return super().call(plain(x))
    '''))
    return path


def test_code_of_one_function(source, capsys):
    assert main(["code", f"{source}:train"]) == 0
    shown = capsys.readouterr().out
    assert "Trains." in shown and "_terra_cursor.enter(" in shown and ".loop(" in shown and "def call" not in shown
    ast.parse(shown)
    assert main(["code", f"{source}:Net.call"]) == 0
    assert "_terra_cursor.enter(" in capsys.readouterr().out
    assert main(["code", f"{source}:train.inner"]) == 0
    assert capsys.readouterr().out


def test_code_of_a_file(source, capsys):
    assert main(["code", str(source)]) == 0
    shown = capsys.readouterr().out
    assert [name for name in ("def plain", "def train", "def call") if name in shown] == ["def plain", "def train", "def call"]
    assert list(functions_in(source)) == ["plain", "train", "train.inner", "Net.call"]


@pytest.mark.parametrize("name, hint", [("trian", "did you mean train?"), ("call", "did you mean Net.call?"), ("zzz", "it has plain, train, train.inner, Net.call.")])
def test_code_of_a_function_that_is_not_there(source, name, hint, capsys):
    assert main(["code", f"{source}:{name}"]) == 2
    assert capsys.readouterr().err == f"terra code: {source} has no function {name}; {hint}\n"


def test_code_of_what_is_not_python(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    assert main(["code", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"terra code: {path} is not Python: invalid syntax")


def test_functions_made_anew_are_steps_from_their_first_call_on(tmp_path, terra_run):
    """Only the first one of them has to show that it may be."""
    (tmp_path / "folds.py").write_text(textwrap.dedent("""
        import tensorflow as tf

        def fold():
            w = tf.Variable([1.0, 2.0])

            def train(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((w * x) ** 2)
                w.assign_sub(0.01 * tape.gradient(loss, w))
                return loss

            return sum(float(train(1.0)) for _ in range(6))

        print([fold() for _ in range(5)])
    """))
    run = terra_run(tmp_path, *OPTIONS, "folds.py")
    assert run.stdout == printed_here(tmp_path / "folds.py") and run.returncode == 0
    rows = {line.split("  ")[-1]: int(line.split()[0]) for line in run.stderr.splitlines() if line.strip()[:1].isdigit()}
    assert rows == {"fold.<locals>.train (5 functions)": 29, "the block at folds.py:8": 1}, run.stderr


def test_what_the_script_logs_is_its_own_matter(tmp_path, terra_run, plain_run):
    """Fallbacks are told to nobody who has not asked Terra's own logger for them; that can still be asked."""
    write(tmp_path, train='''
        import logging, sys
        import tensorflow as tf

        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        if "asked" in sys.argv:
            logging.getLogger("terra").addHandler(logging.StreamHandler(sys.stdout))
        v = tf.Variable(1.0)

        def step(x):
            with tf.GradientTape() as tape:
                loss = (v * x - 3.0) ** 2
                if float(loss) > 4:
                    loss = loss * 0.5
            v.assign_sub(0.001 * tape.gradient(loss, v))
            return loss

        for i in range(40):
            step(tf.constant(float(i % 7)))
        logging.info("v = %r", float(v))
    ''')
    run = terra_run(tmp_path, *OPTIONS, "train.py")
    assert run.returncode == 0 and coexecuted_steps(run) >= 20
    assert run.stdout == plain_run(tmp_path, "train.py").stdout and run.stdout.startswith("INFO:root:v = ")
    assert " fell back: " in terra_run(tmp_path, *OPTIONS, "train.py", "asked").stdout
