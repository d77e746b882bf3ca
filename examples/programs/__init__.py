"""The programs that the benchmark runs, one module each, written as a user writes them.

A program is a module with one function, `build(seed)`, that returns a new `Job`: model, data and an ordinary eager
training step that shares nothing with the job of an earlier call and is equal to it in every number. What programs have
in common is in `data`, `layers` and `training`. To add a program, write the module and add its name to `NAMES`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence

NAMES = (
    "keras_mlp",
    "keras_cnn",
    "keras_lstm",
    "transformer_block",
    "hand_written_variables",
    "keras_subclass_nested",
    "lstm_cell_python_loop",
    "digits_sklearn_metric",
)


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
    """What a program is, in one line: the first of its docstring."""
    return load(name).__doc__.splitlines()[0]
