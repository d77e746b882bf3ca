"""The observer's part for calls: what is called in place of a function, and the user's functions, which are observed in turn."""

import collections.abc
import dataclasses
import functools
import inspect
import typing
import weakref
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType

import numpy as np

from terra import ours
from terra.frameworks import effect_free, framework_objects, methods, tensorflow
from terra.location import location
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.guards.read_set import DECORATING
from terra.runtime.fast_forward.purity.facts.bytecode import cleans_up
from terra.runtime.fast_forward.purity.facts.library_classes import calls_library, within_scope
from terra.runtime.fast_forward.purity.facts.plain_classes import is_made_by_runs
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sites import fast_calls, substitution, skipping, user_layers, writers
from terra.runtime.fast_forward.sites.python_functions import PythonFunction
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.array_calculations import FUNCTIONS
from terra.runtime.fast_forward.sources.filled import Filled
from terra.runtime.fast_forward.sources.opaque_calls import iterator_of
from terra.runtime.interpreter.profilers import unwatched
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, defined, is_frameworks_function, is_librarys_container, is_tapes, makes_named_tuples, tapes_own
from terra.runtime.tensors.tensor import has_open_shape
from terra.tf.private import composites
from terra.tf import private_names as tfi
from terra.transform import convert, policy, wrappers
from terra.transform.observing.observed import Unobservable
from terra.transform.rewriting.instrumenter import SETS_TRACE

_BUILT_IN = (list, tuple, dict, set, frozenset, str, bytes, np.ndarray, type)  # classes that derive from these look at what they are made of
_SEARCHED = (collections.abc.Mapping, collections.abc.Sequence, collections.abc.MappingView)  # whose objects `tf.nest` looks into
_OF_PARTIALS = attrgetter("func"), attrgetter("args"), attrgetter("keywords")


class Calls(Handler):
    """The part of the Observer for calls."""

    __slots__ = ("exchanged",)

    def __init__(self, run):
        super().__init__(run)
        self.exchanged = []  # functions that were called while they had other code than their own: what they read is still to be noted

    def enter(self, cursor, call_id, callee):
        """Returns what to call at an instrumented call site."""
        form = cursor.enter(call_id, callee)
        return form if self.run.is_over() else self._callee(callee, form, True)

    def enter_at(self, there, callee):
        """Returns what to call at a location, where no call site does."""
        form = location.target_at(there, callee)
        return form if self.run.is_over() else self._callee(callee, form, True)

    def builtin(self, callee):
        """Returns what to call in place of a builtin, or of anything that is called by code which is not instrumented."""
        if (type(callee) is FunctionType or type(callee) is MethodType) and getattr(callee, "__name__", None) == SETS_TRACE:
            self.run.impure("starts a debugger")
            return callee
        form = substitution.substitute_for(callee)
        return form if self.run.is_over() else self._callee(callee, form, False)

    def _callee(self, callee, form, instrumented):
        kind = type(callee)
        if callee in self.run.opaque:
            if framework_objects.is_stock_layer(kind) and self.run.opaque.is_called_at_once(callee, instrumented):
                return functools.partial(self.run.framework.made_layer, callee)
            return self.run.opaque.calling(callee, "calls what unknown code gives")
        known = self._known_callee(callee, form, instrumented)
        if (kind is BuiltinFunctionType or kind is type or getattr(known, "func", None) == self.run.builtins.on_plain) and type(known) is functools.partial and self.run.reason is None:
            return functools.partial(self.perhaps_of_opaque, callee, known)
        return known

    @ours.calling
    def perhaps_of_opaque(self, callee, known, /, *args, **kwargs):
        """Call a builtin, which may be given what unknown code has given."""
        if any(x in self.run.opaque for x in args) and callee is not next and not (isinstance(callee, type) and is_made_by_runs(callee)) and not (callee.__name__ in methods.ADDING and self.run.born.has(callee.__self__)):
            return self.run.opaque.calling(iterator_of if callee is iter and len(args) == 1 else callee, f"calls {getattr(callee, '__qualname__', callee.__name__)}")(*args, **kwargs)
        return known(*args, **kwargs)

    def _known_callee(self, callee, form, instrumented):
        kind = type(callee)
        if calls_library(callee):
            return functools.partial(self.run.libraries.of_library, callee, form)
        if kind is FunctionType:
            if type(form) in (writers.Writer, PythonFunction):
                return functools.partial(self.run.writing.call if type(form) is writers.Writer else self.run.library_code.python_function, form)
            if is_frameworks_function(callee):
                if callee is tfi.tf.custom_gradient or callee is tfi.tf.recompute_grad:
                    return functools.partial(self.run.functionals.with_own_gradient, callee)
                if effect_free.only_calls(callee):
                    return functools.partial(self._calling, callee)
                if effect_free.branches(callee):
                    return functools.partial(self.run.functionals.branching, callee)
                if effect_free.vectorizes(callee):
                    return functools.partial(self.run.functionals.vectorizing, callee)
                if effect_free.is_loop(callee):
                    return functools.partial(self.run.functionals.loop, callee)
                if callee is tfi.tf.init_scope:  # where nothing is skipped: what issues no operation does no harm
                    return functools.partial(self.run.builtins.anew, form)
                if effect_free.is_setting(callee):
                    return functools.partial(self._setting, callee)
            if fast_calls.substitute(callee) is not None and not self.run.library_code.is_to_be_observed(callee):
                if callee in tensorflow.CONVERTING:
                    return functools.partial(self.run.framework.converting, callee, form)
                return functools.partial(self.run.framework.call, callee, form)
            if id(callee) in FUNCTIONS:
                return functools.partial(self.run.builtins.on_plain, callee)
            if is_frameworks_function(callee) and effect_free.follows_from_arguments(callee):  # of an older namespace, such as tf_keras.backend
                return functools.partial(self.run.framework.call, callee, form)
            if callee is inspect.getfullargspec:
                return self._parameters
            if callee is typing.cast or callee is dataclasses.replace:
                return callee if callee is typing.cast else self.run.objects.replaced  # the former gives what it is given
            if self.run.objects.makes_context(callee):
                return functools.partial(self.run.objects.make_context, callee.__wrapped__, instrumented)
            return self._function(callee, form, instrumented)
        if kind is MethodType:
            return self._method(callee, form, instrumented) if type(callee.__self__) is not Filled else functools.partial(self.run.changes.filled, callee)
        if kind is BuiltinFunctionType:
            return self.run.builtins.builtin_function(callee, form)
        if isinstance(callee, type):
            return self.run.objects.by_metaclass(callee) or self.run.builtins.of_class(callee, form)
        if kind is functools.partial:
            return self._partial(callee, form, instrumented)
        if framework_objects.is_derived_object(callee) and self.run.attributes.covers(callee):
            return functools.partial(self.run.framework.within, callee)
        if type(form) is skipping.Skipping and not (self.run.objects.is_own_object(callee) and self.run.library_code.observes(kind.__call__)):
            return functools.partial(self.run.framework.call, None, form)
        if type(form) is user_layers.Wrapped:
            return functools.partial(self.run.framework.layer, callee, form)
        if (isinstance(callee, np.ufunc) and getattr(np, callee.__name__, None) is callee) or id(callee) in FUNCTIONS:
            return functools.partial(self.run.builtins.on_plain, callee)
        if (initialiser := self.run.objects.initialiser(callee, form)) is not None:
            return initialiser
        if kind is MethodWrapperType and callee.__name__ == "__call__" and callee.__objclass__ is type:  # by `super()`, of a class of classes
            return self.run.builtins.of_class(callee.__self__, callee)
        if ours.owns(kind) and hasattr(kind, "within"):  # a step within the step
            return self._known_callee(callee.__wrapped__, callee.within(self.run.runner.step), True)
        if kind is wrappers.CACHED:
            return functools.partial(self.run.objects.cached, callee)
        decorated = tfi.has_custom_gradient(callee)
        if decorated is not None:
            return functools.partial(self.run.functionals.with_gradient, callee, decorated)
        self.run.classes.note_class(callee)
        call = self.run.classes.found(kind.__mro__, "__call__", None)
        own = within_scope(call)
        if own is not None:
            return functools.partial(self._scoped, callee, own)
        if type(call) is FunctionType and policy.may_know_program(call):
            return self.bound(call, callee, form, instrumented)
        if type(call) is tfi.PolymorphicFunction:
            return functools.partial(self.run.framework.call, None, skipping.Skipping(call.__get__(callee, kind)))
        if effect_free.is_scoped(call) and self.run.reason is None:
            return functools.partial(self._scoped, callee, call.__wrapped__)
        return (type(call) is FunctionType and self.run.library_code.called(MethodType(call, callee))) or self.run.opaque.calling(callee, f"calls an object of type {kind.__name__}")

    def _function(self, callee, form, instrumented):
        """A Python function: the program's is observed, the framework's, too; what others do is unknown, and may as well be done again."""
        if policy.may_know_program(callee) or self.run.born.has(callee):
            observed = self.user_function(callee, form, instrumented)
            return observed if policy.is_user_code(callee) or self.run.born.has(callee) else functools.partial(self.run.library_code.strange, callee, observed)
        step = wrappers.STEPS.get(callee)
        if step is not None:
            return self._known_callee(step.__wrapped__, step.within(self.run.runner.step), True)
        if not is_frameworks_function(callee):
            return self.run.opaque.calling(callee, f"calls {callee.__qualname__}")
        inside = self.run.library_code.called(callee)
        if inside is None:  # what it gives may depend on where in the framework it is called
            self.run.impure(f"calls {callee.__qualname__}, of the framework's, which is not known to do nothing but compute")
            return form
        return inside

    @ours.calling
    def _parameters(self, /, *args, **kwargs):
        """Call `inspect.getfullargspec`: what it says of a function follows from that."""
        function = getattr(args[0], "__func__", args[0]) if len(args) == 1 and not kwargs else None
        if type(function) is not FunctionType or self.run.born.has(function) or not DECORATING.isdisjoint(vars(function)):
            return self.run.opaque.make(inspect.getfullargspec, args, kwargs, "calls getfullargspec")
        exchanged = convert.is_observed(function.__code__)
        if exchanged:
            self.exchanged.append(function)
        self.run.reads.signature(function, not exchanged)
        found = inspect.getfullargspec(*args)
        for part in (found.args, found.kwonlyargs):
            self.run.fresh(part)
        return found

    def _partial(self, callee, form, instrumented):
        """A functools.partial: what it calls is called observed."""
        if not self.run.born.has(callee):
            for part in _OF_PARTIALS:
                self.run.reads.asked(part, callee, part(callee))
            self.run.contents.look_into(callee.keywords)
        if form is callee:  # what it calls is not instrumented
            instrumented, inner = False, substitution.substitute_for(callee.func)
        else:
            inner = form.func
        return functools.partial(self._callee(callee.func, inner, instrumented), *callee.args, **callee.keywords)

    def _scoped(self, module, method, /, *args, **kwargs):
        """Call a method that `tf.Module.with_name_scope` decorates."""
        with module.name_scope:
            return self.user_function(method, method, True)(module, *args, **kwargs)

    @ours.calling
    def _setting(self, function, /, *args, **kwargs):
        value = function(*args, **kwargs)  # without any, or it raises
        if not tfi.executing_eagerly():
            return value  # while a graph is made
        if isinstance(value, tfi.tf.distribute.ReplicaContext):  # TensorFlow may make one for each step
            self.run.reads.asked(_strategy, function, value.strategy)
        elif not (self.run.functionals.merges and effect_free.is_of_strategies(function)):
            self.run.reads.asked(_call, function, value)
        return value

    @ours.calling
    def _calling(self, function, /, *args, **kwargs):
        """Call a function of the framework's that does nothing but to look into structures, and to call what it is given."""
        if function is tfi.tf.cond:
            self.run.operands.values((args, kwargs))
        args = [self._structure(x) for x in args]
        result = function(*args, **{name: self._structure(x) for name, x in kwargs.items()})
        name = function.__name__
        if name.startswith("flatten"):
            self.run.fresh(result)
        elif name in ("map_structure", "map_structure_with_paths", "map_structure_with_tuple_paths") and len(args) > 1:
            self._made_like(args[1], result)
        elif name.startswith(("pack_sequence_as", "map_structure")) and args:
            self._made_like(args[0], result)
        return result

    def _made_like(self, structure, made):
        """`made` and the containers in it were made as those of `structure` are nested; what is in these need not be new."""
        kind = type(made)
        if kind is type(structure) and kind in (list, tuple, dict):
            if kind is not tuple:
                self.run.fresh(made)
            for k in made if kind is dict else range(len(made)):
                self._made_like(structure[k], made[k])

    def _structure(self, it):
        """Returns what to give such a function for `it`."""
        kind = type(it)
        if kind in PLAIN or kind in TENSORS:
            self.run.deferred.looked_at(it)
        elif kind is list or kind is tuple or kind is dict or (is_librarys_container(kind) and isinstance(it, list)) or (makes_named_tuples(kind) and self.run.classes.is_named_tuple(kind)):
            self.run.contents.look_into(it)
            if kind is dict:
                self.run.contents.keys(it)
            for x in it.values() if kind is dict else it:
                self._structure(x)
        elif kind in (FunctionType, MethodType, BuiltinFunctionType, functools.partial):
            return self.builtin(it)
        elif isinstance(it, _SEARCHED) or composites.is_composite(kind) or any(defined(kind, name) is not None for name in ("__attrs_attrs__", "__tf_flatten__")):
            self.run.impure(f"searches an object of type {kind.__name__}")
        elif not tfi.is_variable(it):
            self.run.classes.ask_instance(it, _SEARCHED, False)  # it is a leaf
        return it

    def user_function(self, function, form, instrumented=False):
        """The observed form of a user's function; `instrumented`: of one that keeps its locations, though `function` itself may not."""
        observed = self._observed_function(function, form, instrumented)
        if observed is None or type(observed) is functools.partial or self.run.reason is not None or not function.__code__.co_flags & inspect.CO_GENERATOR:
            return observed
        own = convert.own_code(function.__code__)
        return functools.partial(self._generating, observed, any(map(cleans_up, convert.own_codes(own) or [own])))

    @ours.calling
    def _generating(self, function, cleans_up, /, *args, **kwargs):
        """Call a generator function. The generator is held weakly: one that is left is closed as soon as nobody needs it. If it has something to do then, iterators over it do not hold it, either."""
        if cleans_up and not self.run.lets_go:
            self.run.lets_go = True
            self.run.born.drop_iterators()
        made = function(*args, **kwargs)
        self.run.born.add(made)
        if cleans_up:
            self.run.generators.append(weakref.ref(made))
        return made

    def _observed_function(self, function, form, instrumented):
        if self.run.born.has(function):
            return function
        try:
            observed = unwatched(convert.observed_form, function, instrumented)
        except Unobservable as error:
            return self.run.opaque.calling(function, f"calls {function.__qualname__}: {error}")
        if convert.is_observed(function.__code__):
            self.exchanged.append(function)
        else:
            self.run.note_called(function)
        return observed

    def special(self, it, name):
        """Returns what to call in place of a special method that the class of `it` defines in Python; None if it defines none, or none that can be observed."""
        kind = type(it)
        if self.run.reason is not None or kind in PLAIN or kind in TENSORS or isinstance(it, _BUILT_IN) or (it in self.run.opaque and not self.run.opaque.instances.pins(it)) or tfi.is_variable(it) or composites.is_composite(kind):
            return None
        function = defined(kind, name)
        if type(function) is not FunctionType:
            return None
        if policy.may_know_program(function):
            form = functools.partial(self.user_function(function, function), it)
        else:
            form = self.run.library_code.called(MethodType(function, it))
        if form is not None:
            self.run.classes.note_class(it)
            self.run.classes.found(kind.__mro__, name, None)
        return form

    def bound(self, function, instance, form, instrumented=False):
        observed = self.user_function(function, None, instrumented)
        return form if observed is None else MethodType(observed, instance)

    def _method(self, callee, form, instrumented):
        function, owner = callee.__func__, callee.__self__
        if type(function) is FunctionType and function is not tapes_own(function) and owner._step is None:  # else the tape is that of a step
            callee = MethodType(tapes_own(function), owner)
            function, form = callee.__func__, substitution.substitute_for(callee)
        if self.run.attributes.covers(owner) and substitution.substitute(callee) is not None:
            return functools.partial(self.run.framework.within, callee)
        if function is tfi.tape_gradient_method and self.run.differentiates and self.run.born.has(owner):
            return functools.partial(self.run.functionals.gradient, callee)
        if function is tfi.tape_gradient_method or substitution.substitute(callee) is not None:
            if function.__name__ in tensorflow.ASSIGNING and tfi.is_variable(owner):
                return functools.partial(self.run.framework.assigning, owner, form)
            return functools.partial(self.run.framework.call, None, form)
        if is_tapes(type(owner)) and function.__name__ == "watch":
            return form
        if is_tapes(type(owner)) and function.__name__ == "stop_recording" and self.run.born.has(owner):
            return functools.partial(self.run.builtins.anew, form)
        if type(owner) is tfi.tf.autodiff.ForwardAccumulator and function.__name__ == "jvp" and self.run.born.has(owner):
            return functools.partial(self.run.functionals.gradient, form)
        if residual_calls.is_residual(owner, function.__name__):
            return functools.partial(self.run.live_calls.make, owner, function.__name__)
        if function.__name__ == "set_shape" and type(owner) in TENSORS and not has_open_shape(owner):  # it only checks
            return functools.partial(self.run.builtins.on_plain, callee)
        if function.__name__ == "__call__" and framework_objects.is_frameworks_own(function) and framework_objects.derives_from_stock(type(owner)):
            # A class of the program's has a `__call__` of its own, which goes on to that of a layer.
            if self.run.attributes.covers(owner):
                return functools.partial(self.run.framework.within, callee)
            return functools.partial(self.run.framework.call, None, MethodType(skipping.skipping(framework_objects.original(function)), owner))
        if type(function) is FunctionType and is_frameworks_function(function):
            if self.run.writing.knows(callee):
                return functools.partial(getattr(self.run.writing, function.__name__), callee)
            if function.__name__ == "add_loss" and added_losses.list_of(vars(owner)) is not None:
                return functools.partial(self.run.framework.adding, callee)
            if is_librarys_container(type(owner)) and self.run.born.has(owner):
                return functools.partial(self.run.builtins.on_containers, callee)
            if type(owner) is tfi.tf.TensorArray and self.run.born.has(owner) and function.__name__ in effect_free.OF_ARRAYS:
                return functools.partial(self.run.functionals.of_array, callee)
            if function.__name__ == "numpy" and self.run.is_own_tensor(owner):
                return functools.partial(self.run.deferred.read_array, self.run.runner, owner)
            if function.__name__ == "numpy" and self.run.live_calls.may_read(owner):
                return functools.partial(self.run.live_calls.value_of, owner)
            if function.__name__ == "numpy" and tfi.is_variable(owner):
                return functools.partial(self.run.arrays.array_of_variable, callee)
            if type(owner) in PLAIN or type(owner) in TENSORS or (function.__name__ == "get_shape" and tfi.is_variable(owner)):  # shapes
                return functools.partial(self.run.builtins.on_plain, callee)
            if self.run.attributes.covers(owner):  # a class of the user's has overridden it, or looks something up with it
                return functools.partial(self.run.framework.within, callee)
            if effect_free.is_of_default_strategy(callee):
                return functools.partial(self.run.functionals.of_strategy, callee)
            form = self.run.library_code.called(callee)
            return self.run.opaque.calling(callee, f"calls {function.__qualname__}") if form is None else form
        if type(function) is not FunctionType:
            return self.run.opaque.calling(callee, f"calls {callee!r}")
        if function.__name__ == "_replace" and function.__code__ is _REPLACE and self.run.classes.is_named_tuple(type(owner)):
            return form
        step = wrappers.STEPS.get(function)
        if step is not None:
            return self.bound(step.__wrapped__, owner, MethodType(step.within(self.run.runner.step), owner), True)
        own = within_scope(function)
        if own is not None:
            return functools.partial(self._scoped, owner, own)
        if not policy.may_know_program(function) and not self.run.born.has(function):
            return self.run.opaque.calling(callee, f"calls {function.__qualname__}")
        return self.bound(function, owner, form, instrumented)


_REPLACE = collections.namedtuple("_", "field")._replace.__code__


@ours.calling
def _call(function):
    return function()


@ours.calling
def _strategy(function):
    """Returns the strategy of the replica that such a function gives; None if there is none."""
    context = function()
    return None if context is None else context.strategy
