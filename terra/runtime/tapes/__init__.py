"""Gradient tapes inside a step.

`lazy_tape` keeps what a tape would record, and tells the tape only when something asks it: where
`tape.gradient` is skipped, nobody needs the tape. `backward` takes apart the Python functions that
the framework's custom gradients record, so that a skipped call can make them anew. `jacobians`
makes the functions that TensorFlow traces for `tape.jacobian` and `tf.vectorized_map` equal from
step to step.
"""
