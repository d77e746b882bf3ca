"""Purity: whether a run of the program's own code did nothing but compute.

The observed form of a function (`terra.transform.observing`) shows each operand to an `Observer`
before it is used. The observer gives the operand back as it is, and notes what the run reads and
changes. Whatever is not known to be harmless makes the run *impure*; that costs speed only, since
impure code simply runs at each step. A pure run becomes a record like that of a framework call. It
may have *effects* (`sources.effects`): values that it keeps, counters, items that it appends.

`run` has the state of one run, and what everybody notes of it; `handlers` has the parts of the
observer for kinds of objects and of uses, which hold the run. `observer` makes both, and is what
the code shows its operands to: what it has are methods of theirs. `conclusion` tells in the end
whether the run was pure. `born` remembers by identity what a run has made; `facts` holds what
is known of classes and code without running them; `unknown` deals with code that nothing is known of.

`user_code` begins an observation from the other end: the framework's call of a model is recorded
while the program's layers, losses or schedules in it are observed.
"""
