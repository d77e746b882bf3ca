"""The first TensorFlow operation of a process may be a step's, and the last step's failure is the process's."""

import pytest

from tests import forks

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


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("processes"), "import atexit; atexit.register(print, 'cleaned up'); import tensorflow as tf, terra", alone=True) as made:
        yield made


@pytest.mark.parametrize("name", FIRST)
def test_nothing_was_run_before(name, interpreters):
    process, behind_an_operation = interpreters.run(FIRST[name]), interpreters.run("tf.constant(1)\n" + FIRST[name])
    assert process.returncode == behind_an_operation.returncode == 0, process.stderr
    assert process.stdout == behind_an_operation.stdout and len(process.stdout.splitlines()) > 1


@pytest.mark.parametrize("name", LAST)
def test_the_last_step_fails(name, interpreters):
    """As after an uncaught exception: a traceback, a status that is not 0, and what is to be done at exit is done."""
    process = interpreters.run("w = tf.Variable([1., 2., 3.])\n" + LAST[name] + "print('done')\n")
    assert process.stdout.splitlines() == ["done", "cleaned up"]
    if name == "all well":
        assert process.returncode == 0 and "Traceback" not in process.stderr
    else:
        assert process.returncode != 0
        assert "Traceback" in process.stderr and "InvalidArgumentError" in process.stderr and "indices = 7 is not in [0, 3)" in process.stderr
        assert "Exception ignored" not in process.stderr and process.stderr.count("Traceback") == 1
