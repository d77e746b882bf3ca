"""Scripts whose step stands in their main loop, in no function: `python`, `python -m terra run`, and the same step moved into a function under `tf.function`.

    python -m examples.benchmarks.main_loops [PROGRAM ...] [--steps N] [--rounds N]

Each run is a process of its own, and they take turns. The loss is read at each step; medians in ms from one step to the next, over the last half of the steps. Exits with 1 if a script
prints other losses under Terra than under Python.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap

HEAD = """
import sys
import time

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
layers = keras.layers
rng = np.random.default_rng(0)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(1e-3)
metric = keras.metrics.SparseCategoricalAccuracy()
"""

# Name -> (what comes before the loop, the step).
CLASSIFIER = """
with tf.GradientTape() as tape:
    logits = model(x, training=True)
    loss = loss_fn(y, logits)
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
metric.update_state(y, logits)
"""
GAN = """
noise = tf.random.normal((64, 16))
with tf.GradientTape() as d_tape:
    real, fake = discriminator(x), discriminator(generator(noise))
    loss = bce(tf.ones_like(real), real) + bce(tf.zeros_like(fake), fake)
optimizer.apply_gradients(zip(d_tape.gradient(loss, discriminator.trainable_variables), discriminator.trainable_variables))
with tf.GradientTape() as g_tape:
    fake = discriminator(generator(noise))
    g_loss = bce(tf.ones_like(fake), fake)
g_optimizer.apply_gradients(zip(g_tape.gradient(g_loss, generator.trainable_variables), generator.trainable_variables))
"""
MLP = """
model = keras.Sequential([layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10)])
inputs = rng.standard_normal((16, 64, 64)).astype("float32")
"""
VALIDATION = """
logits = model(x, training=False)
loss = loss_fn(y, logits)
metric.update_state(y, logits)
"""
PROGRAMS = {
    "mlp": (MLP, CLASSIFIER),
    "validation": (MLP, VALIDATION),
    "target network": (MLP + """
target = keras.models.clone_model(model)
model.build((64, 64))
target.build((64, 64))

def soft_update(rate):
    for slow, fast in zip(target.variables, model.variables):
        slow.assign(rate * fast + (1 - rate) * slow)
""", CLASSIFIER + "soft_update(0.01)\n"),
    "cnn": ("""
model = keras.Sequential([layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(10)])
inputs = rng.standard_normal((16, 64, 16, 16, 1)).astype("float32")
""", CLASSIFIER),
    "attention": ("""
class Block(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = layers.Embedding(200, 64), layers.MultiHeadAttention(4, 16)
        self.norm, self.other, self.head = layers.LayerNormalization(), layers.LayerNormalization(), layers.Dense(10)
        self.wide, self.narrow = layers.Dense(128, "gelu"), layers.Dense(64)

    def call(self, tokens, training=False):
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, training=training))
        x = self.other(x + self.narrow(self.wide(x)))
        return self.head(tf.reduce_mean(x, 1))

model = Block()
inputs = rng.integers(0, 200, (16, 64, 24))
""", CLASSIFIER),
    "hand-written": ("""
sizes = (64, 128, 128, 10)
weights = [tf.Variable(tf.random.normal(shape, stddev=0.1)) for shape in zip(sizes, sizes[1:])]
biases = [tf.Variable(tf.zeros(n)) for n in sizes[1:]]
inputs = rng.standard_normal((16, 64, 64)).astype("float32")
""", """
with tf.GradientTape() as tape:
    h = x
    for w, b in zip(weights, biases):
        h = tf.nn.tanh(h @ w + b)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, h))
for v, g in zip(weights + biases, tape.gradient(loss, weights + biases)):
    v.assign_sub(0.05 * g)
"""),
    "gan": ("""
generator = keras.Sequential([layers.Dense(64, "relu"), layers.Dense(32)])
discriminator = keras.Sequential([layers.Dense(64, "relu"), layers.Dense(1)])
g_optimizer = keras.optimizers.Adam(1e-3)
g_optimizer.build(generator.trainable_variables if generator.build((None, 16)) is None else [])
bce = keras.losses.BinaryCrossentropy(from_logits=True)
inputs = rng.standard_normal((16, 64, 32)).astype("float32")
""", GAN),
}
LOOP = """
data = tf.data.Dataset.from_tensor_slices((inputs, rng.integers(0, 10, (16, 64)))).cache().repeat()
{function}
times, losses = [], []
for x, y in data.take({steps}):
{step}
    losses.append(float(loss))
    times.append(time.perf_counter())
print(losses)
print(np.median(np.diff(times[len(times) // 2:])) * 1e3, file=sys.stderr)
"""
RUNS = {"eager": [], "Terra": ["-m", "terra", "run"], "tf.function": []}


def source(name, steps, traced):
    """A script; `traced`: its step is a function under `tf.function`."""
    before, step = PROGRAMS[name]
    function = ""
    if traced:
        function, step = "@tf.function\ndef step(x, y):" + textwrap.indent(step, "    ") + "    return loss\n", "loss = step(x, y)"
    return HEAD + before + LOOP.format(function=function, step=textwrap.indent(step.strip("\n"), "    "), steps=steps)


def run(path, words):
    """(what the script prints, ms per step) in a process of its own."""
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = subprocess.run([sys.executable, *words, path], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{path} has failed:\n{done.stderr}")
    return done.stdout, float(done.stderr.split()[-1])


def measure(name, steps, rounds):
    """{run: ms per step}, and whether Terra's losses are eager's."""
    taken, printed = {kind: [] for kind in RUNS}, {}
    with tempfile.TemporaryDirectory() as folder:
        for k in range(rounds):
            for kind, words in RUNS.items():
                path = os.path.join(folder, f"{name}_{kind.replace('.', '_')}.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(source(name, steps, kind == "tf.function"))
                printed[kind], ms = run(path, words)
                taken[kind].append(ms)
    return {kind: statistics.median(times) for kind, times in taken.items()}, printed["Terra"] == printed["eager"]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.main_loops", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"programs to measure (default: {' '.join(PROGRAMS)})")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (default: %(default)s)")
    args = parser.parse_args(argv)
    unknown = [name for name in args.programs if name not in PROGRAMS]
    if unknown or args.steps < 40 or args.rounds < 1:
        parser.error(f"no program {unknown[0]!r}" if unknown else "40 steps and one round are the least")
    equal = True
    print(f"{'':14}" + "".join(f"{kind:>13}" for kind in RUNS) + f"{'eager/Terra':>14}{'tf.fn/Terra':>14}")
    for name in args.programs or PROGRAMS:
        ms, same = measure(name, args.steps, args.rounds)
        equal = equal and same
        print(f"{name:14}" + "".join(f"{x:13.2f}" for x in ms.values()) + f"{ms['eager'] / ms['Terra']:14.2f}{ms['tf.function'] / ms['Terra']:14.2f}"
              + ("" if same else "   other losses than eager's"), flush=True)
    return not equal


if __name__ == "__main__":
    sys.exit(main())
