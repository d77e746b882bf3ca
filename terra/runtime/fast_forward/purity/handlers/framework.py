"""The observer's part for calls of the framework's, which must be skipped, and for layers of the user's classes."""

import inspect
import operator
from types import FunctionType

import numpy as np

from terra import ours
from terra.frameworks import keras, effect_free, tensorflow
from terra.runtime.fast_forward.cache import arguments, call_cache
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.purity.facts.library_classes import derives_from_librarys
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sites import skipping, user_layers
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import LISTS, PLAIN, TENSORS, defined, is_frameworks_function, is_librarys
from terra.runtime.tensors.tensor import TerraTensor, has_open_shape, holds_numbers
from terra.tf import private_names as tfi
from terra.tf.private import composites

_MOST_MADE = 1000  # layers that are kept in the place of those that steps make
_TYPE = operator.attrgetter("compute_dtype")  # that a layer computes with


class Framework(Handler):
    """The part of the Observer for these."""

    __slots__ = ()

    def call(self, callee, form, /, *args, **kwargs):
        """Call a function or object of the framework's, which must be skipped."""
        plain = None  # the arguments as they were, if tensors take the place of arrays among them
        if not tfi.executing_eagerly():
            return self.run.functionals.in_graph(form, args, kwargs)
        if type(callee) is FunctionType and not callee.__name__.startswith(tensorflow.READING_PARTS):
            args = [self._converted_variable(x) if type(x) not in TENSORS else x for x in args]
            if self.run.dynamic.has_arrays and tensorflow.is_dispatched(callee):
                made = self._with_tensors(args, kwargs)
                if made[0] is not args:
                    plain, (args, kwargs) = (args, kwargs), made
        jumps, entered, length = len(self.run.jumped), self.run.entered, len(self.run.runner.log)
        if call_cache.running() is not self.run.runner:
            if self.run.functionals.accumulates or self.run.functionals.recomputes:
                return self.run.functionals.in_full(form, args, kwargs)
            self.run.impure("does what could not be skipped")
        for x in (*args, *kwargs.values()):
            self.note_arguments(x)
        try:
            result = form(*args, **kwargs)
        except Exception:
            if callee is None or _has_room_for(callee, args, kwargs):
                self.run.impure(f"calls {_name(form)}, which raises")
            if plain is not None:
                return form(*plain[0], **plain[1])  # which raises what it does of arrays
            raise
        if len(self.run.jumped) != jumps and self.run.entered == entered:
            self.bear(result)
        elif len(self.run.runner.log) != length or len(self.run.jumped) != jumps:
            self.run.postpone(f"calls {_name(form)}, of the framework's, which was not skipped")
            self.bear(result)
        elif callee is None or not effect_free.follows_from_arguments(callee) or not arguments.holds_plain_only((args, kwargs)):
            why = self.run.opaque.note_constant(callee, args, kwargs, result) if type(callee) is FunctionType and self.run.reason is None else ""
            if why is not None:
                passing = callee is None or (
                    type(callee) is FunctionType and self.run.opaque.takes(args, kwargs) and self.run.library_code.observe_next_time(callee))
                self.run.impure(f"calls {_name(form)}, of the framework's, which runs no operation{f' and {why}' if why else ''}", passing)
        else:
            if effect_free.looks_at_values(callee):
                self.run.operands.values((args, kwargs))
            if type(result) in LISTS and not any(result is x for x in (*args, *kwargs.values())):
                self.run.fresh(result)
        return result

    @ours.calling
    def made_layer(self, layer, /, *args, **kwargs):
        """Call a layer of Keras' own that the run has just made by an opaque call: `Add()(inputs)`. One that was made of the same does the same if it has no weights."""
        made_of, given = self.run.opaque.made_of(layer), tfi.tf.nest.flatten((args, kwargs))
        if made_of is None or any(type(x) in TENSORS and has_open_shape(x) for x in given):  # it may keep what follows from the sizes
            self.run.impure("calls a layer that it has made of what may vary")
            return layer(*args, **kwargs)
        computes_with = self.run.opaque.make(_TYPE, (layer,), {}, "asks a layer for its type")
        shapes = [(*x.shape, x.dtype) if type(x) in TENSORS else type(x) for x in given]
        known = self.run.runner.program.made_layers
        if len(known) > _MOST_MADE:
            known.clear()
        one = known.setdefault((made_of, computes_with, *shapes), layer)
        if one is not layer and one.weights:
            self.run.impure("calls a layer that it has made, and that has weights")
            return layer(*args, **kwargs)
        return self.call(None, skipping.Skipping(one), *args, **kwargs)

    def assigning(self, variable, form, /, *args, **kwargs):
        """Call a method that assigns to a variable: it first makes a tensor of what it is given."""
        dtype = tfi.dtypes.as_dtype(getattr(variable, "_dtype", None) or variable.dtype)
        return self.call(None, form, *[self.run.tensor(x, dtype) for x in args[:1]], *args[1:], **kwargs)

    def converting(self, function, form, /, *args, **kwargs):
        """Call a function that makes tensors of numbers among its arguments, of a type that is known beforehand."""
        if function in tensorflow.CONSTANTS:
            if self.run.is_number(args[0] if args else None) and len(args) + len(kwargs) <= 2 and kwargs.keys() <= {"dtype"}:
                dtype = kwargs.get("dtype", args[1] if len(args) == 2 else None)
                made = self.run.tensor(args[0], _type_of(args[0]) if dtype is None else tfi.dtypes.as_dtype(dtype))
                if made is not args[0]:
                    return made
        elif function is tfi.tf.cast and type(args[0] if args else None) is int:
            dtype = kwargs.get("dtype", args[1] if len(args) == 2 else None)
            made = args[0] if dtype is None else self.run.tensor(args[0], tfi.dtypes.as_dtype(dtype))  # the host casts it: no operation is issued
            if type(made) is not int:
                return made
        elif function is tfi.tf.cast:
            args = [*[self.run.tensor(x, _type_of(x)) if self.run.is_number(x) else x for x in args[:1]], *args[1:]]
        else:
            types = {x.dtype for x in args if type(x) in TENSORS or tfi.is_variable(x)}
            if len(types) == 1 and all((type(x) is float and self.run.is_number(x)) or type(x) in TENSORS or type(x) in tfi.RESOURCE_VARIABLES for x in args):
                args = [self.run.tensor(x, *types) for x in args]
        return self.call(function, form, *args, **kwargs)

    def _with_tensors(self, args, kwargs):
        """Returns the arguments of such a function with tensors in place of arrays that vary, where it would make the same of them: it could give them no other type, as there is a tensor of that, or
        arrays of one type come first, and beside them there are but plain values."""
        leaves = [y for x in (*args, *kwargs.values()) for y in (x if type(x) is list or type(x) is tuple else (x,))]
        types = {tfi.dtypes.as_dtype(x.dtype) for x in leaves if type(x) in TENSORS or tfi.is_variable(x) or (type(x) is np.ndarray and holds_numbers(x))}
        floating = {x for x in types if x.is_floating}
        decided = any(type(x) in TENSORS or tfi.is_variable(x) for x in leaves) or (
            type(leaves[0] if leaves else None) is np.ndarray and all(type(x) is np.ndarray or type(x) in SCALARS for x in leaves))
        if self.run.reason is not None or not decided or len(floating) > 1 or any(type(x) is tfi.tf.DType or isinstance(x, type) for x in leaves):
            return args, kwargs

        def converted(x):
            if type(x) is list or type(x) is tuple:
                return self.run.fresh(type(x)(map(converted, x))) if any(type(y) is np.ndarray for y in x) else x
            if type(x) is not np.ndarray or not (x.dtype == bool or tfi.dtypes.as_dtype(x.dtype) in floating) or x not in self.run.dynamic:
                return x
            made = self.run.dynamic.tensor_of(x)
            if made is None:
                return x
            self.run.gives(x)
            return made

        return [converted(x) for x in args], {name: converted(x) for name, x in kwargs.items()}

    def _converted_variable(self, it):
        """Returns the tensor that an object of the program's (or a library's) own class of variables makes of itself for such a function; anything else as it is."""
        kind = type(it)
        if not tfi.is_variable(it) or is_librarys(kind) or self.run.reason is not None:
            return it
        function = defined(kind, "__tf_tensor__")
        if type(function) is not FunctionType or is_frameworks_function(function):
            return it
        self.run.classes.note_class(it)
        self.run.classes.found(kind.__mro__, "__tf_tensor__", None)
        return self.run.calls.user_function(function, function)(it)

    @ours.calling
    def within(self, callee, /, *args, **kwargs):
        """Call a part of the object whose call is recorded: all that it reads is guarded, and the user's functions that it may call are observed in turn."""
        for x in (*args, *kwargs.values()):
            self.note_arguments(x)
        result = callee(*args, **kwargs)
        self._made_within(result)
        return result

    def _made_within(self, it):
        """A list in such a result that has tensors of this step was made in it."""
        kind = type(it)
        if kind is tuple:
            for x in it:
                self._made_within(x)
        elif kind is list and it and all(type(x) is TerraTensor and x._owner is self.run.runner for x in it):
            self.run.fresh(it)

    @ours.calling
    def adding(self, callee, loss):
        """Call `Layer.add_loss` of Keras'."""
        self.note_arguments(loss)
        self.adds_loss(callee.__self__)
        callee(loss)

    def note_arguments(self, it):
        """All that a call of the framework's is given: it was recorded for these values."""
        kind = type(it)
        self.run.deferred.looked_at(it)
        if kind in PLAIN or kind in TENSORS:
            self.run.used.add(id(it))  # (numbers do no harm)
            return
        if isinstance(it, (list, tuple, dict)):
            self.run.contents.look_into(it)
            for x in it.values() if isinstance(it, dict) else it:
                self.note_arguments(x)
        elif composites.is_composite(kind):
            for x in composites.composite_parts(it):
                self.note_arguments(x)
        elif kind is np.ndarray and not self.run.gives(it):
            self.run.contents.look_into(it)

    def bear(self, value):
        """The framework, or a library, made `value`, and all containers, TensorArrays and objects of the library's in it, but for those that it was handed."""
        kind = type(value)
        if id(value) in self.run.held:
            return
        if kind is list or kind is tuple or kind is dict or kind is tfi.ListWrapper:
            if kind is not tuple and id(value) not in self.run.handed_over:
                self.run.born.add(value)
            for x in value.values() if kind is dict else value:
                self.bear(x)
        elif kind is tfi.tf.TensorArray or composites.is_composite(kind) or tfi.is_to_be_used(kind) or derives_from_librarys(kind):
            self.run.born.add(value)

    def _converted(self, form, args):
        """Returns what a layer of a user's class is given: tensors in the place of arrays, and of those in containers."""
        for x in args:
            if arguments.holds_array(x):
                self.note_arguments(x)
        made = form.converted(args)
        for x, given in zip(made, args):
            if x is not given and type(x) in LISTS:
                self.run.fresh(x)
        return made

    def layer(self, layer, form, /, *args, **kwargs):
        """Call a layer of a user's class."""
        for x in (*args, *kwargs.values()):
            self.run.deferred.looked_at(x)
        args = self._converted(form, args)
        if self.run.reason is None:
            kind = type(layer)
            if "call" in vars(layer):
                self.run.impure("calls a layer whose call was replaced")
            elif not (self.run.functionals.accumulates or self.run.functionals.recomputes or call_cache.running() is self.run.runner) or not form.known.holds(kind):
                self.run.impure("calls a layer by its wrapper", True)
            elif not (predicted := user_layers.is_predicted(form, args, kwargs)):
                if predicted is not None:
                    return self.call(None, skipping.Skipping(layer), *args, **kwargs)
                self.run.postpone("calls a layer by its wrapper for the first time")
                return user_layers.verify(form, args, kwargs, self._call_of(layer, kind))
            else:
                self.run.reads.layers_class(form.known, kind)
                self.run.reads.settings("keras")
                attributes = vars(layer)
                self.run.reads.object(layer, kind, attributes)
                for name in keras.OF_LAYERS:
                    self.run.reads.lookup(attributes, name)
                observed = self._call_of(layer, kind)
                if observed is not None:
                    return user_layers.call_directly(form, args, kwargs, observed)
                self.run.impure("calls a layer whose call cannot be observed")
        return form(*args, **kwargs)

    def _call_of(self, layer, kind):
        """Returns the observed form of the `call` of a layer; None if there is none."""
        call = self.run.classes.found(kind.__mro__, "call", None)
        return self.run.calls.bound(call, layer, None) if type(call) is FunctionType and self.run.reason is None else None

    def adds_loss(self, layer):
        """The layer will add a loss."""
        held = added_losses.list_of(vars(layer))
        needed = added_losses.identify(self.run.runner, held)
        if needed is None and id(held) not in self.run.losses:
            self.run.impure("adds losses to those of another step")
        self.run.reads.entry(vars(layer), "_losses", held)
        self.run.losses.setdefault(id(held), (held, needed))

    def empties_losses(self, layer):
        """The losses of the layer, and of its parts, will be forgotten."""
        for part in layer._flatten_layers():
            held = added_losses.list_of(vars(part))
            self.run.losses.setdefault(id(held), (held, None if held else ()))


def _type_of(number):
    """The type of the tensor that TensorFlow makes of a number."""
    return tfi.dtypes.float32 if type(number) is float else tfi.dtypes.int32 if type(number) is int else tfi.dtypes.as_dtype(type(number))


def _has_room_for(function, args, kwargs):
    """Returns whether a function has parameters for these arguments; else it raises a TypeError, whatever they are."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it tells of none
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _name(form):
    """Returns what a callable is called."""
    callee = getattr(form, "callee", form)  # of `skipping.Skipping`
    name = getattr(callee, "__qualname__", None) or f"a {type(callee).__name__}"
    return name.removesuffix(".<locals>.call")
