"""The shapes of an operation's outputs, for input shapes that its node has not had."""

from terra.runtime.tensors.host_values import has_varying_shape
from terra.runtime.tensors.open_shapes import PartialValue
from terra.runtime.tensors.shape_inference import open_shapes, output_shapes
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing.flat_inputs import all_values_known

MOST_SHAPES = 1000  # combinations of input shapes that a node remembers by inference


def infer_shapes(runner, node, flat, shape_key):
    """The output shapes for input shapes that this node has not had; None if only an execution can tell, or the graph is not right for them."""
    if node.fixed:
        if runner.program.general is None or (runner.form.fixed and not runner.late):
            runner.step.function.generation.note_other_shapes()
            return None
        runner.other_shapes_at = len(runner.log)
        known = node.all_shapes.get(tuple(shape_key))
        if known is not None:
            return known
    flat = flat[:len(shape_key)]  # without drawn seeds
    if len(flat) != len(shape_key):
        return None
    enums, handles = [], []
    by_data = node.unreliable or node.info.schema.dynamic
    for x, slot, key in zip(flat, node.slots, shape_key):
        enums.append(slot.enum if slot.enum is not None else x._datatype_enum())
        handles.append(slot.handle)
        by_data = by_data or type(key) is PartialValue or (slot.handle is not None and has_varying_shape(node.info.schema, slot.handle))
        if type(x) is TerraTensor:
            own = x._owner is runner
            by_data = by_data or (own and type(key) is not tuple) or (slot.needs_value and (own or not runner.computed_by_value))
    if by_data:
        shapes = open_shapes(node.info, enums, shape_key, handles, node.out_shapes, node.unreliable)
    else:
        shapes = output_shapes(node.info, enums, shape_key, handles, node.n_out)
        if shapes is None:
            return None
        if not all(type(shape) is tuple for shape in shapes):
            if all_values_known([slot.needs_value for slot in node.slots], shape_key):
                node.info.schema.depends_on_data()
                runner.step.function.begins_anew = True  # in traces so far, its shapes are taken for known
            return None
    if len(node.all_shapes) < MOST_SHAPES:
        node.all_shapes[tuple(shape_key)] = shapes
    return shapes
