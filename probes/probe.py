"""The description of a probe: a kernel, how it is run, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SUITES = ("quick", "standard", "full")
"""How thoroughly is measured; each holds the probes of those before it."""


class Kind(StrEnum):
    """What is done with the kernel."""

    STEADY = "steady"  # warm up, then repeat until the median is known well enough
    IDLE = "idle"  # the kernel is loaded and not run; telemetry alone
    SQUARE = "square"  # load and rest in turns of a chosen period and duty
    STAIRCASE = "staircase"  # load in rising levels
    SCAN = "scan"  # the kernel at several values of one parameter, each measured as STEADY
    PATTERNS = "patterns"  # every turn of the kernel, again and again; it says itself where it found errors
    OVERLAP = "overlap"  # copies beside the kernel, and after it
    EXCHANGE = "exchange"  # all GPUs of a node at once exchange data, in one process, after the other probes
    SOAK = "soak"  # steady load and pulses of load in turns for minutes, all of it checked


@dataclass(frozen=True)
class Probe:
    """An experiment on one GPU: a row of `catalogue.PROBES`."""

    name: str
    """As 'gemm-fp32': `workload` in the tables."""
    version: str
    """Grows when the figures of two versions cannot be compared."""
    stresses: str
    """In a few words."""
    says: str
    """In a sentence."""
    figure: str
    """The figure that stands for it in a table: 'rate', 'bandwidth', 'latency', ... With 'latency', the operations of
    its kernel wait for one another."""
    kernel: str
    """Its name in `kernels.catalogue.KERNELS`."""
    suite: str | None
    """The smallest of `SUITES` that holds it; None where it runs only when it is named."""
    kind: Kind = Kind.STEADY
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    """Of the kernel's `build`."""
    scan: tuple[str, tuple[float | int, ...]] | None = None
    """SCAN: the parameter of the kernel, and its values."""
