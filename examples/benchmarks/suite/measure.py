"""Measures one program: the same work in every mode, interleaved, with the results compared.

Each mode gets a job of its own from the same seed, and random streams of its own, and makes the same steps in the same order. After a warm-up the modes take
turns, a round of a few steps each, in an order that rotates, so that whatever else the machine does meets all of them. A round ends when all its work has
ended: a mode that returns before its step is done gains nothing by that. How many rounds there are follows from a budget of time and the steps' speed.
"""

import dataclasses
import functools
import math
import statistics
import time

import tensorflow as tf

import terra
from examples.benchmarks.console import error_line
from examples.benchmarks.suite.memory import peak_mib
from examples.benchmarks.suite.randomness import Streams, draws_other_numbers
from examples.benchmarks.suite.state import python_state, state_difference
from examples.programs import load

TOLERANCE = 1e-5  # of Terra's losses and Python state, relative to eager's
# Where loops vary or functions recurse, Terra sums some gradients in another order: a last bit, which training then lets grow, in some programs a hundredfold in ten steps.
# Such a program must keep the tolerance above for its first steps. Each round then starts from eager's variables, and must keep this one.
ROLLED_TOLERANCE, FIRST_STEPS = 1e-2, 20
# tf.function rewrites the arithmetic of its graphs, and training lets small differences grow. So it is judged by the warm-up alone, and with more patience.
TF_FUNCTION_TOLERANCE = 1e-2
TF_FUNCTION_PATIENCE_S = 60.0  # with the warm-up, where each step may be traced again


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to run, and how the loop reads its losses."""

    size: str = "benchmark"
    budget_s: float = 6.0  # for the rounds of all modes of a program, unless the fewest take longer
    rounds: int = 20  # at most
    steps: int = 10  # in a round, at most
    warm_up: int = 6  # steps, at least
    warm_up_s: float = 2.0  # after which eager's warm-up ends at that; the other modes make the same steps
    settling: int = 14  # further steps before the rounds: Terra goes on learning what it may skip, tf.function meets shapes and structures that are new to it
    settling_s: float = 4.0  # if eager makes more steps in that time, so many (up to `most_settling`): Terra tries out ways to run a graph, each for some steps
    settling_in_pieces: int = 160  # such steps, at most, of a program whose steps are cut into pieces: structures that recur get graphs of their own
    read_every: int = 1
    seed: int = 1

    most_settling = 160
    fewest_rounds = 3  # for a median
    fewest_steps = 2  # so that a step can run while the one before is in flight

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name not in ("seed", "size", "settling", "settling_in_pieces") and getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0")
        if self.rounds < self.fewest_rounds:
            raise ValueError(f"rounds must be at least {self.fewest_rounds}")

    def rounds_and_steps(self, step_seconds):
        """How many rounds of how many steps, where a step of all modes together takes that long; a round holds whole reads of the loss."""
        affordable = self.budget_s / step_seconds
        steps = min(self.steps, max(self.fewest_steps, int(affordable / (2 * self.fewest_rounds))))
        steps = math.ceil(steps / self.read_every) * self.read_every
        return min(self.rounds, max(self.fewest_rounds, int(affordable / steps))), steps


@dataclasses.dataclass
class Row:
    """What was measured of one program. Times per step are medians over the rounds, `_mean_ms` means; None means: not measured.

    `feeds` and `fetches` are counted per step. `python_stall` and `graph_stall` are the parts of Terra's time in which one runner waited for the other.
    `generation_s` and `tf_function_trace_s` are what it took to make the graphs before the first step in one; `terra_start_s` and `tf_function_start_s`
    what passed until that step was done. `_memory_mib`: what a step takes at its peak beyond what stays.
    """

    program: str
    eager_ms: float | None = None
    tf_function_ms: float | None = None
    tf_function_error: str | None = None
    terra_ms: float | None = None
    graph_ms: float | None = None
    generation_s: float | None = None
    tf_function_trace_s: float | None = None
    terra_start_s: float | None = None
    tf_function_start_s: float | None = None
    traces: int | None = None
    fallbacks: int | None = None
    coexecuted_steps: int | None = None
    steps: int | None = None
    feeds: float | None = None
    fetches: float | None = None
    python_stall: float | None = None
    graph_stall: float | None = None
    max_rel_diff: float | None = None
    tf_function_max_rel_diff: float | None = None
    tf_function_tracings: int | None = None
    tf_function_note: str | None = None
    eager_mean_ms: float | None = None
    tf_function_mean_ms: float | None = None
    terra_mean_ms: float | None = None
    eager_memory_mib: float | None = None
    tf_function_memory_mib: float | None = None
    terra_memory_mib: float | None = None
    measured_steps: int | None = None  # of each mode
    measured_coexecuted_steps: int | None = None
    rounds: int | None = None
    seconds: float | None = None  # that measuring this program took
    error: str | None = None
    eager_error: str | None = None  # why the program does not run here at all

    @property
    def correct(self):
        return self.error is None


class Mode:
    """A job, its random streams, and the way to run its step."""

    name = "eager"

    def __init__(self, build, seed, wrap=lambda step: step):
        self.streams = Streams(seed)
        self.variables = []

        def keep(creator, **arguments):
            self.variables.append(creator(**arguments))
            return self.variables[-1]

        with self.streams, tf.variable_creator_scope(keep):
            job = build(seed)
        self.batches = job.batches
        self.imperative_step = job.step
        self.step = wrap(job.step)
        self.losses = []
        self.warm_up_seconds = []
        self.round_seconds = []  # per step, the mean of each round

    def run(self, steps, read_every=1, work=None):
        """Make the next steps, keep their losses, and return the seconds that passed. With `read_every` 0 no loss is read meanwhile; `work()` follows each step."""
        first = len(self.losses)
        losses = []
        start = time.perf_counter()
        for index in range(steps):
            loss = self.step(*self.batches[(first + index) % len(self.batches)])
            losses.append(loss)
            if read_every and (index + 1) % read_every == 0:
                float(loss)
            if work is not None:
                work()
        finish()
        seconds = time.perf_counter() - start
        self.losses += [float(loss) for loss in losses]
        return seconds

    def warm_up(self, enough):
        """Make the first steps, until `enough(steps so far, seconds they took)`."""
        with self.streams:
            while not enough(len(self.warm_up_seconds), sum(self.warm_up_seconds)):
                self.warm_up_seconds.append(self.run(1))
        self.state = python_state(self.imperative_step)

    def settle(self, steps):
        """Make some more steps; how long they take tells how many can be measured."""
        with self.streams:
            self.warm_up_seconds += [self.run(1) for _ in range(steps)]

    def go_on_from(self, values):
        """Give the variables these values."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def run_round(self, steps, read_every, work=None):
        with self.streams:
            if self.streams.cold or not self.round_seconds:  # another mode's start has dropped the kernels
                self.run(1)  # makes them anew, which is not what is measured
            self.round_seconds.append(self.run(steps, read_every, work) / steps)

    def memory_mib(self, steps=2):
        with self.streams:
            return peak_mib(lambda: self.run(steps))

    @property
    def settled_seconds(self):
        """What a step took in the second half of what went before the rounds."""
        return statistics.median(self.warm_up_seconds[len(self.warm_up_seconds) // 2 :])

    @property
    def median_ms(self):
        return 1e3 * statistics.median(self.round_seconds)

    @property
    def mean_ms(self):
        return 1e3 * statistics.mean(self.round_seconds)


class TfFunctionMode(Mode):
    """The step as it is, under tf.function."""

    name = "tf.function"

    def __init__(self, build, seed):
        super().__init__(build, seed, tf.function)

    def warm_up(self, enough):
        with self.streams:
            start = time.perf_counter()
            self.concrete = self.step.get_concrete_function(*self.batches[0])
            self.trace_s = time.perf_counter() - start
            self.start_s = self.trace_s + self.run(1)

        def enough_or_too_slow(steps, seconds):
            if seconds > TF_FUNCTION_PATIENCE_S:
                raise TimeoutError(f"{steps} steps took {seconds:.0f} s")
            return enough(steps + 1, seconds)

        super().warm_up(enough_or_too_slow)

    def fill(self, row, eager, warm_up):
        row.tf_function_ms, row.tf_function_mean_ms = self.median_ms, self.mean_ms
        row.tf_function_trace_s, row.tf_function_start_s = self.trace_s, self.start_s
        row.tf_function_tracings = self.step.experimental_get_tracing_count()
        row.tf_function_max_rel_diff = whole = max_rel_diff(self.losses, eager.losses)
        difference = max_rel_diff(self.losses[:warm_up], eager.losses[:warm_up])
        other_numbers = difference > TF_FUNCTION_TOLERANCE and draws_other_numbers(self.concrete)
        in_state = state_difference(self.state, eager.state, None if other_numbers else TF_FUNCTION_TOLERANCE)
        in_state = in_state or state_difference(python_state(self.imperative_step), python_state(eager.imperative_step), None)
        if in_state:
            row.tf_function_error = f"wrong result: {in_state}"
        elif other_numbers:
            row.tf_function_note = "draws other random numbers, so its losses cannot be compared"
        elif difference > TF_FUNCTION_TOLERANCE:
            row.tf_function_error = f"wrong result: losses differ by {difference:.1e} in the first {warm_up} steps"
        elif whole > TF_FUNCTION_TOLERANCE:
            row.tf_function_note = f"drifts from eager: losses differ by {difference:.1e} after {warm_up} steps, by {whole:.1e} at the end"


class TerraMode(Mode):
    """Co-executed; waits for its graphs, so that the warm-up is the same in every run."""

    name = "Terra"

    def __init__(self, build, seed):
        super().__init__(build, seed, lambda step: terra.coexecute(step, wait_for_graph=True))
        self.start_s = None

    def warm_up(self, enough):
        def enough_or_not(steps, seconds):
            if self.start_s is None and self.step.stats().coexecuted_steps:
                self.start_s = seconds
            return enough(steps, seconds)

        super().warm_up(enough_or_not)

    def settle_in_pieces(self, most):
        """Go on settling, `most` steps at most, until four times through the batches brought no new graph, and no new trace of one."""
        first = len(self.losses)
        if self.step.stats().pieces:
            quiet, before = 0, None
            while quiet < 4 * len(self.batches) and len(self.losses) < first + most:
                self.settle(1)
                stats = self.step.stats()
                now = stats.graphs, stats.tracing_steps
                quiet, before = quiet + 1 if now == before else 0, now
        return len(self.losses) - first

    def run_round(self, steps, read_every, work=None):
        if not self.round_seconds:
            self.before = self.step.stats()
        super().run_round(steps, read_every, work)
        self.after = self.step.stats()

    def fill(self, row, eager, steps):
        row.terra_ms, row.terra_mean_ms = self.median_ms, self.mean_ms
        row.terra_start_s, row.generation_s = self.start_s, self.after.generation_s
        row.traces, row.fallbacks = self.after.traces, self.after.fallbacks
        row.steps, row.coexecuted_steps = self.after.steps, self.after.coexecuted_steps
        row.measured_coexecuted_steps = self.after.coexecuted_steps - self.before.coexecuted_steps
        row.feeds = (self.after.feeds - self.before.feeds) / steps
        row.fetches = (self.after.fetches - self.before.fetches) / steps
        row.python_stall = (self.after.python_stall_s - self.before.python_stall_s) / (steps * self.mean_ms / 1e3)
        tolerance = tolerance_of(self.step)
        losses, expected = (
            mode.losses if tolerance == TOLERANCE else mode.losses[:FIRST_STEPS] + mode.losses[max(FIRST_STEPS, len(mode.losses) - steps):]
            for mode in (self, eager))
        row.max_rel_diff = max_rel_diff(losses, expected)
        in_state = state_difference(python_state(self.imperative_step), python_state(eager.imperative_step), tolerance)
        if not within_tolerance(losses, expected, tolerance):
            row.error = f"losses differ from eager's by {row.max_rel_diff:.1e}"
        elif in_state:
            row.error = in_state
        elif not row.coexecuted_steps:
            row.error = "no step was co-executed"

    def graph_alone_ms(self, steps):
        """The physical limit: dispatch the step's graph and wait, without a skeleton. None where the step just made was not co-executed, or its graph cannot be run again."""
        run_graph_alone = self.step.run_graph_alone
        times = []
        try:
            with self.streams:
                run_graph_alone(*self.batches[len(self.losses) % len(self.batches)])  # a whole step, whose inputs the next calls use again
        except RuntimeError:
            return None
        try:
            for index in range(steps):
                start = time.perf_counter()
                run_graph_alone(*self.batches[index % len(self.batches)])
                times.append(time.perf_counter() - start)
        except tf.errors.OpError:  # what Python has sent that one step goes no more with the variables, which each run changes
            return None
        return 1e3 * statistics.median(times)


def measure(name, plan, progress=lambda text, percent: None):
    """Run one program in every mode; `progress` is called with what is going on, and how much of the program is done."""
    began = time.perf_counter()
    row = Row(name)
    try:
        _measure(row, plan, progress)
    except Exception as error:  # eager itself: nothing can be said about the program
        row.eager_error = error_line(error)
    row.seconds = time.perf_counter() - began
    return row


def _measure(row, plan, progress):
    build = functools.partial(load(row.program).build, size=plan.size)
    modes = {}

    def attempt(name, action):
        """Whatever is raised in a mode that is not eager belongs in the row, and ends that mode."""
        try:
            action()
        except Exception as error:
            modes.pop(name, None)
            if name == Mode.name:
                raise
            elif name == TerraMode.name:
                row.error = f"raises {error_line(error)}"
            else:
                row.tf_function_error = f"fails: {error_line(error)}"

    progress("eager", 0)
    eager = modes[Mode.name] = start_eager(build, plan)
    warm_up = len(eager.losses)

    def start(kind):
        modes[kind.name] = mode = kind(build, plan.seed)
        mode.warm_up(lambda steps, _: steps >= warm_up)
        mode.streams.cold = eager.streams.cold

    for percent, kind in ((15, TfFunctionMode), (40, TerraMode)):
        progress(kind.name, percent)
        attempt(kind.name, lambda: start(kind))

    settling = plan.settling and max(plan.settling, min(plan.most_settling, int(plan.settling_s / eager.settled_seconds)))

    def settle_first(mode):
        nonlocal settling
        mode.settle(settling)
        settling += mode.settle_in_pieces(plan.settling_in_pieces if settling else 0)

    for name in reversed(list(modes)):
        progress(f"{name} settles", 50)
        attempt(name, lambda: settle_first(modes[name]) if name == TerraMode.name else modes[name].settle(settling))
    measured_from = len(eager.losses)
    rounds, steps = plan.rounds_and_steps(sum(mode.settled_seconds for mode in modes.values()))
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}", 55 + 35 * number // rounds)
        names = list(modes)
        first = number % len(names)
        if TerraMode.name in modes and modes[TerraMode.name].step.stats().pieces:
            modes[TerraMode.name].go_on_from([variable.numpy() for variable in eager.variables])
        for name in names[first:] + names[:first]:
            attempt(name, lambda: modes[name].run_round(steps, plan.read_every))

    progress("results", 90)
    row.rounds, row.measured_steps = rounds, len(eager.losses) - measured_from
    row.eager_ms, row.eager_mean_ms = eager.median_ms, eager.mean_ms
    traced, ours = modes.get(TfFunctionMode.name), modes.get(TerraMode.name)
    if traced is not None:
        traced.fill(row, eager, warm_up)
    if ours is not None:
        ours.fill(row, eager, row.measured_steps)
        if row.correct:
            row.graph_ms = ours.graph_alone_ms(steps)
        if row.graph_ms is not None:
            row.graph_stall = max(0.0, 1.0 - row.graph_ms / row.terra_ms)
    for field, mode in (("eager", eager), ("tf_function", traced), ("terra", ours)):
        if mode is not None:
            setattr(row, f"{field}_memory_mib", mode.memory_mib())


def start_eager(build, plan):
    """The eager mode, warmed up: the other modes' warm-ups are as long."""
    eager = Mode(build, plan.seed)
    cycles = 2 * len(eager.batches)  # every batch once to be traced and once more, if there is time for that
    eager.warm_up(lambda steps, seconds: steps >= plan.warm_up and (steps >= cycles or seconds > plan.warm_up_s))
    eager.streams.cold = eager.streams.drew_op_seeds
    return eager


def finish():
    """Wait for all work in flight."""
    terra.sync()
    tf.test.experimental.sync_devices()


def tolerance_of(step):
    """How far the losses of a co-executed step may be from eager's in the end."""
    return ROLLED_TOLERANCE if step.stats().pieces else TOLERANCE


def within_tolerance(losses, expected, tolerance):
    """Whether two lists of losses agree: within `tolerance`, and the first of them closer."""
    return max_rel_diff(losses, expected) <= tolerance and max_rel_diff(losses[:FIRST_STEPS], expected[:FIRST_STEPS]) <= TOLERANCE


def max_rel_diff(values, expected):
    """The largest relative difference of two lists of numbers; infinite where only one of two is a number."""
    largest = 0.0
    for value, right in zip(values, expected, strict=True):
        if value == right or (math.isnan(value) and math.isnan(right)):
            continue
        difference = abs(value - right) / max(abs(right), 1e-30)
        largest = max(largest, math.inf if math.isnan(difference) else difference)
    return largest
