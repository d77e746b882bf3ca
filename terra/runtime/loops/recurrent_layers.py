"""The loop over time of a stock RNN layer as one operation.

Where sequences have many lengths, a recurrent layer that is unrolled gives the step another path for each of them. Its loop reads nothing but
tensors, and calls nothing but its cell: so all of it can be a function of TensorFlow's, with a While operation in it, that takes sequences of any
length. To the step that is one operation, its gradient is another one, and one path and one graph do for all lengths.

What the gradient needs of the loop are lists of tensors, one for each time step. Where only some paths of a step have the loop, or steps are in segments, these
cannot be handed on: then the gradient's function computes the loop again. Values are eager's, gradients are summed in another order.
"""

import contextlib
import functools

from terra.frameworks import keras, framework_objects
from terra.runtime.execution import interception
from terra.runtime.fast_forward.guards import patch_guard
from terra.runtime.fast_forward.sites.framework_loops import calls_stock_cell, closure, issuing_step
from terra.runtime.loops.recurrence import Recurrence
from terra.runtime.loops.recurrent_cells import backend, cells_of, dropout_masks, flat_states, guard_of, without_dropout
from terra.runtime.tensors import known_shapes, open_shapes, ragged_functions
from terra.runtime.tensors.size_readers import SizeToCompare
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing.structures import is_tensor
from terra.tf import private_names as tfi
from terra.tf.private import replacements

_MOST_CHANGES = 3  # of a layer, after which its loop is left to the step
_MOST = 64  # loops of one step function
_FORGOTTEN = 12  # steps after which one that was not used makes room for another: it keeps its layer
_MOST_WASTED = 4  # loops that were used in one step only: a function that makes new layers at each step is not helped
_PLAIN = (bool, int, type(None))


def replace():
    """Replaces the loop of Keras' recurrent layers by the one here, and has its functions tell what is known of shapes."""
    replacements.replace_in(keras.BACKEND, rnn=_in_one)
    known_shapes.replace()
    ragged_functions.replace()


def _in_one(original):
    """`keras.src.backend.rnn`, given the original, with the loop as one operation where that is wanted and possible."""
    @functools.wraps(original)
    def rnn(step_function, inputs, initial_states, **options):
        step = issuing_step()
        length = options.get("input_length")
        if type(length) is SizeToCompare:
            options["input_length"] = None
        if step is not None and calls_stock_cell(step_function) and not backend().in_stateless_scope():
            made = _find(step, original, step_function, inputs, initial_states, options)
            if made is not None:
                return made(inputs, initial_states, options.get("mask"))
        if type(length) is SizeToCompare:
            options["input_length"] = int(length)
        return original(step_function, inputs, initial_states, **options)

    return rnn


def _find(step, original, step_function, inputs, states, options):
    """The loop that is one operation in the place of this call of `original`; None if that has to run."""
    function = step.function
    if function.recurrences is None and function.options.loops != "unroll":
        if function.generation.may_compile:
            function.recurrences = Recurrences(for_xla=True)
        elif _varies(step, step_function, inputs):
            function.rolling.take_layers_as_one()
            return None  # from the next step on
    if function.recurrences is None:
        return None
    with _without_sizes(step):
        made = function.recurrences.find(function.n_steps, original, step_function, inputs, states, options)
    if function.recurrences.batches_vary:
        function.recurrences.batches_vary = False
        function.begins_anew = True
    return made


def _without_sizes(step):
    """While it lasts, nothing is read of the shapes of arguments some of whose sizes are left unknown (see `dynamic_arguments`)."""
    return open_shapes.shown() if step.partial_shapes else contextlib.nullcontext()


def _varies(step, step_function, inputs):
    """Returns whether the sequences that a layer was given here in the steps of a function have had so many lengths that unrolling its loop is a
    loss, or one that is left unknown."""
    with _without_sizes(step):
        if not _has_shape(inputs):
            return False
        length = inputs.shape[1]
    if length is None:
        return True
    layer = closure(step_function)["self"].cell_contents
    lengths = step.function.lengths.setdefault((id(layer), step.cursor.current), set())
    lengths.add(length)
    return step.function.rolling.is_loss(lengths)


class Recurrences:
    """The loops of layers that are one operation, of one step function."""

    def __init__(self, for_xla=False):
        self.for_xla = for_xla  # whether XLA may compile them
        self.computes_again = False  # whether gradients compute the loop again
        self.batches_vary = False  # whether a layer was given another number of sequences, for the first time
        self._batches = {}  # id of a layer -> how many sequences it is given, None if that varies
        self._found = {}  # what tells a loop from others -> those made for it, as its layer changed
        self._used = {}  # the same -> (number of the step that used it first, of the last one)
        self._wasted = 0

    def __len__(self):
        """How many layers there are."""
        return len({key[0] for key, made in self._found.items() if any(one.possible for one in made)})

    def _make_room(self, now):
        """Forget what no step has used for long."""
        for key, (first, last) in list(self._used.items()):
            if last < now - _FORGOTTEN:
                del self._found[key], self._used[key]
                self._wasted += first == last

    def find(self, now, original, step_function, inputs, states, options):
        """The loop that this call of `original` in step number `now` would run, or None if it has to run."""
        if not set(options) <= {*keras.RNN_KEPT, *keras.RNN_IGNORED}:
            return None
        held = closure(step_function)
        layer, given = held["self"].cell_contents, held["cell_kwargs"].cell_contents
        mask = options.get("mask")
        flat = [inputs, *flat_states(states), *([] if mask is None else [mask])]
        if options.get("constants") or options.get("unroll") or options.get("time_major") or not all(map(_has_shape, flat)):
            return None
        if len(inputs.shape) < 3 or 0 in inputs.shape[:2] or not all(type(x) in _PLAIN for x in given.values()):
            return None
        size, length = inputs.shape[:2]
        if options.get("input_length") not in (None, length) or (mask is not None and mask.shape[1:2] != [length]):
            return None
        cells = cells_of(layer.cell)
        if layer.return_state and not tfi.tape_set_is_empty():
            return None  # somebody may ask for the gradient of the output with respect to the state, from which it is computed
        if len(cells) > 1 and (layer.return_state or layer.stateful):
            return None  # the state of one cell has no gradient for the weights of the next one, which must be told from 0
        drawn = dropout_masks(cells)
        kept = {name: options[name] for name in keras.RNN_KEPT if name in options}
        if not all(type(x) is bool for x in kept.values()) or not all(map(_has_shape, drawn)) or any(x.shape[0] != size for x in flat + drawn):
            return None
        batch = self._batches.setdefault(id(layer), size)
        if batch is not None and batch != size:
            batch = self._batches[id(layer)] = None
            self.batches_vary = True
        specs = tuple([_spec(x, batch, x is inputs or x is mask) for x in flat + drawn])
        key = (id(layer), *given.items(), *kept.items(), mask is None, specs)
        if key not in self._found:
            self._make_room(now)
            if len(self._found) >= _MOST or self._wasted >= _MOST_WASTED:
                return None
        self._used[key] = self._used.get(key, (now,))[0], now
        made = self._found.setdefault(key, [])
        if len(made) > _MOST_CHANGES or (made and (not made[-1].possible or made[-1].modules != patch_guard.modules.look())):
            return None
        with without_dropout(cells):
            if made and made[-1].holds():
                return made[-1]
            if guard_of(layer) is None or not _nothing_else(layer, cells):
                return None
        with interception.imperative():
            try:
                recurrence = Recurrence(self, original, step_function, layer, cells, kept, states, mask is not None, specs)
            except (ValueError, TypeError, tfi.OpError):  # eager execution will say what is wrong
                recurrence = _Impossible
        made.append(recurrence)
        return recurrence if recurrence.possible else None


class _Impossible:
    possible = False


def _nothing_else(layer, cells):
    """Returns whether a loop runs nothing but stock cells: no layers as activations (with losses, with moving averages), no methods that somebody has
    put into their classes."""
    parts = list(layer.cell._flatten_layers())
    if any(part.activity_regularizer is not None for part in parts) or {id(part) for part in parts if not hasattr(part, "cells")} != set(map(id, cells)):
        return False
    classes = {cls for part in (layer, layer.cell, *cells) for cls in type(part).__mro__ if framework_objects.stock_package(cls.__module__) is not None}
    return not any(framework_objects.is_foreign(value) for cls in classes for value in vars(cls).values())


def _has_shape(x):
    return (is_tensor(x) or isinstance(x, tfi.tf.Variable)) and (
        type(x) is not TerraTensor or type(x._shp) is tuple or (x._shp is not None and open_shapes.shows_unknown_sizes())) and x.shape.rank > 0


def _spec(x, batch, is_sequence):
    """Returns what is known of a tensor in all steps, as a TensorSpec: not the length, if it is of a sequence. (With the batch known, gradients are
    simpler.)"""
    free = [batch, None] if is_sequence else [batch]
    return tfi.tf.TensorSpec(free + x.shape.as_list()[len(free):], x.dtype)
