"""Kinds of objects that the observer knows to be harmless."""

import collections
import dataclasses
import itertools
from types import BuiltinFunctionType, FunctionType, GeneratorType, WrapperDescriptorType

from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.transform import policy

TENSORS = frozenset([TerraTensor, tfi.EagerTensor])
PLAIN = frozenset([*SCALARS, complex, slice, range, type(Ellipsis), type(NotImplemented), tfi.tensor_shape.TensorShape, tfi.tf.DType, tfi.SymbolicTensor])  # immutable
LISTS = frozenset([list, dict, set, frozenset])
VIEWS = frozenset([type(view()) for held in ({}, collections.OrderedDict()) for view in (held.keys, held.values, held.items)])
ITERATORS = frozenset([
    *VIEWS, zip, enumerate, map, filter, reversed, GeneratorType, itertools.chain, itertools.islice, itertools.product, itertools.repeat,
    *(type(iter(x)) for x in ([], (), {}, range(0), "", {}.items(), {}.values(), collections.OrderedDict())), type(reversed([]))])
LASTING = frozenset([itertools.count, itertools.cycle, *(type(iter(x)) for x in ([], (), {}, range(0), "", b"", set()))])  # iterators that programs go on with from step to step, and that run no code
_DEEPEST = 8  # containers within each other that are looked into
HOLDING = ITERATORS - VIEWS - {GeneratorType}  # to which there are no weak references, and which hold the iterators that they are made of

VARIABLE_METHODS = frozenset([
    "assign", "assign_add", "assign_sub", "read_value", "value", "sparse_read", "gather_nd", "batch_scatter_update",
    *[f"scatter_{name}" for name in ("add", "sub", "update", "max", "min", "mul", "div", "nd_add", "nd_sub", "nd_update", "nd_max", "nd_min")]])  # of variables, which run operations


_tapes = [tfi.tf.GradientTape]
_tape_methods = {}  # of another class of tapes -> those of TensorFlow's that they stand in for


def add_tapes(kind, methods):
    """A class of tapes that are like TensorFlow's own in a step; `methods`: what is to be called there in place of its methods."""
    _tapes.append(kind)
    _tape_methods.update(methods)


def is_tapes(kind):
    """Returns whether it is a class of gradient tapes."""
    return any(kind is x for x in _tapes)


def tapes_own(method):
    """Returns the function to call in a step in place of a method of a tape."""
    return _tape_methods.get(method, method)


def is_frameworks_function(function):
    """Returns whether a Python function is TensorFlow's or Keras' own."""
    space = getattr(function, "__globals__", None)
    return space is not None and str(space.get("__name__")).split(".", 1)[0] in tfi.FRAMEWORKS


def is_description(kind):
    """Returns whether its objects say of which types something is, and no more."""
    return kind.__module__ == "typing"


def defined(kind, name):
    """Returns what the class `kind` has as `name`, or None, without running any code."""
    return next((cls.__dict__[name] for cls in kind.__mro__ if name in cls.__dict__), None)


def is_librarys(cls):
    """Returns whether a class is the framework's own."""
    return cls.__module__.split(".", 1)[0] in tfi.FRAMEWORKS


def is_iterator(it):
    """Returns whether an object gives items one by one, and can be read only once."""
    return hasattr(type(it), "__next__")


def is_librarys_container(kind):
    """Returns whether it is a class of the framework's of lists or dicts, as those of a layer are."""
    return issubclass(kind, (list, dict)) and is_librarys(kind)


def is_output(value):
    """Returns whether it is what models of a library that does nothing but compute give: a data class that is an ordered dict of its fields, too
    (Hugging Face's `ModelOutput`)."""
    kind = type(value)
    return issubclass(kind, collections.OrderedDict) and type(kind) is type and policy.is_pure(kind.__module__) and all(
        vars(value).get(name, vars) is x for name, x in collections.OrderedDict.items(value))


def plain(container):
    """Copies such a container to a plain list or dict."""
    return dict(container) if isinstance(container, dict) else list(container)


def is_c_class(cls):
    """Returns whether nothing can be changed of a class: it is made in C."""
    return not cls.__flags__ & 1 << 9 or bool(cls.__flags__ & 1 << 8)


_FIELD = type(collections.namedtuple("_", "field").__dict__["field"])
_OF_TUPLES = frozenset(vars(tuple)).union(["__bool__", "__reversed__", "__init__", "__getattr__", "__class__"]).difference(
    ["__doc__", "__new__", "__hash__", "__repr__", "__getnewargs__", "__class_getitem__", "index", "count"])


READING = frozenset(["items", "keys", "values", "get", "copy", "index", "count"])  # methods of list and dict that change nothing
_LOOKUPS = ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__ne__", "__reversed__", *READING)


def is_like_builtin(kind):
    """Returns whether it is a class that derives from list or dict, and is searched as these are."""
    if kind is collections.OrderedDict or kind is collections.defaultdict:  # (a key that is not there is put into the latter, which guards will find changed)
        return True
    base = next((base for base in (collections.OrderedDict, dict, list) if issubclass(kind, base)), None)
    if base is None or type(kind) is not type or kind.__mro__[-len(base.__mro__):] != base.__mro__:
        return False
    if any(map(is_c_class, kind.__mro__[:-len(base.__mro__)])) or any(map(is_librarys, kind.__mro__)):
        return False
    if any(defined(kind, name) is not None for name in ("__missing__", "__bool__")) or defined(kind, "__getattribute__") is not defined(base, "__getattribute__"):
        return False
    return all(defined(kind, name) is defined(base, name) for name in _LOOKUPS)


def may_be_made(kind):
    """Returns whether nothing but an `__init__` of the program's makes an instance of such a class, its items are set as those of a list or dict are, and nothing is done when it goes."""
    return is_like_builtin(kind) and type(defined(kind, "__setitem__")) is type(defined(kind, "__delitem__")) is WrapperDescriptorType and type(
        defined(kind, "__new__")) is BuiltinFunctionType and defined(kind, "__del__") is None and defined(kind, "__slots__") is None


def is_container(it, kind):
    """Returns whether an object of class `kind` is a container that Python, or a library, goes through itself."""
    return kind in LISTS or is_like_builtin(kind) or (isinstance(it, (list, dict)) and is_librarys(kind))


def containers_in(it, depth=_DEEPEST):
    """The lists and dicts among `it` and what is in it, in tuples, lists and dicts."""
    kind = type(it)
    if kind is list or kind is dict:
        yield it
    elif not issubclass(kind, tuple):
        return
    if depth:
        for x in it.values() if kind is dict else it if kind is list else tuple.__iter__(it):
            yield from containers_in(x, depth - 1)


def is_field(value):
    """Returns whether a class has `value` to give an item of a named tuple."""
    return type(value) is _FIELD and _FIELD is not property


def is_named_tuple(kind):
    """Returns whether `kind` is a class of named tuples that are searched as all tuples are."""
    return issubclass(kind, tuple) and type(kind) is type and type(defined(kind, "_fields")) is tuple and not any(
        not _OF_TUPLES.isdisjoint(vars(cls)) for cls in kind.__mro__ if cls is not tuple and cls is not object)


_OF_INIT = ("_dflt_", "_type_", "_HAS_DEFAULT_FACTORY", "MISSING", "__dataclass_")  # how names begin that a generated `__init__` finds around it


def is_record(kind):
    """Returns whether it is a data class of which instances are made, and looked into, without any code of the user's."""
    if type(kind) is not type or type(vars(kind).get("__dataclass_fields__")) is not dict or any(
            "__dataclass_fields__" not in vars(cls) or "__slots__" in vars(cls) for cls in kind.__mro__[:-1]):
        return False
    if any(defined(kind, name) is not None for name in ("__post_init__", "__getattr__")) or any(
            defined(kind, name) is not vars(object)[name] for name in ("__new__", "__getattribute__")):
        return False
    fields, made = vars(kind)["__dataclass_fields__"], vars(kind).get("__init__")
    if type(made) is not FunctionType or made.__code__.co_filename != "<string>" or not {"__setattr__", *fields}.issuperset(made.__code__.co_names):
        return False  # it does more than set the fields
    if not all(name.startswith(_OF_INIT) for name in made.__code__.co_freevars):
        return False
    return all(f.default_factory in (dataclasses.MISSING, list, dict) and not hasattr(type(defined(kind, name)), "__set__") for name, f in fields.items())


def makes_named_tuples(kind):
    """Returns whether such a class makes its tuples as `collections.namedtuple` does."""
    new = defined(kind, "__new__")
    new = getattr(new, "__func__", new)
    return type(new) is FunctionType and new.__globals__.get("__name__", "").startswith("namedtuple_") and new.__globals__.get("__builtins__") == {}
