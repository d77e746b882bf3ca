"""Which classes of the program's make plain objects: these may be a run's own."""

import abc

from terra.frameworks import framework_objects
from terra.runtime.tensors.object_kinds import defined, is_c_class, is_record

_OWN = ("__new__", "__getattribute__", "__setattr__", "__delattr__")


def is_plain_class(kind):
    """Whether nothing but `__init__` makes an instance of a class, whose attributes are where those of others are, and nothing is done when it goes."""
    if type(kind) not in (type, abc.ABCMeta) or kind.__dictoffset__ == 0 or is_record(kind):
        return False
    if any(is_c_class(cls) or vars(cls).get("__slots__") for cls in kind.__mro__[:-1]) or framework_objects.is_tensorflows(kind):
        return False
    return all(defined(kind, name) is vars(object)[name] for name in _OWN) and all(defined(kind, name) is None for name in ("__getattr__", "__del__"))
