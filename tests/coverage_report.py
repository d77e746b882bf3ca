"""Writes docs/coverage.md: ``python -m tests.coverage_report [--python PATH ...] [--tables FILE ...] [--fuzz N]``.

Runs the fuzz tests with N programs each, and ``python -m tests.cpython --all`` with each given interpreter (which needs
gast and astunparse only). That takes some minutes each; `--tables` takes what that command has printed before.
"""

import argparse
import os
import platform
import re
import subprocess
import sys

from tests.cpython.compare import ROOT

HEAD = """# What the transform has been tried on

Made by `python -m tests.coverage_report`.

## CPython's own tests

The test modules that come with Python are run plain, and in a fresh process with all their functions and methods (and what
those call and define, the examples of doctests too) instrumented, each test as a step. A test counts as a pass if its own
assertions hold and the executed location is back where it was. `python -m tests.cpython --all` prints a table;
`tests/cpython/expected.py` lists the tests that may fail, `tests/programs/test_cpython_suites.py` runs the quick modules in the
project's own test run. Left out are modules that pin the exact sequence of frames and trace events (`test_bdb`,
`test_sys_settrace`: Terra's two bookkeeping functions are frames, too) or collect garbage in a loop (`test_weakref`).
Pythons other than 3.11 were run on the required modules and those about newer syntax.
"""

FUZZ = """## Random programs

`TERRA_FUZZ={n} python -m pytest tests/fuzz/test_random_functions.py`: {n} random functions and {n} random generators, each run plain and
twice instrumented: the same values, printed trail, yields, exceptions and exception lines; the same locations in both runs;
every call site reached by one way. {n} more programs are printed and parsed back. Result on Python {python}: {result}.
"""


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.coverage_report", description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="*", default=[sys.executable])
    parser.add_argument("--tables", nargs="*", help="files with what `python -m tests.cpython` printed")
    parser.add_argument("--fuzz", type=int, default=1000)
    options = parser.parse_args()

    tables = []
    for path in options.tables or ():
        with open(path) as file:
            tables.append(file.read())
    if not options.tables:
        for python in options.python:
            tables.append(subprocess.run([python, "-m", "tests.cpython", "--all"], cwd=ROOT, capture_output=True, text=True).stdout)

    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/fuzz/test_random_functions.py"], cwd=ROOT, capture_output=True,
                          text=True, env=dict(os.environ, TERRA_FUZZ=str(options.fuzz), TERRA_TEST_TIMEOUT="1000"))
    result = re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1])

    parts, reasons = [HEAD], {}
    for table in tables:
        title, _, rest = table.partition("\n")
        rows = [line for line in rest.splitlines() if line.startswith("|")]
        reasons.update(re.findall(r"^- `(.*?)`: (.*)$", rest, re.M))
        total = [sum(int(row.split("|")[i]) for row in rows[2:]) for i in range(2, 9)]
        rows.append("| **all** | " + " | ".join(f"**{n}**" for n in total) + " |")
        parts.append(f"### {title}\n\n" + "\n".join(rows) + "\n")
    parts.append("### Expected failures\n\n" + "\n".join(f"- `{id_}`: {why}" for id_, why in reasons.items()) + "\n")
    parts.append(FUZZ.format(n=options.fuzz, python=platform.python_version(), result=result))
    with open(os.path.join(ROOT, "docs", "coverage.md"), "w") as file:
        file.write("\n".join(parts))


if __name__ == "__main__":
    main()
