"""Every kernel there is: one row each. A module is imported when one of its kernels is asked for."""

from __future__ import annotations

from importlib import import_module

from ..errors import InputError
from .work import Kernel

KERNELS: dict[str, tuple[str, str]] = {
    "fma-fp64": ("fma", "FP64"),
    "fma-fp32": ("fma", "FP32"),
    "fma-fp16": ("fma", "FP16"),
    "fma-int32": ("fma", "INT32"),
    "gemm-fp64": ("gemm", "FP64"),
    "gemm-fp32": ("gemm", "FP32"),
    "gemm-tf32": ("gemm", "TF32"),
    "gemm-fp16": ("gemm", "FP16"),
    "gemm-bf16": ("gemm", "BF16"),
    "gemm-fp8": ("gemm", "FP8"),
    "stream-copy": ("stream", "COPY"),
    "stream-triad": ("stream", "TRIAD"),
    "l2-read": ("access", "L2_READ"),
    "chase": ("access", "CHASE"),
    "gather": ("access", "GATHER"),
    "atomics": ("access", "ATOMICS"),
    "memory": ("memory", "MEMORY"),
    "sm": ("sm", "SM"),
    "power-mix": ("power", "MIX"),
    "power-share": ("power", "SHARE"),
    "stress": ("stress", "STRESS"),
    "copy-h2d": ("paths", "H2D"),
    "copy-d2h": ("paths", "D2H"),
    "copy-d2d": ("paths", "D2D"),
    "copy-p2p": ("paths", "P2P"),
    "launch": ("paths", "LAUNCH"),
    "overlap-embedding": ("overlap", "EMBEDDING"),
    "overlap-partitions": ("overlap", "PARTITIONS"),
    "overlap-activations": ("overlap", "ACTIVATIONS"),
    "pagerank": ("pagerank", "PAGERANK"),
    "stencil27": ("stencil", "STENCIL27"),
    "transformer": ("transformer", "TRANSFORMER"),
    "transformer-back": ("transformer", "BACK"),
}
"""Name -> module of this folder and the `Kernel` in it."""

EXCHANGES: dict[str, tuple[str, str]] = {
    "pairs": ("peers", "PAIRS"),
    "all-reduce": ("peers", "RING"),
    "all-reduce-nccl": ("peers", "NCCL"),
}
"""The same of what several GPUs do together, which is no `Work` of one device."""


def find_kernel(name: str) -> Kernel:
    """The kernel of a name, in any case; InputError, naming what there is, when there is none."""
    rows = KERNELS | EXCHANGES
    row = rows.get(name.strip().lower())
    if row is None:
        raise InputError(f"no kernel {name!r}; there are {', '.join(rows)}")
    kernel = getattr(import_module(f"{__package__}.{row[0]}"), row[1])
    assert isinstance(kernel, Kernel)
    return kernel
