"""`python -m examples.benchmark` is `python -m examples.benchmarks.suite`: the papers' programs eagerly, under tf.function and under Terra."""

import sys

from examples.benchmarks.suite.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
