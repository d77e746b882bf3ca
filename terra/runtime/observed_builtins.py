"""What the observer makes of builtins, and of numpy's functions, without side effects: their arguments must not have any, either."""

import abc
import contextlib
import functools
import itertools
import math
from types import ModuleType

import numpy as np

from terra.runtime import internals as tfi
from terra.runtime.kinds import ITERATORS, LISTS, TENSORS
from terra.runtime.regions import SCALARS

_CONVERSIONS = frozenset([int, float, bool, str, complex, range, slice, enumerate, zip, list, tuple, dict, set, frozenset, reversed, type,
                          itertools.chain, itertools.islice, itertools.product, itertools.repeat, contextlib.nullcontext, tfi.tensor_shape.TensorShape])
# Builtins without side effects, by what they do to their arguments.
_ITERATING = frozenset(map(id, [len, iter, next]))
_REDUCING = frozenset(map(id, [sum, min, max, sorted, any, all]))
_FORMATTING = frozenset(map(id, [repr, format, ord, chr]))
_CALCULATING = frozenset(map(id, [abs, round, divmod, pow]))
NUMPY = frozenset(map(id, [
    np.zeros, np.ones, np.full, np.arange, np.eye, np.linspace, np.array, np.asarray, np.prod, np.sum, np.mean, np.max, np.min, np.cumsum, np.concatenate,
    np.stack, np.reshape, np.transpose, np.repeat, np.tile, np.meshgrid, np.where, np.clip, np.argmax, np.expand_dims, np.squeeze, np.sqrt, np.isscalar,
    np.ndim, np.shape]))
_MUTATORS = frozenset("append extend insert pop remove clear sort reverse add discard update setdefault popitem".split())


class Builtins:
    """The part of the Observer for builtins."""

    def _builtin_function(self, callee, form):
        owner = callee.__self__
        if callee is isinstance or callee is issubclass:
            return functools.partial(self._is_instance, callee)
        if callee is hasattr or callee is getattr:
            return functools.partial(self._get_attribute, callee)
        if id(callee) in _REDUCING:
            return functools.partial(self._reduce, callee)
        if id(callee) in _ITERATING or id(callee) in _FORMATTING or callee is callable:
            return functools.partial(self._on_one, callee)
        if id(callee) in _CALCULATING or id(callee) in NUMPY or owner is math:
            return functools.partial(self._on_plain, callee)
        if isinstance(owner, (ModuleType, type)):
            self.impure(f"calls {callee.__qualname__}")
            return form
        if type(owner) in LISTS:
            if callee.__name__ in _MUTATORS:
                if id(owner) not in self._born:
                    self.impure("changes a container that it has not made")
            else:
                self._look_into(owner)
        elif type(owner) not in (str, bytes, int, float, tuple, range):
            self.impure(f"calls {callee.__qualname__}")
        return functools.partial(self._on_containers, callee)

    def _on_plain(self, callee, /, *args, **kwargs):
        """Call a function that calculates."""
        if "out" in kwargs:
            self.impure(f"has {callee.__name__} write into an array")
        for x in (*args, *kwargs.values()):
            if not isinstance(x, type):
                self._element(x)
        return self._made(callee(*args, **kwargs))

    def _element(self, it):
        """All of `it` takes part in a calculation."""
        self.operand(it)
        if type(it) is list:
            for x in it:
                self._element(x)

    def _reduce(self, callee, /, *args, **kwargs):
        """Call sum, min, any and the like."""
        check = self.truth if callee is any or callee is all else self._element
        given = []
        for x in args:
            if type(x) in ITERATORS:
                self._look_into(x)
                x = map(functools.partial(self._shown, check), x)
            elif type(x) in LISTS or type(x) is tuple:
                self._look_into(x)
                for y in x:
                    check(y)
            else:
                check(x)
            given.append(x)
        for x in kwargs.values():
            self._element(x)
        return self._made(callee(*given, **kwargs))

    @staticmethod
    def _shown(check, it):
        check(it)
        return it

    def _on_one(self, callee, /, *args):
        """Call len, iter, repr and the like."""
        for x in args:
            if id(callee) in _FORMATTING:
                self.formatted(x)
            elif callee is not callable:
                self.iterated(x)
        return self._made(callee(*args))

    def _on_containers(self, callee, /, *args, **kwargs):
        """Call a method of a list, a dict or a string."""
        by_value = callee.__name__ in ("remove", "index", "count", "sort", "join", "format", "get", "pop", "setdefault", "startswith", "endswith", "split")
        for x in (*args, *kwargs.values()):
            if callee.__name__ == "format":
                self.formatted(x)
            elif by_value:
                self.compared(x)
                if callable(x):
                    self.impure(f"hands a function to {callee.__name__}")
            elif callee.__name__ in ("extend", "update"):
                self.iterated(x)
        if callee.__name__ in ("sort", "remove", "index", "count"):
            self.compared(callee.__self__)
        return self._made(callee(*args, **kwargs))

    def _made(self, result):
        if type(result) in LISTS or type(result) in ITERATORS or type(result) is np.ndarray:
            self.fresh(result)
        return result

    def _is_instance(self, callee, /, it, classes):
        for cls in classes if type(classes) is tuple else (classes,):
            if type(cls) is not type and type(cls) is not abc.ABCMeta and type(type(cls)) is not type:
                self.impure("asks isinstance about an unusual class")
        return callee(it, classes)

    def _get_attribute(self, callee, /, it, name, *default):
        if type(name) is not str or not hasattr(it, name):
            self.impure("asks for an attribute that is missing")
        elif self.reason is None:
            self._attribute(it, name)
        return callee(it, name, *default)

    def _class(self, callee, form):
        if callee is tfi.tf.GradientTape:
            return functools.partial(self._tape, form)
        if callee is tfi.tf.name_scope:
            return form
        if callee in _CONVERSIONS:
            return functools.partial(self._convert, callee)
        if issubclass(callee, tuple) and hasattr(callee, "_fields") and callee.__init__ is object.__init__ \
                and callee.__new__.__code__.co_filename.startswith("<string>"):
            return form
        self.impure(f"makes an object of type {callee.__name__}")
        return form

    def _convert(self, callee, /, *args, **kwargs):
        if callee is type and len(args) != 1:
            self.impure("makes a class")
        for x in (*args, *kwargs.values()):
            if callee in (int, float, bool, str, complex):
                self.operand(x) if type(x) not in TENSORS or callee is bool else None
            elif callee is not type and callee is not contextlib.nullcontext:
                self.iterated(x)
        made = self._made(callee(*args, **kwargs))
        if callee in (set, frozenset, dict) and not all(type(x) in SCALARS for x in made):
            self.impure("makes a set of objects")  # which may have an __eq__ and a __hash__ of their own
        return made

    def _tape(self, form, /, *args, **kwargs):
        return self.fresh(form(*args, **kwargs))
