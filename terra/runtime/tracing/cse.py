"""Events that a step repeats: what the step before has recorded is not recorded anew."""

from terra.graph.trace import CONST, RESOURCE, VALUE
from terra.runtime.tensors.tensor import TerraTensor


def is_repeated(tracer, noted, event, devices):
    """Returns whether what was noted would become an event like this one; `devices`: whether there are several."""
    schema, _, flat, attrs, device, location, eager, template, _ = noted
    info, enums = event.info, event.enums
    if (
        info.schema is not schema or enums is None or event.fast_attrs != attrs or event.location != location or event.template != template
        or info.device != device or len(event.out_shapes) != len(eager) or len(enums) != len(flat)
    ):
        return False
    externals = tracer.externals
    for x, by_value, enum, ref, key in zip(flat, info.value_flags, enums, event.refs, event.shape_key):
        if type(x) is TerraTensor and x._owner is tracer:
            if x._key != ref[1:] or ref[0] != VALUE or x._shp != key or x._enum != enum:
                return False
        else:
            known = None if by_value else externals.get(id(x))
            if known is None:
                known = (*tracer.external(x, by_value), x)
                if is_same(known[0], ref):
                    known = ref, known[1], x  # the next of its uses are found by its identity
                if not by_value:
                    externals[id(x)] = known
            if known[1] != key or not (known[0] is ref or is_same(known[0], ref)):
                return False
    return not (devices and eager) or eager[0].device == event.device


def known_event(tracer, position, event):
    """Returns the event of the trace before that is equal to `event`, if it is there; else `event`."""
    if position < len(tracer.before):
        known = tracer.before[position]
        if (
            known.info is event.info and not (event.info.schema and event.info.schema.varies) and known.location == event.location and known.line == event.line
            and known.shape_key == event.shape_key and known.out_shapes == event.out_shapes and known.out_enums == event.out_enums and not event.has_open_shape
            and known.template == event.template and known.device == event.device and known.fast_attrs == event.fast_attrs
            and len(known.refs) == len(event.refs) and all(map(is_same, known.refs, event.refs))
        ):
            return known
    return event


def is_same(a, b):
    """Returns whether two references are to the same thing."""
    if a[0] == CONST == b[0]:
        return a[1].oid == b[1].oid and a[1].key == b[1].key
    return a[1] is b[1] if a[0] == RESOURCE == b[0] else a[0] == b[0] and a == b
