"""The examples do what README promises: the quickstart trains co-executed, the benchmark measures and compares."""

import dataclasses
import functools
import json
import random
import re
import runpy
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from examples import programs
from examples.benchmarks import check, conditions, embeddings, fit, fit_models, functionals, generation, main_loops, numbers, shapes
from examples.benchmarks.console import Progress, error_line
from examples.benchmarks.operations import main as operations
from examples.benchmarks.overhead import main as overhead
from examples.benchmarks.suite import loops, report
from examples.benchmarks.suite.__main__ import main as benchmark
from examples.benchmarks.suite.__main__ import parse, plan_of
from examples.benchmarks.suite.measure import Mode, Plan, Row, max_rel_diff, measure
from tests import forks
from tests.variants import ALL

JSON_KEYS = {
    "program", "eager_ms", "tf_function_ms", "tf_function_error", "terra_ms", "graph_ms", "generation_s",
    "tf_function_trace_s", "traces", "fallbacks", "coexecuted_steps", "feeds", "fetches", "python_stall",
    "graph_stall", "max_rel_diff", "eager_memory_mib", "terra_memory_mib",
}  # fmt: skip


def run_benchmark(path, *arguments):
    """Exit code and the records of the JSON file."""
    code = benchmark(["--quick", "--quiet", "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def test_quickstart_trains_co_executed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart", "--epochs", "4", "--quiet"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("examples.quickstart", run_name="__main__", alter_sys=True)
    shown = capsys.readouterr().out
    assert end.value.code == 0, shown
    printed = dict(re.findall(r"^  (\w+) +([\d.]+)$", shown, re.MULTILINE))
    assert int(printed["coexecuted_steps"]) > 0
    counted = [int(printed[key]) for key in ("tracing_steps", "coexecuted_steps", "imperative_steps")]
    assert sum(counted) == int(printed["steps"])
    assert float(re.search(r"test accuracy ([\d.]+) %", shown)[1]) > 95
    assert re.search(r"tf\.function +cannot run this step: \w+Error: ", shown)
    assert "the losses of Terra equal eager's" in shown


def test_benchmark_measures_and_compares(tmp_path, capsys):
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "hand_written_variables", "--scale", "benchmark")
    assert code == 0, capsys.readouterr().out
    assert JSON_KEYS <= set(record)
    assert record["program"] == "hand_written_variables"
    assert record["coexecuted_steps"] > 0
    assert record["max_rel_diff"] <= 1e-5
    assert record["tf_function_error"] is None
    for key in ("eager_ms", "tf_function_ms", "terra_ms", "graph_ms", "tf_function_trace_s", "generation_s", "terra_mean_ms"):
        assert record[key] > 0, key
    assert record["rounds"] >= 3 and record["measured_coexecuted_steps"] == record["measured_steps"] >= 6
    printed = capsys.readouterr().out
    assert "hand_written_variables" in printed
    assert "of 1 programs, Terra ran 1 with eager's results, tf.function 1" in printed


def test_loops_compares_three_kinds_of_loop(tmp_path, capsys):
    arguments = ["--loops", "--programs", "hand_written_variables", "--budget", "0.1"]
    code, records = run_benchmark(tmp_path / "rows.json", *arguments, "--markdown", str(tmp_path / "rows.md"))
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert [record["loop"] for record in records] == ["read each step", "read every 50", "Python work"]
    for record in records:
        assert record["error"] is record["tf_function_error"] is None
        assert record["rounds"] >= 3 and record["steps"] >= 3 * loops.STEPS and record["coexecuted_steps"] == record["steps"]
        assert record["max_rel_diff"] <= 1e-5
        assert min(record[key] for key in ("tf_function_ms", "terra_ms", "graph_ms", "graph_cores")) > 0
        assert 0 <= record["python_stall"] <= 1 and 0 <= record["graph_stall"] <= 1
    assert records[0]["eager_ms"] > 0 and records[1]["eager_ms"] is records[2]["eager_ms"] is None
    assert records[2]["work_ms"] > 0 and records[0]["work_ms"] is records[1]["work_ms"] is None

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (tmp_path / "rows.md").read_text().splitlines() if line.startswith("|")]
    assert rows[0] == [title for title, _, _ in loops.COLUMNS]
    assert {"program", "loop", "tf.fn ms", "Terra ms", "Terra/tf.fn", "graph ms", "Terra/graph", "Py stall", "gr. stall", "eager/Terra"} <= set(rows[0])
    for record, cells in zip(records, rows[2:], strict=True):
        row = dict(zip(rows[0], cells))
        assert row["tf.fn ms"] == f"{record['tf_function_ms']:.3f}" and row["Terra ms"] == f"{record['terra_ms']:.3f}"
        assert row["Terra/tf.fn"] == f"{record['terra_ms'] / record['tf_function_ms']:.2f}"
        assert row["Terra/graph"] == f"{record['terra_ms'] / record['graph_ms']:.2f}"
        assert row["gr. stall"] == f"{max(0, 1 - record['graph_ms'] / record['terra_ms']):.0%}"
        # of one program, the mean is its ratio
        assert f"{record['loop']}: Terra/tf.fn: geometric mean {row['Terra/tf.fn']} over 1 programs" in printed.splitlines()


def test_loops_says_what_it_cannot_measure(monkeypatch):
    """tf.function freezes the step's Python, Terra raises: both have their place in the rows, and nothing is compared."""

    def build(seed, size):
        rates, variable = [0.5], tf.Variable(2.0)

        def step(x):
            rates[0] *= 0.9
            variable.assign(rates[0] * variable + x)
            return tf.square(variable)

        return programs.Job(step, [(tf.constant(1.0),), (tf.constant(2.0),)])

    monkeypatch.setattr(programs.load("hand_written_variables"), "build", build)
    terra_coexecute = terra.coexecute
    monkeypatch.setattr(terra, "coexecute", lambda step, **_: terra_coexecute(fail))
    rows = loops.measure_loops("hand_written_variables", plan_of(parse(["--quick", "--budget", "0.1"])))
    assert [row.loop for row in rows] == [kind.title for kind in loops.KINDS]
    for row in rows[:2]:
        assert row.tf_function_error.startswith("wrong result: losses differ by") and row.error == "raises TypeError: never"
        assert row.graph_ms is row.terra_ms is row.tf_function_ms is None and not row.correct
    assert rows[0].eager_ms > 0
    assert rows[2].note == "no graph alone, so no Python work of its length: TypeError: never"
    assert not list(loops.summary(rows))


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
    def off_by_a_little(step):
        def wrong(*batch):
            return co_executed(*batch) * 1.001

        co_executed = terra_coexecute(step, wait_for_graph=True)
        wrong.stats = co_executed.stats
        return wrong

    terra_coexecute = terra.coexecute
    monkeypatch.setattr(terra, "coexecute", lambda step, **_: off_by_a_little(step))
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "hand_written_variables")
    assert code == 1
    assert record["max_rel_diff"] == pytest.approx(1e-3, rel=1e-2)
    assert "losses differ" in record["error"]
    printed = capsys.readouterr().out
    assert "TERRA IS WRONG" in printed and "Terra ran 0 with eager's results" in printed


def test_benchmark_exits_with_1_where_terra_leaves_another_state(tmp_path, monkeypatch):
    class Forgetful:
        """A step that restores what it finds in the trainer."""

        def __init__(self, step, **_):
            self.step, self.trainer = terra_coexecute(step, wait_for_graph=True), step.__self__

        def __call__(self, *batch):
            before = self.trainer.best_score
            loss = self.step(*batch)
            self.trainer.best_score = before
            return loss

        def __getattr__(self, name):
            return getattr(self.step, name)

    terra_coexecute = terra.coexecute
    monkeypatch.setattr(terra, "coexecute", Forgetful)
    code, (record,) = run_benchmark(tmp_path / "rows.json", "--programs", "digits_sklearn_metric")
    assert code == 1
    assert record["error"].startswith("step.self.best_score is 0.0 where eager has 0.")


def test_a_program_that_raises_is_a_row(tmp_path, monkeypatch):
    """Eagerly: nothing to compare with. Under Terra alone: an error. The other programs are measured all the same."""

    def build(seed, size):
        raise ValueError("no data")

    terra_coexecute = terra.coexecute
    monkeypatch.setattr(programs.load("keras_mlp"), "build", build)
    monkeypatch.setattr(terra, "coexecute", lambda step, **_: terra_coexecute(fail))
    code, (lost, failed) = run_benchmark(tmp_path / "rows.json", "--programs", "keras_mlp,hand_written_variables")
    assert code == 1
    assert lost["eager_error"] == "ValueError: no data" and lost["error"] is None and lost["eager_ms"] is None
    assert failed["error"] == "raises TypeError: never" and failed["eager_ms"] > 0 and failed["tf_function_ms"] > 0


def fail(*batch):
    raise TypeError("never")


def program_of(monkeypatch, make_step):
    """Put a program of one variable in the place of hand_written_variables; `make_step(variable)` gives its step."""

    def build(seed, size):
        return programs.Job(make_step(tf.Variable(2.0)), [(tf.constant(float(number)),) for number in (1, 2)])

    monkeypatch.setattr(programs.load("hand_written_variables"), "build", build)
    return measure("hand_written_variables", plan_of(parse(["--quick", "--budget", "0.2"])))


def test_random_numbers_are_those_of_a_run_of_its_own(monkeypatch):
    """Whatever generator a step draws from, taking turns with other runs changes nothing."""

    def make_step(variable):
        def step(x):
            noise = tf.random.normal(()) + tf.random.get_global_generator().uniform(()) + keras.random.normal((), seed=generator)
            variable.assign(0.5 * variable + x + noise + random.random() + np.random.rand())
            return tf.square(variable)

        generator = keras.random.SeedGenerator(3)
        return step

    row = program_of(monkeypatch, make_step)
    assert row.correct and row.max_rel_diff == 0.0, row.error
    assert row.coexecuted_steps > 0
    assert row.tf_function_error is None
    assert "draws other random numbers" in row.tf_function_note


def test_tf_function_that_draws_the_same_numbers_is_compared(monkeypatch):
    def make_step(variable):
        def step(x):
            variable.assign(0.5 * variable + x + generator.normal(()))
            return tf.square(variable)

        generator = tf.random.Generator.from_seed(1)
        return step

    row = program_of(monkeypatch, make_step)
    assert row.correct and row.tf_function_error is row.tf_function_note is None


def test_tf_function_that_freezes_python_is_wrong(monkeypatch):
    def make_step(variable):
        rates = [0.5]

        def step(x):
            rates[0] *= 0.9
            variable.assign(rates[0] * variable + x)
            return tf.square(variable)

        return step

    row = program_of(monkeypatch, make_step)
    assert row.correct, row.error
    assert row.tf_function_error.startswith("wrong result: losses differ by")


@pytest.mark.one_variant
@pytest.mark.parametrize("name", programs.GROUPS["small"])
def test_program_is_equal_to_itself_and_learns(name):
    """Two jobs of one seed share nothing and make the same losses, which fall."""
    first, second = (Mode(functools.partial(programs.load(name).build, size="test"), 3) for _ in range(2))
    for _ in range(2):  # interleaved, so that anything shared would show
        first.run_round(6, 1)
        second.run_round(6, 1)
    assert first.losses == second.losses
    assert sum(first.losses[-4:]) < sum(first.losses[:4])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--programs", "nonsense"], "no program or group 'nonsense'"),
        (["--programs", ","], "names no program"),
        (["--read-every", "0"], "--read-every must be at least 1"),
        (["--budget", "-1"], "--budget must be at least 0"),
        (["--scale", "huge"], "invalid choice: 'huge'"),
        (["--loops", "--read-every", "5"], "--read-every does not go with it"),
        (["--loops", "--plot", "chart.png"], "--plot goes with neither --loops nor --jit"),
        (["--json", "no/such/folder/rows.json"], "there is no folder no/such/folder"),
    ],
)
def test_benchmark_refuses_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as refusal:
        parse(arguments)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, seconds, expected",
    [
        ([], 0.001, (20, 10)),  # a step of all modes takes so many seconds: so many rounds, steps in each
        ([], 0.1, (6, 10)),
        ([], 0.25, (6, 4)),
        ([], 0.5, (6, 2)),
        ([], 30.0, (3, 2)),
        (["--quick"], 0.001, (5, 4)),
        (["--quick"], 0.1, (5, 2)),
        (["--read-every", "7"], 0.001, (20, 14)),
        (["--read-every", "7"], 0.5, (3, 7)),
        (["--budget", "60"], 0.5, (12, 10)),
    ],
)
def test_rounds_follow_the_budget_and_hold_whole_reads(arguments, seconds, expected):
    assert plan_of(parse(arguments)).rounds_and_steps(seconds) == expected


def test_plan():
    assert plan_of(parse([])).size == "benchmark"
    assert plan_of(parse(["--quick"])).size == "test"
    assert plan_of(parse(["--quick", "--scale", "paper"])).size == "paper"
    assert parse(["--programs", "small,keras_mlp"]).programs == programs.GROUPS["small"]
    assert parse(["--loops"]).programs == programs.GROUPS["small"]
    assert parse([]).programs == programs.NAMES
    with pytest.raises(ValueError, match="rounds must be at least 3"):
        Plan(rounds=2)
    with pytest.raises(ValueError, match="read_every must be above 0"):
        Plan(read_every=0)


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
        Row("won", eager_ms=4.0, tf_function_ms=2.0, terra_ms=1.0, terra_mean_ms=3.0, max_rel_diff=float("inf")),
        Row("slow", eager_ms=4.0, tf_function_ms=1.0, tf_function_error="wrong result: x", terra_ms=8.0, measured_steps=6, measured_coexecuted_steps=4),
    ]
    lost, won, slow = (report.row_text(report.COLUMNS, row) for row in rows)
    assert "fails" in lost and len(lost) == len(won) == len(report.heading(report.COLUMNS))
    assert list(report.remarks(rows[0])) == [
        "lost: tf.function fails: TypeError: no",
        "lost: TERRA IS WRONG: ValueError: gone",
    ]
    assert list(report.remarks(rows[1])) == ["won: Terra takes 1.0 ms in the median, 3.0 ms in the mean"]
    assert "wrong" in slow
    assert list(report.remarks(rows[2])) == [
        "slow: tf.function wrong result: x",
        "slow: 4 of the 6 measured steps were co-executed",
        "slow: TERRA IS SLOWER THAN EAGER",
    ]
    missing = Row("missing", eager_error="InvalidArgumentError: no kernel")
    assert list(report.remarks(missing)) == ["missing: fails eagerly, so that nothing is compared: InvalidArgumentError: no kernel"]
    assert list(report.summary([*rows, missing])) == list(report.summary(rows)) == [
        "eager/Terra: geometric mean 1.41 over 2 programs",
        "tf.function/Terra: geometric mean 2.00 over 1 programs",  # what is wrong is not compared
        "of 3 programs, Terra ran 2 with eager's results, tf.function 1",
    ]
    report.write_json(rows, tmp_path / "rows.json")
    assert [record["max_rel_diff"] for record in json.loads((tmp_path / "rows.json").read_text())] == [None, None, None]
    report.write_markdown(rows, tmp_path / "rows.md")
    written = (tmp_path / "rows.md").read_text().splitlines()
    assert {line.count("|") for line in written if "eager ms" in line or line.startswith("| won | 4.00")} == {len(report.COLUMNS) + 1}
    assert "* slow: TERRA IS SLOWER THAN EAGER" in written
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
    keras_error = ValueError("Exception encountered when calling Net.call().\n\n\x1b[1mno value\x1b[0m\n\nArguments received by Net.call():\n  • x=1")
    assert error_line(keras_error) == "ValueError: no value"


def test_overhead_measures_every_mode(capsys):
    overhead(["hand_written_variables", "--size", "test", "--rounds", "2", "--steps", "1", "--quiet"])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["eager", "idle", "traced", "first", "two", "generation"]
    numbers = [float(x.rstrip("x")) for x in row.split()[1:]]
    assert len(numbers) == 8 and min(numbers) > 0


def test_operations_measures_every_kind(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[operations.__module__], "TIMES", 40)
    operations(["--rounds", "3", "--quiet"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["us", "per", "operation", "Python", "eager", "validated", "Terra", "Terra-Py"]
    found = {row[:18].strip(): [float(x) for x in row[18:].split()] for row in rows}
    assert list(found) == ["x * y", "x * 2.0", "x + variable", "tf.nn.relu(x)", "x[1:]"]
    assert all(len(us) == 5 and min(us) > 0 and us[0] < us[3] for us in found.values())


@pytest.mark.share(2)
@pytest.mark.parametrize("blocks", [False, True], ids=["decorated", "blocks"])
def test_check_compares_a_program(blocks, capsys):
    """Two programs with one block in common, each with what it has added to the counts."""
    options = ["--blocks"] * blocks
    assert check.main(["keras_mlp", "numpy_batches", "--steps", "10", "--no-tf-function", *options]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^  steps +(\d+)$", printed, re.MULTILINE) == ["10", "10"]
    assert all(int(n) >= 5 for n in re.findall(r"^  coexecuted_steps +(\d+)$", printed, re.MULTILINE))
    assert printed.count("  variables      0 of ") == 2


def test_check_says_what_is_wrong(monkeypatch, capsys):
    real, runs = check.run, []

    def run(*args):
        runs.append(real(*args))
        return dataclasses.replace(runs[-1], losses=[float(len(runs))] * 6)

    monkeypatch.setattr(check, "run", run)
    assert check.main(["keras_mlp", "--steps", "6", "--no-tf-function"]) == 1
    assert "TERRA IS WRONG: step 0 gave 2.0, not 1.0" in capsys.readouterr().out


@pytest.mark.one_variant
@pytest.mark.parametrize("module, which", [
    (embeddings, slice(2, None, 4)), (conditions, slice(1, None, 6)), (functionals, slice(1, None, 3)), (shapes, slice(0, None, 5)), (numbers, slice(0, None, 5)),
], ids=["embeddings", "conditions", "functionals", "shapes", "numbers"])
def test_steps_that_take_turns(module, which, capsys, monkeypatch):
    programs = shapes.programs() if module is shapes else module.PROGRAMS  # (those of shapes take seconds to make)
    titles = list(programs)[which]
    if module is shapes:
        chosen = {title: program for title, program in programs.items() if title in titles}
        monkeypatch.setattr(shapes, "programs", lambda: chosen)
    else:
        monkeypatch.setattr(module, "PROGRAMS", {title: program for title, program in module.PROGRAMS.items() if title in titles})
    assert module.main(["--steps", "14", "--quiet"]) == 0
    machine, _, header, *rows = capsys.readouterr().out.strip().splitlines()
    assert "TensorFlow" in machine and header.split("  ")[-1].strip() == "tf.fn/Terra"
    assert [row[:34].strip() for row in rows] == titles
    for row in rows:
        fails = "tf.function fails" in row
        assert fails == ("float(loss)" in row)
        eager, *between, ours, ratio = map(float, row[34:].split()[:2 if fails else 4] + ["nan"] * fails)
        assert ("tf.function is wrong" in row) == ("random" in row or "sampled" in row)
        assert min(eager, ours) > 0 and (fails or ratio == pytest.approx(between[0] / ours, abs=0.2, rel=0.05))


@pytest.mark.one_variant
@pytest.mark.parametrize("name, loop", [("MLP", "train_on_batch(arrays)"), ("GAN", "fit(dataset)")])
def test_fit_compares_four_ways_to_compile_a_model(monkeypatch, capsys, name, loop):
    monkeypatch.setattr(fit, "WARM_UP", 3)
    monkeypatch.setattr(fit_models, "ROWS", 100)
    monkeypatch.setattr(fit, "LOOPS", {loop: fit.LOOPS[loop]})
    assert fit.main([name, "--rounds", "1", "--epochs", "1", "--quiet"]) == 0  # else Terra has trained something else
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"{name}, {loop}") and all(float(x) > 0 for x in line.split()[-6:]), line


def test_fit_knows_its_models(capsys):
    with pytest.raises(SystemExit):
        fit.main(["perceptron"])
    assert "no model 'perceptron'" in capsys.readouterr().err


def test_what_it_costs_to_make_a_graph(capsys, monkeypatch):
    build = programs.load("hand_written_variables").build
    monkeypatch.setattr(generation, "load", lambda name: types.SimpleNamespace(build=lambda seed: build(seed, "test")))
    generation.main(["hand_written_variables"])
    _, row = capsys.readouterr().out.splitlines()
    name, *figures = row.split()
    assert name == "hand_written_variables" and len(figures) == 8 and all(float(x) > 0 for x in figures)


def test_main_loops(capsys, monkeypatch, tmp_path):
    with forks.Interpreters(tmp_path, "import runpy, sys, numpy, tensorflow, keras") as interpreters:
        def run(path, words):
            done = interpreters.run_script(path, options=[] if words else None)
            assert done.returncode == 0, done.stderr
            return done.stdout, float(done.stderr.split()[-1])

        if not ALL:  # processes of their own take seconds to import TensorFlow
            monkeypatch.setattr(main_loops, "run", run)
        assert main_loops.main(["hand-written", "--steps", "40", "--rounds", "1"]) == 0
    assert "other losses" not in capsys.readouterr().out
