"""What guards are compared with: a plain comparison."""


def alike(a, b):
    """Returns whether guards count two objects as the same: one object, or equal scalars of one type."""
    return a is b or (type(a) is type(b) and type(a) in (int, float, str, bool) and repr(a) == repr(b) and a == b)
