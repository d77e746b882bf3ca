"""The loop over time of a stock RNN layer as one operation.

Where sequences have many lengths, a recurrent layer that is unrolled gives the step another path for each of them. Its loop reads nothing but tensors, and calls nothing
but its cell: so all of it can be a function of TensorFlow's, with a While operation in it, that takes sequences of any length. To the step that is one operation, its
gradient is another one, and one path and one graph do for all lengths.

What the gradient needs of the loop are lists of tensors, one for each time step. Where only some paths of a step have the loop, or steps are in pieces, these
cannot be handed on: then the gradient's function computes the loop again. Values are eager's, gradients are summed in another order.
"""

import contextlib
import functools
import sys
import weakref

from terra.frameworks import keras, stock
from terra.runtime.execution import dispatch
from terra.runtime.fast_forward.guards import guards, replaced
from terra.runtime.fast_forward.sites.framework_loops import calls_stock_cell, closure, issuing_step
from terra.runtime.tensors import known_shapes, open_shapes, shape_inference
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.open_shapes import is_shape, shape_of
from terra.runtime.tensors.size_readers import SizeToCompare
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing.tracer import is_tensor
from terra.tf import internals as tfi
from terra.tf import opschema

_MOST_CHANGES = 3  # of a layer, after which its loop is left to the step
_MOST = 64  # loops of one step function
_FORGOTTEN = 12  # steps after which one that was not used makes room for another: it keeps its layer
_MOST_WASTED = 4  # loops that were used in one step only: a function that makes new layers at each step is not helped
_PLAIN = (bool, int, type(None))
_SIZES = (2, 3), (5, 7)  # (batch, length) of what functions are tried with
_PAIRS = tuple(zip(*_SIZES))


def replace():
    """Have Keras' layers ask here first, and have its functions tell what is known of shapes."""
    tfi.replace_in(keras.BACKEND, rnn=_in_one)
    known_shapes.replace()


def _backend():
    return sys.modules[keras.BACKEND]


def _in_one(original):
    """`keras.src.backend.rnn`, given the original, with the loop as one operation where that is wanted and possible."""
    @functools.wraps(original)
    def rnn(step_function, inputs, initial_states, **options):
        step = issuing_step()
        length = options.get("input_length")
        if type(length) is SizeToCompare:
            options["input_length"] = None
        if step is not None and calls_stock_cell(step_function) and not _backend().in_stateless_scope():
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
    """While it lasts, nothing is read of the shapes of arguments some of whose sizes are left unknown (see `opening`)."""
    return open_shapes.shown() if step.opened else contextlib.nullcontext()


def _varies(step, step_function, inputs):
    """Whether the sequences that a layer was given here in the steps of a function have had so many lengths that unrolling its loop is a loss, or one that is left unknown."""
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
        flat = [inputs, *_flat_states(states), *([] if mask is None else [mask])]
        if options.get("constants") or options.get("unroll") or options.get("time_major") or not all(map(_has_shape, flat)):
            return None
        if len(inputs.shape) < 3 or 0 in inputs.shape[:2] or not all(type(x) in _PLAIN for x in given.values()):
            return None
        size, length = inputs.shape[:2]
        if options.get("input_length") not in (None, length) or (mask is not None and mask.shape[1:2] != [length]):
            return None
        cells = _cells(layer.cell)
        if layer.return_state and not tfi.tape_set_is_empty():
            return None  # somebody may ask for the gradient of the output with respect to the state, from which it is computed
        if len(cells) > 1 and (layer.return_state or layer.stateful):
            return None  # the state of one cell has no gradient for the weights of the next one, which must be told from 0
        drawn = _dropout_masks(cells)
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
        if len(made) > _MOST_CHANGES or (made and (not made[-1].possible or made[-1].modules != replaced.modules.look())):
            return None
        with _without_dropout(cells):
            if made and made[-1].holds():
                return made[-1]
            if _guard(layer) is None or not _nothing_else(layer, cells):
                return None
        with dispatch.imperative():
            try:
                recurrence = Recurrence(self, original, step_function, layer, cells, kept, states, mask is not None, specs)
            except (ValueError, TypeError, tfi.OpError):  # eager execution will say what is wrong
                recurrence = _Impossible
        made.append(recurrence)
        return recurrence if recurrence.possible else None


def _guard(layer):
    """Tells whether a layer has changed; None if it calls functions of the user's, or cannot be told."""
    users = []
    try:
        guard = guards.Guard(layer, [], users)
    except Unskippable:
        return None
    return None if users else guard


class _Impossible:
    possible = False


def _nothing_else(layer, cells):
    """Whether a loop runs nothing but stock cells: no layers as activations (with losses, with moving averages), no methods that somebody has put into their classes."""
    parts = list(layer.cell._flatten_layers())
    if any(part.activity_regularizer is not None for part in parts) or {id(part) for part in parts if not hasattr(part, "cells")} != set(map(id, cells)):
        return False
    classes = {cls for part in (layer, layer.cell, *cells) for cls in type(part).__mro__ if stock.stock_package(cls.__module__) is not None}
    return not any(stock.is_foreign(value) for cls in classes for value in vars(cls).values())


class Recurrence:
    """One layer's loop: call it like `keras.src.backend.rnn` with (inputs, states, mask)."""

    def __init__(self, among, original, step_function, layer, cells, options, states, masked, specs):
        tf = tfi.tf
        self._among, self._guard = among, None
        self._original, self._step_function, self._options = original, step_function, options
        self._cells, self._states, self._masked = cells, tf.nest.map_structure(lambda x: None, states), masked
        self._n_states = len(tf.nest.flatten(states))
        self._dropout = [tf.nest.map_structure(lambda x: x is not None, held) for held in _held(cells)]
        self._weights = list(layer.cell.weights)
        self._specs = specs = [*specs, *[tf.TensorSpec(v.shape, v._value.dtype) for v in self._weights]]
        self._tracing = tfi.tracing_for_xla if among.for_xla else contextlib.nullcontext
        with self._tracing():
            concrete = tf.function(self._run, input_signature=specs, autograph=False).get_concrete_function()
        self._concrete = concrete
        self._outputs = [tf.TensorSpec(x.shape, x.dtype) for x in concrete.outputs]
        self._samples = [[_sample(spec, sizes) for spec in specs] for sizes in _SIZES]
        # Nobody asks for the gradient of a mask.
        first_weight = len(specs) - len(self._weights)
        self._sources = self._connected([k for k, spec in enumerate(specs) if spec.dtype.is_floating and (k <= self._n_states or k >= first_weight)])
        self._plain = concrete.function_def.signature.name
        self._keeping = self._backward = None
        self.possible = not concrete.captured_inputs and _is_pure(concrete.function_def) and self._operation(self._plain, len(self._outputs)) is not None
        self.modules = replaced.modules.look()

    def _connected(self, sources):
        """Those inputs that have a gradient in eager execution: for the others that is None, and not 0."""
        given = self._samples[0]
        with tfi.tf.GradientTape() as tape:
            tape.watch([given[k] for k in sources])
            outputs = self._run(*given)
        return [k for k, gradient in zip(sources, tape.gradient(outputs, [given[k] for k in sources])) if gradient is not None]

    def holds(self):
        """Whether the layer has not changed since the first call."""
        return self._guard is not None and self._guard.holds()

    def _operation(self, name, n_outputs):
        """Make the function of this name, which takes what the loop does, an operation with a gradient: as `_learn_shapes`."""
        given = _learn_shapes(name, self._samples, n_outputs)
        if given is not None:
            tfi.tf.RegisterGradient(name)(_gradient_of(weakref.ref(self)))
        return given

    def _make_keeping(self):
        """Find the function that keeps what the gradient needs; False if there is none."""
        self._keeping = False
        with self._tracing():
            name, n_outputs, backward, n_gradients, kept, places = tfi.forward_and_backward(self._concrete)
        n = len(self._outputs)
        if n_gradients != n or any(places[k] is None for k in self._sources):
            return
        given = self._operation(name, n_outputs)
        if given is None:
            return
        samples = [outputs[:n] + [outputs[k] for k in kept] for outputs in given]
        n_found = sum(place is not None for place in places)
        if _learn_shapes(backward, samples, n_found) is not None:
            self._keeping = name, n_outputs, backward, n_found, kept, places

    def __call__(self, inputs, states, mask):
        tf = tfi.tf
        given = [inputs, *_flat_states(states), *([mask] if self._masked else []), *_dropout_masks(self._cells), *[v._value for v in self._weights]]
        given = [tf.convert_to_tensor(x) for x in given]
        if self._guard is None:
            with _without_dropout(self._cells):
                self._guard = _guard(closure(self._step_function)["self"].cell_contents)  # now: cells have noted that they were called, and variables that they were read
        n = len(self._outputs)
        if tfi.tape_set_is_empty() or self._among.computes_again:
            outputs = tfi.execute_function(self._plain, given, n, n)
        else:
            if self._keeping is None:
                with dispatch.imperative():
                    self._make_keeping()
            name, n_all, *_ = self._keeping or (self._plain, n)
            outputs = tfi.execute_function(name, given, n_all, n)
        last, outputs, *new = outputs[:n]
        return last, outputs, tuple(tf.nest.pack_sequence_as(self._states, new))

    def _run(self, *tensors):
        """The loop, on the tensors that the function takes."""
        tf = tfi.tf
        rest = iter(tensors)
        inputs = next(rest)
        states = [next(rest) for _ in range(self._n_states)]
        mask = next(rest) if self._masked else None
        masks = [tf.nest.map_structure(lambda there: next(rest) if there else None, held) for held in self._dropout]
        weights = list(rest)
        scope = _backend().StatelessScope(state_mapping=list(zip(self._weights, weights, strict=True)))
        with _with_dropout(self._cells, masks), scope:
            last, outputs, new = self._original(
                self._step_function, inputs, tf.nest.pack_sequence_as(self._states, states), mask=mask, **self._options)
        return [last, outputs, *tf.nest.flatten(new)]

    def _run_back(self, *tensors):
        given, gradients = tensors[:len(self._specs)], tensors[len(self._specs):]
        sources = [given[k] for k in self._sources]
        with tfi.tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = self._run(*given)
        return tape.gradient(outputs, sources, gradients, tfi.tf.UnconnectedGradients.ZERO)

    def gradient(self, op, gradients):
        """The gradients of all inputs of an operation: those that the loop was given, and after them what was kept."""
        gradients = [tfi.tf.zeros_like(x) if g is None else tfi.tf.convert_to_tensor(g) for x, g in zip(op.outputs, gradients)]
        inputs = list(op.inputs)
        n = len(self._specs)
        result = [None] * len(inputs)
        if not self._sources:
            return result
        taped = not tfi.tape_set_is_empty()
        if taped or not tfi.executing_eagerly():  # somebody wants this gradient's gradient, or its graph
            found = self._run_back(*inputs[:n], *gradients)
            if not taped:
                self.possible = False  # a jacobian would trace it anew in each step, which takes seconds
        elif len(inputs) > n:
            _, _, backward, n_found, kept, places = self._keeping
            given = [*op.outputs, *inputs[n:]]
            found = tfi.execute_function(backward, [*gradients, *[given[k] for k in kept]], n_found)
            found = [found[places[k]] for k in self._sources]
        else:
            if self._backward is None:
                with dispatch.imperative():
                    self._make_backward()
            found = tfi.execute_function(self._backward, [*inputs, *gradients], len(self._sources))
        for k, x in zip(self._sources, found):
            result[k] = x
        return result

    def _make_backward(self):
        function = tfi.tf.function(self._run_back, input_signature=[*self._specs, *self._outputs], autograph=False)
        with self._tracing():
            self._again = function.get_concrete_function()  # TensorFlow forgets functions that nobody holds
        self._backward = self._again.function_def.signature.name
        sources = list(self._sources)
        shape_inference.add_rule(
            self._backward, lambda attrs, keys: tuple([keys[k] for k in sources]) if all(is_shape(keys[k]) for k in sources) else None)


def _is_pure(fdef):
    """Whether a function does nothing that its operation would not do as eager execution does: random numbers, checks, printing."""
    return not fdef.signature.is_stateful and not any(node.op in opschema.CHECKS for f in opschema.reachable_functions(fdef).values() for node in f.node_def)


def _gradient_of(reference):
    def gradient(op, *gradients):
        return reference().gradient(op, gradients)

    return gradient


def _sample(spec, sizes):
    """A tensor with the two sizes in place of those that are not known."""
    return tfi.tf.zeros([size if d is None else d for d, size in zip(spec.shape, (*sizes, *spec.shape[2:]))], spec.dtype)


def _learn_shapes(name, samples, n_outputs):
    """Find out what shapes the outputs of a function have, by calling it with tensors of both `_SIZES`.

    Returns these outputs; None if there is a size that is neither batch nor length nor always the same.
    """
    given = [tfi.execute_function(name, tensors, n_outputs) for tensors in samples]
    shapes = [[x._shape_tuple() for x in outputs] for outputs in given]
    sources = {}
    for k, (x, y) in enumerate(zip(*samples)):
        if x.dtype.is_floating:  # others may be given by value
            for d, pair in enumerate(zip(x._shape_tuple(), y._shape_tuple())):
                sources.setdefault(pair, (k, d))
    templates = []
    for one, other in zip(*shapes):
        if len(one) != len(other):
            return None
        pairs = list(zip(one, other))
        if any(a != b and ((a, b) not in _PAIRS or (a, b) not in sources) for a, b in pairs):
            return None
        templates.append([a if a == b else sources[a, b] for a, b in pairs])

    def rule(attrs, keys):
        if not all(is_shape(keys[k]) for k, _ in sources.values()):
            return None
        return tuple([shape_of([d if type(d) is int else keys[d[0]][d[1]] for d in template]) for template in templates])

    shape_inference.add_rule(name, rule)
    return given


def _has_shape(x):
    return (is_tensor(x) or isinstance(x, tfi.tf.Variable)) and (
        type(x) is not TerraTensor or type(x._shp) is tuple or (x._shp is not None and open_shapes.shows_unknown_sizes())) and x.shape.rank > 0


def _flat_states(states):
    """Those of a stateful layer are variables of Keras'."""
    return [x._value if keras.is_of_keras(type(x)) else x for x in tfi.tf.nest.flatten(states)]


def _spec(x, batch, is_sequence):
    """What is known of a tensor in all steps: not the length, if it is of a sequence. (With the batch known, gradients are simpler.)"""
    free = [batch, None] if is_sequence else [batch]
    return tfi.tf.TensorSpec(free + x.shape.as_list()[len(free):], x.dtype)


def _cells(cell):
    """The cells in a cell."""
    return [inner for part in cell.cells for inner in _cells(part)] if hasattr(cell, "cells") else [cell]


def _held(cells):
    """What the layer has drawn for its loop: for each cell what it holds by the names in `keras.DROPOUT_MASKS`."""
    return [vars(cell).get(name) for cell in cells for name in keras.DROPOUT_MASKS]


def _dropout_masks(cells):
    return [x for x in tfi.tf.nest.flatten(_held(cells)) if x is not None]


class _with_dropout:
    """While it lasts, the cells hold these masks."""

    def __init__(self, cells, masks):
        self._cells, self._masks = cells, masks

    def __enter__(self):
        self._before = self._exchange(self._masks)

    def __exit__(self, *exc):
        self._exchange(self._before)

    def _exchange(self, masks):
        masks, before = iter(masks), []
        for cell in self._cells:
            for name in keras.DROPOUT_MASKS:
                mask = next(masks)
                before.append(vars(cell).get(name))
                if name in vars(cell):
                    vars(cell)[name] = mask
        return before


def _without_dropout(cells):
    return _with_dropout(cells, [None] * (len(cells) * len(keras.DROPOUT_MASKS)))
