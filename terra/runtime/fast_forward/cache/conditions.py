"""Conditions: what the values that a call reads must be, for its record to hold."""

from typing import Any, NamedTuple

from terra.runtime.generation.speculated_branches import Within
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import opschema
from terra.tf import private_names as tfi
from terra.tf.constants import const_key, is_small_constant, value_key


class HasShape(NamedTuple):
    """A value, no scalar, that was read for its shape: only that matters."""

    sizes: tuple


def condition_of_read(runner: Any, node: Any, key: Any, n_deferred: int, start: int) -> tuple:
    """Returns what identifies the value, of this key, that was read at `node` and looked at. Raises Unskippable if it will hardly be the same again. `n_deferred`: how many reads of it do not matter.
    `start`: where in the log the call begins. A value that comes from elsewhere may be read again behind the call, where a replay has not read it for Python.

    The runner counts all reads of each value that Python has made, and those for its shape. Where a record was replayed in place of that, it says which that record had compared.
    """
    value, in_jump = runner.received[node], runner.jumped_reads.get(node)
    enum, shape = value._datatype_enum(), value._shape_tuple()
    n_of_shape = runner.shape_reads.get(key, 0)
    if shape and in_jump is not False and (in_jump or n_of_shape) and n_of_shape + n_deferred == runner.reads.get(key, 0) \
            and any(key is out for issued, *_ in runner.log[start:] for _, _, out in issued.outs):  # (of a scalar, the graph with conditions looks at the value)
        return HasShape(shape)
    if not (enum == tfi.types_pb2.DT_BOOL and is_small_constant(enum, shape)) and not (enum in opschema.HOST_KNOWN_ENUMS and shape == ()):
        raise Unskippable("reads numbers, which are seldom the same for long")
    return const_key(value, enum, shape)


def note_jump(runner: Any, node: Any, expected: Any) -> None:
    """A record was replayed that compares the value which is read at `node`."""
    if expected is not None:
        runner.jumped_reads[node] = type(expected) is HasShape


def is_expected(expected: Any, value: Any) -> bool:
    """Returns whether a value that was read is what a record has for it."""
    if type(expected) is Within:
        return expected.low <= float(value) <= expected.high
    if type(expected) is HasShape:
        return value._shape_tuple() == expected.sizes
    return expected is None or value_key(value) == expected
