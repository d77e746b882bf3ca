"""Train a convolutional network on scikit-learn's digits with a step written as plain Python, co-executed by Terra.

    python -m examples.quickstart [--epochs 8] [--batch 64] [--quiet]

`train_step` below does three things that a graph cannot express and that people write all the time: it branches on the
value of the loss, it calls scikit-learn in the middle of the step, and it changes attributes of an object. The program
trains with it, then runs the same step eagerly, under `tf.function` and under Terra from the same seed, and compares.
"""

import argparse
import dataclasses
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split

import terra
from examples.benchmarks.console import Progress, error_line

SEED = 7
CLIP_ABOVE = 1.0  # clip the gradients while the loss is still above this


class Trainer:
    """A model, its optimizer, and what the step notes down about the training."""

    def __init__(self):
        self.model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        self.optimizer = keras.optimizers.Adam(2e-3)
        self.optimizer.build(self.model.trainable_variables)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.best_loss = math.inf
        self.history = []


@terra.coexecute
def train_step(trainer, images, labels):
    """One training step: ordinary eager TensorFlow, nothing in it is special."""
    with tf.GradientTape() as tape:
        logits = trainer.model(images, training=True)
        loss = trainer.loss_fn(labels, logits)
    variables = trainer.model.trainable_variables
    gradients = tape.gradient(loss, variables)

    if float(loss) > CLIP_ABOVE:  # a branch that Python takes
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    trainer.optimizer.apply_gradients(zip(gradients, variables))

    predictions = tf.argmax(logits, axis=-1).numpy()  # a value that leaves TensorFlow in mid-step
    f1 = f1_score(labels.numpy(), predictions, average="macro", zero_division=0.0)

    trainer.best_loss = min(trainer.best_loss, float(loss))  # an object that changes
    trainer.history.append(float(loss))
    return loss, f1


def new_trainer():
    """A trainer that is the same at every call."""
    keras.utils.set_random_seed(SEED)
    return Trainer()


def load_data():
    """Images in [0, 1] with a channel axis, and labels: (train, test)."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.25, random_state=SEED, stratify=digits.target
    )
    return (x_train, y_train), (x_test, y_test)


def batches_of(images, labels, size, order):
    """Full batches of tensors, in the given order of the samples."""
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield tf.constant(images[chosen]), tf.constant(labels[chosen])


def train(trainer, data, epochs, size, quiet):
    """Train with the co-executed step."""
    images, labels = data
    shuffle = np.random.default_rng(SEED)
    with Progress(epochs * (len(labels) // size), "training", quiet) as progress:
        for epoch in range(epochs):
            for batch in batches_of(images, labels, size, shuffle.permutation(len(labels))):
                loss, f1 = train_step(trainer, *batch)
                progress.advance(f"epoch {epoch + 1}  loss {float(loss):.3f}  f1 {f1:.2f}")


def accuracy_of(model, data):
    images, labels = data
    predictions = np.argmax(model(tf.constant(images), training=False), axis=-1)
    return float(np.mean(predictions == labels))


def compare(data, size, quiet, rounds=12, steps_per_round=5, warm_up=5):
    """Time per step of the same step, run three ways from the same seed.

    Returns {name: milliseconds or the reason why it does not run} and whether all losses of Terra equal eager's. The
    three take turns, so that whatever else the machine does meets all of them.
    """
    step = train_step.__wrapped__  # the function under the decorator
    ways = {
        "eager": step,
        "tf.function": tf.function(step),
        "Terra": terra.coexecute(step, wait_for_graph=True),
    }
    trainers = {name: new_trainer() for name in ways}
    batches = list(batches_of(*data, size, np.arange(len(data[1]))))

    def run(name, first, count):
        for index in range(first, first + count):
            ways[name](trainers[name], *batches[index % len(batches)])
        terra.sync()  # Terra may still be at work when a step has returned: that time is its own

    result = {}
    times = {}
    for name in ways:
        try:
            run(name, 0, warm_up)
            times[name] = []
        except Exception as error:
            result[name] = error_line(error)
    with Progress(rounds, "comparing", quiet) as progress:
        for number in range(rounds):
            for name in times:
                start = time.perf_counter()
                run(name, warm_up + number * steps_per_round, steps_per_round)
                times[name].append((time.perf_counter() - start) / steps_per_round * 1e3)
            progress.advance()
    result.update({name: statistics.median(values) for name, values in times.items()})
    eager, ours = trainers["eager"].history, trainers["Terra"].history
    same = len(eager) == len(ours) and np.allclose(eager, ours, rtol=1e-5, atol=0.0)
    return {name: result[name] for name in ways}, same


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits, co-executed by Terra.")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training images (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images in a step (default %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the results")
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")

    train_data, test_data = load_data()
    if not 1 <= options.batch <= len(train_data[1]):
        parser.error(f"--batch must be between 1 and {len(train_data[1])}, the number of training images")

    trainer = new_trainer()
    start = time.perf_counter()
    train(trainer, train_data, options.epochs, options.batch, options.quiet)
    terra.sync()
    seconds = time.perf_counter() - start
    print(f"trained {options.epochs} epochs in {seconds:.1f} s, best loss {trainer.best_loss:.4f}")
    print(f"test accuracy {100 * accuracy_of(trainer.model, test_data):.2f} %")

    times, same = compare(train_data, options.batch, options.quiet)
    print("\ntime per step (median)")
    for name, value in times.items():
        if isinstance(value, str):
            print(f"  {name:<12}  cannot run this step: {value}")
        else:
            print(f"  {name:<12} {value:6.2f} ms   {times['eager'] / value:5.2f} x eager's speed")
    print(f"  the losses of Terra {'equal' if same else 'DIFFER FROM'} eager's")

    print("\nstatistics of the training")
    for name, value in dataclasses.asdict(train_step.stats()).items():
        print(f"  {name:<18} {value:.3f}" if isinstance(value, float) else f"  {name:<18} {value}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
