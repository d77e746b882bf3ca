"""Which variants of tests run, and how many random examples."""

import os

ALL = os.environ.get("TERRA_TESTS") == "all"  # of tests with many variants alike


def examples(most: int) -> int:
    """Returns how many of up to `most` random examples a test tries: a third of them, all with TERRA_TESTS=all."""
    return most if ALL else -(-most // 3)
