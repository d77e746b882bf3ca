"""Real data that is there without a download: scikit-learn's digits, and the standard library's own text."""

import argparse
import collections
import inspect
import re
import tarfile
import typing

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


def text_lines(seed, size, shortest, longest, count):
    """`count` batches of (characters, the character after each), arrays of `size` lines with zeros behind their ends; and how many different characters there are.

    Lines of about the same length are in one batch. The text is the source of a module of the standard library.
    """
    lines = [line.strip() for line in inspect.getsource(argparse).splitlines()]
    lines = [line for line in lines if shortest < len(line) <= longest]
    alphabet = ["", *sorted(set("".join(lines)))]
    lines = [lines[k] for k in sorted(np.random.default_rng(seed).permutation(len(lines))[: size * count], key=lambda k: len(lines[k]))]
    batches = []
    for rows in np.random.default_rng(seed).permutation(len(lines) // size):
        batch = lines[rows * size:(rows + 1) * size]
        codes = np.zeros((size, len(batch[-1])), np.int32)
        for row, line in zip(codes, batch):
            row[: len(line)] = np.searchsorted(alphabet, list(line))
        batches.append((codes[:, :-1].copy(), codes[:, 1:].copy()))
    return batches, len(alphabet)


def word_windows(seed, rows, length, count=8, vocabulary=10000, modules=(argparse, tarfile, typing, inspect)):
    """`count` consecutive windows on `rows` streams of words: (words, the word after each), and how many words are known.

    The text is the source of modules of the standard library. A row goes on where it ended in the window before. Words have numbers by how
    often they come, the commonest first; 0 stands for those that are not among the `vocabulary` commonest.
    """
    words = re.findall(r"\w+|[^\w\s]", "".join(inspect.getsource(module) for module in modules))
    known = ["unknown", *(word for word, _ in collections.Counter(words).most_common(vocabulary - 1))]
    numbers = {word: number for number, word in enumerate(known)}
    codes = np.array([numbers.get(word, 0) for word in words], np.int32)
    each = count * length  # words of one row
    start = np.random.default_rng(seed).integers(len(codes))
    stream = np.resize(np.roll(codes, -start), rows * each + 1)
    inputs, targets = stream[:-1].reshape(rows, count, length), stream[1:].reshape(rows, count, length)
    return [(tf.constant(inputs[:, window]), tf.constant(targets[:, window])) for window in range(count)], len(known)


def snake_case_names(longest, modules=(argparse, tarfile, typing, inspect)):
    """The names with an underscore inside that modules of the standard library use, sorted."""
    text = "".join(inspect.getsource(module) for module in modules)
    return sorted(name for name in set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)) if len(name) <= longest)
