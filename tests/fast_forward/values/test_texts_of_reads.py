"""Texts that a step makes of what it reads of tensors, and prints, logs, writes or keeps: they are made again where it is skipped."""

import io
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity import training

log = logging.getLogger("tests.texts")


class Held(training.Weights):
    def __init__(self):
        super().__init__()
        self.said, self.last, self.digits, self.seen = io.StringIO(), "", 3, []


def prints(h, x):
    loss = tf.reduce_mean(tf.matmul(x, h.w) ** 2)
    print("loss", float(loss), loss.numpy(), loss, file=h.said)
    return tf.matmul(x, h.w)


def formats(h, x):
    y = tf.matmul(x, h.w)
    loss = tf.reduce_mean(y ** 2)
    value = float(loss)
    print(f"loss: {loss:.3f} {value:>{h.digits + 6}.{h.digits}f} {value!r} {loss!s} {h.digits}", file=h.said)
    print("%.2f %s" % (value, y[0, 0].numpy()) + " " + "{:.4f} {}".format(value, loss.numpy()), file=h.said)  # noqa: UP031
    print(str(value) + repr(value) + format(loss.numpy(), ".2f") + str(y[:2, 0]), file=h.said)
    return y


def writes(h, x):
    y = tf.matmul(x, h.w)
    h.said.write(f"{float(tf.reduce_mean(y)):.5f}\n")
    h.last = f"last: {float(tf.reduce_mean(y)):.3f}"
    return y


def logs(h, x):
    y = tf.matmul(x, h.w)
    log.info(f"loss {tf.reduce_mean(y):.3f} in {h.digits}")
    log.info("loss %.3f", float(tf.reduce_mean(y)))
    return y


def gives(h, x):
    y = tf.matmul(x, h.w)
    h.seen.append(f"{tf.reduce_mean(y):.2f}")
    return y * 2.0


def looks_at(h, x):
    """The text decides what is computed."""
    y = tf.matmul(x, h.w)
    text = f"{tf.reduce_mean(y):.1f}"
    print(text, file=h.said)
    return y * 2.0 if text.startswith("-") else y


def fails(h, x):
    y = tf.matmul(x, h.w)
    try:
        print(f"{float(tf.reduce_mean(y)):d}", file=h.said)
    except ValueError as error:
        h.last = str(error)
    return y


def looked_at(h):
    return [h.w, h.said.getvalue(), h.last, h.seen]


def changes(h, k):
    h.digits = 3 if k < 15 else 5
    if k == 20:
        np.set_printoptions(precision=3)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [prints, formats, writes, logs, gives])
@pytest.mark.parametrize("change", [None, changes], ids=["", "changes"])
def test_texts(body, change):
    handler, before = logging.StreamHandler(), np.get_printoptions()

    def begin():
        held = Held()
        handler.setStream(held.said)
        np.set_printoptions(**before)
        return held

    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        harness.compare_steps(training.training(begin, body, looked_at, change), whole=6 if change else 12, express=0)
    finally:
        log.removeHandler(handler)
        np.set_printoptions(**before)


@pytest.mark.parametrize("body", [looks_at, fails])
def test_texts_that_are_looked_at(body):
    harness.compare_steps(training.training(Held, body, looked_at), whole=0, express=0)
