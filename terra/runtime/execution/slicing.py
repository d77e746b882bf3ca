"""`x[:, t]` in a step, without TensorFlow's Python for it.

Indexing by Python numbers costs some 80 us in TensorFlow, nearly all for packing begin, end and strides into tensors; a loop over time does it once
in each iteration. While a step runs, an index of plain ints, slices, `...` and None goes straight to the StridedSlice operation, with the constants
made here. Everything else, and whatever is no step's, is left to TensorFlow.

Slices of variables are taken in the same way. TensorFlow attaches a function to them that assigns to that part of the variable; here it is an object
that fast-forward knows.
"""

from threading import get_ident

from terra.location import current_step
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi

_LARGEST = 2 ** 31 - 1
_INT32 = tfi.dtypes.int32
_BITS = [1 << k for k in range(32)]


def _parse(spec):
    """(begin, end, strides, masks as attributes) of an index, or None if it is not a plain one."""
    if type(spec) is not tuple:
        spec = (spec,)
    begin, end, strides = [], [], []
    begin_mask = end_mask = ellipsis_mask = new_axis_mask = shrink_mask = 0
    if len(spec) > len(_BITS):
        return None
    for s, bit in zip(spec, _BITS):
        kind = type(s)
        if kind is int:
            if not -_LARGEST <= s < _LARGEST:
                return None
            begin.append(s)
            end.append(s + 1)
            strides.append(1)
            shrink_mask |= bit
        elif kind is slice:
            for bound, values, default in ((s.start, begin, 0), (s.stop, end, 0), (s.step, strides, 1)):
                if bound is None:
                    values.append(default)
                elif type(bound) is int and -_LARGEST <= bound <= _LARGEST:
                    values.append(bound)
                else:
                    return None
            if s.start is None:
                begin_mask |= bit
            if s.stop is None:
                end_mask |= bit
        elif s is Ellipsis or s is None:
            begin.append(0)
            end.append(0)
            strides.append(1)
            if s is None:
                new_axis_mask |= bit
            else:
                ellipsis_mask |= bit
        else:
            return None
    return begin, end, strides, (
        "begin_mask", begin_mask, "end_mask", end_mask, "ellipsis_mask", ellipsis_mask, "new_axis_mask", new_axis_mask,
        "shrink_axis_mask", shrink_mask)


def getitem(original):
    """A stand-in for `tf.Tensor.__getitem__`."""

    def __getitem__(tensor, spec):
        step = current_step.active
        if step is not None and step.thread == get_ident() and not step.paused and tfi.tf.executing_eagerly() and not tfi.slices_like_numpy():
            kind = type(tensor)
            if kind is TerraTensor or kind is tfi.EagerTensor:
                parsed = _parse(spec)
                if parsed is not None and parsed[0]:
                    begin, end, strides, masks = parsed
                    try:
                        return step.mode.fast(
                            tfi.ctx(), "StridedSlice", None, tensor, tfi.eager_constant(begin, _INT32), tfi.eager_constant(end, _INT32),
                            tfi.eager_constant(strides, _INT32), *masks)
                    except (tfi.NotOkStatusException, tfi.OpError):  # TensorFlow's own code is to say what is wrong
                        pass
        return original(tensor, spec)

    return __getitem__


# -- slices of variables -------------------------------------------------------------------------------------------------------


class Assign:
    """The `assign` of a slice of a variable: TensorFlow attaches such a function to it."""

    __slots__ = ("variable", "spec")

    def __init__(self, variable, spec):
        self.variable, self.spec = variable, spec

    def __call__(self, val, name=None):
        begin, end, strides, masks = _parse(self.spec)
        if name is None:  # errors tell it
            scope = tfi.get_name_scope()
            name = f"{scope}/strided_slice/_assign" if scope else "strided_slice/_assign"
        return self.variable._strided_slice_assign(
            begin=begin, end=end, strides=strides, value=val, name=name, **dict(zip(masks[::2], masks[1::2])))


def is_plain(spec):
    """Returns whether `slice_of` knows how to take such a slice of a variable."""
    parsed = _parse(spec)
    return parsed is not None and bool(parsed[0]) and not tfi.slices_like_numpy()


def slice_of(variable, spec):
    """`variable[spec]` for a plain index, without what is attached to it."""
    return tfi.tf.Tensor.__getitem__(variable.value(), spec)
