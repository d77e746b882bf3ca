"""The public functions."""

from terra import logs, transform
from terra.frontends import at_exit, forks, replicas, script, stance  # noqa: F401  (`at_exit` waits for the last steps)
from terra.runtime.fast_forward.purity import user_code
from terra.runtime.fast_forward.sites import substitution
from terra.runtime.fast_forward.steps import pure_functions
from terra.runtime.execution import interception
from terra.frontends.gradient_tape import raise_late_error
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.methods import BoundStep
from terra.tf import versions
from terra.transform import edits

imperative = interception.imperative
set_stance = stance.set_stance
substitution.install(pure_functions, user_code.observe)
edits.watch = versions.watch
logs.install()
stance.from_environment()


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
    interception.end_open_step()
    GRAPH_RUNNER.sync()
    interception.remove_if_idle()
    raise_late_error()
