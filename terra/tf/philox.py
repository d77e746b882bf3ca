"""Which seeds have a stateless random operation draw the numbers of a stateful one.

TensorFlow's generator on the host is Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). A stateful operation takes its
attributes for the key and the upper half of the counter. Some stateless ones are given key and counter, others a seed which they scramble: it is the counter
of a Philox block under a fixed key, and the block that comes of it is key and counter. Each round of Philox can be undone, since its multipliers are odd.
"""

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INVERSES = tuple(pow(m, -1, 1 << 32) for m in _MULTIPLIERS)
_WEYL = 0x9E3779B9, 0xBB67AE85
_SCRAMBLING_KEY = 0x3EC8F720, 0x02461E29  # tensorflow/core/kernels/stateless_random_ops.cc
_LOW, _WHOLE = (1 << 32) - 1, (1 << 64) - 1
_KEYS = tuple(tuple((key + k * weyl) & _LOW for key, weyl in zip(_SCRAMBLING_KEY, _WEYL, strict=True)) for k in reversed(range(10)))  # of the rounds, last first


def key_and_counter(seed, seed2):
    """Key and counter of the first draw of a stateful operation, as three integers of 64 bits without sign."""
    return [seed & _WHOLE, 0, seed2 & _WHOLE]


def unscrambled(seed, seed2):
    """The seed of a stateless operation that scrambles it into this key and counter: two integers of 64 bits without sign."""
    (m0, m1), (i0, i1) = _MULTIPLIERS, _INVERSES
    a, b, c, d = seed & _LOW, seed >> 32 & _LOW, seed2 & _LOW, seed2 >> 32 & _LOW
    for key0, key1 in _KEYS:
        x, y = d * i0 & _LOW, b * i1 & _LOW
        a, b, c, d = x, a ^ key0 ^ y * m1 >> 32, y, c ^ key1 ^ x * m0 >> 32
    return [a | b << 32, c | d << 32]
