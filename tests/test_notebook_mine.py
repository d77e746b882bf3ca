"""A notebook: a decorated step that raises, is edited and run again, timed and debugged."""

import re

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELLS = [
    """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf, terra
w = tf.Variable([1.0, 2.0])
""",
    """
@terra.coexecute(wait_for_graph=True)
def train(x, fail):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * x)
    for k in range(2):
        if fail:
            raise ValueError(f"bad batch {k}")
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss
x = tf.constant([1.0, 0.5])
print([round(float(train(x, False)), 4) for _ in range(7)], train.stats().coexecuted_steps >= 3)
""",
    "train(x, True)",
    """
import builtins
answers = iter(["l", "p k, fail", "up", "l", "q"])
builtins.input = lambda prompt="": next(answers)
get_ipython().run_line_magic("debug", "")
""",
    """
@terra.coexecute(wait_for_graph=True)
def train(x, fail):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * x) * 10.0
    w.assign_sub(0.001 * tape.gradient(loss, w))
    return loss
print([round(float(train(x, True)), 4) for _ in range(7)], train.stats().coexecuted_steps >= 3)
""",
    "%timeit -n 3 -r 2 train(x, True)",
    "print(train.stats().coexecuted_steps >= 9, round(float(tf.reduce_sum(w)), 4))",
]


def test_a_notebook():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    said = ["".join(out.get("text", "") for out in cell.outputs if out.get("name") == "stdout") for cell in notebook.cells]
    failed = [[out for out in cell.outputs if out.output_type == "error"] for cell in notebook.cells]
    assert [bool(errors) for errors in failed] == [False, False, True, False, False, False, False], failed
    eager = [round(2.0 - 0.125 * k, 4) for k in range(7)]
    assert said[1].strip() == f"{eager} True"
    error = failed[2][0]
    trace = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    assert error.ename == "ValueError" and error.evalue == "bad batch 0" and "terra/runtime" not in trace
    assert "bad batch" in trace and trace.count("Cell In") == 2 and "crash" not in (trace + said[2]).lower()
    said[3] = re.sub(r"\x1b\[[\d;]*m", "", said[3])
    assert "raise ValueError" in said[3] and "(0, True)" in said[3] and "train(x, True)" in said[3], said[3]
    later = [round(float(text), 4) for text in said[4].split("]")[0].strip("[").split(",")]
    assert later == pytest.approx([11.25 - 0.125 * k for k in range(7)], abs=1e-3) and "True" in said[4]
    assert "per loop" in said[5] and said[6].startswith("True")
