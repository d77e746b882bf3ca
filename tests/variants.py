"""Which variants of tests run."""

import os

ALL = os.environ.get("TERRA_TESTS") == "all"  # of tests with many variants alike
