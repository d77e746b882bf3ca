"""Jumps over records: their nodes count as matched, the graph is told what it must be told, and the call's result is made. See
`terra.runtime.fast_forward.cache.call_records`."""

import bisect

from terra.frameworks.keras import call_context
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.sources.array_calculations import calculate_deferred
from terra.runtime.fast_forward.sources import opaque_calls
from terra.runtime.fast_forward.sources.late_values import make_late_feeds
from terra.runtime.fast_forward.sources.opaque_calls import Held, Result
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation, FetchedTensor
from terra.runtime.fast_forward.sources.value_sources import ResidualSource
from terra.runtime.tensors.draws import seed_tensor
from terra.tf.private import composites
from terra.tf.random_state import random_state
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.runtime.fast_forward.cache.conditions import is_expected, note_jump
from terra.runtime.fast_forward.cache.call_records import (
    FELL_BACK, MISSED, RESULT, StepArgument, WithAttributes, CompositeTemplate, Constant, FedValue, ExternalInput, Instance, Named, DynamicNumber, Seeds,
)
from terra.runtime.execution.placeholders import launched
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tensors.value_key import ValueKey


def build(template, runner, record, inputs):
    """The result of a skipped call."""
    kind = type(template)
    if kind is ValueKey:
        known = inputs.values.get(template)
        return known if known is not None else runner.placeholder(template, record.shapes)
    if kind is list or kind is tuple:
        return kind([build(x, runner, record, inputs) for x in template])
    if kind is dict:
        return {k: build(x, runner, record, inputs) for k, x in template.items()}
    if kind is ExternalInput:
        return inputs.external[template.index]
    if kind is CompositeTemplate:
        return composites.composite(template.kind, [build(x, runner, record, inputs) for x in template.parts])
    if kind is Constant:
        tensor = template.tensor
        return tensor if not vars(tensor) else tensor._copy_to_device(tensor.device)  # what the program has attached to it was for another step
    if kind is DeferredFetch:
        value = template.how(runner.received[template.node])
        if template.key is not None:
            runner.note_deferred(value, template.key, template.how)
        return value
    if kind is DeferredCalculation:
        return calculate_deferred(template, inputs.drawn, inputs.arrays, inputs.numbers.__getitem__, lambda part: part.how(runner.received[part.node]))
    if kind is ResidualSource:
        return inputs.drawn[template.index]
    if kind is FetchedTensor:
        tensor = runner.placeholder(template.key, record.shapes)
        if tensor._value is None:
            tensor._value = runner.received[template.node]
        return tensor
    if kind is WithAttributes:
        tensor = build(template.value, runner, record, inputs)
        vars(tensor).update({name: build(x, runner, record, inputs) for name, x in template.attributes.items()})
        return tensor
    if kind is Named:
        parts = [build(x, runner, record, inputs) for x in template.parts]
        return template.kind(parts) if template.kind is tfi.ListWrapper else template.kind(*parts)
    if kind is Instance:
        return template.filled(build(template.attributes, runner, record, inputs))
    if kind is StepArgument or kind is FedValue:
        return record.find(runner, template)
    if kind is DynamicNumber:
        return inputs.numbers[template.index]
    if kind is Held:
        return template.value
    if kind is Result:
        return inputs.opaque[template.index]
    return template


def apply_record(runner, record, inputs, variants):
    """Take the nodes of the record as matched, or of the one among the `variants` that reads what there is to read; returns the call's result.

    FELL_BACK: the step has fallen back, to where the call begins. MISSED: the call reads something new, or an opaque call gave something else, and
        nothing was matched.
    """
    sent, entries, seeds = (0, 0), None, None
    before, observer = runner.position() if record.fetches else None, runner.observer
    states = [effect.state() for effect in record.effects] if observer is not None else ()
    if observer is not None:
        observer.note_states(record.states)
    calls = _OpaqueCalls(runner, record, inputs)
    if not calls.make(record.n_early):
        return calls.missed()
    if record.fetches:
        known = record
        record, sent, entries, seeds = _read(runner, record, inputs, variants, calls)
        if record is None:
            calls.take_back()
            return sent
        if record is not known and observer is not None:
            states = [effect.state() for effect in record.effects]
    if not calls.make(len(record.opaque)):
        runner.go_back(before, record.feeds[:sent[0]])
        _put_back(record, runner.step, seeds, entries)
        return calls.missed()
    had, made = calls.had, calls.told
    advance(runner, record, inputs.external, *sent, entries)
    for k, mask in record.masks:
        inputs.masks[k][0]._keras_mask = build(mask, runner, record, inputs)
    for held, _, losses in record.losses:
        added_losses.leave(held, [build(x, runner, record, inputs) for x in losses])
    runner.note_formatted(record.formatted)
    result = build(record.result, runner, record, inputs)
    left = calls.left + [result if effect.template is RESULT else build(effect.template, runner, record, inputs) for effect in record.effects[had:]]
    for effect, value in zip(record.effects[had:], left[had:]):  # (numbers were calculated of those that were there before)
        effect.apply(value)
    if record.opaque:
        record.reliability.succeeded()
        opaque_calls.made_for_good(record.opaque)
    if observer is not None and (record.effects or made):
        observer.changes.take_over_effects(record, made, left, states, inputs.external)
    return result


class _OpaqueCalls:
    """The opaque calls of a record that is jumped over, and the effects before them."""

    def __init__(self, runner, record, inputs):
        self._runner, self._record, self._inputs = runner, record, inputs
        self.told = [] if runner.observer is not None else None  # of the calls that were made
        self.had = self._n = 0  # how many effects were had, and calls made
        self.left = []  # what these effects have left
        self._undo = []  # functions that take back the effects
        self._changed = {}  # numbers that effects have changed
        if record.opaque:
            inputs.opaque = []

    def make(self, end):
        """Makes them up to this one, in which case it returns True; False if the record does not hold: then no effect was had."""
        if self._n >= end:
            return True
        runner, record, inputs = self._runner, self._record, self._inputs
        observer, before, n_read = runner.observer, random_state() if self.told is not None else None, len(runner.read_twice)
        done = opaque_calls.make_all(
            record.opaque[self._n:end], record.effects, lambda template: build(template, runner, record, inputs), inputs.opaque, runner.program.unsteady,
            None if self.told is None else lambda *call: self.told.append(call), opaque_calls.with_outcomes(record.opaque[:self._n]), self.had,
            lambda: runner.step.skeleton is runner and record.guard.holds() and inputs.numbers_hold(), record.guard.changes, self._changed, self.left)
        del runner.read_twice[n_read:]  # by unknown code, of what it is given
        if self.told is not None:
            observer.opaque.note_draws(before)
        if done is None:
            self.take_back()
            return False
        self.had, take_back = done
        self._undo.append(take_back)
        make_late_feeds(record, inputs.external, inputs.opaque, runner.step, self._n)
        self._n = end
        return True

    def make_before(self, k):
        """Makes those that come before the k-th value that the record reads; returns what `make` does."""
        return self._n >= len(self._record.opaque) or self.make(self._record.n_early + bisect.bisect_right(self._record.stages, k))

    def take_back(self):
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def missed(self):
        """One of them did not give what it gave: returns what `apply_record` does then."""
        return MISSED if self._runner.step.skeleton is self._runner else FELL_BACK


def _read(runner, record, inputs, variants, calls):
    """Read what a call would read which is skipped: the record that has read the same, how many of its feeds and branches the graph was told, its entries if
    it draws seeds, and from where these are drawn; or None, what `apply_record` gives, and None twice. `calls`: the opaque ones, some of which may come in between.
    """
    step, before = runner.step, runner.position()
    seeds, entries = _draw(record, step)
    feeds = selects = k = 0
    values = []
    while k < len(record.fetches):
        node, expected, n_feeds, n_selects = record.fetches[k]
        if not calls.make_before(k):
            runner.go_back(before, record.feeds[:feeds])
            _put_back(record, step, seeds, entries)
            return None, calls.missed(), None, None
        _feed(runner, record.feeds[feeds:n_feeds], entries or record.entries, inputs.external)
        for chosen in record.selects[selects:n_selects]:
            runner._select(chosen)
        feeds, selects = n_feeds, n_selects
        value = runner.receive(node)
        if value is None:
            _put_back(record, step, seeds, entries)
            return None, FELL_BACK, None, None
        k += 1
        values.append(value)
        note_jump(runner, node, expected)
        if not is_expected(expected, value):
            runner.go_back(before, record.feeds[:feeds])
            _put_back(record, step, seeds, entries)
            record = variants.variant_for(runner, inputs, record, values)
            if record is None:
                return None, MISSED, None, None
            seeds, entries = _draw(record, step)  # up to here, the graph is told the same again
            feeds = selects = k = 0  # again, as far as the graph knows it already
            values.clear()
    variants.missing = max(variants.missing - 1, 0)
    return record, (feeds, selects), entries, seeds


def _draw(record, step):
    """(From where seeds are drawn, the record's entries with those that were drawn); (None, None) if it draws none."""
    return (step.seeds(), _drawn(record, step)) if record.draws else (None, None)


def _put_back(record, step, seeds, entries):
    """Take back what `_draw` has drawn."""
    if seeds is not None:
        step.put_back(seeds, [entries[place][2] for place in record.draws[0]])


def advance(runner, record, external, fed=0, selected=0, entries=None):
    """Take the record's nodes as matched, of which some are given tensors out of `external`; the graph knows the first feeds and branches, and seeds
    were drawn if `entries` is given (see `bind_inputs`)."""
    runner.step.counts.fast_forwards += 1
    if runner.observer is not None:
        runner.observer.note_jump(record)
    if record.patches or record.draws:
        entries = bind_inputs(runner, record, external, fed, entries)
    else:
        entries = record.entries
    for selects in record.selects[selected:]:
        runner._select(selects)
    runner.note_jump(record)
    if record.has_other_shapes:
        runner.other_shapes_at = len(runner.log)
    runner.log += entries
    for multi, key in record.latest:
        runner.latest[multi] = key
    runner.node = record.end
    runner.expected = record.end.expected
    runner.by_value += record.by_value
    runner.tapes.skipped(record)
    if record.context:
        call_context().update(record.context)


def bind_inputs(runner, record, external, fed=0, entries=None):
    """The entries of a record with what belongs to this step: feeds (some of them are among the call's tensors `external`), tensor arguments, drawn
    seeds, which are in `entries` if that is given. The graph was fed the first ones."""
    entries = entries or _drawn(record, runner.step)
    _feed(runner, record.feeds[fed:] if fed else record.feeds, entries, external)
    for k, j, what in record.patches:
        node, refs, attrs = entries[k]
        if refs is record.entries[k][1]:
            refs = list(refs)
            entries[k] = (node, refs, attrs)
        refs[j] = runner.fed_by_key[what.key]
    return entries


def _drawn(record, step):
    """A record's entries, with seeds drawn for this step."""
    entries = list(record.entries)
    if record.draws:
        for k in record.draws[0]:
            node, refs, attrs = entries[k]
            if node.category == opschema.RANDOM:
                entries[k] = (node, refs, _drawn_anew(attrs, step))
            else:
                tfi.draw_seed()  # it is of no use, but counted off
    return entries


def _feed(runner, feeds, entries, external):
    for slot, source in feeds:
        if type(source) is Seeds:
            node, _, attrs = entries[source.index]
            runner._feed(slot, seed_tensor(node.op_type, attrs, source.rows))
            continue
        x = external[source.index] if type(source) is ExternalInput else source.tensor
        runner.note_fed(slot.key, x._shape_tuple(), x)
        runner._feed(slot, launched(x) if type(x) is TerraTensor else x)


def _drawn_anew(attrs, step):
    """The attributes of a random operation, with a seed that TensorFlow draws as it would for the operation itself."""
    seeds = dict(zip(attrs[::2], attrs[1::2]))
    if tfi.global_seed() is None:
        seeds["seed"], seeds["seed2"] = step.fresh_seeds() if step is not None else tfi.fresh_seeds()
    else:
        seeds["seed2"] = tfi.draw_seed()
    return tuple(x for pair in seeds.items() for x in pair)
