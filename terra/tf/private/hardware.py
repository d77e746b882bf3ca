"""Devices and kernels that there are."""

import functools
import platform

from terra.tf import private_names as tfi


@functools.lru_cache(maxsize=None)
def has_one_device():
    """Returns whether there is a single device, the CPU. (Once the first step runs, that does not change.)"""
    return len(tfi.ctx().list_logical_devices()) == 1


def n_gpus():
    return tfi.ctx().num_gpus()


@functools.lru_cache(maxsize=None)
def has_onednn():
    """Returns whether graphs run oneDNN's kernels for x86 CPUs, which eager execution does not run for all operations."""
    return tfi.pywrap_util_port.IsMklEnabled() and platform.machine() in ("x86_64", "AMD64") and not n_gpus()


def xla_kernel_types(op):
    """{type attribute: the types it may have} of XLA's kernel for `op`; None if there is none."""
    if op not in _xla_kernels():
        return None
    allowed = {}
    for kernel in tfi.kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type == ("XLA_GPU_JIT" if n_gpus() else "XLA_CPU_JIT"):
            for constraint in kernel.constraint:
                allowed.setdefault(constraint.name, set()).update(constraint.allowed_values.list.type)
    return allowed


@functools.lru_cache(maxsize=None)
def _xla_kernels():
    """Names of the operations that XLA has kernels for; asking for them also registers them."""
    ops = tfi.xla_ops()
    if ops is None:
        return frozenset()
    return frozenset(ops.get_gpu_kernel_names() if n_gpus() else ops.get_cpu_kernel_names())
