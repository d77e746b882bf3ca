"""Measures one program: the same work in every mode, interleaved, with the results compared.

Each mode gets a job of its own from the same seed and makes the same steps in the same order. After a warm-up the modes
take turns, a round of a few steps each, in an order that rotates, so that whatever else the machine does meets all of
them. A round ends when all its work has ended: a mode that returns before its step is done gains nothing by that.
"""

import dataclasses
import math
import statistics
import time

import keras
import tensorflow as tf

import terra
from examples.console import error_line
from examples.programs import load

TOLERANCE = 1e-5  # of Terra's losses, relative to eager's
# tf.function rewrites the arithmetic of its graphs, and training lets small differences grow; beyond this it is wrong.
TF_FUNCTION_TOLERANCE = 1e-2


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to run, and how the loop reads its losses."""

    rounds: int = 20
    steps: int = 10  # in a round
    warm_up: int = 6
    read_every: int = 1
    seed: int = 1

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < (0 if field.name == "seed" else 1):
                raise ValueError(f"{field.name} must be at least 1")
        if self.steps % self.read_every:
            raise ValueError(f"a round of {self.steps} steps cannot read its loss every {self.read_every} steps")


@dataclasses.dataclass
class Row:
    """What was measured of one program. Times are medians; None means: not measured.

    `feeds` and `fetches` are counted per step. `python_stall` and `graph_stall` are the parts of Terra's time in which
    one runner waited for the other. `generation_s` and `tf_function_trace_s` are what it took to make the graphs;
    `terra_start_s` and `tf_function_start_s` what passed until the first step that ran in one.
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
    error: str | None = None

    @property
    def correct(self):
        return self.error is None


class Mode:
    """A job and the way to run its step."""

    def __init__(self, build, seed, wrap):
        keras.utils.set_random_seed(seed)
        job = build(seed)
        self.batches = job.batches
        self.step = wrap(job.step)
        self.losses = []
        self.step_seconds = []  # mean of each round

    def run(self, steps, read_every):
        """Make the next steps, keep their losses, and return the seconds that passed."""
        first = len(self.losses)
        losses = []
        start = time.perf_counter()
        for index in range(steps):
            loss = self.step(*self.batches[(first + index) % len(self.batches)])
            losses.append(loss)
            if (index + 1) % read_every == 0:
                float(loss)
        finish()
        seconds = time.perf_counter() - start
        self.losses += [float(loss) for loss in losses]
        return seconds

    def warm_up(self, steps, read_every):
        for _ in range(steps):
            self.run(1, 1)
        if read_every > 1:
            self.run(read_every, read_every)

    def run_round(self, plan):
        self.step_seconds.append(self.run(plan.steps, plan.read_every) / plan.steps)

    @property
    def median_ms(self):
        return 1e3 * statistics.median(self.step_seconds)


class TerraMode(Mode):
    """Co-executed; waits for its graphs, so that the warm-up is the same in every run."""

    def __init__(self, build, seed):
        super().__init__(build, seed, lambda step: terra.coexecute(step, wait_for_graph=True))
        self.start_s = None

    def warm_up(self, steps, read_every):
        start = time.perf_counter()
        for _ in range(steps):
            self.run(1, 1)
            if self.start_s is None and self.step.stats().coexecuted_steps:
                self.start_s = time.perf_counter() - start
        if read_every > 1:
            self.run(read_every, read_every)
        self.before = self.step.stats()

    def fill(self, row, plan):
        before, after = self.before, self.step.stats()
        row.terra_ms = self.median_ms
        row.terra_start_s = self.start_s
        row.generation_s = after.generation_s
        row.traces, row.fallbacks = after.traces, after.fallbacks
        row.steps, row.coexecuted_steps = after.steps, after.coexecuted_steps
        steps = plan.rounds * plan.steps
        seconds = plan.steps * sum(self.step_seconds)
        row.feeds = (after.feeds - before.feeds) / steps
        row.fetches = (after.fetches - before.fetches) / steps
        row.python_stall = (after.python_stall_s - before.python_stall_s) / seconds

    def graph_alone_ms(self, plan):
        """The physical limit: dispatch the step's graph and wait, without a skeleton."""
        run_graph_alone = self.step.run_graph_alone
        times = []
        run_graph_alone(*self.batches[0])  # a whole step, whose inputs the next calls use again
        for index in range(plan.steps):
            start = time.perf_counter()
            run_graph_alone(*self.batches[index % len(self.batches)])
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)


class TfFunctionMode(Mode):
    """The step as it is, under tf.function."""

    def __init__(self, build, seed):
        super().__init__(build, seed, tf.function)

    def warm_up(self, steps, read_every):
        start = time.perf_counter()
        self.step.get_concrete_function(*self.batches[0])
        self.trace_s = time.perf_counter() - start
        self.run(1, 1)
        self.start_s = time.perf_counter() - start
        super().warm_up(steps - 1, read_every)


def measure(name, plan, progress=lambda text: None):
    """Run one program in every mode; `progress` is called with a word before each of `stages(plan)` parts."""
    build = load(name).build
    row = Row(name)

    progress("eager")
    eager = Mode(build, plan.seed, lambda step: step)
    eager.warm_up(plan.warm_up, plan.read_every)
    modes = {"eager": eager}

    def attempt(mode, action):
        """Whatever a step raises in a mode that is not eager belongs in the row, and ends that mode."""
        try:
            action()
        except Exception as error:
            modes.pop(mode, None)
            if mode == "eager":
                raise
            elif mode == "Terra":
                row.error = error_line(error)
            else:
                row.tf_function_error = f"fails: {error_line(error)}"

    def start(mode, kind):
        modes[mode] = kind(build, plan.seed)
        modes[mode].warm_up(plan.warm_up, plan.read_every)

    for mode, kind in (("tf.function", TfFunctionMode), ("Terra", TerraMode)):
        progress(mode)
        attempt(mode, lambda: start(mode, kind))

    for number in range(plan.rounds):
        progress(f"round {number + 1}")
        names = list(modes)
        first = number % len(names)
        for mode in names[first:] + names[:first]:
            attempt(mode, lambda: modes[mode].run_round(plan))

    traced, ours = modes.get("tf.function"), modes.get("Terra")
    row.eager_ms = eager.median_ms
    if traced is not None:
        row.tf_function_ms = traced.median_ms
        row.tf_function_trace_s, row.tf_function_start_s = traced.trace_s, traced.start_s
        row.tf_function_max_rel_diff = max_rel_diff(traced.losses, eager.losses)
        if not row.tf_function_max_rel_diff <= TF_FUNCTION_TOLERANCE:
            row.tf_function_error = f"wrong result: losses differ by {row.tf_function_max_rel_diff:.1e}"
    if ours is not None:
        ours.fill(row, plan)
        row.max_rel_diff = max_rel_diff(ours.losses, eager.losses)
        if not row.max_rel_diff <= TOLERANCE:
            row.error = f"losses differ from eager's by {row.max_rel_diff:.1e}"
        elif not row.coexecuted_steps:
            row.error = "no step was co-executed"
        else:
            row.graph_ms = ours.graph_alone_ms(plan)
            row.graph_stall = max(0.0, 1.0 - row.graph_ms / row.terra_ms)
    return row


def stages(plan):
    """How often `measure` reports progress."""
    return 3 + plan.rounds


def finish():
    """Wait for all work in flight."""
    terra.sync()
    tf.test.experimental.sync_devices()


def max_rel_diff(values, expected):
    """The largest relative difference of two lists of numbers; infinite where only one of two is a number."""
    largest = 0.0
    for value, right in zip(values, expected, strict=True):
        if value == right or (math.isnan(value) and math.isnan(right)):
            continue
        difference = abs(value - right) / max(abs(right), 1e-30)
        largest = max(largest, math.inf if math.isnan(difference) else difference)
    return largest
