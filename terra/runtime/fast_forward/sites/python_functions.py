"""`tf.numpy_function` and `tf.py_function`: a step calls the function itself, with the values of its tensors, and what that gives is fed to its graph."""

import functools
import inspect
from threading import get_ident
from typing import Any, Callable

import numpy as np

from terra import ours
from terra.frameworks import tensorflow
from terra.location import current_step
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.sites.writers import aside, changed
from terra.runtime.tensors.tensor import noted
from terra.runtime.tracing.tracer import host_value
from terra.tf import private_names as tfi


class PythonFunction:
    """Called in place of one of the two."""

    __slots__ = ("function", "arrays", "_differentiates", "_parameters", "__name__", "__qualname__")

    def __init__(self, function: Callable):
        self.function = function
        self.arrays = _Arrays(self)
        self._differentiates = function not in tensorflow.WITHOUT_GRADIENT
        self._parameters = inspect.signature(function)
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__

    @ours.calling
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        step = current_step.active
        taken = self.taken(args, kwargs) if type(step) is Step and step.thread == get_ident() else None
        return self.function(*args, **kwargs) if taken is None else changed(functools.partial(fed, step), self.call(*taken))

    def taken(self, args: tuple, kwargs: dict, convert: Callable = tfi.tf.convert_to_tensor) -> tuple | None:
        """Returns (the program's function, what it is given, the types of what it gives), with tensors in place of variables, which `convert` makes; None if the call is to be made as it is: what the
        program's function does may have gradients."""
        try:
            given = self._parameters.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        if not tfi.executing_eagerly() or type(given.get("inp")) not in (list, tuple) or given.get("Tout") is None or (self._differentiates and not tfi.tape_set_is_empty()):
            return None
        return given["func"], [convert(x) if tfi.is_variable(x) else x for x in given["inp"]], given["Tout"]

    def call(self, function: Callable, given: list, types: Any) -> Any:
        """Calls the program's function; returns what it gives, as tensors."""
        step, values = current_step.active, changed(host_value, given)
        make = lambda: self.function(function, values, types)  # noqa: E731
        return make() if step is None else aside(step, make)


class _Arrays:
    """Calls such a function; gives arrays."""

    __slots__ = ("_of", "__name__", "__qualname__")

    def __init__(self, of: PythonFunction):
        self._of, self.__name__, self.__qualname__ = of, of.function.__name__, of.function.__qualname__

    def __call__(self, function: Callable, given: list, types: Any) -> Any:
        return changed(lambda x: np.asarray(x.numpy()) if type(x) is tfi.EagerTensor else x, self._of.call(function, given, types))


def fed(step: Any, given: Any) -> Any:
    """Returns the tensor that is fed to the graph for one that a Python function has given, or for an array; anything else as it is."""
    if type(given) is not tfi.EagerTensor and type(given) is not np.ndarray:
        return given
    return step.hold_data(noted(given if type(given) is tfi.EagerTensor else tfi.eager_constant(given, None)))


PYTHON_FUNCTIONS = {function: PythonFunction(function) for function in tensorflow.CALLING_PYTHON}  # what is called in place of each
