"""Executed locations: where in the program an operation is issued.

A location is a node in a tree: the calls on the way to an instruction (call ids) and, of loops, which iteration (loop ids). Instrumented code walks
the tree as it runs, so that two operations come from one location exactly if they hold the same node. This package imports no TensorFlow and nothing
of Terra's above it.

* `location`: the tree, the cursor of each thread, and what an instrumented call site asks.
* `suspension`: generators and coroutines, which leave their place and come back to it.
* `pruning`: trees that grow with each step, and are forgotten.
* `null_observer`, `observed_patterns`: the observer that lets everything pass, which a thread has by default.
* `current_step`: the step that runs now, of which the process has one at a time.
"""
