"""Compare eager, tf.function and Terra on whole training programs, interleaved in one process.

    python -m examples.benchmark [--programs A,B] [--scale S] [--quick] [--read-every N] [--json FILE] [--markdown FILE] [--plot FILE]
    python -m examples.benchmark [--loops] [--jit] ...

Exits with 1 if Terra's losses, or what it leaves in Python, differ from eager's anywhere, or if a program was not co-executed at all.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import gc
import importlib.util

import keras

from examples import programs
from examples.benchmarks.console import Progress
from examples.benchmarks.suite import jit, loops, report
from examples.benchmarks.suite.measure import TOLERANCE, Plan, measure

LOOPS_BUDGET_S = 20.0  # rounds of three loops in two modes, and of 50 steps, take so much longer


def parse(argv):
    names = "\n".join(f"  {name:<24}{programs.summary(name)}" for name in programs.NAMES)
    groups = "\n".join(f"  {name:<12}{', '.join(members)}" for name, members in programs.GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmark",
        description=__doc__.splitlines()[0],
        epilog=f"groups:\n{groups}\n\nprograms:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", metavar="A,B", help="programs or groups (default: all; with --loops: small)")
    parser.add_argument("--scale", choices=("test", "benchmark", "paper"), help="size of the programs (default: benchmark; with --quick: test)")
    parser.add_argument("--quick", action="store_true", help="small programs, fewer and shorter rounds")
    parser.add_argument("--budget", metavar="S", type=float, help=f"seconds for the rounds of a program (default 6, with --loops {LOOPS_BUDGET_S:g}; with --quick: 1)")
    parser.add_argument("--read-every", metavar="N", type=int, default=1, help="read the loss every N steps (default 1)")
    parser.add_argument(
        "--loops",
        action="store_true",
        help=f"compare Terra and tf.function in loops that read the loss each step, every {loops.STEPS}, or do Python work, next to the graph alone",
    )
    parser.add_argument("--jit", action="store_true", help="compare with XLA: Terra and tf.function with and without jit_compile, nothing else but --loops")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart there (.png, .svg, .pdf)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables")
    options = parser.parse_args(argv)

    if options.programs is None:
        options.programs = "small" if options.loops else ",".join(programs.NAMES)
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
    if options.loops and options.read_every != 1:
        parser.error("--loops has its own reads of the loss, so --read-every does not go with it")
    if options.plot and (options.loops or options.jit):
        parser.error("--plot goes with neither --loops nor --jit")
    # What would fail after the measuring had better fail before.
    for path in filter(None, (options.json, options.markdown, options.plot)):
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            parser.error(f"there is no folder {folder} to write {path} to")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def plan_of(options, default_budget_s=6.0):
    return Plan(
        size=options.scale or ("test" if options.quick else "benchmark"),
        budget_s=options.budget or (1.0 if options.quick else default_budget_s),
        rounds=5 if options.quick else 20,
        steps=4 if options.quick else 10,
        settling=0 if options.quick else Plan.settling,
        read_every=options.read_every,
        seed=options.seed,
    )


def main(argv=None):
    options = parse(argv)
    print(report.machine())
    if options.loops or options.jit:
        return main_compared(options)
    plan = plan_of(options)
    print(
        f"size {plan.size}; {plan.fewest_rounds} to {plan.rounds} rounds of up to {plan.steps} steps in each mode, for about {plan.budget_s:g} s; "
        f"loss read every {plan.read_every}; medians in ms per step; Terra's losses must equal eager's within {TOLERANCE:g}\n"
    )
    rows = table(options, report.COLUMNS, lambda name, progress: [measure(name, plan, progress)])
    print("\nwarm-up and memory")
    print(report.heading(report.WARM_UP_COLUMNS))
    for row in rows:
        print(report.row_text(report.WARM_UP_COLUMNS, row))
    print_texts(report, rows)

    if options.json:
        report.write_json(rows, options.json)
    if options.markdown:
        report.write_markdown(rows, options.markdown)
    if options.plot:
        report.write_plot(rows, options.plot)
    return 0 if all(row.correct for row in rows) else 1


def main_compared(options):
    """`--loops` and `--jit`, one after the other if both are asked for."""
    parts, right = [], True
    if options.loops:
        plan = plan_of(options, LOOPS_BUDGET_S)
        print(
            f"size {plan.size}; {plan.fewest_rounds} to {plan.rounds} rounds of {loops.STEPS} steps in each loop, for about {plan.budget_s:g} s; "
            f"medians in ms per step; Terra's losses must equal eager's within {TOLERANCE:g}\n"
        )
        rows = table(options, loops.COLUMNS, lambda name, progress: loops.measure_loops(name, plan, progress))
        right = all(row.correct for row in rows)
        print_texts(loops, rows)
        parts.append((loops, rows))
    if options.jit:
        plan = plan_of(options)
        print(f"{chr(10) if parts else ''}size {plan.size}; medians in ms per step\n")
        rows = table(options, jit.COLUMNS, lambda name, _: [jit.measure_jit(name, plan)])
        print_texts(jit, rows)
        parts.append((jit, rows))

    if options.json:
        report.write_json([row for _, rows in parts for row in rows], options.json)
    if options.markdown:
        tables = [(kind.COLUMNS, rows) for kind, rows in parts]
        notes = [text for kind, rows in parts for text in notes_of(kind, rows)]
        report.write_tables(tables, notes, [text for kind, rows in parts for text in kind.summary(rows)], options.markdown)
    return 0 if right else 1


def table(options, columns, measure_one):
    """Print what `measure_one(program, progress)` gives, a list of rows, as it comes; returns all rows."""
    print(report.heading(columns), flush=True)
    rows = []
    with Progress(100 * len(options.programs), "measuring", options.quiet) as progress:
        for number, name in enumerate(options.programs):

            def advance(text, percent):
                progress.advance(f"{name}: {text}", 100 * number + percent - progress.done)

            made = measure_one(name, advance)
            rows += made
            advance("done", 100)
            for row in made:
                print(report.row_text(columns, row), flush=True)
            forget()
    return rows


def print_texts(kind, rows):
    """What is said below a table of that kind."""
    print()
    for text in [*notes_of(kind, rows), *kind.summary(rows)]:
        print(text)


def notes_of(kind, rows):
    """All remarks, each once: rows of one program may have the same."""
    return dict.fromkeys(text for row in rows for text in kind.remarks(row))


def forget():
    """The next program must not pay for what this one leaves."""
    keras.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
    raise SystemExit(main())
