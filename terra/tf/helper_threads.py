"""Threads that make and compile graphs. They are kept for the next work: TensorFlow looks up the kernels of each type of operation anew in every
thread, some 15 ms for a graph."""

import queue
import threading

_idle = []  # the queues of threads without work
_tasks = set()  # that are not done


class Task:
    """A call of `function` in a helper thread, which begins at once."""

    def __init__(self, function):
        self._function = function
        self._done = threading.Event()
        _tasks.add(self)
        try:
            queued = _idle.pop()
        except IndexError:
            queued = queue.SimpleQueue()
            threading.Thread(target=_work, args=(queued,), name="terra-helper", daemon=True).start()  # a daemon: the interpreter must not wait for XLA when it ends
        queued.put(self)

    @property
    def runs(self):
        return not self._done.is_set()

    def join(self):
        self._done.wait()

    def run(self):
        self._function()

    def end(self):
        self._function = None
        _tasks.discard(self)
        self._done.set()


def _work(queued):
    while True:
        task = queued.get()
        try:
            task.run()
            _idle.append(queued)  # not after an error, which ends the thread
        finally:
            task.end()
        del task


def join_all():
    """Wait until all tasks are done."""
    for task in list(_tasks):
        task.join()


def forget_all():
    """Forget the threads: this is a forked process, which has none of them."""
    _idle.clear()
    for task in list(_tasks):
        task.end()
