"""A library of models in the manner of Hugging Face's transformers: configurations with aliases, calls that look at their own signature, outputs that are dicts and
data classes."""

import collections
import dataclasses
import functools
import inspect

import tensorflow as tf


class Config:
    attribute_map = {"width": "hidden_size"}

    def __init__(self, **given):
        vars(self).update({"hidden_size": 6, "rate": 0.2, "scale": 1.0, "output_hidden": False, "labels": 3, "extra": {"shift": 0.0}, **given})

    def __getattribute__(self, name):
        if name != "attribute_map" and name in super().__getattribute__("attribute_map"):
            name = super().__getattribute__("attribute_map")[name]
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(self.attribute_map.get(name, name), value)


class ModelOutput(collections.OrderedDict):
    """What a model gives: the fields that are not None are items, too."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclasses.dataclass
class Encoded(ModelOutput):
    last: tf.Tensor = None
    hidden: tuple = None


@dataclasses.dataclass
class Classified(ModelOutput):
    loss: tf.Tensor = None
    logits: tf.Tensor = None
    hidden: tuple = None


def unpacked(call):
    """Fills in what a call is not given from the configuration."""
    @functools.wraps(call)
    def run(self, *args, **kwargs):
        names = list(dict(inspect.signature(call).parameters))[1:]
        given = {**dict(zip(names, args)), **kwargs}
        if isinstance(given.get("inputs"), dict):
            given.update(given.pop("inputs"))
        if "output_hidden" in names and given.get("output_hidden") is None:
            given["output_hidden"] = self.config.output_hidden
        return call(self, **given)

    run.__signature__ = inspect.signature(call)
    return run


@functools.cache
def models(K):
    """The classes of models made with the package `keras` or `tf_keras`: (an encoder, a classifier)."""

    class Encoder(K.layers.Layer):
        def __init__(self, config, **kwargs):
            super().__init__(**kwargs)
            self.config = config
            self.first = K.layers.Dense(config.width, activation="tanh")
            self.second = K.layers.Dense(config.width)
            self.dropout = K.layers.Dropout(config.rate)

        @unpacked
        def call(self, inputs, keep=None, output_hidden=None, training=False):
            before = self.first(inputs)
            after = self.dropout(self.second(before), training=training) * self.config.scale + self.config.extra["shift"]
            if keep is not None:
                after *= tf.cast(keep, after.dtype)[:, None]
            return Encoded(last=after + before, hidden=(before, after) if output_hidden else None)

    class Classifier(K.Model):
        def __init__(self, config, **kwargs):
            super().__init__(**kwargs)
            self.config = config
            self.encoder = Encoder(config)
            self.head = K.layers.Dense(config.labels)

        @unpacked
        def call(self, inputs=None, keep=None, labels=None, output_hidden=None, training=False):
            encoded = self.encoder(inputs, keep=keep, output_hidden=output_hidden, training=training)
            logits = self.head(encoded[0])
            loss = None if labels is None else self.loss_of(labels, logits)
            return Classified(loss=loss, logits=logits, hidden=encoded.hidden)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                output = self(x, training=True, **({"labels": y} if "labels" in inspect.signature(self.call).parameters else {}))
            self.optimizer.apply_gradients(zip(tape.gradient(output.loss, self.trainable_variables), self.trainable_variables))
            return {"loss": output.loss, "largest": tf.reduce_max(output.logits)}

        def loss_of(self, labels, logits):
            tf.debugging.assert_less(labels, tf.cast(self.config.labels, labels.dtype), message=f"a label is too large: {tf.reduce_max(labels)} of {self.config.labels}")
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    return Encoder, Classifier


def described(x):
    """A pair of a text in which there is a value, and a tensor."""
    y = tf.sin(x) * 2.0 + tf.cos(x)
    return f"largest: {tf.reduce_max(y):.3f}", y


def joined(x):
    """Operations on such a text."""
    y = tf.sin(x) * 2.0 + tf.cos(x)
    return tf.strings.join(["largest: ", f"{tf.reduce_max(y):.3f}"])


def twofold(x):
    """An output of which an item is not the attribute of its name."""
    output = Encoded(last=tf.sin(x) + tf.cos(x))
    collections.OrderedDict.__setitem__(output, "last", tf.sin(x) * 2.0)
    return output
