"""Steps that have TensorFlow run the program's Python on other threads: replicas of a distribution strategy, coordinators.

Those threads read and update variables at once, while the step's own updates wait for its graph. So a step that gets there falls back, and runs
imperatively from then on. The functions of TensorFlow's that begin or await such threads are wrapped: see `replacements.wrap_what_uses_threads`.
"""

import functools
from threading import get_ident

from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.process.cross_thread import leave_graph, running_step
from terra.tf import private_names as tfi
from terra.tf.private import replacements


def _wrap(name, original):
    """The function `original` of TensorFlow's, called `name` in messages, which the step at hand leaves the graph for."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        step = running_step()
        if tfi.executing_eagerly() and (GRAPH_RUNNER.flights if step is None else step.thread == get_ident()):
            left = leave_graph(f"{name} runs the program's code on other threads")
            if left is not None:
                left.function.policy.never(f"{name} runs code of the program's on other threads, which would not see what the step has updated")
            GRAPH_RUNNER.sync()
        return original(*args, **kwargs)

    return function


replacements.wrap_what_uses_threads(_wrap)
