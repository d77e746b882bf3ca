"""Lists and dicts that a call makes, and gives to unknown code: that may change them, and need not do so each time."""

from typing import Any, NamedTuple

from terra.runtime.fast_forward.sources.effects import put_contents


class Change(NamedTuple):
    """Tells what unknown code has done to a list or dict that it was given: where it stands among the arguments, what it held before, and what it holds since."""

    path: tuple
    before: dict
    after: Any

    def repeat(self, container: Any) -> None:
        """Does the same to another one, which holds the like of what this one held."""
        held = dict(_items(container))
        places = {id(x): key for key, x in self.before.items()}
        there = [(key, held[places[id(x)]] if id(x) in places else x) for key, x in _items(self.after)]
        put_contents(container, dict(there) if type(container) is dict else [x for _, x in there])


class BuiltArguments:
    """The lists and dicts among the arguments of a call that were made for it, at these `paths`."""

    __slots__ = ("_held",)

    def __init__(self, paths: tuple, values: tuple):
        self._held = [(path, it := _at(values, path), dict(_items(it))) for path in paths]

    def changes(self) -> list[Change]:
        """Returns what the call has done to them."""
        return [Change(path, before, it.copy()) for path, it, before in self._held if [(key, id(x)) for key, x in before.items()] != [(key, id(x)) for key, x in _items(it)]]


def repeat(changes: list[Change], values: tuple) -> None:
    """Changes what is given to a call in place of that which was made."""
    for change, it in [(change, _at(values, change.path)) for change in changes]:
        change.repeat(it)


def paths_of(parts: Any, path: tuple = ()) -> tuple:
    """Returns where there are lists and dicts among the parts of a call's arguments, and within each other."""
    found: list = []
    for key, part in _items(parts):
        found += [(*path, key)] * (type(part) in (list, dict))
        if type(part) in (list, dict, tuple):
            found += paths_of(part, (*path, key))
    return tuple(found)


def _items(it: Any) -> Any:
    return it.items() if type(it) is dict else enumerate(it)


def _at(it: Any, path: tuple) -> Any:
    for key in path:
        it = it[key]
    return it
