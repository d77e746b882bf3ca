"""Garbage collection while a step runs."""

import gc

from terra.runtime.tracing.tracer import Tracer

RARELY = 200_000  # new objects between two garbage collections in a step


def collect_rarely(step):
    """Garbage is hardly collected during the step, if at all: finalizers, which may use TensorFlow, would run in the middle of Terra's own work.

    Steps that are traced, or run in segments, make many objects and hardly any garbage: looking for some would take as long as the work itself.
    """
    step.collects = before = gc.get_threshold()
    rarely = 0 if type(step.mode) is Tracer or step.in_pieces else RARELY
    if 0 < before[0] < RARELY:
        step.collects_now = (rarely, *before[1:])
        gc.set_threshold(*step.collects_now)


def collect_as_before(step):
    """Garbage is collected as before the step, unless the program has set something else in it."""
    if gc.get_threshold() == step.collects_now:
        gc.set_threshold(*step.collects)
