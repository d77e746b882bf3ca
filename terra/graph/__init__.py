"""Traces, the TraceGraph, case assignment, dataflow planning and graph generation.

Everything here but ``generator`` and what it builds on is pure Python: it imports no TensorFlow, so that the
algorithms are property-tested in milliseconds.
"""
