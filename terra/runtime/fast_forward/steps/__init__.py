"""Calls of the program's own functions, and whole steps.

`pure_functions` skips a step's function when the step has settled, and the functions and layers that
it calls, where the step itself is impure. `observed_runs` observes one run and records it if it is
pure; `purity_trial` keeps what came of that. Pure calls are skipped like the framework's. After a whole step was skipped, `step_cache`
has the next ones start their graph without a skeleton: `detached_step` holds all that lasts from
one such step to the next, and compares the rest; `detached_arguments` does so with the arguments.
"""
