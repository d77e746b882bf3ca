"""Objects that live as long as another one which does not show them: the co-executed functions of an instance, which are not among its attributes.

Such a function refers to its instance, and nothing may keep the two but each other. So they are a cycle while the garbage collector looks, and only
then: the function is put among the instance's attributes when a collection begins that looks at it, and taken out again when the collection has
    ended. In between, this table holds it.
"""

import gc
import itertools
import weakref

_numbers = itertools.count()
_held = [], [], []  # by the garbage collector's generation that they and their instances are in by now: a young collection looks at the young ones only
_shown = []  # those that the collection under way looks at, and their generations


class _Attached:
    """One of them."""

    __slots__ = ("instance", "value", "method", "name")

    def __init__(self, instance, value, method):
        self.instance, self.value, self.method = weakref.ref(instance), value, weakref.ref(method)
        self.name = f"__terra__{next(_numbers)}"

    def show(self):
        """Put it among the attributes; returns whether there is any use for it."""
        instance = self.instance()
        if instance is None or self.method() is None:
            return False
        vars(instance)[self.name], self.value = self.value, None
        return True

    def hide(self):
        """Take it out again; returns whether it is still there."""
        instance = self.instance()
        if instance is None:
            return False
        self.value = vars(instance).pop(self.name, None)
        return self.value is not None


def attach(instance, value, method):
    """Keep `value` as long as `instance`, which can be referred to weakly and has a dict, and the `method` of its class."""
    _held[0].append(_Attached(instance, value, method))
    if _look_on not in gc.callbacks:
        gc.callbacks.append(_look_on)


def _look_on(phase, info):
    if phase == "start":
        for generation in range(info["generation"] + 1):
            looked_at = _held[generation][:]
            del _held[generation][:len(looked_at)]
            _shown.extend([(attached, generation) for attached in looked_at if attached.show()])
    else:
        looked_at = _shown[:]
        _shown.clear()
        for attached, generation in looked_at:
            if attached.hide():
                _held[min(max(generation, info["generation"] + 1), len(_held) - 1)].append(attached)
