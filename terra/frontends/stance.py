"""`terra.set_stance`: whether steps are co-executed at all, and whether one that leaves its graph is an error."""

import difflib
import os

from terra import errors
from terra.location import current_step
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.fallback import stance

STANCES = ("default", "imperative", "fail_on_fallback")
_now = ["default"]


class set_stance:
    """Say how steps run from now on, in the whole process; as a context manager, until its end.

    "default": they are co-executed. "imperative": all of them run as plain eager Python, the program's own functions, as under the environment variable
    `TERRA_DISABLE=1`. "fail_on_fallback": one that leaves its graph raises a `terra.FallbackError` with the reason, once all that it does has been done.

    Waits for the steps in flight. Raises: OptionError for another word.
    """

    def __init__(self, stance_: str) -> None:
        if stance_ not in STANCES:
            close = difflib.get_close_matches(str(stance_), STANCES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(map(repr, STANCES))}."
            raise errors.OptionError(f"terra.set_stance knows no {stance_!r}; {hint}")
        self._before = _now[0]
        _change(stance_)

    def __enter__(self) -> "set_stance":
        return self

    def __exit__(self, *exc: object) -> None:
        _change(self._before)

    def __repr__(self) -> str:
        return f"<terra stance {_now[0]!r}>"


def _change(name: str) -> None:
    """Take another stance, once the steps in flight are done."""
    interception.end_open_step()
    GRAPH_RUNNER.sync()
    _set(name)


def _set(name: str) -> None:
    _now[0] = name
    stance.fails = name == "fail_on_fallback"
    current_step.leave_steps_alone(name == "imperative")


def from_environment() -> None:
    """Take the stance that `TERRA_DISABLE` asks for."""
    if os.environ.get("TERRA_DISABLE", "").strip().lower() not in ("", "0", "false", "no"):
        _set("imperative")
