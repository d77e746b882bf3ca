"""Operations that a step runs again on the same inputs, with the same attributes: the graph computes them once.

Keras' optimizers compute the same few numbers (a corrected learning rate, the norm of all gradients) anew for each variable: a fifth to a quarter of
all operations of a step.
"""

import math

MOST_ELEMENTS = 1 << 14  # of a result: a large one is computed again rather than kept, as `tf.recompute_grad` wants it


class CommonSubexpressions:
    """The results of one function's operations."""

    def __init__(self):
        self._made = {}  # (operation, refs of its inputs) -> refs of its outputs

    def find(self, info, refs):
        """The outputs of the same operation on the same inputs; None if there was none."""
        return self._made.get((info, *refs))

    def note(self, event, refs, outputs):
        """An operation was written."""
        if event.info.schema.plain and outputs and not event.info.op_type.startswith("Inplace") and not event.has_open_shape and all(math.prod(shape) <= MOST_ELEMENTS for shape in event.out_shapes):
            self._made[(event.info, *refs)] = outputs
