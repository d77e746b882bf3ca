"""The public functions."""

import inspect

from terra import errors, transform
from terra.options import Options
from terra.runtime import at_exit, dispatch, fast_forward, forks, replicas, script  # noqa: F401  (`at_exit` waits for the last steps)
from terra.runtime.coexecution import Coexecuted
from terra.runtime.gradient_tape import raise_late_error
from terra.runtime.graph_runner import runner
from terra.runtime.methods import BoundStep
from terra.transform import instrument, reason

imperative = dispatch.imperative
fast_forward.install()


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
    _check(fn)
    python = instrument(fn) if made.transform else fn
    return Coexecuted(fn, python, made, located=made.transform and reason(fn) is None)


def _check(fn):
    name = getattr(fn, "__qualname__", repr(fn))
    if inspect.isclass(fn):
        raise errors.DecorationError(f"terra.coexecute got the class {name}; decorate the method that runs one step instead.")
    if not callable(fn):
        raise errors.DecorationError(f"terra.coexecute got {fn!r}, which is not callable; give it the function that runs one step.")
    called = (fn, type(fn).__call__)  # the function, or what an object does when it is called
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in called):
        raise errors.DecorationError(f"terra.coexecute got the async function {name}; a step must be done when its call returns.")
    if any(inspect.isgeneratorfunction(f) for f in called):
        raise errors.DecorationError(f"terra.coexecute got the generator function {name}; a step must be done when its call returns.")
    if isinstance(fn, Coexecuted):
        raise errors.DecorationError(f"{name} is co-executed already; decorate it once.")


def to_code(function):
    """The instrumented source of a function, or of the one that a step is made of, as a person reads it (comments are lost).

    Raises: TypeError for what is no Python function or method.
    """
    if isinstance(function, BoundStep):
        function = function.__func__
    if isinstance(function, Coexecuted):
        return to_code(function.__wrapped__)
    if script.steps_of(function) is not None:  # what a function with a tape is in a script
        return to_code(script.steps_of(function))
    return transform.to_code(function)


def sync():
    """Wait for all graph work in flight. An error of a step that is in flight is raised here if nothing has raised it before."""
    dispatch.end_open_step()
    runner.sync()
    dispatch.remove_if_idle()
    raise_late_error()
