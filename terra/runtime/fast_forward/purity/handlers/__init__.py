"""Handlers: what a run that is observed makes of one kind of object, or of one kind of use.

A handler holds the run (`purity.run`), and asks the others by it; none imports another.

:mod:`.calls`         calls: what is called in place of a function, and the user's functions, which are observed in turn
:mod:`.framework`     calls of the framework's, which must be skipped, and layers of the user's classes
:mod:`.builtins`      builtins, and numpy's functions, without side effects
:mod:`.functionals`   functions that the framework's loops and gradients call
:mod:`.libraries`     libraries that do nothing but compute
:mod:`.objects`       objects that the run makes, and context managers
:mod:`.attributes`    attributes: which are plain reads, and what each read depends on
:mod:`.classes`       what is asked of classes
:mod:`.places`        attributes, items and variables, and the numbers there that count or vary
:mod:`.changes`       changes of these, and of containers
:mod:`.operands`      operands of operators, tests and comparisons
:mod:`.contents`      what containers hold
:mod:`.arrays`        calculations on arrays that vary
"""
