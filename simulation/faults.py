"""The faults that can be planted in a simulated fleet: one row each. They are the ground truth for detectors.

Source: docs/simulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import stream


@dataclass(frozen=True)
class Fault:
    """One kind of faulty GPU, as factors on what it would otherwise be (all dimensionless)."""

    kind: str
    share: float
    """Fraction of a fleet's GPUs that have it."""
    cap_factor: float = 1.0
    """On the power cap that the board enforces."""
    resistance_factor: float = 1.0
    """On the thermal resistance."""
    ceiling_factor: float = 1.0
    """On the highest clock."""
    slowdown_share: float = 0.0
    """Fraction of the time under load in which the hardware slowdown halves the clock."""


# The braked board of the public cluster ran SGEMM at 250 W and 81 °C, 20 % slower than the fleet, at a median
# clock of 1312 MHz. A cap of 252 W alone costs 7 %. Half the clock for 29 % of the time gives the slowness;
# and the board runs at 1312 MHz between those stretches, at 250 W on average, only if it leaks as at 81 °C.
BRAKE = Fault("brake", share=0.0025, cap_factor=0.84, resistance_factor=1.65, slowdown_share=0.29)
HOT = Fault("hot", share=0.004, resistance_factor=1.6)
PINNED = Fault("pinned", share=0.0015, ceiling_factor=1 / 1.45)

FAULTS = (BRAKE, HOT, PINNED)
HEALTHY = Fault("ok", share=1.0 - sum(fault.share for fault in FAULTS))

SLOWDOWN_DIVISOR = 2.0
"""By how much the hardware slowdown divides the SM clock."""


def plant(gpus: int, seed: int, faults: int | None) -> NDArray[np.int64]:
    """Which fault each GPU has: an index into `FAULTS`, or -1 for a healthy one.

    With `faults=None` every GPU has each fault with the probability of its row; with a number exactly so many
    GPUs are faulty, the kinds taking turns and the places drawn from the seed.
    """
    random = stream(seed, "fault")
    if faults is None:
        edges = np.cumsum([fault.share for fault in FAULTS])
        index = np.searchsorted(edges, random.random(gpus), side="right").astype(np.int64)
        return np.where(index < len(FAULTS), index, -1)
    if not 0 <= faults <= gpus:
        raise InputError(f"{faults} faults cannot be planted in {gpus} GPUs")
    index = np.full(gpus, -1, dtype=np.int64)
    index[random.permutation(gpus)[:faults]] = np.arange(faults) % len(FAULTS)
    return index
