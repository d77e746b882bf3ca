"""The conclusion of a run that was observed: whether it was pure, and what it has read."""

from terra.frameworks.settings import settings
from terra.runtime.fast_forward.guards import attribute_filter
from terra.runtime.fast_forward.sources.effects import Append, StateInput, holds_tensors, space_of
from terra.runtime.tensors.comparing import Unskippable, equal, logits_of, mask_of
from terra.runtime.tensors.object_kinds import is_librarys_container, is_record, makes_named_tuples, plain
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import opschema, private_names as tfi
from terra.tf.private import composites


class Conclusion:
    """Concludes one run; made when that begins."""

    def __init__(self, run):
        self.run = run
        self.added = []  # of the lists of losses that the run may have changed, those that it has: see `added_losses`
        self.carries = []  # `StateInput`, of the attributes that should count as arguments
        self._start = run.before
        self._settings = {root: settings(root) for root in (None, "keras", "tf_keras")}

    def finish(self, result):
        """The run gave `result`: the sealed reads. Raises Unskippable if it was not pure."""
        self.run.conclude()
        if self.run.reason is None:
            if (node := self._issued()) is not None:
                self.run.impure(f"issues {node.op_type} in a call that was not skipped", True, node.location)
            else:
                seen = set()
                self._check_result(result, seen)
                for effect in self.run.effects.values():
                    if not effect.is_there:
                        self.run.impure(f"sets {effect.name}, which is kept elsewhere")
                    elif effect.added is None and effect.value() is not result:
                        self._check_result(effect.value(), seen)
        if any(made is not None and made.gi_frame is not None for made in [reference() for reference in self.run.generators]):
            self.run.impure("leaves a generator that is not at its end")
        if self._leaves_unused():
            self.run.impure("does not use what it has written to a TensorArray")
        self._check_numbers()
        return self._finish(result)

    def finish_inside(self, outer):
        """Returns the sealed reads of a run inside of a call of the framework's that is recorded as a whole; `outer`: the run around it, which takes over its effects."""
        self.run.conclude()
        self._check_numbers()
        born = list(self.run.born.living())
        reads = self._finish()
        if self.run.effects and outer is not None:
            outer.changes.take_over(self.run.effects, born)
        return reads

    def _check_numbers(self):
        """Numbers and arrays that vary must not matter."""
        if seen := self.run.deferred.seen_unsteady:
            self.run.impure("looks at what unknown code gives, which is something else each time", self.run.opaque.looked_at(seen))
        needed = self.run.dynamic.why_needed() or (self.run.deferred.looks_at_numbers() and "looks at a number that varies")
        if needed:
            self.run.impure(needed)

    def _finish(self, result=None):
        self.run.libraries.forget_notes()
        for _, where in self.run.opaque.files:
            self.run.impure("opens a file, and does not close it", where=where)
        if self.run.opaque.seen.have_changed():
            self.run.impure("changes what it has set, after a call of unknown code that may have seen it")
        if self.run.reason is None and any(type(x) is TerraTensor and x._owner is self.run.runner for x in self.run.reads.values()):
            self.run.impure("keeps a tensor in an object")
        for record, before in self.run.jumped:
            self.run.reads.guard(record.guard, before)
            for variable in record.accessed:
                self.run.reads.variable(variable)
        if self.run.masks:
            known = self.run.reads.ids()
            for key, (tensor, mask, logits) in self.run.masks.items():
                if key in known:
                    self.run.reads.asked(mask_of, tensor, mask)
                    self.run.reads.asked(logits_of, tensor, logits)
            self.run.masks.clear()
        for held, needed in self.run.losses.values():
            if self.run.covered is not None:
                if id(held) not in self.run.covered.added_losses:
                    self.run.impure("adds losses to a layer from elsewhere")
            elif needed:
                self.run.impure("adds losses to those of this step")
            elif needed is not None and not held:
                self.run.reads.contents(held)
            else:
                self.added.append((held, needed))
        for effect in self.run.effects.values():
            if not effect.was_read(self.run.reads) or (attribute_filter.is_user_attribute(effect.owner, effect.name) and not self.run.reads.has_entry(effect.owner, effect.name)):
                continue  # (of what the user's code leaves in a layer, guards of the framework's calls compare only of what kind it is)
            if effect.is_relative:
                self.run.impure("looks at what it adds to", type(effect) is Append and self.run.opaque.containers.are_read([effect.owner]))
            elif self.run.reads.has_contents(space_of(effect.owner), effect.name) and not attribute_filter.is_user_attribute(effect.owner, effect.name) \
                    and not equal((effect.value(),), (effect.before,)):
                self.run.impure("changes what the framework, or a look at all of it, finds there", True)  # it found another thing before
            elif self.run.reason is None and _carries(self.run.reads.attribute(effect.owner, effect.name), effect.value()):
                self.carries.append(StateInput(effect.owner, effect.name))
        self.run.opaque.instances.leaves([effect.value() for effect in self.run.effects.values() if effect.added is None], result)
        if self.carries:
            self.run.impure("sets an attribute that holds tensors which it has read", True)
        self.release()
        if self.run.reason is not None:
            raise Unskippable
        self.run.opaque.instances.conclude(True)
        self.run.reads.seal(self._settings)
        return self.run.reads

    def release(self):
        """Let go of what the run has made: some of it refers to the observer."""
        self.run.born.clear()
        self.run.given.clear()
        self.run.handed_over.clear()
        self.run.held.clear()
        self.run.end()

    def _issued(self):
        """The first operation that the run issued itself, or None. What it only read decides which of several records a jump takes, or is late."""
        log, k = self.run.runner.log, self._start
        for at, length in [*self.run.skipped, (len(log), 0)]:
            while k < at and log[k][0].category == opschema.FETCH:
                k += 1
            if at != k:
                break
            k += length
        return log[k][0] if k < len(log) else None

    def _leaves_unused(self):
        """Whether the run has made something of which TensorFlow says each time that it was never used."""
        return any(tfi.is_to_be_used(type(it)) and not tfi.is_used(it) for it in self.run.born.living())

    def _check_result(self, value, seen):
        kind = type(value)
        if kind is tuple or kind is list or kind is dict:
            if kind is not tuple:
                if not self.run.born.has(value) or id(value) in seen:
                    self.run.impure("returns a container that it has not made, or one twice")
                    return
                seen.add(id(value))
            for x in value.values() if kind is dict else value:
                self._check_result(x, seen)
        elif is_record(kind) or composites.is_extension(kind):
            if not self.run.born.has(value) or id(value) in seen:
                self.run.impure(f"returns an object of type {kind.__name__} that it has not made, or one twice")
                return
            seen.add(id(value))
            for x in vars(value).values() if is_record(kind) else composites.composite_parts(value):
                self._check_result(x, seen)
        elif kind is tfi.ListWrapper and self.run.born.has(value):
            for x in value:
                self._check_result(x, seen)
        elif is_librarys_container(kind):  # as an attribute of a layer: it has made it of one that it was given
            held = getattr(value, "_storage", None)
            for x in (held,) if type(held) is list else plain(value).values() if isinstance(value, dict) else value:
                self._check_result(x, seen)
        elif issubclass(kind, tuple):
            if not makes_named_tuples(kind) or not self.run.classes.is_named_tuple(kind) or getattr(value, "__dict__", None):
                self.run.impure(f"returns an object of type {kind.__name__}")
                return
            for x in value:
                self._check_result(x, seen)


def _carries(before, after):
    """Whether an attribute that was read and then set is likely to hold tensors that the next run reads."""
    return holds_tensors(before) or (before is None and holds_tensors(after))
