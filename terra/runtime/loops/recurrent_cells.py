"""The cells of a recurrent layer: what the layer has drawn for its loop, and whether it has changed."""

import sys

from terra.frameworks import keras
from terra.runtime.fast_forward.guards import guard_set
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import private_names as tfi


def backend():
    return sys.modules[keras.BACKEND]


def guard_of(layer):
    """Tells whether a layer has changed; None if it calls functions of the user's, or cannot be told."""
    users = []
    try:
        guard = guard_set.GuardSet(layer, [], users)
    except Unskippable:
        return None
    return None if users else guard


def flat_states(states):
    """Those of a stateful layer are variables of Keras'."""
    return [x._value if keras.is_of_keras(type(x)) else x for x in tfi.tf.nest.flatten(states)]


def cells_of(cell):
    """The cells in a cell."""
    return [inner for part in cell.cells for inner in cells_of(part)] if hasattr(cell, "cells") else [cell]


def held_masks(cells):
    """Lists what the layer has drawn for its loop: for each cell what it holds by the names in `keras.DROPOUT_MASKS`."""
    return [vars(cell).get(name) for cell in cells for name in keras.DROPOUT_MASKS]


def dropout_masks(cells):
    return [x for x in tfi.tf.nest.flatten(held_masks(cells)) if x is not None]


class WithDropout:
    """While it lasts, the cells hold these masks."""

    def __init__(self, cells, masks):
        self._cells, self._masks = cells, masks

    def __enter__(self):
        self._before = self._exchange(self._masks)

    def __exit__(self, *exc):
        self._exchange(self._before)

    def _exchange(self, masks):
        masks, before = iter(masks), []
        for cell in self._cells:
            for name in keras.DROPOUT_MASKS:
                mask = next(masks)
                before.append(vars(cell).get(name))
                if name in vars(cell):
                    vars(cell)[name] = mask
        return before


def without_dropout(cells):
    return WithDropout(cells, [None] * (len(cells) * len(keras.DROPOUT_MASKS)))
