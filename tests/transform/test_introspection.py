"""Step functions are seen by inspection as they were written, and follow changes of their defaults and code: in scripts and where they are decorated."""

import re

import pytest

from tests import forks

HEAD = """
import functools, inspect, json, sys
import tensorflow as tf
{decorator}
w = tf.Variable([1.0, 2.0])
x = tf.constant([1.0, 0.5])
{at}
def train(x, lr=0.01, *, scale=1.0, **others):
    '''Trains.'''
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((w * x) ** 2) * scale
    w.assign_sub(lr * tape.gradient(loss, w))
    return loss
class Trainer:
    rate = 0.1
    def fit(self, x, /, lr=None, *more):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w * x) ** 2)
        w.assign_sub((lr or self.rate) * tape.gradient(loss, w))
        return loss
def run(n=9, **named):
    print([round(float(train(x, **named)), 4) for _ in range(n)])
"""

PROGRAMS = {
    "signature": "run(); print(inspect.signature(train), inspect.getfullargspec(train), train.__defaults__, train.__kwdefaults__, train.__name__, train.__doc__)",
    "parameters of the code": "c = train.__code__; print(c.co_varnames[:c.co_argcount + c.co_kwonlyargcount], c.co_argcount, c.co_kwonlyargcount, bool(c.co_flags & 8)); run()",
    "called by name": """
def call(function, **settings):
    names = function.__code__.co_varnames[:function.__code__.co_argcount]
    return function(**{n: settings[n] for n in names if n in settings})
print([round(float(call(train, x=x, lr=0.02, epochs=k)), 4) for k in range(9)])""",
    "defaults set": "run(); train.__defaults__ = (0.5,); run(); train.__defaults__ = (0.05,); run()",
    "named defaults set": "run(); train.__kwdefaults__ = {'scale': 2.0}; run(); train.__kwdefaults__['scale'] = 3.0; run()",
    "no defaults": """
run(); train.__defaults__ = None
try: train(x)
except TypeError as e: print(e)
run(lr=0.1)""",
    "wrong arguments": """
run()
for wrong in (lambda: train(), lambda: train(x, 1.0, 2.0), lambda: train(x, x=x)):
    try: wrong()
    except TypeError as e: print(str(e).split('train() ')[-1])
run()""",
    "partial and bound": """
f = functools.partial(train, lr=0.1)
print([round(float(f(x)), 4) for _ in range(9)], inspect.signature(f))
print(inspect.signature(train).bind(x, other=3).arguments['others'])""",
    "wraps": """
def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
train = logged(train)
run(); print(inspect.signature(train), train.__name__, inspect.unwrap(train).__name__); train.__wrapped__.__defaults__ = (0.3,); run()""",
    "methods": """
t = Trainer()
print([round(float(t.fit(x)), 4) for _ in range(9)], inspect.signature(t.fit), inspect.signature(Trainer.fit), Trainer.fit.__defaults__)
Trainer.fit.__defaults__ = (0.3,)
print([round(float(t.fit(x)), 4) for _ in range(5)])
t.rate = 0.2
print([round(float(t.fit(x, 0, 1, 2)), 4) for _ in range(5)])""",
}


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("introspection"), "import runpy, sys, inspect, functools, tensorflow, terra, terra.cli") as made:
        yield made


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", ["script", "decorated"])
def test_programs(interpreters, tmp_path, name, how):
    def run(decorator, at, options=None):
        path = tmp_path / "train.py"
        path.write_text(HEAD.format(decorator=decorator, at=at) + PROGRAMS[name] + "\n")
        return interpreters.run_script(path, options=options)

    eager = run("", "")
    if how == "script":
        ours = run("", "", ["--stats", "--wait-for-graph"])
    else:
        ours = run("import terra", "@terra.coexecute(wait_for_graph=True)")
    assert eager.returncode == 0, eager.stderr
    assert ours.stdout == eager.stdout, ours.stderr
    if how == "script":
        assert sum(map(int, re.findall(r"(\d+) of them co-executed", ours.stderr))) >= 4, ours.stderr
