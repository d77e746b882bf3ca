"""Keras' `fit`, `evaluate` and `predict` of a few arrays, without a tf.data pipeline for each call.

For every call Keras makes a pipeline of three functions, traces them and has TensorFlow instantiate them: 20 to 50 ms, where the batch of a small model
takes less than one. Programs that call `predict` or `fit` in loops of their own, as those for reinforcement learning do, spend nearly all their time
there. Here Python takes the batches from the arrays, if there are only some. Which rows are in which batch stays Keras' choice: its own pipeline gives
the numbers of the rows, and is made once for all arrays with as many rows.

Keras hands on what iterates over the batches as it hands on an iterator of tf.data, and the functions that it has made for a batch take both. Where a
program has put functions of its own in their place, or needs more of a dataset (a distribution strategy, several steps in one execution), Keras'
pipeline stays.
"""

import functools
import logging
import sys
import threading
from threading import get_ident

import numpy as np

from terra.frameworks import framework_objects, keras
from terra.location import current_step
from terra.runtime.execution import interception
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi

log = logging.getLogger("terra")

MOST_BATCHES = 128  # in a call: they take less time than in a pipeline by then, and the more there are, the less this is
_MOST_ROWS = 1 << 16
_MOST_ORDERS = 16  # that are kept

_thread = threading.local()  # `.wanted`: whether the epoch iterator that is being made may do without a pipeline
_orders = {}  # (rows, rows of a batch, how they are shuffled, TensorFlow's seed) -> _Order
_concerned = []  # what says of a model whether it is to be trained so
_prepared = set()  # classes of Keras'


class _Order:
    """Which rows are in which batch of an epoch: where they are shuffled, what Keras' own pipeline gives for row numbers."""

    def __init__(self, adapter_class, rows, size, shuffle):
        self._kept = None if shuffle else [slice(k, min(k + size, rows)) for k in range(0, rows, size)]
        self._pipeline = _with_pipeline(adapter_class(np.arange(rows), batch_size=size, shuffle=shuffle)) if shuffle else None
        self._is_seeded, self._last = tfi.global_seed() is not None, None

    def batches(self):
        """Returns the rows of each batch of one epoch: slices, or arrays of row numbers."""
        if self._kept is not None:
            return self._kept
        batches = [rows.numpy() for rows in self._pipeline]
        # The pipeline draws from TensorFlow's seed anew in each epoch. That two of them are alike shows it; then they all are.
        if self._is_seeded and self._last is not None and all(map(np.array_equal, batches, self._last)):
            self._kept = batches
        self._last = batches
        return batches


class _Batches:
    """Stands in for the dataset of one call: what iterates over it gets the batches of an epoch."""

    def __init__(self, tensors, order):
        self._tensors, self._order = tensors, order

    def __iter__(self):
        batches = self._order.batches()
        for rows in batches:
            yield self._tensors if len(batches) == 1 and type(rows) is slice else _map(functools.partial(_take, rows), self._tensors)


def _take(rows, tensor):
    return tensor[rows] if type(rows) is slice else tfi.tf.gather(tensor, rows, axis=0)


def _map(function, structure):
    """Returns the structure with the function's results in place of the leaves. Tuples and dicts are structures, as tf.data has them."""
    if type(structure) in (tuple, list):
        return tuple([_map(function, part) for part in structure])
    if type(structure) is dict:
        return {key: _map(function, part) for key, part in structure.items()}
    return function(structure)


class _Unfit(Exception):
    """These arrays are not to be had without a pipeline."""


def _tensor(array):
    if type(array) not in (np.ndarray, tfi.EagerTensor, TerraTensor):
        raise _Unfit  # None, or something sparse, ragged or of the program's
    return tfi.tf.convert_to_tensor(array)


def _order_of(adapter):
    shuffle, rows, size = [getattr(adapter, name, None) for name in keras.OF_ARRAY_ADAPTERS]
    if not rows or not size or rows > min(_MOST_ROWS, MOST_BATCHES * size):
        return None
    key = rows, size, shuffle, shuffle and tfi.global_seed()
    order = _orders.get(key)
    if order is None:
        order = _Order(type(adapter), rows, size, shuffle)
        _orders[key] = order
        if len(_orders) > _MOST_ORDERS:
            _orders.pop(next(iter(_orders)), None)
    return order


def _with_pipeline(adapter):
    before, _thread.wanted = getattr(_thread, "wanted", False), False
    try:
        return adapter.get_tf_dataset()
    finally:
        _thread.wanted = before


# -- Keras' classes ------------------------------------------------------------------------------------------------------------

def concern(models):
    """Train those models so of which `models(model)` is true."""
    if models not in _concerned:
        _concerned.append(models)


def prepare_adapter(module):
    """Let Keras' adapter of arrays give their batches without a pipeline, where an epoch iterator may do with that."""
    adapter_class, slicing = getattr(module, keras.ARRAY_ADAPTER, None), getattr(module, keras.ARRAY_SLICING, None)
    if adapter_class in _prepared or not _is_found(module, adapter_class, slicing):
        return
    make, convert = adapter_class.get_tf_dataset, slicing.convert_to_sliceable

    @functools.wraps(make)
    def get_tf_dataset(self):
        if not getattr(_thread, "wanted", False) or type(self) is not adapter_class:
            return make(self)
        order = _order_of(self)
        try:
            return make(self) if order is None else _Batches(_map(_tensor, convert(self._inputs, target_backend="tensorflow")), order)
        except _Unfit:
            return make(self)

    adapter_class.get_tf_dataset = get_tf_dataset


def _is_found(module, wanted, *others):
    """Returns whether this version of Keras has what is named in its table, and notes the class."""
    if wanted is None or None in others:
        log.info("%s is not what it was: `fit`, `evaluate` and `predict` of a few arrays take Keras' pipeline", module.__name__)
        return False
    _prepared.add(wanted)
    return True


def prepare_iterator(module):
    """Let the epoch iterators that Keras' own `fit`, `evaluate` and `predict` make do without a pipeline, for models that this concerns."""
    iterator_class, trainer = getattr(module, keras.EPOCH_ITERATOR, None), getattr(module, keras.TRAINERS[module.__name__])
    if iterator_class in _prepared or not _is_found(module, iterator_class):
        return
    make = iterator_class.__init__

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        frame, before = sys._getframe(1), getattr(_thread, "wanted", False)
        model = frame.f_locals.get("self") if frame.f_globals is vars(module) else None
        _thread.wanted = isinstance(model, trainer) and kwargs.get("steps_per_epoch") is None and _is_concerned(model, trainer)
        try:
            make(self, *args, **kwargs)
        finally:
            _thread.wanted = before

    iterator_class.__init__ = init


def _is_concerned(model, trainer):
    if not any(models(model) for models in _concerned) or current_step.left_alone.depth or not _takes_iterators(model, trainer):
        return False
    interception.end_open_step()
    active = current_step.active
    return active is None or active.thread != get_ident()


def _takes_iterators(model, trainer):
    """Returns whether the functions that the model calls with its batches are those that Keras makes, for one step at a time, on one device."""
    if model.steps_per_execution != 1 or tfi.tf.distribute.has_strategy() or model.distribute_strategy is not tfi.tf.distribute.get_strategy():
        return False
    for kept in framework_objects.STEP_FUNCTIONS:
        function, name = getattr(model, kept), f"make_{kept}"
        home = getattr(getattr(function, "python_function", function), "__module__", "")
        if function is not None and not home.startswith((keras.TENSORFLOW_TRAINER, "terra.")):
            return False
        made = vars(model).get(name) or getattr(type(model), name)
        if getattr(trainer, name) is not made and not made.__module__.startswith("terra."):
            return False
    return True
