"""`python -m terra`."""

import sys

from terra.cli import main

if __name__ == "__main__":
    sys.exit(main())
