"""The modules of CPython's test suite that are about the language, or about libraries that lean on it."""

# What must be compared, and what else exercises syntax that the transform writes.
REQUIRED = ("test_generators", "test_exceptions", "test_contextlib", "test_grammar", "test_scope", "test_dataclasses",
            "test_functools", "test_patma", "test_with", "test_iter", "test_itertools", "test_unpack_ex",
            "test_named_expressions", "test_coroutines")
FURTHER = ("test_asyncgen", "test_contextlib_async", "test_except_star", "test_exception_group",
           "test_exception_variations", "test_raise", "test_listcomps", "test_setcomps", "test_dictcomps",
           "test_genexps", "test_fstring", "test_super", "test_property", "test_decorators", "test_keywordonlyarg",
           "test_positional_only_arg", "test_extcall", "test_pep646_syntax", "test_type_params", "test_type_aliases",
           "test_unpack", "test_augassign", "test_class", "test_descr", "test_enum", "test_collections", "test_typing",
           "test_inspect", "test_traceback")
# Quick ones (a second or two for both runs): part of the project's own test run.
QUICK = ("test_generators", "test_contextlib", "test_grammar", "test_scope", "test_patma", "test_with", "test_iter",
         "test_unpack_ex", "test_named_expressions", "test_coroutines", "test_asyncgen", "test_except_star",
         "test_listcomps", "test_genexps", "test_type_params")
