"""`python -m terra run` imports TensorFlow when the script does, not before: what the script tells it in `os.environ` counts."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.frontends.test_cli import coexecuted_steps


def run(directory, words, source):
    """Runs a script of this source; its environment says nothing of TensorFlow."""
    (directory / "train.py").write_text(textwrap.dedent(source))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_"))}
    return subprocess.run([sys.executable, *words], cwd=directory, env=environment, capture_output=True, text=True, timeout=200)


def both(directory, source):
    """What the script prints as `python` runs it, and as `terra run` does, which must be the same; what that says on standard error."""
    plain, ours = run(directory, ["train.py"], source), run(directory, ["-m", "terra", "run", "--stats", "--wait-for-graph", "train.py"], source)
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert ours.stdout == plain.stdout and plain.stdout
    return ours


LEGACY = """
    import os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    print("tensorflow" in sys.modules, "keras" in sys.modules)

    def train(model, optimizer, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    import tensorflow as tf
    from tensorflow.keras import layers
    import tensorflow.keras.backend as K
    print(layers.Dense.__module__, tf.keras.layers.Dense is layers.Dense, K.__name__.partition(".")[0])
    print(type(tf.__spec__.loader).__name__, tf.__spec__.name, sys.modules["tensorflow"] is tf)
    tf.keras.utils.set_random_seed(1)
    model, optimizer = tf.keras.Sequential([layers.Dense(3)]), tf.keras.optimizers.SGD(0.01)
    for k in range(12):
        print(float(train(model, optimizer, tf.ones((2, 4)) * k)))
"""
TERRA_FIRST = """
    import os
    import terra
    print(terra.__version__)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

    @terra.coexecute
    def step(x):
        w.assign_add(x)
        return w * 2.0

    import keras
    import tensorflow as tf
    w = tf.Variable(1.0)
    print([float(step(tf.constant(1.0 * k))) for k in range(12)], keras.__spec__.name)
"""
KERAS_FIRST = """
    import os
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
    from keras import backend
    import keras, numpy as np
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    keras.utils.set_random_seed(1)
    for _ in range(3):
        model.fit(np.ones((8, 4), "f"), np.ones((8, 2), "f"), batch_size=2, verbose=0)
    print(backend.backend(), model.get_weights())
"""
A_BLOCK = """
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    w = tf.Variable(1.0)
    for epoch in range(2):
        losses = []
        for k in range(12):
            with tf.GradientTape() as tape:
                loss = w * w * k
                losses.append(loss)  # keeps the block from becoming a function
            w.assign_sub(0.1 * tape.gradient(loss, w))
        print([float(loss) for loss in losses])
"""


@pytest.mark.parametrize(
    "source, least", [(LEGACY, 6), (TERRA_FIRST, 6), (KERAS_FIRST, 4), (A_BLOCK, 15)], ids=["legacy", "terra first", "keras first", "a block that stays one"])
def test_what_the_script_sets_before_it_imports_tensorflow(tmp_path, source, least):
    done = both(tmp_path, source)
    assert "cpu_feature_guard" not in done.stderr
    assert coexecuted_steps(done) >= least


def test_without_tensorflow(tmp_path):
    source = """
        import sys
        def fails():
            raise KeyError("here")
        print("tensorflow" in sys.modules, "numpy" in sys.modules)
        fails()
    """
    plain, ours = run(tmp_path, ["train.py"], source), run(tmp_path, ["-m", "terra", "run", "--stats", "train.py"], source)
    assert plain.returncode == ours.returncode == 1 and plain.stdout == ours.stdout == "False False\n"
    assert ours.stderr.startswith(plain.stderr) and "no step was run" in ours.stderr


def test_a_module(tmp_path):
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n")
    (package / "__main__.py").write_text(textwrap.dedent("""
        import sys
        from trainer import steps
        w = steps.tf.Variable(1.0)
        print([float(steps.step(w, steps.tf.constant(1.0 * k))) for k in range(12)], sys.argv[1:])
    """))
    (package / "steps.py").write_text(textwrap.dedent("""
        import tensorflow as tf

        def step(w, x):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(w * x)
            w.assign_sub(tape.gradient(y, w) * 0.1)
            return y
    """))
    plain, ours = run(tmp_path, ["-m", "trainer", "3"], ""), run(tmp_path, ["-m", "terra", "run", "--stats", "--wait-for-graph", "-m", "trainer", "3"], "")
    assert plain.returncode == ours.returncode == 0 and ours.stdout == plain.stdout, ours.stderr
    assert coexecuted_steps(ours) >= 6 and "cpu_feature_guard" not in ours.stderr
