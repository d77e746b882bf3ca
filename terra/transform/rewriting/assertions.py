"""Does what pytest does to the assertions of a test file before Python compiles it: a failed one tells the values that it was made of.

An instrumented form is made from the file, so the same has to be done to its tree. All that Terra knows of pytest is here, and pytest is not imported.
"""

import functools
import sys

__all__ = ["rewriting"]


def rewriting(module_globals):
    """A function that changes the syntax tree of a module as pytest has changed it before it was compiled, in place, given also its text; None if it
    has not."""
    pytests = sys.modules.get("_pytest.assertion.rewrite")
    loader = (module_globals or {}).get("__loader__")
    if pytests is None or loader is None or not isinstance(loader, pytests.AssertionRewritingHook):
        return None
    return functools.partial(_rewrite, pytests.rewrite_asserts, loader.config)


def _rewrite(rewrite_asserts, config, tree, text, filename):
    rewrite_asserts(tree, text.encode(), filename, config)
