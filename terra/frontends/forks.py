"""Forked processes: a child has none of the threads that run graphs, so its steps run imperatively.

Before the process forks, whatever is in flight ends, so that values and variables are in the child what they are in the parent; a step that forks falls
back, so that both go on eagerly.
"""

import logging
import os
from threading import get_ident

from terra.location import current_step
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import has_done, GRAPH_RUNNER
from terra.runtime.execution.process.cross_thread import leave_graph, running_step
from terra.runtime.interpreter import spans
from terra.runtime.tapes import lazy_tape
from terra.tf import helper_threads
from terra.tf import private_names as tfi

log = logging.getLogger("terra")

_left_behind = []  # of the parent's, in a child: deleting an executor would wait for a thread that is not there


def _before():
    """The process forks: let no work of Terra's be under way. An error of a step in flight stays where it is, for the parent to raise."""
    leave_graph("the process forks")
    helper_threads.join_all()
    if all([has_done(flight.outputs) for flight in list(GRAPH_RUNNER.flights) if flight.outputs is not None]):
        GRAPH_RUNNER.rest()


def _in_child():
    helper_threads.forget_all()
    spans.forget()
    if not tfi.has_started():
        return
    interception.leave_all_alone()
    step = running_step()
    if step is not None and step.thread == get_ident():
        lazy_tape.record_elsewhere()
        step.pause()  # for good: the rest of it is no operation of the step's
    else:
        current_step.active = None
    _left_behind.append(GRAPH_RUNNER.forked())
    log.info("this process was forked, which TensorFlow's threads do not survive: steps run imperatively in it")


os.register_at_fork(before=_before, after_in_child=_in_child)
