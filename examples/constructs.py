"""`python -m examples.constructs` is `python -m examples.benchmarks.constructs`: what each construct of Python costs in a step that is skipped otherwise."""

from examples.benchmarks.constructs import main

if __name__ == "__main__":
    main()
