"""The kinds of fetches, as they stand among the operations of a trace: a value that Python reads (FETCH), or only waits for (CHECK).

What else must know a new kind: docs/architecture.md, "A fetched value".
"""

from terra.graph.trace import CHECK, FETCH
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import RESOURCE_ENUM, VARIANT_ENUM


class FetchInfo:
    """Stands where an OpInfo stands, for the fetch of a value of one dtype: a channel has one, too."""

    category = opschema.FETCH
    schema = None
    device = ""

    def __init__(self, op_type, enum):
        self.op_type = op_type
        self.key = (op_type, enum)


FETCH_INFOS = {enum: FetchInfo(FETCH, enum) for enum in tfi.INTERN_DTYPES}
CHECK_INFOS = {enum: FetchInfo(CHECK, enum) for enum in tfi.INTERN_DTYPES if enum not in (RESOURCE_ENUM, VARIANT_ENUM)}
