"""Whether the installed TensorFlow is one that Terra can work on.

`versions` knows which versions Terra was tried on, and refuses the others. `names` finds each private name of TensorFlow
that Terra's source mentions, and looks whether it is there. `behaviours` tries what Terra relies on beside names: that
TensorFlow's Python goes through the entry points that Terra replaces, that random numbers come out as Terra computes them,
and so on.

Nothing here needs `private_names`, which cannot be imported where a name is missing: TensorFlow's modules are imported by
their paths. `python -m terra doctor` shows the findings, and `TERRA_UNTESTED_TENSORFLOW=1` has them decide whether a newer
TensorFlow may be used.
"""
