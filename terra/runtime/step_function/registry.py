"""The co-executed functions that there are, and those that there were: what reports are made of."""

import dataclasses
import weakref

from terra.options import Stats

instances = weakref.WeakSet()  # all co-executed functions, for reports
departed = {}  # name -> (how many functions of this name are no more, the sum of their `Stats`)


def depart(name, stats, counts):
    """A function of this name is no more."""
    if stats.steps:
        count, total = departed.setdefault(name, (0, Stats()))
        total.add(snapshot(stats, counts))
        departed[name] = count + 1, total


def snapshot(stats, counts):
    """`Stats` with what the steps have counted."""
    return dataclasses.replace(
        stats, feeds=counts.feeds, fetches=counts.fetches, fast_forwards=counts.fast_forwards, whole_steps=counts.whole_steps,
        waited_steps=counts.waited_steps, walked_calls=counts.walked_calls, verified_calls=counts.verified_calls, verified_graphs=counts.verified_graphs, python_stall_s=counts.python_stall)
