"""Sentences for what a user may write by mistake, or because another library has it: each says what to write instead."""

import functools
import re

import keras
import pytest
import tensorflow as tf

import terra

X = [tf.random.stateless_normal([4, 4], seed=[k, 7]) for k in range(4)]


def say(kind, sentence):
    return pytest.raises(kind, match="^" + re.escape(sentence) + "$")


@pytest.mark.all_variants
@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize("decorator", [staticmethod, classmethod])
def test_static_methods_and_class_methods(decorator, above):
    def make(wrap):
        class Trainer:
            weights = tf.Variable(tf.ones([4, 4]))

        def step(*args):
            owner, x = args if decorator is classmethod else (Trainer, *args)
            owner.weights.assign_sub(0.1 * x)
            return tf.reduce_sum(owner.weights @ x)

        Trainer.step = wrap(decorator(step)) if above else decorator(wrap(step))
        return Trainer

    ours, theirs = make(terra.coexecute(wait_for_graph=True)), make(lambda f: f)
    for k in range(10):
        for asked, eagerly in (ours, theirs), (ours(), theirs()):
            assert float(asked.step(X[k % 4])) == float(eagerly.step(X[k % 4]))
    assert ours.step.stats().coexecuted_steps >= 12, terra.explain(ours.step)


def test_properties():
    with say(terra.DecorationError, "terra.coexecute got the property test_properties.<locals>.Model.loss; put @terra.coexecute below @property."):
        class Model:
            @terra.coexecute
            @property
            def loss(self):
                return X[0]

    with say(terra.DecorationError, "terra.coexecute got the cached_property test_properties.<locals>.Other.loss; put @terra.coexecute below @cached_property."):
        class Other:
            @terra.coexecute
            @functools.cached_property
            def loss(self):
                return X[0]


def test_a_property_of_a_step():
    class Model:
        def __init__(self):
            self.weights = tf.Variable(tf.ones([4, 4]))

        @property
        @terra.coexecute(wait_for_graph=True)
        def loss(self):
            return tf.reduce_sum(self.weights @ X[0])

    model = Model()
    for k in range(8):
        assert float(model.loss) == float(tf.reduce_sum(model.weights @ X[0]))
    assert Model.loss.fget.stats().coexecuted_steps >= 4


def test_a_word_of_the_tapes():
    with say(terra.OptionError, "terra.GradientTape has no option 'persistant'; did you mean 'persistent'?"):
        terra.GradientTape(persistant=True)
    with say(terra.OptionError, "terra.GradientTape has no option 'run_ahed'; did you mean 'run_ahead'?"):
        terra.GradientTape(run_ahed=0)


def test_a_word_of_compile():
    model = keras.Sequential([keras.layers.Dense(1)])
    with say(terra.OptionError, "terra.compile has no option 'run_ahed'; did you mean 'run_ahead'?"):
        terra.compile(model, "sgd", "mse", run_ahed=0)
    with say(terra.OptionError, "terra.compile has no option 'fullgraph': terra.set_stance('fail_on_fallback') makes it an error that a step leaves its graph."):
        terra.compile(model, "sgd", "mse", fullgraph=True)
    assert not model.compiled and terra.compile(model, "sgd", "mse", run_ahead=0).train.options.run_ahead == 0


COUNTERPARTS = {
    "input_signature": "a step takes any arguments; if their sizes vary, reduce_retracing=True keeps what is known of the step",
    "autograph": "Python runs as Python, so there is nothing to convert; leave it out",
    "fullgraph": "terra.set_stance('fail_on_fallback') makes it an error that a step leaves its graph",
    "jit": "jit_compile=True lets XLA compile the graph",
    "backend": "jit_compile=True lets XLA compile the graph, optimize=True has TensorFlow rewrite it",
    "dynamic": "reduce_retracing=True leaves sizes unknown that vary",
    "experimental_relax_shapes": "reduce_retracing=True leaves sizes unknown that vary",
    "static_argnums": "Python values are told apart by themselves; leave it out",
    "disable": "terra.set_stance('imperative') runs all steps eagerly",
}


@pytest.mark.all_variants
@pytest.mark.parametrize("name", COUNTERPARTS)
def test_what_other_libraries_have(name):
    with say(terra.OptionError, f"terra.coexecute has no option {name!r}: {COUNTERPARTS[name]}."):
        terra.coexecute(**{name: True})
    for option in re.findall(r"(\w+)=True", COUNTERPARTS[name]):
        terra.Options.make({option: True})


def test_a_word_of_the_decorator():
    with say(terra.OptionError, "terra.coexecute has no option 'loop'; did you mean 'loops'?"):
        terra.coexecute(loop="roll")
    with pytest.raises(terra.OptionError, match="terra.coexecute has no option 'colour'; the options are fast_forward, jit_compile, .*transform, .*wait_for_graph"):
        terra.coexecute(colour=1)
