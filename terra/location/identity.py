"""Which object it is: a step may be given others in the place of its arguments, and the program is to find them the same."""

from typing import Any

pairs: dict[int, tuple[Any, Any]] = {}  # id of a step's argument for which something stands while the step's function runs, or of that -> (the argument, that)


def itself(it: Any) -> Any:
    """Returns what the program takes an object for when it asks which one it is, by `is`, `id(...)` or `ref()`."""
    return pairs.get(id(it), (it,))[0] if pairs else it
