"""TerraTensor: the tensor object that Python holds in every phase of a step.

In the tracing phase it hides an eager value, so that each read of a value is seen; in the co-execution phase it is the paper's *empty tensor object*
(dtype and shape, no value); after the step it holds, or waits for, the graph's output. Because it is the same class in all phases, the framework's
own Python takes the same way through its `isinstance` tests in all of them.

EagerTensor cannot be subclassed. A TerraTensor derives from its Python half, says it is an EagerTensor through `__class__`, and gives C code the real
tensor through `_tf_should_use_wrapped_value`, which TFE_Py_Execute unwraps: so it can be used in any eager operation, in a tf.function, on a
tape, whether Terra's hooks are installed or not.
"""

import functools
import inspect
import sys

import numpy as np

from terra.location.identity import itself
from terra.runtime.interpreter import tracebacks
from terra.runtime.tensors import open_shapes, size_readers
from terra.runtime.tensors.open_shapes import LazyShape
from terra.tf import private_names as tfi
from terra.tf.private import replacements

EagerTensor = tfi.EagerTensor


_FILLING = frozenset([inspect.unwrap(function).__code__ for function in (tfi.array_ops.zeros, tfi.array_ops.ones)])
_DEEPEST = 6  # frames between one of these and the question for an integer


def _is_filled(frame):
    """Whether an integer is asked for by `tf.zeros` or `tf.ones`, for the shape that is to be filled; where that raises a TypeError, they make a tensor of the shape, of 32 bits for each size."""
    for _ in range(_DEEPEST):
        frame = frame.f_back
        if frame is None:
            return False
        if frame.f_code in _FILLING:
            shape = frame.f_locals.get("shape")
            return type(shape) in (list, tuple) and all(type(x) is int or (type(x) in (TerraTensor, EagerTensor) and x.dtype == tfi.dtypes.int32) for x in shape)
    return False


class TerraTensor(tfi.EagerTensorBase):
    """Stands in for an EagerTensor.

    `_value` is the eager tensor if Python may read it right now, else None; then `_owner` (the tracing step, the skeleton, or the step in flight)
    is asked for it. `_hidden` is the eager tensor that operations use. `_key` names the value inside the step that issued it. `_shp` is a tuple;
    a `PartialShape`, or None, if it depends on data and was not asked for yet.
    """

    __slots__ = ("dtype", "_id", "_value", "_hidden", "_owner", "_key", "_shp", "_tensor_shape", "_enum")

    __class__ = EagerTensor  # a plain class attribute: isinstance() looks at it thousands of times a step, a property would cost a call each
    __module__, __qualname__ = EagerTensor.__module__, EagerTensor.__qualname__  # programs print its type, and libraries tell by the module what a tensor is
    _handle_data = None
    _keras_mask = None  # Keras asks each tensor for it, and an attribute that is missing costs 1 us
    is_packed = False

    @property
    def _tf_should_use_wrapped_value(self):
        try:
            return self._eager()
        except tfi.OpError:
            if self._hidden is None:
                raise
            return self._hidden  # C code swallows what is raised here; what the graph has failed to give raises its error in any operation

    def _eager(self):
        """The eager tensor behind this one, waiting or fetching if need be."""
        value = self._value
        if value is None:
            try:
                return self._owner.materialise(self)
            except BaseException as error:
                tracebacks.clean(error)
                raise
        if self._owner is not None:
            self._owner.read_again(self)
        return value

    def _numpy_internal(self):
        if _reads[0] is not None:
            _reads[0].append(self)
        return self._eager()._numpy_internal()

    def __index__(self):
        if self._value is None and hasattr(self._owner, "fictitious_shapes") and _is_filled(sys._getframe(0)):
            raise TypeError("the size depends on data, and is not read")
        return super().__index__()

    def ref(self):
        return super().ref() if itself(self) is self else itself(self).ref()

    def _datatype_enum(self):
        return self._enum

    def _shape_tuple(self):
        shape = self._shp
        if type(shape) is tuple:
            return shape
        if _telling[0] and sys._getframe(1).f_code is _TELLS:  # not what that calls in turn
            return None
        if self._owner is None:
            return self._read_shape()
        if open_shapes.shows_unknown_sizes():
            return shape
        return self._read_shape() if shape is None else LazyShape(shape, self)

    def _read_shape(self):
        shape = self._eager()._shape_tuple()
        reads = getattr(self._owner, "shape_reads", None)
        if reads is not None:
            reads[self._key] = reads.get(self._key, 0) + 1
        if self._owner is None:  # not within its step: what follows from it must not be known more exactly because Python has asked
            self._shp = shape
        return shape

    @property
    def shape(self):
        known = self._tensor_shape
        if known is None:
            known = open_shapes.tensor_shape(self._shape_tuple())
            if type(self._shp) is tuple:  # else each look at it counts
                self._tensor_shape = known
        return known

    def set_shape(self, shape):
        if has_open_shape(self) and size_readers.is_true_by(sys._getframe(0)):
            self._shp = open_shapes.merged(self._shp, open_shapes.shape_of(shape))
        elif not has_open_shape(self) or not (open_shapes.shows_unknown_sizes() or open_shapes.has_for_sure(self, shape)):
            super().set_shape(shape)

    def _rank(self):
        return len(self._shape_tuple() if self._shp is None else self._shp)

    def _num_elements(self):
        n = 1
        for d in self._shape_tuple():
            n *= d
        return n

    def _copy_to_device(self, device_name):
        return self._eager()._copy_to_device(device_name)

    @property
    def device(self):
        value = self._hidden if self._value is None else self._value
        return value.device if value is not None else self._key.device

    @property
    def backing_device(self):
        value = self._hidden if self._value is None else self._value
        return value.backing_device if value is not None else self._key.device

    def __array__(self, dtype=None, copy=None):
        a = self._numpy()
        if not isinstance(a, np.ndarray):  # the bytes of a single string
            a = np.asarray(a, self.dtype.as_numpy_dtype)
        if copy or (dtype is not None and np.dtype(dtype) != a.dtype):
            return np.array(a, dtype=dtype)
        if a.dtype.kind != "V":  # of bfloat16 and the like, numpy gets an array of its own
            a = a.view()
            a.flags.writeable = False  # as what numpy sees of an EagerTensor
        return a

    def __bytes__(self):
        return bytes(self._eager())

    def _prefer_custom_summarizer(self):
        return self._eager()._prefer_custom_summarizer()

    def _summarize_value(self):
        return self._eager()._summarize_value()

    def __dlpack__(self, **kwargs):
        return self._eager().__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._eager().__dlpack_device__()

    def __buffer__(self, flags):  # used by memoryview from Python 3.12 on
        return memoryview(self._eager())

    def __str__(self):
        return str(self._eager())

    def __repr__(self):
        return repr(self._eager())

    def __format__(self, spec):
        return format(self._eager(), spec)


TerraTensor.__name__ = EagerTensor.__name__
for _name in "shape", "set_shape", "device", "backing_device", "numpy":  # `help` shows TensorFlow's texts
    if _name in vars(TerraTensor) and not vars(TerraTensor)[_name].__doc__:
        vars(TerraTensor)[_name].__doc__ = getattr(EagerTensor, _name).__doc__

def has_open_shape(x):
    """Returns whether `x` is a tensor of a step whose shape depends on data."""
    return type(x) is TerraTensor and type(x._shp) is not tuple and x._owner is not None


def shape_slice(tensors, slice_dim):
    """Stands in for TFE_Py_TensorShapeSlice, which takes EagerTensors only: the sizes of dimension `slice_dim`."""
    if any(type(t) is TerraTensor for t in tensors):
        shapes = [t._shape_tuple() for t in tensors]
        if all(shape is not None and shape[slice_dim] is not None for shape in shapes):
            return tfi.tf.constant([shape[slice_dim] for shape in shapes], dtype=tfi.tf.int32)
        return tfi.tf.stack([tfi.tf.shape(t)[slice_dim] for t in tensors])
    return tfi.tensor_shape_slice(tensors, slice_dim)


_OF_SIZES = (tfi.tf.int32, tfi.tf.int64)  # the types that the operation gives; in Python any will do


def _size(original):
    """`tf.size`, which asks eager tensors in Python."""

    @functools.wraps(original)
    def size_internal(input, name=None, optimize=True, out_type=tfi.tf.int32):
        if has_open_shape(input) and out_type in _OF_SIZES:
            return tfi.tf.raw_ops.Size(input=input, out_type=out_type, name=name)
        return original(input, name, optimize, out_type)

    return size_internal


def _constant_value(original):
    """`tf.get_static_value`, for functions that get to see no more of a step's tensors than of symbolic ones."""

    @functools.wraps(original)
    def constant_value(tensor, partial=False):
        return None if _shows_no_value(tensor) else original(tensor, partial)

    return constant_value


def _constant_shape(original):
    """TensorFlow's `constant_value_as_shape`, which gives the shape that a tensor's value is, likewise."""

    @functools.wraps(original)
    def constant_value_as_shape(tensor):
        return tfi.tensor_shape.TensorShape([None] * tensor._shp[0]) if _shows_no_value(tensor) and type(tensor._shp) is tuple and tensor._shp else original(tensor)

    return constant_value_as_shape


def _shows_no_value(tensor):
    return type(tensor) is TerraTensor and tensor._owner is not None and open_shapes.shows_unknown_sizes()


def _noise_shape(original):
    """Makes the function that gives `tf.nn.dropout` the shape of its mask: the original looks what numbers a tensor holds."""

    @functools.wraps(original)
    def get_noise_shape(x, noise_shape):
        if not has_open_shape(x):
            return original(x, noise_shape)
        if type(noise_shape) is TerraTensor and noise_shape._owner is not None:
            return noise_shape
        if isinstance(noise_shape, (list, tuple)) and len(noise_shape) == x._rank() and all(type(size) is int for size in noise_shape):
            return tfi.tensor_shape.TensorShape(noise_shape)
        return original(x, noise_shape)

    return get_noise_shape


replacements.replace_readers(_size, _constant_value, _constant_shape, _noise_shape)

# While the tapes record, they ask for shapes that they can do without: a shape that depends on data is then left unknown rather than fetched.
_telling = [False]  # whether tapes are being told

# Where a list is put to learn which values Python reads (through numpy, as the framework's own code does).
_reads = [None]


def note_reads(noted):
    """Append each tensor whose value Python reads to the list `noted` from now on; None ends that."""
    _reads[0] = noted


_getrefcount = sys.getrefcount
_OWN_REFERENCES = 2  # of a tensor that was taken from a list: the variable, getrefcount's argument

_new = object.__new__
_uid = tfi.new_uid


def make_tensor(dtype, enum, shape, key, owner, hidden):
    """A new TerraTensor; `shape` is a tuple, or a PartialShape or None if it depends on data."""
    t = _new(TerraTensor)
    t.dtype = dtype
    t._enum = enum
    t._id = _uid()
    t._value = None
    t._hidden = hidden
    t._owner = owner
    t._key = key
    t._shp = shape
    t._tensor_shape = None
    return t


def still_held(tensors):
    """Empties a list of tensors: those of them, in order, that something else holds, but for others of them that nothing holds.

    (Keras has what an activation gives hold what it was given, which was, as a rule, made before it.)
    """
    n = None
    while n != len(tensors):
        n, found = len(tensors), []
        while tensors:
            t = tensors.pop()
            if _getrefcount(t) > _OWN_REFERENCES:
                found.append(t)
        found.reverse()
        tensors = found
    return tensors


class Noted:
    """Owns the tensors that were made of arrays of the program's: counts how often Python reads their values."""

    __slots__ = ("reads",)

    def __init__(self):
        self.reads = 0

    def read_again(self, tensor):
        self.reads += 1


_NUMBERS = frozenset([np.bool_, *(getattr(np, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)), np.float16, np.float32, np.float64])


def holds_numbers(array):
    """Returns whether TensorFlow has a type for what is in an array, and the array is known by that and its shape, but for its contents."""
    return array.dtype.type in _NUMBERS and array.dtype.isnative


def tensor_of(array):
    """The tensor that TensorFlow makes of an array of numbers, as a TerraTensor."""
    return noted(tfi.eager_constant(array, None))


def noted(value):
    """A TerraTensor with the value of an EagerTensor: it tells whether Python has read it."""
    t = make_tensor(value.dtype, value._datatype_enum(), value._shape_tuple(), None, Noted(), None)
    t._value = value
    return t


def alias_of(x):
    """Another TerraTensor with the value of `x`, which is known."""
    t = make_tensor(x.dtype, x._enum, x._shp, None, x._owner, None)
    t._value = x._value
    return t


def is_unread(x):
    """Returns whether `x` was made of an array, and Python has not read its value since."""
    return type(x) is TerraTensor and type(x._owner) is Noted and not x._owner.reads


def _returned(x):
    """Makes the EagerTensor that a `tf.py_function` returns in the place of the tensor `x`."""
    if type(x) is TerraTensor:
        x = tfi.tf.identity(x)  # on the tapes that watch it, too
        if type(x) is TerraTensor:
            x = x._eager()
    return x


replacements.convert_returned_tensors(_returned)


def record_on_tapes(op_type, inputs, attrs, outputs, name=None):
    """Record an operation on the active tapes with Terra's tensors as inputs and outputs."""
    tell_tapes(tfi.record_gradient, op_type, inputs, attrs, outputs, tfi.get_name_scope() if name is None else name)


def tell_tapes(tell, *args):
    """Call what tells the active tapes of an operation: they do without shapes that are not known, as they do where a graph is made."""
    before, _telling[0] = _telling[0], True
    try:
        return tell(*args)
    finally:
        _telling[0] = before


_TELLS = tell_tapes.__code__
