"""A Program: an immutable snapshot of a TraceGraph that the skeleton can walk, and the function that runs its operations.

While a newer TraceGraph is merged and its graph is generated, steps go on with the Program of the older one.
"""

from terra.graph.nonfailing_ops import is_harmless, may_not_fit
from terra.graph.trace import ARG, CHECK, CONST, RESOURCE, VALUE
from terra.runtime.tensors.size_origins import KeptSizes
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.catching import SAFE
from terra.runtime.tracing.flat_inputs import value_positions
from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.trial import BackOff

DTYPES = tfi.INTERN_DTYPES
_MOST_UNSKIPPABLE = 10_000  # places that are remembered
_SAME_REASON = 3  # times that a call of users' functions counts which cannot be skipped for the reason of the one before
_MOST_VARYING = 1000  # numbers that are known to vary inside of calls
_MOST_IN_VAIN = 12  # runs that read an object anew, and come to nothing
_MOST_OWNERS, _MOST_FAILED = 32, 8  # objects of which calls are recorded at one place; those of which none could be


class InputSlot:
    """One flat input of a node, as the skeleton expects it."""

    __slots__ = ("kind", "key", "multi", "const", "const_obj", "arg", "handle", "feed", "enum", "needs_value", "const_shape_key", "py_type",
                 "py_value", "numbers")

    def __init__(self, kind):
        self.kind = kind
        self.key = self.multi = self.const = self.const_obj = self.arg = self.handle = self.feed = self.enum = None
        self.needs_value = False
        self.numbers = None  # that decide shapes, and were given here where sizes are left unknown: None in the place of each that has varied
        self.const_shape_key = None
        self.py_type = self.py_value = None  # the Python number that was converted to the constant, once known

    @property
    def may_be_open(self):
        """Whether the shape of what is expected depends on data, as far as the trace tells."""
        key = self.key
        return key is not None and key.out >= 0 and key.node.payload.event.has_open_shape


class ProgramNode:
    """One node as the skeleton sees it: what an op must look like to be it, and what to hand out for it."""

    __slots__ = (
        "monomorphic", "expected", "op_type", "info", "location", "n_in", "has_lists", "fast_attrs", "exec_attrs", "slots", "outs", "template", "shapes", "grad_attrs",
        "successors", "unclear", "end_selects", "assigns_multi", "fetch_queue", "fetched", "condition", "device", "category", "n_out", "updates", "out_shapes",
        "unreliable", "checked", "all_shapes", "fixed",
    )

    def __init__(self):
        self.fetched = self.condition = -1  # of a fetch, the index of its value among the outputs of the deferred form, and the place of what the form with conditions is told of it
        self.checked = False  # whether Python waits for it, because the program would catch its failure
        self.monomorphic = None  # the inline cache entry by which fast-forward has jumped last from here

    @property
    def may_fail(self):
        """Whether it may fail because of a value."""
        if self.category not in (opschema.GRAPH, opschema.VARIABLE):
            return False
        if any(slot.may_be_open for slot in self.slots) and may_not_fit(self.op_type, len(self.slots)):
            return True
        if self.op_type in SAFE:
            return False
        return not is_harmless(self.op_type, [(slot.kind,) for slot in self.slots], bool(self.outs) and self.outs[0][0].is_floating)


class Program:
    """See the module's docstring."""

    def __init__(self, store, generated):
        self.generated = generated
        self.general = None  # the same graph for steps with other shapes, where `generated` is right for some only
        self.early_form = None  # the same graph in the early form, where that may be faster: see `early_start`
        self.deferred = None  # the late form of a graph that is early, for steps that are skipped as a whole; False if there is none
        self.conditional = None  # the deferred form with conditions, for those that branch on what they compute; False if there is none
        self.wants_deferred = self.wants_conditional = False  # whether there are such steps
        self.version = store.version
        self.relaxed = frozenset(store.relaxed)
        self._keys = {}
        self._multi = {}
        nodes = {node: ProgramNode() for node in store.graph.nodes}
        self.start = ProgramNode()
        nodes[store.graph.start] = self.start
        self._nodes = list(nodes.values())
        self.start.assigns_multi = ()
        for node in store.graph.nodes:
            self._fill(nodes[node], node, store)
        for node, pnode in nodes.items():
            self._link(store.graph, nodes, node, pnode)
        assigns = {}
        for sources, multi in self._multi.items():
            for node, out in sources:
                assigns.setdefault(node, []).append((multi, self._keys[node, out]))
        for node in store.graph.nodes:
            nodes[node].assigns_multi = tuple(assigns.get(node, ()))
        for k, value in enumerate(generated.live_out):
            self._key(*value).result = k + 1
        self.n_feeds = len(generated.feeds)
        self._fetches = {node: nodes[node] for node in store.graph.nodes if node.payload.event.info.category == opschema.FETCH}
        self.name = generated.name
        self.step = ""  # the name of the step function
        self.attrs = None  # of the calls of its function
        self.single_threaded_attrs = None  # the same to run it on one thread, once it is known that this is possible
        self.compiled = None  # with `jit_compile`, what decides whether it runs as compiled by XLA
        self.call_sites = {}  # (node, function, id of its object) -> records that fast-forward has recorded; False: never
        self.paths = {}  # what `segment_tape` and `segment_gradient` know of the paths through it
        self.feed_positions = {spec[1]: k for k, spec in enumerate(generated.arg_specs) if spec[0] == "feed"}
        self.modules_version = 0  # of the framework's functions that `call_sites` were recorded with
        self._may_fail = None
        self.trials = {}  # (node, function, location, shapes of the step's arguments) -> what came of observing calls of the user's functions there
        self.tried = {}  # (node, location) -> names of the layers that were observed there
        self.whole = None  # the one of the step's own function, in the last step
        self.names_of_classes = set()  # names of attributes of classes that runs set
        self.varying = {}  # (id of a dict, list or cell, key) -> it, where a call has found a number or another value, and has left another one
        self.replaced = {}  # such a place where there was another object -> how many runs that read it anew have come to nothing
        self.gave = {}  # numbers that opaque calls have given, each by what the call is
        self.integer_draws = set()  # what tells draws that gave Python's integers
        self.small = {}  # key of an opaque call -> the small integers that it has given
        self.unsteady = set()  # keys of opaque calls that give another number or text each time, see `opaque_calls`
        self.changed_containers = {}  # id -> container that calls of unknown code change, see `ChangedContainers`
        self.made_by_calls = set()  # classes of the program's whose instances runs leave to unknown code, or twice: they are made by it, too
        self.looked_at = set()  # keys of those whose number a run has looked at, and must not vary in it
        self.not_observed = {}  # id -> code object, of functions of libraries' that it is of no use to observe
        self.to_be_observed = {}  # the same of those that had better be observed than called again
        self.made_layers = {}  # (class, what it was made of, types and shapes of what it was given) -> layer, in the place of those that each step makes
        self.sizes = KeptSizes()  # what is known of sizes that steps do not know
        self.counters = set()  # (id of an object, name) of attributes that the program counts with
        self.step_cache = None  # what is done instead of steps that are skipped as a whole, once there was one
        self.only_within = set()  # such places of calls that can be left out together with a run that is observed, but not by themselves
        self.owners = {}  # such a place without the object -> the places with records; None: objects come there that are made anew in each step
        self.states = {}  # such a place -> {(id of an object, name): `StateInput`} of the attributes that count as arguments of the call
        self.back_off = BackOff()  # of recording calls at such places
        self.walks = {}  # such a place -> what is known of the parts of calls that cannot be skipped, see `sites.walks`; False: nothing
        self.unskippable = {}  # such a place -> (how often a call could not be recorded, why the last one could not)

    @property
    def early(self):
        """Whether Python reads values in the middle of the step, so that there is only the early form."""
        return self.generated.early

    @property
    def late_form(self):
        """The form that runs without channels; None if there is none."""
        return self.deferred or self.conditional or None if self.early else self.generated

    @property
    def forms(self):
        return [form for form in (self.generated, self.general, self.early_form, self.deferred, self.conditional) if form]

    def set_deferred(self, form):
        """Steps that are skipped as a whole may use the deferred form; False: there is none."""
        self._note_fetched(form)
        self.deferred = form

    def set_conditional(self, form):
        """Takes the form of the graph that branches on what it computes, and notes where its fetches and conditions are."""
        self._note_fetched(form)
        for node, place in form.conditions.items() if form else ():
            self._fetches[node].condition = place
        self.conditional = form

    def _note_fetched(self, form):
        for node, index in form.fetched.items() if form else ():
            self._fetches[node].fetched = index

    def function_of(self, form, args):
        """(name, number of outputs) of the function that runs a form of the graph for these arguments."""
        if self.compiled is None or form is not self.generated:
            return form.name, form.n_outputs
        return self.compiled.choose(args)

    @property
    def may_fail(self):
        """Whether one of its operations may fail because of a value."""
        if self._may_fail is None:
            self._may_fail = any(node.may_fail for node in self._nodes if node is not self.start)
        return self._may_fail

    def forget_records(self):
        """Drops all that fast-forward has recorded: it does not hold any more."""
        self.call_sites.clear()
        self.owners.clear()
        self.states.clear()
        self.unskippable.clear()
        self.trials.clear()
        self.tried.clear()
        self.only_within.clear()
        self.walks.clear()
        self.back_off = BackOff()
        self.whole = self.step_cache = None
        for node in self._nodes:
            node.monomorphic = None

    def failures(self, place):
        """How often a call at this place could not be recorded, as far as that was counted."""
        return self.unskippable.get(place, (0, None))[0]

    def note_unskippable(self, place, why, counts=False, users=False):
        """A call could not be skipped at this place, because it...; empty if that cannot be said. Gives how many of those that count there were, this one among
        them if it does; 0 if it does not. Where the call runs functions of the `users`, which were observed, a reason that was the same before will not go away."""
        failures, before = self.unskippable.get(place, (0, None))
        failures += counts * (_SAME_REASON if users and why == before else 1)
        if place in self.unskippable or len(self.unskippable) < _MOST_UNSKIPPABLE:
            self.unskippable[place] = failures, why
        return failures if counts else 0

    def note_varying(self, reads):
        """A call has changed what it has read: its numbers, and other values, are read anew each time from now on; objects, once they were replaced twice. `reads`: a `ReadSet`, or None."""
        if reads is not None:
            self.note_varying_places(reads.changed_values())

    def note_varying_places(self, places):
        """There is another value, or object, than before at these places: (dict, list or the like, key, whether it is a value)."""
        for space, key, is_value in places if len(self.varying) < _MOST_VARYING else ():
            place = id(space), key
            if is_value or self.replaced.get(place) == 0:
                self.varying[place] = space
            elif place not in self.replaced:
                if len(self.replaced) >= _MOST_VARYING:
                    self.replaced.clear()
                self.replaced[place] = 0

    def note_replaced(self, places, in_vain):
        """A run has read objects anew at these places, and has come to nothing, or not: where it does too often, they are read like others."""
        for place in places:
            self.replaced[place] = self.replaced.get(place, 0) + 1 if in_vain else 0
            if self.replaced[place] > _MOST_IN_VAIN:
                self.varying.pop(place, None)

    def add_states(self, place, states):
        """These attributes, `StateInput`s, count as arguments of calls at a place from now on."""
        if states:
            self.states[place] = {**self.states.get(place, {}), **{state.key: state for state in states}}

    def may_have_owner(self, place):
        """Returns whether calls of one more object are recorded at a place."""
        return self.owners.get((place[0], place[1], place[3]), ()) is not None

    def add_owner(self, place):
        """A call at this place was recorded, or could not be. Recording takes its time, and keeps the object, so there is a limit for those that do not come back."""
        key = place[0], place[1], place[3]
        places = self.owners.setdefault(key, [])
        if places is None or place in places:
            return
        places.append(place)
        if sum(other not in self.call_sites for other in places) > _MOST_FAILED:
            self.owners[key] = None
        elif len(places) > _MOST_OWNERS:
            gone = [other for other in places[:-1] if not self.call_sites.get(other) or not self.call_sites[other].all_jumps()]
            self.owners[key] = None if len(gone) > _MOST_OWNERS // 2 else [other for other in places[1:] if other not in gone]
            for other in gone or places[:1]:
                self.call_sites.pop(other, None)
                self.walks.pop(other, None)

    def _key(self, node, out):
        key = self._keys.get((node, out))
        if key is None:
            key = self._keys[node, out] = ValueKey(node, out)
        return key

    def _fill(self, p, node, store):
        site = node.payload
        event = site.event
        info = event.info
        p.updates = info.category == opschema.VARIABLE and any(
            how not in variable_use.READS_ONLY
            for _, how in variable_use.variable_access(info.schema, [kind[0] == RESOURCE for kind in site.kinds]))
        p.info = info
        p.op_type = info.op_type
        p.category = info.category
        p.location = event.location
        p.device = info.device
        p.fetch_queue = self.generated.fetch_queues.get(node)
        p.template = event.template
        p.grad_attrs = event.grad_attrs
        fixed = self.generated.fixed.get(node)
        p.fixed, p.all_shapes, p.shapes = fixed is not None, site.shapes, fixed or site.shapes
        p.out_shapes = event.out_shapes
        p.unreliable = event.signature in store.dynamic
        p.n_out = len(event.out_enums)
        if info.category == opschema.FETCH:
            p.n_in, p.has_lists, p.fast_attrs, p.exec_attrs = 1, False, None, None
            needs_value = (False,)
        else:
            schema = info.schema
            p.n_in, p.has_lists = schema.n_inputs, schema.has_lists
            p.fast_attrs = event.fast_attrs if schema.tells_apart(event.fast_attrs) else None
            p.exec_attrs = event.grad_attrs if event.fast_attrs is None and schema.tells_apart(event.grad_attrs) else None
            needs_value = list(value_positions(schema, info, len(event.refs))) + [False] * len(event.refs)
        p.outs = tuple((DTYPES[e], e, self._key(node, k)) for k, e in enumerate(event.out_enums))
        slots, value = [], 0
        for k, kind in enumerate(site.kinds):
            slot = InputSlot(kind[0])
            slot.needs_value = needs_value[k]
            what = kind[0]
            if what == VALUE:
                sources = node.slots[value]
                value += 1
                keys = [self._key(*s) for s in sources]
                if len(keys) == 1:
                    slot.key = keys[0]
                else:
                    slot.multi = self._multi.setdefault(tuple(sorted(sources, key=lambda s: (s[0].id, s[1]))), object())
            elif what == CONST:
                slot.const = kind[1].key
                slot.const_obj = kind[1].tensor
                slot.const_shape_key = kind[1].key if slot.needs_value else kind[1].key[1]
                slot.enum = kind[1].key[0]
            elif what == ARG:
                slot.arg, slot.enum = kind[1], kind[2]
            elif what == RESOURCE:
                slot.handle = kind[1]
            else:
                slot.feed = self.generated.feeds[node, k]
                slot.enum = kind[1]
                slot.key = self._key(node, -1 - k)
            slots.append(slot)
        p.slots = tuple(slots)

    def _link(self, graph, nodes, node, p):
        selects = self.generated.selects
        p.end_selects = None
        successors = []
        for succ in node.succ:
            if succ is graph.end:
                p.end_selects = selects.get((node, succ), ())
            else:
                successors.append((nodes[succ], selects.get((node, succ), ())))
        p.successors = tuple(successors)
        p.checked = any(s.op_type == CHECK for s, _ in successors)
        p.unclear = _unclear([s for s, _ in successors])
        # The one node that can follow without telling the graph anything: the fast case.
        p.expected = successors[0][0] if len(successors) == 1 and not successors[0][1] else None


def _unclear(successors):
    """Returns whether two of these nodes are the same operation at the same place, one with a constant where the other has a value."""
    seen = {}
    for node in successors:
        constants = tuple(slot.kind is CONST for slot in node.slots)
        if seen.setdefault((node.info, node.location), constants) != constants:
            return True
    return False
