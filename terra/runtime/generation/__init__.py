"""Graph generation: from a TraceGraph to the functions that TensorFlow's executor runs (paper, section 4.2).

`generator` leads. It walks the TraceGraph and the cases that `terra.graph.cases` has assigned, makes each function with a builder (`functiondef`), writes
single operations (`operations`), keeps what each value is called in a `scope`, and orders operations as the program had them where that matters (`node_order`,
`variables`). `feeds` are the channels from Python (fetches, which go back there, are written by `generator`, in `_emit_fetch`), `speculated_branches` what a branch depends on, `commit` operations on variables and the barrier
behind which a step's updates become visible; what updates in place overwrite is noted by `undo`. The result is a `generated.Generated`.

`kernels/` replaces operations where eager kernels would do otherwise than graph kernels, or where another kernel is faster; `xla/` compiles clusters of a
graph.
"""
