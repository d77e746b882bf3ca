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


# Each program is the rest of a process of its own, in which TensorFlow and Terra have been imported, and nothing else was done.
PROCESSES = """
import atexit, gc, os, sys
atexit.register(print, "cleaned up")
import tensorflow as tf, terra
gc.freeze()  # else each of them goes through all of TensorFlow when it ends
for k, code in enumerate(sys.argv[2:]):
    process = os.fork()
    if not process:
        for stream, name in (sys.stdout, "out"), (sys.stderr, "err"):
            os.dup2(os.open(f"{sys.argv[1]}/{k}.{name}", os.O_CREAT | os.O_WRONLY), stream.fileno())
        break
    with open(f"{sys.argv[1]}/{k}.status", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])))
else:
    code = ""
exec(compile(code, "<string>", "exec"))
"""
ALL = {**FIRST, **{f"{name} behind an operation": "tf.constant(1)\n" + code for name, code in FIRST.items()},
       **{f"last {name}": "w = tf.Variable([1., 2., 3.])\n" + code + "print('done')\n" for name, code in LAST.items()}}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """{name of a program: (status, output, errors) of its process}."""
    place = tmp_path_factory.mktemp("processes")
    subprocess.run([sys.executable, "-c", PROCESSES, place, *ALL.values()], check=True, timeout=100)
    return {name: (int((place / f"{k}.status").read_text()), (place / f"{k}.out").read_text(), (place / f"{k}.err").read_text()) for k, name in enumerate(ALL)}


@pytest.mark.parametrize("name", FIRST)
def test_nothing_was_run_before(name, ended):
    status, output, errors = ended[name]
    expected_status, expected, _ = ended[f"{name} behind an operation"]
    assert status == expected_status == 0, errors
    assert output == expected and len(output.splitlines()) > 1


@pytest.mark.parametrize("name", LAST)
def test_the_last_step_fails(name, ended):
    """As after an uncaught exception: a traceback, a status that is not 0, and what is to be done at exit is done."""
    status, output, errors = ended[f"last {name}"]
    assert output.splitlines() == ["done", "cleaned up"]
    if name == "all well":
        assert status == 0 and "Traceback" not in errors
    else:
        assert status != 0
        assert "Traceback" in errors and "InvalidArgumentError" in errors and "indices = 7 is not in [0, 3)" in errors
        assert "Exception ignored" not in errors and errors.count("Traceback") == 1
