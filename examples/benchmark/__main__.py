"""Compare eager, tf.function and Terra on whole training programs, interleaved in one process.

    python -m examples.benchmark [--programs A,B] [--quick] [--read-every N] [--json FILE] [--plot FILE]

Exits with 1 if Terra's losses differ from eager's anywhere, or if a program was not co-executed at all.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import gc
import importlib.util
import math

from examples import programs
from examples.benchmark import report
from examples.benchmark.measure import TOLERANCE, Plan, measure, stages
from examples.console import Progress


def parse(argv):
    names = "\n".join(f"  {name:<24}{programs.summary(name)}" for name in programs.NAMES)
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmark",
        description=__doc__.splitlines()[0],
        epilog=f"programs:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", metavar="A,B", default=",".join(programs.NAMES), help="which (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--read-every", metavar="N", type=int, default=1, help="read the loss every N steps (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart there (.png, .svg, .pdf)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables")
    options = parser.parse_args(argv)

    options.programs = [name.strip() for name in options.programs.split(",") if name.strip()]
    for name in options.programs:
        if name not in programs.NAMES:
            parser.error(f"no program {name!r}; there are {', '.join(programs.NAMES)}")
    if not options.programs:
        parser.error("--programs names no program")
    if options.read_every < 1:
        parser.error("--read-every must be at least 1")
    # What would fail after the measuring had better fail before.
    for path in filter(None, (options.json, options.plot)):
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            parser.error(f"there is no folder {folder} to write {path} to")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def plan_of(options):
    rounds, steps = (4, 4) if options.quick else (20, 10)
    # A round holds whole reads; where that makes it longer, fewer of them do, though a median needs a few.
    length = math.ceil(steps / options.read_every) * options.read_every
    return Plan(
        rounds=max(min(rounds, 3), rounds * steps // length),
        steps=length,
        read_every=options.read_every,
        seed=options.seed,
    )


def main(argv=None):
    options = parse(argv)
    plan = plan_of(options)

    print(report.machine())
    print(
        f"{plan.rounds} rounds of {plan.steps} steps in each mode, loss read every {plan.read_every}; medians in ms per "
        f"step; Terra's losses must equal eager's within {TOLERANCE:g}\n"
    )
    print(report.heading(report.COLUMNS), flush=True)
    rows = []
    with Progress(len(options.programs) * stages(plan), "measuring", options.quiet) as progress:
        for name in options.programs:
            rows.append(measure(name, plan, lambda text: progress.advance(f"{name}: {text}")))
            print(report.row_text(report.COLUMNS, rows[-1]), flush=True)
            gc.collect()  # the next program must not pay for the garbage of this one

    print("\nwarm-up, in seconds")
    print(report.heading(report.WARM_UP_COLUMNS))
    for row in rows:
        print(report.row_text(report.WARM_UP_COLUMNS, row))
    print()
    for text in [remark for row in rows for remark in report.remarks(row)] + list(report.summary(rows)):
        print(text)

    if options.json:
        report.write_json(rows, options.json)
    if options.plot:
        report.write_plot(rows, options.plot)
    return 0 if all(row.correct for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
