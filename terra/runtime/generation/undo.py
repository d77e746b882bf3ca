"""Undoing updates of variables in their place, after a graph has failed, or was cancelled, before its barrier.

The graph itself notes what such an update is about to overwrite, in variables of Terra's own, and empties these behind the barrier, where nothing can
fail any more. (The supplement of the paper checkpoints variables before each step; that would have to wait for the step before.) Of a scattered
update it notes the rows, of all others the whole value: TensorFlow shares the buffer, and copies it when something is written into it.
"""

import numpy as np

from terra.tf import private_names as tfi

_EMPTY = (0,) * 7  # the shape of what a variable holds that has nothing to undo


def empty(enum):
    """Returns the array that is assigned to a variable which has nothing to undo."""
    return np.zeros(_EMPTY, tfi.dtypes.as_dtype(enum).as_numpy_dtype)


def _new_variable(enum, device="CPU:0"):
    with tfi.tf.device(device):
        return tfi.tf.Variable(tfi.tf.constant(empty(enum), tfi.dtypes.as_dtype(enum)), trainable=False, shape=tfi.tensor_shape.unknown_shape())


def read(handle, enum):
    """Reads a variable; gives a tensor that shares its buffer, which is copied on write."""
    return _execute("ReadVariableOp", [handle], ("dtype", enum), 1)[0]


def assign(handle, value):
    _execute("AssignVariableOp", [handle, value], ("dtype", value._datatype_enum(), "validate_shape", False))


def _execute(op, inputs, attrs, n_outputs=0):
    return tfi.execute(tfi.context_handle(), "", op, inputs, attrs, n_outputs)


def _take(handle, enum):
    """Takes the value out of one of these variables, which holds nothing from now on; None if it does not hold anything."""
    value = read(handle, enum)
    if value._shape_tuple() == _EMPTY:
        return None
    assign(handle, tfi.tf.constant(empty(enum), tfi.dtypes.as_dtype(enum)))
    return value


class OldValue:
    """Where the graph notes the value of a variable at the start of a step."""

    def __init__(self, handle, enum):
        self.handle, self.enum = handle, enum
        self._value = _new_variable(enum, handle.device)
        self.value = self._value.handle
        self.emptied = self.value, enum  # what the graph empties

    def restore(self):
        value = _take(self.value, self.enum)
        if value is not None:
            assign(self.handle, value)


class OldRows:
    """Where the graph notes rows, or single elements, of a variable, and then where they are, before they are updated."""

    def __init__(self, handle, enum, index_enum, of_elements):
        self.handle, self.enum, self.index_enum = handle, enum, index_enum
        self._variables = _new_variable(enum, handle.device), _new_variable(index_enum)  # (a GPU has no variables of 32-bit integers)
        self.rows, self.indices = (variable.handle for variable in self._variables)
        self.emptied = self.indices, index_enum
        self.gathers, self._scatters = ("ResourceGatherNd", "ResourceScatterNdUpdate") if of_elements else ("ResourceGather", "ResourceScatterUpdate")

    def restore(self):
        indices = _take(self.indices, self.index_enum)
        if indices is not None:
            rows = _take(self.rows, self.enum)
            kind = "T" if self._scatters == "ResourceScatterNdUpdate" else "dtype"
            _execute(self._scatters, [self.handle, indices, rows], (kind, self.enum, "Tindices", self.index_enum))


def restore(notes):
    """Undo what a graph with these notes has done, from the last update to the first, if it did not come to its barrier."""
    for note in reversed(notes):
        note.restore()
