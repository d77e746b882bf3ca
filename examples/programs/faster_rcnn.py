"""Faster R-CNN: a first network proposes boxes, a second one looks into them.

One of Terra's ten (there on COCO), and of the five that AutoGraph cannot run: the padded size of the pictures is computed by TensorFlow, and NumPy lays
the anchors by its values. How many proposals are left by the non-maximum suppression, and how many of them hit a shape, depends on the data, and Python reckons
with the numbers.
AutoGraph: fails ('SymbolicTensor' has no `numpy`).
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import Bottleneck, ConvNorm
from examples.programs.blocks.detection import centres_and_sides, drawing, from_centres, overlaps
from examples.programs.training import momentum

SIZES = {
    "test": {"side": 64, "batch": 1, "filters": 4, "blocks": (1, 1), "width": 8, "hidden": 32, "proposals": 16, "samples": 16, "anchor": 12, "classes": 3},
    "benchmark": {
        "side": 128, "batch": 1, "filters": 16, "blocks": (2, 2, 2, 2), "width": 32, "hidden": 128, "proposals": 64, "samples": 64, "anchor": 16, "classes": 3,
    },
    "paper": {
        "side": 1216, "batch": 1, "filters": 64, "blocks": (3, 4, 23, 3), "width": 256, "hidden": 1024, "proposals": 2000, "samples": 256, "anchor": 32,
        "classes": 80,
    },
}  # fmt: skip
MOST_SHAPES = 4
RATIOS = np.array([0.5, 1.0, 2.0])  # of an anchor's height to its width
SUPPRESSED_OVERLAP = 0.7
SPREAD = np.array([0.1, 0.1, 0.2, 0.2], np.float32)  # of the corrections that make boxes of others


def corrections(boxes, targets):
    """What makes `targets` of `boxes`, in numbers of like size."""
    (centres, sides), (target_centres, target_sides) = centres_and_sides(boxes), centres_and_sides(targets)
    return tf.concat([(target_centres - centres) / sides, tf.math.log(target_sides / sides)], axis=-1) / SPREAD


def corrected(boxes, correction):
    centres, sides = centres_and_sides(boxes)
    correction = correction * SPREAD
    return from_centres(centres + correction[..., :2] * sides, sides * tf.exp(correction[..., 2:]))


def padded_shape(metas):
    """Height and width that all pictures of a batch are padded to."""
    return tf.cast(tf.reduce_max(metas[:, 2:], axis=0), tf.int32).numpy()


def stride(level):
    """Pixels from cell to cell of a level's map."""
    return 4 * 2**level


def pyramid_anchors(shape, levels, size):
    """Boxes of every ratio around the middle of every cell, for each level's map of a picture of that shape."""
    anchors = []
    for level in range(levels):
        side = size * 2**level
        y, x = ((np.arange(-(-pixels // stride(level))) + 0.5) * stride(level) for pixels in shape)
        y, x, ratio = np.meshgrid(y, x, RATIOS, indexing="ij")
        half_height, half_width = 0.5 * side * np.sqrt(ratio), 0.5 * side / np.sqrt(ratio)
        anchors.append(np.stack([y - half_height, x - half_width, y + half_height, x + half_width], axis=-1).reshape(-1, 4))
    return np.concatenate(anchors).astype(np.float32)


def interpolation(start, end, cells, number):
    """(box, place, cell): how much each cell counts at `number` places from `start` to `end` on an axis."""
    places = start[:, tf.newaxis] + (end - start)[:, tf.newaxis] * ((np.arange(number) + 0.5) / number) - 0.5
    places = tf.clip_by_value(places, 0.0, cells - 1.0)
    return tf.nn.relu(1.0 - tf.abs(places[..., tf.newaxis] - np.arange(cells)))


def crops(features, boxes, number):
    """(box, row, column, channel): a map, interpolated at `number` by `number` places in boxes that are in cells.

    tf.image.crop_and_resize does this, but on a CPU the threads of its gradient overwrite each other's sums: no two runs of a program are equal.
    """
    height, width, _ = features.shape
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = tf.einsum("bry,yxd->brxd", interpolation(top, bottom, height, number), features)
    return tf.einsum("bcx,brxd->brcd", interpolation(left, right, width, number), rows)


def sample(chosen, most):
    """At most that many of the places where `chosen` is true, at random."""
    return tf.random.shuffle(tf.where(chosen)[:, 0])[:most]


def positives_and_negatives(best, positive_overlap, negative_overlap, number, fraction):
    """Random places where the overlap is large, and where it is small: `number` together, if there are enough."""
    positives = sample(best >= positive_overlap, int(number * fraction))
    return positives, sample(best < negative_overlap, number - positives.shape[0])


def box_loss(found, targets, number):
    """Deviation of boxes, smooth where it is small, by the number of all samples."""
    return tf.reduce_sum(keras.losses.huber(targets, found)) / number


class Pyramid(keras.layers.Layer):
    """A residual network and a way back up: maps from fine to coarse, all of the same width."""

    def __init__(self, filters, blocks, width, **kwargs):
        super().__init__(**kwargs)
        self.stem, self.pool = ConvNorm(filters, 7, 2), keras.layers.MaxPooling2D(3, 2, "same")
        self.stages = [
            [Bottleneck(filters * 2**stage, strides=2 if stage and not index else 1, project=not index) for index in range(number)]
            for stage, number in enumerate(blocks)
        ]
        self.laterals = [keras.layers.Conv2D(width, 1) for _ in blocks]
        self.smooth = [keras.layers.Conv2D(width, 3, padding="same") for _ in blocks]
        self.upsample, self.coarsest = keras.layers.UpSampling2D(), keras.layers.MaxPooling2D(1, 2)

    def call(self, images, training=False):
        x, maps = self.pool(self.stem(images, training=training)), []
        for stage, lateral in zip(self.stages, self.laterals):
            for block in stage:
                x = block(x, training=training)
            maps.append(lateral(x))
        for finer in reversed(range(len(maps) - 1)):
            maps[finer] = maps[finer] + self.upsample(maps[finer + 1])
        maps = [smooth(features) for smooth, features in zip(self.smooth, maps)]
        return [*maps, self.coarsest(maps[-1])]


class ProposalNetwork(keras.layers.Layer):
    """Scores and corrections for the anchors; the best boxes are proposed."""

    def __init__(self, width, proposals, samples, **kwargs):
        super().__init__(**kwargs)
        self.proposals, self.samples = proposals, samples
        self.shared = keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu")
        self.score, self.correct = keras.layers.Conv2D(len(RATIOS), 1), keras.layers.Conv2D(4 * len(RATIOS), 1)

    def call(self, maps):
        scores, found = [], []
        for features in maps:
            shared = self.shared(features)
            scores.append(tf.reshape(self.score(shared), (shared.shape[0], -1)))
            found.append(tf.reshape(self.correct(shared), (shared.shape[0], -1, 4)))
        return tf.concat(scores, axis=1), tf.concat(found, axis=1)

    def propose(self, scores, found, anchors, meta):
        """The boxes of one picture that are left when those too much like a better one are gone."""
        scores, best = tf.math.top_k(scores, min(3 * self.proposals, scores.shape[0]))
        boxes = corrected(tf.gather(anchors, best), tf.gather(found, best))
        height, width, _, _ = meta
        boxes = tf.clip_by_value(boxes, 0.0, np.array([height, width, height, width]))
        boxes = tf.gather(boxes, tf.image.non_max_suppression(boxes, scores, self.proposals, SUPPRESSED_OVERLAP))
        return tf.stop_gradient(boxes)

    def loss(self, scores, found, anchors, boxes):
        shared = overlaps(anchors, boxes)
        best = tf.reduce_max(shared, axis=1)
        # An anchor that no other is better for has a shape to find, be the overlap small.
        best = tf.tensor_scatter_nd_update(best, tf.argmax(shared, axis=0)[:, tf.newaxis], tf.ones(boxes.shape[0]))
        positives, negatives = positives_and_negatives(best, 0.7, 0.3, self.samples, 0.5)
        sampled = tf.gather(scores, tf.concat([positives, negatives], axis=0))
        labels = tf.concat([tf.ones(positives.shape[0]), tf.zeros(negatives.shape[0])], axis=0)
        targets = corrections(tf.gather(anchors, positives), tf.gather(boxes, tf.gather(tf.argmax(shared, axis=1), positives)))
        score_loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, sampled))
        return score_loss, box_loss(tf.gather(found, positives), targets, sampled.shape[0])


class BoxNetwork(keras.layers.Layer):
    """Says what is in a box, and corrects it for each class."""

    def __init__(self, width, hidden, classes, samples, anchor, pool=7, **kwargs):
        super().__init__(**kwargs)
        self.classes, self.samples, self.anchor, self.pool = classes, samples, anchor, pool
        self.flatten = keras.layers.Flatten()
        self.hidden = [keras.layers.Dense(hidden, "relu") for _ in range(2)]
        self.classify, self.correct = keras.layers.Dense(classes + 1), keras.layers.Dense(4 * classes)

    def targets(self, proposals, boxes, kinds):
        """Sampled proposals, those that hit a shape first; the class of each, 0 for none; corrections for the first ones."""
        # The shapes themselves are among the proposals, so that there is one that hits, be the first network new.
        proposals = tf.concat([proposals, boxes], axis=0)
        shared = overlaps(proposals, boxes)
        positives, negatives = positives_and_negatives(tf.reduce_max(shared, axis=1), 0.5, 0.5, self.samples, 0.25)
        hit = tf.gather(tf.argmax(shared, axis=1), positives)
        sampled = tf.gather(proposals, tf.concat([positives, negatives], axis=0))
        labels = tf.concat([tf.gather(kinds, hit) + 1, tf.zeros(negatives.shape[0], tf.int32)], axis=0)
        return sampled, labels, corrections(tf.gather(proposals, positives), tf.gather(boxes, hit))

    def align(self, maps, boxes):
        """What the maps show in the boxes, in a few rows and columns: large boxes look at coarse maps."""
        _, sides = centres_and_sides(boxes)
        levels = tf.math.log(tf.sqrt(tf.reduce_prod(sides, axis=1)) / (1.75 * self.anchor) + 1e-6) / np.log(2.0)
        levels = tf.clip_by_value(tf.cast(tf.floor(levels), tf.int32), 0, len(maps) - 1)
        pooled, order = [], []
        for level, features in enumerate(maps):
            places = tf.where(levels == level)[:, 0]
            pooled.append(crops(features, tf.gather(boxes, places) / stride(level), self.pool))
            order.append(places)
        return tf.gather(tf.concat(pooled, axis=0), tf.argsort(tf.concat(order, axis=0)))

    def call(self, pooled):
        x = self.flatten(pooled)
        for layer in self.hidden:
            x = layer(x)
        return self.classify(x), tf.reshape(self.correct(x), (-1, self.classes, 4))

    def loss(self, logits, found, labels, targets):
        number = targets.shape[0]
        found = tf.gather(found[:number], labels[:number] - 1, batch_dims=1)
        class_loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return class_loss, box_loss(found, targets, labels.shape[0])


class FasterRCNN(keras.Model):
    def __init__(self, filters, blocks, width, hidden, proposals, samples, anchor, classes):
        super().__init__()
        self.anchor = anchor
        self.pyramid = Pyramid(filters, blocks, width)
        self.proposing = ProposalNetwork(width, proposals, samples)
        self.looking = BoxNetwork(width, hidden, classes, samples, anchor)

    def call(self, images, metas, boxes, kinds):
        """The four losses of each picture."""
        maps = self.pyramid(images, training=True)
        all_scores, all_found = self.proposing(maps)
        anchors = pyramid_anchors(padded_shape(metas), len(maps), self.anchor)
        losses = []
        for index, meta in enumerate(metas.numpy()):
            scores, found = all_scores[index], all_found[index]
            present = boxes[index, :, 2] > 0.0
            present_boxes, present_kinds = tf.boolean_mask(boxes[index], present), tf.boolean_mask(kinds[index], present)
            proposals = self.proposing.propose(scores, found, anchors, meta)
            sampled, labels, targets = self.looking.targets(proposals, present_boxes, present_kinds)
            pooled = self.looking.align([features[index] for features in maps[:-1]], sampled)
            losses += self.proposing.loss(scores, found, anchors, present_boxes)
            losses += self.looking.loss(*self.looking(pooled), labels, targets)
        return losses


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(*example)
        self.optimizer = momentum(model.trainable_variables, 0.01)
        self.history = []

    def train_step(self, images, metas, boxes, kinds):
        with tf.GradientTape() as tape:
            losses = self.model(images, metas, boxes, kinds)
            loss = tf.add_n(losses) / images.shape[0]
        variables = self.model.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 10.0)
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.history.append(loss.numpy())
        return loss


def shape_batches(seed, side, batch, count=8):
    """`count` batches of (pictures, their heights and widths without and with padding, boxes in pixels, which shapes)."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        images = np.zeros((batch, side, side, 3), np.float32)
        metas, all_boxes, kinds = [], [], []
        for image in images:
            height, width = rng.integers(side * 3 // 4, side + 1, 2)
            image[:height, :width], boxes, classes = drawing(rng, height, width, MOST_SHAPES)
            metas.append((height, width, side, side))
            all_boxes.append(boxes)
            kinds.append(classes)
        yield tf.constant(images), tf.constant(metas, tf.float32), tf.constant(np.stack(all_boxes)), tf.constant(np.stack(kinds))


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batches = list(shape_batches(seed, sizes.pop("side"), sizes.pop("batch")))
    return Job(Trainer(FasterRCNN(**sizes), batches[0]).train_step, batches)
