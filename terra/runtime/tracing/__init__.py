"""The tracing phase: the step runs eagerly, and each operation is recorded.

`tracer` executes an operation and notes its location, its attributes and where its inputs come
from; `structures`, `flat_inputs` and `fetches` look at what it is given and what is read.
`cse` are events that the step before has recorded. `catching` finds, in the program's source,
the statements that would catch an operation's failure, so that co-execution waits there. `managers`
does the same for context managers.
"""
