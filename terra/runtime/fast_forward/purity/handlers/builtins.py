"""The observer's part for builtins, and of numpy's functions, without side effects: their arguments must not have any, either."""

import collections
import contextlib
import functools
import itertools
import math
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np

from terra import ours
from terra.frameworks import methods, numpys, framework_objects
from terra.runtime.fast_forward.purity.facts.exceptions import is_own_error
from terra.runtime.fast_forward.purity.facts.library_classes import derives_from_librarys
from terra.runtime.fast_forward.purity.facts.plain_classes import is_class_of_variables, is_plain_class
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.purity.unknown.opaque_items import goes_on, next_of
from terra.runtime.fast_forward.purity.unknown.stand_ins import SpecialMethod
from terra.runtime.fast_forward.sites.builtin_loops import LocatedCalls, is_builtin, located_map, located_reduce
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.array_calculations import FUNCTIONS, METHODS, warned, writes
from terra.runtime.fast_forward.sources.effects import GROWING
from terra.runtime.fast_forward.sources.array_calculations import formatted, joined_by
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import ITERATORS, LISTS, PLAIN, READING, TENSORS, defined, is_c_class, is_librarys_container, is_like_builtin, is_record, is_tapes, makes_named_tuples, may_be_made
from terra.tf import private_names as tfi
from terra.tf.private import composites

_CONVERSIONS = frozenset([int, float, bool, str, complex, range, slice, enumerate, zip, list, tuple, collections.deque, dict, set, frozenset, reversed, type,
                          itertools.chain, itertools.islice, itertools.product, itertools.repeat, contextlib.nullcontext, tfi.tensor_shape.TensorShape])
_SPECIAL = {id(len): "__len__", id(iter): "__iter__", id(next): "__next__"}
_ITERATING = frozenset(_SPECIAL)
_REDUCING = frozenset(map(id, [sum, min, max, sorted, any, all]))
_FORMATTING = frozenset(map(id, [repr, format, ord, chr]))
_FUNCTIONS = FunctionType, MethodType, BuiltinFunctionType
_CALCULATING = frozenset(map(id, [abs, round, divmod, pow]))
_NOTHING = object()


class Builtins(Handler):
    """The part of the Observer for builtins."""

    __slots__ = ()

    def builtin_function(self, callee, form):
        owner = callee.__self__
        if type(owner) is not np.ndarray or callee.__name__ not in METHODS:
            self.run.deferred.looked_at(owner)
        if callee is isinstance or callee is issubclass:
            return functools.partial(self.is_instance, callee)
        if callee is hasattr or callee is getattr:
            return functools.partial(self._get_attribute, callee)
        if id(callee) in _REDUCING:
            return functools.partial(self.run.contents.reduce, callee, form)
        if id(callee) in _ITERATING or id(callee) in _FORMATTING or callee is callable:
            return functools.partial(self._on_one, callee)
        if id(callee) in _CALCULATING or id(callee) in FUNCTIONS or owner is math:
            return functools.partial(self.on_plain, callee)
        if callee is id:
            return self.run.objects.identity
        if callee is vars or callee is globals:
            return functools.partial(self.run.classes.namespace, callee)
        if callee is object.__new__:
            return self.run.objects.new
        if callee is print:
            return functools.partial(self.run.arrays.prints, callee)
        if callee is functools.reduce:
            return functools.partial(self._fold, form)
        made = self.run.changes.set_attribute if callee is setattr else self.run.objects.operator_function(callee)
        if made is not None:
            return made
        if owner is itertools.chain and callee.__name__ == "from_iterable":
            return self.run.contents.chained
        if isinstance(owner, (ModuleType, type)):
            return self.run.opaque.calling(callee, f"calls {callee.__qualname__}")
        if residual_calls.is_residual(owner, callee.__name__):
            return functools.partial(self.run.live_calls.make, owner, callee.__name__)
        if type(owner) in GROWING and callee.__name__ == "append" and not self.run.born.has(owner) and id(owner) not in self.run.given:
            return functools.partial(self.run.changes.appended, callee)
        if type(owner) in LISTS or (type(owner) is collections.deque and self.run.born.has(owner)) or is_librarys_container(type(owner)) or (
                is_like_builtin(type(owner)) and (callee.__name__ in READING or self.run.born.has(owner))):
            if callee.__name__ in methods.MUTATORS:
                if not self.run.born.has(owner):
                    return self.run.opaque.calling(callee, "changes a container that it has not made")
            else:
                self.run.contents.look_into(owner)
        elif type(owner) is np.ndarray and callee.__name__ in METHODS:
            return functools.partial(self._on_array, callee)
        elif type(owner) not in (str, bytes, int, float, tuple, range):
            if type(owner) is np.ndarray:
                self.run.impure(f"calls {callee.__qualname__}")
                return form  # which refers to its object no more often than without an observer: numpy asks for that where an array is resized
            return self.run.opaque.calling(callee, f"calls {callee.__qualname__}")
        return functools.partial(self.on_containers, callee)

    @ours.calling
    def key(self, function, it):
        """By what a builtin compares things."""
        key = function(it)
        self.run.operands.compared(key)
        self.run.operands.values(key)
        return key

    @ours.calling
    def _fold(self, form, function, items, /, *initial):
        """Call `functools.reduce`."""
        function, items = LocatedCalls(function, self.run.calls.enter_at) if form is located_reduce else self.run.calls.builtin(function), iter(self.run.contents.iterated(items))
        total = initial[0] if initial else next(items, _NOTHING)
        if total is _NOTHING:
            return functools.reduce(function, ())  # which raises
        for x in items:
            total = function(total, x)
        return total

    @ours.calling
    def on_plain(self, callee, /, *args, **kwargs):
        """Call a function that calculates."""
        if len(args) == 1 and not kwargs and id(callee) in numpys.MAKES_ARRAYS and self.run.live_calls.may_read(args[0]):
            return self.run.live_calls.value_of(args[0])
        if not kwargs and (id(callee) in _CALCULATING or getattr(callee, "__self__", None) is math):
            value = self.run.operands.calculates(callee, args)
            if value is not None:
                return value
        if len(args) == 1 and not kwargs:
            if self.run.is_own_tensor(args[0]):
                args = self.run.deferred.read_as(self.run.runner, callee, args[0]),
            value = self.run.deferred.compares(callee, args)
            if value is not None:
                return value
        is_numpys = isinstance(callee, (np.ufunc, type)) or id(callee) in FUNCTIONS
        if is_numpys or (id(callee) in _CALCULATING and any(map(self.run.arrays.is_numpys, args))):
            value = self.run.arrays.calculated(callee, args, kwargs)
            if value is not None:
                return value
            self.run.operands.note_numpy()
        if writes(callee, args, kwargs):
            if self.run.reason is None and type(out := kwargs.get("out")) is np.ndarray and not self.run.born.has(out):
                self.run.opaque.containers.change(out)
                return self.run.opaque.make(callee, args, kwargs, f"has {callee.__name__} write into an array")
            self.run.impure(f"has {callee.__name__} write into an array")
        if id(callee) not in _CALCULATING:  # those run operations on tensors
            self.run.operands.values((args, kwargs))
        for x in (*args, *kwargs.values()):
            if not isinstance(x, type):
                self.element(x)
        result = warned(callee, args, kwargs) if is_numpys or type(getattr(callee, "__self__", None)) is np.ndarray else callee(*args, **kwargs)
        if type(result) is not np.ndarray or any(result is x for x in (*args, getattr(callee, "__self__", None))) or not (result.base is None or self.run.born.has(result.base)):
            return result  # a number; or an array that was there before, or looks into one
        return self.run.fresh(result)

    def _on_array(self, callee, /, *args, **kwargs):
        """Call a method of an array."""
        array, name = callee.__self__, callee.__name__
        value = self.run.arrays.calculated(name, (array, *args), kwargs)
        if value is not None:
            return value
        self.run.operands.operand(array)
        if writes(name, (array, *args), kwargs):
            self.run.impure(f"has {name} perhaps write into an array")
        return self.on_plain(callee, *args, **kwargs)

    def element(self, it):
        """All of `it` takes part in a calculation."""
        self.run.operands.operand(it)
        if type(it) is list:
            for x in it:
                self.element(x)

    @ours.calling
    def make_record(self, callee, /, *args, **kwargs):
        """Make an instance of a data class."""
        if self.run.reason is None and callee in self.run.runner.program.made_by_calls and self.run.opaque.takes(args, kwargs):
            return self.run.opaque.make(callee, args, kwargs, f"makes an object of type {callee.__name__}", as_a_whole=True)
        self.run.classes.note_whole(callee)
        self.run.is_inside_opaque = True  # (its `__init__` is made by `dataclasses`)
        try:
            made = self.run.fresh(callee(*args, **kwargs))
        finally:
            self.run.is_inside_opaque = False
        given = [*args, *kwargs.values()]
        for x in vars(made).values():
            if type(x) in (list, dict) and not any(x is y for y in given):
                self.run.fresh(x)  # a field's default is made anew
        return made

    @staticmethod
    def shown(check, it):
        check(it)
        return it

    @ours.calling
    def _on_one(self, callee, /, *args):
        """Call len, iter, repr and the like."""
        if callee is next and len(args) == 1 and residual_calls.takes_element(args[0], "__next__"):
            return self.run.live_calls.make(args[0], "__next__")
        if callee is next and len(args) in (1, 2) and (goes_on(self.run, args[0]) or (args[0] in self.run.opaque and not self.run.born.has(args[0]))):
            return next_of(self.run.opaque, *args)
        if callee is len and len(args) == 1 and type(args[0]) is np.ndarray:
            self.run.arrays.looks_at_shape(args[0])
            return len(args[0])
        name = _SPECIAL.get(id(callee))
        form = self.run.calls.special(args[0], name) if name is not None and len(args) == 1 else None
        if form is not None:
            return form() if callee is iter else self.run.operands.length(form) if callee is len else callee(SpecialMethod(self.run, form))
        if (callee is repr or callee is format) and args and (text := self.run.arrays.as_text(callee, args)) is not None:
            return text
        for x in args:
            if id(callee) in _FORMATTING:
                self.run.operands.formatted(x)
            elif callee is not callable and name is not None and type(x) not in PLAIN and type(defined(type(x), name)) is FunctionType:
                self.run.impure(f"calls {callee.__name__} of an object of type {type(x).__name__}")
            elif callee is not callable:
                self.run.contents.gone_through(x)
            elif type(x) not in TENSORS and not isinstance(x, (type, *_FUNCTIONS)):
                self.run.classes.note_class(x)
                self.run.classes.found(type(x).__mro__, "__call__", None)
        return self.made(callee(*args)) if callee is iter else callee(*args)

    @ours.calling
    def on_containers(self, callee, /, *args, **kwargs):
        """Call a method of a list, a dict or a string."""
        owner, name = callee.__self__, callee.__name__
        check = self.run.operands.operand  # strings and numbers
        if type(owner) in LISTS or type(owner) is tuple or type(owner) is collections.deque or type(owner) is range or is_librarys_container(type(owner)) or is_like_builtin(type(owner)):
            check = None
            if name == "update" and isinstance(owner, dict):
                args = [*map(self.run.contents.pairs, args)]
            elif name == "update" or name in methods.JOINING:
                args = [self.run.contents.each(x, self.run.operands.compared) for x in args]
            elif name in ("extend", "extendleft", "insert"):
                check = self.run.contents.gone_through if name != "insert" else None
                self.run.operands.operand(args[0]) if name == "insert" and args else None
            elif name in methods.COMPARING:
                for x in args[:1]:
                    self.run.operands.operand(x) if name == "pop" and type(owner) is list else self.run.operands.compared(x)
                for x in args[1:] if name == "index" else ():
                    self.run.operands.operand(x)
                for x in kwargs.values():
                    self.run.operands.operand(x)
            elif name not in methods.NOT_LOOKING:
                self.run.impure(f"calls {callee.__qualname__}")
            if name in ("sort", "remove", "index", "count") and type(owner) not in (set, frozenset):
                self.run.operands.compared(owner)
            elif name != "items":
                self.run.contents.keys(owner)
        elif name == "format":
            if not kwargs and (text := self.run.arrays.text(formatted, (owner, *args))) is not None:
                return text
            check, args, kwargs = self.run.operands.formatted, [*map(self.run.operands.shown, args)], {key: self.run.operands.shown(x) for key, x in kwargs.items()}
        elif name == "format_map":
            check = self.run.operands.printed
        elif name == "join" and len(args) == 1 and hasattr(type(args[0]), "__iter__") and args[0] not in self.run.opaque:
            args, check = (list(self.run.contents.iterated(args[0])),), None
            if (text := self.run.arrays.text(joined_by, (owner, tuple(args[0])))) is not None:
                return text
            if type(owner) is bytes and not set(map(type, args[0])) <= {bytes}:
                self.run.impure("joins bytes that may change")
        elif name == "join":
            check = self.run.contents.gone_through
        for x in (*args, *kwargs.values()) if check is not None else ():
            if (why := self.run.attempted(check, x)) is not None:
                return self.run.opaque.make(callee, args, kwargs, why)
        result = callee(*args, **kwargs)
        return self.made(result) if callee.__name__ in methods.MAKING else result

    def made(self, result):
        if type(result) in LISTS or type(result) is collections.deque or type(result) in ITERATORS:
            self.run.fresh(result)
        return result

    @ours.calling
    def is_instance(self, callee, /, *args):
        if self.run.reason is None and len(args) == 2:
            why = self.run.attempted(self.run.classes.ask_instance, *args, callee is issubclass)
            if why is not None and is_c_class(type(args[0])):  # a class of the program's may answer itself
                return self.run.opaque.make(callee, args, {}, why)
            if why is not None:
                self.run.impure(why)
        return callee(*args)

    @ours.calling
    def _get_attribute(self, callee, /, *args):
        if not 2 <= len(args) <= 3:
            return callee(*args)  # which raises
        it, name, *default = args
        self.run.deferred.looked_at(it)
        if type(name) is not str:
            self.run.impure("asks for an attribute by an unusual name")
        elif self.run.reason is None and not ((callee is hasattr or default) and self.run.attributes.lacks_attribute(it, name)):
            if callee is getattr and self.run.places.is_read_anew(it, name):
                return self.run.opaque.reads(it, name)
            if (why := self.run.attempted(self.run.attributes.attribute, it, name)) is not None:
                if callee is getattr and type(defined(type(it), name)) is property:
                    return getattr(self.run.attributes.owner(it, name), name)
                return self.run.opaque.make(callee, args, {}, why)
        return callee(it, name, *default)

    def of_class(self, callee, form):
        if is_tapes(callee) or callee is tfi.NullContext:
            return functools.partial(self.anew, form)
        if callee is tfi.tf.autodiff.ForwardAccumulator:
            return functools.partial(self.run.functionals.accumulating, callee)
        if callee is tfi.tf.name_scope or callee is super:
            return form
        if callee is tfi.tf.TensorArray:
            return functools.partial(self.run.functionals.of_array, callee)
        if callee is tfi.tf.TensorSpec:
            return functools.partial(self.run.functionals.new_spec, callee)
        if callee in _CONVERSIONS:
            return functools.partial(self.convert, callee)
        if callee is map or callee is filter:
            return functools.partial(self._map, callee, form)
        if callee is functools.partial or callee is SimpleNamespace:
            return functools.partial(self.anew, form)
        if callee is tfi.tf.SparseTensor:
            return functools.partial(self.run.framework.call, None, form)
        if callee is tfi.tf.IndexedSlices:
            return functools.partial(self._slices, form)
        if numpys.is_scalar(callee):
            return functools.partial(self.on_plain, callee)
        if makes_named_tuples(callee) and self.run.classes.is_named_tuple(callee):
            return form
        if is_record(callee):
            return functools.partial(self.make_record, callee)
        if composites.is_extension(callee):
            return functools.partial(self.run.objects.make_extension, callee)
        if derives_from_librarys(callee) and not framework_objects.is_stock_kind(callee):
            return functools.partial(self.run.libraries.make_derived, callee)
        if is_plain_class(callee) or is_class_of_variables(callee) or may_be_made(callee) or (is_own_error(callee) and type(defined(callee, "__init__")) is FunctionType):
            return functools.partial(self.run.objects.make_object, callee)
        return self.run.opaque.calling(callee, f"makes an object of type {callee.__name__}")

    @ours.calling
    def convert(self, callee, /, *args, **kwargs):
        if callee is type and len(args) != 1:
            self.run.impure("makes a class")
        elif callee is type:
            self.run.classes.note_class(args[0])
        elif callee is str and len(args) == 1 and not kwargs and (text := self.run.arrays.as_text(callee, args)) is not None:
            return text
        if callee is float and len(args) == 1:
            if id(args[0]) in self.run.dynamic.numbers:
                return args[0] if type(args[0]) is float else self.on_plain(float, *args)
            args = self.run.operands.value_of_variable(args[0], "value"),
            if self.run.is_own_tensor(args[0]):
                return self.run.deferred.read(self.run.runner, args[0], float)
            if self.run.deferred.knows(args[0]) and isinstance(args[0], (float, np.number)):
                value = self.run.arrays.calculated(float, args)
                if value is not None:
                    return value
        if callee in (set, frozenset, dict):
            args = [self.run.contents.pairs(x) if callee is dict else self.run.contents.each(x, self.run.operands.compared) for x in args]
        for x in (*args, *kwargs.values()) if callee not in (set, frozenset, dict) else ():
            if callee is str:
                self.run.operands.printed(x)
            elif callee in (int, float, bool, complex, range, slice, tfi.tensor_shape.TensorShape):
                self.run.operands.value(x)
                self.run.operands.operand(x) if type(x) not in TENSORS or callee is bool else None
            elif callee is not type and callee is not contextlib.nullcontext:
                self.run.contents.gone_through(x)
        made = self.made(callee(*args, **kwargs))
        if callee in (set, frozenset, dict) and not all(type(x) in SCALARS for x in made):
            self.run.impure("makes a set of objects")  # which may have an __eq__ and a __hash__ of their own
        return made

    @ours.calling
    def _map(self, callee, form, function, /, *args):
        """Call map or filter."""
        for x in args:
            self.run.contents.gone_through(x)
        if form is located_map and not is_builtin(function):
            return self.run.fresh(map(LocatedCalls(function, self.run.calls.enter_at), *args))
        if function is not None:
            function = self.run.calls.builtin(function)
        if callee is filter:
            function = functools.partial(self._tested, function)
        return self.run.fresh(callee(function, *args))

    @ours.calling
    def _tested(self, function, /, it):
        return self.run.operands.truth(it if function is None else function(it))

    def _slices(self, form, /, *args, **kwargs):
        """Make IndexedSlices, which do nothing but hold what they are made of."""
        if not all(x is None or type(x) in TENSORS for x in (*args, *kwargs.values())):
            self.run.impure("makes IndexedSlices of what is no tensor")
        return self.anew(form, *args, **kwargs)

    def anew(self, form, /, *args, **kwargs):
        return self.run.fresh(form(*args, **kwargs))
