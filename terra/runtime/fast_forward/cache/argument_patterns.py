"""Patterns of arguments: how those of a call are compared with those of a recorded one at a glance, without a signature.

A pattern has (kind, a, b) for each argument; what `a` and `b` are depends on the kind. `pattern_of` makes it, `matches` compares.
"""

from terra.runtime.fast_forward.cache.call_records import ExternalInput, note_mask
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import is_librarys_container
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.tf.constants import const_key, known_to_host

EagerTensor = tfi.EagerTensor
VALUE, SCALAR, SAME, SHARED, NESTED, ARGUMENT, FED, CONSTANT, ZEROS, FOREIGN, MASKED, OTHER, SLICE = range(13)


def matches(runner, pattern, given, external):
    """Returns whether the arguments are those of a recorded call; those that are tensors from outside of the step are appended to `external`."""
    for x, (kind, a, b) in zip(given, pattern):
        if kind is VALUE:
            if type(x) is not TerraTensor or x._key is not a or x._owner is not runner or x._shp != b or x._keras_mask is not None:
                return False
        elif kind is SCALAR:
            if type(x) is not a or x != b:
                return False
        elif kind is SAME:
            if x is not a:
                return False
        elif kind is SHARED:
            if x is not a and not matches(runner, b, (x,), external):
                return False
        elif kind is NESTED:
            if type(x) is not a:
                return False
            if a is slice:
                x = (x.start, x.stop, x.step)
            if len(x) != len(b) or not matches(runner, b, x, external):
                return False
        elif kind is ARGUMENT:
            argument = runner.step.args.get(id(x))
            if argument is None or argument[0] != a or runner.step.args_signature()[a] != b or vars(x):
                return False
        elif kind is FED:
            known = runner.fed.get(id(x))
            if known is None or known[0] is not a or (known[1], known_to_host(runner, x)) != b or vars(x):
                return False
            note_mask(runner, x)
        elif kind is CONSTANT:
            if type(x) is not EagerTensor or runner.step.is_data(x) or vars(x) or not _is_constant(x, a, b):
                return False
            external.append(x)
        elif kind is ZEROS:
            if type(x) is not EagerTensor or runner.step.is_data(x) or not _is_marked(x) or not _is_constant(x, a, b):
                return False
            external.append(x)
        elif kind is MASKED:
            if type(x) is not TerraTensor or x._key is not a[0] or x._owner is not runner or x._shp != a[1] or x._keras_mask is None \
                    or not matches(runner, b, (x._keras_mask,), external):
                return False
        else:
            if type(x) is not a or _identity(x) != b[0] or runner._from_outside(x) is not b[1] or (a is TerraTensor and x._owner is runner):
                return False
            external.append(x)
    return True


def _is_constant(x, key, known):
    """Returns whether a tensor is `known`, or another one with the same value."""
    return x is known or ((x._datatype_enum(), x._shape_tuple()) == key[:2] and const_key(x, *key[:2]) == key)


MARK = {"_is_zeros_tensor": True}


def _is_marked(x):
    """Returns whether nothing is attached to a tensor but what `tf.zeros` attaches."""
    return vars(x) == MARK


def _identity(x):
    """(dtype enum, shape) of a tensor, with a third entry if `tf.zeros` has made it; None if anything else is attached to it (Keras does that), or its shape depends on data."""
    if type(x) is EagerTensor:
        attached = vars(x)
        if not attached:
            return x._datatype_enum(), x._shape_tuple()
        return (x._datatype_enum(), x._shape_tuple(), attached["_is_zeros_tensor"]) if attached.keys() == MARK.keys() else None
    return (x._enum, x._shp) if type(x._shp) is tuple and not x.__dict__ else None


def are_new(runner, external):
    """Returns whether the step has not met these tensors from outside before, no gradient is asked for one of them, and none has come twice."""
    ids = set(map(id, external))
    return len(ids) == len(external) and ids.isdisjoint(runner.fed) and ids.isdisjoint(runner.step.args) and ids.isdisjoint(runner.tapes.watched_ids)


def pattern_of(runner, x, external=None, record=None):
    """How an argument is compared. Raises LookupError if that takes more than a glance.

    external: a list for the tensors from outside of the step, if there may be any; `record` is what the call did with them.
    """
    kind = type(x)
    if runner.step.is_lasting_handle(x):  # others have the same type and shape
        return SAME, x, None
    if kind is TerraTensor and x._owner is runner:
        if "_keras_logits" in x.__dict__:
            raise LookupError
        if x._keras_mask is not None:
            return MASKED, (x._key, x._shp), (pattern_of(runner, x._keras_mask, external, record),)
        return VALUE, x._key, x._shp
    if kind is TerraTensor or kind is EagerTensor:
        identity = _identity(x)
        if identity is None:
            raise LookupError
        enum, shape = identity[:2]
        if len(identity) == 3 and (id(x) in runner.step.args or id(x) in runner.fed):
            raise LookupError
        argument, fed = runner.step.args.get(id(x)), runner.fed.get(id(x))
        if argument is not None and shape != ():
            return ARGUMENT, argument[0], (enum, shape)
        if argument is not None or external is None or any(x is other for other in external):
            raise LookupError
        if fed is not None and not any(slot.key is fed[0] for slot, _ in record.feeds):
            return FED, fed[0], (fed[1], known_to_host(runner, x))
        index = len(external)
        external.append(x)
        if not any(kind is ExternalInput and place == index for kind, place, _ in record.checks):
            return FOREIGN, kind, (identity, runner._from_outside(x))
        if kind is TerraTensor or runner.step.is_data(x) or (len(identity) == 3 and not _is_marked(x)):
            raise LookupError
        return ZEROS if len(identity) == 3 else CONSTANT, const_key(x, enum, shape), x
    if x is None or kind is bool or x is Ellipsis or kind is tfi.tf.DType or tfi.is_variable(x):
        return SAME, x, None
    if kind in SCALARS:
        if kind is float and x == 0.0:
            raise LookupError  # 0.0 == -0.0
        return SCALAR, kind, x
    if kind is tuple or kind is list or (kind is tfi.tensor_shape.TensorShape and x.rank is not None) or (is_librarys_container(kind) and isinstance(x, list)):
        return NESTED, kind, tuple([pattern_of(runner, y, external, record) for y in x])
    if kind is slice:
        return NESTED, kind, tuple([pattern_of(runner, y, external, record) for y in (x.start, x.stop, x.step)])
    raise LookupError
