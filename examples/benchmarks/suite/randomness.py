"""Streams of random numbers for several runs that take turns in one process.

A program may draw from Python's, NumPy's and TensorFlow's global generators. A run that takes turns with others keeps its own place in each of them.
"""

import random

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # TensorFlow has no public way to read the generator of its eager op seeds

# A kernel of these goes on with its own stream, whose start is a constant of the graph.
STATEFUL = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
    "RandomUniformInt", "TruncatedNormal",
}  # fmt: skip


class Streams:
    """The global generators as one run sees them, from the seed on. `with streams:` puts them in place.

    An eager random operation has a kernel that goes on with its own stream, found by the operation's seeds: two runs that draw the same seeds would share it.
    So a run of a program that draws any (`drew_op_seeds`) has to start `cold`, with no kernels, each time its turn comes.
    """

    def __init__(self, seed):
        self.seed = seed
        self.cold = False
        keras.utils.set_random_seed(seed)
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
        self._keep()

    def _keep(self):
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._op_seeds, self._tensorflow = context.context()._rng.getstate(), tf.random.get_global_generator()

    def __enter__(self):
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        tf.random.set_global_generator(self._tensorflow)
        if self.cold:
            tf.random.set_seed(self.seed)  # drops the kernels
        context.context()._rng.setstate(self._op_seeds)

    def __exit__(self, *_):
        before = self._op_seeds
        self._keep()
        self.drew_op_seeds = self._op_seeds != before


def draws_other_numbers(concrete_function):
    """Whether a tf.function draws its random numbers from streams of its own, not from those of eager execution."""
    graph = concrete_function.graph.as_graph_def()
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    return any(node.op in STATEFUL for node in nodes)
