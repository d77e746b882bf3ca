"""Fallback: a step leaves the known paths, or a kernel of its graph fails.

`replay` runs the matched operations again imperatively and puts the step's state back. `policy`
counts fallbacks and compares times: a function that keeps falling back, or that is slower than
imperative execution, runs imperatively for a while.
"""
