"""Methods of the framework's that are call sites themselves: of layers, models, losses, metrics, optimizers and variables.

Calls are skipped at instrumented call sites otherwise (see `fast_forward`). There are none where

* the code of a tape's block calls these methods, or that behind the block. They look for a step themselves, if it is the user's own code that calls them. What a
  layer of the user's calls in turn is instrumented code, if its `call` is reached this way.
* the framework calls them in a call that cannot be skipped as a whole, such as that of a model one of whose layers does something that is not understood: the other
  layers are skipped each for itself (`Step.enters`).
"""

import functools
import sys
from threading import get_ident

from terra import ours
from terra.frameworks import keras, framework_objects
from terra.location import current_step, location
from terra.runtime.fast_forward.sites import fast_calls, skipping
from terra.runtime.interpreter import frames, tracebacks
from terra.tf import private_names as tfi

_waiting, _waiting_outside = [*keras.ENTRIES], [*keras.OUTSIDE_ENTRIES]  # for their modules to be imported
_variables = [tfi.ResourceVariable]  # until they are prepared
outside = None  # if calls outside of any step may be steps of their own: what makes them, given the method, the object and the arguments


def prepare():
    """Makes the framework's methods look for a step from now on."""
    _replace_methods(_waiting, lambda method: _callable if method == "__call__" else _method)
    if _variables:
        kind = _variables.pop()
        for method in fast_calls.VARIABLE_METHODS:  # which it inherits, as others do
            _replace(kind, method, getattr(kind, method), _variable_method)


def prepare_outside():
    """Makes further methods, which are parts of a step as others of the framework's are, look for what makes steps of calls outside of any."""
    _replace_methods(_waiting_outside, lambda method: _outside_only)


def _replace_methods(waiting, maker):
    """Replace the methods of those entries whose modules are imported by now, each once; `maker(name)` gives what makes the new one of a method."""
    for entry in [entry for entry in waiting if entry[0] in sys.modules]:
        waiting.remove(entry)
        module, name, methods = entry
        for kind in _stock_classes(getattr(sys.modules[module], name, None)):
            for method in methods:
                function = vars(kind).get(method)
                if function is not None:
                    _replace(kind, method, function, maker(method))


def _stock_classes(cls):
    """The class, if this Keras has it, and the stock ones under it."""
    found, kinds = set(), [] if cls is None else [cls]
    while kinds:
        kind = kinds.pop()
        if kind not in found and framework_objects.stock_package(kind.__module__) is not None:
            found.add(kind)
            kinds += kind.__subclasses__()
    return found


def _replace(cls, name, function, make):
    """Put what `make` makes of the framework's `function` in its place, if nobody has put anything there."""
    if not framework_objects.is_foreign(function) and framework_objects.original(function) is function:
        made = functools.wraps(function)(make(function))
        framework_objects.stand_in(made, function)
        setattr(cls, name, made)


def _calls(view):
    """Returns whether it is the user's own code, in or behind a block, that calls the caller of this: itself, or by an instrumented call site, where
    nothing is skipped behind a block."""
    if not view.in_block or view.thread != get_ident():
        return False
    frame = sys._getframe(2)
    return frames.is_users(frame) or (view.open_ended and not view.held and ours.is_ours(frame))


def _method(function, skips=None, kind=None):
    """A method of the framework's, which `skips` where it can, if that is given; for objects of no other class than `kind`, if that is given."""
    skips = skips or skipping.skipping(function)
    part = ours.calling(lambda owner, args, kwargs: skips(owner, *args, **kwargs))
    takes_data = function.__name__ == "update_state"

    def method(self, *args, **kwargs):
        try:
            view = current_step.active
            if view is None and takes_data and outside is not None:
                return outside(function, self, args, kwargs)
            if view is None or (kind is not None and type(self) is not kind):
                return function(self, *args, **kwargs)
            if view.enters is not None and view.enters.owner is not self and view.thread == get_ident():
                return view.enters.part(view, part, self, args, kwargs)
            if not _calls(view):
                return function(self, *args, **kwargs)
            if takes_data:
                args = view.with_batches(args)
            return view.call(skips, self, *args, **kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    return method


def _outside_only(function):
    def method(self, *args, **kwargs):
        try:
            if current_step.active is None and outside is not None:
                return outside(function, self, args, kwargs)
            return function(self, *args, **kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    return method


def _variable_method(function):
    return _method(function, fast_calls.skipping_variable_method(function), tfi.ResourceVariable)


def _callable(function):
    """How a layer, model or loss is called."""
    @ours.calling
    def __call__(self, *args, **kwargs):
        try:
            view = current_step.active
            if view is None and outside is not None:
                return outside(function, self, args, kwargs)
            if view is None or type(self).__call__ is not __call__:  # the user's own `__call__` has called this one
                return function(self, *args, **kwargs)
            if view.enters is not None and view.enters.owner is not self and view.thread == get_ident():
                return view.enters.part(view, location.call_here, self, args, kwargs)
            if not _calls(view):
                return function(self, *args, **kwargs)
            if framework_objects.is_stock_object(self):
                args = view.with_batches(args)
            return view.call(location.call_here, self, args, kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    return __call__
