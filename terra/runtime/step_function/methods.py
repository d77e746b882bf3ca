"""Co-executed methods: each instance, or class, has traces and a graph of its own."""

import sys
import types
import weakref

from terra.options import Stats
from terra.runtime.step_function import attached
from terra.runtime.step_function.census import instances, snapshot

GIVES_CLASSES = sys.version_info >= (3, 13)  # whether Python has a class method call its function with the class, and no longer asks the function to bind itself (`__get__`)


def _nobody():
    return None


class OfInstances:
    """The part of `Coexecuted` that makes one of its kind for each instance, where it is a method."""

    def __init__(self):
        self._instances = weakref.WeakValueDictionary()  # id of an instance -> its own Coexecuted, where this is a method
        self._belongs_to = self._part_of = None  # its instance, and the method of the class, weakly
        self._no_method_of = weakref.WeakValueDictionary()  # id of a class that it was given -> the class
        self._gone = Stats()  # the sum over instances that are no more

    def __get__(self, instance, owner=None):
        """A method: each instance has traces and a graph of its own, as long as it lives."""
        if instance is None:
            return self
        made = self._instances.get(id(instance))
        if made is None or made._belongs_to() is not instance:
            made = self._for_instance(instance)
        return BoundStep(made, instance)

    def _for_instance(self, instance):
        try:
            attributes, reference = vars(instance), weakref.ref(instance)
        except TypeError:  # without a dict, or without weak references: all such instances share
            return self
        made = self._another(self.options)
        if isinstance(instance, type):  # of a class method
            name = f"__terra__{self.__qualname__}"
            while getattr(attributes.get(name), "_part_of", _nobody)() not in (None, self):  # another decorated method of this name
                name += "_"
            type.__setattr__(instance, name, made)
        else:
            attached.attach(instance, made, self)
        made._belongs_to, made._part_of = reference, weakref.ref(self)
        weakref.finalize(made, lambda gone, *parts: gone.add(snapshot(*parts)), self._gone, made._stats, made.counts).atexit = False
        self._instances[id(instance)] = made
        return made

    def of_class(self, cls):
        """The function of the class `cls`, if this is a class method of it; else this one."""
        made = self._instances.get(id(cls))
        if made is not None and made._belongs_to() is cls:
            return made
        if self._belongs_to is not None or self._no_method_of.get(id(cls)) is cls:
            return self
        if any(issubclass(type(x), classmethod) and x.__func__ is self for base in cls.__mro__ for x in list(vars(base).values())):
            return self._for_instance(cls)
        self._no_method_of[id(cls)] = cls
        return self

    def for_arguments(self, args):
        """The function that a call with these arguments is for: that of the class, where this is called as its class method."""
        return self.of_class(args[0]) if GIVES_CLASSES and args and issubclass(type(args[0]), type) else self

    def _is_part(self):
        """It is counted as part of another function."""
        instances.discard(self)
        self._departs.detach()

    def __reduce__(self):
        if self._belongs_to is not None:
            return type(None), ()  # a copy of the instance gets one of its own
        return self.__qualname__  # copied and pickled as functions are

    def of_instances(self):
        """Of a method asked through its class: the functions of the instances that are still there."""
        return list(self._instances.values())

    def _in_use(self):
        """The function whose graph is asked for: of a method asked through its class, that of the only instance, if all steps are its."""
        own = self.of_instances() if self.store.n_traces == 0 else ()
        return own[0] if len(own) == 1 else self


class BoundStep:
    """A co-executed method of one instance; everything but the call is that of its `Coexecuted`."""

    def __init__(self, function, instance):
        self._function = function
        self.__self__ = instance
        self.__func__ = function
        self.__wrapped__ = types.MethodType(function.__wrapped__, instance)

    def __call__(self, *args, **kwargs):
        return self._function(self.__self__, *args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._function, name)

    def __repr__(self):
        return f"<{repr(self._function)[1:-1]} of {self.__self__!r}>"

    def __eq__(self, other):
        return type(other) is BoundStep and other.__self__ is self.__self__ and other._function is self._function

    def __hash__(self):
        return hash((id(self.__self__), self._function))

    def __reduce__(self):
        return getattr, (self.__self__, self.__wrapped__.__name__)  # as methods are
