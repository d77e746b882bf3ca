"""Clusters of a graph that XLA compiles, where the results are the same: which operations go together (`clusters`), how a cluster is written, and what is checked when it runs."""
