"""Calls of the program's own functions, and whole steps: `whole_calls` skips them in the skeleton, `observed_runs` observes and records one, `express_steps`
and `prepared_steps` without one.
"""
