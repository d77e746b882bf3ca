"""Jumps over regions: their nodes count as matched, the graph is told what it must be told, and the call's result is made. See `terra.runtime.fast_forward.cache.call_records`."""

from terra.frameworks.keras import call_context
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.sources.array_calculations import calculate_late
from terra.runtime.fast_forward.sources import opaque_calls
from terra.runtime.fast_forward.sources.opaque_calls import Held, Result
from terra.runtime.fast_forward.sources.deferred_fetches import Late, LateCalculation, Received
from terra.runtime.fast_forward.sources.value_sources import Drawn
from terra.runtime.tensors.draws import seed_tensor
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.runtime.fast_forward.cache.call_records import (
    FELL_BACK, MISSED, RESULT, Argument, Attached, Composite, Constant, Fed, Foreign, Instance, Named, Number, Seeds, is_expected,
)
from terra.runtime.execution.placeholders import launched
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tensors.value_key import ValueKey


def _rebuild(template, runner, region, inputs):
    """The result of a skipped call."""
    kind = type(template)
    if kind is ValueKey:
        known = inputs.values.get(template)
        return known if known is not None else runner.placeholder(template, region.shapes)
    if kind is list or kind is tuple:
        return kind([_rebuild(x, runner, region, inputs) for x in template])
    if kind is dict:
        return {k: _rebuild(x, runner, region, inputs) for k, x in template.items()}
    if kind is Foreign:
        return inputs.foreign[template.index]
    if kind is Composite:
        return tfi.composite(template.kind, [_rebuild(x, runner, region, inputs) for x in template.parts])
    if kind is Constant:
        tensor = template.tensor
        return tensor if not vars(tensor) else tensor._copy_to_device(tensor.device)  # what the program has attached to it was for another step
    if kind is Late:
        value = template.how(runner.received[template.node])
        if template.key is not None:
            runner.note_late(value, template.key, template.how)
        return value
    if kind is LateCalculation:
        return calculate_late(template, inputs.drawn, inputs.arrays, inputs.numbers.__getitem__, lambda part: part.how(runner.received[part.node]))
    if kind is Drawn:
        return inputs.drawn[template.place]
    if kind is Received:
        tensor = runner.placeholder(template.key, region.shapes)
        if tensor._value is None:
            tensor._value = runner.received[template.node]
        return tensor
    if kind is Attached:
        tensor = _rebuild(template.value, runner, region, inputs)
        vars(tensor).update({name: _rebuild(x, runner, region, inputs) for name, x in template.attributes.items()})
        return tensor
    if kind is Named:
        parts = [_rebuild(x, runner, region, inputs) for x in template.parts]
        return template.kind(parts) if template.kind is tfi.ListWrapper else template.kind(*parts)
    if kind is Instance:
        return template.filled(_rebuild(template.attributes, runner, region, inputs))
    if kind is Argument or kind is Fed:
        return region.find(runner, template)
    if kind is Number:
        return inputs.numbers[template.place]
    if kind is Held:
        return template.value
    if kind is Result:
        return inputs.opaque[template.index]
    return template


def jump(runner, region, inputs, alternatives):
    """Take the nodes of the region as matched, or of the one among the `alternatives` that reads what there is to read; returns the call's result.

    FELL_BACK: the step has fallen back, to where the call begins. MISSED: the call reads something new, or an opaque call gave something else, and nothing was matched.
    """
    sent, entries, seeds, had, take_back = (0, 0), None, None, 0, None
    before, observer = runner.place() if region.fetches else None, runner.observer
    made = [] if observer is not None else None
    states = [effect.state() for effect in region.effects] if observer is not None else ()
    if region.opaque:
        inputs.opaque = []
        found = _make_opaque(runner, region, inputs, 0, region.n_early, 0, made)
        if found is None:
            return MISSED if runner.step.skeleton is runner else FELL_BACK
        had, take_back = found
    if region.fetches:
        known = region
        region, sent, entries, seeds = _read(runner, region, inputs, alternatives)
        if region is None:
            if take_back is not None:
                take_back()
            return sent
        if region is not known and observer is not None:
            states = [effect.state() for effect in region.effects]
    if region.n_early < len(region.opaque):
        found = _make_opaque(runner, region, inputs, region.n_early, None, had, made)
        if found is None:
            if take_back is not None:
                take_back()
            runner.go_back(before, region.feeds[:sent[0]])
            _put_back(region, runner.step, seeds, entries)
            return MISSED if runner.step.skeleton is runner else FELL_BACK
        had = found[0]
    advance(runner, region, inputs.foreign, *sent, entries)
    for k, mask in region.masks:
        inputs.masks[k][0]._keras_mask = _rebuild(mask, runner, region, inputs)
    for held, _, losses in region.losses:
        added_losses.leave(held, [_rebuild(x, runner, region, inputs) for x in losses])
    runner.note_formatted(region.formatted)
    result = _rebuild(region.result, runner, region, inputs)
    left = [result if effect.template is RESULT else _rebuild(effect.template, runner, region, inputs) for effect in region.effects]
    for effect, value in zip(region.effects[had:], left[had:]):  # (numbers were calculated of those that were there before)
        effect.have(value)
    if region.opaque:
        opaque_calls.made_for_good(region.opaque)
    if observer is not None and (region.effects or made):
        observer.take_over_effects(region, made, left, states)
    return result


def _make_opaque(runner, region, inputs, first, end, had, made):
    """Make opaque calls of a region, where so many of its effects were had: see `opaque_calls.make_all`; None if the region does not hold. `made`: a list that is told of them."""
    found = opaque_calls.make_all(
        region.opaque[first:end], region.effects, lambda template, _: _rebuild(template, runner, region, inputs), inputs.opaque, None if made is None else lambda *call: made.append(call),
        first, had, lambda: runner.step.skeleton is runner and region.guard.holds() and inputs.numbers_hold())
    if found is None:
        note_unsteady(runner.program, region)
    return found


def note_unsteady(program, region):
    """An opaque call of a region gave something else than it did: if that is a number or a text, another one is to be expected each time."""
    pending = opaque_calls.outcomes.pending
    call, outcome = region.opaque[len(pending) - 1], pending[-1]
    if outcome.error is None and type(outcome.value) in (float, str, bytes, int):
        program.unsteady.add(call.key)


def _read(runner, region, inputs, alternatives):
    """Read what a call would read which is skipped: the region that has read the same, how many of its feeds and branches the graph was told, its entries if
    it draws seeds, and from where these are drawn; or None, what `jump` gives, and None twice.
    """
    step, before = runner.step, runner.place()
    seeds, entries = _draw(region, step)
    feeds = selects = k = 0
    values = []
    while k < len(region.fetches):
        node, expected, n_feeds, n_selects = region.fetches[k]
        _feed(runner, region.feeds[feeds:n_feeds], entries or region.entries, inputs.foreign)
        for chosen in region.selects[selects:n_selects]:
            runner._select(chosen)
        feeds, selects = n_feeds, n_selects
        value = runner.receive(node)
        if value is None:
            _put_back(region, step, seeds, entries)
            return None, FELL_BACK, None, None
        k += 1
        values.append(value)
        if not is_expected(expected, value):
            runner.go_back(before, region.feeds[:feeds])
            _put_back(region, step, seeds, entries)
            region = alternatives.that_reads(runner, inputs, region, values)
            if region is None:
                return None, MISSED, None, None
            seeds, entries = _draw(region, step)  # up to here, the graph is told the same again
            feeds = selects = k = 0  # again, as far as the graph knows it already
            values.clear()
    alternatives.missing = max(alternatives.missing - 1, 0)
    return region, (feeds, selects), entries, seeds


def _draw(region, step):
    """(From where seeds are drawn, the region's entries with those that were drawn); (None, None) if it draws none."""
    return (step.seeds(), _drawn(region, step)) if region.draws else (None, None)


def _put_back(region, step, seeds, entries):
    """Take back what `_draw` has drawn."""
    if seeds is not None:
        step.put_back(seeds, [entries[place][2] for place in region.draws[0]])


def advance(runner, region, foreign, fed=0, selected=0, entries=None):
    """Take the region's nodes as matched, of which some are given tensors out of `foreign`; the graph knows the first feeds and branches, and seeds were drawn if `entries`
    is given (see `this_steps`)."""
    runner.step.counts.fast_forwards += 1
    if runner.observer is not None:
        runner.observer.note_jump(region)
    if region.patches or region.draws:
        entries = this_steps(runner, region, foreign, fed, entries)
    else:
        entries = region.entries
    for selects in region.selects[selected:]:
        runner._select(selects)
    runner.note_jump(region)
    if region.has_other_shapes:
        runner.other_shapes_at = len(runner.log)
    runner.log += entries
    for multi, key in region.latest:
        runner.latest[multi] = key
    runner.node = region.end
    runner.expected = region.end.expected
    runner.by_value += region.by_value
    runner.tapes.skipped(region)
    if region.context:
        call_context().update(region.context)


def this_steps(runner, region, foreign, fed=0, entries=None):
    """The entries of a region with what belongs to this step: feeds (some of them are among the call's tensors `foreign`), tensor arguments, drawn seeds, which are in
    `entries` if that is given. The graph was fed the first ones."""
    entries = entries or _drawn(region, runner.step)
    _feed(runner, region.feeds[fed:] if fed else region.feeds, entries, foreign)
    for k, j, what in region.patches:
        node, refs, attrs = entries[k]
        if refs is region.entries[k][1]:
            refs = list(refs)
            entries[k] = (node, refs, attrs)
        refs[j] = runner.fed_by_key[what.key]
    return entries


def _drawn(region, step):
    """A region's entries, with seeds drawn for this step."""
    entries = list(region.entries)
    if region.draws:
        for k in region.draws[0]:
            node, refs, attrs = entries[k]
            if node.category == opschema.RANDOM:
                entries[k] = (node, refs, _drawn_anew(attrs, step))
            else:
                tfi.draw_seed()  # it is of no use, but counted off
    return entries


def _feed(runner, feeds, entries, foreign):
    for slot, source in feeds:
        if type(source) is Seeds:
            node, _, attrs = entries[source.place]
            runner._feed(slot, seed_tensor(node.op_type, attrs, source.rows))
            continue
        x = foreign[source.index] if type(source) is Foreign else source.tensor
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
