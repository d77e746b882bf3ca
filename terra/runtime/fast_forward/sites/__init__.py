"""Call sites: which calls are skipped, and what is called in their place.

An instrumented call site asks `fast_forward` what to call instead of its callee; the answer is kept
at the location. The answer depends on the callee:

* `skipping`: layers, models, losses, metrics, optimizers, methods of tapes.
* `fast_calls`: single functions, operators, methods of variables.
* `user_layers`: the wrapper around the `call` of the program's own Keras layers.
* `loss_scaling`: the parts of Keras' `LossScaleOptimizer`.
* `walks`, `walk_recording`: the parts of a call of the framework's that cannot be skipped as a whole.
* `builtin_loops`: `sum`, `map` and `functools.reduce`, with a location for each item.

Other calls are reached without a call site. `framework_calls` replaces methods of the framework that
the block of a gradient tape calls, or the framework itself where a call of it cannot be skipped as a
whole; `gradient_functions` skips single gradient functions that a tape
calls, and `framework_loops` wraps the loop of `tf.while_loop`, whose iterations get locations.
"""
