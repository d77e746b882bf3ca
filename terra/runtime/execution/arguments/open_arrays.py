"""Arrays among a step's arguments whose sizes vary, and are left unknown (see `dynamic_arguments`).

The step's code is given the array itself, since it may do anything with it. But where TensorFlow makes a tensor of it, that is an argument of the graph, whose sizes are left unknown as those
of tensors are: one for each use, as eager execution makes one for each. How often, and as what types, a step uses its arrays is learned from the steps before.
"""

from typing import Any, Optional

import numpy as np

from terra.runtime.tensors.open_shapes import PartialShape, common, fits
from terra.runtime.tensors.tensor import holds_numbers
from terra.tf import private_names as tfi

MOST_USES = 8  # of one array in a step


def arrays_of(step: Any) -> list:
    """The arrays of numbers among a step's arguments, each once."""
    return [x for x in step.arrays.values() if holds_numbers(x)] if step.arrays else []


class OpenUse:
    """One use of an array: `tensor` is the graph's argument, `stand_in` what it is in the step, with some sizes unknown."""

    __slots__ = ("array", "dtype", "tensor", "stand_in", "is_taken")

    def __init__(self, array: np.ndarray, dtype: Any):
        self.array, self.dtype = array, dtype
        self.tensor, self.stand_in, self.is_taken = tfi.eager_constant(array, dtype), None, False

    def take(self) -> Any:
        """Returns the tensor that stands for the array; None if that holds something else by now."""
        array, held = self.array, self.tensor._numpy_internal()
        if (array if array.dtype == held.dtype else tfi.eager_constant(array, self.dtype)._numpy_internal()).tobytes() != held.tobytes():
            return None
        self.is_taken = True
        return self.stand_in


class UsesOfArrays:
    """Keeps what is known of the arrays among the arguments of one function."""

    def __init__(self) -> None:
        self._known = {}  # types and ranks of the arrays -> their shapes, each a PartialShape if some of its sizes have varied
        self._uses = {}  # (the same, number of an array) -> the types as which a step uses it, None for its own
        self._has_more = False  # whether the last step had uses that were not known

    def are_more(self) -> bool:
        """Whether steps use their arrays more often, or as other types, than was known when this was last asked."""
        more, self._has_more = self._has_more, False
        return more

    def become_arguments(self, step: Any, arrays: list) -> list:
        """Makes the uses of arrays whose sizes have varied arguments of a step. Returns the shape of each, as far as it is always the same."""
        kinds, made = _kinds(arrays), []
        for number, (array, shape) in enumerate(zip(arrays, self._known[kinds])):
            for dtype in self._uses.setdefault((kinds, number), [None]) if type(shape) is PartialShape else ():
                use = OpenUse(array, dtype)
                step.open_uses[len(step.arg_list)] = use
                step.args[id(use.tensor)] = len(step.arg_list), use.tensor
                step.arg_list.append(use.tensor)
                made.append(shape)
        return made

    def note(self, arrays: list) -> None:
        """A step has these arrays."""
        kinds = _kinds(arrays)
        known = self._known.get(kinds)
        if known is None:
            self._known[kinds] = [x.shape for x in arrays]
            return
        for k, (array, seen) in enumerate(zip(arrays, known)):
            if not fits(array.shape, seen):
                known[k] = PartialShape(common(array.shape, seen))

    def want(self, arrays: list, array: np.ndarray, dtype: Any) -> None:
        """A step has used an array as this type once more than was known."""
        number = next(k for k, x in enumerate(arrays) if x is array)
        uses = self._uses[_kinds(arrays), number]
        if len(uses) < MOST_USES:
            uses.append(dtype)
            self._has_more = True


def _kinds(arrays: list) -> tuple:
    return tuple([(x.dtype, x.ndim) for x in arrays])


def stand_in(step: Any, array: np.ndarray, dtype: Optional[Any] = None) -> Any:
    """Returns the tensor that stands for the next use of an array, as this type, whose sizes are left unknown; None if there is none."""
    uses = [use for use in step.open_uses.values() if use.array is array]
    for use in uses:
        if use.dtype == dtype and not use.is_taken and use.stand_in is not None:
            return use.take()
    if uses:
        step.function.dynamic_arguments.uses.want(arrays_of(step), array, dtype)
    return None
