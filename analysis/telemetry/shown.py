"""How a metric of telemetry is shown: its title, and the unit that people read. Both follow from its row."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ...errors import QueryError
from ...store.metrics import METRICS, ROW, Metric

_GAUGES = {
    "mW": ("W", 1e-3),
    "degC": ("°C", 1.0),
    "B": ("GB", 1e-9),
    "B/s": ("GB/s", 1e-9),
    "ppm": ("%", 1e-4),
}
_RATES = {"mJ": ("W", 1e-3), "ns": ("% of the time", 1e-7), "B": ("GB/s", 1e-9), "": ("1/s", 1.0)}
"""Of counters: what a second brings."""
_UNITS = ("_mw", "_mj", "_mhz", "_c", "_ns", "_ms", "_us", "_ppm", "_bytes_per_s", "_bytes")
_SPELLED = {
    "sm": "SM", "mem": "memory", "pcie": "PCIe", "nvlink": "NVLink", "ecc": "ECC", "tx": "sent", "rx": "received",
    "dram": "DRAM", "fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "gr": "graphics", "vgpu": "vGPU",
    "pstate": "P-state",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A metric as people see it. A value of its column, or of a counter the rate per second, times `factor` is in
    `unit`."""

    name: str
    title: str
    unit: str
    factor: float
    kind: str
    says: str
    """What it is, in a sentence; of a counter, that its rate is shown."""

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@functools.cache
def shown(name: str) -> Shown:
    """How a metric is shown. Raises QueryError for a name that is no metric."""
    if name not in ROW:
        raise QueryError(f"there is no metric {name[:60]!r}: choose one of the list, as power_mw")
    metric = METRICS[ROW[name]]
    counter = metric.kind == "counter"
    unit, factor = (_RATES if counter else _GAUGES).get(metric.unit, (metric.unit, 1.0))
    says = f"{metric.description}: the rate between readings" if counter else metric.description
    return Shown(name, _title(metric), unit, factor, metric.kind, says)


def _title(metric: Metric) -> str:
    if metric.name == "energy_mj":
        return "Power by the energy counter"
    short = next((metric.name.removesuffix(end) for end in _UNITS if metric.name.endswith(end)), metric.name)
    words = " ".join(_SPELLED.get(word, word) for word in short.split("_"))
    if metric.name.endswith("_bytes_per_s"):
        words += ", by profiling"
    return words[0].upper() + words[1:]
