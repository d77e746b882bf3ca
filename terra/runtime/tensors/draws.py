"""The feeds for a stateful random operation: with them the graph draws the numbers which eager execution would have drawn with the same seeds."""

import functools

import numpy as np

from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.tf import opschema, philox, samplers

MOST_SHUFFLED = 4096  # rows whose order Python finds: for so many it takes about as long as TensorFlow's kernel, which is made anew for new seeds


def rows_of(x):
    """How many rows there are to shuffle; None if that is not known without waiting for the tensor, or are too many, or if it has no axis."""
    shape = x._shp if type(x) is TerraTensor else x._shape_tuple()
    return shape[0] if shape and shape[0] is not None and shape[0] <= MOST_SHUFFLED else None


def seed_enum(op_type):
    """The dtype of what `seed_tensor` gives."""
    if op_type == opschema.SHUFFLE:
        return tfi.types_pb2.DT_INT32
    return tfi.types_pb2.DT_INT64 if op_type in opschema.SAMPLERS else tfi.types_pb2.DT_UINT64


def seed_tensor(op_type, attrs, rows=None):
    """Makes the tensor that a graph is fed for the seeds among the attributes of a stateful random op.

    uint64 [key, counter's lower half, its upper half], or the two words of a seed; for one that shuffles so many rows, their order, int32; for one that
    samples candidates, these and the number of tries, int64.
    """
    found = dict(zip(attrs[::2], attrs[1::2]))
    seed, seed2 = found["seed"], found["seed2"]
    if op_type == opschema.SHUFFLE:
        return _order(seed, seed2, rows)
    if op_type in opschema.SAMPLERS:
        return tfi.eager_constant(np.array(samplers.candidates(op_type, found, lambda n: _numbers(seed, seed2, n))), None)
    words = philox.key_and_counter if opschema.STATELESS_TWIN[op_type][2] else philox.unscrambled
    return tfi.eager_constant(words(seed, seed2), tfi.dtypes.uint64)


def _order(seed, seed2, n):
    """The order into which RandomShuffle puts so many rows: from the first one on, each is swapped with one that is drawn out of those left."""
    order = list(range(n))
    if n > 1:
        for k, number in enumerate(_numbers(seed, seed2, n - 1).tolist()):
            other = k + number % (n - k)
            order[k], order[other] = order[other], order[k]
    return tfi.eager_constant(order, tfi.dtypes.int32)


def _numbers(seed, seed2, n):
    """The first n numbers of 32 bits that come of these seeds, an array."""
    key, *counter = philox.key_and_counter(seed, seed2)
    key, counter = (tfi.eager_constant(np.array(x, np.uint64), None) for x in ([key], counter))
    return tfi.fast_execute(tfi.ctx(), "StatelessRandomUniformFullIntV2", None, _constant((n,)), key, counter, _constant(1), "dtype", tfi.tf.uint32).numpy()


@functools.lru_cache(64)
def _constant(value):
    return tfi.eager_constant(np.array(value, np.int32), None)
