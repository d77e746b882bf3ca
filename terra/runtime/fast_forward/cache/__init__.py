"""Records of calls: how they are made, found, compared and replayed.

A record (`call_records.CallRecord`) is the part of the program that one call has walked: its nodes, what the
gradient tapes were told, which variables it touched, and how to make the result of new tensors. It
holds no value of a step. Several records of one place and signature are alternatives: they differ
in the state of an object, or in values that the call reads on its way.

The way through, for a call of the framework:

1. `call_cache` looks under the node of the program, the function, its owner and the location.
2. `inline_cache` compares the arguments with those of the last calls, by their patterns
   (`argument_patterns`). An entry for a single function stands behind the node itself, so that a hit
   touches as little memory as possible.
3. Otherwise `arguments` describes the arguments, and the records of this signature are tried.
4. `replay_record` replays a record that fits: it feeds the graph, draws seeds, tells tapes, and builds the
   result.
5. If none fits, the call is made. `recording` notes it, while `call_watch` looks out for code of
   the program that runs in it, by a profile function.

With the option `verify`, `verification` makes the call instead of replaying it, and compares both.
"""
