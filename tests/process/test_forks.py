"""A process that forks: the child's steps run imperatively, the parent's go on, and both have eager's values."""

import pytest

from tests import forks

PROGRAM = """
import os, multiprocessing, sys
v = tf.Variable([1.0, 2.0])

def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * x)
    v.assign_sub(0.1 * tape.gradient(loss, v))
    {inside}
    return loss * 2.0

step = terra.coexecute(wait_for_graph=True, {options})(train) if {terra} else train
x = tf.constant([1.0, 0.5])

def child(where, *tensors):
    print(where, [float(step(x)) for _ in range(3)], [t.numpy().tolist() for t in tensors], v.numpy().tolist(), flush=True)

def fork(function, *args):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        function(*args)
        os._exit(0)
    print("child ended with", os.waitpid(pid, 0)[1], flush=True)

for k in range(12):
    loss = step(x)
    {each}
{then}
child("parent", loss)
if {terra}:
    s = step.stats()
    print("coexecuted", s.coexecuted_steps, file=sys.stderr)
"""

PLACES = {
    "in flight": dict(then="fork(child, 'child', loss)"),
    "read before": dict(each="float(loss)", then="fork(child, 'child', loss)"),
    "while a graph is made": dict(each="if k == 2: fork(child, 'child', loss)"),
    "again and again": dict(each="if k % 4 == 3: fork(child, 'child', loss)"),
    "a child of a child": dict(then="fork(lambda: (child('child', loss), fork(child, 'grandchild', loss)))"),
    "multiprocessing": dict(then="""
p = multiprocessing.get_context("fork").Process(target=child, args=("child", loss))
p.start(); p.join(); print(p.exitcode)"""),
    "in a step": dict(inside="if k == 9: fork(lambda: print('in a step', loss.numpy(), (loss * 2.0).numpy(), v.numpy(), float(tf.reduce_sum(v))))"),
    "in a step that goes on in both": dict(inside="""
    if k == 9:
        global pid
        pid = os.fork()
        if pid: os.waitpid(pid, 0)""", each="if k == 9: print('child' if not pid else 'parent', float(loss), v.numpy(), flush=True); (pid or os._exit(0))"),
    "in a block": dict(then="""
for k in range(6):
    with (terra if {terra} else tf).GradientTape() as tape:
        loss = tf.reduce_sum(v * v)
        if k == 5: fork(lambda: print('in a block', float(loss), v.numpy()))
    v.assign_sub(0.1 * tape.gradient(loss, v))
fork(child, 'child', loss)"""),
}


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("forks"), "import tensorflow as tf, terra") as made:
        yield made


@pytest.mark.parametrize("options", ["", "loops='roll'"])
@pytest.mark.parametrize("place", PLACES)
def test_both_have_what_they_have_eagerly(interpreters, place, options):
    parts = {"inside": "pass", "each": "pass", "then": "", "options": options} | PLACES[place]
    ran = []
    for terra in (False, True):
        then = parts["then"].replace("{terra}", str(terra))
        ran.append(interpreters.run(PROGRAM.format(**parts | {"then": then}, terra=terra)))
    eager, ours = ran
    assert eager.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == eager.stdout and "parent" in ours.stdout
    assert int(ours.stderr.split("coexecuted")[-1]) >= 7, ours.stderr
