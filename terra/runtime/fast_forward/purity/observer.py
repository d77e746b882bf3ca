"""The observer: finds out whether a run of user code did nothing but compute.

It is shown the operands of the observed form of a function (see `terra.transform.observing.observed`) while that runs, and gives them back as they are. A run is *pure* if

* all calls of the framework's were skipped (see `fast_forward`), so that nothing in the framework changed either, and each was the same as before;
* it called nothing else but functions of the user's, observed in the same way, and builtins without side effects;
* it changed no object but the containers that it had made itself.

Everything that it read of the world around it is noted in `ReadSet`: if the reads hold, and the arguments are the same, another run would do the same.
Whatever is not known to be harmless makes a run impure; that costs speed only.
"""

import numpy as np

from terra import ours
from terra.frameworks.settings import settings
from terra.location import location
from terra.location.observed_patterns import Patterns
from terra.runtime.fast_forward.guards import added_losses, attribute_filter, container_guard
from terra.runtime.fast_forward.guards.read_set import ReadSet
from terra.runtime.fast_forward.guards.null_read_set import NullReadSet
from terra.runtime.fast_forward.purity.born import Born
from terra.runtime.fast_forward.purity.observed_arrays import Arrays, Indexed, KnownItem
from terra.runtime.fast_forward.purity.observed_attributes import Attributes
from terra.runtime.fast_forward.purity.observed_builtins import Builtins
from terra.runtime.fast_forward.purity.observed_calls import Calls
from terra.runtime.fast_forward.purity.observed_changes import Changes
from terra.runtime.fast_forward.purity.observed_functionals import Functionals
from terra.runtime.fast_forward.purity.observed_libraries import Libraries
from terra.runtime.fast_forward.purity.observed_objects import Objects
from terra.runtime.fast_forward.purity.observed_operands import Operands
from terra.runtime.fast_forward.purity.observed_places import Places
from terra.runtime.fast_forward.purity.unknown.library_code import LibraryCode
from terra.runtime.fast_forward.purity.unknown.live_calls import LiveCalls
from terra.runtime.fast_forward.purity.unknown.opaque import Opaque
from terra.runtime.fast_forward.purity.unknown.stand_ins import OpaqueItems, Unknown
from terra.runtime.fast_forward.sites import fast_calls, user_layers
from terra.runtime.fast_forward.sources.effects import StateInput, holds_tensors, so_far, space_of
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetches
from terra.runtime.fast_forward.sources.dynamic_values import NO_DYNAMIC_VALUES
from terra.runtime.interpreter import frames
from terra.runtime.tensors.comparing import Unskippable, logits_of, mask_of
from terra.runtime.tensors.object_kinds import HOLDING, LISTS, PLAIN, TENSORS, is_librarys, is_librarys_container, is_like_builtin, is_record, makes_named_tuples, plain
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.transform import convert
from terra.transform.source import globals_read


class Observer(Attributes, Places, Changes, Calls, Functionals, Libraries, Objects, Builtins, Arrays, Operands, Patterns):
    """Observes one run."""

    def __init__(self, runner, given, dynamic=None, covered=None, inputs=None, carried=()):
        self.runner = runner
        self._inputs = inputs  # the tensors among the arguments, if all of these are known
        self.covered = covered  # what is guarded of the object of the framework's whose call is recorded, if that is why the run is observed
        self.start = len(runner.log)
        self.recording = None  # of the run, if that may make residual calls
        self._dynamic = NO_DYNAMIC_VALUES if dynamic is None else dynamic  # arrays, and numbers, that are not to matter
        self.reads = ReadSet(self._dynamic.places)
        self.reason = None  # why the run is impure
        self.is_inside_opaque = False  # whether an opaque call is made just now
        self._trying = False  # whether something is asked that may be an opaque call, if it cannot be understood: see `attempted`
        self.too_early = 0  # runs after which a counter that was handed on can be told from other integers
        self.passing = False  # whether that may be different the next time
        self.jumped = []  # (record, the effects until then: see `effects.so_far`) of calls that were jumped over
        self.entered = 0  # calls of the framework's that were not
        self._skipped = []  # (place in the log, length) of them, and of what the operators of tensors have issued
        self._before = self.start  # how long the log was before the operator at hand
        self._born = Born()  # containers, iterators, functions, objects and tapes that the run has made
        self._lent = {}  # class of the user's that derives from a library's -> its functions, which that may call
        self._held = {}  # id -> it, of what calls of libraries may read, see `Libraries`
        self._generators = []  # weak references to those that the run has made, and that have something to do when they are closed
        self._lets_go = False  # whether there was one: then iterators are not held
        self._handed_over = {}  # id -> container that was given to the framework's code: where that gives it, it has not made it
        self._span = None  # where in the log begins what the framework's code issues, while it runs in one of the calls that `Functionals` has
        self._makes_graph = False  # whether the framework makes a graph of what a function would do that it was given
        self.is_worthwhile = False  # whether it has saved much to skip the run, even if few calls are skipped in it
        self.differentiates = False  # whether a gradient may be the matter of a function of the program's
        self.accumulates = False  # whether it has made a ForwardAccumulator, which wants to see each operation: no call is skipped while one is at work
        self.recomputes = 0  # functions of `tf.recompute_grad` that run now: no call is skipped while the tape is stopped
        self.exchanged = []  # functions that were called while they had other code than their own: what they read is still to be noted
        self.deferred = DeferredFetches(self._dynamic, runner.deferred_fetches)
        self.opaque, self.library_code, self.live_calls = Opaque(self), LibraryCode(self), LiveCalls(self)
        self.losses = {}  # id -> (list of the losses that a layer adds, what it must hold before), of those that the run may have changed; see `added_losses`
        self.added = []  # in the end, of those that it has changed
        self.effects = {}  # (id of an object, name) -> Effect, of the attributes that the run has set; and what it has appended to lists
        self.carried = carried  # (id of an object, name) of the attributes that count as arguments: see `effects.StateInput`
        self.used = set()  # ids of the tensors that operators, and calls of the framework's, were given
        self.carries = []  # `StateInput`, of those that should
        self.masks = {}  # id of a tensor from outside of the step that something of the framework's was given -> (it, its mask, and its logits, then)
        self._bounds = []  # numbers that vary, and are bounds of the slice that is about to be taken
        self._keyed = {}  # id -> dict or set whose keys were looked at
        self._given = given  # ids of the containers among the arguments
        self._settings = {root: settings(root) for root in (None, "keras", "tf_keras")}

    def __enter__(self):
        if not fast_calls.operators_are_original():
            self.impure("uses operators that were replaced")
        self._outer = location.tls.observer, self.runner.observer
        location.tls.observer = self.runner.observer = self
        return self

    def __exit__(self, *exc):
        location.tls.observer, self.runner.observer = self._outer

    @ours.calling
    def run(self, called, args, kwargs):
        """The result of calling the user's function or, wrapped, layer `called`."""
        with self:
            if type(called) is user_layers.Wrapped:
                return self._layer(called.layer, called, *args, **kwargs)
            return self._user_function(called, called)(*args, **kwargs)

    run_code = run.__code__

    def finish(self, result):
        """The run gave `result`: the sealed reads. Raises Unskippable if it was not pure."""
        if self.reason is None:
            if (node := self._issued()) is not None:
                self.impure(f"issues {node.op_type} in a call that was not skipped", True, node.location)
            else:
                seen = set()
                self._check_result(result, seen)
                for effect in self.effects.values():
                    if not effect.is_there:
                        self.impure(f"sets {effect.name}, which is kept elsewhere")
                    elif effect.added is None and effect.value() is not result:
                        self._check_result(effect.value(), seen)
        if self.deferred.looks_at_unsteady:
            self.impure("looks at what unknown code gives, which is something else each time")
        if any(made is not None and made.gi_frame is not None for made in [reference() for reference in self._generators]):
            self.impure("leaves a generator that is not at its end")
        if self._leaves_unused():
            self.impure("does not use what it has written to a TensorArray")
        needed = self._dynamic.why_needed() or (self.deferred.looks_at_numbers() and "looks at a number that varies")
        if needed:
            self.impure(needed)
        return self._finish()

    def finish_inside(self, outer):
        """Returns the sealed reads of a run inside of a call of the framework's that is recorded as a whole; `outer`: the run around it, which takes over its effects."""
        born = list(self._born.living())
        reads = self._finish()
        if self.effects and outer is not None:
            outer._take_over(self.effects, born)
        return reads

    def _finish(self):
        self.forget_notes()
        if self.reason is None and any(type(x) is TerraTensor and x._owner is self.runner for x in self.reads.values()):
            self.impure("keeps a tensor in an object")
        for record, before in self.jumped:
            self.reads.guard(record.guard, before)
            for variable in record.accessed:
                self.reads.variable(variable)
        if self.masks:
            known = self.reads.ids()
            for key, (tensor, mask, logits) in self.masks.items():
                if key in known:
                    self.reads.asked(mask_of, tensor, mask)
                    self.reads.asked(logits_of, tensor, logits)
            self.masks.clear()
        for held, needed in self.losses.values():
            if self.covered is not None:
                if id(held) not in self.covered.added_losses:
                    self.impure("adds losses to a layer from elsewhere")
            elif needed:
                self.impure("adds losses to those of this step")
            elif needed is not None and not held:
                self.reads.contents(held)
            else:
                self.added.append((held, needed))
        for effect in self.effects.values():
            if not effect.was_read(self.reads) or (attribute_filter.is_user_attribute(effect.owner, effect.name) and not self.reads.has_entry(effect.owner, effect.name)):
                continue  # (of what the user's code leaves in a layer, guards of the framework's calls compare only of what kind it is)
            if effect.is_relative:
                self.impure("looks at what it adds to")
            elif self.reads.has_contents(space_of(effect.owner)) and not attribute_filter.is_user_attribute(effect.owner, effect.name) \
                    and not container_guard.equal((effect.value(),), (effect.before,)):
                self.impure("changes what the framework, or a look at all of it, finds there", True)  # it found another thing before
            elif self.reason is None and _carries(self.reads.attribute(effect.owner, effect.name), effect.value()):
                self.carries.append(StateInput(effect.owner, effect.name))
        if self.carries:
            self.impure("sets an attribute that holds tensors which it has read", True)
        self.release()
        if self.reason is not None:
            raise Unskippable
        self.reads.seal(self._settings)
        return self.reads

    def release(self):
        """Let go of what the run has made: some of it refers to the observer."""
        self._born.clear()
        self._given.clear()
        self._handed_over.clear()
        self._held.clear()

    def _let_go(self):
        """The run is impure: what it has made and read need not be known any more, and may be something whose end the program waits for."""
        self._born.close()
        for held in (self._handed_over, self._held, self._keyed, self.masks):
            held.clear()
        self.reads = NullReadSet(self._dynamic.places)
        self.opaque.clear()
        self.effects = {}  # those hold what attributes were before, and what was appended

    def give(self, container):
        """The framework hands a list or dict to the user's code."""
        if id(container) not in self._born:
            self._given.add(id(container))

    def gives(self, it):
        """`it` goes into an operation: whether it is an array of the step's whose contents then need not matter."""
        given = type(it) is np.ndarray and it in self._dynamic
        if given:
            self._dynamic.given += 1
        return given

    def calls(self, function):
        """The user's `function` was called."""
        self.reads.function(function, globals_read(function.__code__), convert.names_shown(function))

    def _issued(self):
        """The first operation that the run issued itself, or None. What it only read decides which of several records a jump takes, or is late."""
        log, k = self.runner.log, self.start
        for at, length in [*self._skipped, (len(log), 0)]:
            while k < at and log[k][0].category == opschema.FETCH:
                k += 1
            if at != k:
                break
            k += length
        return log[k][0] if k < len(log) else None

    def impure(self, reason, passing=False, where=None):
        """The run does something that another could not leave out."""
        if self._trying:
            raise Unknown(reason)
        if self.reason is None:
            line = where.line() if where is not None else frames.line_inside(self.runner.step.function.step_code) or location.tls.cursor.current.line()
            self.reason = f"{reason} ({line})" if line else reason
            self.passing = passing
            self._let_go()

    def ids_of_containers(self):
        """The ids of what was read, containers among it, and of the containers that the run was given."""
        return self.reads.ids() | self._given

    def effects_so_far(self):
        return so_far(self.effects)

    def note_made(self, record, start, before, differentiates):
        """A call was made, and recorded as if it could be jumped over: what it has issued begins at `start`, and there were the effects `before`."""
        self.differentiates = self.differentiates or differentiates
        self._note_region(record, start, len(self.runner.log) - start, before)

    def note_jump(self, record):
        self._note_region(record, len(self.runner.log), len(record.entries), so_far(self.effects))

    def _note_region(self, record, start, length, before):
        self.jumped.append((record, before))
        for held, needed, _ in record.losses:
            self.losses.setdefault(id(held), (held, needed))
        self._skipped.append((start, length))

    def adds_loss(self, layer):
        """The layer will add a loss."""
        held = added_losses.list_of(vars(layer))
        needed = added_losses.identify(self.runner, held)
        if needed is None and id(held) not in self.losses:
            self.impure("adds losses to those of another step")
        self.reads.entry(vars(layer), "_losses", held)
        self.losses.setdefault(id(held), (held, needed))

    def empties_losses(self, layer):
        """The losses of the layer, and of its parts, will be forgotten."""
        for part in layer._flatten_layers():
            held = added_losses.list_of(vars(part))
            self.losses.setdefault(id(held), (held, None if held else ()))

    def _check_result(self, value, seen):
        kind = type(value)
        if kind is tuple or kind is list or kind is dict:
            if kind is not tuple:
                if id(value) not in self._born or id(value) in seen:
                    self.impure("returns a container that it has not made, or one twice")
                    return
                seen.add(id(value))
            for x in value.values() if kind is dict else value:
                self._check_result(x, seen)
        elif is_record(kind):
            if id(value) not in self._born or id(value) in seen:
                self.impure(f"returns an object of type {kind.__name__} that it has not made, or one twice")
                return
            seen.add(id(value))
            for x in vars(value).values():
                self._check_result(x, seen)
        elif kind is tfi.ListWrapper and id(value) in self._born:
            for x in value:
                self._check_result(x, seen)
        elif is_librarys_container(kind):  # as an attribute of a layer: it has made it of one that it was given
            held = getattr(value, "_storage", None)
            for x in (held,) if type(held) is list else plain(value).values() if isinstance(value, dict) else value:
                self._check_result(x, seen)
        elif issubclass(kind, tuple):
            if not makes_named_tuples(kind) or not self.is_named_tuple(kind) or getattr(value, "__dict__", None):
                self.impure(f"returns an object of type {kind.__name__}")
                return
            for x in value:
                self._check_result(x, seen)

    # -- operands --------------------------------------------------------------------------------------------------------------

    def fresh(self, it):
        if not self._lets_go or type(it) not in HOLDING:
            self._born.add(it)
        return it

    def result(self, it):
        """`it` is what an operator or a slice gave: what it issued follows from its operands."""
        if type(it) is list:
            self._born.add(it)
        return self.item(it)

    def item(self, it):
        """`it` is an item of something, which was there before."""
        while self._bounds:
            self.deferred.looked_at(self._bounds.pop())
        length = len(self.runner.log)
        if length != self._before and (not self._skipped or self._skipped[-1][0] < self._before):
            self._skipped.append((self._before, length - self._before))
        self._before = length
        return it

    def container(self, it):
        """An item or slice of `it` is taken."""
        if it in self.opaque:
            return OpaqueItems(self.opaque, it)
        self._before = len(self.runner.log)
        self.deferred.looked_at(it)
        if type(it) not in PLAIN and type(it) not in TENSORS:
            self._look_into(it)
        return it

    def iterated(self, it):
        """The items of `it` are looked at in turn: returns what to iterate over."""
        return self.fresh(self.opaque.items(it)) if it in self.opaque else self.container(it)

    def mapping(self, it):
        """An item or slice of `it` is taken."""
        if type(it) is np.ndarray and not self._is_over() and (self.recording is not None or self.deferred.held):  # what the index is, is not known yet
            self._before = len(self.runner.log)
            return Indexed(self, it)
        return self.items(it)

    def items(self, it):
        """`it` is merged into a dict."""
        self._keys(it)
        return self.container(it)

    def subscript(self, it, key):
        """The item `key`, a constant, of `it` is taken."""
        if self.reason is not None or not self._is_place(it, key):
            return self.mapping(it)
        number = self.counter(it, key)
        if number is not None:
            return KnownItem(number)
        self._before = len(self.runner.log)
        self._keys(it)
        self._take(it, key)
        return it

    def unpacked(self, it, shape):
        """`it` is unpacked into targets of this structure."""
        self.iterated(it)
        if type(it) is tuple or type(it) is list:
            items = list(it)
            if "*" in shape:
                k = shape.index("*")
                items[k:max(k, len(items) - (len(shape) - k - 1))] = [None]
            for x, part in zip(items, shape):
                if type(part) is tuple:
                    self.unpacked(x, part)
        elif any(type(part) is tuple for part in shape):
            self.impure(f"unpacks an object of type {type(it).__name__}")
        return it

    def unpacking(self, it, shape):
        """The items of `it` will be unpacked."""
        self.iterated(it)
        return self.fresh(map(lambda x: self.unpacked(x, shape), it))

    def _look_into(self, it):
        """Notes that what a container holds is used."""
        self.deferred.looked_at(it)
        if self.reason is not None or id(it) in self._born or id(it) in self._given:
            return
        kind = type(it)
        if kind is tuple or kind in PLAIN or kind in TENSORS:
            return
        if self.is_named_tuple(kind):
            self.note_class(it)
            return
        if is_like_builtin(kind):
            self.note_class(it)
        if kind in LISTS or is_like_builtin(kind) or (isinstance(it, (list, dict)) and is_librarys(kind)):
            held = self.reads.contents(it)
            if any(type(x) is TerraTensor and x._owner is self.runner for x in held):
                self.impure("keeps a tensor in a container")
        elif kind is np.ndarray:
            if it in self._dynamic:
                self.impure("looks into an array that is an argument")
            try:
                self.reads.array(it)
            except Unskippable:
                self.impure("uses a large array")
        elif not tfi.is_variable(it):
            self.impure(f"looks into an object of type {kind.__name__}")


def _carries(before, after):
    """Whether an attribute that was read and then set is likely to hold tensors that the next run reads."""
    return holds_tensors(before) or (before is None and holds_tensors(after))
