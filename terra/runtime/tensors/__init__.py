"""The tensor that Python holds in each phase of a step, and what is known of it without its value: dtype, shape, host value.

`tensor.TerraTensor` stands in for an EagerTensor; a `value_key.ValueKey` names its value inside a program. `shape_inference` and `shape_rules` tell
shapes before a kernel has run, `open_shapes` and `size_readers` which sizes nobody needs to know, `host_values` which small integers Python knows
anyway. `comparing` is what calls are compared by, `object_kinds` what kind of object something is.
"""
