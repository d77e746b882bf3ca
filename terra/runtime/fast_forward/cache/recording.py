"""Recording: a call of framework code that is made is noted as a record, so that the same call can be jumped over (see `call_records`)."""

import collections

import numpy as np

from terra.graph.trace import ARG, CONST, FEED, FETCH, RESOURCE
from terra.runtime.fast_forward.cache import opaque_records
from terra.runtime.fast_forward.sources.opaque_calls import Held, Result
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation, DeferredFetches, FetchedTensor
from terra.runtime.tapes.backward import TapeRecord
from terra.runtime.tensors.comparing import SCALARS, Unskippable, mask_of
from terra.runtime.tensors.draws import rows_of
from terra.runtime.tensors.object_kinds import is_output, is_record
from terra.runtime.tensors.open_shapes import LazyShape
from terra.tf.private import composites
from terra.tf import opschema, private_names as tfi
from terra.tf.constants import MOST_SETTINGS, STRING_ENUM, const_key, is_small_constant, known_to_host
from terra.tf.random_state import leads_here, random_state
from terra.runtime.fast_forward.cache.conditions import condition_of_read
from terra.runtime.fast_forward.cache.call_records import (
    RESOURCE_ENUM, RESULT, StepArgument, WithAttributes, CompositeTemplate, Constant, FedValue, ExternalInput, Instance, Named, DynamicNumber, CallRecord, Seeds)
from terra.runtime.execution.slicing import Assign
from terra.runtime.fast_forward.sources.late_values import NO_DYNAMIC_VALUES
from terra.runtime.tensors.tensor import TerraTensor, is_unread
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real

EagerTensor = tfi.EagerTensor
_ATTACHED = frozenset(["_is_zeros_tensor", "_keras_logits", "_keras_mask", "_unconditional_loss"])  # what `tf.zeros`, activations and layers of Keras attach to their results


class Recording:
    """Notes where the runner is before a call; `make_record()` makes the record after it."""

    def __init__(self, runner):
        self.runner = runner
        self.start = runner.node
        self.by_value = len(runner.by_value)
        self.log_length = len(runner.log)
        self.n_chosen = len(runner.chosen)
        self.issued_length = len(runner.issued)
        self.events = runner.outside_events
        self.fetches = runner.step.counts.fetches
        self.read_twice = len(runner.read_twice)
        self.fed = set(runner.fed)
        self.feeds = runner.step.counts.feeds
        self.drawn = len(runner.step.drawn_seeds)
        self.random, self.n_draws = random_state(), len(runner.step.draws)
        self.lazy = runner.tapes.recording
        self.pending_length = len(self.lazy.pending) if self.lazy is not None else 0
        self.tape_state = runner.tapes.state(), runner.tapes.state(True)
        self.accessed_length = len(runner.tapes.accessed)
        self.is_known = None  # tells of an object that the call gives whether the signature, or the guard, knows it by identity

    @property
    def tells_tapes(self):
        """Whether a tape was told of functions of the program's."""
        return self.runner.tapes.state() != self.tape_state[False]

    def knows_draws(self):
        """Whether nothing has drawn random numbers in Python since, but calls that are recorded."""
        return leads_here(self.random, self.runner.step.draws[self.n_draws:])

    def make_record(self, result, inputs, knows_fed, may_be_empty=False, unread=(), deferred=None, added=(), effects=(), passed_on=(), differentiates=False, opaque=None, numbers=None):
        """The record of the call, which had these `Inputs` and gave `result`; `knows_fed`: whether its signature tells all that was fed before; `may_be_empty`: whether it is skipped even
        if it issued no operation; `unread`: tensors that nothing but operations of the graph has looked at; `deferred`: what was read and not looked at, see `DeferredFetches`, if that
        was not by the framework; `added`: lists of losses, see `added_losses.Before`; `effects`: of attributes that it has set; `passed_on`: ids of tensors that nothing has looked at at
        all; `differentiates`: whether the tapes may have been told of functions of the program's, so that a jump could not tell them; `opaque`: the opaque calls, see `purity.opaque`;
        `numbers`: those that these give, see `dynamic_values.OpaqueNumbers`. Raises Unskippable.
        """
        runner, lazy = self.runner, self.lazy
        if runner.step.skeleton is not runner:
            raise Unskippable("left the known paths")
        if runner.outside_events != self.events:
            raise Unskippable("runs some operations imperatively")
        if runner.node is self.start and not may_be_empty:
            raise Unskippable("issues no operation")
        if runner.tapes.state(differentiates) != self.tape_state[differentiates]:
            raise Unskippable("begins or ends a tape")
        if not self.knows_draws():
            raise Unskippable("draws random numbers in Python")
        self.opaque, self.left = opaque, () if opaque is None else opaque.instances.left
        self.inputs, self.knows_fed, self.deferred = inputs, knows_fed, deferred or DeferredFetches(numbers or NO_DYNAMIC_VALUES, runner.deferred_fetches, runner.deferred_fetches)
        self.places = {id(x): k for k, x in enumerate(inputs.external)}
        self.unused = set(self.places.values())
        self.used_arguments = set()
        self.made = set()
        self.arrays = set()  # ids of those that it gives
        self.record = record = CallRecord()
        record.patches, record.feeds, record.checks = [], [], []
        record.by_value = runner.by_value[self.by_value:]
        record.has_other_shapes = runner.other_shapes_at >= self.log_length
        if self.deferred.last is not None and self.deferred.last[0] is not result:
            self.deferred.last = None
        fetched = self._fetches()
        record.formatted = [key for x, key, *_ in self.deferred.held.values() if type(x) is str and key in self.read]
        self.formats = bool(record.formatted)
        record.entries = []
        node, n_selects = self.start, 0
        for k, entry in enumerate(runner.log[self.log_length:]):
            before, node = node, entry[0]
            if fetched:
                n_selects += any(selects for successor, selects in before.successors if successor is node)
                if node.category == opschema.FETCH:
                    record.fetches.append((node, fetched[node], len(record.feeds), n_selects))
            record.entries.append(self._entry(k, *entry))
        if len(record.feeds) != runner.step.counts.feeds - self.feeds:
            raise Unskippable("feeds something that it was not given")
        record.draws = self._draws(record)
        record.selects = runner.chosen[self.n_chosen:]
        record.end = runner.node
        record.latest = [(multi, key) for node, _, _ in record.entries for multi, key in node.assigns_multi]
        record.needs = self._needs()
        record.shapes = {t._key: (t.dtype, t._enum, t._shp) for t in runner.issued[self.issued_length:]}
        record.shapes.update(runner.jumped_shapes(self.log_length))
        record.result = self._given(result)
        record.effects = [e.described(self._left(e, result)) for e in effects]
        if opaque is not None and opaque.calls:
            opaque_records.note(record, opaque.calls, self._template, numbers, self.log_length)
        record.losses = [(held, needed, [self._template(x) for x in held]) for held, needed in added]
        record.masks = [(k, self._template(mask_of(x))) for k, (x, mask) in enumerate(inputs.masks) if mask_of(x) is not mask]
        record.functions = []
        record.records = self._records(lazy) if lazy is not None else []
        record.accessed = runner.tapes.accessed[self.accessed_length:]
        for k, x in enumerate(inputs.external):
            read = x._datatype_enum() in opschema.HOST_KNOWN_ENUMS and not any(x is other for other in unread) and not (x._num_elements() > MOST_SETTINGS and runner.step.is_data(x))
            if (k in self.unused or read) and not is_unread(x) and id(x) not in passed_on:  # Python may have looked at it
                self._check(ExternalInput, k, x, True)
        opaque_records.refuse_late_checks(record)
        for index in self.used_arguments - inputs.indices:
            self._check(StepArgument, index, runner.step.arg_list[index], False)
        return record

    def _needs(self):
        """(slot with several sources, value that it takes) where the value was there before the call."""
        runner, needs, own = self.runner, {}, set()
        for node, refs, _ in runner.log[self.log_length:]:
            for x, slot in zip(refs, node.slots):
                if slot.multi is not None and slot.multi not in own:
                    needs[slot.multi] = x if type(x) is ValueKey else runner.fed[id(x)][0]
            own.update([multi for multi, _ in node.assigns_multi])
        return tuple(needs.items())

    def _fetches(self):
        """{node: what identifies its value, or bounds of it; None if that does not matter} of what was read: only values that the call itself has computed."""
        runner = self.runner
        self.read = {entry[1][0]: entry[0] for entry in runner.log[self.log_length:] if entry[0].category == opschema.FETCH}
        if len(self.read) != runner.step.counts.fetches - self.fetches or not self.read.keys() >= set(runner.read_twice[self.read_twice:]):
            raise Unskippable("reads values that it has not computed itself")
        fetches = {}
        again = collections.Counter(runner.read_twice[self.read_twice:])
        for key, node in self.read.items():
            identity = self.deferred.bounds.get(key)
            if node.op_type == FETCH and self.deferred.times(key) != again[key] + 1:
                identity = condition_of_read(runner, node, key, self.deferred.times(key), self.log_length)
            fetches[node] = identity
        return fetches

    def _entry(self, k, node, refs, own_attrs):
        """An entry of the log, without what belongs to this step."""
        record = self.record
        kept = list(refs)
        for j, (x, slot) in enumerate(zip(refs, node.slots)):
            kind = slot.kind
            if type(x) is ValueKey:
                if not (self.knows_fed or x in self.made or x in self.inputs.values):
                    raise Unskippable("uses a value of the step that it was not given")
                continue
            if kind is RESOURCE:
                continue
            if kind is ARG:
                kept[j] = slot.arg
                self.used_arguments.add(slot.arg)
                x = self.runner.step.arg_list[slot.arg]
                if slot.needs_value and is_small_constant(x._datatype_enum(), x._shape_tuple()):
                    self._check(StepArgument, slot.arg, x, True)
                continue
            if self.formats and type(x) is EagerTensor and x._datatype_enum() == STRING_ENUM:
                raise Unskippable("has made a text of a tensor's value, and uses texts")
            if kind is CONST:
                kept[j] = slot.const_obj
                place = self.places.get(id(x))
                if place is not None:
                    self._check(ExternalInput, place, x, True)
                continue
            if x._datatype_enum() == RESOURCE_ENUM:
                raise Unskippable("uses a variable that the step itself created")
            if slot.needs_value and is_small_constant(x._datatype_enum(), x._shape_tuple()):
                if id(x) in self.places:
                    self._check(ExternalInput, self.places[id(x)], x, True)
                elif id(x) in self.fed and (
                        not (self.knows_fed or self.runner.fed[id(x)][0] in self.inputs.fed) or known_to_host(self.runner, x) is None):
                    raise Unskippable  # else it is a `Constant`, the same tensor each time, or part of the signature
            if kind is FEED:
                record.feeds.append((slot, self._source(x)))
            kept[j] = None
            record.patches.append((k, j, self._fed_key(x)))
        if node.category == opschema.RANDOM:
            shuffled = rows_of(self.runner.placeholder(node.outs[0][2], {})) if node.op_type == opschema.SHUFFLE else None
            record.feeds.append((node.slots[-1], Seeds(k, shuffled)))
        self.made.update([key for _, _, key in node.outs])
        return node, kept, own_attrs

    def _source(self, x):
        """Where a tensor that the record feeds comes from."""
        place = self.places.get(id(x))
        if place is not None:
            self.unused.discard(place)
            return ExternalInput(place)
        if type(x) is not EagerTensor or self.runner.step.is_data(x) or id(x) in self.runner.step.args:
            raise Unskippable("feeds something that it was not given")
        self.record.checks.append((EagerTensor, x, None))
        return Constant(x)

    def _fed_key(self, x):
        key = self.runner.fed[id(x)][0]
        place = self.places.get(id(x))
        if place is not None:
            self.unused.discard(place)
        elif id(x) in self.fed and key not in self.inputs.fed and not self.knows_fed:
            raise Unskippable
        return FedValue(key)

    def _check(self, kind, index, x, by_value):
        """Note that another call fits only if its tensor is like `x`."""
        enum, shape = x._datatype_enum(), x._shape_tuple()
        if by_value and is_small_constant(enum, shape):
            self.record.checks.append((kind, index, const_key(real(x), enum, shape)))
            if kind is ExternalInput:
                self.unused.discard(index)
        elif kind is StepArgument:
            self.record.checks.append((kind, index, (enum, shape)))

    def _draws(self, record):
        """(places in `entries` of the operations whose seeds are drawn, the global seed); None if there are none."""
        drawn = tfi.global_seed() is not None  # TensorFlow draws seeds for what has no use for them, too
        places = [k for k, (node, _, _) in enumerate(record.entries) if node.category == opschema.RANDOM or (drawn and node.op_type in opschema.UNUSED_SEEDS)]
        if len(places) != len(self.runner.step.drawn_seeds) - self.drawn:
            raise Unskippable("draws seeds for some of its random numbers only")
        return (places, tfi.global_seed()) if places else None

    def _records(self, lazy):
        """Returns what the tape was told, without what belongs to this step."""
        records = []
        for item in lazy.pending[self.pending_length:]:
            if type(item) is tuple:
                op, ins, attrs, outs = item
                if not any(type(t) is TerraTensor for t in outs):
                    # Small integers that the host computed: no gradient goes through them. Only shapes of what was watched count, for the order of sums.
                    if op in opschema.SHAPE_OPS and all(type(x) is TerraTensor and x._owner is self.runner for x in ins):
                        records.append((op, [x._key for x in ins], attrs, outs))
                    continue
                if not all(type(t) is TerraTensor for t in outs):
                    raise Unskippable
                item = (op, [self._name(x) for x in ins], attrs, [t._key for t in outs])
            elif type(item) is TapeRecord:
                self.record.functions.append(item.signature)
                item = item.mapped(self._held, lambda t: t._key)
            else:
                self.record.functions += item.functions
            records.append(item)
        return records

    def _held(self, x):
        """`_name` of a tensor that a backward function holds: it may be no operation's input."""
        name = self._name(x)
        if type(name) is ValueKey and not (self.knows_fed or name in self.record.shapes or name in self.inputs.values):
            raise Unskippable
        place = self.places.get(id(x)) if name is x else None
        if place is not None:
            self._check(ExternalInput, place, x, True)
        return name

    def _name(self, x):
        """How a tensor that is in the record's hands is found again in another step."""
        if type(x) is TerraTensor and x._owner is self.runner:
            return x._key
        argument = self.runner.step.args.get(id(x))
        if argument is not None:
            self.used_arguments.add(argument[0])
            return StepArgument(argument[0])
        if id(x) in self.runner.fed:
            return self._fed_key(x)
        if type(x) is not EagerTensor or self.runner.step.is_data(x):
            if id(x) not in self.places:
                raise Unskippable
            self._check(ExternalInput, self.places[id(x)], x, True)
            if self.places[id(x)] in self.unused:
                raise Unskippable
            return real(x)
        return x  # a constant: what the nodes, the signature or the guard compared

    def _template(self, value):
        kind = type(value)
        if kind is Result:
            return value
        if kind is Held:
            if type(value.value) is str and self.formats:
                raise Unskippable("has made a text of a tensor's value, and gives unknown code one")
            return value
        number = self.opaque.number_of(value) if self.opaque is not None else None
        if number is not None:
            return Result(number)
        deferred = self._deferred_part(value)
        if deferred is not None:
            if kind is np.ndarray and (id(value) in self.arrays or (type(deferred) is DeferredCalculation and value.base is not None)):
                raise Unskippable("gives an array twice that it has read, or a part of one")
            self.arrays.add(id(value))
            return deferred
        if self.deferred.number(value) is not None:
            return DynamicNumber(self.deferred.number(value))
        if kind is np.ndarray and self.deferred.drawn(value) is not None:
            return self.deferred.drawn(value)
        if kind is TerraTensor or kind is EagerTensor:
            attached = getattr(value, "__dict__", None)
            if attached and attached.get("_handle_data", self) is None:
                attached.pop("_handle_data")  # what every tensor has
            if attached:
                if not all(name in _ATTACHED or type(x) is Assign for name, x in attached.items()):
                    raise Unskippable("gives a slice of a variable")
                return WithAttributes(self._tensor(kind, value), {name: self._template(x) for name, x in attached.items()})
            return self._tensor(kind, value)
        if kind in SCALARS:
            if kind is str and self.formats:
                raise Unskippable("has made a text of a tensor's value, and gives one")
            return value
        if kind is list or kind is tuple:
            return kind(map(self._template, value))
        if kind is dict:
            return {k: self._template(x) for k, x in value.items()}
        if composites.is_composite(kind) and not composites.is_packed(value):
            return CompositeTemplate(kind, [self._template(x) for x in composites.composite_parts(value)])
        if kind is tfi.tensor_shape.TensorShape and type(value._dims) is LazyShape:
            raise Unskippable("gives a shape that depends on data")
        if kind is tfi.tensor_shape.TensorShape or tfi.is_variable(value) or kind is Assign:
            return value
        if is_record(kind) or id(value) in self.left:
            return Instance(kind, self._template(vars(value)))
        if is_output(value):
            return Instance(kind, self._template(vars(value)), tuple(collections.OrderedDict.keys(value)))
        if kind is tfi.ListWrapper:
            return Named(kind, [self._template(x) for x in value])
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return Named(kind, [self._template(x) for x in value])
        if (self.is_known is not None and self.is_known(value)) or (self.opaque is not None and id(value) in self.opaque.instances.constants):
            return Held(value)
        raise Unskippable(f"gives an object of type {kind.__name__}")

    def _deferred_part(self, x):
        """Describes a number or an array that was read, or calculated of such, and not looked at; None if it is none."""
        held, calculated = self.deferred.held.get(id(x)), self.deferred.calculated.get(id(x))
        if held is not None and held[1] not in self.read:
            return None  # the framework has read it before the call
        return None if held is None and calculated is None else self._deferred_entry(held, calculated)

    def _deferred_entry(self, held, calculated):
        if held is not None:
            value, key, how, _ = held
            return DeferredFetch(self.read[key], how, key if id(value) in self.deferred.of_framework else None)
        _, calculation, place, _ = calculated
        self.record.takes_arrays |= calculation.takes_arrays
        return DeferredCalculation(calculation.with_parts(self._deferred_part), place)

    def _given(self, result):
        """Describes the call's result: integers and truth values that it has read in the end are known by their places."""
        read = {} if self.deferred.last is None else {place: self._deferred_entry(*known) for place, known in self.deferred.last[1].items()}
        if not read:
            return self._template(result)
        if type(result) is tuple:
            return tuple([read[k] if k in read else self._template(x) for k, x in enumerate(result)])
        return {k: read[k] if k in read else self._template(x) for k, x in result.items()} if type(result) is dict else read[None]

    def _left(self, effect, result):
        """Describes what an effect leaves; None if it adds something."""
        if effect.added is not None:
            return None
        if effect.value() is result and (type(result) in (list, dict) or is_record(type(result)) or id(result) in self.left):
            return RESULT
        return self._template(effect.given(lambda it: self.opaque is not None and self.opaque.number_of(it) is not None))

    def _tensor(self, kind, value):
        if kind is TerraTensor and value._owner is self.runner:
            key = value._key
            if key not in self.record.shapes and key not in self.inputs.values:
                raise Unskippable
            node = self.read.get(key)
            if node is None:
                return key
            if node.op_type != FETCH:
                raise Unskippable
            return FetchedTensor(key, node)
        place = self.places.get(id(value))
        if place is not None:
            return ExternalInput(place)
        name = self._name(value)
        return Constant(value) if name is value else name
