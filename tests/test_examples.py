"""The examples do what README promises: the quickstart trains co-executed, the benchmark measures and compares."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import programs
from examples.benchmark import report
from examples.benchmark.__main__ import main as benchmark
from examples.benchmark.__main__ import parse, plan_of
from examples.benchmark.measure import Mode, Plan, Row, max_rel_diff
from examples.console import Progress, error_line

ROOT = Path(__file__).parents[1]

JSON_KEYS = {
    "program", "eager_ms", "tf_function_ms", "tf_function_error", "terra_ms", "graph_ms", "generation_s",
    "tf_function_trace_s", "traces", "fallbacks", "coexecuted_steps", "feeds", "fetches", "python_stall",
    "graph_stall", "max_rel_diff",
}  # fmt: skip


def run_benchmark(path, *arguments):
    """Exit code and the records of the JSON file."""
    code = benchmark(["--quick", "--quiet", "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def test_quickstart_trains_co_executed():
    command = [sys.executable, "-m", "examples.quickstart", "--epochs", "6", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = dict(re.findall(r"^  (\w+) +([\d.]+)$", done.stdout, re.MULTILINE))
    assert int(printed["coexecuted_steps"]) > 0
    counted = [int(printed[key]) for key in ("tracing_steps", "coexecuted_steps", "imperative_steps")]
    assert sum(counted) == int(printed["steps"])
    assert float(re.search(r"test accuracy ([\d.]+) %", done.stdout)[1]) > 95
    assert re.search(r"tf\.function +cannot run this step: \w+Error: ", done.stdout)
    assert "the losses of Terra equal eager's" in done.stdout


def test_benchmark_measures_and_compares(tmp_path, capsys):
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "hand_written_variables")
    assert code == 0, capsys.readouterr().out
    assert JSON_KEYS <= set(record)
    assert record["program"] == "hand_written_variables"
    assert record["coexecuted_steps"] > 0
    assert record["max_rel_diff"] <= 1e-5
    assert record["tf_function_error"] is None
    for key in ("eager_ms", "tf_function_ms", "terra_ms", "tf_function_trace_s", "generation_s"):
        assert record[key] > 0, key
    assert "hand_written_variables" in capsys.readouterr().out


def test_benchmark_says_what_tf_function_cannot_run(tmp_path, capsys):
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "digits_sklearn_metric", "--read-every", "2")
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert record["tf_function_ms"] is None
    assert record["tf_function_error"].startswith("fails: ")
    assert record["tf_function_error"] in printed
    assert record["coexecuted_steps"] > 0
    assert record["fetches"] > 0


def test_benchmark_exits_with_1_where_terra_is_wrong(tmp_path, capsys, monkeypatch):
    import terra

    def wrong(step, **_):
        co_executed = terra_coexecute(step, wait_for_graph=True)

        def off_by_a_little(*batch):
            return co_executed(*batch) * 1.001

        off_by_a_little.stats = co_executed.stats
        return off_by_a_little

    terra_coexecute = terra.coexecute
    monkeypatch.setattr(terra, "coexecute", wrong)
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "hand_written_variables")
    assert code == 1
    assert record["max_rel_diff"] == pytest.approx(1e-3, rel=1e-2)
    assert "losses differ" in record["error"]
    assert "TERRA IS WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("name", programs.NAMES)
def test_program_is_equal_to_itself_and_learns(name):
    """Two jobs of one seed share nothing and make the same losses, which fall."""
    first, second = (Mode(programs.load(name).build, 3, lambda step: step) for _ in range(2))
    for _ in range(2):  # interleaved, so that anything shared would show
        first.run(6, 1)
        second.run(6, 1)
    assert first.losses == second.losses
    assert sum(first.losses[-3:]) < sum(first.losses[:3])


def test_every_program_says_what_it_is():
    assert all(programs.summary(name).endswith(".") for name in programs.NAMES)
    with pytest.raises(ValueError, match="no program 'keras_mpl'; there are keras_mlp"):
        programs.load("keras_mpl")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--programs", "nonsense"], "no program 'nonsense'"),
        (["--programs", ","], "names no program"),
        (["--read-every", "0"], "--read-every must be at least 1"),
        (["--json", "no/such/folder/rows.json"], "there is no folder no/such/folder"),
    ],
)
def test_benchmark_refuses_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as refusal:
        parse(arguments)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("read_every, rounds, steps", [(1, 20, 10), (5, 20, 10), (7, 14, 14), (50, 4, 50), (500, 3, 500)])
def test_rounds_hold_whole_reads(read_every, rounds, steps):
    plan = plan_of(parse(["--read-every", str(read_every)]))
    assert (plan.rounds, plan.steps) == (rounds, steps)
    with pytest.raises(ValueError, match="cannot read its loss every 3 steps"):
        Plan(steps=10, read_every=3)


def test_max_rel_diff():
    nan, inf = float("nan"), float("inf")
    assert max_rel_diff([1.0, -2.0, 0.0, nan, inf], [1.0, -2.0, 0.0, nan, inf]) == 0.0
    assert max_rel_diff([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    for value, right in ((nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf)):
        assert max_rel_diff([value], [right]) == inf
    with pytest.raises(ValueError):
        max_rel_diff([1.0], [1.0, 2.0])


def test_report_holds_what_is_not_there(tmp_path):
    """A row of a program that neither tf.function nor Terra could run still has its place everywhere."""
    rows = [
        Row("lost", eager_ms=4.0, tf_function_error="fails: TypeError: no", error="ValueError: gone"),
        Row("won", eager_ms=4.0, tf_function_ms=2.0, terra_ms=1.0, max_rel_diff=float("inf")),
    ]
    lost, won = (report.row_text(report.COLUMNS, row) for row in rows)
    assert "fails" in lost and len(lost) == len(won) == len(report.heading(report.COLUMNS))
    assert list(report.remarks(rows[0])) == [
        "lost: tf.function fails: TypeError: no",
        "lost: TERRA IS WRONG: ValueError: gone",
    ]
    assert list(report.summary(rows)) == [
        "eager/Terra: geometric mean 4.00 over 1 programs",
        "tf.function/Terra: geometric mean 2.00 over 1 programs",
    ]
    report.write_json(rows, tmp_path / "rows.json")
    assert [record["max_rel_diff"] for record in json.loads((tmp_path / "rows.json").read_text())] == [None, None]
    pytest.importorskip("matplotlib")
    report.write_plot(rows, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_progress_without_a_terminal_is_a_line_per_tenth(capsys):
    with Progress(40, "counting") as progress:
        for index in range(40):
            progress.advance(f"at {index}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "counting   10 %  at 3" and lines[-1] == "counting  100 %  at 39"
    with Progress(1, "counting", quiet=True) as progress:
        progress.advance()
    assert capsys.readouterr().err == ""


def test_error_line_says_what_went_wrong():
    assert error_line(ValueError("first\nsecond")) == "ValueError: first"
    assert error_line(ValueError()) == "ValueError"
    autograph = TypeError('in user code:\n\n    File "a.py", line 3, in step\n        f()\n\n    TypeError: no value\n')
    assert error_line(autograph) == "TypeError: no value"
