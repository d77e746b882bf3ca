"""XLA: clusters of a graph that XLA compiles, for the option `jit_compile`.

A *cluster* is a set of nodes that is compiled together and is one node to the rest of the graph. It
must not wait for anything that Python, or another cluster, does only after it.

`xla_form` writes the compiled form of a generated function. It asks `xla_ops` which operations XLA
may be given, has `clusters` divide these, and makes an `xla_cluster` of each set, or of the whole
graph. `inlining` writes loops of recurrent layers into a cluster, `xla_checks` the checks of
indices that XLA's kernels leave out, and `xla_order` names operations so that XLA starts them in a
good order. Compiling and choosing a form are the matter of `terra.runtime.execution.compiled`.
"""
