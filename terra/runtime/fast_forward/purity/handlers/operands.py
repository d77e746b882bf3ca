"""The observer's part for operands: which objects run no code of the user's when they are calculated with, compared, hashed or printed.

Operators look as deep as their operands go, so the containers in a container are looked into, too.
"""

import abc
import enum
import functools
import operator
import warnings
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType, WrapperDescriptorType

import numpy as np

from terra.frameworks import numpys
from terra.location.null_observer import OPERATORS
from terra.runtime.fast_forward.sites import fast_calls
from terra.runtime.fast_forward.sources.array_calculations import is_filtered
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import ITERATORS, LISTS, PLAIN, TENSORS, VIEWS, is_container, is_librarys
from terra.runtime.tensors.open_shapes import LazyShape
from terra.tf import private_names as tfi
from terra.tf import opschema

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
_TRUTH = ("__bool__", "__len__")
_UNIQUE = frozenset([type(None), bool, type(Ellipsis), type(NotImplemented), tfi.tf.DType])
# Special names that a class may define without any operator, conversion or hash running them.
_HARMLESS = frozenset(f"__{name}__" for name in (
    "init new call module doc dict weakref qualname annotations annotate annotate_func init_subclass class_getitem slots orig_bases parameters setattr "
    "delattr setstate getstate reduce reduce_ex enter exit static_attributes firstlineno abstractmethods match_args dataclass_fields dataclass_params "
    "subclasshook post_init del set_name copy deepcopy type_params").split())
_CALCULATED = frozenset([*TENSORS, int, float])  # types of which % gives a remainder
_OF_ARRAYS = frozenset(["Add", "Sub", "Mult", "Div", "MatMult"])  # of which the other operand has the type that TensorFlow gives an array
_SLOTS = (WrapperDescriptorType, MethodDescriptorType, BuiltinFunctionType, str, tuple, dict, type(None))


class Operands:
    """The part of the Observer for operands of operators, tests and comparisons."""

    def operand(self, it):
        """`it` takes part in an operation."""
        self._before = len(self.runner.log)
        self.deferred.looked_at(it)
        kind = type(it)
        if kind in TENSORS:
            self.used.add(id(it))
        elif tfi.is_composite(kind):
            for x in tfi.composite_parts(it):
                self.operand(x)
        elif kind not in PLAIN and not self.gives(it):
            if kind is tuple or is_container(it, kind):
                self._deeply(it, self._part)
            elif not self._is_value(it, kind):
                self.impure(f"uses an object of type {kind.__name__} in an expression")
        return it

    def binary(self, name, left, right):
        """The operator `name` is applied to operands."""
        if left in self.opaque or right in self.opaque:
            return self.opaque.operated(OPERATORS[name], left, right)
        if self._dynamic.numbers:
            value = self.calculates(OPERATORS[name], (left, right))
            if value is not None:
                return value
            left, right = self._dynamic.beside(name, left, right)
        if self._dynamic.has_arrays and name in _OF_ARRAYS:
            left, right = self._beside_tensor(left, right), self._beside_tensor(right, left)
        if self.is_numpys(left) or self.is_numpys(right):
            value = self.by_numpy(OPERATORS[name], (left, right))
            if value is not None:
                return value
        value = self._operator_of_own(name, left, right)
        if value is not None:
            return value
        how = self.modulo if name == "Mod" and type(left) not in _CALCULATED else self.operand  # which formats strings, too
        why = self._not_understood(how, left, right)
        if why is not None:
            return self.opaque.operated(OPERATORS[name], left, right, reason=why)
        return self.result(self.operated(OPERATORS[name], how(left), how(right)))

    def _beside_tensor(self, it, other):
        """An operand. An array that varies, beside a tensor from outside of the step, is the tensor that TensorFlow makes of it; those of the step do it themselves."""
        return fast_calls.converted(other, it)[1] if type(other) is tfi.EagerTensor and self.gives(it) else it

    def comparison(self, name, left, right):
        """Operands are compared. What comes of a number that varies has to come of it again."""
        if left in self.opaque or right in self.opaque:
            return self.opaque.operated(OPERATORS[name], left, right)
        answer = self._answer(OPERATORS[name], (left, right))
        if answer is None:
            answer = self.deferred.compares(OPERATORS[name], (left, right))
        if answer is None and (type(left) is np.ndarray or type(right) is np.ndarray):
            answer = self.by_numpy(OPERATORS[name], (left, right))
        if answer is not None:
            return answer
        why = self._not_understood(self.compared, left, right)
        if why is not None:
            return self.opaque.operated(OPERATORS[name], left, right, reason=why)
        return self.result(self.operated(OPERATORS[name], self.compared(left), self.compared(right)))

    def _answer(self, function, parts):
        """Returns what `function` tells of numbers, if one of them varies; else None."""
        answer = self._dynamic.answers(function, parts) if self._dynamic.numbers else None
        if answer is not None:
            self._look_at_others(parts)
        return answer

    def _look_at_others(self, parts):
        for x in parts:
            if id(x) not in self._dynamic.numbers:
                self.deferred.looked_at(x)

    def unary(self, name, it):
        if it in self.opaque:
            return self.opaque.operated(OPERATORS[name], it)
        value = self._operator_of_own(name, it)
        if value is not None:
            return value
        value = self.by_numpy(OPERATORS[name], (it,)) if self.is_numpys(it) else self.calculates(OPERATORS[name], (it,))
        return value if value is not None else self.result(self.operated(OPERATORS[name], self.operand(it)))

    def calculates(self, function, parts):
        """Returns what `function`, without side effects, gives for these operands, if it is a number that varies; else None."""
        value = self._dynamic.calculates(function, parts) if self._dynamic.numbers else None
        if value is not None:
            self._look_at_others(parts)
        return value

    def value(self, it):
        """Python looks at what `it` is worth. Of a tensor of this step that is a read, which is noticed; one that comes with the call may be worth something else the next time."""
        if self.reason is None and type(it) in TENSORS and not self._is_own(it):
            runner = self.runner
            self.used.add(id(it))
            if it._shape_tuple() == () and it._datatype_enum() in opschema.HOST_KNOWN_ENUMS and not runner.step.is_data(it):
                return it  # it is compared by value
            if self._inputs is None or id(it) in runner.step.args or id(it) in runner.fed or runner.step.is_data(it) or any(it is x for x in self._inputs.external):
                self.impure("reads the value of a tensor that is an argument")
        return it

    def values(self, it):
        """Notes that the values of all tensors in a container are looked at."""
        kind = type(it)
        if kind is list or kind is tuple or kind is dict:
            for x in it.values() if kind is dict else it:
                self.values(x)
        else:
            self.value(it)

    def index(self, it):
        """`it` is an index: that of an array may be a tensor, whose value numpy reads."""
        self.value(it)
        return self.operand(it)

    def modulo(self, it):
        """`it` is an operand of %, which may print it."""
        self.deferred.looked_at(it)
        self.values(it)
        if type(it) is tuple or is_container(it, type(it)):
            self._before = len(self.runner.log)
            return self._deeply(it, self._printed)
        if isinstance(it, (np.generic, np.ndarray)):
            self._printed(it)
        return self.operand(it)

    def compared(self, it):
        """`it` is compared with something, or hashed."""
        self._before = len(self.runner.log)
        return self._deeply(it, self._comparable)

    def contains(self, left, right):
        """`left in right`"""
        if left in self.opaque or right in self.opaque:
            return self.opaque.operated(operator.contains, right, left)
        left, right = self.compared(left), self.searched(right)
        return self.result(left in right)

    def searched(self, it):
        """`x in it`"""
        kind = type(it)
        if kind is tuple or kind in VIEWS or is_container(it, kind):
            return self.compared(it)
        self._before = len(self.runner.log)
        if kind in ITERATORS:
            self.impure("searches an iterator")
        elif kind is not str and kind is not range:
            self._look_into(it)
        return it

    def truth(self, it):
        """`it` is tested."""
        if it in self.opaque:
            self.opaque.operated(bool, it)
            return it
        if (type(it) is float or type(it) is int) and self._answer(operator.truth, (it,)) is not None:
            return it
        self.deferred.looked_at(it)
        self.value(it)
        kind = type(it)
        if not (kind in PLAIN or kind in TENSORS or kind is tuple):
            if kind in LISTS:
                self._look_into(it)
            elif any(hasattr(kind, name) for name in _TRUTH):
                self.operand(it)
            else:
                self._lacks(kind, _TRUTH)
        return it

    def identified(self, it):
        """`it is x`: numbers and strings are known by their values only, tensors, arrays and containers that the run was given by their structure."""
        kind = type(it)
        self.deferred.looked_at(it)
        if kind not in _UNIQUE and self.reason is None and (
                kind in PLAIN or kind in TENSORS or kind is np.ndarray or isinstance(it, np.generic) or id(it) in self._given):
            self.impure(f"asks which object of type {type(it).__name__} it is")
        return it

    def formatted(self, it):
        """`it` is put into an f-string."""
        if type(it) in PLAIN:
            self.deferred.looked_at(it)
            if type(it) is tfi.tensor_shape.TensorShape and type(it._dims) is LazyShape:
                self.impure("formats a shape that depends on data")
            return it
        return self.printed(it)

    def printed(self, it):
        """`it` becomes a string."""
        self.values(it)
        return self._deeply(it, self._printed)

    # -- containers ------------------------------------------------------------------------------------------------------------

    def _deeply(self, it, check, seen=None):
        """`check` whatever is in the container `it` and those in it, which are looked into; or `it` itself."""
        kind = type(it)
        self.deferred.looked_at(it)
        if self.reason is not None or kind in PLAIN:
            return it
        if kind in TENSORS:
            self.used.add(id(it))
        elif kind is tuple:
            for x in it:
                self._deeply(x, check, seen)
        elif is_container(it, kind) or kind in VIEWS:
            seen = set() if seen is None else seen
            if id(it) not in seen:
                seen.add(id(it))
                self._look_into(it)
                for x in it:
                    self._deeply(x, check, seen)
                if isinstance(it, dict):
                    for x in it.values():
                        self._deeply(x, check, seen)
        else:
            check(it)
        return it

    def _keys(self, owner):
        """Something is looked up in the dict or set `owner`: it is compared with those of its keys that have the same hash."""
        if id(owner) not in self._keyed and not isinstance(owner, list) and is_container(owner, type(owner)):
            if id(owner) not in self._born:
                self._keyed[id(owner)] = owner
            for x in owner:
                if type(x) not in SCALARS:
                    self._deeply(x, self._comparable)

    def _each(self, it, check):
        """Returns what to iterate over in place of `it`, whose items are shown to `check`."""
        self.iterated(it)
        if type(it) in ITERATORS and type(it) not in VIEWS:
            return self.fresh(map(functools.partial(self._shown, check), it))
        if type(it) in TENSORS or tfi.is_variable(it):
            self.impure("makes a set or a dict of a tensor")
        if self.reason is None and (type(it) is tuple or type(it) in VIEWS or is_container(it, type(it))):
            for x in it:
                check(x)
        return it

    def elements(self, it):
        """Returns what to make elements of a set of in place of `*it`."""
        return self._each(it, self.compared)

    def _pairs(self, it):
        """Returns what to make a dict of in place of `it`, a dict or something with pairs in it."""
        if isinstance(it, dict):
            self.iterated(it)
            self._keys(it)
            return it
        return self._each(it, self._pair)

    def _pair(self, it):
        self.iterated(it)
        if type(it) is tuple or type(it) is list:
            for x in it[:1]:
                self.compared(x)
        else:
            self.impure(f"makes a key and a value of an object of type {type(it).__name__}")

    # -- objects ---------------------------------------------------------------------------------------------------------------

    def _is_value(self, it, kind):
        """Whether `it` is something to calculate with, though not a plain one."""
        if kind is np.ndarray:
            self._look_into(it)
            self._numpy()
        elif numpys.is_own(kind):
            self._numpy()
        elif isinstance(it, enum.Enum):
            if not _is_plain_enum(kind):
                self.impure(f"uses an enum, {kind.__name__}, with operators of its own")
            for cls in kind.__mro__:
                if not cls.__module__ == "enum" and cls.__module__ != "builtins":
                    self.reads.contents(vars(cls), cls)
        else:
            return tfi.is_variable(it) and is_librarys(kind)
        return True

    def _part(self, it):
        """`it` is in a container that takes part in an operation; numpy and TensorFlow try to make numbers of it."""
        kind = type(it)
        if self._is_value(it, kind) or kind in (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, abc.ABCMeta):
            return
        for cls in kind.__mro__[:-1]:
            if not is_librarys(cls):
                if not all(name in _HARMLESS for name in vars(cls) if name.startswith("__") and name.endswith("__")):
                    self.impure(f"uses an object of type {kind.__name__} in an expression")
                    return
                self.reads.contents(vars(cls), cls)

    def _comparable(self, it):
        kind = type(it)
        if all(any(getattr(kind, name) is getattr(x, name) for x in (object, type)) for name in _COMPARISONS):
            self._lacks(kind, _COMPARISONS)
        elif not self._is_value(it, kind):
            self.impure(f"compares an object of type {kind.__name__}")

    def _printed(self, it):
        kind = type(it)
        if not (isinstance(it, (np.generic, np.ndarray, enum.Enum, np.dtype)) and self._is_value(it, kind)):
            self.impure(f"prints an object of type {kind.__name__}")
        elif np.get_printoptions().get("formatter"):
            self.impure("prints with functions that numpy was given")
        self.reads.asked(_numpys_printing, np, _numpys_printing(np))

    def _lacks(self, kind, names):
        """No class of the user's in `kind` defines these."""
        for cls in kind.__mro__[:-1]:
            if cls.__module__ != "builtins" and not is_librarys(cls):
                for name in names:
                    if name not in vars(cls):
                        self.reads.absent(vars(cls), name, cls)

    # -- numpy -----------------------------------------------------------------------------------------------------------------

    def _numpy(self):
        """numpy calculates: it may warn, or call the user's handler."""
        state = _numpys_errors(np)
        if state is None:
            self.impure("calculates with numpy, whose warnings are always shown")
        self.reads.entry(vars(warnings), "filters", warnings.filters)
        self.reads.contents(warnings.filters)
        self.reads.asked(_numpys_errors, np, state)


def _numpys_errors(_):
    """Returns what numpy does about errors; None if the program might notice each of them."""
    modes = np.geterr().values()
    return None if not _MODES.issuperset(modes) or is_filtered("always", numpys.RankWarning) else " ".join(modes)


_MODES = frozenset(["ignore", "warn", "raise"])


def _numpys_printing(_):
    """How numpy prints."""
    return str(np.get_printoptions())


def _is_plain_enum(kind):
    """Whether the special methods of an enum are those of the enum module."""
    for cls in kind.__mro__:
        if cls.__module__ == "enum" or cls.__module__ == "builtins":
            continue
        for name, value in vars(cls).items():
            if name.startswith("__") and name.endswith("__") and name not in _HARMLESS and not isinstance(value, _SLOTS):
                if type(value) is not FunctionType or value.__globals__.get("__name__") != "enum":
                    return False
    return type(kind) is enum.EnumMeta
