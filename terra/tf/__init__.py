"""The one room for private parts of TensorFlow, and of CPython where no public way leads there.

`internals` holds the entry points that are used and replaced, and refuses versions in which they are others; everything else in Terra reaches TensorFlow through it. `opschema` knows what kind each operation is
(stateless, of variables, random, not to be put in a graph), `constants` when two small tensors are interchangeable, `iterators` what datasets may use, `random_state`, `philox` and `samplers` how seeds are drawn,
`helper_threads` and `interrupts` what runs beside and between, `versions` whether thousands of dicts have changed.
"""
