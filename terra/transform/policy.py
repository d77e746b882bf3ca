"""Decides what is the user's code: everything but libraries.

A function belongs to a library if its module's name begins with a known prefix or its file lies in the standard library or
in site-packages. `configure` changes that by module prefix; the longest prefix that matches decides.

A library that is neither the framework, nor what that is made of, nor Python's, is a stranger: its code is not instrumented, but nobody knows
what it does besides computing. Where a call is to be skipped that runs it, it has to be looked at like the user's.
"""

import os
import sysconfig

from terra import ours
from terra.frameworks import libraries

__all__ = ["configure", "is_user_code", "settings"]

LIBRARIES = (*libraries.UNINSTRUMENTED, ours.PACKAGE)


class Settings:
    def __init__(self):
        self.prefixes = {name: False for name in LIBRARIES}
        self.patch_overrides = True
        self.pure = set(libraries.PURE)


settings = Settings()
_listeners = []


def on_change(callback):
    _listeners.append(callback)


def configure(include=(), exclude=(), patch_overrides=None, pure=()):
    """Says which modules are the user's.

    `include`, `exclude`: module prefixes (``"mypackage"`` covers ``mypackage.nets``) to instrument, or not to.
    `patch_overrides`: whether methods by which a user's class overrides a library class (``call`` of a Keras layer) are
    replaced, in the class, by their instrumented forms; otherwise they run uninstrumented when a library calls them.
    `pure`: packages (``"mypackage"``) of which every call does nothing but compute, apart from operations and from code of the user's
    that it is given: what it gives follows from its arguments and from what they hold; values of tensors it reads by `numpy()` and the
    like, and it formats them for messages only. They are not instrumented, and steps that use them can be skipped as a whole. TensorFlow
    Probability, Sonnet, GPflow, einops, KerasHub and transformers count as such.
    """
    for prefix in (include,) if isinstance(include, str) else include:
        settings.prefixes[prefix] = True
    for prefix in (exclude,) if isinstance(exclude, str) else exclude:
        settings.prefixes[prefix] = False
    for package in (pure,) if isinstance(pure, str) else pure:
        settings.pure.add(package)
        settings.prefixes[package] = False
    if patch_overrides is not None:
        settings.patch_overrides = bool(patch_overrides)
    for callback in _listeners:
        callback()


def _library_directories():
    paths = sysconfig.get_paths()
    found = set()
    for key in ("stdlib", "platstdlib", "purelib", "platlib"):
        if key in paths:
            found.update((paths[key], os.path.realpath(paths[key])))
    # A module's file name shows where a library was found, e.g. behind a link.
    found.add(os.path.dirname(os.__file__))
    return tuple(path.rstrip(os.sep) + os.sep for path in found)


_DIRECTORIES = _library_directories()
_MARKERS = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def _decided(name):
    """Returns what was said of the module `name`, or of a package that it is in: whether it is the user's; None if nothing was."""
    prefix = name or ""
    while prefix:
        decision = settings.prefixes.get(prefix)
        if decision is not None:
            return decision
        prefix = prefix.rpartition(".")[0]
    return None


def is_user_module(name, filename):
    """Does code of module `name`, in file `filename`, belong to the user?"""
    decision = _decided(name)
    if decision is not None:
        return decision
    if filename.startswith("<frozen") or any(marker in filename for marker in _MARKERS):
        return False
    return not filename.startswith(_DIRECTORIES)


def is_strange(name, filename):
    """Does code of module `name`, in file `filename`, belong to a library of which nothing is known?"""
    if is_user_module(name, filename):
        return False
    package = (name or "").partition(".")[0]
    if package in LIBRARIES or package in libraries.DEPENDENCIES or package in settings.pure or filename.startswith("<frozen"):
        return False
    return any(marker in filename for marker in _MARKERS) or not filename.startswith(_DIRECTORIES)


def may_know_program(function):
    """Is a function the user's, or of a library of which nothing is known?"""
    return is_user_code(function) or is_strange(function.__globals__.get("__name__"), function.__code__.co_filename)


def is_excluded(name):
    """Was it said of the module `name`, or of a package that it is in, that its code is not to be changed?"""
    return _decided(name) is False


def is_pure(name):
    """Does the module `name` belong to a package that was declared to do nothing but compute?"""
    return type(name) is str and name.partition(".")[0] in settings.pure


def is_user_code(function):
    # The globals' name: functools.wraps and the like overwrite __module__.
    return is_user_module(function.__globals__.get("__name__"), function.__code__.co_filename)
