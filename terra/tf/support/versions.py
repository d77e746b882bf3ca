"""Which versions of TensorFlow Terra works on, and whether the installed one is to be used."""

import importlib
import os
import re

from terra import errors
from terra.tf.support import behaviours, names

FRAMEWORKS = ("tensorflow", "keras", "tf_keras")  # the packages whose code is no user's
OLDEST, NEWEST = (2, 16), (2, 21)  # the first and the last minor version that Terra was tried on
SUPPORTED = "TensorFlow {}.{} to {}.{}".format(*OLDEST, *NEWEST)
VARIABLE = "TERRA_UNTESTED_TENSORFLOW"


def minor_version(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version such as "2.21.0" or "2.23.0-dev20260101"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_supported(version: str) -> bool:
    """Returns whether Terra was tried on this version."""
    return OLDEST <= minor_version(version) <= NEWEST


def lets_newer_run() -> bool:
    """Returns whether the environment lets a version run that is newer than those that Terra was tried on."""
    return os.environ.get(VARIABLE, "").strip().lower() not in ("", "0", "false", "no")


def require_installed() -> None:
    """Refuse to go on without a TensorFlow that Terra may use. Raises: UnsupportedTensorFlowError."""
    try:
        version = importlib.import_module("tensorflow").__version__
    except ImportError as missing:
        raise errors.UnsupportedTensorFlowError(f"Terra needs {SUPPORTED}, which cannot be imported ({missing}); install it: pip install tensorflow.") from missing
    require(version)


def require(version: str) -> None:
    """Refuse a version that Terra was not tried on, unless it is newer, the environment lets it run and all checks pass.

    The checks run a few operations: devices can not be configured any more after them.

    Raises: UnsupportedTensorFlowError.
    """
    if is_supported(version):
        return
    refused = f"Terra needs {SUPPORTED}, and this is TensorFlow {version}; install a supported version"
    if minor_version(version) < OLDEST:
        raise errors.UnsupportedTensorFlowError(f"{refused}.")
    if not lets_newer_run():
        raise errors.UnsupportedTensorFlowError(f"{refused}, or set {VARIABLE}=1, which lets a newer one run if `python -m terra doctor` finds nothing wrong with it.")
    wrong = names.missing() or behaviours.failing()
    if wrong:
        raise errors.UnsupportedTensorFlowError(f"{refused}: Terra relies on {wrong[0]}, which is not so here; `python -m terra doctor` lists all such findings.")
