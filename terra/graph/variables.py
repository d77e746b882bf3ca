"""How the operations of a TraceGraph access variables: which values can be forwarded, which updates wait for the end, what must be kept meanwhile."""

from terra.errors import GenerationError
from terra.graph.dataflow import ExtraSlot
from terra.graph.eager_kernels import number_of
from terra.graph.trace import CONST, FEED, RESOURCE, VALUE
from terra.runtime import internals as tfi
from terra.runtime import opschema
from terra.runtime.host_values import shape_of_variable
from terra.runtime.opschema import ASSIGN, ASSIGN_ADD, ASSIGN_SUB, READ, READS_ONLY, SKIP

RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
NEW_VALUE = 1_000_000  # output numbers from here on stand for the forwarded new value of the op's k-th variable


class Accesses:
    """The accesses of a graph's nodes (`order`, topological) to variables.

    A variable is the id of its handle, or (node, input) where the step's own new one is fed. *Raw* ones are accessed by operations that need the variable itself; the values of the others
    are forwarded.

    access: {node: [(input, variable, how)]}. written: the variables that something writes. enums: {variable: dtype enum}. deferrable: nodes whose updates of raw variables can wait for the
    barrier. checkpointed: handles of the raw variables whose old values must be kept while a step runs. slots: an `ExtraSlot` for each variable whose value is forwarded.
    """

    def __init__(self, order, switch_cases, handles):
        self.handles = handles  # id -> handle
        self.access, self.enums, self.raw = {}, {}, set()
        found = self._find(order)
        self.written = [v for v, accesses in found.items() if any(how not in READS_ONLY for _, how in accesses)]
        self.deferrable = self._find_deferrable(order, {n for case in switch_cases if case.n_choices == 1 for n in case.cases[0].block})
        kept = set()
        for node, accesses in self.access.items():
            if node not in self.deferrable:
                kept.update(v for _, v, how in accesses if v in self.raw and type(v) is int and how not in READS_ONLY)
        self.checkpointed = [handles[v] for v in sorted(kept)]
        self.slots = [self._slot(v, accesses) for v, accesses in found.items() if v not in self.raw]

    def _find(self, order):
        """{variable: [(node, how)]}; fills in `access`, `enums` and `raw`."""
        accesses = {}
        for node in order:
            site = node.payload
            info = site.event.info
            if info.category != opschema.VARIABLE:
                continue
            found = []
            resources = [self._resource(node, k) for k in range(len(site.kinds))]
            for k, how in opschema.variable_access(info.schema, [r is not None for r in resources]):
                v = resources[k]
                if info.op_type == "RngReadAndSkip" and _skips_philox(site):
                    how = SKIP
                found.append((k, v, how))
                accesses.setdefault(v, []).append((node, how))
                if type(v) is tuple:
                    self.raw.add(v)  # a variable of this step alone: nothing to forward over, nothing to keep
                elif how in (READ, ASSIGN, ASSIGN_ADD, ASSIGN_SUB, SKIP):
                    self.enums.setdefault(v, _variable_enum(site, how))
                elif how == "raw_read" and not info.schema.is_function:
                    self.enums.setdefault(v, site.event.out_enums[0])
                else:
                    self.raw.add(v)
            self.access[node] = found
        return accesses

    def _find_deferrable(self, order, inline):
        """`deferrable`; inline: the nodes that lie on every path."""
        deferrable = set()
        blocked = set()  # variables that something accesses later
        for node in reversed(order):
            found = self.access.get(node)
            if not found:
                continue
            raw = [v for _, v, how in found if v in self.raw]
            if not raw:
                continue
            writes = any(how not in READS_ONLY for _, v, how in found)
            if writes and node in inline and not node.payload.event.out_enums and not any(v in blocked for v in raw):
                deferrable.add(node)
            else:
                blocked.update(raw)
        return deferrable

    def _slot(self, v, accesses):
        slot = ExtraSlot(key=("var", v), initial=True)
        for node, how in accesses:
            if how != ASSIGN:
                slot.uses.add(node)
            if how not in READS_ONLY:
                slot.defs[node] = NEW_VALUE + [x[1] for x in self.access[node]].index(v)
        slot.live_at_end = bool(slot.defs)
        return slot

    def _resource(self, node, k):
        """Which variable input `k` is: the id of its handle, (node, input) where the step's own new variable was fed, None if it is no variable."""
        kind = node.payload.kinds[k]
        if kind[0] == RESOURCE:
            self.handles[id(kind[1])] = kind[1]
            return id(kind[1])
        if kind[0] == FEED:
            return (node, k) if kind[1] == RESOURCE_ENUM else None
        if kind[0] == VALUE:
            sources = node.slots[sum(other[0] == VALUE for other in node.payload.kinds[:k])]
            fed = {(n, -1 - out) for n, out in sources if out < 0 and n.payload.kinds[-1 - out][1] == RESOURCE_ENUM}
            if len(fed) > 1:
                raise GenerationError("which of the step's new variables an op uses depends on the path")
            return fed.pop() if fed else None
        return None


def _skips_philox(site):
    """Whether a RngReadAndSkip is simple arithmetic on a Philox generator's state: all numbers are known, and so few are skipped that its own carry is right."""
    state, algorithm, delta = site.kinds
    if state[0] != RESOURCE or algorithm[0] != CONST or delta[0] != CONST or shape_of_variable(state[1]) != [3]:
        return False
    return number_of(algorithm[1]) == 1 and number_of(delta[1]) < 1 << 48


def _variable_enum(site, how):
    if how in (READ, SKIP):
        return site.event.out_enums[0]
    return site.event.info.attrs["dtype"]
