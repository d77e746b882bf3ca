"""Top-down TreeLSTM: grows the syntax tree of a Python statement from its root; what it decides is the shape of the computation.

One of the recursion chapter's programs (there for the completion of sentences): at each place, the model decides by a computed value which node is
there, and whether there is one at all; only then is it asked for that node's first child and next sibling. It is taught while it decides by itself, with
the syntax trees of the standard library: the true node of each place it comes to, or that there is none.
AutoGraph: fails (a condition on what `int` of a tensor gave, in a recursion); a recursion that ends by a computed value has no end while it is traced.
"""

import argparse
import ast
import dataclasses
import inspect
from typing import Optional

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import zero_state
from examples.programs.layers import LSTMCell
from examples.programs.training import adam

SIZES = {
    "test": {"units": 8, "batch": 1, "most": 5},
    "benchmark": {"units": 64, "batch": 2, "most": 12},
    "paper": {"units": 400, "batch": 64, "most": 60},
}
NOTHING = 0  # the kind of a node that is not there
CHILD, SIBLING = range(2)


@dataclasses.dataclass(frozen=True)
class Node:
    """A tree of any width as a binary one: each node has a first child and a next sibling."""

    kind: int
    child: Optional["Node"] = None
    sibling: Optional["Node"] = None

    def count(self):
        return 1 + sum(other.count() for other in (self.child, self.sibling) if other)


def syntax_trees(most):
    """The statements of a module that have two to `most` nodes, and how many kinds of nodes there are."""
    kinds = {}

    def tree(nodes):
        if not nodes:
            return None
        first, *others = nodes
        children = [child for child in ast.iter_child_nodes(first) if not isinstance(child, ast.expr_context)]
        return Node(kinds.setdefault(type(first), len(kinds) + 1), tree(children), tree(others))

    statements = [node for node in ast.walk(ast.parse(inspect.getsource(argparse))) if isinstance(node, ast.stmt)]
    return [found for found in (tree([statement]) for statement in statements) if 2 <= found.count() <= most], len(kinds) + 1


class TopDownTreeLSTM(keras.Model):
    def __init__(self, kinds, units):
        super().__init__()
        self.embedding = keras.layers.Embedding(kinds, units)
        self.cells = [LSTMCell(units) for _ in (CHILD, SIBLING)]
        self.logits = keras.layers.Dense(kinds)
        self.embedding.build()
        for cell in self.cells:
            cell.build((None, units))
        self.logits.build((None, units))
        self.units = units

    def complete(self, statement, most):
        """Grow a tree from the root of a statement: (the tree, a loss for each decision)."""
        self.room, self.penalties = most - 1, []
        child = self.grow(statement.kind, zero_state(1, self.units, self.units), CHILD, statement.child)
        return Node(statement.kind, child), self.penalties

    def grow(self, kind, state, edge, truth):
        """The tree at the end of an edge from a node of this kind, or None; `truth` is what there should be."""
        output, state = self.cells[edge](self.embedding(tf.constant([kind])), state)
        logits = self.logits(output)
        target = tf.constant([truth.kind if truth else NOTHING])
        self.penalties.append(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits))
        decision = int(tf.argmax(logits[0]))
        if decision == NOTHING or not self.room:
            return None
        self.room -= 1
        child = self.grow(decision, state, CHILD, truth and truth.child)
        return Node(decision, child, self.grow(decision, state, SIBLING, truth and truth.sibling))


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    trees, kinds = syntax_trees(sizes["most"])
    rows = np.random.default_rng(seed).integers(len(trees), size=(8, sizes["batch"]))
    model = TopDownTreeLSTM(kinds, sizes["units"])
    variables = model.trainable_variables
    optimizer = adam(variables, 5e-3)

    def train_step(statements):
        with tf.GradientTape() as tape:
            losses = []
            for statement in statements:
                _, found = model.complete(statement, sizes["most"])
                losses += found
            loss = tf.reduce_mean(tf.concat(losses, axis=0))
        gradients = zip(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients([(gradient, variable) for gradient, variable in gradients if gradient is not None])  # a tree may need no siblings
        return loss

    return Job(train_step, [([trees[row] for row in batch],) for batch in rows])
