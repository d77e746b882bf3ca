"""The observed form of a function: each operation on objects asks an observer first, so that a run tells whether it did nothing but compute.

`observed`, `assignments`, `observed_texts` and `observed_match` write it, with `questions` where the observer may know a number. Which observer is asked, the running
thread's cursor tells (`terra.location`): by default one that lets everything pass.
"""
