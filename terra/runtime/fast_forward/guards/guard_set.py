"""Guards of fast-forward: whether anything that a framework object's code reads has changed since its call was recorded.

When a call is recorded, the containers that it may read are listed: the attributes of the object and, recursively, of the framework objects that it is made of;
the contents of lists, tuples, sets and dicts; the methods of the classes involved. With each goes what it held. Later it must hold the same objects, or
equal scalars of one type; that is a few nanoseconds for each entry, and no recursion. Global settings are compared by value.
Whatever could run code of the user's (a subclass, a function) makes the object unskippable.
"""

import sys
from types import FunctionType

from terra.frameworks.settings import settings
from terra.frameworks.framework_objects import root_of_class, root_of_function
from terra.runtime.fast_forward.guards.container_guard import ContainerGuard, contents
from terra.runtime.fast_forward.guards.guard_builder import GuardBuilder
from terra.runtime.tensors.object_kinds import is_librarys
from terra.runtime.tensors.comparing import equal
from terra.tf import private_names as tfi


class Several:
    """Stands for several objects of the framework's whose calls are taken for one."""

    def __init__(self, objects):
        self.objects = objects


class GuardSet:
    """All that the code of `owner`, and what it reads of `variables`, depends on. Making one raises Unskippable where that cannot be said.

    users: a list for the user's functions and classes that the owner's code may call; without it, there must be none. `reads` is what they have read.
    states: (id of an object, name) of attributes that count as arguments of the call.
    loose: whether none of the user's code is part of the call, so that what that alone reads does not matter.
    """

    __slots__ = ("containers", "arrays", "root", "settings", "reads")

    def __init__(self, owner, variables, users=None, states=(), loose=False):
        self.reads = None
        self.containers = ContainerGuard()
        self.arrays = []  # (array, its contents)
        plain = type(owner) is FunctionType  # it depends on its arguments alone
        objects = owner.objects if type(owner) is Several else (owner,)
        self.root = root_of_function(owner, variables) if plain else root_of_class(type(objects[0]))
        self.settings = settings(self.root)
        walk = GuardBuilder(self.containers, self.arrays, reading=plain, users=users, states=states, loose=loose)
        for each in () if plain else objects:
            if users is not None and not is_librarys(type(each)):
                users.append(type(each))
            if type(each) is not tfi.PolymorphicFunction:  # which, once traced, looks at its arguments only
                walk.object(each)
            variables = variables or getattr(each, "_trainable_variables", ())
        for variable in variables:
            walk.variable(variable)

    def holds_any(self, ids):
        """Returns whether an object of one of these ids is among what the call read."""
        return self.containers.holds_any(ids) or (self.reads is not None and self.reads.holds_any(ids))

    def holds(self):
        """Returns whether nothing has changed."""
        return self._framework_holds() and (self.reads is None or (not is_traced() and self.reads.holds()))

    def holds_after_the_call(self):
        """Returns whether the call has changed nothing, but for what it has counted."""
        return self._framework_holds() and (self.reads is None or (not is_traced() and self.reads.hold_after_the_run()))

    def holds_within(self, found):
        """Returns whether nothing has changed, where the settings are to be those that were `found`."""
        return self._contents_hold() and equal(settings(self.root), found)

    def holds_as(self, other):
        """Returns whether nothing has changed, where the settings were those of another guard."""
        return equal(self.settings, other.settings) and self._contents_hold()

    def _contents_hold(self):
        return self.containers.holds() and all([contents(array) == held for array, held in self.arrays])

    def _framework_holds(self):
        if not self._contents_hold():
            return False
        if self.root is None:
            device, eagerly = self.settings
            if tfi.device_name() != device or tfi.eager_function_run.RUN_FUNCTIONS_EAGERLY is not eagerly:
                return False
        elif not equal(settings(self.root), self.settings):
            return False
        return True

    def changes(self):
        """Yields (what puts back what it was, what puts there again what it is now) for whatever has changed, where that can be done."""
        yield from self.containers.changes()
        if self.reads is not None:
            yield from self.reads.changes()

    def only_version(self):
        """Returns a number that changes whenever the guard may cease to hold, the device apart: see `ContainerGuard.only_version`."""
        return self.containers.only_version() if not self.arrays and self.root is None and self.reads is None else None


_monitoring = getattr(sys, "monitoring", None)


def is_traced():
    """Returns whether a debugger or a coverage tool follows the program's lines: the user's code must run then."""
    if sys.gettrace() is not None:
        return True
    return _monitoring is not None and (_monitoring.get_tool(_monitoring.DEBUGGER_ID) or _monitoring.get_tool(_monitoring.COVERAGE_ID)) is not None
