"""Methods that no call site names: ``call`` of a Keras layer, ``__init__``, ``__enter__``, ``__add__``, properties.

``layer(x)`` calls Keras' ``__call__``, which looks up ``self.call``; ``with manager:`` calls ``__enter__``; ``a + b`` calls
``__add__``: no call site of ours sees those functions. So when a class is first called, or an instance of it, or a method,
then in the *user's classes* of its mro these functions are replaced by their instrumented forms: those that override a
name of a library class, those that Python itself calls, and the functions of properties. The forms differ in their
code object only; instances, signatures and library classes stay as they are, code that runs outside of steps pays next to
nothing, and `restore` undoes it.
"""

import functools
import logging
import weakref
from types import FunctionType

from terra.transform import policy, wrappers

__all__ = ["prepare", "restore"]

log = logging.getLogger("terra")

# Not __new__ and the like, which are no plain functions, and not what runs at any time or only for show.
_OPERATORS = ("add sub mul truediv floordiv mod divmod pow matmul lshift rshift and or xor".split())
CALLED_BY_PYTHON = frozenset(f"__{name}__" for name in (
    "init post_init call enter exit aenter aexit iter next aiter anext await getitem setitem delitem contains missing len bool "
    "int float complex index abs neg pos invert round lt le eq ne gt ge getattr get set".split()
    + [prefix + name for prefix in ("", "r", "i") for name in _OPERATORS]))

function_form = None  # gives the instrumented form of a function: set by `convert`
prepared = {}  # id(class) -> weak reference to it; twice as fast as a WeakSet
_patched = {}  # (weak reference to the class, name) -> (original, its form)

# What a class holds, without asking its metaclass, which may be the user's and answer anything.
_namespace = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__


def _is_user_class(cls):
    module = _namespace(cls).get("__module__")
    if not isinstance(module, str) or module == "builtins":
        return False
    functions = [f for f in map(_function_of, _namespace(cls).values()) if type(f) is FunctionType]
    filename = functions[0].__code__.co_filename if functions else ""
    return policy.is_user_module(module, filename) and bool(functions)


def _function_of(value):
    if type(value) is property:
        return value.fget
    return value.func if type(value) is functools.cached_property else value


def _overridden(name, bases):
    return any(name in _namespace(base) for base in bases)


def prepare(cls):
    """Instruments what is called by name in the user's classes in `cls.__mro__`. Done once per class."""
    key = id(cls)
    if key in prepared or not policy.settings.patch_overrides:
        return
    prepared[key] = weakref.ref(cls, lambda _: prepared.pop(key, None))
    try:
        _patch_users(cls)
    except Exception:  # whatever a class answers must not stop the user's program
        log.debug("could not instrument the methods of %s", cls, exc_info=True)


def _patch_users(cls):
    mro = _mro(cls)
    users = [c for c in mro if c is not object and _is_user_class(c)]
    if not users:
        return
    libraries = [c for c in mro if c is not object and c not in users]
    for user in users:
        for name, value in list(_namespace(user).items()):
            if type(value) is FunctionType:
                if name in CALLED_BY_PYTHON or (not name.startswith("__") and _overridden(name, libraries)):
                    _patch(user, name, value)
            elif type(value) in (property, functools.cached_property):
                _patch(user, name, value)


def _form(value):
    """The instrumented form of a function or property; itself if there is none."""
    if value is None:
        return None
    if type(value) is FunctionType:
        return function_form(value)
    if type(value) is property:
        functions = [value.fget, value.fset, value.fdel]
        forms = [_form(f) if type(f) is FunctionType else f for f in functions]
        return value if forms == functions else property(*forms, value.__doc__)
    if type(value.func) is FunctionType:  # a cached_property looks its function up at each use
        wrappers.exchange_code(value.func, function_form(value.func))
    return value


def _patch(cls, name, value):
    form = _form(value)
    if form is value:
        return
    try:
        setattr(cls, name, form)
    except Exception:  # a metaclass may forbid it in its own way
        return
    _patched[weakref.ref(cls), name] = value, form


def renew(edited):
    """Puts new forms of the functions with these ids, which were changed in place, in the place of the old ones."""
    for (reference, name), (value, form) in list(_patched.items()):
        cls = reference()
        parts = [value.fget, value.fset, value.fdel] if type(value) is property else [value]
        if cls is not None and _namespace(cls).get(name) is form and any(id(part) in edited or wrappers.is_wrapper(part) for part in parts):
            setattr(cls, name, value)
            _patch(cls, name, value)


def restore():
    """Puts all original methods back, where nobody has replaced them since."""
    for (reference, name), (function, form) in list(_patched.items()):
        cls = reference()
        if cls is not None and _namespace(cls).get(name) is form:
            setattr(cls, name, function)
    forget()
    wrappers.restore()
    _patched.clear()


def forget():
    prepared.clear()
