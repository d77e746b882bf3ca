"""What is instrumented and what is not; printing, pickling, no source, no TensorFlow."""

import contextlib
import functools
import inspect
import linecache
import logging
import pickle


from terra import transform
from terra.location.location import begin_step, end_step
from terra.transform import convert, instrument, is_instrumented, reason, to_code
from tests.transform.checks import LOG, check, located, op


def test_library_code_is_left_alone():
    assert instrument(len) is len
    assert reason(len) == "is not a Python function"

    def f():
        return functools.reduce(lambda a, b: op(a + b), [1, 2, 3]), textwrap_dedent(" x")

    from textwrap import dedent as textwrap_dedent

    check(f)
    assert not any(c.__code__ is textwrap_dedent.__code__ for c in [instrument(f)])


def test_no_source_no_problem(caplog):
    space = {"op": op}
    exec("def f(x):\n    return [op(i) for i in range(x)]", space)
    f = space["f"]
    with caplog.at_level(logging.DEBUG, logger="terra"):
        assert instrument(f) is f
    assert "no source" in caplog.text and "no source" in reason(f)
    assert "not instrumented" in to_code(f)

    def g():
        return f(2)

    assert check(g) == [0, 1]


def test_configure_by_prefix():
    source = "def lib(x):\n    return op(x) + op(x)\n"
    name = "/nowhere/site-packages/somelib/core.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"op": op, "__name__": "somelib.core"}
    exec(compile(source, name, "exec"), space)
    lib = space["lib"]

    def f():
        return lib(1)

    assert [len(p.call_ids) for p in located(f)] == [1, 1]
    try:
        transform.configure(include=["somelib"])
        assert [len(p.call_ids) for p in located(f)] == [2, 2]
        transform.configure(exclude="somelib.core")
        assert [len(p.call_ids) for p in located(f)] == [1, 1]
    finally:
        transform.policy.settings.prefixes.pop("somelib", None)
        transform.policy.settings.prefixes.pop("somelib.core", None)
        transform.configure()


def test_a_librarys_function_that_is_asked_for():
    """Functions that one wrapper of a library's makes share their code: what was asked for says nothing about the others."""
    @contextlib.contextmanager
    def around():
        op("before")
        yield
        op("after")

    @contextlib.contextmanager
    def asked_for():
        op("in it")
        yield

    def f():
        with around(), asked_for():
            pass

    assert around.__code__ is asked_for.__code__
    before = located(f)
    assert [len(p.call_ids) for p in before] == [1, 1, 1]  # the calls of `op`
    assert instrument(asked_for) is not asked_for
    assert [p.call_ids for p in located(f)] == [p.call_ids for p in before]
    for function in (around, asked_for):  # as library code is: without call sites
        assert convert._observable_factory(function, True).plain


def test_partial_and_callable_objects():
    def add(a, b):
        return op(a) + op(b)

    def f():
        return functools.partial(add, 1)(2), Doubling()(4)

    check(f)
    assert [len(p.call_ids) for p in located(f)][:2] == [2, 2]
    assert instrument(functools.partial(add, 1))(2) == 3


class Doubling:
    def __call__(self, x):
        return op(x) + op(x)


def two_sites(x):
    a = op(x)
    b = op(a)
    return b


def make_library_layer():
    """A class that looks like a library's: its __call__ calls self.call."""
    source = "class Layer:\n    def __call__(self, x):\n        return self.call(x)\n    def call(self, x):\n        pass\n"
    name = "/nowhere/site-packages/layers/__init__.py"
    space = {"__name__": "layers"}
    exec(compile(source, name, "exec"), space)
    return space["Layer"]


def test_overrides_that_only_the_library_calls():
    Layer = make_library_layer()

    class Mine(Layer):
        def call(self, x):
            return [op(i) for i in range(x)]

    original = Mine.call
    layer = Mine()

    def f():
        return layer(2)

    assert check(f) == [0, 1]
    assert [p.loop_ids[-1][1] for p in located(f)] == [1, 2]
    assert Mine.call is not original and is_instrumented(Mine.call)
    assert inspect.signature(Mine.call) == inspect.signature(original)
    transform.restore_classes()
    assert Mine.call is original
    transform.configure(patch_overrides=False)
    try:
        check(f)
        assert Mine.call is original
    finally:
        transform.configure(patch_overrides=True)


def test_instances_and_functions_are_not_kept_alive():
    import gc
    import weakref

    class Model:
        def __call__(self, x):
            return op(x)

    def f():
        model = Model()
        inner = lambda: op(model)  # noqa: E731
        model(1), inner()
        return weakref.ref(model)

    saved = begin_step()
    dead = instrument(f)()
    end_step(saved)
    LOG.clear()
    gc.collect()
    assert dead() is None


def test_pickle_and_to_code():
    form = instrument(two_sites)
    # the form is pickled by reference, as any function: what unpickles is the user's own
    with contextlib.suppress(pickle.PicklingError):
        assert pickle.loads(pickle.dumps(form)) is two_sites
    text = to_code(two_sites)
    assert text == to_code(form)
    assert "enter(" in text and "import tls as _terra_tls" in text
    space = {"op": op}
    exec(compile(text, "printed", "exec"), space)
    assert space["two_sites"](3) == 3


def test_names_do_not_collide():
    def f(_terra_cursor):
        _terra_here = op(_terra_cursor)
        return _terra_here

    assert check(f, 3) == 3
