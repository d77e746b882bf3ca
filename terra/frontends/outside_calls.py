"""Calls of models, layers, losses and metrics that stand outside of any step, as steps of their own: part of what `python -m terra run` does.

Where a program validates, samples, or lets an agent act, it calls its model without a tape. Each such call by the program's own code is a step: of this
model, layer, loss or metric, with traces and a graph of its own. Stock layers are left alone, as one of them does too little, and so are calls that
a tape or an accumulator records.
"""

import sys
import threading
import types
import weakref

from terra import ours
from terra.frameworks import framework_objects, keras
from terra.frontends import gradient_tape
from terra.frontends.decorator import coexecute
from terra.location import current_step
from terra.runtime.fast_forward.sites import framework_calls
from terra.runtime.interpreter import frames
from terra.tf import private_names as tfi

_ENOUGH = 40  # steps of an object that are worth its graph

_steps = weakref.WeakKeyDictionary()  # class -> {method: _Steps of its objects}
_made = [0]  # steps


def _call(callee, /, *args, **kwargs):
    return callee(*args, **kwargs)


def _update(metric, /, *args, **kwargs):
    return metric.update_state(*args, **kwargs)


def _result(metric, /):
    return metric.result()


_FORMS = {"__call__": _call, "update_state": _update, "result": _result}


def install(module=None):
    """Make steps of such calls from now on. `module`: that of Keras, which has just been imported."""
    framework_calls.outside = _make
    framework_calls.prepare()
    framework_calls.prepare_outside()


def may_begin():
    """Returns whether a step may begin on this thread, where none is under way: nothing records, and nothing is to be left alone."""
    return not current_step.left_alone.depth and tfi.executing_eagerly() and tfi.tape_set_is_empty() and (
        type(threading.current_thread()) is not threading._DummyThread)  # of TensorFlow's: a graph may be waiting for it


def made():
    """Returns how many steps there were so far."""
    return _made[0]


@ours.calling
def _make(function, called, args, kwargs):
    """A call of the framework's method `function`, outside of any step."""
    kind, name = type(called), function.__name__
    if (framework_objects.original(getattr(kind, name)) is not function  # a method of the program's own has called the framework's
            or framework_objects.is_stock_layer(kind) or not may_begin() or not frames.is_users(frames.around_ours(sys._getframe(2)))
            or _is_symbolic(args) or _is_symbolic(kwargs.values())):
        return function(called, *args, **kwargs)
    steps = _steps_of(kind, name)
    if not steps.begin(called):
        return function(called, *args, **kwargs)
    _made[0] += 1
    return steps.coexecuted.__get__(called, kind)(*args, **kwargs)


def _is_symbolic(values):
    """Returns whether a functional model is being made, by these arguments or what they hold."""
    return any(_is_symbolic(x.values() if type(x) is dict else x) if type(x) in (list, tuple, dict) else keras.is_symbolic(type(x)) for x in values)


def _steps_of(kind, method):
    of_kind = _steps.setdefault(kind, {})
    if method not in of_kind:
        of_kind[method] = _Steps(kind, method)
    return of_kind[method]


class Lasting:
    """Which calls of objects may be steps. Each object has a graph of its own, so those that are made anew all the time are left alone."""

    def __init__(self):
        self._calls = {}  # id of an object -> how often it was called
        self._first = 0  # the first call of an object that is a step

    def begin(self, called):
        """Returns whether a call of an object is to be a step, and counts it."""
        key = id(called)
        calls = self._calls.get(key, 0)
        if not calls:
            weakref.finalize(called, self._depart, key).atexit = False
        self._calls[key] = calls + 1
        return calls >= self._first

    def _depart(self, key):
        calls = self._calls.pop(key)
        if self._first <= calls < self._first + _ENOUGH:
            self._first = 2 * calls


class _Steps(Lasting):
    """The steps of one method of the objects of a class."""

    def __init__(self, kind, method):
        super().__init__()
        form = _FORMS[method]
        named = types.FunctionType(form.__code__, form.__globals__, form.__name__)
        named.__qualname__ = f"{kind.__name__}.{method}"
        self.coexecuted = coexecute(named, **gradient_tape.defaults)
