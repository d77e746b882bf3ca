"""The functions for single structures of arguments: each runs the steps of its structure in place of the function that is rolled (see
`structure_specialisation`)."""

import dataclasses
import time

from terra.runtime.step_function import structure_specialisation


class Structures:
    """Runs each step of one rolled function: in segments, or by the function for its structure of arguments."""

    def __init__(self, function):
        self._function = function
        self.path = None  # what stands for the segments that the last rolled step took, if they were all known

    def step(self, args, kwargs):
        """A step in segments, or one of the function for this structure of arguments."""
        whole = self._function
        structure = structure_specialisation.structure_key(args, kwargs)
        if structure is None:
            return whole.one_step(args, kwargs)
        start, stats, known = time.perf_counter(), whole._stats, whole.specialisation
        function = known.find(structure, start)
        if function is None:
            self.path = None
            try:
                return whole.one_step(args, kwargs)
            finally:
                known.ran(structure, self.path, start, time.perf_counter(), stats.graphs)
        before = stats.coexecuted_steps
        function.keeps_last = whole.keeps_last
        try:
            return function.one_step(args, kwargs)
        finally:
            coexecuted = stats.coexecuted_steps > before
            stats.recurring_steps += coexecuted
            if whole.keeps_last:
                whole.last = function.last
            if known.ran_by_itself(structure, coexecuted, start, time.perf_counter()):
                whole.generation.retired += function.generation.retire()

    def make(self):
        """A function that unrolls all loops, for one structure of arguments; what happens to it is counted as happening to the rolled one."""
        whole = self._function
        made = whole.another(dataclasses.replace(whole.options, loops="unroll", reduce_retracing=False))
        made._stats, made.counts, made.fallback_reasons = whole._stats, whole.counts, whole.fallback_reasons
        made.generation.registered = whole.generation.registered
        made.policy = structure_specialisation.SpecialisationPolicy(whole.policy.name)
        made.store.inherits = self._relaxed()
        return made

    def _relaxed(self):
        """Returns a function that tells whether an input of an operation is known not to be constant, wherever in the loops that is."""
        of = self._function.segments
        if of is None:
            known = {(signature, k) for signature, _, k in self._function.store.relaxed}
            return lambda signature, k: (signature, k) in known
        places = of.places
        known = {(signature, k) for segment in of.table.values() for signature, _, k in segment.store.relaxed}
        return lambda signature, k: ((signature[0], places(signature[1])[0]), k) in known
