"""The programs of the papers, one module each, written as a user writes them; the benchmark and the tests run them.

A program is a module with

    SIZES                           {"test": ..., "benchmark": ..., "paper": ...}: the numbers that make it small, middling, as published
    build(seed, size="benchmark")   a new `Job`: model, data and an ordinary eager training step

Two jobs share nothing, and those of one seed are equal in every number (the caller has called `keras.utils.set_random_seed(seed)`). The docstring says what the
program is, why it is in the list, and what AutoGraph (`tf.function` on the step as it is) does with it. What programs have in common is in `data`, `layers`,
`training` and `blocks`. To add a program, write the module and add its name to a group.
"""

import ast
import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Sequence

GROUPS = {
    # the ten programs of the paper on Terra
    "terra": ("resnet50", "bert_qa", "yolo_v3", "dcgan", "gpt2", "bert_classification", "dropblock", "sdpoint", "faster_rcnn", "music_transformer"),
    # what the dissertation adds to them
    "further": ("efficientnet_b0", "cyclegan", "gcn", "melgan", "slimmable_net"),
    # those of the paper on Janus
    "janus": (
        "lenet", "resnet50", "inception_v3", "lstm_stateful", "language_model", "tree_rnn", "tree_lstm", "a3c", "ppo", "adversarial_nets", "pix2pix",
    ),
    # those of the paper on AutoGraph
    "autograph": ("dynamic_rnn", "beam_search", "lbfgs", "maml", "seq2seq", "in_loop_linear"),
    # those of the work on recursion
    "recursion": ("tree_rnn", "tree_lstm", "rntn", "topdown_tree_lstm"),
    # one habit of writing TensorFlow each
    "small": (
        "keras_mlp", "keras_cnn", "keras_lstm", "transformer_block", "hand_written_variables", "keras_subclass_nested", "lstm_cell_python_loop",
        "digits_sklearn_metric", "numpy_batches", "lines_of_text",
    ),
}  # fmt: skip
NAMES = tuple(dict.fromkeys(name for group in GROUPS.values() for name in group))


@dataclasses.dataclass(frozen=True)
class Job:
    """One training run: `step(*batch)` makes one step and returns the loss, a scalar tensor."""

    step: Callable
    batches: Sequence[tuple]


def load(name):
    """The module of a program."""
    if name not in NAMES:
        raise ValueError(f"no program {name!r}; there are {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{name}")


def summary(name):
    """What a program is, in one line: the first of its docstring. It is not imported for that."""
    source = pathlib.Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).splitlines()[0]


def chosen(text):
    """The names in a comma-separated list of programs and groups, each once."""
    words = filter(None, map(str.strip, text.split(",")))
    names = [name for word in words for name in GROUPS.get(word, (word,))]
    for name in names:
        if name not in NAMES:
            raise ValueError(f"no program or group {name!r}; groups: {', '.join(GROUPS)}; programs: {', '.join(NAMES)}")
    return tuple(dict.fromkeys(names))
