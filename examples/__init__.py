"""Programs to learn from, `python -m examples.quickstart`, and to measure with, `examples.benchmarks`: run them from the checkout."""
