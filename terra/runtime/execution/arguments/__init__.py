"""The arguments of a step whose sizes vary: which are left unknown.

:mod:`.dynamic_arguments`  the sizes that the tensors among them have had, and those that are left unknown
:mod:`.open_arrays`        the same of arrays, whose uses become arguments of the graph
"""
