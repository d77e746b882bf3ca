"""Which classes TensorFlow's candidate samplers draw with given seeds: those that `tf.nn.nce_loss` and `tf.nn.sampled_softmax_loss` compare labels with.

Their kernels (range_sampler.cc) draw one class after another from Philox' numbers. With `unique`, classes that were drawn before are drawn again; from the
number of tries that this took follows how often each class is expected among the candidates, which the graph calculates (see `graph.eager_kernels`).
"""

import math
from itertools import islice

MOST_SAMPLED = 1024  # Python draws some five million per second; the kernel, which is made anew for new seeds, is as fast only for many


def can_draw(attrs):
    """Whether `candidates` finds what a sampler with these attributes draws, and does not take long.

    Where a large part of the classes is to be drawn, the last of them take many tries.
    """
    sampled, classes = attrs["num_sampled"], attrs["range_max"]
    return 0 < sampled <= MOST_SAMPLED and classes < 2**53 and (4 * sampled <= classes or not attrs["unique"])


def candidates(op_type, attrs, words):
    """The classes that are drawn, and after them the number of tries. words(n): the first n of the generator's numbers of 32 bits."""
    sampled, classes, unique = attrs["num_sampled"], attrs["range_max"], attrs["unique"]
    numbers = 3 * sampled + 16 if unique else 2 * sampled + 2
    while True:
        drawn = _DRAWN_BY[op_type](iter(words(numbers)), classes)
        if unique:
            found, tries = {}, 0
            for x in drawn:
                tries += 1
                found[x] = None
                if len(found) == sampled:
                    return [*found, tries]
        else:
            found = list(islice(drawn, sampled))
            if len(found) == sampled:
                return [*found, sampled]
        numbers *= 2


def _log_uniform(words, classes):
    scale = math.log1p(classes)
    for x, y in zip(words, words):
        yield (int(math.exp(((x & 0xFFFFF) << 32 | y) * 2.0**-52 * scale)) - 1) % classes


def _uniform(words, classes):
    rejected = 0 if classes & (classes - 1) == 0 else 2**64 % classes  # below this, there would be too many of some classes
    for x, y in zip(words, words):
        number = x | y << 32
        if number >= rejected:
            yield number % classes


_DRAWN_BY = {"LogUniformCandidateSampler": _log_uniform, "UniformCandidateSampler": _uniform}
