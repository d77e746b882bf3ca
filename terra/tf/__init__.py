"""The one room for private parts of TensorFlow, and of CPython where no public way leads there.

`private_names` names the parts that are used, with what is asked of the context, and refuses versions in which they are others; everything else in
Terra reaches TensorFlow through it. `private/` has what is done with them: functions that are replaced, functions that the runtime knows by name,
datasets, shape functions, scopes, devices. `opschema` knows what kind each operation is (stateless, of variables, random, not to be put in a graph),
`variable_use` what it does to variables, `attributes` when two calls have the same attributes, `constants` when two small tensors are
interchangeable, `iterators` what datasets may use, `random_state`, `philox` and `samplers` how seeds are drawn, `helper_threads` and `interrupts`
what runs beside and between, `versions` whether thousands of dicts have changed.
"""
