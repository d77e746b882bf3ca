"""What the benchmark shows: tables, a JSON file, a bar chart."""

import dataclasses
import json
import math
import os
import platform
import textwrap

import keras
import tensorflow as tf

COLUMNS = (
    # heading, width, text of a row
    ("program", 24, lambda row: row.program),
    ("eager ms", 9, lambda row: number(row.eager_ms)),
    ("tf.fn ms", 9, lambda row: tf_function_text(row)),
    ("Terra ms", 9, lambda row: number(row.terra_ms)),
    ("graph ms", 9, lambda row: number(row.graph_ms)),
    ("eager/Terra", 12, lambda row: ratio(row.eager_ms, row.terra_ms)),
    ("tf.fn/Terra", 12, lambda row: "" if row.tf_function_error else ratio(row.tf_function_ms, row.terra_ms)),
    ("traces", 7, lambda row: number(row.traces, "d")),
    ("fallbacks", 10, lambda row: number(row.fallbacks, "d")),
    ("feeds", 7, lambda row: number(row.feeds, ".1f")),
    ("fetches", 8, lambda row: number(row.fetches, ".1f")),
    ("Py stall", 9, lambda row: number(row.python_stall, ".0%")),
    ("gr. stall", 10, lambda row: number(row.graph_stall, ".0%")),
    ("max diff", 9, lambda row: number(row.max_rel_diff, ".0e")),
)
WARM_UP_COLUMNS = (
    ("program", 24, lambda row: row.program),
    ("tf.fn traced s", 15, lambda row: number(row.tf_function_trace_s)),
    ("first step", 11, lambda row: number(row.tf_function_start_s)),
    ("tracings", 9, lambda row: number(row.tf_function_tracings, "d")),
    ("Terra generated s", 18, lambda row: number(row.generation_s)),
    ("first co-ex. step", 18, lambda row: number(row.terra_start_s)),
    ("co-executed", 12, lambda row: f"{row.coexecuted_steps}/{row.steps}" if row.steps else ""),
    ("eager MiB", 11, lambda row: number(row.eager_memory_mib, ".1f")),
    ("tf.fn MiB", 10, lambda row: number(row.tf_function_memory_mib, ".1f")),
    ("Terra MiB", 10, lambda row: number(row.terra_memory_mib, ".1f")),
    ("took s", 8, lambda row: number(row.seconds, ".0f")),
)
UNEVEN = 1.2  # a mean so many times the median is worth a remark


def tf_function_text(row):
    return row.tf_function_error.split()[0].rstrip(":") if row.tf_function_error else number(row.tf_function_ms)


def number(value, form=".2f"):
    return "" if value is None else format(value, form)


def ratio(above, below):
    return f"{above / below:.2f}" if above and below else ""


def heading(columns):
    return line(columns, [title for title, _, _ in columns])


def row_text(columns, row):
    return line(columns, [text(row) for _, _, text in columns])


def line(columns, texts):
    """The first column to the left, the others to the right."""
    first, *others = zip(columns, texts)
    return first[1].ljust(first[0][1]) + "".join(text.rjust(column[1]) for column, text in others)


def remarks(row):
    """What a number cannot say about a row."""
    for text in (row.tf_function_error, row.tf_function_note):
        if text:
            yield f"{row.program}: tf.function {textwrap.shorten(text, 160, placeholder=' ...')}"
    if row.eager_error:
        yield f"{row.program}: fails eagerly, so that nothing is compared: {row.eager_error}"
    if row.error:
        yield f"{row.program}: TERRA IS WRONG: {row.error}"
    for title, mode in (("eager", "eager"), ("tf.function", "tf_function"), ("Terra", "terra")):
        median, mean = getattr(row, f"{mode}_ms"), getattr(row, f"{mode}_mean_ms")
        if median and mean and mean > UNEVEN * median:
            yield f"{row.program}: {title} takes {median:.1f} ms in the median, {mean:.1f} ms in the mean"
    if row.measured_coexecuted_steps is not None and row.measured_coexecuted_steps < row.measured_steps:
        yield f"{row.program}: {row.measured_coexecuted_steps} of the {row.measured_steps} measured steps were co-executed"
    if row.eager_ms and row.terra_ms and row.terra_ms > row.eager_ms:
        yield f"{row.program}: TERRA IS SLOWER THAN EAGER"


def summary(rows):
    """Geometric means of the ratios, over the programs that have them, and how many are right."""
    for title, field in (("eager/Terra", "eager_ms"), ("tf.function/Terra", "tf_function_ms")):
        yield from geometric_means(title, [row for row in rows if comparable(row, field)], field, "terra_ms")
    rows = [row for row in rows if not row.eager_error]
    wrong = sum(not row.correct for row in rows)
    not_run = sum(row.tf_function_error is not None for row in rows)
    yield f"of {len(rows)} programs, Terra ran {len(rows) - wrong} with eager's results, tf.function {len(rows) - not_run}"


def geometric_means(title, rows, above, below):
    """That of the ratios of two fields over the rows that have both, as a line of text; nothing where none has."""
    pairs = [(getattr(row, above), getattr(row, below)) for row in rows]
    ratios = [first / second for first, second in pairs if first and second]
    if ratios:
        yield f"{title}: geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} over {len(ratios)} programs"


def comparable(row, field):
    """Whether a time is that of the same work as eager's."""
    return getattr(row, field) and not (field == "tf_function_ms" and row.tf_function_error)


def machine():
    """Where the numbers come from."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    return (
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}, "
        f"{os.cpu_count()} CPU cores, {gpus} GPUs, {platform.machine()}"
    )


def write_json(rows, path):
    def plain(value):
        return None if isinstance(value, float) and not math.isfinite(value) else value

    records = [{key: plain(value) for key, value in dataclasses.asdict(row).items()} for row in rows]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=2)
        file.write("\n")


def write_markdown(rows, path):
    """The tables and what is said below them, as docs/benchmarks.md holds them."""
    write_tables([(COLUMNS, rows), (WARM_UP_COLUMNS, rows)], [text for row in rows for text in remarks(row)], summary(rows), path)


def write_tables(tables, notes, last, path):
    """Tables, given as columns and rows, a list of notes, and lines to end with."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{machine()}\n\n")
        for columns, rows in tables:
            file.write("| " + " | ".join(title for title, _, _ in columns) + " |\n")
            file.write("| --- |" + " ---: |" * (len(columns) - 1) + "\n")
            file.writelines("| " + " | ".join(text(row) for _, _, text in columns) + " |\n" for row in rows)
            file.write("\n")
        file.writelines(f"* {text}\n" for text in notes)
        file.writelines(f"\n{text}\n" for text in last)


def write_plot(rows, path):
    """Speed relative to eager, as bars: the papers' figure."""
    import matplotlib

    matplotlib.use("Agg")  # a file is wanted, not a window
    import matplotlib.pyplot as plt

    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(8.0, 1.2 + 0.42 * len(rows)), layout="constrained")
    for shift, title, field in ((-0.2, "tf.function", "tf_function_ms"), (0.2, "Terra", "terra_ms")):
        speeds = [row.eager_ms / getattr(row, field) if comparable(row, field) and row.eager_ms else None for row in rows]
        bars = axes.barh([place + shift for place in places], [speed or 1.0 for speed in speeds], 0.38, label=title)
        axes.bar_label(bars, [bar_text(row, title, speed) for row, speed in zip(rows, speeds)], fontsize=7, padding=2)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--", label="eager")
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.01)
    axes.set_yticks(list(places), [row.program for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("training speed relative to eager")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def bar_text(row, title, speed):
    if speed:
        return f"{speed:.1f}"
    return tf_function_text(row) if title == "tf.function" else "wrong"
