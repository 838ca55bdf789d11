"""The speed of the GPU models: peak arithmetic by precision, caches, buses and latencies; one row per model.

    rates_of(V100).flop_per_s(V100, "fp16", tensor=True)     # 1.25e14

Arithmetic follows from what a multiprocessor does in a clock, as the vendor's data sheets and architecture white
papers state it; what is marked as assumed is a round number in the range of published microbenchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .models import A100, H100, H200, V100, GpuModel, by_column


@dataclass(frozen=True)
class ModelRates:
    """What one model does at its highest clock."""

    capability: tuple[int, int]
    """CUDA compute capability."""
    sms: int
    vector: Mapping[str, int]
    """Operations of a multiprocessor in a clock outside the tensor cores, by precision; a multiply-add is two.
    Data sheet."""
    tensor: Mapping[str, int]
    """The same of the tensor cores, dense. Data sheet."""
    l2_mib: int
    """Second-level cache, in units of 2^20 bytes. Data sheet."""
    l2_bytes_per_clock: int
    """Of the whole GPU (assumed)."""
    pcie_gb_s: float
    """Pinned copies in one direction: 80 % of the link's rate (assumed)."""
    peer_gb_s: float
    """Copies to another GPU of the node in one direction (assumed)."""
    l2_ns: float
    dram_ns: float
    """Latency of a dependent load that each level answers (assumed)."""
    shared_kib: int
    """Shared memory that a block may have. CUDA C++ Programming Guide, technical specifications by capability."""
    launch_us: float = 2.4
    """From one empty kernel to the next in a stream (assumed)."""
    atomics_per_clock: int = 1
    """Atomic additions to spread counters, of a multiprocessor in a clock (assumed)."""

    @property
    def l2_bytes(self) -> int:
        """Second-level cache, bytes."""
        return self.l2_mib << 20

    def flop_per_s(self, model: GpuModel, precision: str, *, tensor: bool) -> float | None:
        """Peak at the highest clock, FLOP/s; None where the model has no such arithmetic.

        `tensor` asks for what a matrix product reaches: the tensor cores, where they know the precision.
        """
        per_clock = self.tensor.get(precision) if tensor else None
        per_clock = per_clock or self.vector.get(precision)
        return None if per_clock is None else per_clock * self.sms * model.max_clock_mhz * 1e6

    def l2_gb_s(self, model: GpuModel) -> float:
        """Bandwidth of the second-level cache at the highest clock."""
        return self.l2_bytes_per_clock * model.max_clock_mhz * 1e-3

    def latency_ns(self, footprint: int) -> tuple[float, float]:
        """A dependent load at random within so many bytes, past the first-level cache: its time at the highest clock,
        and what of it scales with the clock.

        The second-level cache answers as much of the loads as it holds of the footprint. What lies behind it does not
        follow the clock.
        """
        in_l2 = min(1.0, self.l2_bytes / max(footprint, 1))
        return self.l2_ns + (1 - in_l2) * (self.dram_ns - self.l2_ns), self.l2_ns


_ROWS: dict[str, tuple[Any, ...]] = {
    "capability": ((7, 0), (8, 0), (9, 0)),
    "sms": (80, 108, 132),
    "vector": (
        {"fp64": 64, "fp32": 128, "fp16": 256, "int32": 128},
        {"fp64": 64, "fp32": 128, "fp16": 512, "bf16": 256, "int32": 128},
        {"fp64": 128, "fp32": 256, "fp16": 512, "bf16": 512, "int32": 128},
    ),
    "tensor": (
        {"fp16": 1024},
        {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048},
        {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192},
    ),
    "l2_mib": (6, 40, 50),
    "l2_bytes_per_clock": (1600, 3200, 3600),
    "pcie_gb_s": (12.6, 25.2, 51.0),
    "peer_gb_s": (46.0, 240.0, 360.0),
    "l2_ns": (128.0, 150.0, 140.0),
    "dram_ns": (290.0, 330.0, 330.0),
    "shared_kib": (96, 163, 227),
}
"""The fields of `ModelRates`, of V100, A100 and Hopper in turn."""

_V100, _A100, _HOPPER = by_column(ModelRates, _ROWS)
RATES = {V100.name: _V100, A100.name: _A100, H100.name: _HOPPER, H200.name: _HOPPER}


def rates_of(model: GpuModel) -> ModelRates:
    """The rates of a model: every row of `models.MODELS` has some."""
    return RATES[model.name]
