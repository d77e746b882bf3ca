"""`jit_compile`: a program's compiled form, how it gets compiled while steps go on, and when it is used.

XLA compiles a function when it first runs with inputs of some shapes, and the step would wait for that, for seconds. So

1. when a program has proved to be in use, a helper thread writes its compiled form and a *probe*: the ordinary form that also returns what would go into
   the clusters;
2. a step with shapes that were not compiled yet runs the probe, and the helper thread calls each cluster alone with the values that it gave. XLA's cache is
   kept by function and shapes, so the step that calls the cluster later finds it compiled. Clusters are pure: nothing happens by these calls;
3. once compiled, both forms take turns for some steps, and the faster one stays (`trial.py`).

The two forms have the same arguments, results and channels: which one runs is decided at each dispatch. Whatever fails here, the ordinary form is used.
"""

import logging
import threading
import time

from terra.graph.xla_form import make_form
from terra.runtime import dispatch
from terra.runtime import internals as tfi
from terra.runtime.graph_runner import Queue, runner
from terra.runtime.registered import Registered
from terra.runtime.tracer import shape_of_variable
from terra.runtime.trial import Trial

log = logging.getLogger("terra")

SETTLED = 3  # steps of a program before it is worth compiling
LEARNED = 24  # steps of it before the trial: until then the skeleton learns what it may skip, and takes longer than any graph
MOST_SHAPES = 8  # combinations of shapes that are compiled; steps with others run in the ordinary form
MOST_FAILURES = 3  # of steps in the compiled form, before it is given up: the program's own, or XLA's (a failed step is replayed, which takes long)
FORGIVEN = 100  # steps after which earlier failures count no more
GROWN = 1.5  # a program so many times as large as the one before is tried anew
ATTRS = ("executor_type", "", "config_proto", tfi.call_config(False))
UNKNOWN, PROBED, READY, FAILED = "unknown", "probed", "ready", "failed"


class NotingQueue(Queue):
    """A channel that remembers the shape of what was last put into it: that of a value which the step will be fed is not known when it starts."""

    __slots__ = ("shape",)

    def __init__(self, enum):
        super().__init__(enum)
        self.shape = None

    def put(self, handle, value):
        super().put(handle, value)
        self.shape = value._shape_tuple()


class Compiled:
    """Belongs to one program. All methods but `_work` and what it calls are called by the thread that runs steps.

    before: the `Compiled` of the program that this one replaces, or None. What its trial has decided holds for a program of about the same size.
    """

    def __init__(self, program, instantiate, before=None):
        self.program = program
        self.used = False  # whether the last step ran in the compiled form
        self._current = None, {}, ()  # the compiled form, what is known of each combination of shapes, and the arguments whose shapes these are
        self._without = set()  # numbers of clusters that XLA could not compile
        self.reason = None  # why the ordinary form is used for good
        self.trouble = None  # why a part is not compiled
        self.trial = Trial()
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
        if self._worker is not None and not self._worker.is_alive():
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
            if runner.failures > self._failures_before:
                self.failed()
            else:
                self._good += 1
                if self._good % FORGIVEN == 0:
                    self._failures = 0
        self.used = False
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
            self._failures_before = runner.failures
            return form.top.signature.name, ordinary[1]
        self.trial.interrupt(time.perf_counter())
        if state is UNKNOWN and self._worker is None and self._probe is None and len(states) < MOST_SHAPES:
            states[key] = PROBED
            self._probe = [key, None]
            return form.probe.signature.name, ordinary[1] + len(form.probed)
        return ordinary

    def started(self, outputs):
        """What the function that `choose` named gave."""
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
        """What XLA compiles for: the shapes of arguments and fed values, and the values that decide shapes."""
        pending = {}
        for flight in list(runner.flights):
            for t in getattr(flight.record, "survivors", ()):
                pending[id(t._hidden)] = t._shp
        key = []
        for k, queue, decides in varying:
            if queue is not None:
                key.append(queue.shape)
                continue
            value = args[k]
            shape = pending.get(id(value)) if pending else None  # its own shape would have to be waited for
            key.append(shape if type(shape) is tuple else value._shape_tuple())
            if decides:
                key.append(value.numpy().tobytes())
        return tuple(key)

    def _find_varying(self, constants):
        """What `_key` looks at, for each argument: (its number, the channel it comes by or None, whether its value decides shapes)."""
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
        log.info("terra: the compiled form of %s is not used: %s", self.program.name, reason)

    # -- the helper thread -----------------------------------------------------------------------------------------------------

    def _start(self, work, *args):
        # A daemon: the interpreter must not wait for XLA when it ends.
        self._worker = threading.Thread(target=self._work, args=(work, *args), name="terra-compile", daemon=True)
        self._worker.start()

    def _work(self, work, *args):
        try:
            with dispatch.internal_thread():
                work(*args)
        except Exception as error:  # whatever it is, steps go on in the ordinary form
            self._give_up(f"it could not be made ({_first_line(error)})")

    def _write(self):
        """Write and register the functions of the compiled form."""
        generated = self.program.generated
        top = generated.fdefs[-1]
        self._arg_names = [a.name for a in top.signature.input_arg]
        self._versions += 1
        form = make_form(
            top, generated.fdefs, generated.library, generated.open_refs | self._open_reads(top), self._versions, self._without)
        if form is None:
            self._give_up(self.trouble or "no part of the graph can be compiled, or none of a size that pays")
            return
        for fdef in form.fdefs:
            self._registered.add(fdef)
        self._instantiate(form.probe.signature.name, generated.n_outputs + len(form.probed))
        self._current = form, {}, self._find_varying(form.constants)

    def _open_reads(self, top):
        """Names of the nodes that read variables without a fixed shape, or variables that the step was given or makes."""
        specs = dict(zip(self._arg_names, self.program.generated.arg_specs))
        fixed = {name for name, spec in specs.items() if spec[0] == "res" and shape_of_variable(self.program.handles[spec[1]]) is not None}
        return {node.name for node in top.node_def if node.op == "ReadVariableOp" and node.input[0] not in fixed}

    def _compile(self, key, handles):
        """Have XLA compile each cluster for the values that a probe gave."""
        form, states, _ = self._current
        try:
            for handle in handles:
                handle._shape_tuple()  # waits for the step
        except (tfi.NotOkStatusException, tfi.OpError):  # it was cancelled or failed: another step may tell
            states.pop(key, None)
            return
        values = dict(zip(form.probed, handles))
        refused = {}
        for cluster in form.clusters:
            try:
                run_alone(cluster, [values[ref] for ref in cluster.inputs])
            except (tfi.NotOkStatusException, tfi.OpError) as error:
                refused[cluster.number] = _first_line(error)
        if refused:
            states[key] = FAILED
            self.trouble = f"XLA could not compile {len(refused)} of {len(form.clusters)} parts ({next(iter(refused.values()))})"
            log.info("terra: %s", self.trouble)
            self._without |= set(refused)
            self._write()
            return
        if READY not in states.values():
            self._instantiate(form.top.signature.name, self.program.generated.n_outputs)
        states[key] = READY

    # -- what others ask -------------------------------------------------------------------------------------------------------

    @property
    def busy(self):
        """Whether the helper thread still uses the functions."""
        return self._worker is not None and self._worker.is_alive()

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
        text = f"XLA compiles {n} operations in {len(form.clusters)} parts, for {sum(s is READY for s in states.values())} combinations of shapes"
        if self.trial.second_is_better:
            text += f" (steps took {self.trial.median(1) * 1e3:.2g} ms, {self.trial.median(0) * 1e3:.2g} ms without)"
        if self.trouble:
            text += f"; {self.trouble}"
        outside = sorted(form.left_out.items(), key=lambda item: -len(item[1]))[:3]
        if outside:
            text += "; left outside: " + "; ".join(f"{_list(ops)} ({reason})" for reason, ops in outside)
        return text + "."


def run_alone(cluster, inputs):
    """Call a cluster without its step, so that XLA compiles it for inputs of these shapes."""
    tfi.execute(tfi.context_handle(), "", cluster.caller.signature.name, inputs, ATTRS, len(cluster.fdef.signature.output_arg))


def _list(ops):
    names = list(dict.fromkeys(ops))
    return ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")


def _first_line(error):
    if isinstance(error, tfi.NotOkStatusException):
        error = tfi.status_to_exception(error)
    return str(error).strip().split("\n")[0][:200]
