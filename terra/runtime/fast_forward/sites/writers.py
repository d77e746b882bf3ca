"""Functions of TensorFlow's that write what they are given somewhere outside of the program: prints and summaries.

A step calls one as a whole, eagerly, with the values of its tensors. So nothing of it is part of the graph, and where the step is skipped, the call is made behind the graph (see `purity.unknown.writing`).
"""

import functools
import inspect
import weakref
from threading import get_ident
from typing import Any, Callable, Iterator

import numpy as np

from terra import ours
from terra.frameworks import tensorflow
from terra.location import current_step
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.sources.opaque_calls import Behind
from terra.runtime.tensors.object_kinds import TENSORS
from terra.runtime.tracing.tracer import host_value
from terra.tf import private_names as tfi

_PLAIN = frozenset([int, float, str, bool, type(None), bytes])
_PRINT = tfi.tf.print


class Writer(Behind):
    """Called in place of one of these functions."""

    __slots__ = ("function", "_has_step", "_traced", "__name__", "__qualname__")

    def __init__(self, function: Callable):
        self.function = function
        self._has_step = "step" in inspect.signature(function).parameters
        self._traced = Traced(function, _OFTEN) if function in tensorflow.CALCULATING else None
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__

    @ours.calling
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        step = current_step.active
        if step is None:
            return self._written(changed(host_value, args), changed(host_value, kwargs))
        if type(step) is not Step or step.thread != get_ident() or not tfi.executing_eagerly():
            return self.function(*args, **kwargs)
        taken = self.taken(args, kwargs)
        return self.function(*args, **kwargs) if taken is None else self.write(step, *taken)

    @property
    def writes_summaries(self) -> bool:
        """Whether it depends on the state of the summaries what it does."""
        return self.function is not _PRINT

    def write(self, step: Any, args: list, kwargs: dict) -> Any:
        """Calls the function with the values of the step's tensors."""
        args, kwargs = changed(host_value, args), changed(host_value, kwargs)
        return aside(step, lambda: self._written(args, kwargs))

    def _written(self, args: Any, kwargs: dict) -> Any:
        return self.function(*args, **kwargs) if self._traced is None else self._traced(*args, **kwargs)

    def taken(self, args: tuple, kwargs: dict, convert: Callable = tfi.tf.convert_to_tensor) -> tuple[list, dict] | None:
        """Returns the arguments with the values that variables have now, of which `convert` makes tensors, among them the step that TensorFlow has set where none is given; None if there are other objects
        among them."""
        args, kwargs = list(args), dict(kwargs)
        if self._has_step and self.is_without_step(args, kwargs) and tfi.is_variable(tfi.summary_state.step):
            kwargs["step"] = tfi.summary_state.step
        if not all(self._takes(x) for x in leaves((args, kwargs))):
            return None
        value = lambda x: convert(x) if tfi.is_variable(x) else x  # noqa: E731
        return changed(value, args), changed(value, kwargs)

    def is_without_step(self, args: Any, kwargs: dict) -> bool:
        """Returns whether TensorFlow looks for the number of the step elsewhere."""
        try:
            return self._has_step and inspect.signature(self.function).bind(*args, **kwargs).arguments.get("step") is None
        except TypeError:
            return False  # the function will raise it

    def _takes(self, it: Any) -> bool:
        """Returns whether it makes no difference when this argument is looked at."""
        kind = type(it)
        if kind in _PLAIN or kind in TENSORS or isinstance(it, np.generic) or kind in tfi.RESOURCE_VARIABLES:
            return True
        return hasattr(it, "write") if self.function is _PRINT else tfi.is_variable(it)


class Traced:
    """The graphs of a function that runs many operations before it writes summaries: one for each writer, and for each choice of the arguments that are no tensors, from so many calls on."""

    def __init__(self, function: Callable, often: int):
        self._function, self._often = function, often
        self._of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # writer -> {what identifies the arguments -> [how often they came, the function that calls with the tensors among them]}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        form = self._form(args, kwargs)
        return self._function(*args, **kwargs) if form is None else form(*[x for x in leaves((args, kwargs)) if type(x) is tfi.EagerTensor])

    def _form(self, args: Any, kwargs: dict) -> Callable | None:
        """Returns what to call with the tensors among the arguments; None if the function had better be called itself."""
        state = tfi.summary_state
        if tfi.get_name_scope() or state.is_recording not in (None, True) or state.is_recording_distribution_strategy is not True:
            return None
        key = []
        for x in leaves((args, kwargs)):
            if type(x) is tfi.EagerTensor:
                key.append((x.dtype, len(x.shape)))
            elif type(x) in _PLAIN or isinstance(x, tfi.SummaryWriter):
                key.append((type(x), x))
            else:
                return None
        known = self._of.setdefault(state.writer or _NOWHERE, {})
        if len(known) > _MOST:
            known.clear()
        found = known.setdefault((*key, *kwargs), [0, None])
        found[0] += 1
        if found[0] == self._often:
            found[1] = tfi.tf.function(functools.partial(self._call, changed(lambda x: _TENSOR if type(x) is tfi.EagerTensor else x, (args, kwargs))), autograph=False, reduce_retracing=True)
        return found[1]

    def _call(self, template: tuple, *tensors: Any) -> Any:
        rest = iter(tensors)
        args, kwargs = changed(lambda x: next(rest) if x is _TENSOR else x, template)
        return self._function(*args, **kwargs)


class _Nowhere:
    """Stands for no writer."""


_NOWHERE = _Nowhere()
_MOST = 1000  # graphs for one writer
_OFTEN = 4  # times that such a call came, from which on there is a graph for it
_TENSOR = object()


def changed(how: Callable, it: Any) -> Any:
    """Returns a structure of lists, tuples and dicts like `it`, with what `how` makes of what is in these."""
    kind = type(it)
    if kind is list or kind is tuple:
        return kind([changed(how, x) for x in it])
    return {name: changed(how, x) for name, x in it.items()} if kind is dict else how(it)


def leaves(it: Any) -> Iterator:
    """Lists what is in such a structure."""
    if type(it) in (list, tuple, dict):
        for x in it.values() if type(it) is dict else it:
            yield from leaves(x)
    else:
        yield it


def containers(it: Any) -> Iterator:
    """Lists the lists, tuples and dicts in such a structure of which the outermost is a tuple, but for that."""
    for x in it.values() if type(it) is dict else it:
        if type(x) in (list, tuple, dict):
            yield x
            yield from containers(x)


def aside(step: Any, call: Callable) -> Any:
    """Makes a call whose operations are none of the step's."""
    step.pause()
    try:
        return call()
    finally:
        step.resume()


WRITERS = {function: Writer(function) for function in tensorflow.WRITING}  # what is called in place of each
