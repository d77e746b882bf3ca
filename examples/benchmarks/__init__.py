"""Programs that measure: each is a command, `python -m examples.benchmarks.fit` for instance; `suite` runs the papers' programs."""
