"""Functions of TensorFlow's that make ragged tensors: they look at sizes only to compare them, which the graph can do, or nobody needs to.

In eager execution they compare how many values there are, and how many rows, by what the tensors are at that moment; for symbolic ones they go on without. Here they do the latter, and what they would have
compared holds by the way in which the tensors were made, or is compared by the graph.
"""

import contextlib
import functools

from terra.runtime.tensors import open_shapes, size_readers
from terra.runtime.tensors.known_shapes import known_sizes
from terra.runtime.tensors.tensor import has_open_shape
from terra.tf import private_names as tfi
from terra.tf.private import replacements

_RaggedTensor = tfi.tf.RaggedTensor


class _DoesNotFit(Exception):
    """The program's function gives another number of rows than it was given."""


def replace():
    """Replaces `tf.strings.split` and `tf.ragged.map_flat_values` behind their dispatch: whoever holds them already calls the new ones."""
    for function, replacement in (tfi.tf.strings.split, _split), (tfi.tf.ragged.map_flat_values, _map_flat_values):
        replacements.replace_behind_dispatch(function, replacement)


def _split(original):
    @functools.wraps(original)
    def string_split_v2(input, *args, **kwargs):
        known = known_sizes(input) if isinstance(input, tfi.tf.Tensor) else ()
        if len(known) != 1:
            return original(input, *args, **kwargs)
        with open_shapes.shown():
            result = original(input, *args, **kwargs)
        if known[0] is not None:  # there is a row for each text
            rows = result._row_partition
            for x, size in (rows._row_splits, known[0] + 1), (rows._row_lengths, known[0]):
                if has_open_shape(x):
                    x._shp = open_shapes.merged(x._shp, (size,))
        return result

    return string_split_v2


def _map_flat_values(original):
    @functools.wraps(original)
    def map_flat_values(op, *args, **kwargs):
        given = [*args, *kwargs.values()]
        ragged = [x for x in given if type(x) is _RaggedTensor]
        if len(ragged) != 1 or not has_open_shape(ragged[0].flat_values) or any(isinstance(x, (list, tuple, dict)) for x in given):
            return original(op, *args, **kwargs)  # several are compared with each other
        values, results = ragged[0].flat_values, []

        def as_many(*inner, **named):
            with open_shapes.read():  # it is the program's, and sees what it sees eagerly
                results.append(op(*inner, **named))
                if not (isinstance(results[0], tfi.tf.Tensor) and size_readers.as_many(results[0], values)):
                    raise _DoesNotFit
            return results[0]

        with contextlib.suppress(_DoesNotFit), open_shapes.shown():
            return original(as_many, *args, **kwargs)
        return original(lambda *_, **__: results[0], *args, **kwargs)  # raises, or accepts it, as in eager execution

    return map_flat_values
