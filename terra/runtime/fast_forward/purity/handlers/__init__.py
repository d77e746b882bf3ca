"""Handlers: what a run that is observed does with one kind of object, or in one kind of use.

:mod:`.attributes`    attributes: which are plain reads, and what each read depends on
:mod:`.places`        attributes, items and variables, and the numbers there that count or vary
:mod:`.changes`       changes of these, and of containers
:mod:`.calls`         calls: the framework's, and the user's, which are observed in turn
:mod:`.builtins`      builtins, and numpy's functions, without side effects
:mod:`.operands`      operands of operators, tests and comparisons
:mod:`.arrays`        calculations on arrays that vary
:mod:`.functionals`   functions that the framework's loops and gradients call
:mod:`.libraries`     libraries that do nothing but compute
:mod:`.objects`       objects that the run makes, and context managers
"""
