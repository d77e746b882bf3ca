"""What the observer makes of the framework's loops (`tf.while_loop`, `tf.map_fn`, `tf.scan` ...), of functions with a `tf.custom_gradient`, and of `tf.TensorArray`.

Such a loop cannot be skipped, because it calls functions of the program's. They are observed; what the framework's code issues between two of these calls follows from
what it was given, and from what they have given. So it is part of the run, like what an operator issues.
"""

import functools
import inspect
import sys
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType

import numpy as np

from terra.runtime import framework_loops
from terra.runtime import internals as tfi
from terra.runtime.kinds import PLAIN, TENSORS

_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
_DECORATED = attrgetter("_f")
_ARRAY_METHODS = frozenset(["close", "concat", "gather", "read", "scatter", "size", "split", "stack", "unstack", "write"])
_CONSTANTS = (tfi.tf.TensorSpec, tfi.tf.UnconnectedGradients)


def is_loop(function):
    """Whether it is a loop of the framework's, which calls what it is given."""
    tf = tfi.tf
    return function in (tf.while_loop, tf.map_fn, tf.scan, tf.foldl, tf.foldr) or any(_is_of_keras(function, name) for name in ("while_loop", "fori_loop", "map", "scan"))


def _is_of_keras(function, name):
    return function.__name__ == name and function is getattr(getattr(sys.modules.get("keras"), "ops", None), name, None)


class Functionals:
    """The part of the Observer for these."""

    _span = None  # where in the log begins what such a call issues itself, while the framework's code runs in one
    _differentiates = False  # whether a gradient may be the matter of a function of the program's

    def _loop(self, function, /, *args, **kwargs):
        """Call a loop of the framework's."""
        handed = {}
        tests = function is tfi.tf.while_loop or _is_of_keras(function, "while_loop")  # what the condition gives
        if function is tfi.tf.map_fn or _is_of_keras(function, "map"):
            called = args[0] if args else kwargs.get("fn", kwargs.get("f"))
            if not framework_loops.autograph_leaves(called):
                self.impure("has tf.map_fn call a function that AutoGraph converts")
                return function(*args, **kwargs)
        return self._by_framework(
            handed, function, [self._handed(x, handed, tests and k == 0) for k, x in enumerate(args)],
            {name: self._handed(x, handed, tests and name == "cond") for name, x in kwargs.items()})

    def _with_gradient(self, callee, function, /, *args, **kwargs):
        """Call `function` of the program's, which `tf.custom_gradient` has made `callee` of."""
        self.reads.asked(_DECORATED, callee, function)
        self._differentiates, handed = True, {}
        observed = self.builtin(function)

        @functools.wraps(function)
        def called(*args, **kwargs):
            made = self._by_program(observed, handed, None, *args, **kwargs)
            if type(made) is tuple and len(made) == 2 and type(made[1]) is FunctionType and id(made[1]) in self._born:
                self._note_handed(made[0], {})
                return made[0], self._gradient_function(made[1])
            self.impure("gives no gradient function that it has made")
            return made

        return self._by_framework(
            handed, functools.partial(tfi.with_custom_gradient, callee, called), [self._handed(x, handed) for x in args], {name: self._handed(x, handed) for name, x in kwargs.items()})

    def _gradient_function(self, function):
        """What to give the tapes for a gradient function that the run has made."""

        @functools.wraps(function)
        def gradient(*gradients, **kwargs):
            return self._by_program(function, {}, self._note_given, *gradients, **kwargs)

        gradient.__signature__ = inspect.signature(function)
        return gradient

    def _gradient(self, method, /, *args, **kwargs):
        """Call `tape.gradient`, which may call such functions."""
        handed = {}
        return self._by_framework(handed, method, [self._handed(x, handed) for x in args], {name: self._handed(x, handed) for name, x in kwargs.items()})

    def _new_array(self, kind, /, *args, **kwargs):
        """Make a TensorArray."""
        return self._of_array(kind, args, kwargs)

    def _leaves_unused(self):
        """Whether the run has made something of which TensorFlow says each time that it was never used."""
        return any(tfi.is_to_be_used(type(it)) and not tfi.is_used(it) for it in self._born.values())

    def _new_spec(self, kind, /, *args, **kwargs):
        for x in (*args, *kwargs.values()):
            self.values(x)
            self._note_handed(x, {})
        return self.fresh(kind(*args, **kwargs))

    def _array_method(self, method):
        """What to call in place of a method of a TensorArray that the run has made; None if it is no such method."""
        owner = method.__self__
        if type(owner) is not tfi.tf.TensorArray or id(owner) not in self._born or method.__name__ not in _ARRAY_METHODS:
            return None
        return lambda *args, **kwargs: self._of_array(method, args, kwargs)

    def _of_array(self, call, args, kwargs):
        handed = {}
        for x in (*args, *kwargs.values()):
            if type(x) in TENSORS and x.dtype.is_integer:  # it may be an index
                self.values(x)
            self._note_handed(x, handed)
        return self._by_framework(handed, call, args, kwargs)

    def _by_framework(self, handed, call, args, kwargs):
        """Call what is the framework's, and issues nothing but what follows from what it was `handed` ({id: container}), and from what functions among that give."""
        inside = self._end_span()
        self._span = len(self.runner.log)
        try:
            result = call(*args, **kwargs)
        except Exception:
            self.impure(f"calls {getattr(call, '__qualname__', 'a function')}, which raises")
            raise
        finally:
            self._end_span()
            if inside:
                self._span = len(self.runner.log)
        self._made_there(result, handed)
        return result

    def _by_program(self, function, handed, note, /, *args, **kwargs):
        """Call a function of the program's in the middle of that; `note` is shown what it gives."""
        if not self._end_span():  # the run is over, or the framework has called it in a way that is not known
            self.impure("has the framework call a function")
            return function(*args, **kwargs)
        for x in (*args, *kwargs.values()):
            self._made_there(x, handed)
        try:
            result = function(*args, **kwargs)
        finally:
            self._span = len(self.runner.log)
        if note is not None:
            note(result)
        return result

    def _end_span(self):
        """The framework's code is left: what it has issued is accounted for. Returns whether it ran."""
        start, self._span = self._span, None
        if start is None:
            return False
        while self._skipped and self._skipped[-1][0] >= start:
            self._skipped.pop()
        if len(self.runner.log) > start:
            self._skipped.append((start, len(self.runner.log) - start))
        return True

    def _made_there(self, it, handed):
        """The framework gives `it`: but for what it was handed, it has made the containers there, and the arrays."""
        kind = type(it)
        if kind is list or kind is tuple or kind is dict:
            if kind is not tuple and id(it) not in handed:
                self.fresh(it)
            for x in it.values() if kind is dict else it:
                self._made_there(x, handed)
        elif (kind is tfi.tf.TensorArray or tfi.is_to_be_used(kind)) and id(it) not in handed:
            self.fresh(it)

    def _handed(self, it, handed, tests=False):
        """What to give the framework's code for an argument; tests: whether it tests what `it` gives."""
        if type(it) in _CALLABLE:
            return framework_loops.unconverted(functools.partial(self._by_program, self.builtin(it), handed, self.truth if tests else self._note_given))
        self._note_handed(it, handed)
        return it

    def _note_given(self, result):
        self._note_handed(result, {})

    def _note_handed(self, it, handed):
        """The framework's code is given `it`; the containers are noted in `handed`."""
        kind = type(it)
        self.late.looked_at(it)
        if kind in TENSORS:
            self.used.add(id(it))
        elif kind is list or kind is tuple or kind is dict:
            handed[id(it)] = it
            self._look_into(it)
            if kind is dict:
                self._keys(it)
            for x in it.values() if kind is dict else it:
                self._note_handed(x, handed)
        elif kind is np.ndarray:
            if not self.gives(it):
                self._look_into(it)
        elif id(it) not in self._born and kind not in PLAIN and it is not None and kind not in _CONSTANTS and not tfi.is_variable(it):
            self.impure(f"gives the framework an object of type {kind.__name__}")
