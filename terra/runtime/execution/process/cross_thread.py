"""A step of which another thread reads a tensor while it runs.

The step's own thread takes no lock: nobody else is about, as a rule. So the reading thread waits until that thread is in the program's code, not Terra's,
and from then on each operation of the step holds the step's lock, and no call is skipped.
"""

import sys
import time
from threading import get_ident

from terra.location import current_step
from terra.runtime.execution.process import signal_handlers

PAUSE = 0.00005  # seconds between two looks
PATIENCE = 1.0  # seconds, then the step's thread is taken to wait for this one, in code that Terra called


class View:
    """Stands in the place of a step that other threads may change: the hooks see this instead."""

    open_ended = in_block = False
    enters = None

    def __init__(self, step):
        self.step = step
        self.thread = step.thread
        self.mode = self

    @property
    def paused(self):
        return self.step.paused

    @property
    def skeleton(self):
        return self.step.mode

    def skipping(self):
        return None

    def takes_tensors(self):
        return False

    def note_indices(self, x):
        pass


class Shared(View):
    """The view of a step of which another thread reads a tensor."""

    def pause(self):
        self.step.pause()

    def resume(self):
        self.step.resume()

    def before_outside_access(self, *args):
        with self.step.lock:
            self.step.before_outside_access(*args)

    def fast(self, *args):
        with self.step.lock:
            return self.step.mode.fast(*args)

    def slow(self, *args):
        with self.step.lock:
            return self.step.mode.slow(*args)


def running_step():
    """Returns the step that runs, or is still open, on whatever thread; None if there is none."""
    active = current_step.active
    return active.step if isinstance(active, View) else active


def leave_graph(reason):
    """Makes the step that runs on the calling thread fall back, or end if it is only open still: what follows must not need a graph. Returns the step
    that goes on, or None."""
    step = running_step()
    if step is None or step.thread != get_ident():
        return None
    if step.open_ended:
        step.close()
        return None
    if step.crossing:
        return None
    step.leave_graph(reason)
    return step


class Visit:
    """`with Visit(step):` the calling thread may look into the step, and change it, as the step's own thread may at any time."""

    __slots__ = ("step",)

    def __init__(self, step):
        self.step = step

    def __enter__(self):
        step, lock = self.step, self.step.lock
        if get_ident() == step.thread:
            lock.acquire()
            return
        end = time.perf_counter() + PATIENCE
        while True:
            lock.acquire()
            if current_step.active is step:
                current_step.active = Shared(step)
            frame = sys._current_frames().get(step.thread)
            waits = step.paused and not step.crossing  # for an imperative operation, which may be what reads
            if frame is None or step.mode is None or waits or not signal_handlers.is_ours(frame) or time.perf_counter() > end:
                return
            del frame
            lock.release()
            time.sleep(PAUSE)

    def __exit__(self, *exc):
        self.step.lock.release()
