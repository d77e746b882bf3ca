"""What the transformers share: attention, their blocks, BERT's encoder, and the words of the standard library as they read them."""

import collections
import importlib.util
import re

import keras
import numpy as np
import tensorflow as tf

# The modules whose source is read: as many as the classifier has classes at most.
MODULES = (
    "argparse", "tarfile", "typing", "inspect", "doctest", "_pydecimal", "subprocess", "pdb",
    "optparse", "difflib", "ipaddress", "http.cookiejar", "mailbox", "pickletools", "logging",
)  # fmt: skip
SPECIAL = PADDING, UNKNOWN, START, SEPARATOR = "[PAD]", "[UNK]", "[CLS]", "[SEP]"


def source(module):
    """The source of a module, which need not be imported for it."""
    return importlib.util.find_spec(module).loader.get_source(module)


class Words:
    """The words of some modules' source, and the number of each: 0 is the padding, then the special ones, then the others by how often they come."""

    def __init__(self, vocabulary, modules=MODULES):
        self.texts = [re.findall(r"\w+|[^\w\s]", source(module)) for module in modules]
        counts = collections.Counter(word for text in self.texts for word in text)
        known = [*SPECIAL, *(word for word, _ in counts.most_common(vocabulary - len(SPECIAL)))]
        self.numbers = {word: number for number, word in enumerate(known)}
        self.count = len(known)

    def encode(self, words):
        return [self.numbers.get(word, self.numbers[UNKNOWN]) for word in words]


def bert_rows(words, pairs, length):
    """BERT's three inputs for pairs of texts: the numbers of [CLS] first [SEP] second [SEP], the segment of each word, and 1 for what is no padding."""
    numbers, segments, mask = np.zeros((3, len(pairs), length), np.int32)
    for row, (first, second) in enumerate(pairs):
        before = [START, *first, SEPARATOR]
        line = words.encode([*before, *second, SEPARATOR] if second else before)
        numbers[row, : len(line)] = line
        segments[row, len(before) : len(line)] = 1
        mask[row, : len(line)] = 1
    return numbers, segments, mask


class Attention(keras.layers.Layer):
    """Multi-head self-attention, by its equations; a query looks where the mask, which spreads over (batch, head, query, key), is true."""

    def __init__(self, heads, units, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.width = heads, units // heads
        self.query = keras.layers.Dense(units)
        # A bias of the keys moves all scores of a query alike, so its true gradient is zero, and Adam would turn the rounding errors into full steps.
        self.key = keras.layers.Dense(units, use_bias=False)
        self.value = keras.layers.Dense(units)
        self.output_projection = keras.layers.Dense(units)
        self.dropout = keras.layers.Dropout(dropout)

    def split(self, x):
        """(batch, place, units) to (batch, head, place, width)."""
        batch, length, _ = x.shape
        return tf.transpose(tf.reshape(x, (batch, length, self.heads, self.width)), (0, 2, 1, 3))

    def scores(self, query, key):
        return tf.matmul(query, key, transpose_b=True)

    def call(self, x, mask, training=False):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = self.scores(query, key) / self.width**0.5
        weights = tf.nn.softmax(tf.where(mask, scores, -1e9))
        weights = self.dropout(weights, training=training)
        seen = tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3))
        return self.output_projection(tf.reshape(seen, x.shape))


class Block(keras.layers.Layer):
    """Attention, then two dense layers for each place, both beside a shortcut. The norms come first (as in GPT-2) or last (as in BERT)."""

    def __init__(self, attention, units, hidden, activation="gelu", norm_first=False, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.norm_first = attention, norm_first
        self.attention_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.up = keras.layers.Dense(hidden, activation)
        self.down = keras.layers.Dense(units)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropouts = [keras.layers.Dropout(dropout) for _ in range(2)]

    def call(self, x, mask, training=False):
        attention_dropout, dropout = self.dropouts
        if self.norm_first:
            x = x + attention_dropout(self.attention(self.attention_norm(x), mask, training=training), training=training)
            return x + dropout(self.down(self.up(self.norm(x))), training=training)
        x = self.attention_norm(x + attention_dropout(self.attention(x, mask, training=training), training=training))
        return self.norm(x + dropout(self.down(self.up(x)), training=training))


def causal_mask(length):
    """True where a place looks at itself or back."""
    return tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0)


class Bert(keras.layers.Layer):
    """The encoder of BERT: words, their places and their segments become a vector for each place."""

    def __init__(self, vocabulary, length, layers, units, heads, hidden, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.words = keras.layers.Embedding(vocabulary, units)
        self.places = keras.layers.Embedding(length, units)
        self.segments = keras.layers.Embedding(2, units)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout = keras.layers.Dropout(dropout)
        self.encoder = [Block(Attention(heads, units, dropout), units, hidden, dropout=dropout) for _ in range(layers)]

    def call(self, numbers, segments, mask, training=False):
        x = self.words(numbers) + self.places(tf.range(numbers.shape[1])) + self.segments(segments)
        x = self.dropout(self.norm(x), training=training)
        mask = tf.cast(mask, tf.bool)[:, tf.newaxis, tf.newaxis]
        for block in self.encoder:
            x = block(x, mask, training=training)
        return x


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of transformers: it rises in a straight line, then falls with the root of the step."""

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        return self.peak * tf.minimum(step / self.steps, tf.math.rsqrt(step / self.steps))

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


def adam_with_warm_up(variables, peak=1e-3, steps=20):
    """Adam with the decay of weights, its slots made."""
    optimizer = keras.optimizers.AdamW(WarmUp(peak, steps), weight_decay=0.01, beta_2=0.98, epsilon=1e-6)
    optimizer.build(variables)
    return optimizer
