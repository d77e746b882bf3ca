"""YOLOv3: shapes are found in one look, at three scales at once.

One of Terra's ten (there on VOC 2012): Python loops over the scales make the outputs and the losses. For each picture a Python loop compares what was
found with the boxes that the picture has, of which each has another number.
AutoGraph: runs.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import ConvNorm
from examples.programs.blocks.detection import drawing, from_centres, overlaps
from examples.programs.training import adam

SIZES = {
    "test": {"side": 16, "batch": 2, "filters": 4, "blocks": (1, 1), "scales": 2, "depth": 1, "classes": 3},
    "benchmark": {"side": 96, "batch": 2, "filters": 8, "blocks": (1, 1, 1, 1, 1), "scales": 3, "depth": 1, "classes": 3},
    "paper": {"side": 416, "batch": 8, "filters": 32, "blocks": (1, 2, 8, 8, 4), "scales": 3, "depth": 5, "classes": 20},
}
MOST_SHAPES = 4
IGNORED_OVERLAP = 0.5
# (height, width) in parts of the picture's side, three for each scale, from coarse to fine.
ANCHORS = np.array(
    [
        [(0.22, 0.28), (0.48, 0.38), (0.78, 0.9)],
        [(0.15, 0.07), (0.11, 0.15), (0.29, 0.14)],
        [(0.03, 0.02), (0.07, 0.04), (0.06, 0.08)],
    ],
    np.float32,
)


def leaky(x):
    return tf.nn.leaky_relu(x, 0.1)


def convolution(filters, size=1, strides=1):
    return ConvNorm(filters, size, strides, activation=leaky)


class Residual(keras.layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.squeeze, self.expand = convolution(filters // 2), convolution(filters, 3)

    def call(self, x, training=False):
        return x + self.expand(self.squeeze(x, training=training), training=training)


class Darknet(keras.layers.Layer):
    """The maps at the ends of its stages, each of half the sides of the one before."""

    def __init__(self, filters, blocks, **kwargs):
        super().__init__(**kwargs)
        self.stem = convolution(filters, 3)
        self.stages = []
        for stage, number in enumerate(blocks, 1):
            width = filters * 2**stage
            self.stages.append([convolution(width, 3, strides=2), *(Residual(width) for _ in range(number))])

    def call(self, images, training=False):
        x, maps = self.stem(images, training=training), []
        for stage in self.stages:
            for layer in stage:
                x = layer(x, training=training)
            maps.append(x)
        return maps


class Scale(keras.layers.Layer):
    """Looks at the map of one scale, together with what the coarser one, if there is one, has seen."""

    def __init__(self, filters, depth, outputs, has_coarser, **kwargs):
        super().__init__(**kwargs)
        self.lateral, self.upsample = (convolution(filters), keras.layers.UpSampling2D()) if has_coarser else (None, None)
        self.body = [convolution(filters * (1 + index % 2), 1 + 2 * (index % 2)) for index in range(depth)]
        self.last = convolution(2 * filters, 3)
        self.predict = keras.layers.Conv2D(outputs, 1)

    def call(self, x, coarser=None, training=False):
        if self.lateral is not None:
            x = tf.concat([self.upsample(self.lateral(coarser, training=training)), x], axis=-1)
        for layer in self.body:
            x = layer(x, training=training)
        return x, self.predict(self.last(x, training=training))


class YoloV3(keras.Model):
    """For each scale (batch, row, column, anchor, numbers): where a shape is in four numbers, whether there is one, which it is."""

    def __init__(self, filters, blocks, scales, depth, classes):
        super().__init__()
        self.anchors, self.numbers = ANCHORS.shape[1], 5 + classes
        self.backbone = Darknet(filters, blocks)
        widths = [filters * 2 ** (len(blocks) - scale - 1) for scale in range(scales)]
        self.scales = [Scale(width, depth, self.anchors * self.numbers, has_coarser=scale > 0) for scale, width in enumerate(widths)]

    def call(self, images, training=False):
        x, outputs = None, []
        for scale, features in zip(self.scales, reversed(self.backbone(images, training=training))):
            x, found = scale(features, x, training=training)
            batch, rows, columns, _ = found.shape
            outputs.append(tf.reshape(found, (batch, rows, columns, self.anchors, self.numbers)))
        return outputs


class YoloLoss:
    """The loss of one scale."""

    def __init__(self, anchors):
        self.anchors = anchors

    def boxes(self, found):
        """Boxes in parts of the picture's sides, by where they are in their cell and how large against the anchor."""
        cells = found.shape[1]
        corner = tf.stack(tf.meshgrid(tf.range(cells), tf.range(cells), indexing="ij"), axis=-1)[:, :, tf.newaxis]
        centres = (tf.sigmoid(found[..., :2]) + tf.cast(corner, tf.float32)) / cells
        return from_centres(centres, tf.exp(found[..., 2:4]) * self.anchors)

    def __call__(self, target, found, true_boxes):
        place, there, kind = target[..., :4], target[..., 4], tf.cast(target[..., 5], tf.int32)
        losses = []
        for image, boxes in enumerate(tf.unstack(self.boxes(found))):
            present = tf.boolean_mask(true_boxes[image], true_boxes[image, :, 2] > 0.0)
            best = tf.reduce_max(overlaps(boxes, present), axis=-1)
            # Who finds a shape that is another's to find is not blamed for it.
            counts = tf.maximum(there[image], tf.cast(best < IGNORED_OVERLAP, tf.float32))
            confidence = tf.nn.sigmoid_cross_entropy_with_logits(there[image], found[image, ..., 4])
            shape = tf.nn.sparse_softmax_cross_entropy_with_logits(kind[image], found[image, ..., 5:])
            centre = tf.square(place[image, ..., :2] - tf.sigmoid(found[image, ..., :2]))
            side = tf.square(place[image, ..., 2:] - found[image, ..., 2:4])
            where = tf.reduce_sum(centre + side, axis=-1)
            losses.append(tf.reduce_sum(counts * confidence + there[image] * (shape + 2.0 * where)))
        return tf.reduce_mean(losses)


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(example)
        self.losses = [YoloLoss(anchors) for anchors, _ in zip(ANCHORS, model.scales)]
        self.optimizer = adam(model.trainable_variables)
        self.average = keras.metrics.Mean()

    def train_step(self, images, true_boxes, *targets):
        with tf.GradientTape() as tape:
            outputs = self.model(images, training=True)
            of_scales = []
            for loss, target, found in zip(self.losses, targets, outputs):
                of_scales.append(loss(target, found, true_boxes))
            loss = tf.reduce_sum(of_scales)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.average.update_state(loss)
        return loss


def targets(boxes, classes, grids):
    """For each scale (row, column, anchor, 6): what should be found of a shape in the cell of its centre by the anchor that is most like it."""
    anchors = ANCHORS[: len(grids)]
    arrays = [np.zeros((cells, cells, anchors.shape[1], 6), np.float32) for cells in grids]
    for box, kind in zip(boxes, classes):
        side = box[2:] - box[:2]
        if not side.all():
            continue
        both = np.minimum(side, anchors).prod(axis=-1)
        scale, anchor = np.unravel_index(np.argmax(both / (side.prod() + anchors.prod(axis=-1) - both)), both.shape)
        place = 0.5 * (box[:2] + box[2:]) * grids[scale]
        row, column = place.astype(int)
        arrays[scale][row, column, anchor] = (*(place % 1.0), *np.log(side / anchors[scale, anchor]), 1.0, kind)
    return arrays


def shape_batches(seed, side, batch, grids, count=8):
    """`count` batches of (pictures, boxes in parts of the side, targets of the first scale, of the second, ...)."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rows = []
        for _ in range(batch):
            image, boxes, classes = drawing(rng, side, side, MOST_SHAPES)
            rows.append((image, boxes / side, *targets(boxes / side, classes, grids)))
        yield tuple(tf.constant(np.stack(column), tf.float32) for column in zip(*rows))


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    side, batch = sizes.pop("side"), sizes.pop("batch")
    stages = len(sizes["blocks"])
    grids = [side // 2 ** (stages - scale) for scale in range(sizes["scales"])]
    batches = list(shape_batches(seed, side, batch, grids))
    return Job(Trainer(YoloV3(**sizes), batches[0][0]).train_step, batches)
