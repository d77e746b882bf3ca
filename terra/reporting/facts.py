"""The facts that are known of one step function: everything that the finders look at, taken together once."""

import functools
import re
from types import MethodType

from terra.graph import lines
from terra.graph.trace import ARG, CHECK, FEED, FETCH
from terra.reporting import places
from terra.runtime.fast_forward.steps.pure_functions import is_keras_step
from terra.transform import policy as modules

_NO_GAIN = re.compile("left the known paths|took a path that was never seen|co-execution took")


class Facts:
    """The counts and times of one `Coexecuted`, and the parts of its program."""

    def __init__(self, function):
        self.function = function
        self.stats = function.stats()
        self.options = function.options
        self.policy = function.policy
        self.leaves_sizes_unknown = function.dynamic_arguments.leaves_unknown
        self.in_block = not function.may_roll
        self.programs = [p for p in ([function.program] if function.segments is None else function.segments.programs) if p is not None]
        self.stores = [function.store] if function.segments is None else [segment.store for segment in function.segments.table.values()]
        self.whole = function.program.whole if function.program is not None and function.segments is None else None
        coexecuted, eager, self.eager_is_bound = function.policy.times()
        self.coexecuted_ms, self.eager_ms = (None if x is None else x * 1e3 for x in (coexecuted, eager))
        self.first = function.policy.first
        self.last_other = function.policy.last_other

    # -- who it is -------------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def is_keras(self):
        """Whether it is a step of Keras' own."""
        wrapped = self.function.__wrapped__
        return type(wrapped) is MethodType and is_keras_step(wrapped)

    @functools.cached_property
    def name(self):
        """Returns what the program calls the step."""
        wrapped = self.function.__wrapped__
        if self.is_keras:
            model = wrapped.__self__
            return f"{type(model).__name__}.{wrapped.__name__} ({getattr(model, 'name', 'a model')})"
        return self.policy.name.replace("<locals>.", "")

    @functools.cached_property
    def line(self):
        """Where the step's function is defined, `file.py:12`; None for a function of a library's."""
        if self.in_block:
            return self.policy.name.rpartition(" ")[2]
        wrapped = self.function.__wrapped__
        code = getattr(getattr(wrapped, "__func__", wrapped), "__code__", None)
        if code is None or not modules.is_user_module(getattr(wrapped, "__module__", None), code.co_filename):
            return None
        return places.brief(code.co_filename, places.definition(code))

    @property
    def tail(self):
        """Where the statements begin that run behind the step, `file.py:12`; None if it has none."""
        tail = self.function.tails.current
        return None if tail is None else places.brief(tail.file, tail.line)

    # -- how fast it is --------------------------------------------------------------------------------------------------------

    @property
    def settled_steps(self):
        """How many steps there were from the first one that was co-executed."""
        return 0 if self.first is None else max(self.stats.steps - self.first + 1, 1)

    @property
    def share(self):
        """Which share of these was co-executed."""
        return min(1.0, self.stats.coexecuted_steps / self.settled_steps) if self.settled_steps else 0.0

    @property
    def skipped(self):
        """Which share of the co-executed steps did without the Python code of the step."""
        return self.stats.whole_steps / self.stats.coexecuted_steps if self.stats.coexecuted_steps else 0.0

    @property
    def mean_ms(self):
        """Returns what a step takes as they come, co-executed or not; None if a time that this needs is not known."""
        if self.coexecuted_ms is None:
            return None
        if self.share > 0.9:
            return self.coexecuted_ms
        return None if self.eager_ms is None else self.share * self.coexecuted_ms + (1 - self.share) * self.eager_ms

    @property
    def stall_ms(self):
        """Returns what Python waits for the graph in a co-executed step: in the last ones, if that was noted."""
        if self.policy.stall is not None:
            return self.policy.stall * 1e3
        return self.stats.python_stall_s * 1e3 / self.stats.coexecuted_steps if self.stats.coexecuted_steps else 0.0

    @property
    def python_ms(self):
        """Returns what the Python code of a step takes at most, spread over all steps; None if that is not known."""
        return None if self.coexecuted_ms is None else max(self.coexecuted_ms - self.stall_ms, 0.0) * (1 - self.skipped) * self.share

    def lost(self, steps):
        """Returns what it costs, spread over all steps, that so many of them were not co-executed; None if eager's time is not known."""
        if self.eager_ms is None or not self.stats.steps:
            return None
        return max(self.eager_ms - (self.coexecuted_ms or 0.0), 0.0) * min(steps / max(self.settled_steps or self.stats.steps, 1), 1.0)

    @property
    def paused(self):
        """How many steps were left alone because co-execution was no gain; those that were run to compare with do not count."""
        return self.stats.imperative_steps if _NO_GAIN.search(self.policy.reason or "") else 0

    # -- its graph -------------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def partings(self):
        """[lines of the operations that may follow] wherever paths part."""
        ways = [[line_of(after) for after in node.succ if after.payload is not None] for store in self.stores for node in [store.graph.start, *store.graph.nodes] if len(node.succ) > 1]
        return [way for way in ways if way]

    @functools.cached_property
    def nodes(self):
        """All operations of all paths, those that are known from before steps were cut into pieces among them."""
        stores = self.stores if self.function.store in self.stores else [self.function.store, *self.stores]
        return [node for store in stores for node in store.graph.nodes]

    def nodes_of(self, *kinds):
        """The nodes that stand for reads of values (FETCH), or for operations that Python waits for (CHECK)."""
        return [node for node in self.nodes if node.payload.event.info.op_type in kinds]

    @property
    def reads(self):
        return self.nodes_of(FETCH)

    @property
    def waits(self):
        """Whether Python waits for values that it reads, in most steps."""
        return bool(self.reads) and self.stats.fetches >= self.stats.coexecuted_steps // 2

    @property
    def checks(self):
        return self.nodes_of(CHECK)

    @property
    def fed(self):
        """(node, position) of all inputs that come from Python in each step."""
        return [(node, k) for node in self.nodes for k, kind in enumerate(node.payload.kinds) if kind[0] == FEED]

    def shapes_of_inputs(self):
        """{what came into the graph: the shapes that it had}: arguments of the step by their number, other tensors by their node."""
        found = {}
        for node in self.nodes:
            for k, kind in enumerate(node.payload.kinds):
                if kind[0] == ARG or kind[0] == FEED:
                    shapes = found.setdefault(kind[1] if kind[0] == ARG else (node, k), {})
                    for key in node.payload.shapes:
                        shape = key[k] if type(key) is tuple and k < len(key) else None
                        if _is_shape(shape):
                            shapes[shape] = line_of(node)
        return found

    @functools.cached_property
    def parameters(self):
        """The names of the parameters of the step's function."""
        wrapped = self.function.__wrapped__
        code = getattr(getattr(wrapped, "__func__", wrapped), "__code__", None)
        names = () if code is None or self.in_block or self.is_keras else code.co_varnames[:code.co_argcount]
        return names[1:] if names[:1] == ("self",) else names

    @functools.cached_property
    def trials(self):
        """[(name, line of the call, reason)] of the functions of the program's own that run at each step."""
        return [(trial.name, place[2].line(), trial.reason) for program in self.programs for place, trial in program.trials.items()
                if trial is not program.whole and trial.reason is not None and not trial.variants]

    @functools.cached_property
    def unskipped(self):
        """[(name, line, reason)] of the framework's calls that run operation by operation."""
        return [(place[1].__qualname__, place[-1].line(), why) for program in self.programs for place, (_, why) in program.unskippable.items()
                if why and hasattr(place[1], "__qualname__") and not program.call_sites.get(place)]

    @property
    def records(self):
        """The records by which the step as a whole is skipped, or calls of the framework's in it."""
        caches = [cache for program in self.programs for cache in program.call_sites.values() if cache]
        return [record for held in [*([] if self.whole is None else [self.whole.variants]), *caches] for variants in held.values() for record in variants]


def line_of(node):
    """The line of the program's that issued a node, `file.py:12`: the innermost one that is no library's, if there is one."""
    event = node.payload.event
    if event.line:
        return event.line
    place = lines.place_of(node)
    return event.location.line() if place is None else str(place)


def _is_shape(x):
    return type(x) is tuple and all(type(size) is int for size in x)
