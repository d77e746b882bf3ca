"""Train one program of each family, eagerly and co-executed by Terra: the curves must be the same, and the program must learn.

    python -m examples.benchmarks.convergence [--families A,B] [--plot FILE] [--quiet]

Exits with 1 if a curve differs from eager's, or if what is trained does not learn.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import dataclasses
import importlib.util
import statistics
from collections.abc import Callable

import terra
from examples.benchmarks.check import run
from examples.benchmarks.console import Progress
from examples.benchmarks.suite.measure import max_rel_diff, tolerance_of
from examples.programs import load


def losses(made):
    return made.losses


def episode_rewards(made):
    """What each episode brought. The loss of an actor and its critic says little: the better the player, the more there is to predict."""
    return made.job.step.__self__.episodes


@dataclasses.dataclass(frozen=True)
class Family:
    """A program that stands for its family, and what its training must reach.

    The mean of the last tenth of the curve must be `goal` times that of the first tenth: at most if it is below 1, else at least.
    """

    program: str
    size: str
    steps: int
    goal: float
    curve: Callable = losses
    unit: str = "loss, step by step"

    def learned(self, start, end):
        return end <= self.goal * start if self.goal < 1.0 else end >= self.goal * start


FAMILIES = {
    "CNN": Family("lenet", "benchmark", 120, 0.2),
    "transformer": Family("gpt2", "test", 250, 0.85),
    "GAN": Family("pix2pix", "test", 200, 0.75),
    "RL": Family("a3c", "benchmark", 400, 2.0, episode_rewards, "reward, episode by episode"),
    "tree": Family("tree_lstm", "test", 200, 0.4),
}
COLUMNS = "{:<12} {:<10} {:>6} {:>10} {:>10} {:>10} {:>13} {:>9} {:>9}"


@dataclasses.dataclass
class Result:
    """The two curves of a family."""

    name: str
    family: Family
    eager: list
    terra: list
    coexecuted: int
    eager_s: float
    terra_s: float
    tolerance: float

    @property
    def start(self):
        return statistics.mean(self.terra[: max(1, len(self.terra) // 10)])

    @property
    def end(self):
        return statistics.mean(self.terra[-max(1, len(self.terra) // 10) :])

    @property
    def difference(self):
        return max_rel_diff(self.terra, self.eager) if len(self.terra) == len(self.eager) else float("inf")

    def faults(self):
        if not self.difference <= self.tolerance:
            yield f"TERRA IS WRONG: its curve differs from eager's by {self.difference:.1e}"
        if not self.coexecuted:
            yield "no step was co-executed"
        if not self.family.learned(self.start, self.end):
            yield f"it does not learn: from {self.start:.3g} to {self.end:.3g}"

    def text(self):
        steps = self.family.steps
        return COLUMNS.format(
            self.name, self.family.program, steps, f"{self.start:.3f}", f"{self.end:.3f}", f"{self.difference:.0e}", f"{self.coexecuted}/{steps}",
            f"{self.eager_s:.1f}", f"{self.terra_s:.1f}",
        )  # fmt: skip


def train(name, seed, progress):
    """Train the program of a family in both ways."""
    family = FAMILIES[name]
    made = {}
    for way, wrap in (("eager", lambda step: step), ("Terra", lambda step: terra.coexecute(step, wait_for_graph=True))):
        made[way] = run(load(family.program), family.size, seed, family.steps, wrap, lambda: progress.advance(f"{name}: {family.program}, {way}"))
    eager, ours = made["eager"], made["Terra"]
    coexecuted = ours.step.stats().coexecuted_steps
    return Result(name, family, family.curve(eager), family.curve(ours), coexecuted, sum(eager.seconds), sum(ours.seconds), tolerance_of(ours.step))


def write_plot(results, path):
    """All families in one figure: eager as a broad line, Terra as a thin one on top of it."""
    import matplotlib

    matplotlib.use("Agg")  # a file is wanted, not a window
    import matplotlib.pyplot as plt

    figure, every_axes = plt.subplots(1, len(results), figsize=(3.4 * len(results), 3.2), layout="constrained", squeeze=False)
    for axes, result in zip(every_axes[0], results):
        axes.plot(result.eager, color="tab:orange", linewidth=3.5, alpha=0.5, label="eager")
        axes.plot(result.terra, color="tab:blue", linewidth=0.9, label="Terra")
        axes.set_title(f"{result.name}: {result.family.program}", fontsize=10)
        axes.set_xlabel(result.family.unit, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    every_axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.convergence", description=__doc__.splitlines()[0])
    parser.add_argument("--families", metavar="A,B", default=",".join(FAMILIES), help="which (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (default %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="write the curves there (.png, .svg, .pdf)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    options = parser.parse_args(argv)
    options.families = [name.strip() for name in options.families.split(",") if name.strip()]
    for name in options.families:
        if name not in FAMILIES:
            parser.error(f"no family {name!r}; there are {', '.join(FAMILIES)}")
    if not options.families:
        parser.error("--families names no family")
    if options.plot and os.path.dirname(options.plot) and not os.path.isdir(os.path.dirname(options.plot)):
        parser.error(f"there is no folder {os.path.dirname(options.plot)} to write {options.plot} to")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def main(argv=None):
    options = parse(argv)
    print(COLUMNS.format("family", "program", "steps", "start", "end", "max diff", "co-executed", "eager s", "Terra s"), flush=True)
    results = []
    with Progress(2 * sum(FAMILIES[name].steps for name in options.families), "training", options.quiet) as progress:
        for name in options.families:
            results.append(train(name, options.seed, progress))
            print(results[-1].text(), flush=True)
    faults = [f"{result.name}: {fault}" for result in results for fault in result.faults()]
    for text in faults:
        print(text)
    if options.plot:
        write_plot(results, options.plot)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
