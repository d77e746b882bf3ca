"""Compare eager, tf.function and Terra on whole training programs, interleaved in one process.

    python -m examples.benchmark [--programs A,B] [--scale S] [--quick] [--read-every N] [--jit] [--json FILE] [--markdown FILE] [--plot FILE]

Exits with 1 if Terra's losses, or what it leaves in Python, differ from eager's anywhere, or if a program was not co-executed at all.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import gc
import importlib.util

import keras

from examples import programs
from examples.benchmark import jit, report
from examples.benchmark.measure import TOLERANCE, Plan, measure
from examples.console import Progress


def parse(argv):
    names = "\n".join(f"  {name:<24}{programs.summary(name)}" for name in programs.NAMES)
    groups = "\n".join(f"  {name:<12}{', '.join(members)}" for name, members in programs.GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmark",
        description=__doc__.splitlines()[0],
        epilog=f"groups:\n{groups}\n\nprograms:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", metavar="A,B", default=",".join(programs.NAMES), help="programs or groups (default: all)")
    parser.add_argument("--scale", choices=("test", "benchmark", "paper"), help="size of the programs (default: benchmark; with --quick: test)")
    parser.add_argument("--quick", action="store_true", help="small programs, fewer and shorter rounds")
    parser.add_argument("--budget", metavar="S", type=float, help="seconds for the rounds of a program (default 6; with --quick: 1)")
    parser.add_argument("--read-every", metavar="N", type=int, default=1, help="read the loss every N steps (default 1)")
    parser.add_argument("--jit", action="store_true", help="compare with XLA: Terra and tf.function with and without jit_compile, nothing else")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart there (.png, .svg, .pdf)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables")
    options = parser.parse_args(argv)

    try:
        options.programs = programs.chosen(options.programs)
    except ValueError as error:
        parser.error(str(error))
    if not options.programs:
        parser.error("--programs names no program")
    for option, least in (("read_every", 1), ("budget", 0)):
        value = getattr(options, option)
        if value is not None and value < least:
            parser.error(f"--{option.replace('_', '-')} must be at least {least}")
    # What would fail after the measuring had better fail before.
    for path in filter(None, (options.json, options.markdown, options.plot)):
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            parser.error(f"there is no folder {folder} to write {path} to")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def plan_of(options):
    return Plan(
        size=options.scale or ("test" if options.quick else "benchmark"),
        budget_s=options.budget or (1.0 if options.quick else 6.0),
        rounds=5 if options.quick else 20,
        steps=4 if options.quick else 10,
        read_every=options.read_every,
        seed=options.seed,
    )


def main(argv=None):
    options = parse(argv)
    plan = plan_of(options)

    print(report.machine())
    if options.jit:
        return main_jit(options, plan)
    print(
        f"size {plan.size}; {plan.fewest_rounds} to {plan.rounds} rounds of up to {plan.steps} steps in each mode, for about {plan.budget_s:g} s; "
        f"loss read every {plan.read_every}; medians in ms per step; Terra's losses must equal eager's within {TOLERANCE:g}\n"
    )
    print(report.heading(report.COLUMNS), flush=True)
    rows = []
    with Progress(100 * len(options.programs), "measuring", options.quiet) as progress:
        for number, name in enumerate(options.programs):

            def advance(text, percent):
                progress.advance(f"{name}: {text}", 100 * number + percent - progress.done)

            rows.append(measure(name, plan, advance))
            advance("done", 100)
            print(report.row_text(report.COLUMNS, rows[-1]), flush=True)
            forget()

    print("\nwarm-up and memory")
    print(report.heading(report.WARM_UP_COLUMNS))
    for row in rows:
        print(report.row_text(report.WARM_UP_COLUMNS, row))
    print()
    for text in [remark for row in rows for remark in report.remarks(row)] + list(report.summary(rows)):
        print(text)

    if options.json:
        report.write_json(rows, options.json)
    if options.markdown:
        report.write_markdown(rows, options.markdown)
    if options.plot:
        report.write_plot(rows, options.plot)
    return 0 if all(row.correct for row in rows) else 1


def main_jit(options, plan):
    print(f"size {plan.size}; medians in ms per step\n")
    print(report.heading(jit.COLUMNS), flush=True)
    rows = []
    for name in options.programs:
        rows.append(jit.measure_jit(name, plan))
        print(report.row_text(jit.COLUMNS, rows[-1]), flush=True)
        forget()
    print()
    for text in [remark for row in rows for remark in jit.remarks(row)]:
        print(text)
    return 0


def forget():
    """The next program must not pay for what this one leaves."""
    keras.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
    raise SystemExit(main())
