"""Functions that TensorFlow's runtime keeps by name: they are removed when what made them is gone and no graph is in flight."""

import weakref

from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.tf.private import runtime_functions

_left = []  # names of functions whose owner is gone


class Registered:
    """The functions of one owner."""

    def __init__(self, owner):
        self.names = []
        weakref.finalize(owner, _left.extend, self.names).atexit = False

    def add(self, fdef):
        runtime_functions.add_function(fdef)
        self.names.append(fdef.signature.name)

    def hold(self, library):
        """Keep the program's functions {name: FunctionDef}, which may be gone now or later: graphs call them, and steps that are replayed."""
        for name, fdef in library.items():
            if name not in self.names:
                self.add(fdef)

    def remove(self, fdefs):
        for fdef in fdefs:
            self.names.remove(fdef.signature.name)
            runtime_functions.remove_function(fdef.signature.name)

    def remove_all(self):
        while self.names:
            runtime_functions.remove_function(self.names.pop())


def remove_left():
    """Remove the functions of owners that are gone, unless a graph may still run."""
    while _left and not GRAPH_RUNNER.flights:
        runtime_functions.remove_function(_left.pop())
