"""Runs one module of CPython's tests: ``python -m tests.cpython.child MODULE plain|instrumented RESULT``.

The result is a JSON file: ``tests`` (id -> "ok", "skip", "expected" or the text of the failure) and ``functions``
(how many functions were instrumented, and why others were not).
"""

import collections
import doctest
import importlib
import json
import os
import sys
import tempfile
import types
import unittest

from terra import transform
from terra.location.location import ROOT, Cursor, begin_step, end_step, tls
from terra.transform import convert


class Result(unittest.TestResult):
    """Notes each test's verdict; every test is a step when `as_step` is set."""

    as_step = False

    def __init__(self):
        super().__init__()
        self.verdicts = {}

    def startTest(self, test):
        super().startTest(test)
        self.verdicts[test.id()] = "ok"
        self.recursion_limit = sys.getrecursionlimit()
        if self.as_step:
            self.saved = begin_step()

    def stopTest(self, test):
        if self.as_step:
            if tls.current is not ROOT:
                self._note(test, f"left the location at {tls.current!r}")
            end_step(self.saved)
        super().stopTest(test)

    def _note(self, test, verdict):
        self.verdicts[test.id()] = verdict

    def addError(self, test, err):
        sys.setrecursionlimit(self.recursion_limit)  # a test that lowers it and fails may not have put it back
        self._note(test, self._exc_info_to_string(err, test))

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._note(test, f"{subtest}: " + self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self._note(test, "skip")

    def addExpectedFailure(self, test, err):
        self._note(test, "expected")

    def addUnexpectedSuccess(self, test):
        self._note(test, "unexpected success")


# --- instrumenting a module ---


def _form(value):
    """The instrumented form of what a class or module holds."""
    if isinstance(value, (types.FunctionType, staticmethod, classmethod)):
        return transform.instrument(value)
    if type(value) is property:
        parts = [transform.instrument(f) if isinstance(f, types.FunctionType) else f
                 for f in (value.fget, value.fset, value.fdel)]
        return value if parts == [value.fget, value.fset, value.fdel] else property(*parts, value.__doc__)
    return value


def instrument_names(owner, module, seen):
    """Replaces functions, and methods of classes, that were defined in `module`."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, type):
            if value.__module__ == module and value not in seen:
                seen.append(value)
                instrument_names(value, module, seen)
            continue
        if isinstance(value, types.FunctionType) and value.__module__ != module:
            continue
        form = _form(value)
        if form is not value:
            try:
                setattr(owner, name, form)
            except (AttributeError, TypeError):
                pass


def instrument_doctests():
    """Functions that the examples of a doctest define are instrumented as soon as they exist."""

    def execute(code, globs):
        before = dict(globs)
        try:
            exec(code, globs)
        finally:
            for name, value in list(globs.items()):
                if isinstance(value, types.FunctionType) and before.get(name) is not value:
                    if value.__code__.co_filename == code.co_filename:
                        globs[name] = transform.instrument(value)

    doctest.exec = execute  # the module's global goes before the builtin


def tests_of(module):
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    if not hasattr(module, "load_tests") and hasattr(module, "__test__"):  # before Python 3.11 `test_main` added them
        suite.addTest(doctest.DocTestSuite(module))
    return suite


def plant_defect():
    """Every call site loses its value: what `test_cpython_suites` uses to see that a defect shows."""
    Cursor.leave = lambda self, value, call_id: None


def main(name, mode, path):
    os.chdir(tempfile.mkdtemp())
    module = importlib.import_module("test." + name)
    modules = [module]
    if hasattr(module, "__path__"):  # a package: load_tests imports the rest
        modules += [importlib.import_module(f"test.{name}.{f[:-3]}") for f in sorted(os.listdir(module.__path__[0]))
                    if f.startswith("test_") and f.endswith(".py")]
    if os.environ.get("TERRA_TEST_DEFECT"):
        plant_defect()
    if mode == "instrumented":
        transform.configure(include=["test", "__main__"])
        for each in modules:
            instrument_names(each, each.__name__, [])
        instrument_doctests()
    result = Result()
    result.as_step = mode == "instrumented"
    tests_of(module).run(result)
    reasons = collections.Counter()
    instrumented = 0
    for decision in list(convert._decisions.values()):
        if decision.is_instrumented or decision.factory is not None:
            instrumented += 1
        elif decision.reason is not convert.LIBRARY:
            reasons[f"{decision.code.co_name}: {decision.reason}"] += 1
    with open(path, "w") as file:
        json.dump({"tests": result.verdicts, "functions": {"instrumented": instrumented, "not": reasons}}, file)


if __name__ == "__main__":
    path = os.path.abspath(sys.argv[3])
    main(sys.argv[1], sys.argv[2], path)
