"""Methods that a library calls by name: ``call`` of a Keras layer, ``update_step`` of an optimizer.

``layer(x)`` calls Keras' ``__call__``, which looks up ``self.call``: no call site of ours sees that function. But such a
method can only be one that overrides a name of a library class. So when an instance of such a class is first called (or a
library method of it), the user's overriding functions are replaced *in the user's class* by their instrumented forms.
Those differ in their code object only; instances, signatures and library classes stay as they are, code that runs outside
of steps pays next to nothing, and `restore` undoes it.
"""

import weakref
from types import FunctionType

from . import policy

__all__ = ["prepare", "restore"]

_seen = weakref.WeakSet()
_patched = {}  # (weak reference to the class, name) -> (original function, its form)


def _is_user_class(cls):
    module = getattr(cls, "__module__", None)
    if module == "builtins":
        return False
    functions = [f for f in cls.__dict__.values() if type(f) is FunctionType]
    filename = functions[0].__code__.co_filename if functions else ""
    return policy.is_user_module(module, filename) and bool(functions)


def _overridden(name, bases):
    return any(name in base.__dict__ for base in bases)


def prepare(cls):
    """Instruments the methods by which the user's classes in `cls.__mro__` override library classes. Done once per class."""
    if not policy.settings.patch_overrides:
        return
    try:
        if cls in _seen:
            return
        _seen.add(cls)
    except TypeError:  # a metaclass may forbid hashing
        return
    mro = cls.__mro__
    users = [c for c in mro if c is not object and _is_user_class(c)]
    if not users:
        return
    libraries = [c for c in mro if c is not object and c not in users]
    for user in users:
        for name, function in list(user.__dict__.items()):
            if type(function) is FunctionType and not name.startswith("__") and _overridden(name, libraries):
                _patch(user, name, function)


def _patch(cls, name, function):
    from .convert import function_form  # it imports this module

    form = function_form(function)
    if form is function:
        return
    try:
        setattr(cls, name, form)
    except (AttributeError, TypeError):
        return
    _patched[weakref.ref(cls), name] = function, form


def restore():
    """Puts all original methods back, where nobody has replaced them since."""
    for (reference, name), (function, form) in list(_patched.items()):
        cls = reference()
        if cls is not None and cls.__dict__.get(name) is form:
            setattr(cls, name, function)
    forget()
    _patched.clear()


def forget():
    _seen.clear()
