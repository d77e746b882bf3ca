"""The step that runs now, of which the process has one at a time. Imports nothing of Terra, so that every room can ask."""

import threading

active = None  # the step that runs or is still open, or what stands for it on other threads; set by whoever begins and ends steps, while holding `lock`
lock = threading.RLock()


class _LeftAlone(threading.local):
    depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *exc):
        self.depth -= 1


left_alone = _LeftAlone()  # `with left_alone:` no step begins on this thread: it runs one that is left to eager execution


class _Everywhere:
    """In the place of `left_alone` while steps of all threads are left alone."""

    depth = 1

    def __enter__(self):
        pass

    def __exit__(self, *exc):
        pass


_of_threads, _everywhere = left_alone, _Everywhere()


def leave_steps_alone(all_of_them):
    """Whether no step is to begin on any thread, from now on. (What has entered the one leaves the same.)"""
    global left_alone
    left_alone = _everywhere if all_of_them else _of_threads


def all_are_left_alone():
    """Whether the steps of all threads are left alone because the program has said so."""
    return left_alone is _everywhere


def leave_all_alone():
    """Let no step begin on any thread from now on: this is a forked process, and another thread of the parent's may have held the lock."""
    global lock
    _LeftAlone.depth = 1
    _of_threads.depth += 1
    if not lock._is_owned():
        lock = threading.RLock()
