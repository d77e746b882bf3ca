"""Programs to learn from and to measure with: run them from the checkout, `python -m examples.quickstart`."""
