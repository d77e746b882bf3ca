"""Makes `pure_library` and `pure_models` importable by these names: they stand for installed packages."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
