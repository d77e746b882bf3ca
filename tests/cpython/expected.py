"""Tests that pass plain and may fail instrumented, each with the reason. No others may."""

_LOCALS = "looks at a frame's or generator's own local names; one or two of ours (`_terra_...`) are among them"
_NAMES = "counts the names in the code object: ours are attribute names (`enter`, `leave`) that no scope binds"
_DEEP = "pins the stack depth at which the interpreter gives up, or what stands at its top: `Cursor.enter` is there too"

EXPECTED = {
    "test.test_exceptions.ExceptionTests.test_recursion_in_except_handler": _DEEP,
    "test.test_functools.TestLRUPy.test_pickle":
        "these tests' own doing: they replace the module's function by its instrumented form, the class keeps the other one",
    "test.test_descr.ClassPropertiesAndMethods.test_slots":
        "counts the collector's objects before and after: the nodes of the locations are new ones",
    "test.test_traceback.TestStack.test_format_locals": _LOCALS,
    "test.test_traceback.TestTracebackException.test_comparison_params_variations": _LOCALS,
    "test.test_traceback.TestTracebackException.test_print": _LOCALS,
    "test.test_traceback.TracebackFormatTests.test_recursive_traceback_cpython_internal": _DEEP,
    "test.test_traceback.TracebackFormatTests.test_recursive_traceback_python": _DEEP,
}
for _prefix in ("test.test_inspect.", "test.test_inspect.test_inspect."):  # a package from Python 3.13 on
    EXPECTED.update({
        _prefix + "TestGetClosureVars.test_generator_closure": _NAMES,
        _prefix + "TestGetClosureVars.test_method_closure": _NAMES,
        _prefix + "TestGetClosureVars.test_name_resolution": _NAMES,
        _prefix + "TestGetCoroutineState.test_getcoroutinelocals": _LOCALS,
        _prefix + "TestGetGeneratorState.test_getgeneratorlocals": _LOCALS,
        _prefix + "TestGetGeneratorState.test_getgeneratorlocals_empty": _LOCALS,
        _prefix + "TestInterpreterStack.test_frame": _LOCALS,
        _prefix + "TestSignatureBind.test_signature_bind_implicit_arg":
            "takes the second constant of a function's code for the code of its generator expression",
    })
