"""`--jit`: XLA under Terra (`jit_compile=True`) and under `tf.function(jit_compile=True)`, next to both without it, interleaved like all modes.

Terra compiles in the background and keeps the compiled form only if it is faster, so its warm-up goes on until that is decided. `tf.function` compiles the
whole step or fails.
"""

import dataclasses
import functools

import keras
import tensorflow as tf

import terra
from examples.benchmarks.console import error_line
from examples.benchmarks.suite.measure import Mode, TfFunctionMode, max_rel_diff
from examples.benchmarks.suite.report import geometric_means, number, ratio
from examples.programs import load

MOST_STEPS = 200  # of the warm-up, where nothing is decided
SETTLING = 160  # further steps of Terra's: it tries out ways to run a graph that XLA does not compile, too


class JitTerraMode(Mode):
    name = "Terra, jit"

    def __init__(self, build, seed):
        super().__init__(build, seed, lambda step: terra.coexecute(step, wait_for_graph=True, jit_compile=True))

    def warm_up(self, enough):
        super().warm_up(lambda steps, seconds: enough(steps, seconds) and (self.settled or steps >= MOST_STEPS))
        self.settle(SETTLING)
        self.step.options.wait_for_graph = False  # what takes turns from now on must not wait for XLA, should new shapes come
        self.before = self.step.stats()

    @property
    def settled(self):
        """Whether it is decided which form runs."""
        compiled = self.step.compiled
        return self.step.stats().pieces or (compiled is not None and (compiled.reason is not None or compiled.trial.second_is_better))

    @property
    def verdict(self):
        return next((text for text in terra.explain(self.step, full=True).splitlines() if text.startswith("XLA")), "")


class TerraMode(Mode):
    name = "Terra"

    def __init__(self, build, seed):
        super().__init__(build, seed, lambda step: terra.coexecute(step, wait_for_graph=True))

    def warm_up(self, enough):
        super().warm_up(enough)
        self.settle(SETTLING)


class JitTfFunctionMode(Mode):
    name = "tf.function, jit"

    def __init__(self, build, seed):
        super().__init__(build, seed, functools.partial(tf.function, jit_compile=True))


@dataclasses.dataclass
class JitRow:
    program: str
    ms: dict = dataclasses.field(default_factory=dict)  # mode -> median per step
    errors: dict = dataclasses.field(default_factory=dict)
    compiled: str = ""  # of Terra's measured steps, those that XLA's code ran
    max_rel_diff: float | None = None  # of the losses with jit_compile, to eager's over the steps that both made
    verdict: str = ""

    @property
    def terra_jit_ms(self):
        return self.ms.get(JitTerraMode.name)

    @property
    def tf_function_jit_ms(self):
        return self.ms.get(JitTfFunctionMode.name)


COLUMNS = (
    ("program", 24, lambda row: row.program),
    ("tf.fn ms", 10, lambda row: text(row, TfFunctionMode)),
    ("tf.fn jit ms", 14, lambda row: text(row, JitTfFunctionMode)),
    ("Terra ms", 10, lambda row: text(row, TerraMode)),
    ("Terra jit ms", 14, lambda row: text(row, JitTerraMode)),
    ("compiled", 10, lambda row: row.compiled),
    ("Terra/Terra jit", 17, lambda row: ratio(row.ms.get(TerraMode.name), row.terra_jit_ms)),
    ("tf.fn jit/Terra jit", 21, lambda row: ratio(row.tf_function_jit_ms, row.terra_jit_ms)),
    ("max diff", 10, lambda row: number(row.max_rel_diff, ".0e")),
)


def text(row, kind):
    return "fails" if kind.name in row.errors else number(row.ms.get(kind.name))


def remarks(row):
    for mode, error in row.errors.items():
        yield f"{row.program}: {mode}: {error}"
    if row.verdict:
        yield f"{row.program}: {row.verdict}"


def summary(rows):
    yield from geometric_means("tf.fn jit/Terra jit", rows, "tf_function_jit_ms", "terra_jit_ms")


def measure_jit(name, plan):
    """One program in the four modes."""
    build = functools.partial(load(name).build, size=plan.size)
    row, modes = JitRow(name), {}
    for kind in (TfFunctionMode, JitTfFunctionMode, TerraMode, JitTerraMode):
        try:
            mode = kind(build, plan.seed)
            mode.warm_up(lambda steps, seconds: steps >= plan.warm_up)
            modes[kind.name] = mode
        except Exception as error:
            row.errors[kind.name] = error_line(error)
    if not modes:
        return row
    rounds, steps = plan.rounds_and_steps(sum(mode.settled_seconds for mode in modes.values()))
    for turn in range(rounds):
        names = list(modes)
        for mode in (modes[n] for n in names[turn % len(names):] + names[: turn % len(names)]):
            if turn == 0 and mode.name == JitTerraMode.name:
                mode.before = mode.step.stats()
            mode.run_round(steps, plan.read_every)
    row.ms = {name: mode.median_ms for name, mode in modes.items()}
    ours = modes.get(JitTerraMode.name)
    if ours is not None:
        after = ours.step.stats()
        row.compiled = f"{after.compiled_steps - ours.before.compiled_steps}/{after.steps - ours.before.steps}"
        row.verdict = ours.verdict
        eager = Mode(build, plan.seed)
        with eager.streams:
            eager.run(len(ours.losses))
        row.max_rel_diff = max_rel_diff(ours.losses, eager.losses)
    keras.backend.clear_session()
    return row
