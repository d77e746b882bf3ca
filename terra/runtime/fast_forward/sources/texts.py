"""Texts of what is read of tensors: made again, of what is read then, where a step is skipped that only prints, logs, writes or keeps them."""

from typing import Any

from terra.location.null_observer import formatted_as
from terra.tf import private_names as tfi


def text_of_tensor(value: Any, conversion: int, spec: str) -> str:
    """Returns the text that an f-string makes of the tensor with this value, an array or a number of NumPy's."""
    return formatted_as(tfi.eager_constant(value, None), conversion, spec)


def formatted(text: str, *args: Any) -> str:
    return text.format(*args)


def joined_by(separator: Any, pieces: tuple) -> Any:
    """Returns `separator.join(pieces)`: a text, or bytes."""
    return separator.join(pieces)


def joined(pieces: tuple) -> str:
    return "".join(pieces)
