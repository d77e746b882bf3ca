"""Regions: the part of a program that one call of framework code walked, recorded so that the same call can be jumped over.

A region knows the nodes that were matched, what they told the gradient tape, which variables they touched, and how to make the call's result
out of new placeholders. It holds no value of a step: values of the step are named by their keys, tensor arguments of the step by their index.
"""

from terra.graph.trace import ARG
from terra.runtime import internals as tfi
from terra.runtime.program import ValueKey
from terra.runtime.tensor import TerraTensor

SCALARS = frozenset([int, float, bool, str, type(None), bytes])


class _Argument:
    """Stands for tensor argument `index` of the step."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class Unskippable(Exception):
    """A call depends on, or gives, something that a region cannot hold."""


class Region:
    """A recorded call: what it depended on (signature, guard), and what it did."""

    __slots__ = (
        "signature", "guard", "keep", "entries", "patches", "end", "latest", "result", "records", "accessed", "shapes")


class Recording:
    """Notes where the runner is before a call; `region()` makes the region after it, or None if the call cannot be skipped."""

    def __init__(self, runner):
        self.runner = runner
        self.start = runner.node
        self.log_length = len(runner.log)
        self.issued_length = len(runner.issued)
        self.events = runner.events()
        self.lazy = runner.tapes.recording
        if self.lazy is not None:
            self.pending_length = len(self.lazy.pending)
            self.tape_state = (self.lazy.opaque, self.lazy.flushes, len(self.lazy.events))
        self.accessed_length = len(runner.tapes.accessed)

    def region(self, result, inputs):
        """`inputs`: key -> tensor of the values of the step among the arguments. Raises Unskippable."""
        runner, lazy = self.runner, self.lazy
        if runner.step.skeleton is not runner or runner.events() != self.events or runner.node is self.start:
            raise Unskippable
        if runner.tapes.recording is not lazy or (
                lazy is not None and self.tape_state != (lazy.opaque, lazy.flushes, len(lazy.events))):
            raise Unskippable
        region = Region()
        region.entries = runner.log[self.log_length:]
        region.patches = []
        for k, (node, refs, _) in enumerate(region.entries):
            for j, (ref, slot) in enumerate(zip(refs, node.slots)):
                if type(ref) is ValueKey or slot.const is not None or ref is slot.handle:
                    continue
                if slot.kind is not ARG:
                    raise Unskippable
                region.patches.append((k, j, slot.arg))
        region.end = runner.node
        region.latest = [(multi, key) for node, _, _ in region.entries for multi, key in node.assigns_multi]
        region.shapes = {t._key: (t.dtype, t._enum, t._shp) for t in runner.issued[self.issued_length:]}
        region.shapes.update(runner.jumped_shapes(self.log_length))
        region.result = _template(result, runner, region, inputs)
        region.records = []
        if lazy is not None:
            for item in lazy.pending[self.pending_length:]:
                if type(item) is tuple:
                    op, ins, attrs, outs = item
                    if not any(type(t) is TerraTensor for t in outs):
                        continue  # small integers that the host computed: no gradient goes through them
                    if not all(type(t) is TerraTensor for t in outs):
                        raise Unskippable
                    item = (op, [self._name(x) for x in ins], attrs, [t._key for t in outs])
                region.records.append(item)
        region.accessed = runner.tapes.accessed[self.accessed_length:]
        return region

    def _name(self, x):
        """How a recorded input is found again in another step."""
        if type(x) is TerraTensor:
            if x._owner is not self.runner:
                raise Unskippable
            return x._key
        argument = self.runner.step.args.get(id(x))
        return x if argument is None else _Argument(argument[0])


def _template(value, runner, region, inputs):
    kind = type(value)
    if kind is TerraTensor:
        if value._owner is not runner or getattr(value, "_keras_mask", None) is not None:
            raise Unskippable
        if value._key not in region.shapes and value._key not in inputs:
            raise Unskippable
        return value._key
    if kind in SCALARS:
        return value
    if kind is list or kind is tuple:
        return kind(_template(x, runner, region, inputs) for x in value)
    if kind is dict:
        return {k: _template(x, runner, region, inputs) for k, x in value.items()}
    if kind is tfi.tf.IndexedSlices:
        return _Slices([_template(x, runner, region, inputs) for x in (value.values, value.indices, value.dense_shape)])
    if tfi.is_variable(value):
        return value
    raise Unskippable


class _Slices:
    __slots__ = ("parts",)

    def __init__(self, parts):
        self.parts = parts


def rebuild(template, placeholder):
    """The result of a skipped call; `placeholder(key)` gives the tensor for a key."""
    kind = type(template)
    if kind is ValueKey:
        return placeholder(template)
    if kind is list or kind is tuple:
        return kind(rebuild(x, placeholder) for x in template)
    if kind is dict:
        return {k: rebuild(x, placeholder) for k, x in template.items()}
    if kind is _Slices:
        return tfi.tf.IndexedSlices(*[rebuild(x, placeholder) for x in template.parts])
    return template


def jump(runner, region, inputs):
    """Take the region's nodes as matched; returns the call's result."""
    runner.step.counts.fast_forwards += 1
    entries = region.entries
    if region.patches:
        entries = list(entries)
        arguments = runner.step.arg_list
        for k, j, index in region.patches:
            node, refs, seeds = entries[k]
            if refs is region.entries[k][1]:
                refs = list(refs)
            refs[j] = arguments[index]
            entries[k] = (node, refs, seeds)
    runner.note_jump(region)
    runner.log += entries
    for multi, key in region.latest:
        runner.latest[multi] = key
    runner.node = region.end
    runner.expected = region.end.expected
    tapes = runner.tapes
    if tapes.recording is not None:
        if region.records:
            tapes.recording.pending.append(region)
        for variable in region.accessed:
            tfi.variable_accessed(variable)
    tapes.accessed += region.accessed

    def placeholder(key):
        known = inputs.get(key)
        return known if known is not None else runner.placeholder(key, region.shapes)

    return rebuild(region.result, placeholder)


def expand(runner, region):
    """What a skipped region would have told the tape: (op, inputs, attributes, outputs) for each operation."""
    for item in region.records:
        if type(item) is not tuple:
            yield from expand(runner, item)
            continue
        op, ins, attrs, outs = item
        yield (
            op, [_find(runner, x, region) for x in ins], attrs, [runner.placeholder(key, region.shapes) for key in outs])


def _find(runner, x, region):
    if type(x) is ValueKey:
        return runner.placeholder(x, region.shapes)
    if type(x) is _Argument:
        return runner.step.arg_list[x.index]
    return x
