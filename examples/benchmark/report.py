"""What the benchmark shows: a table, a JSON file, a bar chart."""

import dataclasses
import json
import math
import os
import platform

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
    ("tf.fn/Terra", 12, lambda row: ratio(row.tf_function_ms, row.terra_ms)),
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
    ("tf.function traced", 20, lambda row: number(row.tf_function_trace_s, ".2f")),
    ("first step", 12, lambda row: number(row.tf_function_start_s, ".2f")),
    ("Terra generated", 17, lambda row: number(row.generation_s, ".2f")),
    ("first co-executed step", 24, lambda row: number(row.terra_start_s, ".2f")),
    ("co-executed", 14, lambda row: f"{row.coexecuted_steps}/{row.steps}" if row.steps else ""),
)


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
    if row.tf_function_error:
        yield f"{row.program}: tf.function {row.tf_function_error}"
    if row.error:
        yield f"{row.program}: TERRA IS WRONG: {row.error}"


def summary(rows):
    """Geometric means of the ratios, over the programs that have them."""
    for title, field in (("eager/Terra", "eager_ms"), ("tf.function/Terra", "tf_function_ms")):
        ratios = [getattr(row, field) / row.terra_ms for row in rows if getattr(row, field) and row.terra_ms]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            yield f"{title}: geometric mean {mean:.2f} over {len(ratios)} programs"


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


def write_plot(rows, path):
    """Speed relative to eager, as bars: the papers' figure."""
    import matplotlib

    matplotlib.use("Agg")  # a file is wanted, not a window
    import matplotlib.pyplot as plt

    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(max(6.0, 1.3 * len(rows)), 4.5), layout="constrained")
    for shift, title, field in ((-0.2, "tf.function", "tf_function_ms"), (0.2, "Terra", "terra_ms")):
        heights = [row.eager_ms / getattr(row, field) if getattr(row, field) else 0.0 for row in rows]
        bars = axes.bar([place + shift for place in places], heights, 0.38, label=title)
        axes.bar_label(bars, [f"{height:.1f}" if height else "fails" for height in heights], fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="eager")
    axes.set_xticks(list(places), [row.program.replace("_", "\n") for row in rows], fontsize=8)
    axes.set_ylabel("training speed relative to eager")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
