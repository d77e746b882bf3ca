"""One co-executed function: its phases (tracing, co-execution, imperative), traces, programs, and the functions that stand for it per instance or per
structure of arguments.

`coexecution.Coexecuted` is what a decorator returns: it holds what its parts share, and each part has one duty. `lifecycle` begins and ends a step, `traces`
merges what was traced and forgets it, `generation` has its graph made beside the steps, `trace_eviction` and `structure_specialisation` deal with
paths that come and go, `rolling` with loops, `structures` with one function per structure of arguments, `methods` and `attached` with one per
instance, `registry` with all functions of the process. `tuning/` tries what is measured: whether the graph starts with the step, whether one thread is enough.
"""
