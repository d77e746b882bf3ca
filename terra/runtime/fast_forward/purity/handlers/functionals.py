"""The observer's part for the framework's loops (`tf.while_loop`, `tf.map_fn`, `tf.scan` ...), of functions with a `tf.custom_gradient`, and of `tf.TensorArray`.

Such a loop cannot be skipped, because it calls functions of the program's. They are observed; what the framework's code issues between two of these calls follows from
what it was given, and from what they have given. So it is part of the run, like what an operator issues.
"""

import functools
import inspect
from enum import Enum
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType

import numpy as np

from terra import ours
from terra.location import location
from terra.runtime.fast_forward.guards import guard_set
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sites import framework_loops
from terra.runtime.fast_forward.sources.effects import so_far
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, is_tapes
from terra.tf import private_names as tfi
from terra.tf.private import composites

_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
_DECORATED = attrgetter("_f")
_CONTAINERS = (list, tuple, dict)
_CONSTANTS = (tfi.tf.TensorSpec, tfi.tf.UnconnectedGradients)


def _holds_callables(container):
    """Whether there are functions in a container, or in those in it."""
    return any(type(x) in _CALLABLE or (type(x) in _CONTAINERS and _holds_callables(x)) for x in (container.values() if type(container) is dict else container))


class Functionals(Handler):
    """The part of the Observer for these."""

    __slots__ = ("_span", "_makes_graph", "accumulates", "recomputes", "merges")

    def __init__(self, run):
        super().__init__(run)
        self._span = None  # where in the log begins what the framework's code issues, while it runs in one of these calls
        self._makes_graph = False  # whether the framework makes a graph of what a function would do that it was given
        self.accumulates = False  # whether the run has made a ForwardAccumulator, which wants to see each operation: no call is skipped while one is at work
        self.merges = 0  # calls of the strategy's own methods that run now: what its settings are there follows from these
        self.recomputes = 0  # functions of `tf.recompute_grad` that run now: no call is skipped while the tape is stopped

    @ours.calling
    def loop(self, function, /, *args, **kwargs):
        """Call a loop of the framework's."""
        name = function.__name__.removesuffix("_v2")
        if name in ("map_fn", "map") and not framework_loops.autograph_leaves(args[0] if args else kwargs.get("fn", kwargs.get("f"))):
            self.run.impure("has tf.map_fn call a function that AutoGraph converts")
            return function(*args, **kwargs)
        return self._by_framework(function, args, kwargs, tests=name == "while_loop")

    def branching(self, function, /, *args, **kwargs):
        """Call `tf.switch_case`, say: which function is called depends on the first argument."""
        self.run.operands.values((args[:1], kwargs))
        return self._by_framework(function, args, kwargs)

    @ours.calling
    def vectorizing(self, function, /, *args, **kwargs):
        """Call `tf.vectorized_map`: TensorFlow makes a graph of what the function that it is given would do, which is the same graph the next time."""
        if not framework_loops.autograph_leaves(args[0] if args else kwargs.get("fn", kwargs.get("function"))):
            self.run.impure("has tf.vectorized_map call a function that AutoGraph converts")
            return function(*args, **kwargs)
        outer, self._makes_graph = self._makes_graph, True
        self.run.is_worthwhile = True
        try:
            return self._by_framework(function, args, kwargs)
        finally:
            self._makes_graph = outer

    def accumulating(self, kind, /, *args, **kwargs):
        """Make a `tf.autodiff.ForwardAccumulator`."""
        self.accumulates = self.run.differentiates = True
        return self.run.fresh(self._by_framework(kind, args, kwargs))

    def in_full(self, form, args, kwargs):
        """Call what is the framework's where a ForwardAccumulator is at work, or the tape is stopped: what it issues, and the accumulator for it, follows from what the call is given, and from what its object holds."""
        guard = self._guard_of(form, of_variables=True)
        result = self._by_framework(form, args, kwargs)
        self._note_guard(guard)
        return result

    def _guard_of(self, form, of_variables=False):
        """Returns what a call that is not skipped depends on, if that is more than what it is given; `of_variables`: it may be a method of a variable's."""
        owner = getattr(form, "callee", None)
        if type(form) is MethodType and not (is_tapes(type(form.__self__)) and self.run.born.has(form.__self__)):
            if not (of_variables and tfi.is_variable(form.__self__)):
                self.run.impure(f"calls {form.__qualname__} where it cannot be skipped")
        elif owner is not None:
            try:
                return guard_set.GuardSet(owner, ())
            except Unskippable as error:
                self.run.impure(f"calls what {error}" if str(error) else f"calls a {type(owner).__name__}")
        return None

    def _note_guard(self, guard):
        """The call is over."""
        if guard is not None:
            if guard.holds():
                self.run.reads.guard(guard, so_far(self.run.effects))
            else:
                self.run.impure("calls something of the framework's that changes what it reads")

    def in_graph(self, form, args, kwargs):
        """Call what is the framework's while a graph is made: it issues no operation now, and what it puts into the graph follows from what it is given."""
        if not self._makes_graph:
            self.run.impure("makes a graph")
        guard = self._guard_of(form)
        self._constants((args, kwargs))
        try:
            result = form(*args, **kwargs)
        except Exception:
            self.run.impure("calls something of the framework's that raises")
            raise
        self._note_guard(guard)
        self.run.framework.bear(result)
        return result

    def _constants(self, it):
        """Lets all that is in `it` become part of a graph."""
        self.run.deferred.looked_at(it)
        if type(it) in (list, tuple, dict):
            self.run.contents.look_into(it)
            for x in it.values() if type(it) is dict else it:
                self._constants(x)
        elif type(it) is np.ndarray:
            self.run.contents.look_into(it)

    def with_own_gradient(self, decorator, function):
        """Call `tf.custom_gradient`, or `tf.recompute_grad`."""
        if type(function) not in _CALLABLE:
            self.run.impure(f"gives an object of type {type(function).__name__} a gradient")
        return self.run.fresh(decorator(function))

    def with_gradient(self, callee, function, /, *args, **kwargs):
        """Call `function` of the program's, which `tf.custom_gradient` has made `callee` of."""
        if not self.run.born.has(callee):
            self.run.reads.asked(_DECORATED, callee, function)
        return self._by_framework(functools.partial(tfi.with_custom_gradient, callee, self.differentiated(function)), args, kwargs)

    def differentiated(self, function):
        """Returns what is called in place of a function of the program's that `tf.custom_gradient` decorates."""
        recomputed = tfi.recomputed(function)
        if recomputed is not None:
            return self._recomputing(function, recomputed)

        @functools.wraps(function)
        def called(*args, **kwargs):
            self.run.differentiates = True
            made = self.by_program(self.run.calls.builtin(function), None, *args, **kwargs)
            if type(made) is tuple and len(made) == 2 and type(made[1]) is FunctionType and self.run.born.has(made[1]):
                self.note_handed(made[0])
                return made[0], self._gradient_function(made[1])
            self.run.impure("gives no gradient function that it has made")
            return made

        return called

    def _recomputing(self, function, recomputed):
        """Returns what is called in place of a function that `tf.recompute_grad` decorates: it calls the program's function `recomputed` now, and again for the gradient."""

        @functools.wraps(recomputed)
        def called(*args, **kwargs):
            observer = location.tls.observer  # in the end, of the run that asks for the gradient
            if observer is location.NULL_OBSERVER:
                return recomputed(*args, **kwargs)
            run = observer.run
            functionals = run.functionals
            run.differentiates = True
            functionals.recomputes += 1
            try:
                return functionals.by_program(run.calls.builtin(recomputed), functionals.note_handed, *args, **kwargs)
            finally:
                functionals.recomputes -= 1

        return tfi.recomputing(function, called)

    def _gradient_function(self, function):
        """Returns what to give the tapes for a gradient function that the run has made."""

        @functools.wraps(function)
        @ours.calling
        def gradient(*gradients, **kwargs):
            observer = location.tls.observer  # of the run that asks for the gradient: this one may be over
            if observer is location.NULL_OBSERVER:
                return function(*gradients, **kwargs)
            functionals = observer.run.functionals
            return functionals.by_program(function, functionals.note_handed, *gradients, **kwargs)

        gradient.__signature__ = inspect.signature(function)
        return gradient

    def gradient(self, method, /, *args, **kwargs):
        """Call `tape.gradient`, which may call such functions, or the `jvp` of a ForwardAccumulator."""
        return self._by_framework(method, args, kwargs)

    def of_array(self, call, /, *args, **kwargs):
        """Make a TensorArray, or call a method of one that the run has made."""
        for x in (*args, *kwargs.values()):
            if type(x) in TENSORS and x.dtype.is_integer:  # it may be an index
                self.run.operands.values(x)
        return self._by_framework(call, args, kwargs)

    def of_strategy(self, method, /, *args, **kwargs):
        """Call a method of the strategy without any distribution, or of its replica, such as `merge_call`."""
        self.merges += 1
        try:
            return self._by_framework(method, args, kwargs)
        finally:
            self.merges -= 1

    def new_spec(self, kind, /, *args, **kwargs):
        for x in (*args, *kwargs.values()):
            self.run.operands.values(x)
            self.note_handed(x)
        return kind(*args, **kwargs)

    @ours.calling
    def _by_framework(self, call, args, kwargs, tests=False):
        """Call what is the framework's, and issues nothing but what follows from what it is handed, and from what functions among that give; tests: whether it tests what the first of
        these, its condition, gives."""
        args = [self._handed(x, tests and k == 0) for k, x in enumerate(args)]
        kwargs = {name: self._handed(x, tests and name == "cond") for name, x in kwargs.items()}
        self._span = len(self.run.runner.log)
        try:
            result = call(*args, **kwargs)
        except Exception:
            self.run.impure(f"calls {getattr(call, '__qualname__', 'a function')}, which raises")
            raise
        finally:
            self._end_span()
        self.run.framework.bear(result)
        return result

    @ours.calling
    def by_program(self, function, note, /, *args, **kwargs):
        """Call a function of the program's in the middle of that; `note` is shown what it gives."""
        within = self._end_span()
        if not within and self.run.covered is None:  # the run is over, or the framework has called it in a way that is not known
            self.run.impure("has the framework call a function")
            return function(*args, **kwargs)
        for x in (*args, *kwargs.values()):
            self.run.framework.bear(x)
        try:
            result = function(*args, **kwargs)
        finally:
            if within:
                self._span = len(self.run.runner.log)
        if note is not None:
            note(result)
        return result

    def _end_span(self):
        """The framework's code is left: what it has issued is accounted for. Returns whether it ran."""
        start, self._span = self._span, None
        if start is None:
            return False
        while self.run.skipped and self.run.skipped[-1][0] >= start:
            self.run.skipped.pop()
        if len(self.run.runner.log) > start:
            self.run.skipped.append((start, len(self.run.runner.log) - start))
        return True

    def _handed(self, it, tests=False):
        """Returns what to give the framework's code for an argument; tests: whether it tests what `it` gives."""
        if type(it) in _CALLABLE:
            made = framework_loops.unconverted(functools.partial(self.by_program, self.run.calls.builtin(it), self.run.operands.truth if tests else self.note_handed))
            made.terra_calls = it
            return made
        if type(it) in _CONTAINERS and _holds_callables(it):  # what is made of it here is not what the framework may give back
            self.run.contents.look_into(it)
            return {key: self._handed(x) for key, x in it.items()} if type(it) is dict else type(it)([self._handed(x) for x in it])
        self.note_handed(it)
        return it

    def note_handed(self, it):
        """The framework's code is given `it`: what it gives back of that is not new."""
        kind = type(it)
        self.run.deferred.looked_at(it)
        if kind in TENSORS:
            self.run.used.add(id(it))
        elif kind is list or kind is tuple or kind is dict:
            self.run.handed_over[id(it)] = it
            self.run.contents.look_into(it)
            if kind is dict:
                self.run.contents.keys(it)
            for x in it.values() if kind is dict else it:
                self.note_handed(x)
        elif kind is np.ndarray:
            if not self.run.gives(it):
                self.run.contents.look_into(it)
        elif composites.is_composite(kind):
            for x in composites.composite_parts(it):
                self.note_handed(x)
        elif not self.run.born.has(it) and kind not in PLAIN and it is not None and kind not in _CONSTANTS and not isinstance(it, Enum) and not tfi.is_variable(it):
            self.run.impure(f"gives the framework an object of type {kind.__name__}")
