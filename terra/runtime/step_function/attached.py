"""Objects that live as long as another one which does not show them: the co-executed functions of an instance, which are not among its attributes.

Such a function refers to its instance, and nothing may keep the two but each other. So they are a cycle while the garbage collector looks, and only then: the function is put among the instance's
attributes when a collection begins that looks at it, and taken out again when the collection has ended. In between, this table holds it.
"""

import gc
import itertools
import weakref

_OLDEST = 2  # generation

_numbers = itertools.count()
_held = {}  # id -> _Attached


class _Attached:
    """One of them. `generation`: of the garbage collector's, that it and its instance are in by now."""

    __slots__ = ("instance", "value", "method", "name", "generation")

    def __init__(self, instance, value, method):
        self.instance, self.value, self.method = weakref.ref(instance), value, weakref.ref(method)
        self.name = f"__terra__{next(_numbers)}"
        self.generation = 0

    def show(self):
        """Put it among the attributes; returns whether there is any use for it."""
        instance = self.instance()
        if instance is None or self.method() is None:
            return False
        vars(instance)[self.name], self.value = self.value, None
        return True

    def hide(self, generation):
        """Take it out again; returns whether it is still there."""
        if self.value is not None:
            return True  # it is new
        instance = self.instance()
        if instance is None:
            return False
        self.value = vars(instance).pop(self.name, None)
        self.generation = max(self.generation, min(generation + 1, _OLDEST))
        return self.value is not None


def attach(instance, value, method):
    """Keep `value` as long as `instance`, which can be referred to weakly and has a dict, and the `method` of its class."""
    attached = _Attached(instance, value, method)
    _held[id(attached)] = attached
    if _look_on not in gc.callbacks:
        gc.callbacks.append(_look_on)


def _look_on(phase, info):
    for key, attached in list(_held.items()):
        if attached.generation <= info["generation"] and not (attached.show() if phase == "start" else attached.hide(info["generation"])):
            _held.pop(key, None)
