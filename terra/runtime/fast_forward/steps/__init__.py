"""Calls of the program's own functions, and whole steps.

`whole_calls` skips a step's function when the step has settled, and the functions and layers that
it calls, where the step itself is impure. `observed_runs` observes one run and records it if it is
pure. Pure calls are skipped like the framework's. After a whole step was skipped, `express_steps`
has the next ones start their graph without a skeleton: `prepared_steps` holds all that lasts from
one such step to the next, and compares the rest.
"""
