"""Skipping: a call whose outcome is known is not made; its operations are taken from a record.

A call site that is instrumented asks `sites.substitution` what to call in place of its callee. For the framework's code that is something which looks
into the `cache`: a record of the same call at the same node of the program, with the same arguments, whose `guards` still hold, is replayed. Else the
call is made and recorded. The program's own functions are recorded where an observer (`purity`) has seen a run do nothing but compute; `steps` does
this for whole steps, and starts their graphs without a skeleton. `sources` is where the values of a replayed call come from.

Rooms, lowest first: `sources`, `guards`, `cache`, `sites`, `purity`, `steps`. A room imports only what stands before it.
"""
