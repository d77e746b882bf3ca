"""Gradient tapes: several, persistent, nested, partial; gradients of every kind."""
import keras
import tensorflow as tf

from . import Program, program
from ._common import dense_variables, floats, ints, optimizer_state, regression, tensor, tensors


@program("two_tapes_and_two_optimizers")
def _():
    generator = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    critic = keras.Sequential([keras.Input([4]), keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.5)]
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(noise, real):
        with tf.GradientTape() as g_tape, tf.GradientTape() as c_tape:
            fake = generator(noise, training=True)
            on_real, on_fake = critic(real), critic(fake)
            g_loss = loss_fn(tf.ones_like(on_fake), on_fake)
            c_loss = loss_fn(tf.ones_like(on_real), on_real) + loss_fn(tf.zeros_like(on_fake), on_fake)
        for tape, loss, model, optimizer in zip((g_tape, c_tape), (g_loss, c_loss), (generator, critic), optimizers):
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return g_loss, c_loss

    return Program(step, [(tensor(4, 3, seed=s), tensor(4, 4, seed=s + 1)) for s in (1, 3)],
                   lambda: [generator.variables, critic.variables, [optimizer_state(o) for o in optimizers]])


@program("second_model_updated_with_the_first_ones_new_weights")
def _():
    a, b = tf.Variable(floats(3, 2)), tf.Variable(floats(2, 1))

    def step(x):
        with tf.GradientTape() as tape:
            loss_a = tf.reduce_mean(tf.square(x @ a @ b))
        a.assign_sub(0.1 * tape.gradient(loss_a, a))
        with tf.GradientTape() as tape:
            loss_b = tf.reduce_mean(tf.square(x @ a @ b - 1.0))
        b.assign_sub(0.1 * tape.gradient(loss_b, b))
        return loss_a, loss_b

    return Program(step, tensors(4, 3), lambda: [a, b])


@program("persistent_tape")
def _():
    v = tf.Variable([1.0, 2.0, 3.0])

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            y = tf.square(v) * x
            z = tf.reduce_sum(tf.exp(-y))
        dy, dz = tape.gradient(y, v), tape.gradient(z, v)
        dzy = tape.gradient(z, y)
        del tape
        v.assign_sub(0.1 * dz)
        return dy, dz, dzy

    return Program(step, tensors(3), lambda: v)


@program("nested_tapes_gradient_penalty")
def _():
    layers = dense_variables(3, 4, 1)
    weights = [v for layer in layers for v in layer]

    def critic(x):
        (w0, b0), (w1, b1) = layers
        return tf.tanh(x @ w0 + b0) @ w1 + b1

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = critic(x)
            slope = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(score, x)), axis=1))
            loss = tf.reduce_mean(score) + 10.0 * tf.reduce_mean(tf.square(slope - 1.0))
        gradients = outer.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for v, g in zip(weights, gradients):
            v.assign_sub(0.01 * g)
        return loss

    return Program(step, tensors(4, 3), lambda: weights)


@program("hessian_by_rows")
def _():
    v = tf.Variable([0.5, -1.0, 2.0])

    def step(x):
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                y = tf.reduce_sum(tf.sin(v * x) * v[::-1])
            slope = inner.gradient(y, v)
            parts = [slope[i] for i in range(3)]
        return tf.stack([outer.gradient(part, v) for part in parts])

    return Program(step, tensors(3), lambda: v)


@program("custom_gradient")
def _():
    v = tf.Variable([3.0, -2.0])

    @tf.custom_gradient
    def clipped(x):
        y = tf.exp(x)

        def backward(upstream):
            return tf.clip_by_value(upstream * y, -1.0, 1.0)

        return y, backward

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(v) * x)
        v.assign_sub(0.1 * tape.gradient(loss, v))
        return loss

    return Program(step, tensors(2), lambda: v)


@program("embedding_gradient_is_indexed_slices")
def _():
    table = tf.Variable(floats(7, 3))

    def step(ids):
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, ids)
            loss = tf.reduce_sum(tf.square(rows))
        slices = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(slices.values * 0.1, slices.indices))
        return slices, tf.convert_to_tensor(slices)

    return Program(step, [(tf.constant(ints(4, high=7, seed=s)),) for s in (1, 2)], lambda: table)


@program("embedding_optimizer_applies_indexed_slices")
def _():
    table, optimizer = keras.Variable(floats(7, 3)), keras.optimizers.Adagrad(0.1)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.gather(table, ids) ** 2)
        optimizer.apply([tape.gradient(loss, table)], [table])
        return loss

    return Program(step, [(tf.constant(ints(4, high=7, seed=s)),) for s in (1, 2)],
                   lambda: [table, optimizer_state(optimizer)])


@program("gradient_clipping")
def _():
    layers = dense_variables(4, 3, 1)
    weights = [v for layer in layers for v in layer]

    def step(x, y):
        with tf.GradientTape() as tape:
            h = tf.sigmoid(x @ layers[0][0] + layers[0][1])
            loss = 100.0 * tf.reduce_mean(tf.square(h @ layers[1][0] + layers[1][1] - y))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 1.0)
        for v, g in zip(weights, gradients):
            v.assign_sub(tf.clip_by_norm(g, 0.5))
        return loss, norm

    return Program(step, regression(), lambda: weights)


@program("watched_tensors_and_stop_gradient")
def _():
    def step(x):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = x * tf.stop_gradient(tf.exp(x))
            with tape.stop_recording():
                scale = tf.reduce_max(y)
            z = y / scale
        return tape.gradient(z, x), z

    return Program(step, tensors(2, 3))


@program("unconnected_gradients")
def _():
    a, b = tf.Variable(1.0), tf.Variable([2.0, 3.0])

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            y = tf.reduce_sum(a * x)
        none = tape.gradient(y, {"a": a, "b": b})
        zero = tape.gradient(y, [a, b], unconnected_gradients="zero")
        return none, zero, none["b"] is None

    return Program(step, tensors(3), lambda: [a, b])


@program("output_gradients_and_tape_reset")
def _():
    v = tf.Variable(floats(3))

    def step(x):
        with tf.GradientTape() as tape:
            wasted = tf.reduce_sum(v * v)
            tape.reset()
            y = v * x
            z = tf.cumsum(y)
        return tape.gradient([y, z], v, output_gradients=[tf.ones_like(y), 2.0 * x]), wasted

    return Program(step, tensors(3), lambda: v)


@program("forward_accumulator")
def _():
    v = tf.Variable(floats(3))

    def step(x):
        with tf.autodiff.ForwardAccumulator(v, x) as accumulator:
            y = tf.reduce_sum(tf.sin(v) * tf.square(v))
        v.assign_sub(0.01 * x)
        return accumulator.jvp(y)

    return Program(step, tensors(3), lambda: v)


@program("jacobian_without_pfor")
def _():
    w = tf.Variable(floats(3, 2))

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            y = tf.nn.softmax(tf.reduce_sum(x @ w, axis=0))
        return tape.jacobian(y, w, experimental_use_pfor=False)

    return Program(step, tensors(2, 3), lambda: w)


@program("inner_loop_of_gradient_steps")
def _():
    meta = tf.Variable(floats(3, 1))

    def step(x, y):
        with tf.GradientTape() as outer:
            fast = meta + 0.0
            for _ in range(2):
                with tf.GradientTape() as inner:
                    inner.watch(fast)
                    loss = tf.reduce_mean((x @ fast - y) ** 2)
                fast = fast - 0.1 * inner.gradient(loss, fast)
            loss = tf.reduce_mean((x @ fast - y) ** 2)
        meta.assign_sub(0.1 * outer.gradient(loss, meta))
        return loss

    return Program(step, regression(5, 3), lambda: meta)


@program("gradient_with_respect_to_the_input")
def _():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])

    def step(x):
        x = tf.Variable(x)
        for _ in range(2):
            with tf.GradientTape() as tape:
                score = tf.reduce_sum(model(x))
            x.assign_add(0.1 * tf.sign(tape.gradient(score, x)))
        return x.read_value()

    return Program(step, tensors(2, 4), lambda: model.variables)


@program("tape_kept_open_by_hand")
def _():
    v = tf.Variable(floats(3))

    def step(x):
        tape = tf.GradientTape()
        tape.__enter__()
        try:
            y = tf.reduce_sum(tf.nn.softplus(v * x))
        finally:
            tape.__exit__(None, None, None)
        return tape.gradient(y, v), [w.name for w in tape.watched_variables()]

    return Program(step, tensors(3), lambda: v)
