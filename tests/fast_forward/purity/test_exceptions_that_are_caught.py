"""Exceptions that layers and steps catch, and look at: what these say follows from what they were made of."""

import json
import logging
import random
import traceback

import pytest

from tests import harness
from tests.fast_forward.purity.test_changes_in_layers import program

LOG = logging.getLogger("tests.exceptions")


class Refused(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


class Held:
    def __init__(self):
        self.steps, self.text, self.seen, self.known, self.items, self.random = 0, "", None, {}, [1, 2, 3], random.Random(5)
        self.numbers = iter([1, 2, 3] * 9)

    def look(self):
        return [self.steps, self.text, self.seen, self.known, self.items, next(self.numbers, None)]


def formats_one(h, x):
    try:
        int("12x")
    except ValueError as error:
        h.text = f"{type(error).__name__}: {error} {error.args}"
    return x


def looks_up_in_vain(h, x):
    h.steps += 1
    try:
        h.seen = {0: "a", 1: "b"}[h.steps % 3]
    except KeyError as error:
        h.text = repr(error)
    return x


def takes_out_in_vain(h, x):
    h.steps += 1
    if h.steps % 2:
        h.known["key"] = h.steps
    try:
        h.seen = h.known.pop("key")
    except KeyError as error:
        h.text = str(error)
    return x


def raises_its_own(h, x):
    try:
        raise Refused(3)
    except Refused as error:
        h.text = str(error)
        return x * (error.code / 3)


def raises_because_of_another(h, x):
    try:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        h.text = f"{error} <- {error.__cause__!r}"
    return x


def parses_in_vain(h, x):
    try:
        json.loads("{bad")
    except json.JSONDecodeError as error:
        h.text = f"{error.msg} at {error.pos}"
    return x


def logs_one(h, x):
    try:
        h.items[9]
    except IndexError as error:
        LOG.warning("failed: %s", error)
    return x


def takes_the_next(h, x):
    h.seen = next(h.numbers, -1)
    return x


def varies(h, x):
    try:
        raise ValueError(f"bad {h.random.random()}", h.random.random())
    except ValueError as error:
        h.text, h.seen = f"{error}", error.args[0]
    return x


def varies_with_a_count(h, x):
    h.steps += 1
    try:
        raise Refused(h.steps)
    except Refused as error:
        h.text, h.seen = str(error), error.code
    return x


def formats_the_traceback(h, x):
    try:
        1 / h.known.get("zero", 0)
    except ZeroDivisionError:
        h.text = traceback.format_exc()
    return x


def logs_the_traceback(h, x):
    try:
        1 / 0
    except ZeroDivisionError:
        LOG.exception("failed")
    return x


def keeps_one(h, x):
    try:
        raise ValueError("kept")
    except ValueError as error:
        h.seen = error
    h.seen = str(h.seen)
    return x


SKIPPED = [formats_one, looks_up_in_vain, takes_out_in_vain, raises_its_own, raises_because_of_another, parses_in_vain, logs_one, takes_the_next]
RUNNING = [varies, varies_with_a_count, formats_the_traceback, logs_the_traceback, keeps_one]


def lines(caplog):
    """Returns a program's output in its log, with the tracebacks."""
    formatter = logging.Formatter("%(levelname)s %(filename)s %(lineno)d %(message)s")
    return [formatter.format(record) for record in caplog.records if record.name == LOG.name]


@pytest.mark.all_variants
@pytest.mark.parametrize("body", SKIPPED)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_in_a_layer(body, verify, caplog):
    harness.compare_steps(program(body, held=Held), whole=12, express=0, n=50, verify=verify)
    found = lines(caplog)
    assert found[:len(found) // 2] == found[len(found) // 2:]


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [*SKIPPED, *RUNNING])
def test_in_a_step(body, caplog):
    harness.compare_steps(program(body, inside=False, held=Held), whole=0, express=0, n=50)
    found = lines(caplog)
    assert found[:len(found) // 2] == found[len(found) // 2:]


@pytest.mark.all_variants
@pytest.mark.parametrize("body", RUNNING)
def test_what_varies_or_looks_at_frames(body, caplog):
    step = harness.compare_steps(program(body, held=Held), whole=0, express=0, n=50)
    assert step.stats().coexecuted_steps > 40
    found = lines(caplog)
    assert found[:len(found) // 2] == found[len(found) // 2:]


@pytest.mark.parametrize("body", [takes_out_in_vain, formats_one])
def test_it_is_raised_no_more(body):
    """From then on, or again."""
    def change(h, k):
        if 20 < k < 40:
            h.known["key"] = k

    harness.compare_steps(program(body, held=Held, change=change), whole=12, express=0, n=70)
