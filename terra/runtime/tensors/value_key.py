"""The name of a value inside a program."""


class ValueKey:
    """Identity of one value inside a program: an output of a node, or a value fed to it (negative output number)."""

    __slots__ = ("node", "out", "result")

    def __init__(self, node, out):
        self.node, self.out = node, out
        self.result = -1  # its index among the graph's outputs, if it outlives the step

    @property
    def device(self):
        return self.node.payload.event.device
