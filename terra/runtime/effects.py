"""Effects: what a skipped call of the user's leaves in objects: `self.loss = loss`, counters such as `self.steps += 1`, `self.losses.append(loss)`.

It is left when the call is skipped, too: a value of this step, a plain value, or lists of such. A counter goes on from what it is then, and so does a list; hence a run that looks
at one, other than to add to it, is another one each time.
"""

import collections
import functools

GROWING = frozenset([list, collections.deque])


class Effect:
    """An attribute that a call sets.

    added: what is added to it, if it is a counter; else `template` is what it is set to, as `Recording` describes results.
    """

    __slots__ = ("owner", "name", "added", "template")

    def __init__(self, owner, name, added=None, template=None):
        self.owner, self.name, self.added, self.template = owner, name, added, template

    @property
    def key(self):
        return id(self.owner), self.name

    @property
    def is_relative(self):
        """Whether what it leaves depends on what was there before."""
        return self.added is not None

    def was_read(self, reads):
        return reads.has_attribute(self.owner, self.name)

    def value(self):
        """What the attribute is now."""
        return vars(self.owner)[self.name]

    def have(self, value):
        """Have the effect; `value` is made of the template."""
        setattr(self.owner, self.name, vars(self.owner)[self.name] + self.added if self.added is not None else value)

    def described(self, template):
        """The same, to be kept."""
        return type(self)(self.owner, self.name, self.added, template)

    def is_like(self, other, same):
        return self.key == other.key and self.added == other.added and same(self.template, other.template)


class Append(Effect):
    """An item that a call appends to a list or deque; `name` is its number among those of the call."""

    __slots__ = ("item",)
    is_relative = True

    def was_read(self, reads):
        return reads.has_contents(self.owner)

    def value(self):
        return self.item

    def have(self, value):
        self.owner.append(value)


@functools.lru_cache(None)
def kind_of(name):
    """A look at the type of an attribute."""
    return lambda owner: type(vars(owner).get(name))
