"""Lookup tables (`tf.lookup`): looking something up is part of the graph, changing a table is not.

A table's handle tells neither what its keys and values are nor whether anything changes it. A step that changes tables itself looks all of them up
imperatively; what other code changes waits for the steps in flight that use the table, as an update of a variable does.
"""

import numpy as np

from terra.tf import private_names as tfi

FIND = "LookupTableFindV2"
READS = frozenset([FIND, "LookupTableSizeV2"])  # which are part of graphs
LEAVES = READS | {"LookupTableExportV2"}  # the table that they are given as it is
_CHANGES = frozenset(["LookupTableInsertV2", "LookupTableRemoveV2", "LookupTableImportV2"])  # no initialisation: before it, every lookup fails
_in_graphs = set()  # numbers of the handles of tables that graphs may use
_keep_shape = {}  # number of a handle -> whether the values have the shape of the keys


def changes(op):
    """Returns whether operation `op` changes what lookups in a table give."""
    return op in _CHANGES


def only_reads(op):
    """Returns whether operation `op` leaves the table that it is given as it is."""
    return op in LEAVES


def note(handle):
    """A graph may use the variable or table behind `handle`."""
    if not tfi.is_of_variable(handle):
        _in_graphs.add(handle._id)


def is_in_graphs(handle):
    """Returns whether a graph may use the table behind `handle`."""
    return handle._id in _in_graphs


def keeps_shape(handle, key_enum, value_enum):
    """Returns whether what is looked up in a table has the shape of the keys: both keys and values are scalars.

    The table itself tells: it is asked for no keys at all.
    """
    known = _keep_shape.get(handle._id)
    if known is None:
        keys, default = _zeros((0,), key_enum), _zeros((), value_enum)
        attrs = "Tin", key_enum, "Tout", value_enum
        try:
            (found,) = tfi.execute(tfi.context_handle(), handle.device, FIND, [handle, keys, default], attrs, 1)
        except (tfi.NotOkStatusException, tfi.OpError):  # its keys are vectors, or it has yet to be initialised: that is asked anew
            return False
        known = _keep_shape[handle._id] = found._shape_tuple() == (0,)
    return known


def _zeros(shape, enum):
    dtype = tfi.INTERN_DTYPES[enum]
    return tfi.eager_constant(np.full(shape, "") if dtype == tfi.dtypes.string else np.zeros(shape, dtype.as_numpy_dtype), dtype)
