"""The observer's part for Python code of libraries that cannot be called again where the run is skipped: it is observed like the program's.

That is code of the framework's, which may run operations, and code of Python's own library that is given a tensor, or something of the program's. Where that turns out to be of no use (it
changes something that was there before, for instance), `Program.not_observed` remembers it, and the next time it is called as a whole.
"""

import functools
import inspect
import operator
import sys
import weakref
from types import CodeType, FunctionType, MethodType
from typing import Any, Callable

import numpy as np

from terra import ours
from terra.frameworks.framework_objects import original
from terra.runtime.fast_forward.purity.facts.program_code import is_refused, may_be_run
from terra.runtime.fast_forward.sites.python_functions import fed
from terra.runtime.fast_forward.sites.writers import changed
from terra.runtime.fast_forward.sources.opaque_calls import numpy_of, outcomes
from terra.runtime.interpreter import frames
from terra.runtime.interpreter.profilers import unwatched
from terra.runtime.tensors.object_kinds import TENSORS, defined, is_frameworks_function, is_librarys
from terra.tf import private_names as tfi
from terra.transform import convert, policy


class LibraryCode:
    """The code of libraries in one run."""

    def __init__(self, run: Any):
        self._of = weakref.ref(run)
        self._made: dict[int, CodeType] = {}  # id -> code of the `__init__` of libraries' classes of which the run has made objects
        self.read: dict[int, Any] = {}  # id -> a tensor of the step that such a function reads
        self.contexts: dict[int, CodeType] = {}  # those that are not the framework's: contexts, which are of no use if they change what they read

    def called(self, callee: Any) -> Callable | None:
        """Returns what to call in place of a Python function, method or class of a library's; None if it cannot be observed, or that was of no use."""
        if isinstance(callee, type) and type(defined(type(callee), "__call__")) is FunctionType:
            callee = MethodType(defined(type(callee), "__call__"), callee)
        function = original(callee.__func__ if type(callee) is MethodType else callee)
        if not self.observes(function):
            return None
        observed = self._of().calls.user_function(function, None)
        return None if observed is None else functools.partial(self._call, own_code(function), MethodType(observed, callee.__self__) if type(callee) is MethodType else observed)

    def observes(self, function: Any) -> bool:
        """Returns whether something is a Python function of a library's that can be observed, and was not so for nothing."""
        function = original(function)
        return type(function) is FunctionType and not (
            is_refused(function) or policy.may_know_program(function) or self._is_of_no_use(function)) and unwatched(convert.is_observable, function)

    def attribute(self, it: Any, name: str) -> Callable | None:
        """Returns what gives an attribute that is a property, or another descriptor, of a library's; None if it is none, or cannot be observed."""
        run, kind = self._of(), type(it)
        found = defined(kind, name)
        getter = found.fget if type(found) is property else defined(type(found), "__get__")
        if type(getter) is not FunctionType or (defined(type(found), "__set__") is None and name in (getattr(it, "__dict__", None) or ())):
            return None
        form = self.called(getter)
        if form is None or not run.classes.is_looked_up_plainly(kind):
            return None
        run.classes.note_class(it)
        run.classes.found(kind.__mro__, name, None)
        return (lambda *_: form(it)) if type(found) is property else lambda *_: form(found, it, kind)

    def makes(self, kind: type, made: FunctionType) -> bool:
        """Returns whether an object of a library's class is made observed: the framework's, and contexts, which may be left by an exception. `made`: its `__init__`."""
        return not self._is_of_no_use(made) and (is_librarys(kind) or type(defined(kind, "__exit__")) is FunctionType)

    def initialiser(self, made: FunctionType, observed: Callable) -> Callable:
        """Returns what initialises such an object; `observed`: the observed form of `made`."""
        code = own_code(made)
        self._made[id(code)] = code
        if not is_frameworks_function(made):
            self.contexts[id(code)] = code
        return functools.partial(self._call, code, observed)

    def part(self, function: FunctionType, observed: Callable) -> Callable:
        """Returns what to call in place of a method, `function`, of an object that the run has made; `observed`: its observed form."""
        return observed if policy.may_know_program(function) else functools.partial(self._call, own_code(function), observed)

    @ours.calling
    def strange(self, function: FunctionType, observed: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of a library of which nothing is known: observed like the program's, but where that came to nothing, and it is given nothing of the program's. Tensors of the
        step are read for it, then, behind the graph where the step is skipped."""
        run = self._of()
        given = [*args, *kwargs.values()]
        tensors = [x for x in given if run.is_own_tensor(x)]
        if not self._is_of_no_use(function) or run.reason is not None or any(map(may_be_run, given)):
            return self._call(own_code(function), observed, *args, **kwargs)
        if tensors and not run.may_read_late:
            run.impure(f"has {function.__name__} read the value of a tensor")
        elif run.opaque.takes([x for x in given if not run.is_own_tensor(x)], {}):
            for x in tensors:
                self.reads(x)
            n = len(run.runner.read_twice)
            value = run.opaque.make(function, args, kwargs, f"calls {function.__qualname__}", frames.around_ours(sys._getframe(1)), True)
            del run.runner.read_twice[n:]  # by the library, of what it is given
            return value
        return self._call(own_code(function), observed, *args, **kwargs)

    @ours.calling
    def python_function(self, form: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls `tf.numpy_function` or its like: unknown code, which is given what the graph has computed, and whose arrays are fed to it."""
        run, reason = self._of(), f"calls {form.__qualname__}"
        if not tfi.executing_eagerly():
            return run.functionals.in_graph(form, args, kwargs)
        taken = form.taken(args, kwargs, run.calls.builtin(tfi.tf.convert_to_tensor)) if run.reason is None and run.may_read_late else None
        if taken is None:
            run.impure(f"{reason}, a Python function as an operation")
            outcome = outcomes.take(form.arrays)
            return form(*args, **kwargs) if outcome is None else changed(functools.partial(fed, run.runner.step), outcome.give())
        function, given, types = taken
        own = convert.only_own_code(function.__code__) if run.born.has(function) else None
        if own is not None and own is not function.__code__ and not (own.co_freevars or function.__defaults__ or function.__kwdefaults__):
            function = FunctionType(own, function.__globals__, function.__name__)  # each step makes one that does the same
        for x in given:
            self.reads(x)
        n = len(run.runner.read_twice)
        found = run.opaque.make(form.arrays, (function, run.fresh(given), types), {}, reason, frames.around_ours(sys._getframe(1)), True)
        del run.runner.read_twice[n:]
        if type(found) is list:
            return run.fresh([self._fed(run.opaque.operated(operator.getitem, found, k)) for k in range(len(found))])
        return self._fed(found) if type(found) is np.ndarray else found

    def reads(self, x: Any) -> None:
        """Unknown code reads the value of something, if it is a tensor."""
        run = self._of()
        if run.is_own_tensor(x):
            array = run.deferred.read_array(run.runner, x)
            if run.covered is not None:
                run.runner.read_within(array, run.deferred.held)
        elif type(x) in TENSORS:
            run.used.add(id(x))
        if type(x) in TENSORS:
            self.read[id(x)] = x

    def has_read(self, x: Any) -> Any:
        """Unknown code of a call that was skipped in the run has read the value of this tensor, which is returned."""
        run = self._of()
        if run.is_own_tensor(x) and not run.deferred.times(x._key):
            run.runner.note_deferred(x._value.numpy(), x._key, numpy_of)
        elif type(x) in TENSORS:
            run.used.add(id(x))
        self.read[id(x)] = x
        return x

    def _fed(self, array: Any) -> Any:
        """Returns the tensor that stands for an array which unknown code has given."""
        run, made = self._of(), None
        if run.reason is None:
            run.gives(array)
            made = run.dynamic.tensor_of(array)
        return fed(run.runner.step, array) if made is None else made

    def observe_next_time(self, function: FunctionType) -> bool:
        """Notes that a function had better be observed than called as a whole; returns whether that is new."""
        code, known = own_code(function), self._of().runner.program.to_be_observed
        is_new = id(code) not in known
        known[id(code)] = code
        return is_new

    def is_to_be_observed(self, function: FunctionType) -> bool:
        return id(own_code(function)) in self._of().runner.program.to_be_observed

    def _is_of_no_use(self, function: FunctionType) -> bool:
        return id(own_code(function)) in self._of().runner.program.not_observed

    @ours.calling
    def _call(self, code: CodeType, form: Callable, /, *args: Any, **kwargs: Any) -> Any:
        run = self._of()
        was_pure = run.reason is None
        try:
            return form(*args, **kwargs)
        finally:
            if was_pure and run.reason is not None and not run.passing:
                run.runner.program.not_observed.update({**self._made, id(code): code})


def own_code(function: FunctionType) -> CodeType:
    """Returns the code that tells a function from others: that of what it decorates, as all functions that are decorated in one way share the code of the wrapper."""
    return getattr(inspect.unwrap(function), "__code__", function.__code__)
