"""``python -m tests.cpython [MODULE ...] [--all | --quick] [--markdown] [-v]``: the table, and a status of 1 if a test is worse than listed."""

import argparse
import platform
import sys

from . import suites
from .compare import compare
from .expected import EXPECTED


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.cpython", description="CPython's own tests through the transform.")
    parser.add_argument("modules", nargs="*", help="test modules, e.g. test_generators; default: the required ones")
    parser.add_argument("--all", action="store_true", help="further modules as well")
    parser.add_argument("--quick", action="store_true", help="only the quick ones")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the failures, and what was not instrumented")
    options = parser.parse_args()
    names = options.modules or (suites.QUICK if options.quick else suites.REQUIRED + suites.FURTHER * options.all)

    print(f"Python {platform.python_version()}\n")
    print("| module | tests | pass plain | pass instrumented | expected failures | unexpected | code objects instrumented | not |")
    print("|---|---|---|---|---|---|---|---|")
    bad, listed = 0, []
    for name in names:
        got = compare(name, options.timeout)
        if got is None:
            continue
        if isinstance(got, str):
            bad += 1
            print(got)
            continue
        bad += len(got.unexpected)
        listed += got.expected
        print(f"| {name} | {len(got.plain)} | {got.passes(got.plain)} | {got.passes(got.instrumented)} | {len(got.expected)} "
              f"| {len(got.unexpected)} | {got.functions['instrumented']} | {sum(got.functions['not'].values())} |", flush=True)
        for id_, text in got.unexpected:
            print(f"\n{id_}\n{text if options.verbose else text.strip().splitlines()[-1]}", file=sys.stderr)
        if options.verbose:
            print(got.functions["not"], f"{got.seconds:.1f} s", file=sys.stderr)
    for id_ in listed:
        print(f"\n- `{id_}`: {EXPECTED[id_]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
