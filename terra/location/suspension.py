"""Code that runs in pieces: comprehensions, generator expressions, generators and coroutines.

What instrumented code calls to keep its executed location right although its consumer, or another thread, or the next
step resumes it from somewhere else. See :mod:`.location` for the tree.
"""

__all__ = ["Activation", "Each", "LazyEach"]


class Each:
    __slots__ = ("cursor", "at")

    def __init__(self, cursor, at):
        self.cursor = cursor
        self.at = at

    def advance(self, item):
        self.cursor.current = self.at = self.at.next or self.at.grow()
        return item


class LazyEach:
    """Each item is computed on top of its consumer's location, which is left again when the item is done.

    With several clauses the items of the last one are counted, on and on; the others run at the consumer's location.
    """

    __slots__ = ("tls", "loop_id", "base", "epoch", "at")

    def __init__(self, tls, loop_id):
        self.tls = tls
        self.loop_id = loop_id
        self.base = None
        self.epoch = None
        self.at = None

    def advance(self, item):
        cursor = self.tls.cursor
        here = cursor.current
        if here is not self.base or cursor.epoch != self.epoch:
            self.base = here
            self.epoch = cursor.epoch
            self.at = here.loop(self.loop_id)
        cursor.current = self.at = self.at.next or self.at.grow()
        return item

    def each(self, iterable):
        return map(self.advance, iterable)


class Activation:
    """One activation of a generator or coroutine: hides its ids while it is suspended.

    Its base is the location of whoever resumes it. Before each ``yield`` or ``await`` the resumer's location is put back,
    after it the own one is set again; when another place resumes it (or the next step does), the own path is moved on top
    of the new base and its loops count from 0 again: the n-th step then sees the locations of the step before.
    """

    __slots__ = ("tls", "cursor", "base", "own", "epoch", "suspended")

    def __init__(self, tls):
        self.tls = tls
        self.cursor = cursor = tls.cursor
        self.base = self.own = cursor.current
        self.epoch = cursor.epoch
        self.suspended = False

    def suspend(self, value=None):
        cursor = self.cursor
        self.own = cursor.current
        cursor.current = self.base
        self.suspended = True
        return value

    def resume(self, value):
        self.wake()
        return value

    def wake(self):
        """Sets the own location again if the activation was suspended; also called at handler heads (``throw``, ``close``)."""
        if self.suspended:
            self.suspended = False
            cursor = self.cursor = self.tls.cursor  # perhaps another thread resumed it
            here = cursor.current
            if here is not self.base or cursor.epoch != self.epoch:
                self.own = _moved(self.own, self.base, here)
                self.base = here
                self.epoch = cursor.epoch
            cursor.current = self.own

    def _find(self, loop_id):
        """The iteration of `loop_id` that is under way, or None (first iteration; started outside of a step)."""
        node = self.cursor.current
        base = self.base
        while node is not base and node.parent is not node:
            if node.id == loop_id:
                return node
            node = node.parent
        return None

    def begin_loop(self, loop_id):
        self.cursor.current = self.cursor.current.loop(loop_id)

    def iterate(self, loop_id):
        if self.suspended:
            self.wake()
        cursor = self.cursor
        at = cursor.current
        if at.id != loop_id or at is self.base:
            at = self._find(loop_id) or at.loop(loop_id)
        cursor.current = at.next or at.grow()

    def end_loop(self, loop_id):
        if self.suspended:
            self.wake()
        at = self._find(loop_id)
        if at is not None:
            self.cursor.current = at.parent

    def reset(self, loop_id=None):
        """Puts the location right at the head of a handler inside loop `loop_id` (or inside none)."""
        if self.suspended:
            self.wake()
        at = self._find(loop_id) if loop_id is not None else None
        self.cursor.current = self.base if at is None else at

    def finish(self):
        if not self.suspended:  # else: thrown into and not caught; the current location is the resumer's already
            self.cursor.current = self.base


def _moved(own, old_base, new_base):
    """The path from `old_base` to `own`, on top of `new_base`, loop counters 0."""
    if own.parent is old_base and own is not old_base:  # the usual case: in one loop
        return new_base.call(own.id) if own.counter is None else new_base.loop(own.id)
    path = []
    while own is not old_base and own.parent is not own:
        path.append(own)
        own = own.parent
    for node in reversed(path):
        new_base = new_base.call(node.id) if node.counter is None else new_base.loop(node.id)
    return new_base
