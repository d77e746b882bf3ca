"""Loops that vary: steps whose number of iterations changes, or that recurse over data.

A loop is unrolled until that is a loss (`step_function.rolling` decides). Then the step is
*rolled*: it is cut into segments where an iteration or a recursive call begins or ends, and where
Python reads a value. Segments that begin at one normalised location (`fast_forward.sources.places`)
share a TraceGraph and a graph, so that the code decides how many graphs there are, not the trip
counts.

* `segments`: a step in segments, and where one segment ends and the next begins.
* `segment_modes`: the two modes of such a step, in which a segment is traced or its program walked.
* `segment_tape`: what gradient tapes are told, bundled segment by segment.
* `segment_gradient`: gradients of these bundles. The backward pass of a segment is a segment, too.
* `piece_plans`: how such a pass is planned.
* `recurrent_layers`: the loop over time of a stock RNN layer as one operation, with a While inside.
  `recurrence` is that operation with its gradient, `recurrent_cells` what is asked of the cells.
"""
