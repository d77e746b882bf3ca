"""The observer: finds out whether a run of user code did nothing but compute.

It is shown the operands of the observed form of a function (see `terra.transform.observing.observed`) while that runs, and gives them back as they are. A run is *pure* if

* all calls of the framework's were skipped (see `fast_forward`), so that nothing in the framework changed either, and each was the same as before;
* it called nothing else but functions of the user's, observed in the same way, and builtins without side effects;
* it changed no object but the containers that it had made itself.

Everything that it read of the world around it is noted in `ReadSet`: if the reads hold, and the arguments are the same, another run would do the same.
Whatever is not known to be harmless makes a run impure; that costs speed only.
"""

from terra import ours
from terra.location import location
from terra.location.observed_patterns import Patterns
from terra.runtime.fast_forward.purity.conclusion import Conclusion
from terra.runtime.fast_forward.purity.handlers.arrays import Arrays
from terra.runtime.fast_forward.purity.handlers.attributes import Attributes
from terra.runtime.fast_forward.purity.handlers.builtins import Builtins
from terra.runtime.fast_forward.purity.handlers.calls import Calls
from terra.runtime.fast_forward.purity.handlers.changes import Changes
from terra.runtime.fast_forward.purity.handlers.classes import Classes
from terra.runtime.fast_forward.purity.handlers.contents import Contents
from terra.runtime.fast_forward.purity.handlers.framework import Framework
from terra.runtime.fast_forward.purity.handlers.functionals import Functionals
from terra.runtime.fast_forward.purity.handlers.libraries import Libraries
from terra.runtime.fast_forward.purity.handlers.objects import Objects
from terra.runtime.fast_forward.purity.handlers.operands import Operands
from terra.runtime.fast_forward.purity.handlers.places import Places
from terra.runtime.fast_forward.purity.run import Run
from terra.runtime.fast_forward.sites import fast_calls, user_layers

_HANDLERS = {
    "arrays": Arrays, "attributes": Attributes, "builtins": Builtins, "calls": Calls, "changes": Changes, "classes": Classes, "contents": Contents,
    "framework": Framework, "functionals": Functionals, "libraries": Libraries, "objects": Objects, "operands": Operands, "places": Places}


class Observer(Patterns):
    """Observes one run: what observed forms of functions ask of it is what they ask of a `NullObserver`. Each of these is a method of a handler's, or of the run's, so that
    nothing stands in between."""

    def __init__(self, runner, given, dynamic=None, covered=None, inputs=None, carried=()):
        self.run = run = Run(_HANDLERS, runner, given, dynamic, covered, inputs, carried)
        run.entry_code = Observer.call.__code__
        self.conclusion = Conclusion(run)
        self._outer = None
        self.fresh, self.result, self.item, self.unobserved = run.fresh, run.result, run.item, run.impure
        operands = run.operands
        self.operand, self.binary, self.comparison, self.unary = operands.operand, operands.binary, operands.comparison, operands.unary
        self.index, self.modulo, self.compared, self.contains, self.searched = operands.index, operands.modulo, operands.compared, operands.contains, operands.searched
        self.truth, self.tested, self.identified, self.same = operands.truth, operands.tested, operands.identified, operands.same
        contents = run.contents
        self.container, self.iterated, self.looped, self.mapping, self.items = contents.container, contents.iterated, contents.looped, contents.mapping, contents.items
        self.subscript, self.unpacked, self.unpacking, self.elements = contents.subscript, contents.unpacked, contents.unpacking, contents.elements
        attributes, classes, builtins, calls = run.attributes, run.classes, run.builtins, run.calls
        self.owner, self.context, self.asks_kind, self.is_instance = attributes.owner, attributes.context, classes.asks_kind, builtins.is_instance
        self.enter, self.builtin = calls.enter, calls.builtin
        changes = run.changes
        self.stored, self.raised, self.assigned, self.removed, self.changed = changes.stored, changes.raised, changes.assigned, changes.removed, changes.changed
        self.inplace, self.inplace_attribute, self.inplace_item, self.augmented = changes.inplace, changes.inplace_attribute, changes.inplace_item, changes.augmented
        self.owner_to_change, self.caught = changes.owner_to_change, changes.caught
        places = run.places
        self.named, self.sets_name, self.globals, self.imports = places.named, places.sets_name, places.globals, places.imports
        self.question, self.counted, self.answer = places.question, places.counted, places.answer
        arrays = run.arrays
        self.piece, self.text = arrays.piece, arrays.joined
        self.bound, self.returning, self.returned = arrays.bound, arrays.returning, arrays.returned

    def __enter__(self):
        run = self.run
        if not fast_calls.operators_are_original():
            run.impure("uses operators that were replaced")
        self._outer = location.tls.observer, run.runner.observer
        location.tls.observer, run.runner.observer = self, run
        return self

    def __exit__(self, kind, error, trace):
        location.tls.observer, self.run.runner.observer = self._outer
        if error is not None:
            self.run.end()

    @ours.calling
    def call(self, called, args, kwargs):
        """The result of calling the user's function or, wrapped, layer `called`."""
        with self:
            if type(called) is user_layers.Wrapped:
                return self.run.framework.layer(called.layer, called, *args, **kwargs)
            return self.run.calls.user_function(called, called)(*args, **kwargs)
