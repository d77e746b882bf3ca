"""The tracing phase: the step runs eagerly, and each operation is recorded with its location and where its inputs come from. `repeated` are events that the
step before has recorded. `catching` and `managers` tell where the program would catch a failure.
"""
