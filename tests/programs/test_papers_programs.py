"""The programs of the papers, at their small size: co-executed with eager's results, within the papers' numbers of traces and fallbacks.

And what AutoGraph does with the five that it cannot run.
"""

import functools

import pytest
import tensorflow as tf

import terra
from examples import programs
from examples.benchmarks.check import run
from examples.benchmarks.console import error_line
from examples.benchmarks.suite.measure import TOLERANCE, max_rel_diff
from examples.benchmarks.suite.state import python_state, state_difference
from terra.frontends.gradient_tape import blocks
from tests.variants import ALL

SEED = 1
STEPS = 8

# The papers have up to two traces and no fallback. More, where the program takes more ways; a way that it first takes when there is a graph already
# costs one fallback:
#   name: (steps, traces, fallbacks)
WAYS = {
    "dropblock": (10, 3, 0),  # the keep probability, a constant at first, is a feed from its second change on
    "sdpoint": (16, 4, 1),  # where the down-sampling is drawn to be is a way of its own
    "faster_rcnn": (10, 2, 1),  # a number of proposals that was a constant changes
    "cyclegan": (9, 3, 1),  # a picture comes from the generator or from the pool, at each of two places
    "melgan": (10, 2, 1),  # the discriminators are trained from a later step on
    "lstm_stateful": (10, 3, 0),  # no state at first, then that of the step before, then a new one where a text begins
    "beam_search": (10, 2, 1),  # searches are shorter once it is learned that names end: with which step depends on the names in this Python's standard library
    "lines_of_text": (16, 2, 4),  # as many rounds as the batch has characters in a line
    "dynamic_rnn": (16, 2, 3),  # another number of rounds of the loop in each step
    "tree_rnn": (18, 3, 2),  # another tree in each step
    "tree_lstm": (18, 3, 2),
    "rntn": (18, 3, 2),
    "topdown_tree_lstm": (18, 4, 6),  # values decide what the tree becomes
}

# What tf.function gives for the programs that the paper on Terra lists as beyond AutoGraph: the reason why it fails, or what is wrong without any error.
BEYOND_AUTOGRAPH = {
    "dropblock": "keep_prob is 1.0 where eager has",
    "sdpoint": "downsampling_ratio is 0.5 where eager has 1.0",
    "bert_classification": "has no attribute 'numpy'",
    "faster_rcnn": "has no attribute 'numpy'",
    "music_transformer": "loss_value is a tensor without a value",
}

# Their blocks are like those of smaller programs.
LARGE = {"resnet50", "efficientnet_b0", "inception_v3", "yolo_v3", "faster_rcnn", "sdpoint", "cyclegan", "melgan", "bert_qa", "bert_classification", "pix2pix", "gpt2", "transformer_block", "tree_rnn", "tree_lstm", "rntn"}


# Programs that take no way which another one does not take, and that one; they run with TERRA_TESTS=all.
LIKE = {
    "cyclegan": "melgan", "dcgan": "melgan", "adversarial_nets": "melgan", "pix2pix": "melgan",
    "resnet50": "sdpoint", "inception_v3": "sdpoint", "efficientnet_b0": "sdpoint",
    "bert_qa": "bert_classification", "transformer_block": "music_transformer", "gpt2": "music_transformer", "yolo_v3": "faster_rcnn",
    "rntn": "topdown_tree_lstm", "tree_lstm": "topdown_tree_lstm", "tree_rnn": "topdown_tree_lstm",
    "seq2seq": "beam_search", "ppo": "a3c", "keras_lstm": "lstm_cell_python_loop",
}  # fmt: skip
RUN = [name for name in programs.NAMES if ALL or name not in LIKE]


def coexecute(step):
    return terra.coexecute(step, wait_for_graph=True)


@functools.cache
def eager_run(name):
    """The same run serves all that is compared with it."""
    steps, _, _ = WAYS.get(name, (STEPS, 0, 0))
    return run(programs.load(name), "test", SEED, steps, lambda step: step)


@pytest.mark.all_variants
@pytest.mark.parametrize("name", RUN)
def test_co_executed_equals_eager(name):
    steps, traces, fallbacks = WAYS.get(name, (STEPS, 2, 0))
    eager = eager_run(name)
    ours = run(programs.load(name), "test", SEED, steps, coexecute)
    assert max_rel_diff(ours.losses, eager.losses) <= TOLERANCE
    assert state_difference(ours.state, eager.state, TOLERANCE) is None
    stats = ours.step.stats()
    assert stats.steps == steps
    assert stats.coexecuted_steps >= steps // 2, terra.explain(ours.step)
    assert (stats.traces, stats.fallbacks) <= (traces, fallbacks) and stats.fallbacks <= fallbacks, terra.explain(ours.step)


@pytest.mark.parametrize("name", [name for name in RUN if name not in LARGE])
def test_blocks_equal_eager(name, monkeypatch):
    """The same with `terra.GradientTape` in a step that is not decorated."""
    def coexecuted():
        stats = [block.stats() for block in blocks().values()]
        return sum(s.coexecuted_steps for s in stats), sum(s.fast_forwards for s in stats)

    eager, before = eager_run(name), coexecuted()
    monkeypatch.setattr(tf, "GradientTape", functools.partial(terra.GradientTape, wait_for_graph=True))
    ours = run(programs.load(name), "test", SEED, len(eager.losses), lambda step: step)
    assert max_rel_diff(ours.losses, eager.losses) <= TOLERANCE
    assert state_difference(ours.state, eager.state, TOLERANCE) is None
    steps, jumps = (b - a for a, b in zip(before, coexecuted()))
    assert steps >= len(eager.losses) // 3 and jumps > 0


@pytest.mark.parametrize("name", BEYOND_AUTOGRAPH)
def test_autograph_fails_or_is_wrong(name):
    eager = eager_run(name)
    try:
        traced = run(programs.load(name), "test", SEED, len(eager.losses), tf.function)
    except Exception as error:
        outcome = error_line(error)
    else:
        outcome = state_difference(traced.state, eager.state, None)
    assert outcome is not None and BEYOND_AUTOGRAPH[name] in outcome


@pytest.mark.parametrize("name", programs.NAMES)
def test_says_what_it_is_and_has_its_sizes(name):
    module = programs.load(name)
    assert programs.summary(name).endswith(".")
    assert "AutoGraph" in module.__doc__
    assert set(module.SIZES) == {"test", "benchmark", "paper"}
    assert len({frozenset(sizes) for sizes in module.SIZES.values()}) == 1, "sizes that name different things"


def test_groups():
    assert set(programs.NAMES) == {name for group in programs.GROUPS.values() for name in group}
    assert len(set(programs.NAMES)) == len(programs.NAMES)
    assert len(programs.GROUPS["terra"]) == 10 and set(BEYOND_AUTOGRAPH) < set(programs.GROUPS["terra"])
    assert programs.chosen("janus, terra,lenet") == tuple(dict.fromkeys(programs.GROUPS["janus"] + programs.GROUPS["terra"]))
    for text, message in (("keras_mpl", "no program or group 'keras_mpl'; groups: terra"), ("terra,terrra", "'terrra'")):
        with pytest.raises(ValueError, match=message):
            programs.chosen(text)
    with pytest.raises(ValueError, match="no program 'keras_mpl'; there are resnet50"):
        programs.load("keras_mpl")


class Holder:
    """What a program may hold; its class counts as the program's own."""

    __module__ = "examples.programs.holder"

    def __init__(self, **parts):
        vars(self).update(parts)

    def step(self):
        pass


@pytest.mark.parametrize(
    "eager, other, difference",
    [
        ({"seen": 3}, {"seen": 3}, None),
        ({"seen": 3}, {"seen": 1}, "step.self.seen is 1 where eager has 3"),
        ({"losses": [1.0]}, {"losses": []}, "step.self.losses's length is 0 where eager has 1"),
        ({"inner": {"a": Holder(rate=0.5)}}, {"inner": {"a": Holder(rate=0.25)}}, "step.self.inner['a'].rate is 0.25 where eager has 0.5"),
        ({"loss": tf.constant(1.0)}, {"loss": tf.constant(1.0 + 1e-6)}, None),
        ({"loss": tf.constant(1.0)}, {"loss": tf.constant(1.1)}, "step.self.loss is 1.1 where eager has 1.0"),
        ({"a": None}, {"a": 1}, "step.self.a is 1 where eager has None"),
        ({"a": 1}, {}, "step.self.a is missing"),
        ({}, {"a": 1}, "step.self.a is 1 where eager has nothing"),
    ],
)
def test_state_is_compared(eager, other, difference):
    """The oracle itself: it sees what the losses do not tell."""
    assert state_difference(python_state(Holder(**other).step), python_state(Holder(**eager).step), TOLERANCE) == difference


def test_state_of_streams_closures_and_layers():
    import random

    import keras
    import numpy as np

    class Layer(keras.layers.Layer):
        __module__ = "examples.programs.holder"

        def __init__(self):
            super().__init__()
            self.keep_prob = 1.0

    def job():
        parts = Holder(streams=[random.Random(1), np.random.default_rng(1)], model=keras.Sequential([Layer()]))

        def step():
            return parts

        step.__module__ = "examples.programs.holder"
        return step, parts

    (step, _), (other, parts) = job(), job()
    expected = python_state(step)
    assert state_difference(python_state(other), expected, 0.0) is None  # though the layers have different names
    parts.model.layers[0].keep_prob = 0.5
    assert state_difference(python_state(other), expected, 0.0) == "step.parts.model.layers[0].keep_prob is 0.5 where eager has 1.0"
    parts.streams[1].random()
    assert state_difference(python_state(other), expected, 0.0) == "step.parts.streams[1] has drawn other numbers than with eager"

    @tf.function
    def traced():
        parts.loss = tf.constant(1.0)

    traced()
    assert python_state(other)["step.parts.loss"] == "a tensor without a value"
