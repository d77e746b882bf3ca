"""Objects that are made of tensors: what their parts are, and how one is made of parts.

Sparse and ragged tensors, gradients in slices, and objects of the program's own `tf.experimental.ExtensionType`s.
"""

import weakref
from types import FunctionType

from terra.tf import private_names as tfi

tf = tfi.tf

_PARTS = {
    tf.RaggedTensor: ("_values", "_row_partition"), tf.SparseTensor: ("_indices", "_values", "_dense_shape"), tf.IndexedSlices: ("_values", "_indices", "_dense_shape"),
    tfi.RowPartition: ("_row_splits", "_row_lengths", "_value_rowids", "_nrows", "_uniform_row_length", "_nvals")}

_ExtensionMeta = type(tf.experimental.ExtensionType)
_CACHED = "_tf_extension_type_cached_type_spec"  # made of the other attributes when it is asked for
_PACKED = "_tf_extension_type_packed_variant"
_OWN = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__new__", "__del__", "__hash__", "__slots__", "__instancecheck__")  # what an extension type must not define
_extensions = weakref.WeakKeyDictionary()  # class -> whether `is_extension`


def is_composite(kind):
    """Returns whether objects of this class are made of tensors, as `composite_parts` tells."""
    return kind in _PARTS or (type(kind) is _ExtensionMeta and is_extension(kind))


def is_extension(kind):
    """Returns whether it is an extension type of the program's, whose objects hold their fields and do nothing of their own when one is looked up."""
    known = _extensions.get(kind) if type(kind) is _ExtensionMeta else False
    if known is None:
        own = [cls for cls in kind.__mro__ if not _is_tensorflows(cls) and cls is not object]
        described = [cls for cls in kind.Spec.__mro__ if not _is_tensorflows(cls) and cls is not object]
        known = _extensions[kind] = bool(own) and own[0] is kind and all(type(cls) is _ExtensionMeta for cls in own) \
            and not any(name in vars(cls) for cls in own for name in _OWN) \
            and all(type(x) is not FunctionType or _is_tensorflows(x) for cls in described for x in vars(cls).values())
    return known


def is_spec(kind):
    """Returns whether objects of this class describe those of an extension type, and do nothing of their own."""
    return issubclass(kind, tf.experimental.ExtensionTypeSpec) and is_extension(getattr(kind, "value_type", None))


def only_keeps(kind):
    """Returns whether the constructor of an extension type is the one that TensorFlow makes: it checks and keeps what it is given."""
    made = kind.__init__
    return type(made) is FunctionType and made.__code__.co_name == "__init__" and made.__globals__ is vars(tfi.extension_types) and not hasattr(made, "__wrapped__") \
        and kind.__validate__ is tf.experimental.ExtensionType.__validate__


def is_dispatched():
    """Returns whether functions of the program's are called in place of TensorFlow's for objects of some class: `tf.experimental.dispatch_for_api` and its like."""
    handlers = [*tfi.dispatch._ELEMENTWISE_API_HANDLERS.values(), *[handler for found in tfi.dispatch._TYPE_BASED_DISPATCH_SIGNATURES.values() for handler in found]]
    return any(not _is_tensorflows(handler) for handler in handlers)


def _is_tensorflows(it):
    return str(getattr(it, "__module__", None)).split(".", 1)[0] == "tensorflow"


def composite_parts(x):
    """Lists the parts of such an object: tensors, None, and further such objects; for a sparse tensor its static shape besides, for an extension type the names of its fields and their values."""
    kind = type(x)
    if kind not in _PARTS:
        fields = {name: value for name, value in vars(x).items() if name != _CACHED}
        return [tuple(fields), *fields.values()]
    parts = [getattr(x, name) for name in _PARTS[kind]]
    if kind is tf.SparseTensor:
        parts.append(x._dense_shape_default)
    return parts


def all_in(x):
    """Lists such an object and those among its parts, and their parts."""
    return [x, *[inner for part in composite_parts(x) if is_composite(type(part)) for inner in all_in(part)]]


def is_packed(x):
    """Returns whether all fields of an extension type are in one tensor."""
    return type(x) not in _PARTS and _PACKED in vars(x)


def parts_of_any_number(composites):
    """The tensors in these, among which are all their parts, whose first size is no property of their shapes: how many values a sparse or ragged tensor has. Not its number of rows, which is that of a
    batch, but those in the rows of a row."""
    inner = {id(x._values._row_partition) for x in composites if type(x) is tf.RaggedTensor and type(x._values) is tf.RaggedTensor}
    found = []
    for x in composites:
        of_batch = type(x) is tfi.RowPartition and id(x) not in inner
        found += [getattr(x, name) for name in (("_value_rowids",) if of_batch else _PARTS.get(type(x), ()))]
    return [x for x in found if x is not None and not is_composite(type(x))]


def vectors_of_sizes(composites):
    """The tensors that say what shape the sparse tensors among these have."""
    return [x._dense_shape for x in composites if type(x) is tf.SparseTensor]


def composite(kind, parts):
    """The inverse of `composite_parts`; nothing is checked."""
    names = _PARTS.get(kind)
    if names is None:
        made = object.__new__(kind)
        vars(made).update(zip(parts[0], parts[1:]))
        return made
    made = kind.__new__(kind)
    vars(made).update(zip(names, parts))
    if kind is tf.SparseTensor:
        made._dense_shape_default = parts[-1]
    return made
