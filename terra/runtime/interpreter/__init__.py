"""The interpreter: frames, tracebacks, profile functions, and what happened when.

`frames` reads executed locations from frames where code is not instrumented. `tracebacks` removes
Terra's own frames from errors. `profilers` keeps the program's profiler at work, or suspends it,
while Terra watches a call by a profile function. `spans` records what Python and the graphs do, while somebody asks.
"""
