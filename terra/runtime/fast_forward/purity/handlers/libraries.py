"""The observer's part for libraries on top of TensorFlow whose calls do nothing but compute (TensorFlow Probability, Sonnet).

Their code is neither instrumented nor observed: a step runs thousands of its lines for a distribution or two. It is taken at its word, see `terra.transform.configure`:
what a call gives follows from its arguments, from what the objects hold that it is given, and from the variables that it reads. Objects that the run has made
are its own; of those that were there before, everything that they hold is guarded. That nothing of the user's runs in such a call is looked out for,
and that no value of a tensor is read that comes with the step.
"""

import uuid
import weakref
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType

import numpy as np

from terra import ours
from terra.frameworks import framework_objects
from terra.frameworks.tensorflow import READS
from terra.runtime.fast_forward.cache import call_watch
from terra.runtime.fast_forward.purity.facts.library_classes import calls_library, derives_from_librarys, parts_of_super
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.interpreter import profilers
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, defined, is_c_class, is_librarys, is_output
from terra.tf import private_names as tfi
from terra.transform import convert, policy

_MOST_HELD = 3_000  # objects
_CALLED = (FunctionType, MethodType, BuiltinFunctionType, type, ModuleType)
# Modules of caches, locks, and descriptions of types and functions.
_UNIMPORTANT = frozenset(["weakref", "_weakref", "_weakrefset", "_thread", "threading", "inspect", "typing", "tensorflow_probability.python.internal.cache_util"])


def _holds_no_text(it):
    """Whether there is certainly no text in what a library gives."""
    kind = type(it)
    if kind is dict or is_output(it):
        return all(map(_holds_no_text, (it if kind is dict else vars(it)).values()))
    if kind is list or kind is tuple:
        return all(map(_holds_no_text, it))
    return (kind in PLAIN and kind is not str) or kind in TENSORS or tfi.is_variable(it)


def _functions_of(cls):
    """The Python functions of the user's that a class defines, also within what a metaclass of a library's has wrapped them in."""
    todo, found = [value.fget if type(value) is property else getattr(value, "__func__", value) for value in vars(cls).values()], {}
    while todo:
        function = todo.pop()
        if type(function) is FunctionType and policy.is_user_code(function):
            found[id(function)] = function
        elif type(function) is FunctionType:
            todo += [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return found.values()


class Libraries(Handler):
    """The part of the Observer for such libraries."""

    __slots__ = ("_lent",)

    def __init__(self, run):
        super().__init__(run)
        self._lent = {}  # class of the user's that derives from a library's -> its functions, which that may call

    def of_library(self, callee, form, /, *args, **kwargs):
        """Call it, and look out for code of the user's that it calls in turn."""
        owner = callee if not isinstance(callee, _CALLED) else None
        for x in (getattr(callee, "__self__", owner), *args, *kwargs.values()):
            self.hand_to_library(x)
        return self.in_library(lambda: form(*args, **kwargs))

    def is_librarys_attribute(self, it, kind, name):
        """Whether what an object has as `name` is such a library's affair: of a class of the user's, a property that it inherits is."""
        if kind is super:
            found = next((vars(base)[name] for base in parts_of_super(it)[0] if name in vars(base)), None)
            return type(found) is property and calls_library(found.fget)
        if framework_objects.is_stock_kind(kind):  # layers are looked at as Keras' and the user's are
            return False
        if policy.is_pure(kind.__module__):
            return True
        found = defined(kind, name) if derives_from_librarys(kind) and not isinstance(it, type) else None
        return type(found) is property and calls_library(found.fget)

    def of_librarys_object(self, it, name):
        """Returns what the attribute `name` of an object of such a library's gives, which may be a property."""
        self.hand_to_library(it)
        return self.in_library(lambda: getattr(it, name))

    def make_derived(self, kind, /, *args, **kwargs):
        """Make an object of a class of the user's that derives from such a library's: it is the run's own before its `__init__` begins."""
        self._lend(kind)
        for x in (*args, *kwargs.values()):
            self.hand_to_library(x)
        if type(kind).__call__ is not type.__call__:
            self.run.impure(f"makes an object of type {kind.__name__}")

        def make():
            it = kind.__new__(kind, *args, **kwargs)
            self.run.born.add(it)
            it.__init__(*args, **kwargs)
            return it

        return self.in_library(make if self.run.reason is None else lambda: kind(*args, **kwargs))

    def _lend(self, kind):
        """A library may call what a class of the user's that derives from its own has overridden."""
        if kind not in self._lent:
            self._lent[kind] = functions = []
            for cls in kind.__mro__[:-1]:
                if not is_librarys(cls) and not policy.is_pure(cls.__module__) and not is_c_class(cls):
                    self.run.reads.contents(vars(cls), cls)
                    functions += _functions_of(cls)

    @ours.calling
    def in_library(self, call):
        warned, length, skipped = [], len(self.run.runner.log), len(self.run.skipped)
        if not profilers.can_watch():
            self.run.impure(f"calls a library while the profiler {profilers.in_the_way()[-1]} looks on, beside which nothing is recorded: start it later")
            return call()
        called = {}

        def note(frame):
            if convert.is_observed(frame.f_code):
                called[id(frame.f_code)] = frame.f_code
            else:
                self.run.impure(f"calls {frame.f_code.co_name} from within a library")

        lent = [function for functions in self._lent.values() for function in functions]
        try:
            with call_watch.observed_in_place(lent) as exchanged:
                result = call_watch.look_out(call, note, warned.append, self._reading, strangers=False, builtins=call_watch.WRITERS | {READS})
        except Exception as error:
            self.run.impure(f"calls a library, which raises {type(error).__name__}")
            raise
        for function, code in exchanged:
            if id(code) in called:
                self.run.note_called(function)
        if warned:
            call_watch.note_filters(self.run.reads.contents)
        if len(self.run.runner.log) != length:
            self.run.skipped[skipped:] = [(length, len(self.run.runner.log) - length)]  # what was jumped over within it included
            self.run.is_worthwhile = True
        if not _holds_no_text(result):
            for x in [x for x, *_ in self.run.deferred.held.values() if type(x) is str]:  # what comes of a text that was made of a tensor's value is not looked out for
                self.run.deferred.looked_at(x)
        self.run.framework.bear(result)
        return result

    def _reading(self, frame, function):
        """A library calls a builtin, perhaps one by which it reads the value of a tensor that comes with the step; it may be worth something else the next time. (numpy's
        functions take a tensor's memory without that; but a library that runs in graphs, too, gives them none.)"""
        if function.__name__ == READS:
            self.run.operands.value(function.__self__)
        elif call_watch.writes(function):
            self.run.impure("has a library write something")

    def hand_to_library(self, it):
        """A call uses `it`, and everything that it holds."""
        todo = [it]
        while todo and self.run.reason is None:
            it = todo.pop()
            kind = type(it)
            if derives_from_librarys(kind) and not policy.is_pure(kind.__module__):
                self._lend(kind)
            if self.run.born.has(it) or id(it) in self.run.held or it is None:
                if self.run.born.has(it) and (kind is list or kind is dict):
                    todo += it.values() if kind is dict else it
                continue
            if kind in PLAIN or kind in TENSORS:
                self.run.deferred.looked_at(it)
                self.run.used.add(id(it))
                continue
            if kind is MethodType:  # (code of the user's is looked out for)
                todo.append(it.__self__)
                continue
            if kind is BuiltinFunctionType and not isinstance(it.__self__, (ModuleType, type, type(None))):
                self.run.impure("gives a library a method, which may change its object")
            if isinstance(it, _CALLED) or kind.__module__ in _UNIMPORTANT or isinstance(it, weakref.ref) or tfi.is_variable(it):
                continue
            self.run.held[id(it)] = it
            if len(self.run.held) > _MOST_HELD:
                self.run.impure("gives a library what holds too much to be compared")
            elif isinstance(it, np.ndarray):
                self.run.contents.look_into(it)
            elif isinstance(it, (dict, list, tuple, set, frozenset)):
                todo += it if isinstance(it, (tuple, frozenset)) else self.run.reads.contents(it)
            elif isinstance(it, (np.generic, uuid.UUID)) or (is_librarys(kind) and not hasattr(it, "__dict__")):
                pass
            elif (derives_from_librarys(kind) or is_librarys(kind)) and type(getattr(it, "__dict__", None)) is dict:
                for cls in kind.__mro__:
                    if not is_librarys(cls) and cls is not object:
                        self.run.reads.contents(vars(cls), cls)
                self.run.reads.object(it, kind, vars(it))
                for name, value in vars(it).items():
                    self.run.reads.entry(vars(it), name, value)
                todo += vars(it).values()
            else:
                self.run.impure(f"gives a library an object of type {kind.__name__}")

    def forget_notes(self):
        """Forgets what a library itself has set of what it was given: that is a note of its own, for the next time: another call makes the same of it."""
        for it in self.run.held.values():
            if derives_from_librarys(type(it)) and type(getattr(it, "__dict__", None)) is dict:
                for name, value in list(self.run.reads.entries_of(vars(it)).items()):
                    if vars(it).get(name, it) is not value and (id(it), name) not in self.run.effects:
                        self.run.reads.forget(vars(it), name)
