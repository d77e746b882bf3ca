"""How much memory something takes at its peak, beyond what is in use before."""

import contextlib
import ctypes
import gc

import tensorflow as tf


def peak_mib(action):
    """MiB that `action()` takes at its peak beyond what is in use before: on the first GPU if there is one, else of the process (Linux; elsewhere None)."""
    gc.collect()
    if tf.config.list_physical_devices("GPU"):
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        tf.config.experimental.reset_memory_stats("GPU:0")
        action()
        return (tf.config.experimental.get_memory_info("GPU:0")["peak"] - before) / 2**20
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed must not hide what is taken again
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the high-water mark starts from here
        before = _status("VmRSS")
    except OSError:
        action()
        return None
    action()
    return (_status("VmHWM") - before) / 2**10


def _status(key):
    """A line of the process' status, in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{key}:"))
