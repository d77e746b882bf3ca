"""One run that is observed: what it has come to so far, what everybody notes of it, and the handlers.

A handler makes of one kind of object, or of use, what a run makes of it; it holds the run, and asks the other handlers by it: `self.run.calls.builtin(...)`.
"""

import numpy as np

from terra.location import location
from terra.runtime.fast_forward.guards.null_read_set import NullReadSet
from terra.runtime.fast_forward.guards.read_set import ReadSet
from terra.runtime.fast_forward.purity.born import Born
from terra.runtime.fast_forward.purity.unknown.library_code import LibraryCode
from terra.runtime.fast_forward.purity.unknown.live_calls import LiveCalls
from terra.runtime.fast_forward.purity.unknown.opaque import Opaque
from terra.runtime.fast_forward.purity.unknown.stand_ins import Unknown
from terra.runtime.fast_forward.purity.unknown.writing import Writing
from terra.runtime.fast_forward.sources.array_calculations import numpys_errors
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetches
from terra.runtime.fast_forward.sources.late_values import NO_DYNAMIC_VALUES
from terra.runtime.fast_forward.sources.effects import leave_natural, so_far
from terra.runtime.fast_forward.sources.number_sources import KINDS
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.interpreter import frames
from terra.runtime.tensors.object_kinds import HOLDING, TENSORS
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.transform import convert
from terra.transform.source import globals_read

_OF_TENSORS = frozenset(["Add", "Sub", "Mult", "Div"])  # operators that make a tensor of the other operand's type of a number


_made_of = BaseException.args.__get__


class Handler:
    """The part of the observer for one kind of object, or of use, in one run. No handler keeps what the run lets go of when it turns out impure (`reads`, `effects`, `born`)."""

    __slots__ = ("run",)

    def __init__(self, run: "Run"):
        self.run = run


class Run:
    """The state of one run, and what is noted of it."""

    __slots__ = (
        "runner", "inputs", "covered", "recording", "may_read_late", "entry_code", "dynamic", "deferred", "given", "carried",  # what it is given
        "reads", "reason", "line", "passing", "postponed", "trying", "too_early", "is_inside_opaque", "is_worthwhile", "differentiates", "opaque", "library_code", "live_calls", "writing",
        "jumped", "entered", "skipped", "before", "used", "masks", "losses", "effects", "born", "held", "handed_over", "keyed", "bounds", "generators", "lets_go", "takes_index",
        "numpys_errors", "caught", "arrays", "attributes", "builtins", "calls", "changes", "classes", "contents",  # handlers, and the next ones
        "framework", "functionals", "libraries", "objects", "operands", "places", "_handlers", "__weakref__")

    def __init__(self, handlers: dict[str, type[Handler]], runner, given: set, dynamic=None, covered=None, inputs=None, carried=()):
        """`handlers`: {name: class} of the handlers."""
        self.runner = runner
        self.inputs = inputs  # the tensors among the arguments, if all of these are known
        self.covered = covered  # what is guarded of the object of the framework's whose call is recorded, if that is why the run is observed
        self.recording = None  # of the run, if that may make residual calls
        self.may_read_late = covered is not None  # whether unknown code may be given what is read of the graph, and not looked at: where the run is recorded
        self.entry_code = None  # of what calls the function that is observed
        self.dynamic = NO_DYNAMIC_VALUES if dynamic is None else dynamic  # arrays, and numbers, that are not to matter
        self.reads = ReadSet(self.dynamic.places)
        self.reason = self.line = None  # why the run is impure, and in which line of the step's own function
        self.is_inside_opaque = False  # whether an opaque call is made just now
        self.trying = False  # whether something is asked that may be an opaque call, if it cannot be understood: see `attempted`
        self.too_early = 0  # runs after which a part of it can be skipped
        self.passing = False  # whether that may be different the next time
        self.postponed = None  # why the run will have been impure in the end, though it goes on as if it were not: see `postpone`
        self.jumped = []  # (record, the effects until then: see `effects.so_far`) of calls that were jumped over
        self.entered = 0  # calls of the framework's that were not
        self.skipped = []  # (place in the log, length) of them, and of what the operators of tensors have issued
        self.takes_index = False  # whether the index at hand is an argument of a method, `__getitem__`
        self.before = len(runner.log)  # how long the log was before the operator at hand
        self.born = Born()  # containers, iterators, functions, objects and tapes that the run has made
        self.held = {}  # id -> it, of what calls of libraries may read, see `Libraries`
        self.generators = []  # weak references to those that the run has made, and that have something to do when they are closed
        self.lets_go = False  # whether there was one: then iterators are not held
        self.handed_over = {}  # id -> container that was given to the framework's code: where that gives it, it has not made it
        self.is_worthwhile = False  # whether it has saved much to skip the run, even if few calls are skipped in it
        self.differentiates = False  # whether a gradient may be the matter of a function of the program's
        self.deferred = DeferredFetches(self.dynamic, runner.deferred_fetches)
        self.opaque, self.library_code, self.live_calls, self.writing = Opaque(self), LibraryCode(self), LiveCalls(self), Writing(self)
        self.losses = {}  # id -> (list of the losses that a layer adds, what it must hold before), of those that the run may have changed; see `added_losses`
        self.effects = {}  # (id of an object, name) -> Effect, of the attributes that the run has set; and what it has appended to lists
        self.carried = carried  # (id of an object, name) of the attributes that count as arguments: see `effects.StateInput`
        self.used = set()  # ids of the tensors that operators, and calls of the framework's, were given
        self.masks = {}  # id of a tensor from outside of the step that something of the framework's was given -> (it, its mask, and its logits, then)
        self.bounds = []  # numbers that vary, and are bounds of the slice that is about to be taken
        self.keyed = {}  # id -> dict or set whose keys were looked at
        self.caught = {}  # id -> what it was made of, of exceptions that the run has caught, and of which it is known what they say
        self.given = given  # ids of the containers among the arguments
        self.numpys_errors = numpys_errors("")  # what NumPy does about errors, when the run begins
        self._handlers = handlers
        for name, handler in handlers.items():
            setattr(self, name, handler(self))

    def end(self) -> None:
        """The run is over: it holds its handlers no more, which hold it, so that nothing waits for the garbage collector."""
        if type(self) is Run:
            for name in self._handlers:
                delattr(self, name)
            self.__class__ = EndedRun

    def is_own_tensor(self, it):
        """Whether it is a tensor of this step."""
        return type(it) is TerraTensor and it._owner is self.runner

    def is_handle(self, it):
        """Whether it is the handle of a variable or table that was there before the step, and is no argument of it."""
        return self.runner.step.is_lasting_handle(it) and id(it) not in self.runner.step.args

    def is_over(self):
        """Whether nothing is observed any more. With numbers and arrays that vary, calls are still to be recorded with the tensors that stand for them; and calls that were made already are not to be
        made again."""
        return self.reason is not None and not outcomes.pending and not (self.passing and (self.dynamic.numbers or self.dynamic.has_arrays))

    def tensor(self, number, dtype):
        """Returns a tensor of this type that stands for a number that varies; anything else as it is."""
        return self.dynamic.tensor(number, dtype) if id(number) in self.dynamic.numbers else self.opaque.tensor(number, dtype)

    def beside(self, name, it, other):
        """Returns what to make of an operand of the operator `name` beside `other`: a tensor, of a number that varies, if that is one."""
        is_beside_tensor = name in _OF_TENSORS and (type(other) in TENSORS or type(other) in tfi.RESOURCE_VARIABLES)
        return self.tensor(it, other.dtype) if is_beside_tensor and self.is_number(it) else it

    def is_number(self, it):
        """Whether it is a number that varies."""
        return id(it) in self.dynamic.numbers or (type(it) in KINDS and it in self.opaque)

    def attempted(self, look, *parts):
        """Returns None if `look(*parts)`, which runs no code of the program's, understands what is asked; else why the run would be impure."""
        self.trying = self.reason is None
        try:
            look(*parts)
        except Unknown as unknown:
            return str(unknown)
        finally:
            self.trying = False
        return None

    def _let_go(self):
        """The run is impure: what it has made and read need not be known any more, and may be something whose end the program waits for."""
        self.born.close()
        for held in (self.handed_over, self.held, self.keyed, self.masks):
            held.clear()
        self.reads = NullReadSet(self.dynamic.places)
        self.opaque.clear()
        leave_natural(self.effects.values())
        self.effects = {}  # those hold what attributes were before, and what was appended

    def give(self, container):
        """The framework hands a list or dict to the user's code."""
        if not self.born.has(container):
            self.given.add(id(container))

    def gives(self, it):
        """`it` goes into an operation: whether it is an array of the step's whose contents then need not matter."""
        given = type(it) is np.ndarray and it in self.dynamic
        if given:
            self.dynamic.given += 1
        return given

    def has_caught(self, it):
        """Whether it is an exception that the run has caught, and of which it is known what it says."""
        return id(it) in self.caught and issubclass(type(it), BaseException) and _made_of(it) is self.caught[id(it)]

    def note_called(self, function):
        """The user's `function` was called."""
        self.reads.function(function, globals_read(function.__code__), convert.names_shown(function))

    def impure(self, reason, passing=False, where=None):
        """The run does something that another could not leave out."""
        if self.trying:
            raise Unknown(reason)
        if self.reason is None:
            self.reason, self.passing = self.postponed or self._placed(reason, where), passing or self.postponed is not None
            self._let_go()

    def postpone(self, reason):
        """The run is impure, but for this once only. It goes on as if it were not, so that all calls behind are recorded, and the next one finds them."""
        if self.reason is None and self.postponed is None:
            self.postponed = self._placed(reason, None)

    def waits(self, calls):
        """A part of the run can be skipped in so many calls at the earliest."""
        self.too_early = max(self.too_early, calls)

    def conclude(self):
        """The run has come to its end."""
        if self.postponed is not None:
            self.impure(self.postponed)

    def here(self):
        """Returns (the line of the step's function that runs, the innermost line of the program's in it as messages name it)."""
        code = self.runner.step.function.step_code
        return frames.outermost_line(code), frames.line_inside(code) or location.tls.cursor.current.line()

    def _placed(self, reason, where):
        """`where`: a location, or what `here` gave, if the reason is not found where that is."""
        self.line, line = where if type(where) is tuple else self.here()
        if where is not None and type(where) is not tuple:
            line = where.line()
        return f"{reason} ({line})" if line else reason

    def ids_of_containers(self):
        """The ids of what was read, containers among it, and of the containers that the run was given."""
        return self.reads.ids() | self.given

    def effects_so_far(self):
        return so_far(self.effects)

    def note_made(self, record, start, before, differentiates):
        """A call was made, and recorded as if it could be jumped over: what it has issued begins at `start`, and there were the effects `before`."""
        self.differentiates = self.differentiates or differentiates
        if record.states:  # which are others by now
            self.impure("makes a call that takes up what the step before has left", True)
        self._note_region(record, start, len(self.runner.log) - start, before)

    def note_states(self, states):
        """A call is skipped, or made again, that counts what these attributes hold as its arguments."""
        for state in states:
            self.places.finds(state)

    def note_jump(self, record):
        self._note_region(record, len(self.runner.log), len(record.entries), so_far(self.effects))

    def _note_region(self, record, start, length, before):
        self.jumped.append((record, before))
        for held, needed, _ in record.losses:
            self.losses.setdefault(id(held), (held, needed))
        self.skipped.append((start, length))

    def fresh(self, it):
        if self.lets_go and type(it) in HOLDING:
            self.born.add_unheld(it)
        else:
            self.born.add(it)
        return it

    def result(self, it):
        """`it` is what an operator or a slice gave: what it issued follows from its operands."""
        if type(it) in (list, dict, set):
            self.born.add(it)
        return self.item(it)

    def item(self, it):
        """`it` is an item of something, which was there before."""
        self.takes_index = False
        while self.bounds:
            self.deferred.looked_at(self.bounds.pop())
        length = len(self.runner.log)
        if length != self.before and (not self.skipped or self.skipped[-1][0] < self.before):
            self.skipped.append((self.before, length - self.before))
        self.before = length
        return it


class EndedRun(Run):
    """A run that is over. What it has handed out (a `map` that shows its items, a method that enters calls) may be called still: that gets a new handler each time."""

    __slots__ = ()

    def __getattr__(self, name):
        if name not in self._handlers:
            raise AttributeError(name)
        return self._handlers[name](self)
