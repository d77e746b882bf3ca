"""Co-executed methods: each instance, or class, has traces and a graph of its own."""

import sys
import types
import weakref

from terra.options import Stats
from terra.runtime.interpreter import tracebacks
from terra.runtime.step_function import attached
from terra.runtime.step_function.registry import snapshot

GIVES_CLASSES = sys.version_info >= (3, 13)  # whether Python has a class method call its function with the class, and no longer asks the function to bind itself (`__get__`)


def _nobody():
    return None


class Instances:
    """The instances that a co-executed method is used by: each has a function of its own, as long as it lives."""

    def __init__(self, function):
        self._function = function
        self.table = weakref.WeakValueDictionary()  # id of an instance -> its own Coexecuted
        self.belongs_to = self.part_of = None  # of the function of an instance: its instance, and the method of the class, weakly
        self._no_method_of = weakref.WeakValueDictionary()  # id of a class that the function was given -> the class
        self.gone = Stats()  # the sum over instances that are no more

    def make(self, instance):
        """Returns the function of an instance that has none yet."""
        function = self._function
        try:
            attributes, reference = vars(instance), weakref.ref(instance)
        except TypeError:  # without a dict, or without weak references: all such instances share
            return function
        made = function.another(function.options)
        if isinstance(instance, type):  # of a class method
            name = f"__terra__{function.__qualname__}"
            while _method_of(attributes.get(name)) not in (None, function):  # another decorated method of this name
                name += "_"
            type.__setattr__(instance, name, made)
        else:
            attached.attach(instance, made, function)
        made.instances.belongs_to, made.instances.part_of = reference, weakref.ref(function)
        weakref.finalize(made, lambda gone, *parts: gone.add(snapshot(*parts)), self.gone, made._stats, made.counts).atexit = False
        self.table[id(instance)] = made
        return made

    def of_class(self, cls):
        """The function of the class `cls`, if this is a class method of it; else that of no instance."""
        function, made = self._function, self.table.get(id(cls))
        if made is not None and made.instances.belongs_to() is cls:
            return made
        if self.belongs_to is not None or self._no_method_of.get(id(cls)) is cls:
            return function
        if any(issubclass(type(x), classmethod) and x.__func__ is function for base in cls.__mro__ for x in list(vars(base).values())):
            return self.make(cls)
        self._no_method_of[id(cls)] = cls
        return function

    def for_arguments(self, args):
        """The function that a call with these arguments is for: that of the class, where the function is called as its class method."""
        return self.of_class(args[0]) if GIVES_CLASSES and args and issubclass(type(args[0]), type) else self._function

    def in_use(self):
        """The function whose graph is asked for: of a method asked through its class, that of the only instance, if all steps are its."""
        own = list(self.table.values()) if self._function.store.n_traces == 0 else ()
        return own[0] if len(own) == 1 else self._function


def _method_of(value):
    """The method of the class that `value` is the function of an instance of, if it is one."""
    return getattr(getattr(value, "instances", None), "part_of", _nobody)()


class BoundStep:
    """A co-executed method of one instance; everything but the call is that of its `Coexecuted`."""

    def __init__(self, function, instance):
        self._function = function
        self.__self__ = instance
        self.__func__ = function
        self.__wrapped__ = types.MethodType(function.__wrapped__, instance)

    def __call__(self, *args, **kwargs):
        try:
            return self._function(self.__self__, *args, **kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    def within(self, step):
        """Returns the method that is called as a part of another `step`."""
        return types.MethodType(self._function.within(step), self.__self__)

    def __getattr__(self, name):
        return getattr(self._function, name)

    def __dir__(self):
        return dir(self._function)

    def __repr__(self):
        return f"<{repr(self._function)[1:-1]} of {self.__self__!r}>"

    def __eq__(self, other):
        return type(other) is BoundStep and other.__self__ is self.__self__ and other._function is self._function

    def __hash__(self):
        return hash((id(self.__self__), self._function))

    def __reduce__(self):
        return getattr, (self.__self__, self.__wrapped__.__name__)  # as methods are
