"""The patterns of `match`, observed: the subject is taken apart as the interpreter does it (PEP 634), and what that looks at is noted. The object
that stands in while nobody observes takes it apart in the same way."""

import collections.abc

_ABSENT = object()
_WHOLE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)  # classes of which the one position stands for the object itself


class Patterns:
    """The part of the Observer for patterns. Each gives a tuple of what the inner patterns are to match, or None."""

    def sequence(self, it, before, after, wanted):
        """So many items at the start and the end of a sequence, and in the middle, if `wanted`, a list of the others: None of those if `wanted` is
        false, and there must be none if it is None."""
        self.asks_kind(it, collections.abc.Sequence)
        match it:
            case [*_]:
                self.iterated(it)
            case _:
                return None
        count = len(it)
        if count < before + after or (wanted is None and count > before):
            return None
        if wanted is False:  # the interpreter does not iterate over it
            return (*[it[k] for k in range(before)], None, *[it[k] for k in range(count - after, count)])
        items = [*it]
        return tuple(items) if wanted is None else (*items[:before], self.fresh(items[before:count - after]), *items[count - after:])

    def mapped(self, it, keys, rest):
        """Returns what a mapping has for the keys and, if asked for the `rest`, a dict of all else."""
        self.asks_kind(it, collections.abc.Mapping)
        match it:
            case {}:
                pass
            case _:
                return None
        if len(self.items(it)) < len(keys):
            return None
        found, get = [], self.builtin(self.owner(it, "get").get) if keys else None
        for k, key in enumerate(keys):
            if key in keys[:k]:
                raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
            value = get(key, _ABSENT)
            if value is _ABSENT:
                return None
            found.append(value)
        if rest:
            others = dict(it)
            for key in keys:
                del others[key]
            found.append(self.fresh(others))
        return tuple(found)

    def instance(self, it, cls, positions, names):
        """Attributes of an instance of the class: those that it names for so many positions, and the others."""
        if not isinstance(cls, type):
            match it:
                case cls():  # which raises
                    pass
        if not self.is_instance(isinstance, it, cls):
            return None
        named = self._positional(cls, positions)
        found = [it] if named is None else []
        for name in (*(named or ()), *names):
            value = self.builtin(getattr)(it, name, _ABSENT)
            if value is _ABSENT:
                return None
            found.append(value)
        return tuple(found)

    def _positional(self, cls, count):
        """The names of the attributes at so many positions; None if the one position stands for the object itself."""
        if not count:
            return ()
        names = _ABSENT if cls in _WHOLE else self.builtin(getattr)(cls, "__match_args__", _ABSENT)
        whole = names is _ABSENT and issubclass(cls, _WHOLE)
        allowed = 1 if whole else 0 if names is _ABSENT else len(self.iterated(names))
        if count > allowed:
            raise TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{'s' * (allowed != 1)} ({count} given)")
        return None if whole else names[:count]
