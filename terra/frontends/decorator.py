"""`terra.coexecute`: a function whose calls are steps."""

import functools
import inspect

from terra import errors
from terra.options import Options
from terra.runtime.step_function.coexecution import Coexecuted
from terra.transform import instrument, reason


def coexecute(fn=None, /, **options):
    """Make an imperative TensorFlow function run as imperative-symbolic co-execution.

    Usable as `@terra.coexecute`, `terra.coexecute(fn)` and `@terra.coexecute(option=value)`; the options are the fields of `terra.Options`.
    The function may take and return anything and may use all of Python.

    Returns: a `Coexecuted`, called like `fn`.
    Raises: DecorationError for what cannot be a step (a class, a generator or async function, a non-callable); OptionError for a wrong option.
    """
    made = Options.make(options)
    if fn is None:
        return lambda f: coexecute(f, **options)
    if isinstance(fn, (staticmethod, classmethod)):  # in either order with these decorators
        return type(fn)(coexecute(fn.__func__, **options))
    _check(fn)
    python = instrument(fn) if made.transform else fn
    return Coexecuted(fn, python, made, located=made.transform and reason(fn) is None)


def _check(fn):
    name = getattr(fn, "__qualname__", repr(fn))
    if inspect.isclass(fn):
        raise errors.DecorationError(f"terra.coexecute got the class {name}; decorate the method that runs one step instead.")
    if isinstance(fn, (property, functools.cached_property)):
        kind, of = type(fn).__name__, getattr(fn, "fget", None) or getattr(fn, "func", None)
        raise errors.DecorationError(f"terra.coexecute got the {kind} {getattr(of, '__qualname__', 'of a class')}; put @terra.coexecute below @{kind}.")
    if not callable(fn):
        raise errors.DecorationError(f"terra.coexecute got {fn!r}, which is not callable; give it the function that runs one step.")
    called = (fn, type(fn).__call__)  # the function, or what an object does when it is called
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in called):
        raise errors.DecorationError(f"terra.coexecute got the async function {name}; a step must be done when its call returns.")
    if any(inspect.isgeneratorfunction(f) for f in called):
        raise errors.DecorationError(f"terra.coexecute got the generator function {name}; a step must be done when its call returns.")
    if isinstance(fn, Coexecuted):
        raise errors.DecorationError(f"{name} is co-executed already; decorate it once.")
