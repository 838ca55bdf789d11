"""The faults that can be planted in a simulated fleet: one row each. They are the ground truth for detectors.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import stream


@dataclass(frozen=True)
class Fault:
    """One kind of faulty GPU, as factors on what it would otherwise be (dimensionless unless the name has a unit)."""

    kind: str
    says: str
    """What is wrong, in a few words."""
    share: float = 0.0
    """Fraction of a fleet's GPUs that have it where no number of faults is asked for; 0: only when it is named."""
    cap_factor: float = 1.0
    """On the power cap that the board enforces."""
    resistance_factor: float = 1.0
    """On the thermal resistance."""
    ceiling_factor: float = 1.0
    """On the highest clock."""
    slowdown_share: float = 0.0
    """Fraction of the time under load in which the hardware slowdown halves the clock."""
    memory_factor: float = 1.0
    """On the speed of the memory, bandwidth and latency alike."""
    resistance_per_week: float = 0.0
    """Growth of the thermal resistance, as a fraction of the first day's, up to `MOST_DRIFT`."""
    wrong_share: float = 0.0
    """Fraction of the runs whose result has wrong elements."""
    sticks: bool = False
    """Whether its power reading freezes at some time."""
    falls: bool = False
    """Whether it falls off the bus at some time."""

    @property
    def sets_in(self) -> bool:
        """Whether it begins within a simulated span instead of being there from the start."""
        return self.sticks or self.falls


# The braked board of the public cluster ran SGEMM at 250 W and 81 °C, 20 % slower than the fleet, at a median
# clock of 1312 MHz. A cap of 252 W alone costs 7 %. Half the clock for 29 % of the time gives the slowness;
# and the board runs at 1312 MHz between those stretches, at 250 W on average, only if it leaks as at 81 °C.
BRAKE = Fault(
    "brake",
    "power brake: a lower power cap, half the clock for part of the time, a hotter board",
    share=0.0025,
    cap_factor=0.84,
    resistance_factor=1.65,
    slowdown_share=0.29,
)
HOT = Fault("hot", "poor cooling: thermal resistance x 1.6", share=0.004, resistance_factor=1.6)
PINNED = Fault("pinned", "clock ceiling at the maximum / 1.45", share=0.0015, ceiling_factor=1 / 1.45)

# These have no published share. Their sizes are assumptions, chosen to be visible and not glaring.
SLOW_MEMORY = Fault("slow_memory", "memory at 60 % of its speed", memory_factor=0.6)
STUCK_SENSOR = Fault("stuck_sensor", "the power reading freezes at some time", sticks=True)
DRIFT = Fault("drift", "thermal resistance grows by 5 % of its first value a week", resistance_per_week=0.05)
WRONG_RESULTS = Fault("wrong_results", "wrong elements in the result of two runs in five", wrong_share=0.4)
LOST = Fault("lost", "falls off the bus at some time (XID 79); every second one returns", falls=True)

# The order of the first three is part of a seed's fleet; new rows go to the end.
FAULTS = (BRAKE, HOT, PINNED, SLOW_MEMORY, STUCK_SENSOR, DRIFT, WRONG_RESULTS, LOST)
HEALTHY = Fault("ok", "nothing", share=1.0 - sum(fault.share for fault in FAULTS))
KINDS = tuple(fault.kind for fault in FAULTS)

SLOWDOWN_DIVISOR = 2.0
"""By how much the hardware slowdown divides the SM clock."""

MOST_DRIFT = 0.8
"""Where the drift of the thermal resistance ends, as a fraction of its first value."""


def plant(gpus: int, seed: int, faults: int | None, kinds: Sequence[str] = ()) -> NDArray[np.int64]:
    """Which fault each GPU has: an index into `FAULTS`, or -1 for a healthy one.

    With `faults=None` every GPU has each fault with the probability of its row, or, where `kinds` are named, one
    GPU has each of them. With a number exactly so many GPUs are faulty, the kinds (those with a share, where none
    is named) taking turns and the places drawn from the seed. InputError for an unknown kind, and for more faults
    than GPUs.
    """
    random = stream(seed, "fault")
    kinds = [kind.strip().lower() for kind in kinds]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"there is no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
    if faults is None and not kinds:
        edges = np.cumsum([fault.share for fault in FAULTS])
        index = np.searchsorted(edges, random.random(gpus), side="right").astype(np.int64)
        return np.where(index < len(FAULTS), index, -1)
    turns = [KINDS.index(kind) for kind in kinds] or [i for i, fault in enumerate(FAULTS) if fault.share]
    faults = len(turns) if faults is None else faults
    if not 0 <= faults <= gpus:
        raise InputError(f"{faults} faults cannot be planted in {gpus} GPUs")
    index = np.full(gpus, -1, dtype=np.int64)
    index[random.permutation(gpus)[:faults]] = np.array(turns)[np.arange(faults) % len(turns)]
    return index


def onsets(fault: NDArray[np.int64], seed: int, span_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each GPU's fault sets in and when it ends, s after the start of a span; infinity for never.

    Of the kinds that begin at some time (`Fault.sets_in`) the onset is drawn from the second to the sixth tenth of
    the span, to a tenth of a second; every second lost GPU returns after a tenth of the span. The other kinds are
    there from the start (0) and stay.
    """
    began = np.where(fault >= 0, 0.0, np.inf)
    ended = np.full(len(fault), np.inf)
    draws = np.round(stream(seed, "onset").uniform(0.2, 0.6, len(fault)) * span_s, 1)
    lost = 0
    for gpu in np.flatnonzero(fault >= 0):
        row = FAULTS[fault[gpu]]
        if row.sets_in:
            began[gpu] = draws[gpu]
        if row.falls:
            lost += 1
            if lost % 2:
                ended[gpu] = began[gpu] + round(0.1 * span_s, 1)
    return began, ended
