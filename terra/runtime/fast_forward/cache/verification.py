"""Verification (the option `verify`): each co-executed step is run both ways, and what differs is raised as an error when the step is over.

The user's code must not run twice, so what could go wrong is looked at in two parts:

* a call that would be skipped is made, and compared with what was recorded of it: it must take the same nodes, with inputs from the same places, tell
  tapes the same and give the same result;
* a graph that has run is run again operation by operation, from the variables that it found. Python goes on with these values; the graph must have
  given the same.

Nothing is skipped, nothing runs ahead: it is for finding out, not for training.
"""

import sys

import numpy as np

from terra import errors
from terra.location import location
from terra.runtime.execution import completion
from terra.runtime.execution.graph_runner import has_done
from terra.runtime.execution.slicing import Assign
from terra.runtime.fallback.replay import snapshot
from terra.runtime.fast_forward.cache.recording import Recording
from terra.runtime.fast_forward.cache.conditions import is_expected
from terra.runtime.fast_forward.cache.call_records import StepArgument, WithAttributes, CallContext, CompositeTemplate, Constant, FedValue, ExternalInput, Instance, Named, DynamicNumber, Seeds
from terra.runtime.fast_forward.sources.expectations import ANYTHING, OfKind
from terra.runtime.fast_forward.sources.opaque_calls import Held
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch
from terra.runtime.tapes.backward import TapeRecord
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.value_key import ValueKey
from terra.tf import private_names as tfi
from terra.tf.constants import value_key
from terra.tf.opschema import get_schema

EagerTensor = tfi.EagerTensor
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
_ROUNDING = 100  # times the precision of its type may a value differ, of the tensor's largest: threads do not add in a fixed order
_ROUNDING_REWRITTEN = 10_000  # the same where XLA or grappler has rewritten the arithmetic
_MOST = 3  # differences that the error names


def finish(step):
    """The step is over: raise what differed. Raises: VerificationError."""
    differences, step.differences = step.differences, []
    if differences:
        more = f" (and {len(differences) - _MOST} more)" if len(differences) > _MOST else ""
        raise errors.VerificationError(
            f"verify=True: a co-executed step of {step.function.policy.name} would not have been like eager execution: {'; '.join(differences[:_MOST])}{more}. "
            "This run is right, as all that differed was run eagerly; without verify=True, put what is named into `with terra.imperative():`, or "
            "pass fast_forward=False if it is a skipped call.")


# -- calls that would be skipped -----------------------------------------------------------------------------------------------


def candidates(runner, record, variants, inputs):
    """The records that a jump over a call may take, beginning with `record`: which one it is depends on what the call reads."""
    return [record, *(other for other in variants if record.fetches and other is not record and other.answers_like(record) and other.fits(runner, inputs))]


def make_again(runner, record, variants, inputs, knows_fed, unread, call):
    """Make the `call` that would be jumped over by this record, or one of its variants; returns its result."""
    step, where, fallbacks = runner.step, _place(location.tls.cursor.current), runner.step.fallback_reason
    observer, outer = runner.observer, location.tls.observer
    expected = candidates(runner, record, variants, inputs)
    if observer is not None:
        observer.note_jump(record)
    runner.observer = location.tls.observer = None
    try:
        recording, context = Recording(runner), CallContext()
        result = call()
    finally:
        runner.observer, location.tls.observer = observer, outer
    record = _that_reads_alike(runner, expected)
    if record is None:
        return result  # the jump would have been taken back
    if step.skeleton is not runner:
        if step.fallback_reason != fallbacks and not runner.has_failed:
            step.differences.append(f"a call would have been skipped, but took an unknown path: {step.fallback_reason}")
        return result
    try:
        made = recording.make_record(result, inputs, knows_fed, True, unread)
    except Unskippable:
        step.differences.append(f"a call would have been skipped, but does something now that cannot be skipped ({where})")
    else:
        compare(runner, [record], made, where)
    if not context.without_changes(record.guard.holds) or context.changes != record.context:
        step.differences.append(f"a call would have been skipped, but changes what it reads ({where})")
    return result


def _that_reads_alike(runner, records):
    """The one of these records that has read what a call has read by now; None if there is none."""
    received = runner.received
    for record in records:
        if all(node not in received or is_expected(expected, received[node]) for node, expected, *_ in record.fetches):
            return record
    return None


def compare(runner, expected, made, where=None):
    """Compare what a call did with what was recorded of it, in one of the records `expected`."""
    step, expected = runner.step, _that_reads_alike(runner, expected)
    if expected is None or _misses(runner.program, expected, made) or (expected.opaque and not expected.guard.holds()):  # what was read behind an opaque call is another thing
        return
    step.counts.verified_calls += 1
    difference = _difference(expected, made)
    if difference is not None:
        step.differences.append(f"a call would have been skipped, but {difference} ({where or _place(location.tls.cursor.current)})")


def _misses(program, expected, made):
    """Returns whether an opaque call gave something else than was recorded: the jump would have been taken back. (Of a number or text that is another one each time, not all records ask the same.)"""
    if any(call.key in program.unsteady and call.expected is not ANYTHING and type(call.expected) is not OfKind for call in expected.opaque):
        return True
    return any(a.is_blind is not b.is_blind or (a.expected is not b.expected and a.expected != b.expected) for a, b in zip(expected.opaque, made.opaque))


def note_impure(runner, expected, reason):
    """A call of the user's that would be skipped by one of the records `expected` does, for this reason, more than compute."""
    if _that_reads_alike(runner, expected) is not None:
        runner.step.differences.append(f"a call would have been skipped, but it {reason}")


def _place(where):
    return where.line() or "in the step's own function"


def _difference(expected, made):
    """Says in words how two records differ; None if they do not."""
    for (node, refs, attrs), (other, other_refs, other_attrs) in zip(expected.entries, made.entries):
        if node is not other:
            return f"issues {other.op_type} where {node.op_type} was recorded"
        if not _same(refs, other_refs) or (attrs is None) is not (other_attrs is None):
            return f"gives {node.op_type} other inputs than were recorded"
    if len(expected.entries) != len(made.entries):
        return f"issues {len(made.entries)} operations where {len(expected.entries)} were recorded"
    if expected.end is not made.end or expected.selects != made.selects:
        return "takes another branch than was recorded"
    if not _same(expected.feeds, made.feeds) or not _same(expected.patches, made.patches) or expected.repeated != made.repeated or expected.late_feeds != made.late_feeds or expected.numbers != made.numbers or expected.calls != made.calls:
        return "feeds other values than were recorded"
    if not _same(expected.result, made.result):
        return "gives another result than was recorded"
    if len(expected.effects) != len(made.effects) or not all(a.is_like(b, _same) for a, b in zip(expected.effects, made.effects)):
        return "sets attributes to something else than was recorded"
    if len(expected.opaque) != len(made.opaque) or not all(a.is_like(b, _same) for a, b in zip(expected.opaque, made.opaque)):
        return "makes other calls of unknown code than were recorded"
    if not _same(expected.masks, made.masks):
        return "leaves other masks than were recorded"
    if not _same(_told(expected), _told(made)):
        return "tells the gradient tape something else than was recorded"
    return None


def _told(record):
    """Returns what tapes are told of a record, without seeds: they are others each time, and no gradient depends on them.

    (An attribute may be told twice, which depends on how TensorFlow came to the operation.)
    """
    records = [(r[0], r[1], r[3], {} if get_schema(r[0]).draws else dict(zip(r[2][::2], r[2][1::2]))) if type(r) is tuple else r for r in record.records]
    return records, record.functions, record.accessed


def _same(a, b):
    """Returns whether two parts of records stand for the same."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is list or kind is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if kind is dict:
        return a.keys() == b.keys() and all(_same(x, b[name]) for name, x in a.items())
    if kind is ValueKey:
        return False
    if kind is Held:
        return a.is_like(b)
    if tfi.is_variable(a):
        return a.handle is b.handle  # each assignment gives an object of its own
    if kind is EagerTensor:
        enum = a._datatype_enum()
        return enum == b._datatype_enum() and enum not in (RESOURCE_ENUM, tfi.types_pb2.DT_VARIANT) and value_key(a) == value_key(b)
    if kind is Constant:
        return _same(a.tensor, b.tensor)
    if kind is DeferredFetch:
        return a == b
    if kind is ExternalInput or kind is StepArgument:
        return a.index == b.index
    if kind is DynamicNumber:
        return a.index == b.index
    if kind is Seeds:
        return a.index == b.index and a.rows == b.rows
    if kind is FedValue:
        return a.key is b.key
    if kind is Assign:
        return a.variable is b.variable and a.spec == b.spec
    if kind is WithAttributes:
        return _same(a.value, b.value) and _same(a.attributes, b.attributes)
    if kind is Instance:
        return a.kind is b.kind and a.names == b.names and _same(a.attributes, b.attributes)
    if kind is Named or kind is CompositeTemplate:
        return a.kind is b.kind and _same(a.parts, b.parts)
    if kind is TapeRecord:
        return a.signature == b.signature
    return bool(a == b)


# -- graphs that have run ------------------------------------------------------------------------------------------------------


def found(runner):
    """The variables that the nodes matched so far update, as the graph finds them: [(handle, value)]; where they are updated, in the same order;
    tensors that were read meanwhile."""
    handles, places = {}, {}
    for node, refs, _ in runner.log:
        if node.updates:
            for x in refs:
                if type(x) is EagerTensor and x._datatype_enum() == RESOURCE_ENUM and id(x) not in runner.step.new_handles:
                    handles[id(x)] = x
                    places.setdefault(id(x), node.location)
    before = [(h, value) for h, value in runner.before if id(h) in handles] if not runner.late else []  # the graph runs already
    for h, _ in before:
        del handles[id(h)]
    before += snapshot(handles.values())
    return before, [places[id(h)] for h, _ in before], [t for t in runner.issued if t._value is not None]


def run_again(step, flight, before):
    """Run what a graph has just run again imperatively, and compare. `before`: what it has `found`."""
    if not has_done(flight.outputs):
        return  # it is replayed where Python waits
    record = flight.record
    record.before, places, fetched = before
    given = [(t, t._hidden) for t in record.survivors] + [(t, t._value) for t in fetched]
    after = snapshot([h for h, _ in record.before])
    values = record.replay()
    step.counts.verified_graphs += 1
    for t, value in given:
        _note(step, f"{t._key.node.payload.event.info.op_type} gives", t._key.node.payload.event.location, value, values[t._key])
    for (handle, value), (_, expected), where in zip(after, snapshot([h for h, _ in after]), places):
        _note(step, "a variable becomes", where, value, expected)


def _note(step, what, where, value, expected):
    """Note if two tensors differ by more than rounding."""
    dtype = tfi.dtypes.as_dtype(expected._datatype_enum())
    if dtype in (tfi.dtypes.resource, tfi.dtypes.variant):
        return
    value, expected = value.numpy(), expected.numpy()
    options = step.function.options
    rounding = _ROUNDING_REWRITTEN if options.jit_compile or options.optimize else _ROUNDING
    if np.shape(value) != np.shape(expected) or not _is_close(np.asarray(value), np.asarray(expected), dtype, rounding):
        step.differences.append(f"{what} {_short(value)} in the graph, {_short(expected)} eagerly ({_place(where)})")


def _is_close(value, expected, dtype, rounding):
    if not dtype.is_floating and not dtype.is_complex:
        return bool((value == expected).all())
    if value.tobytes() == expected.tobytes():
        return True
    if expected.dtype.kind == "V":  # bfloat16 and the like, which NumPy itself does not know
        value, expected, precision = value.astype(np.float32), expected.astype(np.float32), 2.0 ** -7
    else:
        precision = float(np.finfo(expected.dtype).eps)
    largest = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0))
    return np.allclose(value, expected, rtol=0, atol=rounding * precision * largest, equal_nan=True)


def _short(value):
    return np.array2string(np.asarray(value), threshold=6, edgeitems=2).replace("\n", "")


completion.verifier = sys.modules[__name__]
