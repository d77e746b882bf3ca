"""What a run of user code has read of the world around it, and whether that is still the same.

Each read is noted with what it gave: an entry of a dict (attributes, globals, what a class defines) by the object itself or, if it is a scalar, by
value; the contents of lists and dicts; cells and slots. Nothing is walked when it is compared.
"""

from operator import attrgetter, is_, itemgetter

from terra.runtime import guards
from terra.runtime.regions import SCALARS, Unskippable

_MOST_BYTES = 10_000  # of an array that is compared
_code = attrgetter("__code__")
_defaults = attrgetter("__defaults__")
_contents = attrgetter("cell_contents")


class Reads:
    """Collects reads; after `seal()`, `holds()` compares them."""

    def __init__(self):
        self._entries = {}  # id of a dict -> (the dict, {key: what it gave})
        self._absent = {}  # (id of a dict, key) -> the dict
        self._asked = {}  # (function, id of its argument) -> (argument, what it gave)
        self._arrays = {}  # id -> (array, its bytes)
        self._walk = guards.Walk(guards.Snapshot(), [], reading=True)
        self._settings = []
        self._classes = {}  # id -> (what `user_layers` knows of a class, the class)

    # -- what is noted ---------------------------------------------------------------------------------------------------------

    def entry(self, space, key, value, owner=None):
        """`space[key]` was `value`. `owner`: the class whose namespace `space` is."""
        self._entries.setdefault(id(owner or space), (space, {}))[1].setdefault(key, value)

    def absent(self, space, key, owner=None):
        """`space` has no `key`."""
        self._absent[id(owner or space), key] = space

    def asked(self, function, argument, value):
        """`function(argument)`, a look without side effects, gave `value`."""
        self._asked[function, id(argument)] = argument, value

    def contents(self, container, owner=None):
        """The list, dict or set was looked into, or the namespace of the class `owner`; returns what it held."""
        return self._walk.containers.add(container, owner)

    def array(self, array):
        """The numpy array was used. Raises Unskippable if it is large."""
        if array.nbytes > _MOST_BYTES or array.dtype.hasobject:
            raise Unskippable
        self._arrays[id(array)] = array, array.tobytes()

    def parts(self, owner):
        """A property of the framework's looked at the object `owner` and its parts."""
        self._walk.object(owner)

    def variable(self, variable):
        self._walk.variable(variable)

    def layers_class(self, known, cls):
        """The class `cls` of a user's layers is as `user_layers` knows it."""
        self._classes[id(cls)] = known, cls

    def function(self, function, globals_read):
        """A user's function was called: its code and defaults, the globals of these names, what its cells hold."""
        self.asked(_code, function, function.__code__)
        self.asked(_defaults, function, function.__defaults__)
        if function.__kwdefaults__:
            self.contents(function.__kwdefaults__)
        space, builtins = function.__globals__, function.__builtins__ if hasattr(function, "__builtins__") else {}
        for name in globals_read:
            if name in space:
                self.entry(space, name, space[name])
            else:
                self.absent(space, name)
                if name in builtins:
                    self.entry(builtins, name, builtins[name])
        for cell in function.__closure__ or ():
            try:
                self.asked(_contents, cell, cell.cell_contents)
            except ValueError:  # an empty cell: using it would have raised
                pass

    def guard(self, guard):
        """What a skipped call of the framework depended on."""
        self._walk.containers.update(guard.containers)
        for array, held in guard.arrays:
            self._arrays[id(array)] = array, held
        if guard.reads is not None:
            self._merge(guard.reads)
        if guard.root is not None and guard.root not in [root for root, _ in self._settings]:
            self._settings.append((guard.root, None))

    def _merge(self, other):
        for key, (space, entries) in other._entries.items():
            self._entries.setdefault(key, (space, {}))[1].update(entries)
        self._absent.update(other._absent)
        self._asked.update(other._asked)
        self._arrays.update(other._arrays)
        self._classes.update(other._classes)
        self._walk.containers.update(other._walk.containers)
        self._settings += [pair for pair in other._settings if pair[0] is not None and pair[0] not in [root for root, _ in self._settings]]

    # -- what is compared ------------------------------------------------------------------------------------------------------

    def values(self):
        """All objects that were read."""
        for _, entries in self._entries.values():
            yield from entries.values()
        for _, value in self._asked.values():
            yield value

    def seal(self, settings):
        """Nothing more will be noted; `settings` are those ({root: value}) at the beginning of the run."""
        self._settings = [(root, settings[root]) for root in [None, *[root for root, _ in self._settings]]]
        self._groups = [
            (space, itemgetter(*entries, next(iter(entries))), (*entries.values(), next(iter(entries.values()))))
            for space, entries in self._entries.values()]
        self._gaps = [(space, key) for (_, key), space in self._absent.items()]
        self._answers = [(function, argument, value) for (function, _), (argument, value) in self._asked.items()]
        self._held_arrays = list(self._arrays.values())
        self._known = list(self._classes.values())
        self._containers = self._walk.containers

    def holds(self):
        """Whether all that was read is still the same."""
        for space, get, held in self._groups:
            try:
                now = get(space)
            except KeyError:
                return False
            if not all(map(is_, now, held)) and not guards.equal(now, held):
                return False
        for space, key in self._gaps:
            if key in space:
                return False
        for function, argument, value in self._answers:
            try:
                now = function(argument)
            except (ValueError, AttributeError):  # an empty cell or slot
                return False
            if now is not value and not (type(now) in SCALARS and guards.equal((now,), (value,))):
                return False
        for known, cls in self._known:
            if not known.holds(cls):
                return False
        if not self._containers.holds():
            return False
        for array, held in self._held_arrays:
            if array.tobytes() != held:
                return False
        return all(guards.equal(guards.settings(root), held) for root, held in self._settings)
