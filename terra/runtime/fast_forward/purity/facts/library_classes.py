"""Which classes, functions and objects are those of libraries that do nothing but compute, see `terra.transform.configure`."""

from types import FunctionType, MethodType

from terra.frameworks import libraries, framework_objects
from terra.transform import policy


def derives_from_librarys(kind):
    """Whether a class is such a library's, or derives from one."""
    return any(policy.is_pure(getattr(cls, "__module__", None)) for cls in kind.__mro__)


def calls_library(callee):
    """Whether it is a function, method, class or object of such a library's that is called."""
    kind = type(callee)
    if kind is MethodType:
        return calls_library(callee.__func__)
    if kind is FunctionType or isinstance(callee, type):
        return policy.is_pure((within_scope(callee) or callee).__module__)
    decorated = libraries.is_decorated(kind)
    return policy.is_pure(getattr(callee, "__module__", None) if decorated else kind.__module__) and not framework_objects.is_stock_kind(kind)


def parts_of_super(it):
    """(the classes that it searches, the class of which those are bases, the instance) of a `super`."""
    cls, before, owner = (super.__dict__[part].__get__(it) for part in ("__self_class__", "__thisclass__", "__self__"))
    return cls.__mro__[cls.__mro__.index(before) + 1:], cls, owner


def within_scope(function):
    """The method of a user's module that Sonnet has put into the name scope of the module, which means nothing for operations that run; None if it is none."""
    if type(function) is not FunctionType or not libraries.is_scoped_by_sonnet(function) or not policy.is_pure(libraries.SONNET):
        return None
    held = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}
    return held.get("f") if getattr(held.get("decorator_fn"), "__name__", None) == "wrap_with_name_scope" else None
