"""The observer's part for calculations on arrays that vary, see `array_calculations`."""

import functools
import operator
import sys

import numpy as np

from terra import ours
from terra.location.null_observer import formatted_as
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.purity.unknown.stand_ins import Printed
from terra.runtime.fast_forward.sources.array_calculations import Calculation, Line, calculate, is_filtered, is_plain_value, never_raises, never_raises_for_floats, strictly, warned, writes
from terra.runtime.fast_forward.sources.residual_calls import kind_of
from terra.runtime.fast_forward.sources.array_calculations import joined, text_of_tensor
from terra.runtime.fast_forward.sources.value_sources import ConstantSource, ContainerSource, FetchSource
from terra.runtime.fast_forward.sources.number_sources import KINDS
from terra.runtime.tensors.tensor import holds_numbers
from terra.tf import private_names as tfi

_NOT_KNOWN = object()
_NUMPYS = (np.ndarray, np.generic, int, float, complex)


class Arrays(Handler):
    """The part of the Observer for arrays that vary."""

    __slots__ = ()

    def calculated(self, function, args, kwargs={}):  # noqa: B006 (it is not changed)
        """Returns what a function that does nothing but calculate, or a method of the first argument, gives of arrays and numbers of which one varies, or was read of a tensor of this step, and was not
        looked at: an array, or a number, of that kind, too. None if that is not known."""
        dynamic, deferred = self.run.dynamic, self.run.deferred
        if self.run.is_over() or not (dynamic.has_arrays or dynamic.numbers or deferred.held) or writes(function, args, kwargs):
            return None
        found, sources = [], []
        parts = tuple([self._part_of(x, found, sources) for x in args])
        named = tuple([(name, self._part_of(x, found, sources)) for name, x in kwargs.items()])
        if not sources or any(part is _NOT_KNOWN for part in (*parts, *dict(named).values())):
            return None
        try:
            with strictly():
                value = calculate(function, args, kwargs)
        except Exception:  # the code itself is to raise it, or to be warned
            return None
        parts_read = [part.value for part in sources if type(part) is FetchSource]
        if parts_read:
            return self._deferred_part(Calculation(function, parts, named, ()), value, args, found, parts_read)
        if type(value) not in KINDS and (type(value) is not np.ndarray or not holds_numbers(value) or not value.size):
            return None
        self.run.operands.note_numpy()
        for x in found:
            self.run.deferred.looked_at(x)
        if any(value is x for x in args):
            return value
        return dynamic.drawn(Calculation(function, parts, named, kind_of(value)), [value])[0]

    def _deferred_part(self, calculation, value, args, found, parts):
        """This was calculated of what was read, and not looked at so far."""
        kind, line = type(value), None
        if kind is float:
            if not never_raises_for_floats(calculation.function, args, calculation.args) and not self.run.deferred.calculates_within(calculation.function, args):
                return None
            if any(value is x for x in args):  # as min gives one
                given, value = value, value * 1.0
                self.run.deferred.originals[id(value)] = given
        elif not (holds_numbers(value) if kind is np.ndarray else isinstance(value, np.number)) or not never_raises(calculation.function, args) \
                or "raise" in np.geterr().values() or is_filtered("error"):  # it is over when that would be raised
            return None
        else:
            self.run.operands.note_numpy()
            line = Line()
        for x in found:
            self.run.deferred.looked_at(x)
        self.run.deferred.calculated[id(value)] = value, calculation, line, parts
        return value

    # -- texts of what was read ------------------------------------------------------------------------------------------------

    def piece(self, it, conversion, spec):
        """Returns the text that an f-string makes of `it`."""
        return self.text_of(it, conversion, spec) or formatted_as(self.run.operands.formatted(it), conversion, spec)

    def joined(self, pieces):
        """Returns the text that an f-string makes of these."""
        return self.text(joined, (tuple(pieces),)) or "".join(pieces)

    def text_of(self, it, conversion=-1, spec=""):
        """Returns the text of a tensor of this step, or of something that was read of one; None of anything else."""
        if self.run.reason is None and self.run.is_own_tensor(it) and it.dtype.is_floating:
            return self.text(text_of_tensor, (self.run.deferred.read_array(self.run.runner, it), conversion, spec))
        return self.text(formatted_as, (it, conversion, spec))

    def text(self, function, args):
        """Returns the text that a function makes of what was read of tensors, and was not looked at, of what unknown code gives, or of numbers that vary; None if none of that is among the arguments."""
        deferred = self.run.deferred
        if self.run.reason is None and any(map(self._varies, args)):
            return self.run.opaque.make(function, args, {}, "prints what unknown code gives, or a number that varies")
        if self.run.reason is not None or not (deferred.held or deferred.calculated):
            return None
        found, sources = [], []
        parts = tuple([self._part_of(x, found, sources) for x in args])
        if not sources or any(part is _NOT_KNOWN for part in parts) or not all(type(part) is FetchSource for part in sources):
            return None
        try:
            value = function(*args)
        except (TypeError, ValueError):
            return None  # the code itself is to raise it
        if type(value) is not str or len(value) < 2:  # Python has one object for each shorter one
            return None
        if any(value is part.value for part in sources):
            return value  # a text of nothing but itself
        for x in found:
            deferred.looked_at(x)
        self.run.operands.note_printing()
        deferred.calculated[id(value)] = value, Calculation(function, parts, (), ()), Line(), [part.value for part in sources]
        return value

    def _varies(self, it):
        """Whether unknown code gives it, or it is a number that varies, or one of these is in it."""
        return any(map(self._varies, it)) if type(it) is tuple else it in self.run.opaque or self.run.deferred.number(it) is not None

    def as_text(self, callee, args):
        """Returns what str, repr or format gives of what was read of a tensor, or of an object whose class says in Python what that is; None of anything else."""
        text = self.text_of(args[0], {str: ord("s"), repr: ord("r")}.get(callee, -1), *args[1:2])
        if text is None and type(shown := self.run.operands.shown(args[0])) is Printed:
            text = callee(shown, *args[1:])
        return text

    @ours.calling
    def prints(self, callee, /, *args, **kwargs):
        """Call `print`."""
        args = [self.text_of(x, ord("s")) or x if self.run.is_own_tensor(x) else str(x) if type(x) is Printed else x for x in map(self.run.operands.shown, args)]
        return self.run.opaque.calling(callee, "calls print")(*args, **kwargs)

    # -- what the run gives ----------------------------------------------------------------------------------------------------

    def returning(self, form, place):
        """Returns what to call in place of a conversion whose result is what the calling function returns, or at this place of that."""
        if self.run.reason is None and sys._getframe(1).f_back.f_code is self.run.entry_code:
            self.run.deferred.forget_last(place)
            if type(form) is functools.partial and form.func == self.run.calls.perhaps_of_opaque:
                form = form.args[1]
            if type(form) is functools.partial and form.func == self.run.builtins.convert:
                return functools.partial(self._convert_last, place, *form.args)
        return form

    def returned(self, it, places):
        """The calling function returns `it`, which has such results of conversions at these places."""
        if self.run.reason is None and sys._getframe(1).f_back.f_code is self.run.entry_code:
            self.run.deferred.gives(it, places)
        return it

    def _convert_last(self, place, kind, /, *args):
        """Make an integer, or a truth value, which the run gives."""
        if len(args) == 1 and (kind is int or isinstance(args[0], tfi.tf.Variable)):  # one of Keras 3 has no truth value
            args = self.run.operands.value_of_variable(args[0], "value" if kind is int else "read_value"),
        x = args[0] if len(args) == 1 else None
        if self.run.reason is None and (kind is int or kind is bool):
            if self.run.is_own_tensor(x):
                return self.run.deferred.read_last(self.run.runner, x, kind, place)
            part = self.run.deferred.part_for(x)
            if part is not None and isinstance(x, (np.generic, float)):
                value = kind(x)
                self.run.deferred.note_last(place, None, (value, Calculation(kind, (part,), (), ()), Line(), [x]))
                return value
        return self.run.builtins.convert(kind, *args)

    def array_of_variable(self, method):
        """Returns what the method `numpy` of a variable gives."""
        tensor = self.run.operands.value_of_variable(method.__self__, "read_value")
        return self.run.deferred.read_array(self.run.runner, tensor) if self.run.is_own_tensor(tensor) else method() if tensor is method.__self__ else tensor.numpy()

    def is_numpys(self, x):
        """Whether it is an array, or a number of NumPy's that varies."""
        kind = type(x)
        return kind is np.ndarray or (isinstance(x, np.number) and (self.run.dynamic.part_for(x) is not None or self.run.deferred.part_for(x) is not None))

    def looks_at_shape(self, array, name="shape"):
        """Python looks at the shape or the type of an array: those of arrays that vary are the same in each run, unless sizes are left unknown."""
        if self.run.dynamic.is_open(array) and name in ("shape", "size"):
            self.run.impure(f"looks at the {name} of an array, which is another one each time")
        self.run.deferred.looked_at(array)
        if array not in self.run.dynamic and not self.run.born.has(array):
            self.run.reads.asked(_type_and_shape, array, _type_and_shape(array))

    def item_of_array(self, array, index):
        """An item or slice of an array."""
        value = self.calculated(operator.getitem, (array, index))
        if value is None:
            self.run.contents.container(array)
            return array[index]
        self.run.bounds.clear()
        counted = sum(type(x) is np.ndarray and x in self.run.dynamic for x in (index if type(index) is tuple else (index,)))  # by `index`
        if counted:
            self.run.dynamic.given -= counted
        return value

    def bound(self, it):
        """`it` is a bound of a slice: that of an array may be a number that varies."""
        if id(it) in self.run.dynamic.numbers:
            self.run.bounds.append(it)
            return it
        return self.run.operands.operand(it)

    @staticmethod
    @ours.calling
    def operated(function, *operands):
        """Returns what an operator gives."""
        if any(isinstance(x, (np.ndarray, np.generic)) for x in operands) and all(isinstance(x, _NUMPYS) for x in operands):
            return warned(function, operands, {})
        return function(*operands)

    def _part_of(self, x, found, sources):
        """Returns what stands for an argument in a `Calculation`. What stays the same is appended to what was found, and the others to the sources."""
        kind = type(x)
        if kind is list or kind is tuple or kind is slice:
            self.run.contents.look_into(x)
            parts = tuple([self._part_of(y, found, sources) for y in ((x.start, x.stop, x.step) if kind is slice else x)])
            return _NOT_KNOWN if any(part is _NOT_KNOWN for part in parts) else ContainerSource(kind, parts)
        source = self.run.dynamic.part_for(x) or self.run.deferred.part_for(x)
        if source is not None:
            sources.append(source)
        elif kind is np.ndarray:
            source = ConstantSource(x, self.run.born.has(x)) if x not in self.run.dynamic else _NOT_KNOWN
        else:
            source = x if is_plain_value(x) else _NOT_KNOWN
        if source is x or type(source) is ConstantSource:
            found.append(x)
        return source


def _type_and_shape(array):
    return f"{array.dtype.str}{array.shape}"
