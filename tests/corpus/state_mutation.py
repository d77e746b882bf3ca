"""Python objects that a step changes, and tensors that live on in them."""
import collections
import logging
import os
import tempfile
import warnings

import tensorflow as tf

from . import Program, program
from ._common import floats, tensors

EVENTS = []
TOTAL = None


class Holder:
    shared = 0

    def __init__(self, **attributes):
        vars(self).update(attributes)


@program("attribute_holds_the_loss")
def _():
    model = Holder(w=tf.Variable(floats(3, 1)), loss_value=None, losses=[])

    def step(x):
        with tf.GradientTape() as tape:
            model.loss_value = tf.reduce_mean(tf.square(x @ model.w))
        model.w.assign_sub(0.1 * tape.gradient(model.loss_value, model.w))

    def between(i, args, result):
        model.losses.append(tf.reduce_sum(model.loss_value) if i % 3 == 0 else model.loss_value)

    return Program(step, tensors(4, 3), lambda: [model.w, model.loss_value, model.losses], between)


@program("recurrent_state_on_self")
def _():
    cell = Holder(w=tf.Variable(floats(2, 2)), h=tf.zeros([1, 2]))

    def step(x):
        cell.h = tf.tanh(cell.h @ cell.w + x)
        return tf.reduce_sum(cell.h)

    return Program(step, tensors(1, 2), lambda: [cell.w, cell.h])


@program("list_dict_set_and_deque_mutated")
def _():
    seen, table, names, recent = [], {}, set(), collections.deque(maxlen=3)

    def step(x, key):
        total = tf.reduce_sum(x)
        seen.append(total)
        seen[-1:] = [total, total * 2.0]
        table.setdefault(key, []).append(total)
        table[len(table), key] = x
        names.add(key)
        recent.appendleft(total)
        if len(seen) > 6:
            del seen[::2]
        return tf.add_n(list(recent))

    return Program(step, [(x, key) for (x,), key in zip(tensors(3), "ab")], lambda: [seen, table, names, recent])


@program("globals_mutated")
def _():
    global TOTAL
    TOTAL = tf.constant(0.0)
    EVENTS.clear()

    def step(x):
        global TOTAL
        TOTAL = TOTAL * 0.5 + tf.reduce_sum(x)
        EVENTS.append(("step", len(EVENTS)))
        globals()["LAST"] = TOTAL
        return TOTAL

    return Program(step, tensors(3), lambda: [TOTAL, EVENTS, LAST])  # noqa: F821


@program("class_attribute_and_setattr")
def _():
    Holder.shared = 0
    a, b = Holder(x=1.0), Holder(x=2.0)

    def step(x):
        Holder.shared += 1
        for i, each in enumerate((a, b)):
            setattr(each, "x", each.x * 0.5 + i)
            each.__dict__["last"] = x * each.x
        return a.last + b.last * float(Holder.shared)

    return Program(step, tensors(3), lambda: [vars(a), vars(b), Holder.shared])


@program("annealed_keep_probability")
def _():
    block = Holder(keep_prob=1.0, calls=0)

    def drop(x):
        gamma = 1.0 - block.keep_prob
        mask = tf.cast(tf.random.uniform(tf.shape(x)) >= gamma, tf.float32)
        return x * mask / block.keep_prob

    def step(x):
        block.calls += 1
        block.keep_prob = max(0.5, 1.0 - 0.05 * block.calls)
        return drop(x)

    return Program(step, tensors(4, 4), lambda: vars(block))


@program("attribute_changed_by_the_caller")
def _():
    options = Holder(scale=1.0, bias=tf.constant(0.0))

    def step(x):
        return x * options.scale + options.bias

    def between(i, args, result):
        options.scale = 1.0 + 0.25 * i
        options.bias = result[0]

    return Program(step, tensors(3), lambda: vars(options), between)


@program("tensors_kept_in_a_list_and_read_at_the_end")
def _():
    kept = []

    def step(x):
        y = tf.nn.softmax(x)
        kept.append((y, y[0] * 2.0))
        return len(kept)

    return Program(step, tensors(3), lambda: [[float(b) for _, b in kept], kept])


@program("cache_filled_by_earlier_steps")
def _():
    cache = {}

    def embed(x, key):
        if key not in cache:
            cache[key] = tf.reduce_mean(tf.square(x))
        return cache[key]

    def step(x, key):
        return x * embed(x, key)

    return Program(step, [(x, key) for (x,), key in zip(tensors(3), "ab")], lambda: cache)


@program("replay_buffer")
def _():
    buffer = collections.deque(maxlen=4)

    def step(x):
        buffer.append(x * 0.5)
        batch = tf.stack(list(buffer)[-2:] if len(buffer) > 1 else [x, x])
        return tf.reduce_mean(batch, axis=0)

    return Program(step, tensors(3), lambda: buffer)


@program("running_average_in_python_floats")
def _():
    stats = Holder(mean=0.0, n=0, best=float("inf"), best_w=None, w=tf.Variable(floats(3, 1)))

    def step(x):
        loss = tf.reduce_sum(tf.abs(x @ stats.w))
        stats.w.assign(stats.w * 0.9)
        stats.n += 1
        stats.mean += (float(loss) - stats.mean) / stats.n
        if loss < stats.best:
            stats.best, stats.best_w = float(loss), stats.w.read_value()
        return loss / stats.mean

    return Program(step, tensors(4, 3), lambda: vars(stats))


@program("early_stopping_flag", calls=12, max_fallbacks=4)
def _():
    state = Holder(w=tf.Variable(4.0), done=False, skipped=0)

    def step(x):
        if state.done:
            state.skipped += 1
            return tf.constant(0.0)
        state.w.assign(state.w * 0.8)
        state.done = bool(state.w < 1.0)
        return state.w * tf.reduce_mean(x)

    return Program(step, tensors(3), lambda: vars(state))


@program("log_records_and_warnings")
def _():
    records = []
    logger = logging.Logger("corpus")
    handler = logging.Handler()
    handler.emit = lambda r: records.append((r.levelname, r.getMessage(), r.funcName, r.lineno))
    logger.addHandler(handler)

    def step(x):
        total = tf.reduce_sum(x)
        logger.info("total %.3f", total)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn(f"small: {float(total):.2f}", RuntimeWarning)
        logger.warning("caught %s at %d", caught[0].message, caught[0].lineno)
        return total

    return Program(step, tensors(3), lambda: records)


@program("layer_list_grown_by_the_step", calls=12, max_fallbacks=6, min_coexecuted=1)
def _():
    weights = [tf.Variable(floats(3, 3))]

    def step(x, i):
        if i in (3, 6):
            weights.append(tf.Variable(floats(3, 3, seed=i)))
        for w in weights:
            x = tf.nn.relu(x @ w)
            w.assign(w * 0.95)
        return x

    x = tensors(2, 3)
    return Program(step, lambda i: (x[i % 2][0], i), lambda: weights)


@program("checkpoint_saved_and_restored_in_the_step", calls=12, max_fallbacks=4)
def _():
    v, directory, sizes = tf.Variable([1.0, 2.0]), tempfile.TemporaryDirectory(), []
    checkpoint = tf.train.Checkpoint(v=v)

    def step(x, i):
        v.assign_add(x)
        if i % 6 == 2:
            checkpoint.write(os.path.join(directory.name, "best"))
            sizes.append(len(os.listdir(directory.name)))
        elif i % 6 == 5:
            checkpoint.read(os.path.join(directory.name, "best"))
        return v * 1.0

    x = tensors(2)
    return Program(step, lambda i: (x[i % 2][0], i), lambda: [v, sizes])
