"""Events that may happen at any time in a process, in the middle of Terra's own work.

`signal_handlers` delays signal handlers until the program's own code goes on, `garbage` raises the
threshold of the garbage collector during a step, and `cross_thread` lets other threads read the tensors
of a running step.
"""
