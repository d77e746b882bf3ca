"""Kernels: how single operations are written, so that a graph gives the bits of eager execution.

A graph function may compute an operation otherwise than eager execution does: TensorFlow rewrites
it, sums in another order, or begins with a buffer that happens to be free. `eager_kernels` writes
such operations so that the bits are equal. `candidate_sampling` does this for the candidate samplers.

Other modules make graphs faster without changing a bit. `cse` finds operations that a step
runs again on the same inputs. `rewrites` knows several ways to write one operation; `benchmark`
runs them on random numbers of the very shapes, and finds the fastest that gives the same bits.
`in_place_updates` decides which in-place updates of variables can run behind the barrier.

`writer` writes nodes that stand for no operation of the program, in the manner of expressions.
"""
