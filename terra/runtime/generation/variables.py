"""How the operations of a TraceGraph access variables: which values can be forwarded, which updates wait for the end, what must be kept meanwhile."""

from terra.errors import GenerationError
from terra.graph.dataflow import ExtraSlot
from terra.graph.trace import CONST, FEED, RESOURCE, VALUE
from terra.runtime.generation.kernels import in_place_updates
from terra.runtime.generation.kernels.eager_kernels import number_of
from terra.runtime.tensors.host_values import shape_of_variable
from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.tf.variable_use import ASSIGN, ASSIGN_ADD, ASSIGN_SUB, READ, READS_ONLY, SKIP

RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
NEW_VALUE = 1_000_000  # output numbers from here on stand for the forwarded new value of the op's k-th variable


class Accesses:
    """The accesses of a graph's nodes (`order`, topological) to variables.

    A variable is the id of its handle, or (node, input) where the step's own new one is fed. *Raw* ones are accessed by operations that need the
    variable itself; the values of the others are forwarded.

    access: {node: [(input, variable, how)]}. written: the variables that something writes. enums: {variable: dtype enum}. behind: nodes that run
        behind the barrier, updates of raw variables
    and what follows from them. in_place: the raw variables that are updated before it. whole: those of them whose values must be kept as a whole, and
    not by rows. slots: an `ExtraSlot` for each variable whose value is forwarded. checks: what is checked before the barrier.

    can_run(node, starts): whether an operation can run behind the barrier, as far as its kind goes; `starts`: as one that updates a raw variable.
    is_open(node): whether shapes of its inputs depend on data.
    """

    def __init__(self, order, switch_cases, handles, can_run, is_open):
        self.handles = handles  # id -> handle
        self.access, self.enums, self.raw = {}, {}, set()
        found = self._find(order)
        self.written = [v for v, accesses in found.items() if any(how not in READS_ONLY for _, how in accesses)]
        inline = {n for case in switch_cases if case.n_choices == 1 for n in case.cases[0].block}
        self.behind = in_place_updates.find(order, inline, self.access, self.raw, lambda node, starts: can_run(node, starts, self.access.get(node)), is_open) if self.raw else set()
        self.checks = in_place_updates.UpdateChecks(order, inline, self.behind) if self.behind else None
        self.in_place, self.whole = set(), set()
        for node, accesses in self.access.items():
            updated = [v for _, v, how in accesses if v in self.raw and type(v) is int and how not in READS_ONLY] if node not in self.behind else ()
            self.in_place.update(updated)
            if updated and not in_place_updates.has_rows(node):
                self.whole.update(updated)
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
            for k, how in variable_use.variable_access(info.schema, [r is not None for r in resources]):
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
    """Returns whether a RngReadAndSkip is simple arithmetic on a Philox generator's state: all numbers are known, and so few are skipped that its own
    carry is right."""
    state, algorithm, delta = site.kinds
    if state[0] != RESOURCE or algorithm[0] != CONST or delta[0] != CONST or shape_of_variable(state[1]) != [3]:
        return False
    return number_of(algorithm[1]) == 1 and number_of(delta[1]) < 1 << 48


def _variable_enum(site, how):
    if how in (READ, SKIP):
        return site.event.out_enums[0]
    return site.event.info.attrs["dtype"]
