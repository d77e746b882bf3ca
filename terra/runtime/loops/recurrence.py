"""The loop of one recurrent layer as a function of TensorFlow's, with its gradient (see `recurrent_layers`)."""

import contextlib
import weakref

from terra.runtime.execution import interception
from terra.runtime.fast_forward.guards import patch_guard
from terra.runtime.fast_forward.sites.framework_loops import closure
from terra.runtime.loops.recurrent_cells import WithDropout, backend, dropout_masks, flat_states, guard_of, held_masks, without_dropout
from terra.runtime.tensors import shape_inference
from terra.runtime.tensors.open_shapes import is_shape, shape_of
from terra.tf import private_names as tfi
from terra.tf import variable_use
from terra.tf.private import runtime_functions

_SIZES = (2, 3), (5, 7)  # (batch, length) of what functions are tried with
_PAIRS = tuple(zip(*_SIZES))


class Recurrence:
    """One layer's loop: call it like `keras.src.backend.rnn` with (inputs, states, mask)."""

    def __init__(self, among, original, step_function, layer, cells, options, states, masked, specs):
        tf = tfi.tf
        self._among, self._guard = among, None
        self._original, self._step_function, self._options = original, step_function, options
        self._cells, self._states, self._masked = cells, tf.nest.map_structure(lambda x: None, states), masked
        self._n_states = len(tf.nest.flatten(states))
        self._dropout = [tf.nest.map_structure(lambda x: x is not None, held) for held in held_masks(cells)]
        self._weights = list(layer.cell.weights)
        self._specs = specs = [*specs, *[tf.TensorSpec(v.shape, v._value.dtype) for v in self._weights]]
        self._tracing = runtime_functions.tracing_for_xla if among.for_xla else contextlib.nullcontext
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
        self.modules = patch_guard.modules.look()

    def _connected(self, sources):
        """Those inputs that have a gradient in eager execution: for the others that is None, and not 0."""
        given = self._samples[0]
        with tfi.tf.GradientTape() as tape:
            tape.watch([given[k] for k in sources])
            outputs = self._run(*given)
        return [k for k, gradient in zip(sources, tape.gradient(outputs, [given[k] for k in sources])) if gradient is not None]

    def holds(self):
        """Returns whether the layer has not changed since the first call."""
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
            name, n_outputs, backward, n_gradients, kept, places = runtime_functions.forward_and_backward(self._concrete)
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
        given = [inputs, *flat_states(states), *([mask] if self._masked else []), *dropout_masks(self._cells), *[v._value for v in self._weights]]
        given = [tf.convert_to_tensor(x) for x in given]
        if self._guard is None:
            with without_dropout(self._cells):
                self._guard = guard_of(closure(self._step_function)["self"].cell_contents)  # now: cells have noted that they were called, and variables that they were read
        n = len(self._outputs)
        if tfi.tape_set_is_empty() or self._among.computes_again:
            outputs = runtime_functions.execute_function(self._plain, given, n, n)
        else:
            if self._keeping is None:
                with interception.imperative():
                    self._make_keeping()
            name, n_all, *_ = self._keeping or (self._plain, n)
            outputs = runtime_functions.execute_function(name, given, n_all, n)
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
        scope = backend().StatelessScope(state_mapping=list(zip(self._weights, weights, strict=True)))
        with WithDropout(self._cells, masks), scope:
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
            found = runtime_functions.execute_function(backward, [*gradients, *[given[k] for k in kept]], n_found)
            found = [found[places[k]] for k in self._sources]
        else:
            if self._backward is None:
                with interception.imperative():
                    self._make_backward()
            found = runtime_functions.execute_function(self._backward, [*inputs, *gradients], len(self._sources))
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
    """Returns whether a function does nothing that its operation would not do as eager execution does: random numbers, checks, printing."""
    functions = variable_use.reachable_functions(fdef).values()
    return not fdef.signature.is_stateful and not any(node.op in variable_use.CHECKS for f in functions for node in f.node_def)


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
    given = [runtime_functions.execute_function(name, tensors, n_outputs) for tensors in samples]
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
