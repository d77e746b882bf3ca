"""`--loops`: Terra and `tf.function` in three kinds of training loop, each next to the physical limit, with the stalls of both runners.

How much a graph can run ahead of Python, or Python ahead of a graph, depends on the loop round the step: on how often it reads the loss, and on what else it does.
A mode has a job of its own for each kind, as in a program that has only that loop: what Terra has learned in one loop (when to start the graph, which values are
read) must not show in another. All of them, eager, the graph alone and the Python work alone take turns.
"""

import dataclasses
import functools
import statistics
import time

from examples.benchmarks.suite.measure import (
    TF_FUNCTION_TOLERANCE, TerraMode, TfFunctionMode, max_rel_diff, start_eager, tolerance_of, within_tolerance,
)  # fmt: skip
from examples.benchmarks.console import error_line
from examples.benchmarks.suite.randomness import draws_other_numbers
from examples.benchmarks.suite.report import geometric_means, number, ratio
from examples.programs import load

STEPS = 50  # in a round, which is also what lies between two reads in the loop that reads seldom
UNCOUNTED = 3  # rounds in which each job gets used to its loop: Terra tries out ways to run the graph, each for some steps
UNEQUAL = 1.25  # work that takes so many times as long as the graph, or the graph as the work, is worth a remark
CALIBRATIONS, CALIBRATION_STEPS = 15, 10  # of the Python work: samples, and steps in one


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of loop. `read_every` 0: the loss is never read."""

    title: str
    read_every: int
    works: bool = False  # Python work between the steps


KINDS = (Kind("read each step", 1), Kind(f"read every {STEPS}", STEPS), Kind("Python work", 0, works=True))


@dataclasses.dataclass
class LoopRow:
    """One program in one kind of loop. Times are per step, medians over the rounds; None means: not measured.

    `work_ms`: the Python work between two steps, alone. `python_stall`: the part of Terra's time in which Python waited for the graph. `graph_stall`: the part
    in which no graph ran, which is what `graph_ms` leaves of it. `graph_cores`: how many cores the graph alone keeps busy, on average. `steps`: those measured under Terra.
    """

    program: str
    loop: str
    eager_ms: float | None = None
    tf_function_ms: float | None = None
    terra_ms: float | None = None
    graph_ms: float | None = None
    graph_cores: float | None = None
    work_ms: float | None = None
    python_stall: float | None = None
    graph_stall: float | None = None
    max_rel_diff: float | None = None
    rounds: int | None = None
    steps: int | None = None
    coexecuted_steps: int | None = None
    tf_function_error: str | None = None
    note: str | None = None
    error: str | None = None

    @property
    def correct(self):
        return self.error is None


RATIOS = (
    # title, what is divided, by what
    ("Terra/tf.fn", "terra_ms", "tf_function_ms"),
    ("Terra/graph", "terra_ms", "graph_ms"),
    ("eager/Terra", "eager_ms", "terra_ms"),
)


def ratio_column(title, above, below):
    return title, 13, lambda row: ratio(getattr(row, above), getattr(row, below))


COLUMNS = (
    ("program", 24, lambda row: row.program),
    ("loop", 15, lambda row: row.loop),
    ("tf.fn ms", 10, lambda row: row.tf_function_error.split()[0].rstrip(":") if row.tf_function_error else number(row.tf_function_ms, ".3f")),
    ("Terra ms", 10, lambda row: number(row.terra_ms, ".3f")),
    ratio_column(*RATIOS[0]),
    ("graph ms", 10, lambda row: number(row.graph_ms, ".3f")),
    ratio_column(*RATIOS[1]),
    ("cores", 8, lambda row: number(row.graph_cores, ".1f")),
    ("Py stall", 10, lambda row: number(row.python_stall, ".0%")),
    ("gr. stall", 10, lambda row: number(row.graph_stall, ".0%")),
    ("work ms", 9, lambda row: number(row.work_ms, ".3f")),
    ("eager ms", 10, lambda row: number(row.eager_ms, ".3f")),
    ratio_column(*RATIOS[2]),
)


def remarks(row):
    """What a number cannot say about a row."""
    place = f"{row.program}, {row.loop}"
    if row.tf_function_error:
        yield f"{row.program}: tf.function {row.tf_function_error}"
    if row.note:
        yield f"{row.program}: {row.note}"
    if row.error:
        yield f"{place}: TERRA IS WRONG: {row.error}"
    if row.work_ms and max(row.work_ms / row.graph_ms, row.graph_ms / row.work_ms) > UNEQUAL:
        yield f"{place}: the work took {row.work_ms / row.graph_ms:.2f} times as long as the graph in the rounds, though they were equal when it was calibrated"
    if row.steps and row.coexecuted_steps < row.steps:
        yield f"{place}: {row.coexecuted_steps} of the {row.steps} measured steps were co-executed"


def summary(rows):
    """Geometric means of the ratios in each kind of loop."""
    for kind in KINDS:
        ours = [row for row in rows if row.loop == kind.title]
        for title, above, below in RATIOS:
            yield from geometric_means(f"{kind.title}: {title}", ours, above, below)


class LoopTerraMode(TerraMode):
    """Keeps the part of each round in which Python waited."""

    def __init__(self, build, seed):
        super().__init__(build, seed)
        self.round_stalls = []

    def run(self, steps, read_every=1, work=None):
        before = self.step.stats().python_stall_s
        seconds = super().run(steps, read_every, work)
        self._stall = (self.step.stats().python_stall_s - before) / seconds
        return seconds

    def run_round(self, steps, read_every, work=None):
        super().run_round(steps, read_every, work)
        self.round_stalls.append(self._stall)


class GraphMode(TerraMode):
    """The step's graph, dispatched and waited for without a skeleton, again and again with the same inputs.

    That changes the variables, so the graph is that of a job of its own.
    """

    name = "graph"

    def __init__(self, build, seed):
        super().__init__(build, seed)
        self.round_cores = []

    def run_round(self, steps):
        with self.streams:
            self.step.run_graph_alone(*self.batches[0])  # the first call is a whole step; later ones make kernels that another mode's start has dropped
            start, busy = time.perf_counter(), time.process_time()
            for _ in range(steps):
                self.step.run_graph_alone()
            seconds = time.perf_counter() - start
            self.round_seconds.append(seconds / steps)
            self.round_cores.append((time.process_time() - busy) / seconds)


class Work:
    """Python between the steps, such as preparing data: it holds the interpreter's lock, and takes as long as the graph."""

    def __init__(self, graph):
        """Measured by turns with the graph, so that both meet the same machine."""
        self.iterations, self.round_seconds = 10_000, []
        for _ in range(CALIBRATIONS):
            graph.run_round(CALIBRATION_STEPS)
            self.run_round(CALIBRATION_STEPS)
        # The fastest sample of each is the one that other processes disturbed least: they slow the threads of a graph more than this one.
        self.iterations = max(1, round(self.iterations * min(graph.round_seconds) / min(self.round_seconds)))

    def __call__(self):
        checksum = 0
        for item in range(self.iterations):
            checksum = (31 * checksum + item) % 65521
        return checksum

    def run_round(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self()
        self.round_seconds.append((time.perf_counter() - start) / steps)


def measure_loops(name, plan, progress=lambda text, percent: None):
    """A row for each kind of loop; `progress` is called with what is going on, and how much of the program is done."""
    rows = {kind: LoopRow(name, kind.title) for kind in KINDS}
    try:
        _measure(rows, functools.partial(load(name).build, size=plan.size), plan, progress)
    except Exception as error:  # eager itself: nothing can be said about the program
        for row in rows.values():
            row.error = error_line(error)
    return list(rows.values())


def _measure(rows, build, plan, progress):
    progress("eager", 0)
    eager = start_eager(build, plan)
    warm_up = len(eager.losses)
    turns = {"eager": lambda: eager.run_round(plan.steps, 1)}  # what to do in each round
    modes = {}

    def attempt(kind, mode_class, action):
        """Whatever is raised in a mode that is not eager belongs in the row, and ends that mode in that loop. Returns what `action` gives."""
        try:
            return action()
        except Exception as error:
            turns.pop((mode_class, kind), None)
            modes.pop((mode_class, kind), None)
            if mode_class is TfFunctionMode:
                rows[kind].tf_function_error = f"fails: {error_line(error)}"
            else:
                rows[kind].error = f"raises {error_line(error)}"

    def started(mode_class):
        mode = mode_class(build, plan.seed)
        mode.warm_up(lambda steps, _: steps >= warm_up)
        mode.streams.cold = eager.streams.cold
        return mode

    progress("graph alone", 10)
    graph = work = None
    try:
        graph = started(GraphMode)
        work = Work(graph)
        turns["graph"], turns["work"] = lambda: graph.run_round(STEPS), lambda: work.run_round(STEPS)
    except Exception as error:  # there is no graph alone: no step was co-executed, or the step raises
        rows[KINDS[-1]].note = f"no graph alone, so no Python work of its length: {error_line(error)}"

    for index, kind in enumerate(KINDS if work else KINDS[:-1]):
        progress(kind.title, 20 + 10 * index)
        for mode_class in (TfFunctionMode, LoopTerraMode):
            mode = attempt(kind, mode_class, lambda: started(mode_class))
            if mode is not None:
                modes[mode_class, kind] = mode
                turns[mode_class, kind] = functools.partial(mode.run_round, STEPS, kind.read_every, work if kind.works else None)

    def take_turns(order):
        for key in order:
            if key in turns:
                if isinstance(key, tuple):
                    attempt(key[1], key[0], turns[key])
                else:
                    turns[key]()

    for uncounted in range(UNCOUNTED):
        progress(f"round {uncounted + 1} of {UNCOUNTED} that do not count", 50)
        start = time.perf_counter()
        take_turns(list(turns))
        turn_seconds = time.perf_counter() - start
    for counted in (eager, graph, work, *modes.values()):
        if counted is not None:
            counted.round_seconds.clear()
    rounds = min(plan.rounds, max(plan.fewest_rounds, int(plan.budget_s / turn_seconds)))
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}", 55 + 45 * turn // rounds)
        order = list(turns)
        first = turn % len(order)
        order = order[first:] + order[:first]
        take_turns(order[::-1] if turn % 2 else order)  # so that none always follows the same other

    for kind, row in rows.items():
        row.rounds = rounds
        if kind.read_every == 1:
            row.eager_ms = median_ms(eager)
        if graph is not None and work is not None:
            row.graph_ms = median_ms(graph)
            row.graph_cores = statistics.median(graph.round_cores[-rounds:])
            row.work_ms = median_ms(work) if kind.works else None
        if (TfFunctionMode, kind) in modes:
            fill_tf_function(row, modes[TfFunctionMode, kind], eager, warm_up)
        if (LoopTerraMode, kind) in modes:
            fill_terra(row, modes[LoopTerraMode, kind], eager)


def fill_tf_function(row, mode, eager, warm_up):
    difference = max_rel_diff(mode.losses[:warm_up], eager.losses[:warm_up])
    if difference > TF_FUNCTION_TOLERANCE and not draws_other_numbers(mode.concrete):
        row.tf_function_error = f"wrong result: losses differ by {difference:.1e} in the first {warm_up} steps"
    else:
        row.tf_function_ms = median_ms(mode)


def fill_terra(row, mode, eager):
    row.terra_ms = median_ms(mode)
    row.python_stall = statistics.median(mode.round_stalls[-row.rounds :])
    if row.graph_ms is not None:
        row.graph_stall = max(0.0, 1.0 - row.graph_ms / row.terra_ms)
    row.steps = mode.after.steps - mode.before.steps
    row.coexecuted_steps = mode.after.coexecuted_steps - mode.before.coexecuted_steps
    both = min(len(mode.losses), len(eager.losses))
    row.max_rel_diff = max_rel_diff(mode.losses[:both], eager.losses[:both])
    if not within_tolerance(mode.losses[:both], eager.losses[:both], tolerance_of(mode.step)):
        row.error = f"losses differ from eager's by {row.max_rel_diff:.1e}"
    elif not row.coexecuted_steps:
        row.error = "no step was co-executed"


def median_ms(timed):
    return 1e3 * statistics.median(timed.round_seconds)
