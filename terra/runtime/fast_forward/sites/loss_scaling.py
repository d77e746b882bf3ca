"""Fast-forward of Keras 3's `LossScaleOptimizer`, in its parts.

It reads two values each time that it is applied (whether the gradients are finite, whether the scale is due to grow), so that it is skipped as a
whole only while these are known to be steady. Until then the check of the gradients and the optimizer within, which are nearly all of its work, are
skipped for themselves.
"""

import functools
import sys
from threading import local

from terra.frameworks import keras

_applied = local()  # `inner`: the optimizer within the one that is being applied on this thread
_prepared = []  # the class, once that was done


def prepare(skipping):
    """Puts `skipping(function)` in the place of the parts of a loss-scaling optimizer, once: their calls are skipped from now on."""
    if _prepared:
        return
    scaling = sys.modules[keras.LOSS_SCALING].LossScaleOptimizer
    base = sys.modules[keras.BASE_OPTIMIZER].BaseOptimizer
    _prepared.append(scaling)
    if not all(name in vars(scaling) for name in ("check_finite", "_stateful_handle_finite_grads")) or "apply" not in vars(base):
        return  # another Keras, where it is made of other parts
    scaling.check_finite = skipping(scaling.check_finite)
    scaling._stateful_handle_finite_grads = _noting(scaling._stateful_handle_finite_grads)
    base.apply = _skipped_within(base.apply, skipping(base.apply))


def _noting(function):
    @functools.wraps(function)
    def method(self, *args, **kwargs):
        outer, _applied.inner = getattr(_applied, "inner", None), self.inner_optimizer
        try:
            return function(self, *args, **kwargs)
        finally:
            _applied.inner = outer

    return method


def _skipped_within(function, skipping):
    @functools.wraps(function)
    def method(self, *args, **kwargs):
        if getattr(_applied, "inner", None) is self:
            _applied.inner = None
            return skipping(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    return method
