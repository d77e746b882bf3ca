"""Draws the table of docs/benchmarks.md as `python -m examples.benchmark --plot` does: `python -m tests.benchmark_picture` writes docs/benchmark.svg anew."""

import pathlib
import re

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def rows():
    """The programs of the first table, with their times."""
    from examples.benchmarks.suite.measure import Row

    table = (DOCS / "benchmarks.md").read_text().split("| program | eager ms |", 1)[1].split("\n\n", 1)[0]
    found = []
    for line in table.splitlines()[2:]:
        name, eager, graph, ours = re.split(r" *\| *", line.strip("| "))[:4]
        words = {} if graph[0].isdigit() else {"tf_function_error": graph}
        found.append(Row(name, eager_ms=float(eager), terra_ms=float(ours), tf_function_ms=None if words else float(graph), **words))
    return found


def main():
    """Writes the picture."""
    import matplotlib

    from examples.benchmarks.suite import report

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "terra"})
    report.write_plot(rows(), DOCS / "benchmark.svg")


if __name__ == "__main__":
    main()
