"""The observed form of a function: each operation on objects asks an observer first, so that a run tells whether it did nothing but compute.

`observed` and `observed_match` write it. Which observer is asked, the running thread's cursor tells (`terra.location`): by default one that lets everything pass.
"""
