"""Makes ``terra.transform`` and ``terra.location`` importable where there is no TensorFlow, or no time for it.

``terra/__init__.py`` imports the co-execution and with it TensorFlow; the transform needs neither. `install` puts bare
packages in its place, before anything of Terra has been imported.
"""

import os
import sys
import types

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def install():
    for name in ("terra",):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [os.path.join(ROOT, *name.split("."))]
            sys.modules[name] = package
