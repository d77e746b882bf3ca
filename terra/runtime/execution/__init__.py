"""One co-executed step: the PythonRunner walks the program's skeleton while the GraphRunner runs its graph (paper, section 4.3).

The way through: an operation reaches `interception`, which hands it to the `step` that runs; its mode is a tracer or the `python_runner`. That one
matches it against the current node of the `program` and gives out a tensor without a value (`matching` has the rarer parts of that). `channels` is
Input Feeding, Output Fetching and Case Select; `completion` hands the step over to the `graph_runner`, or falls back. `swallowed` are errors that
come late.
"""
