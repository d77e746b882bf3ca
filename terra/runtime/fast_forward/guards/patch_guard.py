"""Whether functions of the framework's modules, or methods of its classes, were replaced."""

import sys

from terra.frameworks import keras
from terra.runtime.fast_forward.guards.container_guard import ContainerGuard
from terra.tf import private_names as tfi
from terra.tf import versions


class _PatchGuard:
    """The functions of the framework's modules, and the methods of its classes, that its code calls by name: looked at once a step."""

    def __init__(self):
        self._spaces = {}  # id -> module or class
        self._held = ContainerGuard()
        self._n_modules = 0  # that were imported when they were looked for
        self.version = 0  # counts the times when something was replaced
        for space in (tfi.tf.nn, tfi.tf.math, tfi.EagerTensorBase, tfi.tf.Tensor, tfi.tf.Variable, tfi.ResourceVariable, tfi.tf.GradientTape,
                      tfi.tf.random.Generator, tfi.tf.RaggedTensor, tfi.tf.SparseTensor, tfi.tf.IndexedSlices):
            self.watch(space)

    def watch(self, space):
        """Look at the module or class `space`, too."""
        if id(space) not in self._spaces:
            self._spaces[id(space)] = space
            self._held.add(vars(space), space)

    def look(self):
        """The version they have now."""
        if len(sys.modules) != self._n_modules:
            self._n_modules = len(sys.modules)
            # Those of TensorFlow hold thousands of names: looked at where a number tells whether one has changed, as on Python up to 3.12.
            for name in keras.OF_FUNCTIONS + (tfi.MODULES_OF_OPERATIONS if versions.address_of_version({}) is not None else ()):
                if name in sys.modules:
                    self.watch(sys.modules[name])
        if not self._held.holds():
            self.version += 1
            self._held = ContainerGuard()
            for space in self._spaces.values():
                self._held.add(vars(space), space)
        return self.version


modules = _PatchGuard()
