"""Whether a step that leaves its graph is an error: what `terra.set_stance("fail_on_fallback")` asks for."""

from terra import errors

fails = False  # whether it is


def check(step) -> None:
    """The step is over, and all that it does has been done. Raises: FallbackError if it has left its graph, and that is an error."""
    if fails and step.fallback_reason is not None:
        raise errors.FallbackError(
            f"{step.function.policy.name} left its graph: {step.fallback_reason}. The step was finished eagerly; it is an error because of terra.set_stance('fail_on_fallback').")
