"""Control flow decided by Python, and TensorFlow's own control flow called eagerly."""
import numpy as np
import tensorflow as tf

from . import Program, program
from ._common import floats, regression, tensor, tensors

SMALL, LARGE = tf.constant([0.1, 0.2, 0.3]), tf.constant([3.0, 4.0, 5.0])


@program("branch_on_float_loss")
def _():
    w = tf.Variable(floats(4, 1))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w - y))
        gradient = tape.gradient(loss, w)
        if float(loss) > 1.0:
            w.assign_sub(0.2 * gradient)
        else:
            w.assign_sub(0.01 * tf.sign(gradient))
        return loss

    small = regression()[1]
    return Program(step, [regression()[0], (small[0] * 0.1, small[1] * 0.1)], lambda: w)


@program("early_return")
def _():
    v = tf.Variable(0.0)

    def step(x):
        total = tf.reduce_sum(x)
        if total < 1.0:
            return total
        v.assign_add(total)
        return v / 2.0

    return Program(step, [(SMALL,), (LARGE,)], lambda: v)


@program("branch_on_a_python_flag")
def _():
    v = tf.Variable(1.0)

    def step(x, training):
        h = tf.nn.relu(x) if training else x
        if training:
            v.assign(0.9 * v + 0.1 * tf.reduce_mean(h))
        return h * v

    return Program(step, [(LARGE, True), (SMALL, False)], lambda: v)


@program("nested_branches_that_rejoin", calls=20, min_coexecuted=2, max_fallbacks=4)
def _():
    v = tf.Variable(tf.ones([3]))

    def step(x):
        h = x * v
        if tf.reduce_mean(h) > 1.0:
            h = tf.sqrt(h)
            if h[0] > 1.8:
                h = h + 1.0
            else:
                h = tf.exp(-h)
        elif bool(tf.reduce_any(h < 0.0)):
            h = tf.abs(h)
        v.assign(tf.clip_by_value(v * 0.99, 0.5, 1.0))
        return tf.reduce_sum(h)

    return Program(step, [(LARGE,), (SMALL,), (-LARGE,), (LARGE / 2.5,)], lambda: v)


@program("if_tensor_and_assert_tensor")
def _():
    def step(x):
        assert tf.reduce_all(tf.math.is_finite(x)), "not finite"
        largest = tf.reduce_max(x)
        if largest > 1.0 and not largest > 100.0:
            return x / largest
        return x

    return Program(step, [(SMALL,), (LARGE,)])


@program("loop_that_runs_until_converged", calls=10, max_fallbacks=4)
def _():
    def step(x):
        guess, rounds = tf.ones_like(x), 0
        while tf.reduce_max(tf.abs(guess * guess - x)) > 1e-3:
            guess = 0.5 * (guess + x / guess)
            rounds += 1
        return guess, rounds

    return Program(step, [(SMALL,), (LARGE,)])


@program("loop_count_given_by_an_argument", calls=12, max_fallbacks=4)
def _():
    w = tf.Variable(floats(3, 3) * 0.3)

    def step(x, n):
        h, outputs = tf.reshape(x, [1, 3]), []
        with tf.GradientTape() as tape:
            for _ in range(n):
                h = tf.tanh(h @ w)
                outputs.append(h)
            loss = tf.reduce_sum(tf.stack(outputs))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    return Program(step, [(SMALL, 2), (LARGE, 4)], lambda: w)


@program("break_continue_and_loop_else")
def _():
    def step(x, limit):
        total, skipped = tf.constant(0.0), 0
        for i in range(6):
            if i % 2:
                skipped += 1
                continue
            total += x[i % 3] * i
            if total > limit:
                break
        else:
            total = -total
        return total, skipped

    return Program(step, [(SMALL, 100.0), (LARGE, 5.0)])


@program("iteration_over_a_tensor")
def _():
    def step(x):
        total = tf.zeros([3])
        for weight, row in zip((1.0, 0.5, 0.25), x):
            total += weight * row
        first, *rest = x
        return total, first, rest, len(x), [float(v) for v in x[:, 0]]

    return Program(step, tensors(3, 3))


@program("recursion_over_a_tree")
def _():
    w = tf.Variable(floats(4, 2))
    trees = [((0, 1), (2, (1, 0))), (0, (2, 1))]

    def embed(tree, leaves):
        if isinstance(tree, int):
            return leaves[tree]
        left, right = (embed(child, leaves) for child in tree)
        return tf.tanh(tf.linalg.matvec(w, tf.concat([left, right], 0), transpose_a=True))

    def step(x, which):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embed(trees[which], tf.unstack(x)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, [(tensor(3, 2, seed=s), s) for s in (0, 1)], lambda: w)


@program("match_statement", calls=15)
def _():
    def step(x, command):
        match command:
            case {"scale": factor}:
                return x * factor
            case ["shift", amount, *rest] if amount > 0:
                return x + amount + len(rest)
            case _:
                return tf.reverse(x, [0])

    return Program(step, [(SMALL, {"scale": 2.0}), (LARGE, ["shift", 1.5, "a"]), (SMALL, None)], period=3)


@program("rare_branch_every_fifth_step", calls=16, max_fallbacks=3, min_coexecuted=3)
def _():
    v, log = tf.Variable(1.0), []

    def step(x, i):
        v.assign(0.9 * v + tf.reduce_mean(x))
        if i % 5 == 0:
            log.append(float(tf.math.log(v)))
        return v * 1.0

    return Program(step, lambda i: ((SMALL, LARGE)[i % 2], i), lambda: [v, log])


@program("tf_while_loop")
def _():
    w = tf.Variable([0.5, 0.25, 0.125])

    def step(x):
        with tf.GradientTape() as tape:
            i, total = tf.while_loop(lambda i, _: i < 4, lambda i, t: (i + 1, t * w + x), [tf.constant(0), x])
            loss = tf.reduce_sum(total)
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return i, loss

    return Program(step, [(SMALL,), (LARGE,)], lambda: w)


@program("tf_cond_case_and_switch_case")
def _():
    def step(x):
        mean = tf.reduce_mean(x)
        a = tf.cond(mean > 1.0, lambda: tf.sqrt(x), lambda: -x)
        b = tf.case([(mean > 10.0, lambda: x), (mean > 1.0, lambda: x + 1.0)], default=lambda: x * 0.0)
        c = tf.switch_case(tf.cast(mean, tf.int32), [lambda: mean, lambda: mean * 2.0, lambda: mean * 3.0])
        return a, b, c

    return Program(step, [(SMALL,), (LARGE,)])


@program("tf_map_fn_scan_and_foldl")
def _():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = tf.map_fn(lambda row: tf.reduce_sum(row * row), x)
            b = tf.scan(lambda total, v: 0.5 * total + v, a)
            c = tf.foldl(lambda total, v: tf.maximum(total, v), b)
        return a, b, tape.gradient(c, x)

    return Program(step, tensors(3, 2))


@program("tensor_array_in_a_python_loop")
def _():
    def step(x):
        outputs = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        state = tf.zeros([2])
        for t in tf.range(tf.shape(x)[0]):
            state = 0.5 * state + x[t]
            outputs = outputs.write(t, state)
        return outputs.stack()

    return Program(step, tensors(3, 2))


@program("conditional_expressions_and_short_circuit")
def _():
    def step(x, y=None):
        base = x if y is None else y
        sign = 1.0 if tf.reduce_sum(base) > 0 else -1.0
        picked = tf.reduce_sum(x) > 5.0 and tf.reduce_max(x) or tf.reduce_min(x)
        return sign * base, picked, 0.0 < float(x[0]) < 1.0

    return Program(step, [(SMALL,), (LARGE, -LARGE)])


@program("episode_with_a_numpy_environment", calls=12, max_fallbacks=6, min_coexecuted=1)
def _():
    policy = tf.Variable(floats(2, 2))
    rng = np.random.RandomState(3)

    def step(start):
        state, log_probabilities, rewards = np.asarray(start), [], []
        with tf.GradientTape() as tape:
            for _ in range(3):
                logits = tf.nn.log_softmax(tf.constant(state[None, :]) @ policy)
                action = int(rng.rand() < np.exp(logits.numpy()[0, 1]))
                log_probabilities.append(logits[0, action])
                state = (0.5 * state + np.array([action, 1 - action])).astype("float32")
                rewards.append(float(state.sum()))
            loss = -tf.reduce_sum(tf.stack(log_probabilities) * rewards)
        policy.assign_sub(0.01 * tape.gradient(loss, policy))
        return loss, rewards

    return Program(step, [(floats(2, seed=1),), (floats(2, seed=2),)], lambda: policy)
