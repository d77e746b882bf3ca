"""CPython's own tests, run through the transform: ``python -m tests.cpython`` (``--help`` says more).

The test modules that come with the running Python are imported; all functions and methods in them, and what they call
and define, are instrumented as a user's code is; and every test is run as a step. What counts is the difference from a
plain run of the same module in a fresh process: a test that passes there and not here must be listed in `expected`, with
the reason. A test that leaves the location elsewhere than at the step's root fails, whatever its own verdict.

===============  ==========================================================================
:mod:`.child`    one module, plain or instrumented, in a process of its own; no TensorFlow
:mod:`.suites`   which modules there are
:mod:`.expected` the tests that are allowed to fail, and why
:mod:`.compare`  both runs of a module, compared
===============  ==========================================================================
"""
