"""The observer's part for calls: of the framework's, which must be skipped, and of the user's, which are observed in turn."""

import collections
import dataclasses
import functools
import inspect
import weakref
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType

import numpy as np

from terra import ours
from terra.frameworks import keras, effect_free, framework_objects, tensorflow
from terra.location import location
from terra.runtime.fast_forward.cache import arguments, call_cache
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.purity.facts.library_classes import calls_library, derives_from_librarys, within_scope
from terra.runtime.fast_forward.purity.facts.bytecode import cleans_up
from terra.runtime.fast_forward.purity.unknown.library_code import unwatched
from terra.runtime.fast_forward.sites import fast_calls, substitution, skipping, user_layers
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.array_calculations import FUNCTIONS
from terra.runtime.tensors.object_kinds import LISTS, PLAIN, TENSORS, is_frameworks_function, is_librarys_container, is_tapes, makes_named_tuples, tapes_own
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.transform import convert, policy, wrappers
from terra.transform.observing.observed import Unobservable
from terra.transform.rewriting.instrumenter import SETS_TRACE

_OF_PARTIALS = attrgetter("func"), attrgetter("args"), attrgetter("keywords")


class Calls:
    """The part of the Observer for calls."""

    def enter(self, cursor, call_id, callee):
        """Returns what to call at an instrumented call site."""
        form = cursor.enter(call_id, callee)
        return form if self._is_over() else self._callee(callee, form, True)

    def enter_at(self, there, callee):
        """Returns what to call at a location, where no call site does."""
        form = location.target_at(there, callee)
        return form if self._is_over() else self._callee(callee, form, True)

    def _is_over(self):
        """Whether nothing is observed any more. With numbers and arrays that vary, calls are still to be recorded with the tensors that stand for them."""
        return self.reason is not None and not (self.passing and (self._dynamic.numbers or self._dynamic.has_arrays))

    def builtin(self, callee):
        """Returns what to call in place of a builtin, or of anything that is called by code which is not instrumented."""
        if (type(callee) is FunctionType or type(callee) is MethodType) and getattr(callee, "__name__", None) == SETS_TRACE:
            self.impure("starts a debugger")
            return callee
        form = substitution.substitute_for(callee)
        return form if self._is_over() else self._callee(callee, form, False)

    def _callee(self, callee, form, instrumented):
        kind = type(callee)
        if callee in self.opaque:
            return self.opaque.calling(callee, "calls what unknown code gives")
        known = self._known_callee(callee, form, instrumented)
        if (kind is BuiltinFunctionType or kind is type) and type(known) is functools.partial and self.reason is None:
            return functools.partial(self._perhaps_of_opaque, callee, known)
        return known

    def _known_callee(self, callee, form, instrumented):
        kind = type(callee)
        if calls_library(callee):
            return functools.partial(self._of_library, callee, form)
        if kind is FunctionType:
            if is_frameworks_function(callee):
                if callee is tfi.tf.custom_gradient or callee is tfi.tf.recompute_grad:
                    return functools.partial(self._with_own_gradient, callee)
                if effect_free.only_calls(callee):
                    return functools.partial(self._calling, callee)
                if effect_free.branches(callee):
                    return functools.partial(self._branching, callee)
                if effect_free.vectorizes(callee):
                    return functools.partial(self._vectorizing, callee)
                if effect_free.is_loop(callee):
                    return functools.partial(self._loop, callee)
                if effect_free.is_setting(callee):
                    return functools.partial(self._setting, callee)
            if fast_calls.substitute(callee) is not None and not self.library_code.is_to_be_observed(callee):
                if self._dynamic.numbers and callee in tensorflow.CONVERTING:
                    return functools.partial(self._converting, callee, form)
                return functools.partial(self._framework, callee, form)
            if id(callee) in FUNCTIONS:
                return functools.partial(self._on_plain, callee)
            if is_frameworks_function(callee) and effect_free.follows_from_arguments(callee):  # of an older namespace, such as tf_keras.backend
                return functools.partial(self._framework, callee, form)
            if callee is dataclasses.replace:
                return self._replaced
            if self.makes_context(callee):
                return functools.partial(self._make_context, callee.__wrapped__, instrumented)
            return self._function(callee, form, instrumented)
        if kind is MethodType:
            return self._method(callee, form, instrumented)
        if kind is BuiltinFunctionType:
            return self._builtin_function(callee, form)
        if isinstance(callee, type):
            return self._class(callee, form)
        if kind is functools.partial:
            return self._partial(callee, form, instrumented)
        if framework_objects.is_derived_object(callee) and self._covers(callee):
            return functools.partial(self._within, callee)
        if type(form) is skipping.Skipping and not (self._is_own_object(callee) and self.library_code.observes(kind.__call__)):
            return functools.partial(self._framework, None, form)
        if type(form) is user_layers.Wrapped:
            return functools.partial(self._layer, callee, form)
        if (isinstance(callee, np.ufunc) and getattr(np, callee.__name__, None) is callee) or id(callee) in FUNCTIONS:
            return functools.partial(self._on_plain, callee)
        if self.is_initialiser(callee):
            return form
        if ours.owns(kind) and hasattr(kind, "within"):  # a step within the step
            return self._known_callee(callee.__wrapped__, callee.within(self.runner.step), True)
        if kind is wrappers.CACHED:
            return functools.partial(self._cached, callee)
        decorated = tfi.has_custom_gradient(callee)
        if decorated is not None:
            return functools.partial(self._with_gradient, callee, decorated)
        self.note_class(callee)
        call = self._found(kind.__mro__, "__call__", None)
        own = within_scope(call)
        if own is not None:
            return functools.partial(self._scoped, callee, own)
        if type(call) is FunctionType and policy.may_know_program(call):
            return self._bound(call, callee, form, instrumented)
        if type(call) is tfi.PolymorphicFunction:
            return functools.partial(self._framework, None, skipping.Skipping(call.__get__(callee, kind)))
        if effect_free.is_scoped(call) and self.reason is None:
            return functools.partial(self._scoped, callee, call.__wrapped__)
        inside = self.library_code.called(MethodType(call, callee)) if type(call) is FunctionType else None
        return inside or self.opaque.calling(callee, f"calls an object of type {kind.__name__}")

    def _function(self, callee, form, instrumented):
        """A Python function: the program's is observed, the framework's, too; what others do is unknown, and may as well be done again."""
        if policy.may_know_program(callee) or id(callee) in self._born:
            return self._user_function(callee, form, instrumented)
        if not is_frameworks_function(callee):
            return self.opaque.calling(callee, f"calls {callee.__qualname__}")
        inside = self.library_code.called(callee)
        if inside is None:  # what it gives may depend on where in the framework it is called
            self.impure(f"calls {callee.__qualname__}, of the framework's, which is not known to do nothing but compute")
            return form
        return inside

    def _partial(self, callee, form, instrumented):
        """A functools.partial: what it calls is called observed."""
        if id(callee) not in self._born:
            for part in _OF_PARTIALS:
                self.reads.asked(part, callee, part(callee))
            self._look_into(callee.keywords)
        if form is callee:  # what it calls is not instrumented
            instrumented, inner = False, substitution.substitute_for(callee.func)
        else:
            inner = form.func
        return functools.partial(self._callee(callee.func, inner, instrumented), *callee.args, **callee.keywords)

    def _scoped(self, module, method, /, *args, **kwargs):
        """Call a method that `tf.Module.with_name_scope` decorates."""
        with module.name_scope:
            return self._user_function(method, method, True)(module, *args, **kwargs)

    @ours.calling
    def _setting(self, function, /, *args, **kwargs):
        value = function(*args, **kwargs)  # without any, or it raises
        self.reads.asked(_call, function, value)
        return value

    @ours.calling
    def _calling(self, function, /, *args, **kwargs):
        """Call a function of the framework's that does nothing but to look into structures, and to call what it is given."""
        if function is tfi.tf.cond:
            self.values((args, kwargs))
        args = [self._structure(x) for x in args]
        result = function(*args, **{name: self._structure(x) for name, x in kwargs.items()})
        if function.__name__ == "flatten":
            self.fresh(result)
        elif function.__name__ == "map_structure" and len(args) > 1:
            self._made_like(args[1], result)
        elif function.__name__ in ("pack_sequence_as", "map_structure_up_to") and args:
            self._made_like(args[0], result)
        return result

    def _made_like(self, structure, made):
        """`made` and the containers in it were made as those of `structure` are nested; what is in these need not be new."""
        kind = type(made)
        if kind is type(structure) and kind in (list, tuple, dict):
            if kind is not tuple:
                self.fresh(made)
            for k in made if kind is dict else range(len(made)):
                self._made_like(structure[k], made[k])

    def _structure(self, it):
        """Returns what to give such a function for `it`."""
        kind = type(it)
        if kind in PLAIN or kind in TENSORS:
            self.deferred.looked_at(it)
        elif kind is list or kind is tuple or kind is dict or (makes_named_tuples(kind) and self.is_named_tuple(kind)):
            self._look_into(it)
            if kind is dict:
                self._keys(it)
            for x in it.values() if kind is dict else it:
                self._structure(x)
        elif kind in (FunctionType, MethodType, BuiltinFunctionType, functools.partial):
            return self.builtin(it)
        elif not tfi.is_variable(it):
            self.impure(f"searches an object of type {kind.__name__}")
        return it

    def _user_function(self, function, form, instrumented=False):
        """The observed form of a user's function; `instrumented`: of one that keeps its locations, though `function` itself may not."""
        observed = self._observed_function(function, form, instrumented)
        if observed is None or type(observed) is functools.partial or self.reason is not None or not function.__code__.co_flags & inspect.CO_GENERATOR:
            return observed
        own = convert.own_code(function.__code__)
        return functools.partial(self._generating, observed, any(map(cleans_up, convert.own_codes(own) or [own])))

    @ours.calling
    def _generating(self, function, cleans_up, /, *args, **kwargs):
        """Call a generator function. The generator is held weakly: one that is left before its end is closed as soon as nobody needs it any more. If it has something to do then, it is not
        held by iterators over it, either."""
        if cleans_up and not self._lets_go:
            self._lets_go = True
            self._born.drop_iterators()
        made = function(*args, **kwargs)
        self._born.add(made)
        if cleans_up:
            self._generators.append(weakref.ref(made))
        return made

    def _observed_function(self, function, form, instrumented):
        if id(function) in self._born:
            return function
        try:
            observed = unwatched(convert.observed_form, function, instrumented)
        except Unobservable as error:
            return self.opaque.calling(function, f"calls {function.__qualname__}: {error}")
        if convert.is_observed(function.__code__):
            self.exchanged.append(function)
        else:
            self.calls(function)
        return observed

    def _bound(self, function, instance, form, instrumented=False):
        observed = self._user_function(function, None, instrumented)
        return form if observed is None else MethodType(observed, instance)

    def _method(self, callee, form, instrumented):
        function, owner = callee.__func__, callee.__self__
        if type(function) is FunctionType and function is not tapes_own(function) and owner._step is None:  # else the tape is that of a step
            callee = MethodType(tapes_own(function), owner)
            function, form = callee.__func__, substitution.substitute_for(callee)
        if self._covers(owner) and substitution.substitute(callee) is not None:
            return functools.partial(self._within, callee)
        if function is tfi.tape_gradient_method and self.differentiates and id(owner) in self._born:
            return functools.partial(self._gradient, callee)
        if function is tfi.tape_gradient_method or substitution.substitute(callee) is not None:
            if self._dynamic.numbers and function.__name__ in tensorflow.ASSIGNING and tfi.is_variable(owner):
                return functools.partial(self._assigning, owner, form)
            return functools.partial(self._framework, None, form)
        if is_tapes(type(owner)) and function.__name__ == "watch":
            return form
        if is_tapes(type(owner)) and function.__name__ == "stop_recording" and id(owner) in self._born:
            return functools.partial(self._anew, form)
        if type(owner) is tfi.tf.autodiff.ForwardAccumulator and function.__name__ == "jvp" and id(owner) in self._born:
            return functools.partial(self._gradient, form)
        if residual_calls.is_residual(owner, function.__name__):
            return functools.partial(self.live_calls.make, owner, function.__name__)
        if type(function) is FunctionType and is_frameworks_function(function):
            if function.__name__ == "add_loss" and added_losses.list_of(vars(owner)) is not None:
                return functools.partial(self._adding, callee)
            if is_librarys_container(type(owner)) and id(owner) in self._born:
                return functools.partial(self._on_containers, callee)
            if type(owner) is tfi.tf.TensorArray and id(owner) in self._born and function.__name__ in effect_free.OF_ARRAYS:
                return functools.partial(self._of_array, callee)
            if function.__name__ == "numpy" and self._is_own(owner):
                return functools.partial(self.deferred.read_array, self.runner, owner)
            if function.__name__ == "numpy" and tfi.is_variable(owner):
                return functools.partial(self.array_of_variable, callee)
            if type(owner) in PLAIN or type(owner) in TENSORS:  # shapes
                return functools.partial(self._on_plain, callee)
            if self._covers(owner):  # a class of the user's has overridden it, or looks something up with it
                return functools.partial(self._within, callee)
            form = self.library_code.called(callee)
            return self.opaque.calling(callee, f"calls {function.__qualname__}") if form is None else form
        if type(function) is not FunctionType:
            return self.opaque.calling(callee, f"calls {callee!r}")
        if function.__name__ == "_replace" and function.__code__ is _REPLACE and self.is_named_tuple(type(owner)):
            return form
        own = within_scope(function)
        if own is not None:
            return functools.partial(self._scoped, owner, own)
        if not policy.may_know_program(function) and id(function) not in self._born:
            return self.opaque.calling(callee, f"calls {function.__qualname__}")
        return self._bound(function, owner, form, instrumented)

    def _framework(self, callee, form, /, *args, **kwargs):
        """Call a function or object of the framework's, which must be skipped."""
        if not tfi.executing_eagerly():
            return self._in_graph(form, args, kwargs)
        jumps, entered, length = len(self.jumped), self.entered, len(self.runner.log)
        if call_cache.running() is not self.runner:
            if self.accumulates or self.recomputes:
                return self._in_full(form, args, kwargs)
            self.impure("does what could not be skipped")
        for x in (*args, *kwargs.values()):
            self._arguments(x)
        try:
            result = form(*args, **kwargs)
        except Exception:
            self.impure(f"calls {_name(form)}, which raises")
            raise
        if len(self.jumped) != jumps and self.entered == entered:
            self._bear(result)
        elif len(self.runner.log) != length or len(self.jumped) != jumps:
            self.impure(f"calls {_name(form)}, of the framework's, which was not skipped", True)
        elif callee is None or not effect_free.follows_from_arguments(callee) or not arguments.holds_plain_only((args, kwargs)):
            why = self.opaque.note_constant(callee, args, kwargs, result) if type(callee) is FunctionType and self.reason is None else ""
            if why is not None:
                passing = callee is None or (
                    type(callee) is FunctionType and self.opaque.takes(args, kwargs) and self.library_code.observe_next_time(callee))
                self.impure(f"calls {_name(form)}, of the framework's, which runs no operation{f' and {why}' if why else ''}", passing)
        else:
            if effect_free.looks_at_values(callee):
                self.values((args, kwargs))
            if type(result) in LISTS and not any(result is x for x in (*args, *kwargs.values())):
                self.fresh(result)
        return result

    def _assigning(self, variable, form, /, *args, **kwargs):
        """Call a method that assigns to a variable: it first makes a tensor of what it is given."""
        dtype = tfi.dtypes.as_dtype(getattr(variable, "_dtype", None) or variable.dtype)
        return self._framework(None, form, *[self._dynamic.tensor(x, dtype) for x in args[:1]], *args[1:], **kwargs)

    def _converting(self, function, form, /, *args, **kwargs):
        """Call a function that makes tensors of numbers among its arguments, of a type that is known beforehand."""
        numbers = self._dynamic.numbers
        if function in tensorflow.CONSTANTS:
            if id(args[0] if args else None) in numbers and len(args) + len(kwargs) <= 2 and kwargs.keys() <= {"dtype"}:
                dtype = kwargs.get("dtype", args[1] if len(args) == 2 else None)
                made = self._dynamic.tensor(args[0], _type_of(args[0]) if dtype is None else tfi.dtypes.as_dtype(dtype))
                if made is not args[0]:
                    return made
        elif function is tfi.tf.cast and type(args[0] if args else None) is int:
            dtype = kwargs.get("dtype", args[1] if len(args) == 2 else None)
            made = args[0] if dtype is None else self._dynamic.tensor(args[0], tfi.dtypes.as_dtype(dtype))  # the host casts it: no operation is issued
            if type(made) is not int:
                return made
        elif function is tfi.tf.cast:
            args = [*[self._dynamic.tensor(x, _type_of(x)) if id(x) in numbers else x for x in args[:1]], *args[1:]]
        else:
            types = {x.dtype for x in args if type(x) in TENSORS or tfi.is_variable(x)}
            if len(types) == 1 and all((type(x) is float and id(x) in numbers) or type(x) in TENSORS or type(x) in tfi.RESOURCE_VARIABLES for x in args):
                args = [self._dynamic.tensor(x, *types) for x in args]
        return self._framework(function, form, *args, **kwargs)

    @ours.calling
    def _within(self, callee, /, *args, **kwargs):
        """Call a part of the object whose call is recorded: all that it reads is guarded, and the user's functions that it may call are observed in turn."""
        for x in (*args, *kwargs.values()):
            self._arguments(x)
        result = callee(*args, **kwargs)
        self._made_within(result)
        return result

    def _made_within(self, it):
        """A list in such a result that has tensors of this step was made in it."""
        kind = type(it)
        if kind is tuple:
            for x in it:
                self._made_within(x)
        elif kind is list and it and all(type(x) is TerraTensor and x._owner is self.runner for x in it):
            self.fresh(it)

    @ours.calling
    def _adding(self, callee, loss):
        """Call `Layer.add_loss` of Keras'."""
        self._arguments(loss)
        self.adds_loss(callee.__self__)
        callee(loss)

    def _arguments(self, it):
        """All that a call of the framework's is given: it was recorded for these values."""
        kind = type(it)
        self.deferred.looked_at(it)
        if kind in PLAIN or kind in TENSORS:
            self.used.add(id(it))  # (numbers do no harm)
            return
        if isinstance(it, (list, tuple, dict)):
            self._look_into(it)
            for x in it.values() if isinstance(it, dict) else it:
                self._arguments(x)
        elif tfi.is_composite(kind):
            for x in tfi.composite_parts(it):
                self._arguments(x)
        elif kind is np.ndarray and not self.gives(it):
            self._look_into(it)

    def _bear(self, value):
        """The framework, or a library, made `value`, and all containers, TensorArrays and objects of the library's in it, but for those that it was handed."""
        kind = type(value)
        if id(value) in self._held:
            return
        if kind is list or kind is tuple or kind is dict or kind is tfi.ListWrapper:
            if kind is not tuple and id(value) not in self._handed_over:
                self._born.add(value)
            for x in value.values() if kind is dict else value:
                self._bear(x)
        elif kind is tfi.tf.TensorArray or tfi.is_composite(kind) or tfi.is_to_be_used(kind) or derives_from_librarys(kind):
            self._born.add(value)

    def _converted(self, form, args):
        """Returns what a layer of a user's class is given: tensors in the place of arrays, and of those in containers."""
        for x in args:
            if arguments.holds_array(x):
                self._arguments(x)
        made = form.converted(args)
        for x, given in zip(made, args):
            if x is not given and type(x) in LISTS:
                self.fresh(x)
        return made

    def _layer(self, layer, form, /, *args, **kwargs):
        """Call a layer of a user's class."""
        for x in (*args, *kwargs.values()):
            self.deferred.looked_at(x)
        args = self._converted(form, args)
        if self.reason is None:
            kind = type(layer)
            if "call" in vars(layer):
                self.impure("calls a layer whose call was replaced")
            elif not (self.accumulates or self.recomputes or call_cache.running() is self.runner) or not form.known.holds(kind):
                self.impure("calls a layer by its wrapper", True)
            elif not (predicted := user_layers.is_predicted(form, args, kwargs)):
                if predicted is not None:
                    return self._framework(None, skipping.Skipping(layer), *args, **kwargs)
                self.impure("calls a layer by its wrapper for the first time", True)
                return user_layers.verify(form, args, kwargs)
            else:
                self.reads.layers_class(form.known, kind)
                self.reads.settings("keras")
                attributes = vars(layer)
                self.reads.object(layer, kind, attributes)
                for name in keras.OF_LAYERS:
                    if name in attributes:
                        self.reads.entry(attributes, name, attributes[name])
                    else:
                        self.reads.absent(attributes, name)
                call = self._found(kind.__mro__, "call", None)
                if type(call) is FunctionType and self.reason is None:
                    observed = self._bound(call, layer, None)
                    if observed is not None:
                        return user_layers.call_directly(form, args, kwargs, observed)
                self.impure(f"calls a layer whose call is a {type(call).__name__}")
        return form(*args, **kwargs)


_REPLACE = collections.namedtuple("_", "field")._replace.__code__


def _type_of(number):
    """The type of the tensor that TensorFlow makes of a number."""
    return tfi.dtypes.float32 if type(number) is float else tfi.dtypes.int32 if type(number) is int else tfi.dtypes.as_dtype(type(number))


@ours.calling
def _call(function):
    return function()


def _name(form):
    """Returns what a callable is called."""
    callee = getattr(form, "callee", form)  # of `skipping.Skipping`
    name = getattr(callee, "__qualname__", None) or f"a {type(callee).__name__}"
    return name.removesuffix(".<locals>.call")
