"""Tuning: choices that are made by measuring, for each function anew.

Two forms of a graph take turns for some steps (`terra.trial`), and the faster one stays.
`early_start`: the graph starts with the step, or when its skeleton is done. `single_threaded`: its
operations run on one thread, or on TensorFlow's pool. `tails`: where the last statements of a step cannot
be skipped, and the rest can, these run behind the step.
"""
