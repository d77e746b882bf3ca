"""A corpus of small step functions, each named by the feature it shows.

A program is a *builder*: every call of it makes fresh state (models, variables, Python objects) and returns a
`Program`.  The harness builds each program twice from the same seeds, runs one copy eagerly and one co-executed, and
compares everything that a user could see.  Builders are plain user code: nothing in them knows of Terra.
"""
from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any, Callable

PROGRAMS: dict[str, "Spec"] = {}


class Args:
    """The arguments of one call, where keywords are wanted (a bare tuple means positional arguments only)."""

    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


@dataclass
class Program:
    """One fresh instance of a program.

    step     the function to co-execute
    inputs   argument tuples, used in turn (call i gets inputs[i % len]); or a function i -> arguments
    state    what is compared after the steps: variables, Python objects, anything the step may have changed
    between  caller's code after each step, `between(i, args, result)`; it must not read tensors
    use      pure caller's code, `use(result)`: run after each step (mode now) or after the last one (mode late)
    period   how many input sets a function `inputs` goes through
    """
    step: Callable
    inputs: Any
    state: Callable[[], Any] = lambda: None
    between: Callable | None = None
    use: Callable | None = None
    period: int = 0

    def arguments(self, i: int) -> Args:
        given = self.inputs(i) if callable(self.inputs) else self.inputs[i % len(self.inputs)]
        return given if isinstance(given, Args) else Args(*given)

    def input_set(self, i: int) -> int:
        return i % (self.period or (2 if callable(self.inputs) else len(self.inputs)))


@dataclass
class Spec:
    """A registered program: how to build it and what is expected of its runs.

    exact          results equal bit by bit; otherwise within rtol/atol
    calls          number of steps
    min_coexecuted co-executed calls wanted of each input set (sets that raise are exempt); 0 only where no step
                   can be co-executed, for a reason that the program states
    max_fallbacks  more fallbacks than this are a failure
    raises         some calls raise, on purpose
    options        further keywords of `terra.coexecute`
    """
    name: str
    module: str
    build: Callable[[], Program] = field(repr=False)
    exact: bool = True
    rtol: float = 1e-5
    atol: float = 1e-6
    calls: int = 10
    min_coexecuted: int = 2
    max_fallbacks: int = 3
    raises: bool = False
    options: dict = field(default_factory=dict)
    modes: tuple = ("now", "late", "early")


def program(name: str, **expectations):
    """Register the decorated builder under `name`."""

    def register(build):
        if name in PROGRAMS:
            raise ValueError(f"two programs are called {name!r}")
        PROGRAMS[name] = Spec(name, build.__module__.rpartition(".")[2], build, **expectations)
        return build

    return register


def load() -> dict[str, Spec]:
    """Import every module of the corpus and return the programs by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return PROGRAMS
