"""The observer's part for objects of the user's classes that a run makes (a distribution, a box, a timer), and of context managers.

Such an object is the run's own: what it holds is no matter of guards, what its class does is observed. It must not outlive the run.
"""

import abc
import collections
import contextlib
import dataclasses
import functools
import operator
from types import BuiltinFunctionType, FunctionType, MethodWrapperType, SimpleNamespace

from terra import ours
from terra.location.identity import itself
from terra.location.null_observer import OPERATORS
from terra.runtime.fast_forward.purity.facts.exceptions import is_own_error
from terra.runtime.fast_forward.purity.facts.library_classes import derives_from_librarys
from terra.runtime.fast_forward.purity.facts.plain_classes import is_class_of_variables, is_plain_class, is_plain_metaclass
from terra.runtime.fast_forward.purity.facts.program_code import is_refused
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.interpreter.profilers import unwatched
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, defined, is_frameworks_function, is_record, may_be_made
from terra.runtime.tracing import structures
from terra.tf import private_names as tfi
from terra.tf.private import composites
from terra.transform import convert, policy, wrappers

_MAKE_CONTEXT = contextlib.contextmanager(lambda: None).__code__  # of what contextlib makes of a generator function
_CONTEXT = type(contextlib.contextmanager(lambda: iter(()))())
_DUNDERS = {name: f"__{function.__name__.strip('_')}__" for name, function in OPERATORS.items()}
_NUMBERS = frozenset([int, float, bool, complex])
_REFLECTED = {
    "Eq": "__eq__", "NotEq": "__ne__", "Lt": "__gt__", "LtE": "__ge__", "Gt": "__lt__", "GtE": "__le__",
    **{name: f"__r{_DUNDERS[name].strip('_')}__" for name in ("Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "MatMult", "LShift", "RShift", "BitOr", "BitXor", "BitAnd")}}
_NAMES = {function: name for name, function in OPERATORS.items()}


def _sets_in_its_own_way(found):
    """Whether what a class defines is a descriptor that comes before an attribute of an instance."""
    return any(defined(type(found), name) is not None for name in ("__set__", "__delete__"))


class Objects(Handler):
    """The part of the Observer for these."""

    __slots__ = ()

    def make_object(self, kind, /, *args, **kwargs):
        """Make an instance of such a class."""
        if self.run.reason is None and kind in self.run.runner.program.made_by_calls and self.run.opaque.takes(args, kwargs):
            return self.run.opaque.make(kind, args, kwargs, f"makes an object of type {kind.__name__}", as_a_whole=True)
        made = defined(kind, "__init__")
        is_librarys_own = type(made) is FunctionType and not policy.may_know_program(made)
        if type(made) is FunctionType and self.run.reason is None and (is_refused(made) or not unwatched(convert.is_observable, made) or (
                is_librarys_own and not self.run.library_code.makes(kind, made) and self.run.opaque.takes(args, kwargs))):
            return self.run.opaque.make(kind, args, kwargs, f"makes an object of type {kind.__name__}")
        self.run.classes.note_whole(kind)
        initialise = self.run.calls.user_function(made, made) if type(made) is FunctionType else None
        if initialise is None and made is not object.__init__ and not may_be_made(kind):
            self.run.impure(f"makes an object of type {kind.__name__}")
        if self.run.reason is not None:
            return kind(*args, **kwargs)
        new = defined(kind, "__new__")
        is_plain = type(new) is BuiltinFunctionType  # that of object, list or dict
        if is_plain and initialise is None:
            return self.run.fresh(kind(*self._filling(kind, args), **kwargs))
        it = self.run.fresh(new(kind, *args, **kwargs) if issubclass(kind, BaseException) else new(kind)) if is_plain else self.run.calls.user_function(new.__func__, new.__func__)(kind, *args, **kwargs)
        if initialise is None or not isinstance(it, kind):
            return it
        if is_librarys_own:
            initialise = self.run.library_code.initialiser(made, initialise)
        initialise(it, *args, **kwargs)
        return it

    def _filling(self, kind, args):
        """Returns what to give the constructor of a list or dict; of anything else, what it is given."""
        if issubclass(kind, collections.defaultdict):
            return [*args[:1], *map(self.run.contents.pairs, args[1:])]
        look = self.run.contents.pairs if issubclass(kind, dict) else self.run.contents.iterated if issubclass(kind, list) else None
        return args if look is None else [*map(look, args)]

    @ours.calling
    def _fill(self, form, /, *args, **kwargs):
        """Call the `__init__` of list or dict, of an instance that the run has made."""
        form(*self._filling(type(form.__self__), args), **kwargs)

    def sets_items(self, it):
        """Whether an attribute of `it`, which the run has made, is an item."""
        return self.run.born.has(it) and isinstance(it, dict) and may_be_made(type(it)) and defined(type(it), "__setattr__") is dict.__setitem__

    def setter_of_container(self, it):
        """Returns the `__setattr__` of the program's that the class of such an instance has; None if it has none."""
        if not self.run.born.has(it) or not may_be_made(type(it)) or self.run.reason is not None:
            return None
        found = defined(type(it), "__setattr__")
        return found if type(found) is FunctionType and policy.may_know_program(found) else None

    def new(self, kind, /, *args, **kwargs):
        """Call `object.__new__`."""
        if not isinstance(kind, type) or not is_plain_class(kind):
            return self.run.opaque.calling(object.__new__, "calls object.__new__")(kind, *args, **kwargs)
        return self.run.fresh(object.__new__(kind, *args, **kwargs))

    def by_metaclass(self, kind):
        """Returns what to call in place of a class whose class says in Python what that does; None if it does not."""
        call = defined(type(kind), "__call__")
        if type(kind) in (type, abc.ABCMeta) or type(call) is not FunctionType or not policy.may_know_program(call) or not is_plain_metaclass(type(kind)):
            return None
        self.run.classes.note_class(kind)
        self.run.classes.found(type(kind).__mro__, "__call__", None)
        return functools.partial(self.run.calls.user_function(call, call), kind)

    def make_extension(self, kind, /, *args, **kwargs):
        """Make an object of a `tf.experimental.ExtensionType` of the program's, whose constructor only checks and keeps what it is given."""
        run, given = self.run, [*args, *kwargs.values()]
        if not composites.only_keeps(kind) or run.reason is not None or not all(map(self._may_be_kept, given)):
            return run.opaque.calling(kind, f"makes an object of type {kind.__name__}")(*args, **kwargs)
        run.reads.bases(kind)
        for cls in kind.__mro__[:kind.__mro__.index(tfi.tf.experimental.ExtensionType)]:
            run.reads.contents(vars(cls), cls)
        for x in given:
            run.framework.note_arguments(x)
        length = len(run.runner.log)
        made = kind(*args, **kwargs)
        run.born.add(made)
        kept, handed = {}, {}
        structures.collect_args(made, kept, {})
        structures.collect_args(given, handed, {})
        if len(run.runner.log) != length or not kept.keys() <= handed.keys():
            run.impure(f"makes an object of type {kind.__name__}, which converts what it is given")
        return made

    def _may_be_kept(self, it):
        kind, run = type(it), self.run
        return kind in TENSORS or (kind in PLAIN and id(it) not in run.dynamic.numbers) or (kind is tuple and all(map(self._may_be_kept, it))) or (
            composites.is_composite(kind) and (run.born.has(it) or id(it) in run.given))

    def initialiser(self, callee, form):
        """Returns what to call in place of the `__init__` of `object`, list or dict, which `super()` gives in the end; None if it is none."""
        if type(callee) is not MethodWrapperType or callee.__name__ != "__init__":
            return None
        if callee.__objclass__ is object or (issubclass(callee.__objclass__, BaseException) and self.run.born.has(callee.__self__)):
            return form
        return functools.partial(self._fill, callee) if self.run.born.has(callee.__self__) and may_be_made(type(callee.__self__)) else None

    def is_own_object(self, it):
        """Whether the run has made it, a data class or not, and its attributes are where they are set."""
        kind = type(it)
        return self.run.born.has(it) and (is_plain_class(kind) or is_own_error(kind) or is_class_of_variables(kind) or kind is SimpleNamespace or (
            (is_record(kind) or may_be_made(kind)) and defined(kind, "__setattr__") is object.__setattr__))

    def attribute_of_own(self, it, kind, name):
        """Read an attribute of one."""
        if name == "__class__" or (name in vars(it) and not _sets_in_its_own_way(defined(kind, name))):
            return
        found = self.run.classes.found(kind.__mro__, name, None)
        if found is None or not (type(found) in (FunctionType, staticmethod, classmethod) or defined(type(found), "__get__") is None):
            self.run.impure(f"asks an object of type {kind.__name__} for {name}")

    def replaced(self, it, /, **changes):
        """Call `dataclasses.replace`."""
        kind = type(it)
        if not is_record(kind) or not all(f.init for f in dataclasses.fields(kind)):
            self.run.impure(f"replaces fields of an object of type {kind.__name__}")
            return dataclasses.replace(it, **changes)
        kept = {f.name: getattr(self.run.attributes.owner(it, f.name), f.name) for f in dataclasses.fields(kind) if f.name not in changes}
        return self.run.builtins.make_record(kind, **kept, **changes)

    def sets_own(self, it, name):
        """Whether an attribute is set of an object that the run has made."""
        if not self.is_own_object(it) and not (self.run.born.has(it) and derives_from_librarys(type(it))):
            return False
        if _sets_in_its_own_way(defined(type(it), name)):
            self.run.impure(f"sets {name}, which is a descriptor")
        return True

    def operator_of_own(self, name, left, *right):
        """Returns what the operator `name` gives, if it is that of an object's whose class defines it in Python; else None."""
        kind, dunder = type(left), _DUNDERS[name]
        if any(issubclass(type(x), kind) and type(x) is not kind for x in right):
            return None
        form, given = self.run.calls.special(left, dunder), right
        if form is None and kind in _NUMBERS and right and name in _REFLECTED:  # which knows nothing of such objects
            form, given = self.run.calls.special(right[0], _REFLECTED[name]), (left,)
        if form is None:
            return self._differs(left, *right) if name == "NotEq" and defined(kind, dunder) is object.__ne__ else None
        result = form(*given)
        if result is NotImplemented:
            self.run.impure("has another object calculate")
            return OPERATORS[name](left, *right)
        return result

    def _differs(self, left, right):
        """Returns what `!=` gives, if the class of the left operand says in Python what is equal, and nothing of this."""
        form = self.run.calls.special(left, "__eq__")
        equal = form(right) if form is not None else None
        if equal is NotImplemented:
            self.run.impure("has another object calculate")
            return left != right
        return None if form is None else not equal

    def operator_function(self, callee):
        """Returns what to call in place of a function of the module `operator`, or None."""
        name = _NAMES.get(callee)
        if name is None:
            return None
        operands = self.run.operands
        return functools.partial(operands.unary if callee in (operator.neg, operator.pos, operator.invert) else operands.comparison if name in _COMPARISONS else operands.binary, name)

    def identity(self, it, /):
        """The `id` of an object that was there before is the same each time."""
        it = itself(it)
        if self.run.born.has(it) or it in self.run.opaque or not self.run.operands.has_identity(it):
            return self.run.opaque.make(id, (it,), {}, "calls id")
        return id(it)

    @ours.calling
    def cached(self, callee, /, *args, **kwargs):
        """Call a function with a `functools.lru_cache`: it gives the same object as long as it remembers that."""
        if not all(type(x) in SCALARS for x in (*args, *kwargs.values())):
            self.run.impure("calls a function with a cache that is given more than numbers and strings")
        before = callee.cache_info().hits
        value = callee(*args, **kwargs)
        if callee.cache_info().hits == before:
            self.run.impure("calls a function with a cache, which does not know the answer yet", True)
        else:
            self.run.reads.asked(_Lookup(callee, args, kwargs), callee, value)
        return value

    # -- contexts --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def makes_context(function):
        """Whether `contextlib.contextmanager` has made it of a generator function."""
        return function.__code__ is _MAKE_CONTEXT and wrappers.is_wrapper(function) and type(function.__wrapped__) is FunctionType

    def make_context(self, function, instrumented, /, *args, **kwargs):
        observed = self.run.calls.user_function(function, function, instrumented)
        return self.run.fresh(contextlib.contextmanager(observed)(*args, **kwargs))

    def users_context(self, it):
        """`with it:`, an object of a class of the user's. Returns what to enter in its place; None if that is not known."""
        kind = type(it)
        if kind is _CONTEXT or (self.run.born.has(it) and not self.is_own_object(it)) or it in self.run.opaque:  # of a generator; a tape
            return None
        enter, leave = defined(kind, "__enter__"), defined(kind, "__exit__")
        if type(enter) is not FunctionType or type(leave) is not FunctionType or is_frameworks_function(enter) or is_frameworks_function(leave):
            return None
        if not self.is_own_object(it):
            if not policy.may_know_program(enter):
                return None
            self.run.classes.note_class(it)
            self.run.classes.found(kind.__mro__, "__enter__", None)
            self.run.classes.found(kind.__mro__, "__exit__", None)
        return _Context(self.run, it, *[self.run.library_code.part(function, self.run.calls.user_function(function, function)) for function in (enter, leave)])


class _Lookup:
    """A look into a cache, for something that is in it. Where that may have been forgotten since, nobody asks: the function itself would run."""

    __slots__ = ("args", "kwargs", "misses", "size")

    def __init__(self, cached, args, kwargs):
        self.args, self.kwargs = args, kwargs
        _, self.misses, _, self.size = cached.cache_info()

    def __call__(self, cached):
        _, misses, _, size = cached.cache_info()
        if misses < self.misses or misses - self.misses != size - self.size:
            return _FORGOTTEN
        self.misses, self.size = misses, size
        return cached(*self.args, **self.kwargs)

    def __eq__(self, other):
        return type(other) is _Lookup and (self.args, self.kwargs, self._types()) == (other.args, other.kwargs, other._types())

    def _types(self):
        return [*map(type, self.args), *map(type, self.kwargs.values())]

    def __hash__(self):
        return hash(self.args)


_FORGOTTEN = object()


class _Context:
    """Entered in place of a context manager of the user's."""

    def __init__(self, run, it, enter, leave):
        self._run, self._it, self._enter, self._leave = run, it, enter, leave

    def __enter__(self):
        return self._enter(self._it)

    def __exit__(self, kind, error, trace):
        if error is not None:
            self._run.fresh(error)
        return self._leave(self._it, kind, error, trace)


_COMPARISONS = frozenset(["Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"])
