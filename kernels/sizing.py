"""The size of work for a device, from its rough rates and its memory.

These rates only choose sizes, so that a repetition takes some milliseconds everywhere. No figure is made from them.

Multiply-adds per SM and clock cycle by compute capability: those of the ordinary units after the table of arithmetic
throughput in NVIDIA's CUDA C++ Programming Guide, those of the tensor units from the dense peak rates of NVIDIA's
data sheets, divided by SMs and boost clock.
"""

from __future__ import annotations

from dataclasses import replace

from .work import Facts, Unfit, Work

VECTOR: dict[tuple[int, int], dict[str, int]] = {
    (6, 0): {"fp64": 32, "fp32": 64, "fp16": 128},
    (7, 0): {"fp64": 32, "fp32": 64, "fp16": 128, "int32": 64},
    (7, 5): {"fp64": 2, "fp32": 64, "fp16": 128, "int32": 64},
    (8, 0): {"fp64": 32, "fp32": 64, "fp16": 256, "bf16": 128, "int32": 64},
    (8, 6): {"fp64": 2, "fp32": 128, "fp16": 128, "bf16": 128, "int32": 64},
    (8, 9): {"fp64": 2, "fp32": 128, "fp16": 128, "bf16": 128, "int32": 64},
    (9, 0): {"fp64": 64, "fp32": 128, "fp16": 256, "bf16": 256, "int32": 64},
    (10, 0): {"fp64": 64, "fp32": 128, "fp16": 256, "bf16": 256, "int32": 64},
    (10, 3): {"fp64": 2, "fp32": 128, "fp16": 256, "bf16": 256, "int32": 64},
    (12, 0): {"fp64": 2, "fp32": 128, "fp16": 128, "bf16": 128, "int32": 64},
}
"""Ordinary units."""

TENSOR: dict[tuple[int, int], dict[str, int]] = {
    (7, 0): {"fp16": 512},
    (7, 5): {"fp16": 512},
    (8, 0): {"fp64": 64, "tf32": 512, "fp16": 1024, "bf16": 1024},
    (8, 6): {"tf32": 256, "fp16": 512, "bf16": 512},
    (8, 9): {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024},
    (9, 0): {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096},
    (10, 0): {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192},
    (10, 3): {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192},
    (12, 0): {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024},
}
"""Tensor units, dense matrices, summed in fp32 (fp64 for fp64)."""


MEMORY_SHARE = 0.4
"""Of a device's memory that a work takes at most, where its size is chosen here."""

MOST_MEMORY = 0.9
"""And where it is asked for: the rest is the driver's, the context's and the library's."""

ASSUMED_BANDWIDTH_GB_S, ASSUMED_CLOCK_MHZ = 1000.0, 1500.0
"""Where the device does not tell."""

PER_CLOCK = 32
"""Multiply-adds of a multiprocessor in a clock where none are known."""


def flop_per_s(facts: Facts, precision: str, *, matrix: bool = False) -> float:
    """About how many operations a device does in a second at its highest clock; an FMA is two."""
    per_clock = PER_CLOCK
    for table in (VECTOR, TENSOR) if matrix else (VECTOR,):
        # A newer architecture than the table knows does at least what the newest known one does.
        rows = [row for since, row in sorted(table.items()) if since <= facts.capability]
        per_clock = rows[-1].get(precision, per_clock) if rows else per_clock
    return 2 * per_clock * facts.sms * (facts.max_clock_mhz or ASSUMED_CLOCK_MHZ) * 1e6


def bytes_per_s(facts: Facts) -> float:
    """About how many bytes a second the device's memory moves."""
    return (facts.bandwidth_gb_s or ASSUMED_BANDWIDTH_GB_S) * 1e9


def scaled(facts: Facts, factor: float) -> Facts:
    """The device with all rates times a factor: for work that takes so much longer."""
    clock_mhz = (facts.max_clock_mhz or ASSUMED_CLOCK_MHZ) * factor
    return replace(facts, max_clock_mhz=clock_mhz, bandwidth_gb_s=bytes_per_s(facts) / 1e9 * factor)


def room(facts: Facts) -> int:
    """Bytes of device memory that a work of a size chosen here may take."""
    return int(facts.memory_bytes * MEMORY_SHARE)


def far_beyond_l2(facts: Facts) -> int:
    """Bytes of a buffer of which hardly anything is found in the L2 cache: four times it, 64 MiB at least."""
    return max(4 * facts.l2_bytes, 64 << 20)


def multiple(value: float, step: int) -> int:
    """The multiple of `step` nearest to `value`, one at least."""
    return max(step, round(value / step) * step)


def too_old(facts: Facts, units: str, since: tuple[int, int]) -> Unfit | None:
    """That the device is older than units that work needs, as 'fp16 tensor cores'; None where it is not."""
    if facts.capability >= since:
        return None
    needed, present = (".".join(map(str, version)) for version in (since, facts.capability))
    return Unfit(f"{units} need compute capability {needed}; this GPU has {present}")


def fitting(facts: Facts, work: Work) -> Work | Unfit:
    """The work, or that the device's memory is too small for it."""
    if work.memory_bytes <= MOST_MEMORY * facts.memory_bytes:
        return work
    has = facts.memory_bytes >> 20
    return Unfit(f"{work.kernel} of this size needs {work.memory_bytes >> 20} MiB, but the GPU has {has} MiB")
