"""Sources: where the values of a skipped call come from.

A record of a call holds no value of a step, but says for each value where a replay finds it. Values
of earlier operations are named by their nodes (`cache.regions`); the modules here are about values
that come from Python, or go there:

* `dynamic_values`: arguments that differ at each step without being tensors, that is arrays and numbers.
* `late_values`: numbers and arrays that unknown code gives within a call.
* `number_sources`: where such a number is found, and how what is calculated of it is calculated again.
* `array_calculations`: NumPy's calculations with these, which are made again for each step.
* `residual_calls`: calls that are made at each step, such as `next(iterator)` and random draws.
* `deferred_fetches`: values that a step reads only to give them back; they are read when the graph is
  done.
* `texts`: texts that are made of these, to be printed, logged or kept.
* `effects`: attributes, items and variables that a call sets, counts, or appends to.
* `filled`: lists that a block only appends to.
* `value_sources`: placeholders for such values in a recorded calculation.
* `normalised_locations`: locations without the counters of loops that vary; rolled steps use it, too.
"""
