"""Stock Keras training, measured as four ways to compile a model take turns: what `terra.compile` is worth where the program calls `fit`.

    python -m examples.benchmarks.fit [MODEL ...] [--rounds N] [--epochs N] [--quiet]

Batches of 32 (the last one of an epoch is smaller), Adam. The MLP and the CNN are trained in several ways, the others by `fit` with a `tf.data.Dataset`. Medians over the
rounds of the time per batch, in ms:

    eager        model.compile(..., run_eagerly=True)
    tf.function  model.compile(..., jit_compile=False)
    default      model.compile(...): Keras chooses by itself whether XLA compiles the tf.function
    Terra        terra.compile(model, ...)

Exits with 1 if Terra has trained anything else than eager execution.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import functools
import sys

import keras
import tensorflow as tf

import terra
from examples.benchmarks import turns
from examples.benchmarks.console import Progress
from examples.benchmarks.fit_models import CLASSIFIERS, OTHERS, images
from examples.benchmarks.suite import report

BATCH = 32
WARM_UP = 8  # epochs
MODES = {
    "eager": lambda model, **how: model.compile(run_eagerly=True, **how),
    "tf.function": lambda model, **how: model.compile(jit_compile=False, **how),
    "default": lambda model, **how: model.compile(**how),
    "Terra": terra.compile,
}


class ReadsLogs(keras.callbacks.Callback):
    """What a progress bar does."""

    def on_train_batch_end(self, batch, logs=None):
        self.loss = float(logs["loss"])


def fit(model, data, epochs):
    model.fit(data.dataset, epochs=epochs, verbose=0)


def fit_reading(model, data, epochs):
    model.fit(data.dataset, epochs=epochs, verbose=0, callbacks=[ReadsLogs()])


def fit_arrays(model, data, epochs):
    model.fit(data.images, data.labels, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False)


def on_batches(model, data, epochs):
    for _ in range(epochs):
        for k in range(0, len(data.images), BATCH):
            model.train_on_batch(data.images[k:k + BATCH], data.labels[k:k + BATCH])


def evaluate(model, data, epochs):
    for _ in range(epochs):
        model.evaluate(data.dataset, verbose=0)


def in_a_loop(model, data, epochs):
    """What programs for reinforcement learning do: `predict` and `fit` of a few rows at a time."""
    for _ in range(epochs):
        for k in range(0, len(data.images), BATCH):
            model.predict(data.images[k:k + BATCH], verbose=0)
            model.fit(data.images[k:k + BATCH], data.labels[k:k + BATCH], verbose=0)


LOOPS = {"fit(dataset)": fit, "fit(dataset), logs read": fit_reading, "fit(arrays)": fit_arrays, "train_on_batch(arrays)": on_batches, "evaluate(dataset)": evaluate,
         "predict, fit of 32 rows": in_a_loop}
IN_ALL_WAYS = ("MLP", "CNN")


class Data:
    def __init__(self, labelled):
        self.images, self.labels = images()
        parts = (self.images, self.labels) if labelled else self.images
        self.dataset = tf.data.Dataset.from_tensor_slices(parts).batch(BATCH).prefetch(2)


def making(program, loop, data):
    """What trains a program in each mode, by `loop`: a function for so many epochs, and what gives the weights."""
    def make(mode):
        keras.utils.set_random_seed(1)
        model, how = program()
        MODES[mode](model, optimizer="adam", **how)
        return functools.partial(loop, model, data), model.get_weights

    return make


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.fit", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models to train (default: {', '.join([*CLASSIFIERS, *OTHERS])})")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="epochs of a mode in a round; of eager execution, one (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    options = parser.parse_args(argv)
    programs = CLASSIFIERS | OTHERS
    unknown = [name for name in options.models if name not in programs]
    if unknown or options.rounds < 1 or options.epochs < 1:
        parser.error(f"no model {unknown[0]!r}" if unknown else "rounds and epochs must be above 0")
    todo = [(name, title) for name in options.models or programs for title in (LOOPS if name in IN_ALL_WAYS else ("fit(dataset)",))]
    rows = []
    with Progress(len(todo) * len(MODES) * (options.rounds + 1), "measuring", options.quiet) as progress:
        for name, title in todo:
            data = Data(name in CLASSIFIERS)
            medians, same = turns.measure_fits(
                making(programs[name], LOOPS[title], data), MODES, -(-len(data.images) // BATCH), WARM_UP, options.rounds, options.epochs,
                lambda mode: progress.advance(f"{name}, {title}, {mode}"))  # noqa: B023  (used at once)
            rows.append((f"{name}, {title}", same, medians))
    print(report.machine(), end="\n\n")
    print(f"{'':<34}" + "".join(f"{mode + ' ms':>16}" for mode in MODES) + f"{'Terra/tf.fn':>13}{'eager/Terra':>13}")
    for title, same, medians in rows:
        print(f"{title:<34}" + "".join(f"{ms:>16.2f}" for ms in medians.values())
              + f"{medians['Terra'] / medians['tf.function']:>13.2f}{medians['eager'] / medians['Terra']:>13.1f}" + ("" if same else "  DIFFERS"))
    return 0 if all(same for _, same, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
