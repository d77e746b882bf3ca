"""The read set of an impure run: nothing is noted, so that nothing is kept alive."""

from terra.runtime.fast_forward.guards.read_set import ReadSet
from terra.runtime.fast_forward.guards.container_guard import ContainerGuard


class NullReadSet(ReadSet):
    """Takes the place of the `ReadSet` of a run that has turned out impure: it answers, and holds nothing."""

    def entry(self, space, key, value, owner=None):
        pass

    def forget(self, space, key):
        pass

    def absent(self, space, key, owner=None):
        pass

    def asked(self, function, argument, value):
        pass

    def object(self, it, kind, attributes=None):
        pass

    def contents(self, container, owner=None):
        return ContainerGuard().add(container, owner)

    def array(self, array):
        pass

    def parts(self, owner, name):
        pass

    def variable(self, variable):
        pass

    def layers_class(self, known, cls):
        pass

    def guard(self, guard, before):
        pass

    def settings(self, root):
        pass
