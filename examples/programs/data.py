"""Real data that is there without a download: scikit-learn's digits, and the standard library's own text."""

import argparse
import inspect

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def digit_batches(seed, size=64, count=8, shape=(8, 8, 1)):
    """`count` batches of (images in [0, 1], labels), each image in the given shape."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32).reshape(-1, *shape)
    labels = digits.target.astype(np.int32)
    chosen = np.random.default_rng(seed).permutation(len(labels))[: size * count].reshape(count, size)
    return [(tf.constant(images[rows]), tf.constant(labels[rows])) for rows in chosen]


def text_batches(seed, size=32, length=24, count=8):
    """`count` batches of (characters, the character after each), and how many different characters there are.

    The text is the source of a module of the standard library.
    """
    text = inspect.getsource(argparse)
    alphabet = sorted(set(text))
    codes = np.searchsorted(alphabet, list(text)).astype(np.int32)
    starts = np.random.default_rng(seed).integers(0, len(codes) - length - 1, (count, size))
    windows = codes[starts[..., np.newaxis] + np.arange(length + 1)]
    return [(tf.constant(window[:, :-1]), tf.constant(window[:, 1:])) for window in windows], len(alphabet)
