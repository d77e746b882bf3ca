"""`jit_compile`: a program's compiled form, how it gets compiled while steps go on, and when it is used.

XLA compiles a function when it first runs with inputs of some shapes, and the step would wait for that, for seconds. So

1. when a program has proved to be in use, a helper thread writes its compiled form and a *probe*: the ordinary form that also returns what would go into
   the clusters;
2. a step with shapes that were not compiled yet runs the probe, and the helper thread calls each cluster alone with the values that it gave. XLA's cache is
   kept by function and shapes, so the step that calls the cluster later finds it compiled. Clusters are pure: nothing happens by these calls. A form
   that XLA compiles as a whole needs no probe: it is called with the step's arguments, and variables of its own in place of the program's;
3. each cluster is compiled for two orders of its operations (`xla_order.py`), and the one in which it is faster stays;
4. once compiled, both forms take turns for some steps, and the faster one stays (`trial.py`).

The two forms have the same arguments, results and channels: which one runs is decided at each dispatch. Whatever fails here, the ordinary form is used.
"""

import functools
import logging
import math
import time

from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import Queue, GRAPH_RUNNER
from terra.runtime.execution.registered import Registered
from terra.runtime.generation.xla import xla_ops
from terra.runtime.generation.xla.xla_cluster import WHOLE, caller
from terra.runtime.generation.xla.xla_form import make_form
from terra.runtime.tensors.host_values import shape_of_variable
from terra.tf import private_names as tfi
from terra.tf.helper_threads import Task
from terra.tf.private import runtime_functions
from terra.trial import Trial

log = logging.getLogger("terra")

SETTLED = 3  # steps of a program before it is worth compiling
LEARNED = 24  # steps of it before the trial: until then the skeleton learns what it may skip, and takes longer than any graph
BLOCK, PASSED_OVER = 12, 6  # of the trial: the first steps of compiled code after other code take up to a quarter longer, for want of its data in the caches
MOST_SHAPES = 8  # combinations of shapes that are compiled; steps with others run in the ordinary form
MOST_FAILURES = 3  # of steps in the compiled form, before it is given up: the program's own, or XLA's (a failed step is replayed, which takes long)
FORGIVEN = 100  # steps after which earlier failures count no more
GROWN = 1.5  # a program so many times as large as the one before is tried anew
MOST_BYTES = 1 << 29  # of variables, for the whole to be compiled: others of the same sizes are made for that
PATIENCE = 20.0  # seconds: what takes longer to compile is compiled once, in the order that is better as a rule
TURNS = 40  # at most, of either order
LONGEST = 1.0  # seconds that these take together, as far as four turns allow
GAIN = 0.97  # of the time of the usual order: the opposite one is not worth it if it takes longer
ATTRS = ("executor_type", "", "config_proto", runtime_functions.call_config(False))
UNKNOWN, PROBED, READY, FAILED = "unknown", "probed", "ready", "failed"


class NotingQueue(Queue):
    """A channel that remembers the shapes of what was last put into it: those of values which the step will be fed are not known when it starts."""

    __slots__ = ("shapes",)

    def __init__(self, enums):
        super().__init__(enums)
        self.shapes = None

    def put(self, handle, values):
        super().put(handle, values)
        self.shapes = tuple([value._shape_tuple() for value in values])


class Compiled:
    """Belongs to one program. All methods but `_work` and what it calls are called by the thread that runs steps.

    before: the `Compiled` of the program that this one replaces, or None. What its trial has decided holds for a program of about the same size.
    """

    def __init__(self, program, instantiate, before=None):
        self.program = program
        self.used = False  # whether the last step ran in the compiled form
        self.checked = False  # whether the function that `choose` named says by its first result whether it has done anything
        self._current = None, {}, ()  # the compiled form, what is known of each combination of shapes, and the arguments whose shapes these are
        self._without = set()  # numbers of clusters that XLA could not compile
        self.reason = None  # why the ordinary form is used for good
        self.trouble = None  # why a part is not compiled
        self.trial = Trial(block=BLOCK, passed_over=PASSED_OVER)
        self.size = sum(len(fdef.node_def) for fdef in program.generated.fdefs)
        if before is not None and before.trial.second_is_better is not None and self.size < GROWN * before.size:
            self.trial = before.trial
            self.size = before.size
            if not self.trial.second_is_better:
                self.reason = before.reason
        self._instantiate = instantiate  # (name, number of outputs): have the runtime build a function with this program's arguments
        self._steps = 0
        self._probe = None  # [key, handles] of the step that is to tell the clusters' inputs
        self._worker = None
        self._failures = self._good = 0
        self._failures_before = 0
        self._registered = Registered(self)
        self._versions = 0

    # -- each step -------------------------------------------------------------------------------------------------------------

    def advance(self, wait):
        """Between two steps: give the helper thread what a probe has found out; wait for it if asked to."""
        if self._worker is not None and not self._worker.runs:
            self._worker = None
        if self._worker is None and self._probe is not None:
            (key, handles), self._probe = self._probe, None
            if handles is not None:
                self._start(self._compile, key, handles)
            else:  # it could not even be started
                self._current[1].pop(key, None)
        if wait and self._worker is not None:
            self._worker.join()
            self._worker = None

    def choose(self, args):
        """(name, number of outputs) of the function that is to run for these arguments."""
        ordinary = self.program.name, self.program.generated.n_outputs
        if self.used:
            if GRAPH_RUNNER.failures > self._failures_before:
                self.failed()
            else:
                self._good += 1
                if self._good % FORGIVEN == 0:
                    self._failures = 0
        self.used = self.checked = False
        if self.reason is not None:
            return ordinary
        self._steps += 1
        form, states, varying = self._current
        if form is None:
            if self._steps == SETTLED:
                self._start(self._write)
            return ordinary
        key = self._key(args, varying)
        state = states.get(key, UNKNOWN)
        if state is READY and self._steps >= LEARNED:
            self.used = self.trial.choose(time.perf_counter())
            if self.trial.second_is_better is False:
                self._give_up(f"its steps took {self.trial.median(1) * 1e3:.2g} ms, those of the ordinary graph {self.trial.median(0) * 1e3:.2g} ms")
            if not self.used:
                return ordinary
            self._failures_before = GRAPH_RUNNER.failures
            self.checked = form.checked  # (the helper thread may put another form in its place)
            return form.top.signature.name, ordinary[1]
        self.trial.interrupt(time.perf_counter())
        if state is UNKNOWN and self._worker is None and self._probe is None and len(states) < MOST_SHAPES:
            states[key] = PROBED
            if form.whole:
                self._probe = [key, list(args)]
                return ordinary
            self._probe = [key, None]
            return form.probe.signature.name, ordinary[1] + len(form.probed)
        return ordinary

    def started(self, outputs):
        """Takes note of the outputs of the function that `choose` named: a probe's own come after the program's."""
        if self._probe is not None and self._probe[1] is None:
            self._probe[1] = outputs[self.program.generated.n_outputs:]

    def failed(self):
        """A kernel failed in the compiled form. The step was replayed imperatively, so only time was lost."""
        self._failures += 1
        self.used = False
        if self._failures == MOST_FAILURES:
            self._give_up(f"{MOST_FAILURES} of its steps failed and were replayed")

    @staticmethod
    def _key(args, varying):
        """Returns what a compiled form is made for: the shapes of arguments and fed values, and the values that decide shapes."""
        pending = {}
        for flight in list(GRAPH_RUNNER.flights):
            for t in getattr(flight.record, "survivors", ()):
                pending[id(t._hidden)] = t._shp
        key = []
        for k, queue, decides in varying:
            if queue is not None:
                key.append(queue.shapes)
                continue
            value = args[k]
            shape = pending.get(id(value)) if pending else None  # its own shape would have to be waited for
            key.append(shape if type(shape) is tuple else value._shape_tuple())
            if decides:
                key.append(value.numpy().tobytes())
        return tuple(key)

    def _find_varying(self, constants):
        """Lists the arguments that `_key` looks at: (its number, the channel it comes by or None, whether its value decides shapes)."""
        varying = []
        for k, (spec, name) in enumerate(zip(self.program.generated.arg_specs, self._arg_names)):
            if spec[0] == "queue":
                if type(spec[1]) is NotingQueue:
                    varying.append((k, spec[1], False))
            elif spec[0] != "res":
                varying.append((k, None, name in constants))
        return varying

    def _give_up(self, reason):
        self.reason = reason
        log.info("the compiled form of %s is not used: %s", self.program.name, reason)

    # -- the helper thread -----------------------------------------------------------------------------------------------------

    def _start(self, work, *args):
        self._worker = Task(functools.partial(self._work, work, *args))

    def _work(self, work, *args):
        try:
            with interception.internal_thread():
                work(*args)
        except Exception as error:  # whatever it is, steps go on in the ordinary form
            self._give_up(f"it could not be made ({_first_line(error)})")

    def _write(self):
        """Write and register the functions of the compiled form."""
        generated = self.program.generated
        top = generated.fdefs[-1]
        self._arg_names = [a.name for a in top.signature.input_arg]
        self._versions += 1
        fixed, n_bytes = self._fixed_variables()
        # Those without a fixed shape, and those that the step was given or makes.
        open_reads = {node.name for node in top.node_def if node.op == "ReadVariableOp" and node.input[0] not in fixed}
        form = make_form(
            top, generated.fdefs, generated.library, generated.open_refs | open_reads, self._versions, self._without, fixed if n_bytes <= MOST_BYTES else ())
        if form is None:
            self._give_up(self.trouble or "no part of the graph can be compiled, or none of a size that pays")
            return
        for cluster in form.clusters:
            for fdef in cluster.ways:
                self._registered.add(fdef)
                if not form.whole:
                    self._registered.add(caller(fdef))
        if not form.whole:
            self._registered.add(form.probe)
            self._instantiate(form.probe.signature.name, generated.n_outputs + len(form.probed))
        self._current = form, {}, self._find_varying(form.constants)

    def _fixed_variables(self):
        """(Names of the arguments that are variables of fixed shapes, of types that XLA takes; how many bytes they have.)"""
        names, n_bytes = set(), 0
        for name, spec in zip(self._arg_names, self.program.generated.arg_specs):
            handle = self.program.handles[spec[1]] if spec[0] == "res" else None
            if handle is not None and shape_of_variable(handle) is not None and _type_of(handle).as_datatype_enum in xla_ops.TYPES:
                names.add(name)
                n_bytes += math.prod(shape_of_variable(handle)) * _type_of(handle).size
        return names, n_bytes

    def _with_own_variables(self, args):
        """(Arguments for the whole form, what keeps its variables.)"""
        args, own = list(args), []
        for k, spec in enumerate(self.program.generated.arg_specs):
            if spec[0] == "res":
                handle = self.program.handles[spec[1]]
                own.append(tfi.tf.Variable(tfi.tf.zeros(shape_of_variable(handle), _type_of(handle)), trainable=False))
                args[k] = own[-1].handle
        return args, own

    def _compile(self, key, handles):
        """Makes XLA compile each cluster for the values that a probe gave, or the whole for a step's arguments."""
        form, states, _ = self._current
        try:
            for handle in handles:
                handle._shape_tuple()  # waits for the step
        except (tfi.NotOkStatusException, tfi.OpError):  # it was cancelled or failed: another step may tell
            states.pop(key, None)
            return
        if form.whole:
            handles, _own = self._with_own_variables(handles)
        values = dict(zip(self._arg_names if form.whole else form.probed, handles))
        attrs = self.program.attrs if form.whole else ATTRS
        refused = {}
        for cluster in form.clusters:
            try:
                compile_cluster(cluster, [values[ref] for ref in cluster.inputs], attrs)
            except (tfi.NotOkStatusException, tfi.OpError) as error:
                refused[cluster.number] = _first_line(error)
        if refused:
            states[key] = FAILED
            self.trouble = f"XLA could not compile {len(refused)} of {len(form.clusters)} parts ({next(iter(refused.values()))})"
            log.info("%s", self.trouble)
            self._without |= set(refused)
            self._write()
            return
        if READY not in states.values():
            form.settle()
            if not form.whole:
                self._registered.add(form.top)
                self._instantiate(form.top.signature.name, self.program.generated.n_outputs)
        states[key] = READY

    # -- what others ask -------------------------------------------------------------------------------------------------------

    @property
    def busy(self):
        """Whether the helper thread still uses the functions."""
        return self._worker is not None and self._worker.runs

    def remove(self):
        self._registered.remove_all()

    def describe(self):
        """One sentence for `terra.explain`."""
        if self.reason is not None:
            return f"XLA's compiled form is not used: {self.reason}."
        form, states, _ = self._current
        if form is None or READY not in states.values():
            return "XLA's compiled form is not ready yet."
        n = sum(cluster.n_nodes for cluster in form.clusters)
        text = f"XLA compiles {n} operations {'as a whole, with the variables' if form.whole else f'in {len(form.clusters)} parts'}, for {sum(s is READY for s in states.values())} combinations of shapes"
        if self.trial.second_is_better:
            text += f" (steps took {self.trial.median(1) * 1e3:.2g} ms, {self.trial.median(0) * 1e3:.2g} ms without)"
        if self.trouble:
            text += f"; {self.trouble}"
        outside = sorted(form.left_out.items(), key=lambda item: -len(item[1]))[:3]
        if outside:
            text += "; left outside: " + "; ".join(f"{_list(ops)} ({reason})" for reason, ops in outside)
        return text + "."


def compile_cluster(cluster, inputs, attrs):
    """Makes XLA compile a cluster for inputs of these shapes; the first time in both orders, of which the faster one is kept."""
    start = time.perf_counter()
    run_alone(cluster, cluster.ways[0], inputs, attrs)
    if len(cluster.ways) == 1 or time.perf_counter() - start > PATIENCE:
        del cluster.ways[1:]
        return
    times = [[] for _ in cluster.ways]
    run_alone(cluster, cluster.ways[1], inputs, attrs)
    begun = time.perf_counter()
    for turn in range(TURNS):
        for k, fdef in enumerate(cluster.ways):
            start = time.perf_counter()
            run_alone(cluster, fdef, inputs, attrs)
            times[k].append(time.perf_counter() - start)
        if turn >= 3 and time.perf_counter() - begun > LONGEST:
            break
    usual, opposite = map(min, times)
    cluster.fdef = cluster.ways[opposite < GAIN * usual]
    cluster.ways = [cluster.fdef]


def run_alone(cluster, fdef, inputs, attrs):
    """Call a cluster, or the whole, without its step."""
    name = fdef.signature.name + ("" if cluster.number is WHOLE else "_alone")
    tfi.execute(tfi.context_handle(), "", name, inputs, attrs, len(fdef.signature.output_arg))


def _type_of(handle):
    """The type of a variable."""
    return tfi.dtypes.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def _list(ops):
    names = list(dict.fromkeys(ops))
    return ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")


def _first_line(error):
    if isinstance(error, tfi.NotOkStatusException):
        error = tfi.status_to_exception(error)
    return str(error).strip().split("\n")[0][:200]
