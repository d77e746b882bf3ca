"""The paper's algorithms, in pure Python: no TensorFlow, so that they are property-tested in milliseconds.

A `trace` is what one run has executed: operations, each with its location and where its inputs come from. The `tracegraph` of `nodes` merges traces into one
graph with branches (`matching` finds the nodes of a trace), `cases` assigns the branches to Switch-Case operations (Algorithm 1 of the supplement),
`dataflow` says which value is meant where branches meet. `nonfailing_ops` lists operations that cannot fail, `dot` draws a graph (a large one in `columns`), `listing` tells it by the
user's lines (`lines`). The functions that TensorFlow
runs are made of this by `terra.runtime.generation`.
"""
