"""Music as a performance: notes that begin and end, how loud they are and the time that passes, each an event with a number."""

import itertools

import numpy as np
import tensorflow as tf

# 128 pitches begin, 128 end, time passes in 100 steps of 10 ms, 32 degrees of loudness: the events of a piano.
BEGIN, END, WAIT, LOUDNESS, EVENTS = 0, 128, 256, 356, 388

SCALE = (0, 2, 4, 5, 7, 9, 11)
CADENCES = ((0, 3, 4, 0), (0, 5, 3, 4), (0, 5, 1, 4), (0, 4, 5, 3))
FIGURES = ((0, 2, 4, 2), (0, 4, 2, 4), (0, 1, 2, 4), (4, 2, 1, 0))
FORM = "AABA"


def pitch(key, degree):
    octave, step = divmod(degree, len(SCALE))
    return key + 12 * octave + SCALE[step]


def bar(key, chord, figure, wait):
    """The events of one bar: a bass note that lasts, and the figure twice above it."""
    bass = pitch(key - 12, chord)
    yield BEGIN + bass
    for degree in figure * 2:
        note = pitch(key + 12, chord + degree)
        yield BEGIN + note
        yield WAIT + wait
        yield END + note
    yield END + bass


def performance(rng):
    """A piece without end: verses in the form AABA, each in a key of its own; in a verse the same letter is the same music."""
    while True:
        key, wait = rng.integers(48, 60), rng.integers(8, 40)
        phrases = {letter: (CADENCES[rng.integers(len(CADENCES))], FIGURES[rng.integers(len(FIGURES))]) for letter in "AB"}
        for letter in FORM:
            yield LOUDNESS + rng.integers(12, 28)
            cadence, figure = phrases[letter]
            for chord in cadence:
                yield from bar(key, chord, figure, wait)


def event_batches(seed, batch, length, count=8):
    """`count` batches of (events, the event after each); each row is another piece."""
    events = (itertools.islice(performance(np.random.default_rng((seed, row))), length + 1) for row in range(batch * count))
    rows = np.array([list(piece) for piece in events], np.int32).reshape(count, batch, length + 1)
    return [(tf.constant(row[:, :-1]), tf.constant(row[:, 1:])) for row in rows]
