"""The tracing phase: the step runs eagerly, and each operation is recorded.

`tracer` executes an operation and notes its location, its attributes and where its inputs come
from; `repeated` are those that the step before has recorded, too. `catching` finds, in the program's source, the statements that would catch an operation's
failure, so that co-execution waits there. `managers` does the same for context managers.
"""
