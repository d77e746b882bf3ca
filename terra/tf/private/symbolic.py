"""Graphs that nothing runs, whose shape functions are asked, and what is known of gradients."""

from terra.tf import private_names as tfi


def new_graph():
    """An empty graph that nothing will run: its shape functions are asked."""
    return tfi.ops.Graph()


def placeholder(dtype, shape):
    """A placeholder in the default graph; `shape` None means unknown."""
    return tfi.tf.compat.v1.placeholder(dtype, shape)


def handle_placeholder(handle):
    """A placeholder in the default graph for the variable behind `handle`, of which the shape functions know dtype and shape."""
    stand_in = tfi.tf.compat.v1.placeholder(tfi.dtypes.resource, ())
    tfi.handle_data_util.copy_handle_data(handle, stand_in)
    return stand_in


def handle_identity(handle):
    """Returns what the shape functions know of the variable behind `handle`, as bytes; None if that is nothing."""
    data = handle._handle_data
    return None if data is None else data.SerializeToString()


def create_graph_op(graph, op_type, inputs, attr_protos):
    """Add an operation to `graph`, its inputs flat."""
    return graph._create_op_internal(op_type, inputs, attrs=attr_protos)


def registered_gradient(op):
    """The function that computes the gradient of operation `op`; None if it has none, or none is known."""
    try:
        return tfi.ops.gradient_registry.lookup(op)
    except LookupError:
        return None


def is_not_differentiable(op):
    """Returns whether TensorFlow knows that no gradient flows through operation `op`."""
    try:
        return tfi.ops.gradient_registry.lookup(op) is None
    except LookupError:  # it would say that there is none, should one be asked for
        return False
