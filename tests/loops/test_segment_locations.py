"""Normalised locations: what the pieces of a rolled step are told apart by."""

import terra
from terra.location import location
from terra.runtime.fast_forward.sources import normalised_locations


class Collected:
    """Locations at which `here()` was called in an instrumented function."""

    def __init__(self):
        self.seen = []

    def here(self, *values):
        self.seen.append(location.tls.cursor.current)
        return values[0] if values else None


def collect(function, *args):
    collected = Collected()
    python = terra.coexecute(function)._python
    came_from = location.begin_step()
    try:
        python(collected.here, *args)
    finally:
        location.end_step(came_from)
    return collected.seen


def loop(here, n):
    for _ in range(n):
        here()
    here()


def nested(here, counts):
    for n in counts:
        here()
        for _ in range(n):
            here()
        here()


def in_arguments(here, n):
    here(here(here(n)))


def tree(here, depth):
    if depth == 0:
        return here()
    tree(here, depth - 1)
    tree(here, depth - 1)
    return here()


def loop_ids(locations):
    return {loop_id for here in locations for loop_id, _ in here.loop_ids}


def test_iterations_share_a_place_and_are_regions_of_their_own():
    seen = collect(loop, 5)
    known = normalised_locations.NormalisedLocations(loop_ids(seen))
    found = [known(here) for here in seen]
    assert len({place for place, _ in found[:5]}) == 1
    assert len({region for _, region in found}) == 6
    assert found[5][0] is not found[0][0]


def test_a_loop_that_does_not_vary_keeps_its_counters():
    seen = collect(loop, 4)
    found = [normalised_locations.NormalisedLocations()(here) for here in seen]
    assert len({place for place, _ in found}) == 5
    assert len({region for _, region in found}) == 1


def test_places_of_two_runs_are_the_same():
    first, second = collect(nested, [1, 2]), collect(nested, [3, 0, 4])
    known = normalised_locations.NormalisedLocations(loop_ids(first))
    assert {known(here)[0] for here in first} == {known(here)[0] for here in second}


def test_trip_counts():
    counts = normalised_locations.trip_counts(collect(nested, [1, 3]))
    assert sorted(counts.values()) == [1, 2, 3]  # the outer loop, and the inner one in each of its iterations


def test_recursion_is_cut_off_and_calls_in_arguments_are_none():
    seen = collect(tree, 4)
    known = normalised_locations.NormalisedLocations()
    assert any(normalised_locations.is_recursive(here) for here in seen)
    assert len({known(here)[0] for here in seen}) <= 4
    assert len({known(here)[0] for here in collect(tree, 6)} | {known(here)[0] for here in seen}) <= 4
    assert not any(normalised_locations.is_recursive(here) for here in collect(in_arguments, 1))
