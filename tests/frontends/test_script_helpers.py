"""Functions without a tape under `python -m terra run`: those that issue operations enough are steps, and print what they print without it."""
import pytest

from tests import forks

PRELUDE = '''
import random
import sys
import time
import keras
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)


def net():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])


def sums(model):
    return [float(tf.reduce_sum(v)) for v in model.variables]


def rows(k):
    return np.random.RandomState(k).rand(4, 3).astype("float32")
'''
TRAINING = '''
def train(model, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        v.assign_sub(0.1 * g)
    return loss
'''
STEPS, OTHERS = {}, {}

STEPS["a_target_network", "soft_update"] = TRAINING + '''
def soft_update(target, source, rate=0.5):
    for a, b in zip(target.variables, source.variables):
        a.assign(rate * b + (1 - rate) * a)

source, target = net(), net()
for k in range(30):
    train(source, rows(k))
    if k == 17:
        source.layers[0].trainable = False
    soft_update(target, source, rate=0.25 if k % 7 == 6 else 0.5)
    print(sums(target))
'''
STEPS["an_agent", "Agent.act"] = TRAINING + '''
class Agent:
    def __init__(self):
        self.weight, self.count, self.seen = tf.Variable(tf.random.normal([3, 2])), 0, []

    def act(self, state, *, greedy=False):
        self.count += 1
        q = tf.tanh(tf.convert_to_tensor(state, tf.float32) @ self.weight)
        q = tf.nn.softmax(q * 2.0 + tf.reduce_mean(q) - tf.reduce_max(q))
        p = tf.exp(q) / tf.reduce_sum(tf.exp(q)) + tf.square(q) * 0.1
        self.seen.append(round(float(p[0, 0]), 4))
        if greedy or self.count % 5 == 0:
            return int(tf.argmax(p, 1)[0])
        return int(np.random.randint(2))

import gc
import weakref

for rounds in (40, 30, 6, 6, 6):
    agent = Agent()
    for k in range(rounds):
        print(agent.act(rows(k), greedy=k % 3 == 0), agent.count)
        agent.weight.assign_add(tf.ones([3, 2]) * 0.01)
    print(agent.seen)
    gone = weakref.ref(agent)
    del agent
    gc.collect()
    print(gone() is None)
'''
STEPS["errors_and_static_methods", "Tools.check"] = TRAINING + '''
class Tools:
    @staticmethod
    def check(x, limit):
        y = tf.reduce_mean(tf.square(x)) + tf.reduce_max(x) - tf.reduce_min(x) + tf.reduce_sum(tf.abs(x)) * 0.5
        z = tf.sqrt(y) + tf.exp(-y) + tf.tanh(y)
        if float(z) > limit:
            raise ValueError(f"{float(z):.4f} is above {limit}")
        return z

for k in range(40):
    try:
        print(float(Tools.check(tf.constant(rows(k)), 4.5 if k % 9 else 1.0)))
    except ValueError as error:
        print(error)
'''
STEPS["inside_and_outside_of_steps", "penalty"] = '''
def penalty(model, rate):
    total = tf.zeros([])
    for v in model.trainable_variables:
        total += rate * tf.reduce_sum(tf.square(v)) + rate * tf.reduce_max(tf.abs(v))
    return total

def train(model, x, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2) + penalty(model, rate)
    for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        v.assign_sub(0.1 * g)
    return loss

model = net()
for k in range(30):
    print(float(train(model, rows(k), 0.01)), float(penalty(model, 0.1)))
    with tf.GradientTape() as tape:
        loss = penalty(model, 0.01)
    print(float(tf.reduce_sum(tape.gradient(loss, model.trainable_variables)[0])))
'''
STEPS["in_graphs_of_the_programs_own", "clipped"] = '''
v = tf.Variable(1.0)

def clipped(x, limit=2.0):
    if tf.reduce_sum(x) > limit:
        x = x / tf.reduce_sum(x)
    for i in tf.range(5):
        x = x + tf.cast(i, tf.float32) * tf.reduce_mean(x)
    return x

class Tools:
    def scaled(self, x):
        if tf.reduce_max(x) > 1.0:
            return x * 0.5
        return tf.identity(x)

def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(clipped(x * v)) + tf.reduce_sum(Tools().scaled(x))
    if loss > 4.0:
        v.assign_sub(0.01 * tape.gradient(loss, v))
    return loss

step, graph = tf.function(lambda x: train(x)), tf.function(clipped)
numbers = tf.data.Dataset.range(4).map(lambda i: clipped(tf.cast(i, tf.float32) * tf.ones(2)))
for k in range(30):
    x = tf.constant([1.0, k % 5])
    print(float(step(x)), v.numpy(), graph(x).numpy(), clipped(x).numpy())
print([x.numpy().tolist() for x in numbers])
'''
STEPS["called_before_and_behind_a_tape", "learn"] = TRAINING + '''
def aim(model, x):
    y = model(x)
    for _ in range(6):
        y = tf.tanh(y) + tf.reduce_mean(y)
    return y

def follow(target, source):
    for a, b in zip(target.trainable_variables, source.trainable_variables):
        a.assign(0.9 * a + 0.1 * b + 0.0 * tf.reduce_mean(b))

def learn(model, target, x):
    goal = aim(target, x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - goal) ** 2)
    for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        v.assign_sub(0.1 * g)
    follow(target, model)
    return loss

model, target = net(), net()
follow(target, model)
for k in range(30):
    print(float(learn(model, target, rows(k))))
print(sums(target))
'''
OTHERS["too_few_operations", "small"] = TRAINING + '''
def small(x):
    return tf.reduce_mean(tf.square(x))

for k in range(30):
    print(float(small(rows(k))))
'''
OTHERS["one_that_calls_itself", "halved"] = TRAINING + '''
def halved(x, n):
    y = tf.tanh(x) * 0.5 + tf.reduce_mean(x)
    return y if n == 0 else halved(y, n - 1)

def depth(n):
    return 0 if n == 0 else 1 + less_deep(n)

def less_deep(n):
    return depth(n - 1)

for k in range(30):
    print(float(tf.reduce_sum(halved(rows(k), 4))), depth(sys.getrecursionlimit() // 2 - 100))
'''
OTHERS["one_that_trains", "epoch"] = TRAINING + '''
def epoch(model, k):
    total = tf.zeros([])
    for n in range(4):
        total += train(model, rows(k + n)) * 2 + tf.reduce_mean(tf.abs(model.trainable_variables[0])) / 2 + 1
    return total

model = net()
for k in range(30):
    train(model, rows(k))
for k in range(20):
    print(float(epoch(model, k)))
'''
OTHERS["one_that_takes_long", "slow"] = TRAINING + '''
def slow(x):
    time.sleep(0.11)
    for _ in range(8):
        x = tf.tanh(x) + tf.reduce_mean(x)
    return x

for k in range(8):
    print(float(tf.reduce_sum(slow(rows(k)))))
'''
OTHERS["one_within_a_function", "inner"] = TRAINING + '''
def outer():
    def inner(x):
        for _ in range(8):
            x = tf.tanh(x) + tf.reduce_mean(x)
        return x
    return inner

inner = outer()
for k in range(20):
    print(float(tf.reduce_sum(inner(rows(k)))))
'''
OTHERS["methods_of_derived_classes_and_generators", "derived"] = TRAINING + '''
class Derived(tf.Module):
    def derived(self, x):
        for _ in range(8):
            x = tf.tanh(x) + tf.reduce_mean(x)
        return x

def generated(x):
    for _ in range(8):
        x = tf.tanh(x) + tf.reduce_mean(x)
        yield x

module = Derived()
for k in range(20):
    print(float(tf.reduce_sum(module.derived(rows(k)))), [float(tf.reduce_sum(x)) for x in generated(rows(k))])
'''


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    path = tmp_path_factory.mktemp("helpers")
    with forks.Interpreters(path, "import runpy, sys, tensorflow, keras", path) as made:
        yield made


def run_both(interpreters, path, source):
    """Returns what the script's steps have done, {name: {column of the statistics: number}}."""
    path.write_text(PRELUDE + source)
    plain, under = interpreters.run_script(path), interpreters.run_script(path, options=["--stats", "--wait-for-graph"])
    assert plain.returncode == 0, plain.stderr
    assert under.returncode == 0, under.stderr
    assert under.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) >= 8
    lines = [line.split(maxsplit=10) for line in under.stderr.splitlines() if line.startswith("  ")]
    if not lines:
        return {}
    header, *found = lines
    return {line[-1]: dict(zip(header, map(int, line[:-1]))) for line in found if line[0].isdigit()}


@pytest.mark.all_variants
@pytest.mark.parametrize("name, step", STEPS)
def test_helpers_that_are_steps(name, step, interpreters, tmp_path):
    rows = run_both(interpreters, tmp_path / "script.py", STEPS[name, step])
    assert rows[step]["co-executed"] >= 12, rows
    if "train" in rows:
        assert rows["train"]["skipped"] >= 12, rows  # with what it calls


@pytest.mark.all_variants
@pytest.mark.parametrize("name, step", OTHERS)
def test_functions_that_are_none(name, step, interpreters, tmp_path):
    rows = run_both(interpreters, tmp_path / "script.py", OTHERS[name, step])
    assert not any(step in row for row in rows), rows
