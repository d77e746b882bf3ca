"""Which classes of the program's make plain objects: these may be a run's own."""

import abc
import enum
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType

from terra.frameworks import framework_objects
from terra.runtime.tensors.object_kinds import defined, is_c_class, is_frameworks_function, is_record
from terra.tf import private_names as tfi

# Special names that a class may define without any operator, conversion or hash running them.
HARMLESS = frozenset(f"__{name}__" for name in (
    "init new call module doc dict weakref qualname annotations annotate annotate_func init_subclass class_getitem slots orig_bases parameters setattr "
    "delattr setstate getstate reduce reduce_ex enter exit static_attributes firstlineno abstractmethods match_args dataclass_fields dataclass_params "
    "subclasshook post_init del set_name copy deepcopy type_params").split())
_SLOTS = (WrapperDescriptorType, MethodDescriptorType, BuiltinFunctionType, str, tuple, dict, type(None))
_OWN = ("__getattribute__", "__setattr__", "__delattr__")


def is_class_of_variables(kind):
    """Whether nothing but an `__init__` of the program's, or a library's, makes an instance of a class that derives from `tf.Variable` (to stand for a variable, as a rule)."""
    if type(kind) is not tfi.VariableMetaclass or not _has_plain_attributes(kind):
        return False
    made = defined(kind, "__init__")
    return type(made) is FunctionType and not is_frameworks_function(made) and getattr(defined(kind, "_variable_call"), "__func__", None) is tfi.tf.Variable.__dict__["_variable_call"].__func__


def is_plain_class(kind):
    """Whether nothing but `__init__`, and a `__new__` of the program's, makes an instance of a class, whose attributes are where those of others are, and nothing is done when it goes."""
    if not is_plain_metaclass(type(kind)) or is_record(kind) or framework_objects.is_tensorflows(kind):
        return False
    return _has_plain_attributes(kind) and defined(kind, "__getattr__") is None


def is_made_by_runs(kind):
    """Whether a run makes instances of a class itself, whatever it makes them of: a data class, or a plain one."""
    return is_record(kind) or is_plain_class(kind)


def _has_plain_attributes(kind):
    """Whether instances of a class are made, and keep their attributes, as those of other classes do, and nothing is done when they go."""
    if kind.__dictoffset__ == 0 or any(is_c_class(cls) or vars(cls).get("__slots__") for cls in kind.__mro__[:-1]):
        return False
    new = defined(kind, "__new__")
    return all(defined(kind, name) is vars(object)[name] for name in _OWN) and defined(kind, "__del__") is None and (
        new is object.__new__ or (type(new) is staticmethod and type(new.__func__) is FunctionType))


def is_plain_metaclass(meta):
    """Whether classes of this class keep their attributes as others do, and say of no object that it is one of theirs."""
    return meta is type or meta is abc.ABCMeta or (
        meta.__mro__[-2:] == (type, object) and all(defined(meta, name) is vars(type)[name] for name in (*_OWN, "__instancecheck__", "__subclasscheck__"))
        and all(defined(meta, name) is None for name in ("__getattr__", "__set__", "__get__", "__del__")))


def is_plain_enum(kind):
    """Returns whether the special methods of an enum are those of the enum module."""
    for cls in kind.__mro__:
        if cls.__module__ == "enum" or cls.__module__ == "builtins":
            continue
        for name, value in vars(cls).items():
            if name.startswith("__") and name.endswith("__") and name not in HARMLESS and not isinstance(value, _SLOTS):
                if type(value) is not FunctionType or value.__globals__.get("__name__") != "enum":
                    return False
    return type(kind) is enum.EnumMeta
