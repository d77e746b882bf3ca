"""Code that nothing is known of.

A run may call functions without a source, C code, clocks, `print`. Where the run is skipped these calls are made again, in their order: they are *opaque calls*
(`fast_forward.sources.opaque_calls`). `opaque` notes them in a run that is observed, with what is done with what they give; `stand_ins` has what stands in for such
an object while an attribute or an item of it is taken, or while it is entered as a context; `calling` makes the calls, and tells which take so long that the graph had better run at the same time;
`callbacks` says which of the program's own functions C code may call;
`steadiness`, which give something else each time.
A number that such a call gives, another one each time, is given to operations as a tensor of its own.
`live_calls` makes calls that give something else each time, and are made before the skipped run: elements of iterators, draws of random numbers.

Code of libraries that cannot be called again (the framework's, which may run operations, and what is given something of the program's) is observed instead: `library_code`.
"""
