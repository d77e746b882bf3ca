"""Threads that make graphs are kept for the next one, unless they have failed."""

import threading

import pytest

from terra.tf.helper_threads import Task


def test_threads_that_make_graphs_are_kept():
    seen = []
    for _ in range(3):
        task = Task(lambda: seen.append(threading.current_thread()))
        task.join()
        assert not task.runs
    assert len(set(seen)) == 1 and seen[0].daemon

    release = threading.Event()
    slow, quick = Task(release.wait), Task(lambda: seen.append(threading.current_thread()))
    quick.join()  # on another one
    assert slow.runs and len(set(seen)) <= 2
    release.set()
    slow.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_is_not_kept():
    seen = []

    def fail():
        seen.append(threading.current_thread())
        raise ValueError

    task = Task(fail)
    task.join()
    seen[0].join(10)
    after = Task(lambda: seen.append(threading.current_thread()))
    after.join()
    assert seen[1] is not seen[0] and not seen[0].is_alive()
