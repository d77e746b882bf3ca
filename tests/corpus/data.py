"""Kinds of data and of operations: datasets, strings, data-dependent shapes, ragged and sparse, linear algebra."""
import numpy as np
import tensorflow as tf

from . import Program, program
from ._common import floats, ints, regression, tensor, tensors


@program("next_of_an_iterator")
def _():
    dataset = tf.data.Dataset.from_tensor_slices((floats(6, 3), floats(6, 1))).repeat().batch(2)
    batches, w = iter(dataset), tf.Variable(floats(3, 1))

    def step(x):
        features, targets = next(batches)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square((features + x) @ w - targets))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, tensors(3), lambda: w)


@program("dataset_iterated_in_the_step")
def _():
    dataset = tf.data.Dataset.range(6).map(lambda i: tf.cast(i, tf.float32) * 0.5).batch(2)

    def step(x):
        total = x
        for batch in dataset:
            total = total + tf.reduce_sum(batch) * x
        return total

    return Program(step, tensors(2))


@program("last_smaller_batch", calls=15)
def _():
    w = tf.Variable(floats(4, 1))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss * tf.cast(tf.shape(x)[0], tf.float32), x.shape[0]

    (a, b), (c, d) = regression(6)
    return Program(step, [(a, b), (c, d), (a[:2], b[:2])], lambda: w)


@program("sequence_length_changes", calls=12, max_fallbacks=4)
def _():
    w = tf.Variable(floats(3, 3))

    def step(x):
        h = tf.nn.softmax(x @ w @ tf.transpose(x)) @ x
        positions = tf.range(tf.shape(x)[0])
        return tf.reduce_mean(h, axis=0), tf.reshape(h, [-1]), positions, tf.reduce_sum(h) / x.shape[0]

    return Program(step, lambda i: (tensor(2 + i % 4, 3, seed=i),), lambda: w, period=2)


@program("strings")
def _():
    def step(words):
        upper = tf.strings.upper(words)
        joined = tf.strings.join([words, upper], "-")
        parts = tf.strings.split(joined, "-")
        return (joined, tf.strings.length(words), tf.strings.substr(words, 0, 1),
                tf.strings.to_hash_bucket_fast(words, 9), parts, words[0].numpy().decode(),
                tf.strings.reduce_join(words))

    return Program(step, [(tf.constant(["ab", "c"]),), (tf.constant(["de", "fgh"]),)])


@program("integer_bool_and_float64_operations")
def _():
    def step(n, x):
        odd = tf.equal(n % 2, 1)
        wide = tf.cast(n, tf.float64) / 3.0
        return (n // 2 - n * 3, odd & ~(n > 4), tf.reduce_any(odd), tf.bitwise.left_shift(n, 1), wide ** 2.0,
                tf.reduce_sum(tf.cast(odd, tf.int32)), tf.math.mod(x, 1.0), tf.math.floordiv(x, 0.5), -n, abs(n - 3))

    return Program(step, [(tf.constant(ints(4, high=9, seed=s)), tensor(4, seed=s)) for s in (1, 2)])


@program("data_dependent_shapes")
def _():
    def step(x):
        positive = tf.boolean_mask(x, x > 0)
        where = tf.where(x > 0)
        values, index, counts = tf.unique_with_counts(tf.cast(x * 2.0, tf.int32))
        picked = tf.gather_nd(x, where)
        return (tf.reduce_sum(positive), tf.size(positive), where, values, index, counts, picked * 2.0,
                positive.shape[0], tf.concat([positive, x], 0), tf.zeros(tf.shape(positive)))

    return Program(step, tensors(6))


@program("gradient_through_data_dependent_shapes")
def _():
    w = tf.Variable(floats(6))

    def step(x):
        with tf.GradientTape() as tape:
            chosen = tf.boolean_mask(w * x, x > 0)
            loss = tf.reduce_mean(tf.square(chosen)) if tf.size(chosen) > 0 else tf.reduce_sum(w)
        w.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, w)))
        return loss

    return Program(step, tensors(6), lambda: w)


@program("shape_arithmetic")
def _():
    def step(x):
        shape = tf.shape(x)
        batch, features = shape[0], shape[1]
        doubled = tf.tile(x, [2, 1])
        flat = tf.reshape(doubled, [batch * features * 2])
        padded = tf.pad(x, [[0, 1], [features - 3, 0]])
        return (flat, padded, tf.fill([batch, 2], 1.5), tf.broadcast_to(x[:, :1], shape), tf.eye(batch),
                tf.range(0, features))

    return Program(step, [(tensor(2, 3, seed=1),), (tensor(3, 3, seed=2),)])


@program("concat_stack_split_unstack")
def _():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a, b = tf.split(x, 2, axis=1)
            c, d, e = tf.split(x, [1, 1, 2], axis=1)
            rows = tf.unstack(tf.concat([a, b, e], axis=1))
            y = tf.stack(rows[::-1], axis=1) * 2.0
            loss = tf.add_n([tf.reduce_sum(t * t) for t in (y, c, d)])
        parallel = tf.meshgrid(x[0], x[1])
        return y, tape.gradient(loss, x), parallel, tf.dynamic_partition(x, [0, 1], 2)

    return Program(step, tensors(2, 4))


@program("strided_slices_and_gathers")
def _():
    def step(x, i):
        return (x[1:, ::2], x[..., -1], x[:, None, ::-1], x[i], x[i:, :2], tf.gather(x, [i, 0], axis=1), x[0, 1:3],
                tf.gather(x, tf.argsort(x[:, 0])), tf.gather_nd(x, [[0, i], [1, 1]]), tf.slice(x, [0, 1], [2, 2]),
                tf.tensor_scatter_nd_update(x, [[0, 0]], [9.0]), tf.gather(x, tf.argmax(x, 1), axis=1, batch_dims=1))

    return Program(step, [(tensor(3, 4, seed=1), 1), (tensor(3, 4, seed=2), tf.constant(2))])


@program("einsum_and_linear_algebra")
def _():
    a = tf.Variable(floats(3, 3))

    def step(x):
        with tf.GradientTape() as tape:
            outer = tf.einsum("bi,bj,ij->bij", x, x, a)
            spd = tf.matmul(a, a, transpose_b=True) + 3.0 * tf.eye(3)
            solved = tf.linalg.solve(spd, tf.transpose(x))
            loss = tf.reduce_sum(outer) + tf.linalg.logdet(spd) + tf.reduce_sum(solved)
        q, r = tf.linalg.qr(tape.gradient(loss, a))
        s, u, v = tf.linalg.svd(spd)
        return loss, q @ r, s, tf.linalg.cholesky(spd), tf.linalg.inv(spd), tf.linalg.band_part(spd, 0, -1)

    return Program(step, tensors(2, 3), lambda: a)


@program("convolutions_by_hand")
def _():
    kernel, bias = tf.Variable(floats(3, 3, 2, 4) * 0.3), tf.Variable(tf.zeros([4]))

    def step(x):
        with tf.GradientTape() as tape:
            h = tf.nn.conv2d(x, kernel, [1, 2, 2, 1], "SAME") + bias
            h, mean, variance = tf.compat.v1.nn.fused_batch_norm(h, tf.ones([4]), tf.zeros([4]), is_training=True)
            h = tf.nn.avg_pool2d(tf.nn.leaky_relu(h), 2, 1, "VALID")
            up = tf.nn.conv2d_transpose(h, kernel, [2, 7, 7, 2], 2, "VALID")
            loss = tf.reduce_mean(tf.square(tf.nn.max_pool2d(up, 2, 2, "SAME")))
        for v, g in zip((kernel, bias), tape.gradient(loss, [kernel, bias])):
            v.assign_sub(0.1 * g)
        return loss, mean, variance

    return Program(step, tensors(2, 8, 8, 2), lambda: [kernel, bias])


@program("sorting_and_top_k")
def _():
    def step(x):
        values, indices = tf.nn.top_k(x, 2)
        return (values, indices, tf.sort(x, direction="DESCENDING"), tf.argsort(x),
                tf.searchsorted(tf.sort(x), [[0.0]] * 2), tf.nn.in_top_k([0, 1], x, 2),
                tf.math.cumsum(x, axis=1, reverse=True), tf.reduce_logsumexp(x))

    return Program(step, tensors(2, 4))


@program("segments_and_scatter")
def _():
    def step(x, ids):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.math.unsorted_segment_sum(x, ids, 3)
            loss = tf.reduce_sum(tf.math.segment_mean(x, tf.sort(ids)) ** 2) + tf.reduce_sum(total[0])
        return total, tape.gradient(loss, x), tf.scatter_nd(ids[:, None], x, [4, 2]), tf.math.bincount(ids, minlength=3)

    return Program(step, [(tensor(4, 2, seed=1), tf.constant([0, 2, 1, 0])),
                          (tensor(4, 2, seed=2), tf.constant([0, 1, 2, 2]))])


@program("complex_numbers_and_fft")
def _():
    def step(x):
        z = tf.signal.rfft(x)
        filtered = tf.signal.irfft(z * tf.complex([0.5] * 5, [0.1] * 5))
        return tf.abs(z), tf.math.angle(z), filtered, tf.math.conj(z)

    return Program(step, tensors(2, 8))


@program("ragged_tensors")
def _():
    def step(values, splits):
        ragged = tf.RaggedTensor.from_row_splits(values, splits)
        means = tf.reduce_mean(ragged, axis=1)
        return (ragged * 2.0, means, ragged.to_tensor(-1.0), ragged.row_lengths(),
                tf.concat([ragged, ragged], 1).bounding_shape())

    return Program(step, [(tensor(5, seed=1), tf.constant([0, 2, 5])), (tensor(5, seed=2), tf.constant([0, 4, 5]))])


@program("sparse_tensors")
def _():
    w = tf.Variable(floats(4, 2))

    def step(values, columns):
        sparse = tf.sparse.SparseTensor(tf.stack([tf.range(3, dtype=tf.int64), columns], 1), values, [3, 4])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sparse.sparse_dense_matmul(sparse, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return sparse, tf.sparse.to_dense(sparse), tf.sparse.reduce_sum(sparse, 1), loss

    return Program(step, [(tensor(3, seed=s), tf.constant(ints(3, high=4, seed=s))) for s in (1, 2)], lambda: w)


@program("lookup_table_in_the_step")
def _():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1]), -1)
    vectors = tf.Variable(floats(3, 2))

    def step(words):
        return tf.gather(vectors, table.lookup(words) + 1), table.size()

    return Program(step, [(tf.constant(["a", "x"]),), (tf.constant(["b", "a"]),)], lambda: vectors)


@program("serialised_examples")
def _():
    features = {"x": tf.io.FixedLenFeature([2], tf.float32), "name": tf.io.FixedLenFeature([], tf.string)}

    def example(x, name):
        return tf.train.Example(features=tf.train.Features(feature={
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
            "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[name]))})).SerializeToString()

    def step(serialised):
        parsed = tf.io.parse_example(serialised, features)
        raw = tf.io.decode_raw(parsed["name"], tf.uint8)
        return parsed, raw, tf.io.parse_tensor(tf.io.serialize_tensor(parsed["x"]), tf.float32)

    return Program(step, [([example([1.0, 2.0], b"ab"), example([3.0, 4.0], b"cd")],),
                          ([example([5.0, 6.0], b"ef")] * 2,)])


@program("images_resized_and_flipped")
def _():
    def step(x, flip):
        y = tf.image.resize(x, [6, 6])
        if flip:
            y = tf.image.flip_left_right(y)
        y = tf.image.adjust_contrast(tf.image.random_brightness(y, 0.2), 1.5)
        patches = tf.image.extract_patches(x, [1, 2, 2, 1], [1] * 4, [1] * 4, "VALID")
        return tf.image.crop_to_bounding_box(y, 1, 1, 4, 4), patches

    return Program(step, [(tensor(2, 4, 4, 3, seed=s), s == 1) for s in (1, 2)])


@program("nested_structures_as_arguments")
def _():
    def step(batch, weights=(1.0,)):
        total = tf.nest.map_structure(lambda t: tf.reduce_sum(t), batch)
        flat = tf.nest.flatten(total)
        return tf.nest.pack_sequence_as(batch, [f * weights[0] for f in flat]), tf.add_n(flat)

    return Program(step, [({"a": [tensor(2, seed=s), tensor(3, seed=s)], "b": (np.float32(s), tensor(1))}, (s * 0.5,))
                          for s in (1, 2)])


@program("losses_and_activations")
def _():
    def step(x, y):
        sparse = tf.argmax(y, -1)
        return (tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
                tf.nn.sparse_softmax_cross_entropy_with_logits(sparse, x),
                tf.nn.sigmoid_cross_entropy_with_logits(y, x), tf.nn.l2_normalize(x, -1), tf.nn.moments(x, [0]),
                tf.nn.gelu(x), tf.nn.swish(x), tf.nn.log_softmax(y),
                tf.math.confusion_matrix(sparse, tf.argmax(x, -1), 3), tf.nn.ctc_greedy_decoder(x[:, None], [4])[1])

    return Program(step, [(tensor(4, 3, seed=s), tensor(4, 3, seed=s + 1)) for s in (1, 3)])
