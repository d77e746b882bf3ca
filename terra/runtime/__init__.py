"""The code that runs when a step runs. Rooms, lowest first; one imports only what stands above it in this list:

* `interpreter`: frames, tracebacks, profile functions.
* `tensors`: the tensor that Python holds, and what is known of it without its value.
* `generation`: TraceGraph to graph function.
* `tracing`: the first steps, which run eagerly and are recorded. `tapes`: gradient tapes inside a step.
* `fallback`: running a step's operations again imperatively.
* `execution`: one co-executed step: the PythonRunner with the skeleton, the GraphRunner with the graph.
* `fast_forward`: skipping calls whose outcome is known.
* `loops`: steps whose loops vary.
* `step_function`: one co-executed function, over all its steps.
"""
