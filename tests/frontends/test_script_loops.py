"""Loops at the top of a script, or in its functions, round a tape's block: under `python -m terra run` their blocks are steps that are skipped as a whole, and the output is the same."""

import re
import textwrap

import pytest

from tests import forks

HEAD = """
import numpy as np
import tensorflow as tf
import keras

keras.utils.set_random_seed(0)
rng = np.random.RandomState(0)
X = rng.standard_normal((60, 16, 6)).astype("float32")
Y = (X.sum(2) > 0).astype("int64")
model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metric = keras.metrics.SparseCategoricalAccuracy()
data = tf.data.Dataset.from_tensor_slices((X, Y))
"""

SCRIPTS = {
    "module": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))

model = Net()
for x, y in data:
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    metric.update_state(y, logits)
    print(float(loss))
print(float(metric.result()), loss.numpy(), logits.shape)
""",
    "function": """
def train(model, data, epochs):
    seen = mean = 0.0
    for epoch in range(epochs):
        for step, (x, y) in enumerate(data.batch(4).unbatch().take(30)):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            grads = tape.gradient(loss, model.trainable_variables)
            grads, norm = tf.clip_by_global_norm(grads, 0.5)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            seen += 1
            mean += (float(loss) - mean) / seen
            if step % 10 == 9:
                print(epoch, step, mean, float(norm))
    return mean

print(train(model, data, 2))
""",
    "method": """
class Trainer:
    def __init__(self):
        self.steps, self.history = 0, []

    def fit(self, data):
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = self.loss(x, y)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            self.steps += 1
            self.history.append(loss.numpy())

    def loss(self, x, y):
        return loss_fn(y, model(x, training=True)) + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])

trainer = Trainer()
trainer.fit(data)
print(trainer.steps, [float(v) for v in trainer.history])
""",
    "carried": """
cell = keras.layers.GRUCell(6)
cell.build((16, 6))
w = tf.Variable(tf.ones((6, 1)))
state = tf.zeros((16, 6))
for k in range(60):
    x = tf.constant(X[k])
    with tf.GradientTape() as tape:
        out, states = cell(x, [state])
        loss = tf.reduce_mean((out @ w - 1.0) ** 2)
    for v, g in zip([w, *cell.trainable_variables], tape.gradient(loss, [w, *cell.trainable_variables])):
        v.assign_sub(0.1 * g)
    state = states[0]
    if k % 9 == 0:
        print(k, loss.numpy(), state.numpy()[0].tolist())
""",
    "gan": """
g, d = keras.Sequential([keras.layers.Dense(6)]), keras.Sequential([keras.layers.Dense(1)])
g_opt, d_opt = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
bce = keras.losses.BinaryCrossentropy(from_logits=True)
for x, _ in data:
    noise = tf.random.normal((16, 3))
    with tf.GradientTape() as tape:
        real, fake = d(x), d(g(noise))
        d_loss = bce(tf.ones_like(real), real) + bce(tf.zeros_like(fake), fake)
    d_opt.apply_gradients(zip(tape.gradient(d_loss, d.trainable_variables), d.trainable_variables))
    with tf.GradientTape() as tape:
        g_loss = bce(tf.ones_like(fake), d(g(noise)))
    g_opt.apply_gradients(zip(tape.gradient(g_loss, g.trainable_variables), g.trainable_variables))
    print(float(d_loss), float(g_loss))
""",
    "best": """
def run():
    best, patience, w = float("inf"), 0, tf.Variable(tf.ones((6, 2)))
    for k, (x, y) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))
        w.assign_sub(0.5 * tape.gradient(loss, w))
        value = float(loss)
        if value < best:
            best, patience = value, 0
        else:
            patience += 1
            if patience > 7:
                print("stopped at", k)
                break
        print(k, value, best)

run()
""",
    "accumulated": """
model.build((16, 6))
sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
step = 0
for x, y in data.repeat(2):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    for s, v in zip(sums, tape.gradient(loss, model.trainable_variables)):
        s.assign_add(v)
    step += 1
    if step % 3 == 0:
        optimizer.apply_gradients(zip(sums, model.trainable_variables))
        for s in sums:
            s.assign(tf.zeros_like(s))
    print(step, float(loss))
print(model.get_weights()[0].tolist())
""",
    "caught": """
w, bad = tf.Variable(tf.ones((6, 2))), 0
for k, (x, y) in enumerate(data):
    try:
        with tf.GradientTape() as tape:
            picked = tf.gather(x @ w, y if k % 20 else y + 40, batch_dims=1)
            loss = tf.reduce_mean((picked - 1.0) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
    except tf.errors.InvalidArgumentError as error:
        bad += 1
        print(k, type(error).__name__)
print(bad, w.numpy().tolist())
""",
    "generator": """
def losses(data):
    w = tf.Variable(tf.ones((6, 2)))
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))
        w.assign_sub(0.5 * tape.gradient(loss, w))
        yield loss

for value in losses(data):
    print(float(value))
""",
    "while": """
w = tf.Variable(tf.ones((6, 2)))
k, loss = 0, tf.constant(9.0)
while k < 60 and float(loss) > 0.1:
    x, y = X[k], Y[k]
    with tf.GradientTape(persistent=True) as tape:
        logits = x @ w
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        penalty = 0.01 * tf.reduce_sum(w ** 2)
    w.assign_sub(0.5 * (tape.gradient(loss, w) + tape.gradient(penalty, w)))
    del tape
    k += 1
    print(k, loss.numpy(), penalty.numpy())
""",
    "episodes": """
def main():
    model.build((1, 6))
    values, steps = [], []
    for k in range(60):
        states, total = [], 0.0
        with tf.GradientTape() as tape:
            state = X[k, 0]
            while True:
                logits = model(state[None])
                values.append(logits[0, 1])
                states.append(tf.argmax(logits[0]))
                total += float(logits[0, 0])
                state = 0.9 * state + 0.1 * rng.standard_normal(6).astype("float32")
                if rng.random() < 0.2 or len(states) == 9:
                    break
            losses = []
            for value in values[::-1]:
                losses.append(tf.square(value - 0.5))
            loss = sum(losses) / len(losses)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            values.clear()
        steps.append(len(states))
        print(k, steps[-1], f"{float(loss):.4f} {total:.4f}", tf.stack(states).numpy().tolist())

main()
""",
    "guarded": """
w, skipped = tf.Variable(tf.ones((6, 2))), 0
for k, (x, y) in enumerate(data):
    try:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))
            if k % 13 == 12:
                raise ValueError(k)
        w.assign_sub(0.5 * tape.gradient(loss, w))
    except ValueError as error:
        skipped += error.args[0]
        continue
    except KeyError:
        break
    print(k, float(loss))
print(skipped, w.numpy().tolist())
""",
    "filled": """
import collections
def train(epochs):
    for epoch in range(epochs):
        losses, numbers, guesses, last = [], [], ["first"], collections.deque(maxlen=5)
        for x, y in data.batch(4).unbatch().take(20):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = loss_fn(y, logits)
                losses.append(loss)
                numbers.append(float(loss))
                guesses.extend(tf.argmax(logits, 1))
                last.append((loss, "loss"))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        print(np.mean(losses), sum(numbers), len(guesses), guesses[0], sum(map(int, guesses[1:])), [float(x) for x, _ in last])

train(3)
""",
    "looked_at": """
seen, total = [], []
class Tail:
    def __init__(self):
        self.items, self.longest = seen, 0
    def length(self):
        return len(self.items)

tail = Tail()
for x, y in data:
    rows = seen
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True)) / (1.0 + tail.length())
        rows.append(loss)
        if tail.length() % 20 == 7:
            print(tail.length(), float(tail.items[-1]))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print([float(x) for x in seen])
""",
    "taken": """
model.build((16, 6))
batches = iter(data)
def train():
    while True:
        try:
            x, y = next(batches)
        except StopIteration:
            print("the end")
            break
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        print(float(loss))

train()
""",
}
SKIPPED = {"episodes": 0, "guarded": 0, "taken": 45, "module": 45, "function": 40, "method": 45, "carried": 40, "gan": 45, "best": 20, "accumulated": 40, "caught": 0, "filled": 35, "looked_at": 0, "generator": 40, "while": 35}  # of some 60 steps, or 120


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("scripts"), "import runpy, sys, numpy, tensorflow, keras", ".") as made:
        yield made


def under_both(interpreters, path, *options):
    """(what a script prints, what it does under `python -m terra run`, the statistics, by name)."""
    plain = interpreters.run_script(path)
    ours = interpreters.run_script(path, options=["--stats", "--wait-for-graph", *options])
    rows = [line.split(maxsplit=10) for line in ours.stderr.splitlines() if line.startswith(" ")]
    header = next((row for row in rows if row[:1] == ["steps"]), [])
    found = {row[-1]: dict(zip(header, row)) for row in rows if len(row) == len(header) == 11 and row is not header and row[0].isdecimal()}
    return plain, ours, found


@pytest.mark.parametrize("name, options", [*[(name, ()) for name in SCRIPTS], ("best", ("--verify",)), ("module", ("--verify",))])
def test_loops(name, options, interpreters, tmp_path):
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + SCRIPTS[name])
    plain, ours, found = under_both(interpreters, path, *options)
    assert plain.returncode == 0 and ours.returncode == 0, plain.stderr + ours.stderr
    assert ours.stdout == plain.stdout and len(plain.stdout) > 20
    (title, row), = [item for item in found.items() if not re.fullmatch(r"\w+\.(__call__|result|update_state)", item[0])]  # calls outside of it are steps, too
    assert re.fullmatch(rf"the block at {name}.py:\d+", title)
    assert int(row["co-executed"]) >= 20 and int(row["skipped"]) >= (0 if options else SKIPPED[name]), ours.stderr


GRADIENTS = """
def grad(model, x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    return loss, tape.gradient(loss, model.trainable_variables)

model.build((16, 6))
print(float(grad(model, X[0], Y[0])[0]))
"""
HELPERS = {  # the tape's block is in a function, and the update in what calls it
    "loop": GRADIENTS + """
for x, y in data:
    loss, grads = grad(model, x, y)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    metric.update_state(y, model(x, training=True))
    print(float(loss))
print(float(metric.result()))
""",
    "function": GRADIENTS + """
def step(x, y):
    loss, grads = grad(model, x, y)
    grads, norm = tf.clip_by_global_norm(grads, 0.5)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss, norm

for x, y in data:
    print(*map(float, step(x, y)))
""",
    "method": """
class Trainer:
    def __init__(self):
        self.model, self.steps = model, 0

    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, self.model(x, training=True))
        return tape.gradient(loss, self.model.trainable_variables), loss

    def fit(self, data):
        for x, y in data:
            grads, loss = self.gradients_of(x, y)
            optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
            self.steps += 1
            print(self.steps, float(loss))

Trainer().fit(data)
""",
    "tape": """
def forward(x, y):
    with tf.GradientTape() as tape:
        made = model(x, training=True)
        loss = loss_fn(y, made)
    return {"made": made, "loss": loss}, tape

def step(x, y):
    found, tape = forward(x, y)
    grads = tape.gradient(found["loss"], model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return found["loss"]

model.build((16, 6))
print(float(forward(X[0], Y[0])[0]["loss"]))
for x, y in data:
    print(float(step(x, y)))
""",
}


@pytest.mark.parametrize("name", HELPERS)
def test_a_function_that_gives_gradients_to_its_caller(name, interpreters, tmp_path):
    """What it gives is updated with in the same step."""
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + HELPERS[name])
    plain, ours, found = under_both(interpreters, path)
    assert plain.returncode == 0 and ours.returncode == 0, plain.stderr + ours.stderr
    assert ours.stdout == plain.stdout and len(plain.stdout) > 20
    whole = {title: row for title, row in found.items() if int(row["steps"]) > 40}
    assert len(whole) == 1 and not any(title.endswith(("grad", "gradients_of", "forward")) for title in whole), ours.stderr
    assert all(int(row["skipped"]) >= 40 for row in whole.values()), ours.stderr


def test_an_expression_that_is_nested_too_deeply(interpreters, tmp_path):
    path = tmp_path / "deep.py"
    path.write_text(f"""
import tensorflow as tf
v = tf.Variable(1.0)
deep = lambda x: {" + ".join(["x"] * 900)}
for k in range(20):
    with tf.GradientTape() as tape:
        loss = v * 2.0
    v.assign_sub(0.1 * tape.gradient(loss, v))
    print(float(loss), deep(k))
""")
    plain, ours, found = under_both(interpreters, path)
    assert ours.stdout == plain.stdout and plain.returncode == ours.returncode == 0, ours.stderr
    assert [int(row["steps"]) for row in found.values()] == [20]


def test_an_error_names_the_line(interpreters, tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(textwrap.dedent("""
        import tensorflow as tf
        v = tf.Variable(tf.ones(3))

        def train():
            for k in range(20):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(v, [k % 3 if k < 15 else 7]))
                v.assign_sub(tape.gradient(loss, v))
                print(float(loss))

        train()
    """))
    plain, ours, _ = under_both(interpreters, path, "--run-ahead", "0")
    assert plain.returncode == ours.returncode == 1 and ours.stdout == plain.stdout
    assert re.findall(r'fails.py", line 8', ours.stderr) and "InvalidArgumentError" in ours.stderr


def test_a_step_that_fails_has_filled_its_list(interpreters, tmp_path):
    """What it has appended is there when the error is seen, and nothing twice."""
    path = tmp_path / "fails.py"
    path.write_text(textwrap.dedent("""
        import tensorflow as tf
        v = tf.Variable(tf.ones(3))

        def train(epochs):
            for epoch in range(epochs):
                seen, numbers = [], []
                for k in range(20):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(tf.gather(v, [k % 3]))
                        seen.append(k)
                        numbers.append(float(loss))
                        if epoch == 1 and k == 15:
                            raise ValueError(seen)
                        loss = tf.reduce_sum(tf.gather(v, [k % 3 if k < 17 or epoch == 0 else 7]))
                        seen.extend([loss, "x"])
                    v.assign_sub(tape.gradient(loss, v))
                print(len(seen), seen[1::3], numbers)

        train(2)
    """))
    plain, ours, found = under_both(interpreters, path, "--run-ahead", "0")
    assert plain.returncode == ours.returncode == 1 and ours.stdout == plain.stdout
    assert ours.stderr.split("ValueError: ")[1].splitlines()[0] == plain.stderr.split("ValueError: ")[1].splitlines()[0]
    assert int(next(iter(found.values()))["co-executed"]) >= 15, ours.stderr


def test_a_block_that_stays_in_its_loop_and_branches(interpreters, tmp_path):
    """Its steps are never cut into pieces, also where the functions that it calls have loops whose iterations branch."""
    path = tmp_path / "branches.py"
    path.write_text(HEAD + textwrap.dedent("""
        w = tf.Variable(tf.ones((6, 6)) * 0.1)

        def chain(x):
            for k in range(5):
                x = tf.tanh(x @ w) if rng.rand() < 0.5 else x * 0.5
            return tf.reduce_sum(x)

        def train():
            loss = None
            for k in range(120):
                try:
                    with tf.GradientTape() as tape:
                        loss = chain(X[k % 60])
                        tf.debugging.assert_less(loss, 1e9)
                    gradient = tape.gradient(loss, w)
                    if gradient is not None:
                        w.assign_sub(0.01 * gradient)
                except tf.errors.InvalidArgumentError:
                    print(loss)
                if k % 10 == 0:
                    print(float(loss))

        train()
    """))
    plain, ours, found = under_both(interpreters, path, "--explain", "--max-traces", "64")
    assert plain.returncode == ours.returncode == 0 and ours.stdout == plain.stdout, ours.stderr
    row = next(row for title, row in found.items() if title.startswith("the block"))
    assert "cut into pieces" not in ours.stderr and int(row["graphs"]) >= 1, ours.stderr
