"""Libraries on top of Keras whose documentation trains with `fit`: what `examples.benchmarks.libraries` runs in processes of their own, one for Keras 3, one (TF_USE_LEGACY_KERAS=1) for Keras 2.

    python -m examples.benchmarks.keras_libraries [--quiet]

Each program is `build()`: (model, arguments of `compile`, arguments of `fit`). Small models, and data that are drawn.
"""

import importlib
import importlib.util
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import terra
from examples.benchmarks import turns
from examples.benchmarks.console import Progress

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"  # then tf.keras is Keras 2, which these libraries are written for
WARM_UP = 12  # epochs
ROUNDS, EPOCHS = 5, 4  # epochs of a round; of eager execution, one
BATCHES = 20


def batches(*parts, size=32):
    return {"x": tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(size)}


def drawn(*shape, classes=None, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(shape).astype("float32") if classes is None else rng.integers(0, classes, shape)


def bert():
    """A text classifier of KerasHub's."""
    import keras_hub
    n = 16 * BATCHES
    x = {"token_ids": drawn(n, 12, classes=100), "segment_ids": np.zeros((n, 12), int), "padding_mask": np.ones((n, 12), int)}
    backbone = keras_hub.models.BertBackbone(vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64, max_sequence_length=12)
    model = keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=4, preprocessor=None)
    how = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "optimizer": keras.optimizers.Adam(5e-5), "metrics": ["accuracy"]}
    return model, how, batches(x, drawn(n, classes=4), size=16)


def temporal_convolutions():
    """A regression by a temporal convolutional network of keras-tcn's."""
    from tcn import TCN
    x, y = drawn(32 * BATCHES, 40, 2), drawn(32 * BATCHES, 1)
    network = TCN(nb_filters=24, kernel_size=8, dilations=[1, 2, 4, 8], dropout_rate=0.1, use_skip_connections=True)
    model = keras.Sequential([keras.layers.Input((40, 2)), network, keras.layers.Dense(1)])
    return model, {"optimizer": keras.optimizers.Adam(2e-3, clipnorm=1.0), "loss": "mse"}, batches(x, y)


def crossed_features():
    """A deep and cross network of KerasRS's."""
    import keras_rs

    class Ranking(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.interaction = keras.layers.Embedding(50, 8), keras_rs.layers.DotInteraction()
            self.crosses = [keras_rs.layers.FeatureCross(projection_dim=8), keras_rs.layers.FeatureCross()]
            self.deep, self.rating = keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)

        def call(self, x):
            user, item = self.embedding(x["user"]), self.embedding(x["item"])
            first = crossed = keras.ops.concatenate([user, item, self.interaction([user, item])], -1)
            for cross in self.crosses:
                crossed = cross(first, crossed)
            return self.rating(self.deep(crossed))

    n = 64 * BATCHES
    x = {"user": drawn(n, classes=50), "item": drawn(n, classes=50, seed=1)}
    return Ranking(), {"optimizer": "adam", "loss": "mse"}, batches(x, drawn(n, 1), size=64)


def posterior():
    """Amortised inference by a coupling flow of BayesFlow's."""
    import bayesflow
    adapter = bayesflow.adapters.Adapter().convert_dtype("float64", "float32").rename("parameters", "inference_variables").rename("observables", "inference_conditions")
    parameters = np.random.default_rng(0).normal(size=(64 * BATCHES, 4)).astype("float32")
    drawn_for = {"parameters": parameters, "observables": parameters + 0.3 * drawn(64 * BATCHES, 4)}
    model = bayesflow.ContinuousApproximator(inference_network=bayesflow.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (32, 32)}), adapter=adapter)
    return model, {"optimizer": keras.optimizers.Adam(1e-3)}, {"dataset": bayesflow.OfflineDataset(data=drawn_for, batch_size=64, adapter=adapter, shuffle=False)}


def retrieval():
    """Two towers of TensorFlow Recommenders'."""
    import tensorflow_recommenders as tfrs
    layers = tf.keras.layers
    users, movies = (np.array([f"{name}{k}" for k in range(n)]) for name, n in (("user", 60), ("movie", 100)))

    class Movies(tfrs.Model):
        def __init__(self):
            super().__init__()
            self.towers = [tf.keras.Sequential([layers.StringLookup(vocabulary=names, mask_token=None), layers.Embedding(len(names) + 1, 32)]) for names in (users, movies)]
            self.task = tfrs.tasks.Retrieval()

        def compute_loss(self, features, training=False):
            return self.task(self.towers[0](features["user"]), self.towers[1](features["movie"]))

    n = 64 * BATCHES
    ratings = {"user": users[drawn(n, classes=60)], "movie": movies[drawn(n, classes=100)]}
    return Movies(), {"optimizer": tf.keras.optimizers.Adagrad(0.5)}, batches(ratings, size=64)


def factorization():
    """A factorization machine of DeepCTR's."""
    from deepctr.feature_column import DenseFeat, SparseFeat, get_feature_names
    from deepctr.models import DeepFM
    columns = [SparseFeat(f"C{k}", vocabulary_size=50, embedding_dim=4) for k in range(6)] + [DenseFeat(f"I{k}", 1) for k in range(3)]
    n = 64 * BATCHES
    x = {name: drawn(n, classes=50, seed=k) if name.startswith("C") else drawn(n, seed=k) for k, name in enumerate(get_feature_names(columns))}
    model = DeepFM(columns, columns, task="binary", dnn_hidden_units=(64, 32))
    return model, {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["binary_crossentropy"]}, batches(x, drawn(n, classes=2).astype("float32"), size=64)


def graphs():
    """A graph network of Spektral's."""
    from spektral.data import BatchLoader, Dataset, Graph
    from spektral.layers import GCNConv, GlobalSumPool

    class Drawn(Dataset):
        def read(self):
            rng = np.random.default_rng(0)
            return [Graph(x=rng.random((10, 8)).astype("float32"), a=(rng.random((10, 10)) < 0.3).astype("float32"), y=rng.random(2).astype("float32")) for _ in range(16 * BATCHES)]

        def download(self):
            pass

        path = os.path.dirname(__file__)  # which is there: nothing is downloaded

    class Network(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.convolution, self.pool, self.dropout, self.dense = GCNConv(16), GlobalSumPool(), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(2, "softmax")

        def call(self, inputs):
            return self.dense(self.pool(self.dropout(self.convolution(inputs))))

    loader = BatchLoader(Drawn(), batch_size=16, epochs=None, shuffle=False)
    return Network(), {"optimizer": "adam", "loss": "categorical_crossentropy"}, {"x": loader.load(), "steps_per_epoch": loader.steps_per_epoch}


def binarized():
    """A network with binary weights of Larq's."""
    import larq
    layers, binary = tf.keras.layers, {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip", "use_bias": False}
    model = tf.keras.Sequential([
        larq.layers.QuantConv2D(16, 3, input_shape=(14, 14, 1), **binary), layers.MaxPool2D(), layers.BatchNormalization(momentum=0.999, scale=False), layers.Flatten(),
        larq.layers.QuantDense(10, input_quantizer="ste_sign", **binary), layers.BatchNormalization(momentum=0.999, scale=False), layers.Activation("softmax")])
    how = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    return model, how, batches(drawn(32 * BATCHES, 14, 14, 1) * 2 - 1, drawn(32 * BATCHES, classes=10))


def quantized():
    """Training that is aware of quantization, of the TensorFlow Model Optimization Toolkit's."""
    import tensorflow_model_optimization as optimization
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        layers.InputLayer(input_shape=(14, 14)), layers.Reshape((14, 14, 1)), layers.Conv2D(12, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(10)])
    how = {"optimizer": "adam", "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"]}
    return optimization.quantization.keras.quantize_model(model), how, batches(drawn(32 * BATCHES, 14, 14), drawn(32 * BATCHES, classes=10))


def pruned():
    """Training that sets more and more weights to zero, of the TensorFlow Model Optimization Toolkit's."""
    import tensorflow_model_optimization as optimization
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        layers.InputLayer(input_shape=(14, 14)), layers.Reshape((14, 14, 1)), layers.Conv2D(12, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(10)])
    sparsity = optimization.sparsity.keras
    model = sparsity.prune_low_magnitude(model, pruning_schedule=sparsity.PolynomialDecay(0.5, 0.8, begin_step=0, end_step=200))
    how = {"optimizer": "adam", "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"]}
    return model, how, {**batches(drawn(32 * BATCHES, 14, 14), drawn(32 * BATCHES, classes=10)), "callbacks": [sparsity.UpdatePruningStep()]}


MODES = {
    "eager": lambda model, **how: model.compile(run_eagerly=True, **how),
    "tf.function": lambda model, **how: model.compile(**({} if LEGACY else {"jit_compile": False}), **how),
    "Terra": terra.compile}
# {title: (package, program)}, for Keras 3 and for Keras 2
PROGRAMS = {
    "BERT (KerasHub)": ("keras_hub", bert), "convolutions in time (keras-tcn)": ("tcn", temporal_convolutions), "crossed features (KerasRS)": ("keras_rs", crossed_features),
    "coupling flow (BayesFlow)": ("bayesflow", posterior)}
LEGACY_PROGRAMS = {
    "two towers (TF Recommenders)": ("tensorflow_recommenders", retrieval), "DeepFM (DeepCTR)": ("deepctr", factorization), "graph network (Spektral)": ("spektral", graphs),
    "binary weights (Larq)": ("larq", binarized), "quantization (TF MOT)": ("tensorflow_model_optimization", quantized), "pruning (TF MOT)": ("tensorflow_model_optimization", pruned)}


def fitting(package, build):
    """What trains in each mode: a function for so many epochs, and what gives the weights."""
    def make(mode):
        importlib.import_module(package)  # which may draw numbers
        (tf.keras if LEGACY else keras).utils.set_random_seed(1)
        model, how, arguments = build()
        MODES[mode](model, **how)
        return lambda epochs: model.fit(epochs=epochs, verbose=0, **arguments), model.get_weights

    return make


def classifier(mode):
    """A classifier in the manner of scikit-learn's, of SciKeras'."""
    from scikeras.wrappers import KerasClassifier
    from sklearn.datasets import make_classification
    x, y = make_classification(32 * BATCHES, 20, n_informative=10, random_state=0)

    def network(meta):
        model = keras.Sequential([keras.layers.Input((meta["n_features_in_"],)), keras.layers.Dense(100, activation="relu"), keras.layers.Dense(meta["n_classes_"], activation="softmax")])
        MODES[mode](model, loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
        return model

    keras.utils.set_random_seed(1)
    made = KerasClassifier(network, batch_size=32, verbose=0, warm_start=True)
    return lambda epochs: made.set_params(epochs=epochs).fit(x.astype("float32"), y), lambda: made.model_.get_weights()


def programs():
    """{title: (package, what trains in each mode)} for the Keras of this process."""
    found = {title: (package, fitting(package, build)) for title, (package, build) in (LEGACY_PROGRAMS if LEGACY else PROGRAMS).items()}
    return found if LEGACY else found | {"classifier (SciKeras)": ("scikeras", classifier)}


def main(argv=None):
    """Prints a row for each program of an installed library. Returns 1 if Terra trains anything else than eager execution."""
    installed = {title: make for title, (package, make) in programs().items() if importlib.util.find_spec(package) is not None}
    failed = 0
    with Progress(len(installed) * len(MODES) * (ROUNDS + 1), "measuring", "--quiet" in (sys.argv if argv is None else argv)) as progress:
        for title, make in installed.items():
            medians, same = turns.measure_fits(make, MODES, BATCHES, WARM_UP, ROUNDS, EPOCHS, lambda mode: progress.advance(f"{title}, {mode}"))  # noqa: B023  (used at once)
            print(f"{title:<34}" + "".join(f"{ms:>16.2f}" for ms in medians.values()) + f"{medians['tf.function'] / medians['Terra']:>13.2f}" + ("" if same else "  DIFFERS"), flush=True)
            failed |= not same
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
