"""Which classes TensorFlow's candidate samplers draw with given seeds: those that `tf.nn.nce_loss` and `tf.nn.sampled_softmax_loss` compare labels with.

Their kernels (range_sampler.cc) draw one class after another from Philox' numbers. With `unique`, classes that were drawn before are drawn again; from the
number of tries that this took follows how often each class is expected among the candidates, which the graph calculates (see `graph.candidate_sampling`).
"""

import math

import numpy as np

MOST_SAMPLED = 1024  # for so many, Python takes about as long as the kernel, which is made anew for new seeds


def can_draw(attrs):
    """Returns whether `candidates` finds what a sampler with these attributes draws, and does not take long.

    Where a large part of the classes is to be drawn, the last of them take many tries.
    """
    sampled, classes = attrs["num_sampled"], attrs["range_max"]
    return 0 < sampled <= MOST_SAMPLED and classes < 2**53 and (4 * sampled <= classes or not attrs["unique"])


def candidates(op_type, attrs, words):
    """The classes that are drawn, and after them the number of tries. words(n): an array of the first n of the generator's numbers of 32 bits."""
    sampled, classes, unique = attrs["num_sampled"], attrs["range_max"], attrs["unique"]
    numbers = 4 * sampled + 16 if unique else 2 * sampled + 2
    while True:
        found = drawn = _DRAWN_BY[op_type](*np.asarray(words(numbers), np.uint64).reshape(-1, 2).T, classes).tolist()
        if unique:
            found = list(dict.fromkeys(drawn))
        if len(found) >= sampled:
            return [*found[:sampled], drawn.index(found[sampled - 1]) + 1 if unique else sampled]
        numbers *= 2


def _log_uniform(first, second, classes):
    exponents = ((first & 0xFFFFF) << 32 | second) * 2.0**-52 * math.log1p(classes)
    return (np.array([*map(math.exp, exponents.tolist())]).astype(np.int64) - 1) % classes  # numpy's exp may differ in the last bit


def _uniform(first, second, classes):
    numbers = second << 32 | first
    if classes & (classes - 1):
        numbers = numbers[numbers >= 2**64 % classes]  # with those below this, there would be too many of some classes
    return numbers % classes


_DRAWN_BY = {"LogUniformCandidateSampler": _log_uniform, "UniformCandidateSampler": _uniform}
