"""What the observed form of a function shows its operands to while nobody observes: everything is given back as it is."""


class Unobserved:
    """Stands in for an `terra.runtime.observer.Observer`."""

    def _same(self, it, *more):
        return it

    owner = operand = compared = truth = container = iterated = unpacked = unpacking = items = stored = inplace = fresh = context = _same
    assigned = removed = changed = inplace_attribute = augmented = subscript = answer = _same
    formatted = builtin = result = searched = item = mapping = modulo = identified = inplace_item = index = elements = raised = _same

    def question(self, function, names, owners):
        return None

    def enter(self, cursor, call_id, callee):
        return cursor.enter(call_id, callee)


NOBODY = Unobserved()
