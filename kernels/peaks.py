"""The peak rate of a GPU's arithmetic units at a clock.

Multiply-adds per SM and clock cycle by compute capability: those of the ordinary units after the table of arithmetic
throughput in NVIDIA's CUDA C++ Programming Guide, those of the tensor units from the dense peak rates of NVIDIA's
data sheets, divided by SMs and boost clock. What is not there is not known, and has no limit.
"""

from __future__ import annotations

from .work import Facts

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


def vector_gflop_s(facts: Facts, precision: str, clock_mhz: float) -> float | None:
    """Peak of the ordinary units at a clock, GFLOP/s (a multiply-add is two); None where it is not known.

    Of int32 it is in 10^9 operations a second.
    """
    return _rate(VECTOR.get(facts.capability, {}).get(precision), facts, clock_mhz)


def matrix_gflop_s(facts: Facts, precision: str, clock_mhz: float) -> float | None:
    """Peak of what matrix products run on at a clock, GFLOP/s: tensor units where they do the precision."""
    lanes = TENSOR.get(facts.capability, {}).get(precision) or VECTOR.get(facts.capability, {}).get(precision)
    return _rate(lanes, facts, clock_mhz)


def _rate(lanes: int | None, facts: Facts, clock_mhz: float) -> float | None:
    return None if lanes is None else 2 * lanes * facts.sms * clock_mhz / 1e3
