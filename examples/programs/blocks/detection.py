"""What the detectors share: pictures of drawn shapes with the boxes around them, and the arithmetic of boxes.

A box is (top, left, bottom, right). Where a picture has fewer shapes than there is room for, the boxes left over are zero.
"""

import numpy as np
import tensorflow as tf

# What is inside a shape, by coordinates from -1 to 1 in its box.
SHAPES = (
    lambda y, x: np.ones_like(y, bool),  # a rectangle
    lambda y, x: y**2 + x**2 <= 1.0,  # an ellipse
    lambda y, x: 2.0 * np.abs(x) <= y + 1.0,  # a triangle
)


def drawing(rng, height, width, most):
    """A picture of one to `most` shapes on a ground of noise, with values from -1 to 1; their boxes in pixels; which shapes they are."""
    image = rng.uniform(-0.3, 0.3, (height, width, 3)).astype(np.float32)
    boxes, classes = np.zeros((most, 4), np.float32), np.zeros(most, np.int32)
    for index in range(rng.integers(1, most + 1)):
        sides = rng.uniform(0.2, 0.6, 2) * (height, width)
        top, left = (rng.uniform(0.0, 1.0, 2) * ((height, width) - sides)).astype(int)
        bottom, right = top + int(sides[0]), left + int(sides[1])
        classes[index] = rng.integers(len(SHAPES))
        y, x = np.meshgrid(np.linspace(-1.0, 1.0, bottom - top), np.linspace(-1.0, 1.0, right - left), indexing="ij")
        image[top:bottom, left:right][SHAPES[classes[index]](y, x)] = rng.uniform(-1.0, 1.0, 3)
        boxes[index] = top, left, bottom, right
    return image, boxes, classes


def overlaps(boxes, others):
    """(..., 4) against (number, 4): how much of both is in both, (..., number)."""
    boxes = boxes[..., tf.newaxis, :]
    both = tf.maximum(tf.minimum(boxes[..., 2:], others[..., 2:]) - tf.maximum(boxes[..., :2], others[..., :2]), 0.0)
    both = tf.reduce_prod(both, axis=-1)
    areas = [tf.reduce_prod(some[..., 2:] - some[..., :2], axis=-1) for some in (boxes, others)]
    return both / (areas[0] + areas[1] - both + 1e-9)


def centres_and_sides(boxes):
    return 0.5 * (boxes[..., :2] + boxes[..., 2:]), boxes[..., 2:] - boxes[..., :2]


def from_centres(centres, sides):
    return tf.concat([centres - 0.5 * sides, centres + 0.5 * sides], axis=-1)
