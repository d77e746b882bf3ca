"""Which attributes of an object guards compare: all but those that are others after each step, and that nothing of the framework's reads.

That is what Keras' loops and metrics leave in a model for themselves; and what the user's own code leaves in a layer or model of a class of the
user's, as in `self.loss = loss` or `self.steps += 1`. Of the latter the guard of a call of the framework's compares of what kind it is: a tensor, a
number, lists of these. Code of the user's that reads them is noticed by the observer. The framework's code is seen while it is recorded (see
`asked`): what it asks for is compared like the other attributes from then on.
"""

import functools
import inspect
import itertools
import weakref
from itertools import chain
from types import FunctionType

from terra.frameworks import keras
from terra.runtime.fast_forward.guards import asked
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import TENSORS, is_librarys, is_librarys_container
from terra.transform.source import codes_within

_MOST_DESCRIBED = 200  # words of a description: what holds more is compared as it is

_GONE = object()

_left = {}  # id of an object -> (weak reference to it, names of the attributes that the user's code leaves something in, those of them that the framework's code asks for)


def note_user_attribute(owner, name):
    """The user's code sets the attribute `name` of an object."""
    kind = type(owner)
    key = id(owner)
    known = _left.get(key)
    if known is not None and (name in known[1] or name in known[2]) and known[0]() is owner:
        return
    librarys = [cls for cls in kind.__mro__ if is_librarys(cls)]
    if not librarys or any(_has(cls, name) for cls in librarys):
        return
    known = _known_of(owner)
    if known is not None:
        known[1].add(name)


def note_class_attribute(cls, name):
    """The user's code sets such an attribute of a class: a number, say, that counts something."""
    if not any(_has(base, name) for base in cls.__mro__ if is_librarys(base)) and (known := _known_of(cls)) is not None and name not in known[2]:
        known[1].add(name)


def namespace(cls, held):
    """Returns those attributes of a class that are to be compared, out of those that it has: `held`."""
    known = _left.get(id(cls))
    return AttributeFilter(held, (), tuple(known[1]), id(cls)) if known is not None and known[1] and known[0]() is cls else held


def is_user_attribute(owner, name):
    """Returns whether guards compare of the attribute only of what kind it is."""
    known = _left.get(id(owner))
    return known is not None and known[0]() is owner and name in known[1]


def users_own(owner):
    """Returns the names of the attributes that an object of a class of the user's has, and nothing of the framework's reads as far as is known."""
    librarys = [cls for cls in type(owner).__mro__ if is_librarys(cls)]
    known = _known_of(owner)
    return [] if known is None else [name for name in vars(owner) if name not in known[2] and not any(_has(cls, name) for cls in librarys)]


def _known_of(owner):
    """The entry of `_left` for an object; None if there are no weak references to it."""
    key = id(owner)
    known = _left.get(key)
    if known is None or known[0]() is not owner:
        try:
            known = _left[key] = weakref.ref(owner, lambda _: _left.pop(key, None)), set(), set()
        except TypeError:
            return None
    return known


def note_asked(found):
    """The framework's code asks for these attributes: [(id of an object, name)]."""
    for key, name in found:
        _, left, wanted = _left.get(key, (None, set(), set()))
        left.discard(name)
        wanted.add(name)


class AttributeFilter:
    """The attributes of an object, without those in `passing`, and `states`, which count as arguments; of those in `left` the kinds, in the end: setting one may put it to the end of the others.

    Lists and dicts that are left in a layer count among its parts: of these, those that hold nothing but tensors and plain values are not compared.
    """

    __slots__ = ("held", "left", "owner", "passing", "states")

    def __init__(self, held, passing, left, owner, states=()):
        self.held, self.left, self.owner, self.states = held, left, owner, frozenset(states)
        self.passing = frozenset((*passing, *left, *states, *(keras.OF_TRACKING if left else ())))

    def __len__(self):
        return 2 * (len(self.held) - sum(name in self.held for name in self.passing) + len(self.left)) + len(self._parts())

    def _parts(self):
        """The tracked parts of a layer that are compared."""
        parts = self.held.get(keras.PARTS_OF_LAYERS) if self.left else None
        return [x for x in parts if not (is_librarys_container(type(x)) and _described(x) is not x)] if type(parts) is list else ()

    def __iter__(self):
        passing, held = self.passing, self.held
        kept = (item for item in held.items() if item[0] not in passing)
        return chain.from_iterable(chain(kept, ((name, _described(held.get(name, _GONE))) for name in self.left), (self._parts(),)) if self.left else kept)

    def as_it_was(self, noted):
        """Returns the attributes of the object with those in the place of others that are compared which it had when iterating gave `noted`; the rest are as they are."""
        pairs = itertools.takewhile(lambda pair: pair[0] not in self.left, zip(noted[::2], noted[1::2]))
        return {**{name: value for name, value in self.held.items() if name in self.passing}, **dict(pairs)}

    def in_order(self, *noted):
        """Brings what iterating has given, once or several times, into an order that does not depend on that of the attributes: what is set anew, as
        Keras' loops do with some, goes to the end."""
        n_parts = len(self._parts())
        found = []
        for given in noted:
            n = max(len(given) - n_parts, 0)
            pairs = sorted(zip(given[:n:2], given[1:n:2]), key=lambda pair: str(pair[0]))
            found.append([*chain.from_iterable(pairs), *given[n:]])
        return found


def attributes(owner, states=()):
    """Returns those attributes of `owner` that are to be compared, as a dict or an AttributeFilter; `states`: (id of an object, name) of those that count as arguments of the call."""
    kind, held = type(owner), vars(owner)
    if "_call_result" in held and any(map(keras.is_of_tf_keras, kind.__mro__)):
        passing = keras.OF_RESULTS
    else:
        passing = keras.OF_LOOPS if hasattr(kind, "fit") and hasattr(kind, "train_step") else ()
    known = _left.get(id(owner))
    states = [name for key, name in states if key == id(owner)]
    left = tuple(name for name in known[1] if name not in states) if known is not None and known[0]() is owner else ()
    return AttributeFilter(held, passing, left, id(owner), states) if passing or left or states else held


def states_of(container):
    """The names of attributes that a guard leaves out because they count as arguments."""
    return container.states if type(container) is AttributeFilter else frozenset()


def _described(value):
    """Returns a text that describes `value` if it is tensors and plain values, or lists, tuples and dicts of these; else itself."""
    words = []
    return " ".join(words) if _describe(value, words) else value


def _describe(value, words):
    kind = type(value)
    if kind in TENSORS:
        words.append("tensor")
    elif kind in SCALARS:
        words.append(kind.__name__)
    elif kind is tuple or isinstance(value, (list, dict)):
        words.append(f"{kind.__name__}(")
        if len(words) > _MOST_DESCRIBED or not all(_describe(x, words) for x in (value.values() if isinstance(value, dict) else value)):
            return False
        words.append(")")
    else:
        return False
    return True


@functools.lru_cache(None)
def _has(cls, name):
    """Returns whether a class of the framework's has such an attribute, or its methods and properties ask their own object for it."""
    return name in vars(cls) or any(asked.asks_its_own(code, name) for code in _codes_of(cls))


@functools.lru_cache(None)
def _codes_of(cls):
    """The code of all methods and properties of a class of the framework's."""
    codes = []
    for value in vars(cls).values():
        for function in (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),):
            if type(function) is FunctionType:
                codes += codes_within(inspect.unwrap(function).__code__)
    return codes
