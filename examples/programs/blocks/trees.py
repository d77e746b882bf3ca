"""What the programs on trees share: a tree bank, and the recursion over a tree."""

import dataclasses
from typing import Optional

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.training import adam, class_loss

CLASSES = 5  # very negative ... very positive
VALENCES = (-2, -1, 0, 1, 2)
WORDS_OF_A_KIND = 12
NOT, VERY, BUT = range(3)  # the numbers of the words that change what they stand before; the others follow
VOCABULARY = 3 + len(VALENCES) * WORDS_OF_A_KIND


@dataclasses.dataclass(frozen=True)
class Tree:
    """A phrase: either a word, or two phrases. The label is its sentiment."""

    label: int
    word: Optional[int] = None
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None

    @property
    def is_leaf(self):
        return self.word is not None


def sentiment_tree(random, words):
    """A tree over so many words: each phrase adds up its parts, but `not` turns, `very` doubles and `but` outweighs."""

    def valence(tree):
        return tree.label - 2

    def phrase(value, **parts):
        return Tree(label=int(np.clip(value, -2, 2)) + 2, **parts)

    if words == 1:
        kind = random.integers(len(VALENCES))
        return phrase(VALENCES[kind], word=int(3 + kind * WORDS_OF_A_KIND + random.integers(WORDS_OF_A_KIND)))
    change = random.random()
    if change < 0.3:
        right = sentiment_tree(random, words - 1)
        word, factor = (NOT, -1) if change < 0.15 else (VERY, 2)
        return phrase(factor * valence(right), left=phrase(0, word=word), right=right)
    cut = int(random.integers(1, words))
    left, right = sentiment_tree(random, cut), sentiment_tree(random, words - cut)
    if change < 0.4 and words - cut > 1:
        but = phrase(valence(right), left=phrase(0, word=BUT), right=right)
        return phrase(valence(right), left=left, right=but)
    return phrase(valence(left) + valence(right), left=left, right=right)


def sentiment_batches(seed, batch, words, count=8):
    """`count` batches of trees, each over `words` (least, most) words; a batch is one Python list."""
    random = np.random.default_rng(seed)
    return [([sentiment_tree(random, int(random.integers(words[0], words[1] + 1))) for _ in range(batch)],) for _ in range(count)]


class TreeModel(keras.Model):
    """Gives each node of a tree a state, and logits from it. Subclasses say how: `leaf`, `node` and `output`."""

    def __init__(self, units):
        super().__init__()
        self.units = units
        self.embedding = keras.layers.Embedding(VOCABULARY, units)
        self.logits = keras.layers.Dense(CLASSES)

    def leaf(self, word):
        return word

    def output(self, state):
        return state

    def read(self, tree, found):
        """The state of a tree; appends (logits, label) of each node to `found`."""
        if tree.is_leaf:
            state = self.leaf(self.embedding(tf.constant([tree.word])))
        else:
            state = self.node(self.read(tree.left, found), self.read(tree.right, found))
        found.append((self.logits(self.output(state)), tree.label))
        return state


def tree_job(seed, model_of, units, batch, words):
    """The job of a tree model, which is taught the sentiment of each phrase."""
    batches = sentiment_batches(seed, batch, words)
    model = model_of(units)
    model.read(batches[0][0][0], [])  # creates the variables
    variables = model.trainable_variables
    loss_fn, optimizer = class_loss(), adam(variables, 5e-3)

    def train_step(trees):
        with tf.GradientTape() as tape:
            found = []
            for tree in trees:
                model.read(tree, found)
            logits, labels = zip(*found)
            loss = loss_fn(tf.constant(labels), tf.concat(logits, axis=0))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return Job(train_step, batches)
