"""Which loops of a step function are unrolled in its graph, and which are rolled: then its steps are co-executed in segments (see `segments`).

A loop is unrolled until it turns out to be a loss: because it runs another number of times each time, or takes branches of its own in each iteration.
"""

import logging

from terra.runtime.fast_forward.sources import normalised_locations
from terra.runtime.loops import segments, recurrent_layers
from terra.runtime.step_function import structure_specialisation

log = logging.getLogger("terra")

FEW_ITERATIONS = 4  # a loop that ran no more often is unrolled for two different trip counts, too
FEW_TREES = 2  # traces with recursion that are merged before steps are cut into segments


class Rolling:
    """Knowledge of the loops of one step function: which are rolled."""

    def __init__(self, function):
        self._function = function
        self._recursive = set()  # locations in recursive calls
        self._branching = set()  # ids of loops that are rolled because of the branches in them
        self._trip_counts = {}  # (location around a loop, loop id) -> trip counts seen

    def note(self, locations):
        """Remember how often the loops ran in a step that issued operations at these locations."""
        for key, count in normalised_locations.trip_counts(locations).items():
            self._trip_counts.setdefault(key, set()).add(count)

    def is_loss(self, counts, at_once=False):
        """Returns whether unrolling a loop that ran so many times is a loss."""
        return len(counts) > 1 and (at_once or self._function.options.loops == "roll" or len(counts) > 2 or max(counts) > FEW_ITERATIONS)

    def _varying(self, at_once=False):
        """Ids of the loops to roll: empty unless one of them has varied so much that unrolling it is a loss; then all whose trip count has varied.

        Two trip counts are few enough to unroll, if the loop is short.
        """
        if not any(self.is_loss(counts, at_once) for counts in self._trip_counts.values()) and not self._branching:
            return set()
        of_loop = {}
        for (_, loop_id), counts in self._trip_counts.items():
            of_loop.setdefault(loop_id, set()).update(counts)
        return {loop_id for loop_id, counts in of_loop.items() if len(counts) > 1 or loop_id in self._branching}

    def after_trace(self, locations):
        """A whole step was traced, with operations at these locations: True if steps are cut into segments from now on."""
        self.note(locations)
        varying = self._varying()
        recursive = {here for here in locations if normalised_locations.is_recursive(here)}
        deeper = recursive - self._recursive  # layers inside of layers of their own class recurse, too, but always in the same way
        self._recursive |= recursive
        if not varying and not (deeper and self._function.store.n_traces >= FEW_TREES):
            return False
        self._roll(varying)
        return True

    def after_segments(self, step):
        """A step in segments is over: True if others are cut at more loops from now on."""
        if not step.launched:  # else only a part of what ran is known
            self.note(step.locations)
        varying = self._varying(at_once=True)
        if varying <= self._function.segments.places.varying:
            return False
        self._roll(varying)
        return True

    def roll_branching(self):
        """Roll the loops in which paths part, because each iteration has branches of its own: whether there are any."""
        function = self._function
        if not (function.located and function.may_roll) or function.segments is not None or function.options.loops == "unroll":
            return False
        ways = [after.payload for node in function.store.graph.nodes if len(node.succ) > 1 for after in node.succ if after.payload is not None]
        self._branching.update([loop_id for way in ways for loop_id, count in way.event.location.loop_ids if count > 1])
        if self._branching:
            self._roll(self._varying())
        return bool(self._branching)

    def _roll(self, varying):
        """From the next step on, cut steps into segments at these loops and at recursive calls."""
        function = self._function
        if function.segments is not None:
            function.generation.retired += function.segments.programs
        function.segments = segments.Segments(varying)
        if function.recurrences is not None and function.recurrences.for_xla:
            function.recurrences = None  # XLA is not given segments
        elif function.recurrences is not None:
            function.recurrences.computes_again = True  # what gradients need of a loop is no part of another segment
        self._look_for_recurring(structure_specialisation.SHARE)
        function.note_rolled(len(varying))
        why = "take branches of their own in each iteration" if self._branching else "run another number of times each time"
        log.info("%s is co-executed in pieces from now on: %d loops %s", function.policy.name, len(varying), why)

    def take_layers_as_one(self):
        """From the next step on, the loop of an RNN layer is one operation: it runs another number of times each time."""
        function = self._function
        function.recurrences = recurrent_layers.Recurrences()
        function.begins_anew = True
        if function.segments is not None:
            function.recurrences.computes_again = True
        elif function.located and not function.dynamic_arguments.leaves_unknown:
            self._look_for_recurring(structure_specialisation.SHARE_OF_WHOLE)
        log.info("the loops of RNN layers of %s are one operation each from now on: they run another number of times each time", function.policy.name)

    def know_sizes(self):
        """From the next step on, sizes of arguments are known that were left unknown by themselves: whether there were any."""
        function = self._function
        if not function.dynamic_arguments.close():
            return False
        function.begins_anew = True
        log.info("%s knows the sizes of its arguments from now on: it does not pay to leave them unknown", function.policy.name)
        return True

    def unroll_layers(self):
        """From the next step on, RNN layers are unrolled again if their loops were one operation for the sake of XLA: whether they were."""
        function = self._function
        if function.recurrences is None or not function.recurrences.for_xla:
            return False
        function.recurrences = None
        function.begins_anew = True
        return True

    def _look_for_recurring(self, share):
        function = self._function
        if function.specialisation is None and function.options.loops != "roll":
            function.specialisation = structure_specialisation.StructureSpecialisation(function.structures.make, share)

    def unroll_settled(self):
        """All loops have run equally often for long."""
        function = self._function
        log.info("step %d of %s: all loops have run equally often for long; they are unrolled", function.n_steps, function.policy.name)
        function.structures.path = None
        self.unroll()

    def unroll(self):
        """From the next step on, steps are whole again: their loops have run equally often for long."""
        function = self._function
        function.eviction.narrow()
        retired = function.generation.retired
        retired += function.segments.programs
        for made in function.specialisation.functions.values() if function.specialisation is not None else ():
            retired += [] if made is None else made.generation.retire()
        function.segments = function.specialisation = None
        self._trip_counts.clear()
        self._branching.clear()
        function.note_rolled(0)
        function.traces.forget()
