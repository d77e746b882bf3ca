"""Effects: what a skipped call of the user's leaves in objects: `self.loss = loss`, counters such as `self.steps += 1`, `self.losses.append(loss)`.

It is left when the call is skipped, too: a value of this step, a plain value, or lists of such. A counter goes on from what it is then, and so does a list; hence a run that looks
at one, other than to add to it, is another one each time. Except for a question like `self.steps % 100 == 0`: what matters is its answer, which can be told before the run.
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

    @property
    def is_there(self):
        """Whether the attribute is where attributes are: the framework's classes may put it elsewhere."""
        return self.name in vars(self.owner)

    def value(self):
        """What the attribute is now."""
        return vars(self.owner).get(self.name)

    def have(self, value):
        """Have the effect; `value` is made of the template."""
        setattr(self.owner, self.name, self.value() + self.added if self.added is not None else value)

    def described(self, template):
        """The same, to be kept."""
        return type(self)(self.owner, self.name, self.added, template)

    def is_like(self, other, same):
        return self.key == other.key and self.added == other.added and same(self.template, other.template)


class Append(Effect):
    """An item that a call appends to a list or deque; `name` is its number among those of the call."""

    __slots__ = ("item",)
    is_relative = is_there = True

    def __init__(self, owner, name, added, template=None, item=None):
        super().__init__(owner, name, added, template)
        self.item = item

    def was_read(self, reads):
        return reads.has_contents(self.owner)

    def value(self):
        return self.item

    def have(self, value):
        self.owner.append(value)


class Question:
    """What a run asks about counters: (owner, name, how much more it is then than at the beginning) for each, or (None, None, value) of what stays the same."""

    __slots__ = ("function", "parts", "_key")

    def __init__(self, function, parts):
        self.function, self.parts = function, parts
        self._key = function.__code__, *[(id(owner), name, type(more), more) for owner, name, more in parts]

    def __eq__(self, other):
        return type(other) is Question and self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def __call__(self, _):
        """The answer, before the run; None if there is none."""
        values = []
        for owner, name, more in self.parts:
            if owner is not None:
                value = vars(owner).get(name)
                if type(value) is not int:
                    return None
                more += value
            values.append(more)
        try:
            return self.function(*values)
        except ArithmeticError:
            return None

    def after(self, effects):
        """The same question in a call, where the run around it has had effects before (see `so_far`)."""
        parts = []
        for owner, name, more in self.parts:
            before = effects.get((id(owner), name), 0) if owner is not None else 0
            if type(before) is tuple:
                owner, name, before = None, None, before[0]
            parts.append((owner, name, more + before))
        return Question(self.function, parts)


def so_far(effects):
    """What `Question.after` is to know of a run's effects until then: {key: what was added, or (value,) of what was set}."""
    return {key: effect.added if effect.added is not None else (effect.value(),) for key, effect in effects.items() if type(effect) is Effect}


@functools.lru_cache(None)
def kind_of(name):
    """A look at the type of an attribute."""
    return lambda owner: type(vars(owner).get(name))
