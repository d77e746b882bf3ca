"""What the tests of the transform share.

`check(f, *args)` runs a function both ways and compares results, exceptions and their lines. Functions that call `op()`
log the executed location; the log is what `located` returns.
"""

import sys
import traceback
import types

from terra.location.location import OUTSIDE, ROOT, begin_step, end_step, tls
from terra.transform import instrument, is_instrumented, reason

LOG = []


def op(value=None):
    """Stands for a DL operation. No call in here, so that it is not instrumented itself."""
    global LOG
    LOG += [tls.current]
    return value


def located(function, *args, **kwargs):
    """Runs the instrumented function as a step; the locations of its ops."""
    LOG.clear()
    saved = begin_step()
    try:
        instrument(function)(*args, **kwargs)
    finally:
        current = tls.current
        end_step(saved)
    assert current is ROOT
    return list(LOG)


def outcome(function, args):
    try:
        result = function(*args)
        if isinstance(result, types.GeneratorType):
            result = list(result)
        return "returned", result
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        test = sys._getframe(2).f_code.co_filename
        here = [(f.name, f.lineno) for f in frames if f.filename == test]
        library = [f.filename for f in frames if "terra" in f.filename.replace(__file__, "").split("/")[-2:]]
        return "raised", type(error), str(error), here, library


def check(function, *args):
    form = instrument(function)
    assert is_instrumented(form), reason(function)
    expected = outcome(function, args)
    for _ in range(2):
        got = outcome(form, args)
        assert got == expected, (got, expected)
        assert tls.current is OUTSIDE
        saved = begin_step()
        got = outcome(form, args)
        assert got == expected, (got, expected)
        assert tls.current is ROOT
        end_step(saved)
    return expected[1]
