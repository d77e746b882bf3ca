"""Runs a program of the corpus eagerly and co-executed, and compares all that a user could see.

Two ways of reading (a bug of run-ahead hides from the first), and two of starting:
  now    results, state and the caller's use of results are read after every step
  late   nothing is read until the last step is done; graphs run on one thread if they can, which otherwise only those do that have proved to be faster so
  early  as now, and graphs start with their steps, which otherwise only those do in which Python reads values, or which have proved to be faster so
"""
from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import corpus

EAGER_ONLY = os.environ.get("TERRA_CORPUS_EAGER") == "1"   # compare eager with eager: checks the programs themselves
MODES = ("now", "late", "early")


# --------------------------------------------------------------------------------------------------- snapshots

@dataclass
class Array:
    """The frozen value of something array-like; `kind` tells tensors from variables from numpy arrays."""
    kind: str
    value: np.ndarray


@dataclass
class Record:
    """The frozen fields of a structure that is neither a list, a tuple nor a dict."""
    kind: str
    fields: dict


def snapshot(x) -> Any:
    """A deep copy of `x` with all tensors and variables read. Unknown types are an error: nothing goes unseen."""
    if x is None or isinstance(x, (bool, int, float, complex, str, bytes, type, tf.DType)):
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return Array(f"numpy {type(x).__name__}", np.array(x))
    if isinstance(x, tf.Variable):
        return Array(f"variable {x.name}", np.array(x.numpy()))
    if isinstance(x, keras.Variable):
        return Array(f"keras variable {x.path}", np.array(x.numpy()))
    if isinstance(x, tf.Tensor):
        value = np.array(x.numpy())
        if x.dtype.as_numpy_dtype != value.dtype and x.dtype != tf.string or tuple(x.shape) != value.shape:
            raise TypeError(f"tensor says {x.dtype} {x.shape}, its value is {value.dtype} {value.shape}")
        return Array("tensor", value)
    if isinstance(x, tf.IndexedSlices):
        return Record("IndexedSlices", {"values": snapshot(x.values), "indices": snapshot(x.indices)})
    if isinstance(x, tf.RaggedTensor):
        return Record("RaggedTensor", {"values": snapshot(x.values), "row_splits": snapshot(x.row_splits)})
    if isinstance(x, tf.SparseTensor):
        return Record("SparseTensor", {"indices": snapshot(x.indices), "values": snapshot(x.values),
                                       "dense_shape": snapshot(x.dense_shape)})
    if isinstance(x, tf.TensorShape):
        return Record("TensorShape", {"dims": x.as_list()})
    if isinstance(x, BaseException):
        return Record(type(x).__name__, {"message": first_line(x)})
    if dataclasses.is_dataclass(x):
        return Record(type(x).__name__, {f.name: snapshot(getattr(x, f.name)) for f in dataclasses.fields(x)})
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return Record(type(x).__name__, {name: snapshot(getattr(x, name)) for name in x._fields})
    if isinstance(x, Mapping):
        return Record(type(x).__name__, {k: snapshot(v) for k, v in x.items()})
    if isinstance(x, (set, frozenset)):
        return Record(type(x).__name__, {i: snapshot(v) for i, v in enumerate(sorted(x))})
    if isinstance(x, (list, tuple)) or type(x).__name__ in ("deque", "ListWrapper"):
        return Record(type(x).__name__, dict(enumerate(map(snapshot, x))))
    raise TypeError(f"the harness cannot compare a {type(x)}")


def first_line(error) -> str:
    """First line of an exception's message, without the name that TensorFlow gives to the function around an op."""
    text = re.sub(r"\{\{function_node [^}]*\}\}\s*", "", str(error))
    return text.strip().split("\n")[0].strip()


def describe(error) -> Record:
    """Type, message and the lines of the user's own frames."""
    here = os.path.dirname(corpus.__file__)
    lines = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
             if os.path.dirname(frame.filename) == here]
    return Record("exception", {"type": type(error).__name__, "message": first_line(error), "lines": lines,
                                "cause": type(error.__cause__).__name__})


# ------------------------------------------------------------------------------------------------- running

@dataclass
class Call:
    """What one call of the step showed."""
    index: int
    input_set: int
    result: Any = None
    used: Any = None
    state: Any = None
    error: Record | None = None
    output: str = ""
    coexecuted: bool = False


@dataclass
class Run:
    calls: list[Call] = field(default_factory=list)
    state: Any = None
    stats: Any = None


class CapturedOutput:
    """Everything written to standard output, by Python and by TensorFlow's kernels, in order."""

    def __enter__(self):
        sys.stdout.flush()
        self.file = tempfile.TemporaryFile()
        self.saved_fd, self.saved_stdout, self.position = os.dup(1), sys.stdout, 0
        os.dup2(self.file.fileno(), 1)
        sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)
        return self

    def take(self) -> str:
        """What was written since the last call."""
        sys.stdout.flush()
        text = os.pread(self.file.fileno(), 1 << 20, self.position)
        self.position += len(text)
        return text.decode()

    def __exit__(self, *_):
        sys.stdout.flush()
        sys.stdout = self.saved_stdout
        os.dup2(self.saved_fd, 1)
        os.close(self.saved_fd)
        self.file.close()


def reset_seeds(seed=7):
    """Put every source of names and random numbers back to its start."""
    keras.backend.clear_session(free_memory=False)  # looking for garbage each time would be a fifth of the corpus's time
    if "tf_keras" in sys.modules:
        sys.modules["tf_keras"].backend.clear_session()
        sys.modules["tf_keras"].utils.set_random_seed(seed)
    keras.utils.set_random_seed(seed)
    tf.random.set_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


def eager(step):
    return step


def coexecuted(step, **options):
    """The wrapper under test; every step waits for a graph under construction, so that runs are repeatable."""
    import terra
    return terra.coexecute(step, wait_for_graph=True, **options)


def on_one_thread(step):
    """Have the graphs of a co-executed step run on one thread where they can, untried."""
    single = step.single_threaded
    single.wanted = True
    single.trial.second_is_better, single.trial.times = True, ([1.0], [1.0])
    return step


def started_early(step):
    """Have the graphs of a co-executed step start with it, untried."""
    step.single_threaded.trial.second_is_better, step.single_threaded.trial.times = False, ([1.0], [1.0])
    early = step.early_start
    early.wanted = True
    early.trial.second_is_better, early.trial.times = True, ([1.0], [1.0])
    return step


def run_eager(spec, mode) -> Run:
    return run(spec, mode, eager)


def run_terra(spec, mode, wrap=None) -> Run:
    """`wrap` replaces `terra.coexecute`, to try the oracle on wrappers with planted defects."""
    if wrap is None:
        def wrap(step):
            if EAGER_ONLY:
                return step
            made = coexecuted(step, **spec.options)
            return {"now": lambda made: made, "late": on_one_thread, "early": started_early}[mode](made)
    return run(spec, mode, wrap)


def run(spec, mode, wrap) -> Run:
    """Build the program anew, call its step `spec.calls` times, and keep what was seen."""
    reset_seeds()
    program = spec.build()
    step = wrap(program.step)
    stats = getattr(step, "stats", None)
    result, unread = Run(), []
    with CapturedOutput() as output:
        for i in range(spec.calls):
            call, before = Call(i, program.input_set(i)), stats().coexecuted_steps if stats else 0
            result.calls.append(call)
            arguments, value = program.arguments(i), None
            try:
                value = step(*arguments.args, **arguments.kwargs)
                if mode != "late":
                    call.result = snapshot(value)
            except Exception as error:
                if not spec.raises:
                    raise
                call.error = describe(error)
            call.output = output.take()
            call.coexecuted = bool(stats) and stats().coexecuted_steps > before
            if call.error is None:
                unread.append((call, value))
            if program.between:
                program.between(i, arguments.args, value)
            if mode != "late":
                call.state = snapshot(program.state())
                if program.use and call.error is None:
                    call.used = snapshot(program.use(value))
        if mode == "late":
            for call, value in unread:
                call.result = snapshot(value)
                call.used = snapshot(program.use(value)) if program.use else None
        result.state = snapshot(program.state())
    result.stats = stats() if stats else None
    return result


# ------------------------------------------------------------------------------------------------- comparing

def differences(expected, actual, spec, path=""):
    """Yield one sentence for each difference between two snapshots."""
    if type(expected) is not type(actual):
        yield f"{path}: expected {_short(expected)}, got {_short(actual)}"
    elif isinstance(expected, Array):
        yield from _array_differences(expected, actual, spec, path)
    elif isinstance(expected, Record):
        if expected.kind != actual.kind:
            yield f"{path}: expected a {expected.kind}, got a {actual.kind}"
        elif list(expected.fields) != list(actual.fields):
            yield f"{path}: expected the entries {list(expected.fields)}, got {list(actual.fields)}"
        else:
            for key, value in expected.fields.items():
                yield from differences(value, actual.fields[key], spec, f"{path}[{key!r}]")
    elif isinstance(expected, float):
        yield from _array_differences(Array("float", np.array(expected)), Array("float", np.array(actual)), spec, path)
    elif expected != actual:
        yield f"{path}: expected {_short(expected)}, got {_short(actual)}"


def _array_differences(expected, actual, spec, path):
    a, b = expected.value, actual.value
    if expected.kind != actual.kind:
        yield f"{path}: expected a {expected.kind}, got a {actual.kind}"
    elif a.dtype != b.dtype or a.shape != b.shape:
        yield f"{path}: expected {a.dtype}{list(a.shape)}, got {b.dtype}{list(b.shape)}"
    elif a.dtype == object or a.dtype.kind in "biuSU" or spec.exact:
        same = (a == b).all() if a.dtype == object else a.tobytes() == b.tobytes()
        if not same:
            yield f"{path}: {_disagreement(a, b)}"
    elif not np.allclose(a, b, spec.rtol, spec.atol, equal_nan=True):
        yield f"{path}: {_disagreement(a, b)}"


def _disagreement(a, b):
    wrong = ~(a == b)
    where = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
    text = f"{int(wrong.sum())} of {a.size} elements differ"
    text += f", first at {list(where)}: expected {a[where]!r}, got {b[where]!r}"
    if a.dtype.kind == "f":
        with np.errstate(all="ignore"):
            text += f"; largest difference {np.nanmax(np.abs(a - b)):.3g}"
    return text


def _short(x):
    text = repr(x)
    return text if len(text) < 200 else text[:200] + "..."


def compare(spec, expected: Run, actual: Run) -> list[str]:
    """All differences between two runs of one program, as sentences."""
    found = []
    for a, b in zip(expected.calls, actual.calls, strict=True):
        for part in ("error", "result", "output", "state", "used"):
            found += differences(getattr(a, part), getattr(b, part), spec,
                                 f"call {a.index} ({'co-executed' if b.coexecuted else 'imperative'}) {part}")
    found += differences(expected.state, actual.state, spec, "state at the end")
    return found


def assert_same(spec, expected: Run, actual: Run):
    """Fail, with the first few differences, unless both runs looked the same."""
    found = compare(spec, expected, actual)
    if found:
        more = f"\n  ... and {len(found) - 8} more" if len(found) > 8 else ""
        steps = "".join("C" if call.coexecuted else "." for call in actual.calls)
        raise AssertionError(f"{spec.module}/{spec.name} differs from eager (steps {steps}):\n  "
                             + "\n  ".join(found[:8]) + more)


def assert_coexecuted(spec, actual: Run):
    """Fail unless every input set was co-executed often enough, with no more fallbacks than expected."""
    if EAGER_ONLY:
        return
    stats = actual.stats
    steps = "".join("C" if call.coexecuted else "." for call in actual.calls)
    failed = {call.input_set for call in actual.calls if call.error is not None}
    for which in sorted({call.input_set for call in actual.calls} - failed):
        count = sum(call.coexecuted for call in actual.calls if call.input_set == which)
        if count < spec.min_coexecuted:
            raise AssertionError(f"{spec.name}: input set {which} was co-executed {count} times, "
                                 f"expected {spec.min_coexecuted} (steps {steps}; {stats})")
    if spec.min_coexecuted and (stats.coexecuted_steps == 0 or stats.graphs == 0):
        raise AssertionError(f"{spec.name}: no step was co-executed ({stats})")
    if stats.steps != spec.calls:
        raise AssertionError(f"{spec.name}: {spec.calls} calls were counted as {stats.steps} steps ({stats})")
    if stats.steps != stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps:
        raise AssertionError(f"{spec.name}: the kinds of steps do not add up ({stats})")
    if stats.fallbacks > spec.max_fallbacks:
        raise AssertionError(f"{spec.name}: {stats.fallbacks} fallbacks, expected up to {spec.max_fallbacks} ({stats})")


_eager_runs = {}  # (program, mode) -> its run, of the last program: its modes follow one another


def _eager_once(spec, mode):
    key = spec.module, spec.name, mode
    if key not in _eager_runs:
        if any(known[:2] != key[:2] for known in _eager_runs):
            _eager_runs.clear()
        _eager_runs[key] = run_eager(spec, mode)
    return _eager_runs[key]


def check(spec, mode):
    """The whole differential test of one program in one mode of reading."""
    expected = _eager_once(spec, "late" if mode == "late" else "now")
    raised = [call.error is not None for call in expected.calls]
    if any(raised) != spec.raises or all(raised):
        raise AssertionError(f"{spec.name}: the program itself should raise in {'some' if spec.raises else 'no'} calls")
    actual = run_terra(spec, mode)
    assert_same(spec, expected, actual)
    assert_coexecuted(spec, actual)
    if mode == "early" and not EAGER_ONLY:
        stats = actual.stats
        if not stats.pieces and stats.early_steps < stats.coexecuted_steps - spec.max_fallbacks:
            raise AssertionError(f"{spec.name}: only {stats.early_steps} of {stats.coexecuted_steps} graphs started with their step ({stats})")


def flat(value):
    """The parts of a result, tensors and variables as arrays."""
    return [x.numpy() if hasattr(x, "numpy") else x for x in tf.nest.flatten(value)]


@contextlib.contextmanager
def declared_pure(package):
    """While it lasts, a library counts as one that does nothing but compute, as `terra.transform.configure` has it."""
    import terra.transform
    settings = terra.transform.policy.settings
    pure, prefixes = set(settings.pure), dict(settings.prefixes)
    terra.transform.configure(pure=package)
    try:
        yield
    finally:
        settings.pure, settings.prefixes = pure, prefixes
        terra.transform.configure()


_known = {}  # key -> what a program has given eagerly, of the last program: tests that have it in common follow one another


def once(key, run_eagerly):
    """What `run_eagerly()` gives, which is the same in all tests that name this key; they differ in how the program is co-executed. None: in no other."""
    if key is None:
        return run_eagerly()
    if key not in _known:
        _known.clear()
        _known[key] = run_eagerly()
    return _known[key]


def differ(make, given, steps, equal=np.testing.assert_array_equal, change=None, key=None, **options):
    """Run `make()`, which gives (step, state), eagerly and co-executed on `given(i)`, after `change(i, step)`; returns the statistics.

    equal: asserts that two arrays are, given a message as `err_msg`. key: see `once`.
    """
    def run(coexecute):
        keras.utils.set_random_seed(5)
        step, state = make()
        if coexecute:
            step = coexecuted(step, **options)
        found = []
        for i in range(steps):
            if change is not None:
                change(i, step)
            found.append(flat(step(*given(i))))
        return [*found, flat(state())], step

    eager = once(key, lambda: run(False)[0])
    ours, step = run(True)
    for i, (expected, actual) in enumerate(zip(eager, ours, strict=True)):
        for a, b in zip(expected, actual, strict=True):
            assert type(a) is type(b), (i, type(a), type(b))
            equal(a, b, err_msg=str(i))
    return step.stats()


def check_skipped(step, n, whole, express, verify=False):
    """That most of n steps were co-executed, and at least so many of them skipped as a whole, and by the express way; or compared, with `verify`. Returns the step."""
    import terra

    stats = step.stats()
    assert stats.coexecuted_steps >= n // 2, (stats, terra.explain(step))
    if verify:  # what would be skipped is made, and compared
        assert stats.verified_calls > 0
    else:
        assert stats.whole_steps >= whole, terra.explain(step)
        assert stats.express_steps >= express, stats
    return step


def shown(x):
    """What can be compared of a result: values with their types, in lists, tuples and dicts."""
    if isinstance(x, dict):
        return {k: shown(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [shown(v) for v in x]
    if tf.is_tensor(x) or isinstance(x, (tf.Variable, np.ndarray)):
        x = np.asarray(x)
        return x.dtype.name, x.tolist()
    return type(x).__name__, repr(x)


def compare_steps(make, whole=10, express=4, n=30, seed=lambda k: None, **options):
    """Runs n steps eagerly and co-executed: all that they give, and raise, must be the same, and so many steps skipped as `check_skipped` has it.

    `make()` gives (a step, what calls it for step k, what is to be looked at in the end); `seed(k)` runs before step k.
    """
    import terra

    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True, **options)):
        tf.keras.utils.set_random_seed(3)
        step, call, look = make()
        step, seen = wrap(step), []
        for k in range(n):
            seed(k)
            try:
                seen.append(shown(call(step, k)))
            except (StopIteration, ValueError, TypeError, tf.errors.OpError) as error:
                seen.append((type(error).__name__, str(error).split("}}")[-1].split(" [Op:")[0]))
        results.append((seen, shown(look()), random.random(), np.random.rand()))
    assert results[1] == results[0], [(k, a, b) for k, (a, b) in enumerate(zip(results[1][0], results[0][0])) if a != b][:2] or [(a, b) for a, b in zip(results[1][1], results[0][1]) if a != b][:2]
    return check_skipped(step, n, whole, express, options.get("verify"))
