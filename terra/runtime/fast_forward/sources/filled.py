"""A list that a block only fills, and is a new one now and then: `losses = []` stands before the loop of an epoch, `losses.append(loss)` in the tape's block.

Were the list itself among the arguments of the function that the block becomes, it would be looked through in each step. A `Filled`, always the same, takes its place: it hands on what it is given
at once, and says nothing of what is in the list. So what the block appends is an effect like another one (see `effects`).
"""

import collections
import threading
from typing import Any, Iterable, Union

Growing = Union[list, collections.deque]


class Filled:
    """Stands for a list or deque, another one on each thread as `stand_for` says."""

    __slots__ = ("_here",)

    def __init__(self) -> None:
        self._here = threading.local()

    @property
    def container(self) -> Growing:
        """The list or deque that it stands for on this thread."""
        return self._here.container

    def stand_for(self, container: Any) -> Any:
        """From now on it stands for this one on this thread, which may be None. Returns for which it stood."""
        before = getattr(self._here, "container", None)
        self._here.container = container
        return before

    def append(self, item: Any, /) -> None:
        self._here.container.append(item)

    def extend(self, items: Iterable, /) -> None:
        self._here.container.extend(items)

    def pop(self) -> Any:
        """Takes back what was appended last."""
        return self._here.container.pop()
