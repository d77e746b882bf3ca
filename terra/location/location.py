"""Executed locations: where in the user's program an operation is issued.

Two operations of two traces are the same node only if they were issued at the same *executed location*: the stack of
call ids (one per call site on the way) and the stack of loop ids (one ``(loop id, loop counter)`` per loop on the way).
The instrumented code written by :mod:`terra.transform` keeps both stacks up to date while it runs.

The stacks are not lists that are compared: they are nodes of one tree, and the current location is a pointer to a node.

    ROOT --17--> call 17 --5--> loop 5 #0 --next--> #1 --next--> #2 --21--> call 21 ...

Pushing is a dictionary look-up, going to the next iteration is one attribute, popping is ``.parent``; and since a node
is made once and kept, two executed locations are equal if and only if they are the same object (``is``).

Outside of a step nobody reads locations, and a training loop of a million iterations must not leave a million nodes
behind. So a thread begins at :data:`OUTSIDE`, a node whose children, next iterations and parent are all itself. A step
begins by moving to :data:`ROOT` and ends by going back to where it came from (see :func:`begin_step`). A long loop *inside*
of a step does make nodes; :mod:`.growth` takes away those at which no operation was seen.

Nothing here knows TensorFlow. The numbers in the comments are for CPython 3.11.
"""

import itertools
import os
import threading
from types import MethodType
from typing import NamedTuple, Optional

from terra import ours
from terra.location.identity import itself
from terra.location.pruning import Pruner
from terra.location.suspension import Activation, Each, LazyEach
from terra.location.null_observer import NULL_OBSERVER

__all__ = ["Location", "Cursor", "Site", "ROOT", "OUTSIDE", "tls", "begin_step", "end_step", "register_site", "site"]


class Site(NamedTuple):
    """A place in the user's source that has an id: a call site or the head of a loop."""

    kind: str  # "call" or "loop"
    filename: str
    lineno: int
    function: str
    arguments: tuple = (0, 0)  # ids from the first to before the second are in the arguments of this call

    def __str__(self):
        return f"{os.path.basename(self.filename)}:{self.lineno}"


_ids = itertools.count(1)  # one sequence for both kinds: an id is unique in the process
_sites = {}


def register_site(kind, filename, lineno, function, first_argument=None):
    """Gives a call site or a loop its process-wide id; `first_argument` is the lowest id in a call's arguments, if there are any."""
    new = next(_ids)
    _sites[new] = Site(kind, filename, lineno, function, (first_argument or new, new))
    return new


def site(site_id) -> Optional[Site]:
    """The place that a call id or a loop id stands for."""
    return _sites.get(site_id)


def sites() -> list:
    """All places that have an id so far."""
    return list(_sites.values())


_pruner = Pruner()


class Location:
    """A node of the tree of executed locations. Made by other nodes only; compare with ``is``.

    ``id`` is the innermost call id or loop id, ``counter`` the loop counter (None for a call). ``callee`` and ``target``
    are an inline cache: the function that was called here last, and what to call in its place.
    """

    __slots__ = ("parent", "id", "counter", "children", "next", "callee", "target", "_stacks", "__weakref__")

    def __init__(self, parent, id, counter):
        self.parent = parent
        self.id = id
        self.counter = counter
        self.children = {}
        self.next = None
        _pruner.made += 1
        self.callee = self.target = _NOTHING
        self._stacks = None

    def call(self, call_id):
        """The location inside call site `call_id`."""
        # setdefault is atomic: two threads that arrive together get the same node.
        return self.children.setdefault(call_id, Location(self, call_id, None))

    def loop(self, loop_id):
        """The location at the head of loop `loop_id`, before its first iteration: counter 0."""
        try:
            return self.children[loop_id]
        except KeyError:
            pass  # made outside of the handler: an error in there (RecursionError) must not have this one as its context
        return self.children.setdefault(loop_id, Location(self, loop_id, 0))

    def grow(self):
        """Makes the location of the next iteration; generated code says ``loc.next or loc.grow()``."""
        counter = self.counter + 1
        if _pruner.made > _pruner.limit:
            _pruner.prune(ROOT)
        self.next = self.parent.children.setdefault((self.id, counter), Location(self.parent, self.id, counter))
        return self.next

    def _walk(self):
        """The nodes from the outermost to this one."""
        path = []
        node = self
        while node.parent is not node:
            path.append(node)
            node = node.parent
        return path[::-1]

    def _compute(self):
        path = self._walk()
        calls = tuple(n.id for n in path if n.counter is None)
        loops = tuple((n.id, n.counter) for n in path if n.counter is not None)
        self._stacks = calls, loops
        return self._stacks

    @property
    def call_ids(self):
        """The call id stack, outermost first."""
        return (self._stacks or self._compute())[0]

    @property
    def loop_ids(self):
        """The loop id stack: pairs (loop id, loop counter), outermost first."""
        return (self._stacks or self._compute())[1]

    def origin(self):
        """(filename, lineno) of the innermost call site or loop head; None at the root."""
        place = _sites.get(self.id)
        return place and (place.filename, place.lineno)

    def line(self):
        """The place in the source, as messages name it (`file.py:12`); None if it is not known."""
        place = _sites.get(self.id)
        return place and str(place)

    def origins(self):
        """The places of all ids on the way, outermost first: a stack for messages."""
        return [(n.id, n.counter, _sites.get(n.id)) for n in self._walk()]

    def __repr__(self):
        steps = []
        for id_, counter, place in self.origins():
            text = str(place) if place else f"id {id_}"
            steps.append(text if counter is None else f"{text} loop #{counter}")
        return f"<Location {' > '.join(steps) or 'root'}>"

    def __reduce__(self):
        raise TypeError("an executed location has a meaning only in its own process")

    # Locations are identities: a copy of a structure that holds them shares them.
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


class _Nothing:
    """The callee of a location that has not been called: identical to no function."""

    def __repr__(self):
        return "<nothing>"


_NOTHING = _Nothing()


class _Root(Location):
    __slots__ = ()

    def __init__(self):
        super().__init__(self, 0, None)

    def __repr__(self):
        return "<Location root>"

    def __reduce__(self):
        return "ROOT"


class _Outside(_Root):
    """The location of everything that is in no step: swallows pushes, so that it never grows."""

    __slots__ = ()

    def __init__(self):
        super().__init__()
        self.next = self

    def call(self, call_id):
        self.children[call_id] = self  # a plain dict that is filled, not __missing__: the look-up stays specialised
        return self

    loop = call

    def grow(self):
        return self

    def __repr__(self):
        return "<Location outside of any step>"

    def __reduce__(self):
        return "OUTSIDE"


ROOT = _Root()
OUTSIDE = _Outside()


def _call_as_is(there, callee):
    return callee


def forget_callees():
    """Empties all inline caches. Another thread that has just looked into one calls what was in it."""
    nodes = [ROOT]
    for node in nodes:
        node.callee = _NOTHING
        nodes.extend(list(node.children.values()))


# What `Cursor.enter` asks when the inline cache of the location does not know the callee. The transform puts its own
# resolver here (it instruments user functions on their first use); without it, everything is called as it is.
_resolve = _call_as_is


def set_resolver(resolve):
    """`resolve(location, callee)` returns what to call in place of `callee`; it must not raise."""
    global _resolve
    _resolve = resolve


def target_at(there, callee):
    """Returns the function to call at a location in place of `callee`: the one that an instrumented call site there would call."""
    return there.target if callee is there.callee else _resolve(there, callee)


@ours.calling
def call_here(callee, args, kwargs):
    """A call at the current location, as an instrumented call site makes it."""
    return target_at(tls.cursor.current, callee)(*args, **kwargs)


class Cursor:
    """The current location of one thread, and what instrumented code calls to move it.

    A call site ``f(x)`` becomes ``cursor.leave(cursor.enter(17, f)(x), 17)``: the call itself still happens in the user's
    frame. An exception skips ``leave``; function ends, ``except`` and ``finally`` heads and loops put the location right,
    and so does the ``leave`` of a library function that swallowed it.
    """

    __slots__ = ("current", "epoch")

    def __init__(self):
        self.current = OUTSIDE
        self.epoch = 0  # counts the beginnings of steps; a generator that lives on in the next step must notice

    def enter(self, call_id, callee):
        here = self.current
        try:
            there = here.children[call_id]
        except KeyError:
            there = None  # made outside of the handler, see Location.loop
        if there is None:
            there = here.call(call_id)
        self.current = there
        if callee is there.callee:
            return there.target
        if type(callee) is MethodType and callee.__func__ is there.callee:
            # A bound method is a new object at each call; its function is not.
            form = there.target
            return callee if form is there.callee else MethodType(form, callee.__self__)
        return _resolve(there, callee)

    def leave(self, value, call_id):
        here = self.current
        while here.id != call_id:  # a lambda was left by an exception that the callee swallowed; or outside of any step
            if here.parent is here:
                break
            here = here.parent
        self.current = here.parent
        return value

    # --- comprehensions and generator expressions ---

    def each(self, loop_id, iterable):
        """Iterates over `iterable` at one loop iteration after the other; for list, set and dict comprehensions.

        ``map`` and not a generator: errors of the iterable then come with no frame of ours in between.
        """
        return map(Each(self, self.current.loop(loop_id)).advance, iterable)

    def each_lazily(self, loop_id, iterable):
        """Does what `each` does for generator expressions, whose items are produced wherever the consumer happens to be."""
        return map(LazyEach(tls, loop_id).advance, iterable)

    def outermost(self, loop_id, iterable):
        """The first of several clauses of a generator expression: each item comes with the LazyEach of the last one."""
        return zip(itertools.repeat(LazyEach(tls, loop_id)), iter(iterable))

    def done(self, value):
        """An item of a generator expression is ready: back to the consumer."""
        self.current = self.current.parent
        return value

    def keep(self, condition):
        """A generator expression's ``if``: an item that is dropped ends here."""
        if condition:
            return True
        self.current = self.current.parent
        return False

    def after(self, here, value):
        """Goes back to `here`, which was noted before `value` was computed."""
        self.current = here
        return value


class _ThreadLocations(threading.local):
    """Per thread: ``cursor``; ``current`` reads and writes ``cursor.current``.

    ``tls.cursor.current`` takes 45 ns, ``tls.current`` 110: hot code should say the former.
    """

    def __init__(self):
        self.cursor = Cursor()
        self.observer = NULL_OBSERVER  # what the observed forms of functions show their operands to

    @property
    def current(self):
        return self.cursor.current

    @current.setter
    def current(self, location):
        cursor = self.cursor
        cursor.current = location
        if location is ROOT:
            cursor.epoch += 1

    def activation(self):
        """For generated code: the beginning of a generator's or coroutine's body."""
        return Activation(self)

    def visible(self, names):
        """``locals()``, ``vars()`` or ``dir()`` of an instrumented function, without the names that it was given."""
        if type(names) is list:
            return [n for n in names if not n.startswith(RESERVED)]
        if type(names) is dict:
            for name in [n for n in names if type(n) is str and n.startswith(RESERVED)]:
                del names[name]
        return names

    itself = staticmethod(itself)

    def __reduce__(self):
        return "tls"


# Local names that instrumented code adds begin like this.
RESERVED = "_terra_"

tls = _ThreadLocations()


def begin_step():
    """Moves the current thread to ROOT; returns what :func:`end_step` wants back."""
    cursor = tls.cursor
    saved = cursor.current
    cursor.current = ROOT
    cursor.epoch += 1
    return saved


def end_step(saved):
    """Moves the current thread back to where it was before the step."""
    tls.cursor.current = saved
    if _pruner.made > _pruner.limit:
        _pruner.prune(ROOT)
