"""The first TensorFlow operation of a process may be a step's, and the last step's failure is the process's."""

import subprocess
import sys

import pytest

FIRST = {
    "decorated": """
@terra.coexecute
def step(x):
    return tf.constant(x) * 2.0
print([float(step(float(k))) for k in range(6)])
""",
    "block": """
for k in range(6):
    with terra.GradientTape() as tape:
        x = tf.constant(float(k))
        tape.watch(x)
        y = x * x
    print(float(tape.gradient(y, x)))
""",
    "variable": """
made = []
@terra.coexecute
def step(x):
    if not made:
        made.append(tf.Variable(1.0))
    return made[0].assign_add(x)
print([float(step(float(k))) for k in range(6)])
""",
}
LAST = {
    "decorated": """
@terra.coexecute(wait_for_graph=True)
def step(k):
    w.assign_sub(0.1 * tf.one_hot(tf.cast(tf.gather(w, k), tf.int32), 3))
    return w
for k in range(20):
    step(k % 3 if k < 19 else 7)
""",
    "block": """
for k in range(20):
    with terra.GradientTape(wait_for_graph=True) as tape:
        loss = tf.gather(w, k % 3 if k < 19 else 7) ** 2
    w.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, w)))
""",
    "all well": """
@terra.coexecute(wait_for_graph=True)
def step(k):
    return w.assign_sub(0.1 * tf.one_hot(k, 3))
for k in range(20):
    step(k % 3)
""",
}


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def behind_an_operation():
    """What all of them print where an operation has been run before."""
    return run("import tensorflow as tf, terra\ntf.constant(1)\n" + "print('--')\n".join(FIRST.values()))


@pytest.mark.parametrize("name", FIRST)
def test_nothing_was_run_before(name, behind_an_operation):
    process = run("import tensorflow as tf, terra\n" + FIRST[name])
    assert behind_an_operation.returncode == process.returncode == 0, process.stderr
    assert process.stdout == behind_an_operation.stdout.split("--\n")[[*FIRST].index(name)] != ""


@pytest.mark.parametrize("name", LAST)
def test_the_last_step_fails(name):
    """As after an uncaught exception: a traceback, a status that is not 0, and what is to be done at exit is done."""
    before = "import atexit\natexit.register(print, 'cleaned up')\nimport tensorflow as tf, terra\nw = tf.Variable([1., 2., 3.])\n"
    process = run(before + LAST[name] + "print('done')\n")
    assert process.stdout.splitlines() == ["done", "cleaned up"]
    if name == "all well":
        assert process.returncode == 0 and "Traceback" not in process.stderr
    else:
        assert process.returncode != 0
        assert "Traceback" in process.stderr and "InvalidArgumentError" in process.stderr and "indices = 7 is not in [0, 3)" in process.stderr
        assert "Exception ignored" not in process.stderr and process.stderr.count("Traceback") == 1
