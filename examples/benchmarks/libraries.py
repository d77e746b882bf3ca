"""Libraries on top of TensorFlow and Keras, whose Python takes most of an eager step: eager, tf.function and Terra in one run.

    pip install -e ".[libraries]"
    python -m examples.benchmarks.libraries [--steps N] [--no-fit] [--quiet]

Small models. First steps that use TensorFlow Probability, Sonnet, GPflow, einops or transformers, their loss (or text) read at each step; medians in ms over the last half of the steps, the three taking
turns in chunks. Then those of the libraries in `examples.benchmarks.keras_libraries` that are installed, which train with `fit` (without --no-fit; through `terra.compile`): medians in ms per batch. Exits with 1 if what
Terra trains differs from what eager execution trains.
"""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from examples.benchmarks import turns

PACKAGES = ("tensorflow_probability", "sonnet", "gpflow", "einops", "transformers")
BATCH, FEATURES, CLASSES, BATCHES = 32, 16, 4, 21
SEED = (1, 2)  # the three draw the same numbers, in each step


def batches(seed=0):
    """Batches (x, y) of features and their classes."""
    rng = np.random.default_rng(seed)
    return [(tf.constant(rng.normal(size=(BATCH, FEATURES)).astype("float32")), tf.constant(rng.integers(0, CLASSES, BATCH))) for _ in range(BATCHES)]


class Trained:
    """Variables that are trained, and what with."""

    def __init__(self, variables, optimizer=None):
        self.variables, self.optimizer = list(variables), optimizer or keras.optimizers.Adam(1e-3)

    def apply(self, gradients):
        if hasattr(self.optimizer, "apply_gradients"):
            self.optimizer.apply_gradients(zip(gradients, self.variables))
        else:
            self.optimizer.apply(gradients, self.variables)

    def get_weights(self):
        return [v.numpy() for v in self.variables]


def training(build):
    """build(): a function for the loss of a batch, and what is `Trained`."""
    def make(mode):
        keras.utils.set_random_seed(1)
        loss_of, trained = build()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(x, y)
            trained.apply(tape.gradient(loss, trained.variables))
            return loss

        step = turns.MODES[mode](step)
        return lambda x, y: float(step(x, y)), trained

    return make


def dense(rows, columns):
    return tf.Variable(tf.random.normal((rows, columns), stddev=rows ** -0.5))


def variational():
    """A variational autoencoder with distributions of TensorFlow Probability."""
    import tensorflow_probability as tfp
    tfd = tfp.distributions
    encoder, decoder = dense(FEATURES, 8), dense(4, FEATURES)
    prior = tfd.MultivariateNormalDiag(tf.zeros(4), tf.ones(4))

    def loss_of(x, y):
        mean, scale = tf.split(x @ encoder, 2, -1)
        posterior = tfd.MultivariateNormalDiag(mean, tf.nn.softplus(scale) + 1e-3)
        likelihood = tfd.Independent(tfd.Normal(posterior.sample(seed=SEED) @ decoder, 1.0), 1)
        return -tf.reduce_mean(likelihood.log_prob(x) - tfd.kl_divergence(posterior, prior))

    return loss_of, Trained([encoder, decoder])


def policy():
    """The loss of a policy that is squashed by a bijector, as in soft actor-critic."""
    import tensorflow_probability as tfp
    tfd, tfb = tfp.distributions, tfp.bijectors
    weights = dense(FEATURES, 4)

    def loss_of(x, y):
        mean, scale = tf.split(x @ weights, 2, -1)
        actions = tfd.TransformedDistribution(tfd.MultivariateNormalDiag(mean, tf.exp(tf.clip_by_value(scale, -5.0, 2.0))), tfb.Tanh())
        action = actions.sample(seed=SEED)
        return tf.reduce_mean(0.2 * actions.log_prob(action) + tf.reduce_sum(action ** 2.0, -1))

    return loss_of, Trained([weights])


def process():
    """The likelihood of a Gaussian process."""
    import tensorflow_probability as tfp
    amplitude, length, noise = (tfp.util.TransformedVariable(1.0, tfp.bijectors.Softplus()) for _ in range(3))

    def loss_of(x, y):
        kernel = tfp.math.psd_kernels.ExponentiatedQuadratic(amplitude, length)
        return -tfp.distributions.GaussianProcess(kernel, x, observation_noise_variance=noise).log_prob(tf.cast(y, tf.float32))

    return loss_of, Trained([v for x in (amplitude, length, noise) for v in x.trainable_variables])


def network():
    """A network and an optimizer of Sonnet's."""
    import sonnet
    model = sonnet.nets.MLP([32, CLASSES])
    model(tf.zeros((1, FEATURES)))
    return lambda x, y: tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))), Trained(model.trainable_variables, sonnet.optimizers.Adam(1e-3))


def sparse_process():
    """The evidence lower bound of a sparse variational Gaussian process of GPflow's."""
    import gpflow
    rng = np.random.default_rng(3)
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(lengthscales=4.0), gpflow.likelihoods.Gaussian(), rng.normal(size=(12, FEATURES)), num_data=BATCH * BATCHES)

    def loss_of(x, y):
        return model.training_loss((tf.cast(x, tf.float64), tf.cast(y, tf.float64)[:, None]))

    return loss_of, Trained(model.trainable_variables)


def attention():
    """A layer of self-attention whose axes einops rearranges."""
    from einops import rearrange, reduce
    inner, outer, classifier = dense(4, 3 * 16), dense(16, 16), dense(16, CLASSES)

    def loss_of(x, y):
        tokens = rearrange(x, "b (n f) -> b n f", f=4)
        query, key, value = rearrange(tokens @ inner, "b n (part h f) -> part b h n f", part=3, h=2)
        scores = tf.nn.softmax(tf.einsum("bhif,bhjf->bhij", query, key) * 8 ** -0.5)
        mixed = rearrange(tf.einsum("bhij,bhjf->bhif", scores, value), "b h n f -> b n (h f)") @ outer
        logits = reduce(tf.nn.relu(mixed), "b n f -> b f", "mean") @ classifier
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    return loss_of, Trained([inner, outer, classifier])


def transformer():
    """A model of Hugging Face's transformers, without dropout: the three would draw their masks from one stream of numbers."""
    import tf_keras
    from transformers import BertConfig, TFBertForSequenceClassification
    tf_keras.utils.set_random_seed(1)
    model = TFBertForSequenceClassification(BertConfig(
        vocab_size=FEATURES, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=FEATURES, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    optimizer = tf_keras.optimizers.Adam(1e-3)

    def loss_of(x, y):
        return tf.reduce_mean(model(tf.argsort(x), labels=y, training=True).loss)

    loss_of(*batches()[0])
    optimizer.build(model.trainable_variables)
    return loss_of, Trained(model.trainable_variables, optimizer)


class Written:
    """What a model has written, in place of weights: it is not trained."""

    def __init__(self):
        self.texts = []

    def get_weights(self):
        return [text.numpy() for text in self.texts]


def generating(mode):
    """A GPT-2 goes on with the texts that it is given."""
    import tf_keras
    from transformers import GPT2Config, TFGPT2LMHeadModel
    tf_keras.utils.set_random_seed(1)
    model = TFGPT2LMHeadModel(GPT2Config(vocab_size=200, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0))
    model(tf.constant([[1]]))  # makes its variables, from the seed
    written = Written()
    step = turns.MODES[mode](lambda tokens: model.generate(tokens, max_new_tokens=10, do_sample=False, pad_token_id=0))

    def go_on(x, y):
        text = step(tf.argsort(x[:4]) + 1)
        written.texts.append(text)
        return float(tf.reduce_sum(text))

    return go_on, written


PROGRAMS = {
    "variational autoencoder": training(variational),
    "squashed policy": training(policy),
    "Gaussian process": training(process),
    "Sonnet network": training(network),
    "sparse Gaussian process (GPflow)": training(sparse_process),
    "self-attention (einops)": training(attention),
    "BERT (transformers)": training(transformer),
    "GPT-2 generates (transformers)": generating,
}


def main(argv=None):
    argv = list(sys.argv[1:] if argv is None else argv)
    fits = "--no-fit" not in argv
    argv = [x for x in argv if x != "--no-fit"]
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"examples.benchmarks.libraries: {' and '.join(missing)} not found; pip install -e '.[libraries]'", file=sys.stderr)
        return 2
    data = batches()
    failed = turns.main("examples.benchmarks.libraries", __doc__.splitlines()[0], {title: (make, data) for title, make in PROGRAMS.items()}, 120, argv)
    if fits:
        print("\nfit, per batch:", flush=True)
        for legacy in ("0", "1"):
            command = [sys.executable, "-m", "examples.benchmarks.keras_libraries", *["--quiet"] * ("--quiet" in argv)]
            failed |= subprocess.run(command, env={**os.environ, "TF_USE_LEGACY_KERAS": legacy}).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
