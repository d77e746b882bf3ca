"""Quiet TensorFlow, a watchdog that turns a deadlock into a stack dump, and the choice of variants.

The suite is to take less than 20 minutes on two cores. So of tests with three variants or more, a share runs (`SHARES`),
always the same; which ones, is another choice for each test of a file, so that all kinds of variants come in one test
or another. A test for both versions of Keras takes one of them. Of random examples, a third is tried
(`variants.examples`).

TERRA_TESTS=all runs all variants and examples; asking for a test by its name, or with -k, runs all its variants. Tests
that are marked `all_variants` are what the others build on; of those that are marked `one_variant`, the first variant
stands for the others; of those that are marked `share(n)`, one of n runs.
"""
import collections
import faulthandler
import gc
import math
import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow chooses by the processor: without it, some kernels are missing, and others are replaced differently

import pytest  # noqa: E402

from tests import variants  # noqa: E402

SOFT_LIMIT = int(os.environ.get("TERRA_TEST_TIMEOUT", "100000" if "TERRA_RANDOM_PROGRAMS" in os.environ else "110"))   # seconds: dump the stacks, fail the test
HARD_LIMIT = SOFT_LIMIT + 20                                     # a call that never returns: dump and end the process

# Of so many variants of a test, one of so many runs.
SHARES = ((12, 8), (6, 5), (3, 3))

# Files that take longest, the first of them first.
LONGEST = (
    "test_papers_programs", "test_corpus", "test_examples", "test_scripts", "test_keras_train_steps", "test_vectorized_map", "test_cli", "test_autograph_features",
    "test_calls_in_blocks", "test_script_loops", "test_keras_fit", "test_random_programs", "test_masks", "test_distributions", "test_varying_loops", "test_finalizers", "test_scaling")

_stderr = None
_file = None  # of the last test


def pytest_configure(config):
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")   # the real stream: captured output is lost when the process ends
    config.addinivalue_line("markers", "all_variants: not only a share of them runs, see conftest.py")
    config.addinivalue_line("markers", "one_variant: the first one alone runs, see conftest.py")
    config.addinivalue_line("markers", "share(n): one of n of them runs, see conftest.py")


def pytest_collection_modifyitems(config, items):
    order = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    if not variants.ALL and not config.option.keyword and not any("::" in argument for argument in config.args):
        functions, left_out, seen = {}, set(), set()
        for item in items:
            if item.get_closest_marker("one_variant"):
                if (item.path, item.originalname) in seen:
                    left_out.add(item)
                seen.add((item.path, item.originalname))
            elif item.get_closest_marker("parametrize") and not item.get_closest_marker("all_variants"):
                functions.setdefault((item.path, item.originalname), []).append(item)
        turns = collections.Counter()  # of files: which variant is next
        for (path, _), found in functions.items():
            if _are_both_keras(found):
                left_out.add(found[turns[path] % 2])
                turns[path] += 1
            else:
                behind = _behind_the_share(found, turns[path])
                turns[path] += bool(behind)
                left_out.update(behind)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _are_both_keras(found):
    """Returns whether these are two variants of a test, for Keras 3 and tf_keras."""
    names = [getattr(value, "__name__", None) for item in found for value in item.callspec.params.values()]
    return len(found) == 2 and sorted(map(str, names)) == ["keras", "tf_keras"]


def _behind_the_share(found, turn):
    """Lists the variants of one test that are not in the share that runs; `turn` says which of the shares that is."""
    marker = found[0].get_closest_marker("share")
    share = marker.args[0] if marker else next((share for fewest, share in SHARES if len(found) >= fewest), None)
    if share is None:
        return []
    marks = list(found[0].iter_markers("parametrize"))
    if len(marks) == 1:
        return [item for k, item in enumerate(found) if not _is_its_turn((k - turn) % len(found), share)]
    lengths = [len(mark.args[1]) for mark in marks]
    if not marker and max(lengths) * share <= len(found) and len(found) == math.prod(lengths):  # each value of each list comes once, or more often: that is enough
        chosen = {found[sum((k + turn * (j == 0)) % n * math.prod(lengths[:j]) for j, n in enumerate(lengths))] for k in range(max(lengths))}
    else:
        chosen = {item for k, item in enumerate(found) if (k // lengths[-1] + k % lengths[-1] - turn) % share == 0}  # in each row and column of the table
    return [item for item in found if item not in (chosen or found[:1])]


def _is_its_turn(k, share):
    """Returns whether the k-th variant of a list runs: one of each `share` does.

    The sum of the digits of k decides (for two: the sequence of Thue and Morse), so that the choice has no period.
    """
    digits = 0
    while k:
        k, digit = divmod(k, share)
        digits += digit
    return digits % share == 0


def pytest_unconfigure(config):
    if _stderr is not None:
        _stderr.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    global _file
    if item.path != _file:
        _file = item.path
        gc.collect()
        gc.freeze()  # else garbage collection looks through all that TensorFlow, Keras and the tests before hold, 0.2 s and more each time
    faulthandler.dump_traceback_later(HARD_LIMIT, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def too_long(signum, frame):
        faulthandler.dump_traceback(file=_stderr, all_threads=True)
        pytest.fail(f"took longer than {SOFT_LIMIT} s (stacks are on standard error)", pytrace=False)

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SOFT_LIMIT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def uncut(monkeypatch):
    """Steps keep their last statements, whatever these do."""
    from terra.runtime.step_function.tuning import tails

    monkeypatch.setattr(tails.Tails, "look_at", lambda *_: None)
