"""What an observed run remembers of the objects that it has made."""

import gc

from terra.runtime.fast_forward.purity.born import Born


def test_the_mark_of_a_dropped_iterator_counts_for_iterators_only():
    born, it = Born(), iter([1])
    born.add_unheld(it)
    assert born.has(it)
    for later, counts in (([], False), ({}, False), (iter([2]), True)):
        born[id(later)] = born[id(it)]  # as if it were where the iterator was
        assert born.has(later) is counts


def test_what_dies_is_forgotten_and_what_cannot_be_held_weakly_lives():
    class Held:
        pass

    born, weak, strong = Born(), Held(), [1]
    born.add(weak)
    born.add(strong)
    assert born.has(weak) and born.has(strong) and not born.has([1])
    del weak
    gc.collect()
    assert list(born.living()) == [strong]
    born.close()
    born.add(strong)
    assert not born.has(strong)
