"""The observer's part for operands: which objects run no code of the user's when they are calculated with, compared, hashed or printed."""

import abc
import collections
import enum
import operator
import sys
import warnings
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np

from terra.frameworks import numpys
from terra.location.identity import itself
from terra.location.null_observer import OPERATORS
from terra.runtime.fast_forward.purity.facts.plain_classes import HARMLESS, is_plain_enum
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.purity.unknown.stand_ins import Printed, SpecialMethod
from terra.runtime.fast_forward.sites import fast_calls
from terra.runtime.fast_forward.sources.array_calculations import numpys_errors
from terra.runtime.interpreter import frames
from terra.runtime.interpreter.integers import natural
from terra.runtime.tensors.object_kinds import ITERATORS, LISTS, PLAIN, TENSORS, VIEWS, defined, is_container, is_librarys
from terra.runtime.tensors.open_shapes import LazyShape
from terra.tf import private_names as tfi
from terra.tf.private import composites
from terra.tf import opschema

_PRINTING = ("__format__", "__repr__", "__str__")
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
_TRUTH = ("__bool__", "__len__")
_UNIQUE = frozenset([type(None), bool, type(Ellipsis), type(NotImplemented), tfi.tf.DType])
_CALCULATED = frozenset([*TENSORS, int, float])  # types of which % gives a remainder
_OF_ARRAYS = frozenset(["Add", "Sub", "Mult", "Div", "MatMult"])  # of which the other operand has the type that TensorFlow gives an array


class Operands(Handler):
    """The part of the Observer for operands of operators, tests and comparisons."""

    __slots__ = ()

    def operand(self, it):
        """`it` takes part in an operation."""
        self.run.before = len(self.run.runner.log)
        self.run.deferred.looked_at(it)
        kind = type(it)
        if kind in TENSORS:
            self.run.used.add(id(it))
        elif composites.is_extension(kind):  # what its class does with operators is its own
            self.run.impure(f"uses an object of type {kind.__name__} in an expression")
        elif composites.is_composite(kind):
            for x in composites.composite_parts(it):
                self.operand(x)
        elif kind not in PLAIN and not self.run.gives(it):
            if kind is tuple or is_container(it, kind):
                self.run.contents.deeply(it, self._part)
            else:
                self._part(it)
        return it

    def binary(self, name, left, right):
        """The operator `name` is applied to operands."""
        left, right = self.run.beside(name, left, right), self.run.beside(name, right, left)
        if (left in self.run.opaque or right in self.run.opaque) and not (self._is_fed(left, right) or self._is_fed(right, left)):
            return self.run.opaque.operated(OPERATORS[name], left, right)
        value = self.calculates(OPERATORS[name], (left, right))
        if value is not None:
            return value
        if self.run.dynamic.has_arrays and name in _OF_ARRAYS:
            left, right = self._beside_tensor(left, right), self._beside_tensor(right, left)
        if self.run.arrays.is_numpys(left) or self.run.arrays.is_numpys(right):
            value = self.run.arrays.calculated(OPERATORS[name], (left, right))
            if value is not None:
                return value
        value = self.run.objects.operator_of_own(name, left, right)
        if value is not None:
            return value
        how = self.modulo if name == "Mod" and type(left) not in _CALCULATED else self.operand  # which formats strings, too
        if type(left) is str or (type(right) is str and name == "Add"):
            value = self.run.arrays.text(OPERATORS[name], (left, right))
            if value is not None:
                return value
        if type(left) is str and name == "Mod":
            right = tuple(map(self.shown, right)) if type(right) is tuple else self.shown(right)
        why = self._not_understood(how, left, right)
        if why is not None:
            return self.run.opaque.operated(OPERATORS[name], left, right, reason=why)
        return self.run.result(self.run.arrays.operated(OPERATORS[name], how(left), how(right)))

    def _is_fed(self, it, other):
        """Whether it is an array that varies, beside a tensor: that makes one of it."""
        return type(it) is np.ndarray and it in self.run.dynamic and (type(other) in TENSORS or type(other) in tfi.RESOURCE_VARIABLES)

    def _beside_tensor(self, it, other):
        """An operand. An array that varies, beside a tensor from outside of the step, is the tensor that TensorFlow makes of it; those of the step do it themselves."""
        return fast_calls.converted(other, it)[1] if type(other) is tfi.EagerTensor and self.run.gives(it) else it

    def _not_understood(self, look, *parts):
        """Returns why a run would be impure in which `look` is shown these operands; None if it would not."""
        if self.run.reason is not None or any(type(x) is np.ndarray for x in parts) or all(type(x) in PLAIN or type(x) in TENSORS for x in parts):
            return None
        return next(filter(None, [self.run.attempted(look, x) for x in parts]), None)

    def comparison(self, name, left, right):
        """Operands are compared. What comes of a number that varies has to come of it again."""
        if left in self.run.opaque or right in self.run.opaque:
            return self.run.opaque.operated(OPERATORS[name], left, right)
        answer = self.answer(OPERATORS[name], (left, right))
        if answer is None:
            answer = self.run.objects.operator_of_own(name, left, right)
        if answer is None:
            answer = self.run.deferred.compares(OPERATORS[name], (left, right))
        if answer is None and (type(left) is np.ndarray or type(right) is np.ndarray):
            answer = self.run.arrays.calculated(OPERATORS[name], (left, right))
        if answer is not None:
            return answer
        why = self._not_understood(self.compared, left, right)
        if why is not None:
            return self.run.opaque.operated(OPERATORS[name], left, right, reason=why)
        return self.run.result(self.run.arrays.operated(OPERATORS[name], self.compared(left), self.compared(right)))

    def answer(self, function, parts):
        """Returns what `function` tells of numbers, if one of them varies; else None."""
        answer = self.run.dynamic.answers(function, parts) if self.run.dynamic.numbers else None
        if answer is not None:
            self.look_at_others(parts)
        return answer

    def look_at_others(self, parts):
        for x in parts:
            if id(x) not in self.run.dynamic.numbers:
                self.run.deferred.looked_at(x)

    def unary(self, name, it):
        if it in self.run.opaque:
            return self.run.opaque.operated(OPERATORS[name], it)
        value = self.run.objects.operator_of_own(name, it)
        if value is not None:
            return value
        value = self.run.arrays.calculated(OPERATORS[name], (it,)) if self.run.arrays.is_numpys(it) else self.calculates(OPERATORS[name], (it,))
        return value if value is not None else self.run.result(self.run.arrays.operated(OPERATORS[name], self.operand(it)))

    def calculates(self, function, parts):
        """Returns what `function`, without side effects, gives for these operands, if it is a number that varies, or is calculated of a float that was read of a tensor; else None."""
        if any(type(x) is float and self.run.deferred.knows(x) for x in parts):
            value = self.run.arrays.calculated(function, parts)
            if value is not None:
                return value
        value = self.run.dynamic.calculates(function, parts) if self.run.dynamic.numbers else None
        if value is not None:
            self.look_at_others(parts)
        return value

    def value(self, it):
        """Python looks at what `it` is worth. Of a tensor of this step that is a read, which is noticed; one that comes with the call may be worth something else the next time."""
        if self.run.reason is None and type(it) in TENSORS and not self.run.is_own_tensor(it):
            runner = self.run.runner
            self.run.used.add(id(it))
            if it._shape_tuple() == () and it._datatype_enum() in opschema.HOST_KNOWN_ENUMS and not runner.step.is_data(it):
                return it  # it is compared by value
            if self.run.inputs is None or id(it) in runner.step.args or id(it) in runner.fed or runner.step.is_data(it) or any(it is x for x in self.run.inputs.external):
                self.run.impure("reads the value of a tensor that is an argument")
        return it

    def values(self, it, around=()):
        """Notes that the values of all tensors in a container are looked at; `around`: the containers that it is in."""
        kind = type(it)
        if kind is list or kind is tuple or kind is dict:
            for x in it.values() if kind is dict else it:
                if not any(x is other for other in around):  # it may hold itself
                    self.values(x, (*around, it))
        else:
            self.value(it)

    def index(self, it):
        """`it` is an index: that of an array may be a tensor, whose value numpy reads; that of an object with a method for it is an argument."""
        if self.run.takes_index:
            self.run.takes_index = False
            return it
        self.value(it)
        return self.operand(it)

    def modulo(self, it):
        """`it` is an operand of %, which may print it."""
        self.run.deferred.looked_at(it)
        if type(it) is Printed:
            return it
        self.values(it)
        if type(it) is tuple or is_container(it, type(it)):
            self.run.before = len(self.run.runner.log)
            return self.run.contents.deeply(it, self._printed)
        if isinstance(it, (np.generic, np.ndarray)):
            self._printed(it)
        return self.operand(it)

    def compared(self, it):
        """`it` is compared with something, or hashed."""
        self.run.before = len(self.run.runner.log)
        if issubclass(type(it), tuple) and type(it) is not tuple and self.run.reason is None and self.run.classes.is_named_tuple(type(it)):
            self.run.contents.deeply(tuple(it), self.comparable)
            return it
        return self.run.contents.deeply(it, self.comparable)

    def contains(self, left, right):
        """`left in right`"""
        if left in self.run.opaque or self.run.contents.is_opaque(right):
            return self.run.opaque.operated(operator.contains, right, left)
        left, right = self.compared(left), self.searched(right)
        return self.run.result(left in right)

    def searched(self, it):
        """`x in it`"""
        kind = type(it)
        if kind is tuple or kind in VIEWS or is_container(it, kind):
            return self.compared(it)
        self.run.before = len(self.run.runner.log)
        form = self.run.calls.special(it, "__contains__")
        if form is not None:
            return SpecialMethod(self.run, form)
        if kind in ITERATORS:
            self.run.impure("searches an iterator")
        elif kind is not str and kind is not range:
            self.run.contents.look_into(it)
        return it

    def truth(self, it):
        """`it` is tested."""
        if it in self.run.opaque:
            self.run.opaque.operated(bool, it)
            return it
        if (type(it) is float or type(it) is int) and self.answer(operator.truth, (it,)) is not None:
            return it
        self.run.deferred.looked_at(it)
        self.value(it)
        kind = type(it)
        if not (kind in PLAIN or kind in TENSORS or kind is tuple):
            if kind in LISTS or kind is collections.deque:
                self.run.contents.look_into(it)
            elif any(hasattr(kind, name) for name in _TRUTH):
                self.operand(it)
            else:
                self._lacks(kind, _TRUTH)
        return it

    def tested(self, it):
        """`it` is tested, and not handed on."""
        for name in _TRUTH:
            form = self.run.calls.special(it, name)
            if form is not None:
                return bool(SpecialMethod(self.run, form)) if name == "__bool__" else bool(self.truth(self.length(form)))
            if defined(type(it), name) is not None:
                break
        return self.truth(it)

    def same(self, left, right):
        """Returns what `left is right` gives."""
        if self.run.opaque.instances.is_one(left) or self.run.opaque.instances.is_one(right):
            if any(self.run.born.has(x) or x in self.run.opaque.handed_on or id(x) in self.run.given for x in (left, right)):
                self.run.impure("asks which object it is that unknown code gives")
            return self.run.opaque.make(operator.is_, (left, right), {}, "asks which object it is", as_a_whole=True)
        return self.identified(left) is self.identified(right)

    def length(self, form):
        """Returns what `len` gives of an object whose class says so in Python."""
        value = form()
        if self.run.opaque.is_another_one(value):  # of which `len` makes another one
            return self.run.opaque.operated(operator.index, value)
        return len(SpecialMethod(self.run, lambda: value))

    def identified(self, it):
        """`it is x`"""
        self.run.deferred.looked_at(it)
        if self.run.reason is None and not self.has_identity(it):
            self.run.impure(f"asks which object of type {type(it).__name__} it is")
        return itself(self.run.deferred.originals.get(id(it), natural(it) if type(it) is int else it))

    def has_identity(self, it):
        """Whether the run knows which object it is: numbers and strings are known by their values only, tensors, arrays and containers that it was given by their structure. There is only one
        empty tuple."""
        kind = type(it)
        return kind in _UNIQUE or (kind is tuple and not it) or not (
            kind in PLAIN or kind in TENSORS or kind is np.ndarray or isinstance(it, np.generic) or id(it) in self.run.given)

    def formatted(self, it):
        """`it` is put into an f-string."""
        if type(it) is Printed:
            return it
        if type(it) in PLAIN:
            self.run.deferred.looked_at(it)
            if type(it) is tfi.tensor_shape.TensorShape and type(it._dims) is LazyShape:
                self.run.impure("formats a shape that depends on data")
            return it
        shown = self.shown(it)
        return self.printed(it) if shown is it else shown

    def shown(self, it):
        """Returns what to make a text of in place of `it`, if its class defines in Python how; else `it`."""
        return Printed(self.run, it) if any(self.run.calls.special(it, name) is not None for name in _PRINTING) else it

    def printed(self, it):
        """`it` becomes a string."""
        self.values(it)
        return self.run.contents.deeply(it, self._printed)

    def value_of_variable(self, it, method):
        """The tensor that a method of TensorFlow's gives of a variable, as a call that is skipped, where Python is about to read it; `it` if that is something else."""
        kind = type(it)
        if self.run.reason is not None or not is_librarys(kind) or not tfi.is_variable(it):
            return it
        variable = it if issubclass(kind, tfi.tf.Variable) else vars(it)["_value"]
        if variable is not it and it.value is not variable:  # it is cast
            return it
        return self.run.calls.builtin(getattr(variable, method))()

    # -- objects ---------------------------------------------------------------------------------------------------------------

    def _is_value(self, it, kind):
        """Whether `it` is something to calculate with, though not a plain one."""
        if kind is np.ndarray:
            self.run.contents.look_into(it)
            self.note_numpy()
        elif numpys.is_own(kind):
            self.note_numpy()
        elif isinstance(it, enum.Enum):
            if not is_plain_enum(kind):
                self.run.impure(f"uses an enum, {kind.__name__}, with operators of its own")
            for cls in kind.__mro__:
                if not cls.__module__ == "enum" and cls.__module__ != "builtins":
                    self.run.reads.contents(vars(cls), cls)
        else:
            return tfi.is_variable(it) and is_librarys(kind)
        return True

    def _part(self, it):
        """`it` is in a container that takes part in an operation; numpy and TensorFlow try to make numbers of it."""
        kind = type(it)
        if self._is_value(it, kind) or kind in (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, abc.ABCMeta):
            return
        for cls in kind.__mro__[:-1]:
            if not is_librarys(cls) and cls is not type:
                if not all(name in HARMLESS for name in vars(cls) if name.startswith("__") and name.endswith("__")):
                    self.run.impure(f"uses an object of type {kind.__name__} in an expression")
                    return
                self.run.reads.contents(vars(cls), cls)

    def comparable(self, it):
        kind = type(it)
        if all(any(getattr(kind, name) is getattr(x, name) for x in (object, type)) for name in _COMPARISONS):
            self._lacks(kind, _COMPARISONS)
        elif not self._is_value(it, kind):
            self.run.impure(f"compares an object of type {kind.__name__}")

    def _printed(self, it):
        kind = type(it)
        if kind is Printed or self.run.has_caught(it):
            return
        if it in self.run.opaque:
            self.run.impure("prints what unknown code gives")
        if not self.run.born.has(it) and it not in self.run.opaque and all(defined(kind, name) is vars(object)[name] for name in _PRINTING):
            self.run.classes.note_class(it)
            self._lacks(kind, _PRINTING)  # so it is named by its class and identity
            return
        if not (isinstance(it, (np.generic, np.ndarray, enum.Enum, np.dtype)) and self._is_value(it, kind)):
            self.run.impure(f"prints an object of type {kind.__name__}")
        elif np.get_printoptions().get("formatter"):
            self.run.impure("prints with functions that numpy was given")
        self.note_printing()

    def note_printing(self):
        """NumPy makes a text."""
        self.run.reads.asked(_numpys_printing, np, _numpys_printing(np))

    def _lacks(self, kind, names):
        """No class of the user's in `kind` defines these."""
        for cls in kind.__mro__[:-1]:
            if cls.__module__ != "builtins" and not is_librarys(cls):
                for name in names:
                    if name not in vars(cls):
                        self.run.reads.absent(vars(cls), name, cls)

    # -- numpy -----------------------------------------------------------------------------------------------------------------

    def note_numpy(self):
        """numpy calculates: it may warn, or call the user's handler."""
        module = sys.intern(str(frames.around_ours(sys._getframe(1)).f_globals.get("__name__")))
        state = numpys_errors(module)
        if state is None:
            self.run.impure("calculates with numpy, whose warnings are always shown")
        self.run.reads.entry(vars(warnings), "filters", warnings.filters)
        self.run.reads.contents(warnings.filters)
        if self.run.opaque.calls and numpys_errors("") != self.run.numpys_errors:  # one of these has changed it
            self.run.opaque.make(numpys_errors, (module,), {}, "calculates with numpy")
        else:
            self.run.reads.asked(numpys_errors, module, state)


def _numpys_printing(_):
    """How numpy prints."""
    return str(np.get_printoptions())
