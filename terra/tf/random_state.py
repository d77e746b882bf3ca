"""The states of the generators behind the functions of the modules `random` and `numpy.random`, by which it is seen that something has drawn from them."""

import ctypes
import random
import sys

import numpy as np

_BYTES = 625 * 4  # of NumPy's Mersenne Twister: 624 words, and the place among them

_known = None, None  # what was in memory when NumPy last told its generator's state, and that state


def random_state():
    """Returns the state that draws of Python's and NumPy's own generators change."""
    return random.getstate(), _state_of_numpys()


def leads_here(state, draws):
    """Returns whether these draws, (state before, state after) each, have led from a state to the one that there is now."""
    for before, after in draws:
        if before != state:
            return False
        state = after
    return state == random_state()


def _state_of_numpys():
    """Returns what `np.random.get_state` does, which takes it 40 us: a look into memory shows whether it would tell the same.

    Not so while the second one of a pair of normal numbers is kept for the next draw, which changes nothing there. That one begins to be kept only in
    a draw that does, or in a `set_state`.
    """
    global _known
    generator = np.random.get_bit_generator()
    words = ctypes.string_at(generator.ctypes.state_address, _BYTES) if type(generator) is np.random.MT19937 else None
    known, state = _known
    if words is None or words != known:
        told = np.random.get_state(legacy=False)
        state = _frozen(told)
        if words is not None and not told["has_gauss"] and words == told["state"]["key"].tobytes() + told["state"]["pos"].to_bytes(4, sys.byteorder):
            _known = words, state
    return state


def _frozen(x):
    return tuple(map(_frozen, x.values())) if type(x) is dict else x.tobytes() if type(x) is np.ndarray else x
