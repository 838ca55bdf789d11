"""The faults that can be planted in a simulated fleet: one row each. They are the ground truth for detectors.

    plant(64, seed=1, faults=None, kinds=["slow_memory=3%", "lost"])

Every kind but three has a size, a share from 0 to 1; what it means is in its row. Source:
docs/how-we-know/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import stream

Effects = Callable[[float], dict[str, Any]]
"""What a fault of a size changes, by field of `Fault`."""


@dataclass(frozen=True)
class Fault:
    """One kind of faulty GPU, as factors on what it would otherwise be (dimensionless unless the name has a unit)."""

    kind: str
    says: str
    """What is wrong, in a few words, with its usual size."""
    share: float = 0.0
    """Fraction of a fleet's GPUs that have it where no number of faults is asked for; 0: only when it is named."""
    size: float | None = None
    """How large it is, as a share; None for a kind that has no size."""
    least: float = 0.0
    most: float = 1.0
    size_says: str = ""
    """What the size is."""
    effects: Effects | None = field(default=None, repr=False, compare=False)

    cap_factor: float = 1.0
    """On the power cap that the board enforces."""
    resistance_factor: float = 1.0
    """On the thermal resistance."""
    ceiling_factor: float = 1.0
    """On the highest clock."""
    slowdown_share: float = 0.0
    """Fraction of the time under load in which the hardware slowdown halves the clock."""
    throttled_share: float = 0.0
    """Fraction of the runs in which the hardware slowdown for heat does so for `THROTTLED_TIME` of the time."""
    memory_factor: float = 1.0
    """On the speed of the memory, bandwidth and latency alike."""
    peer_factor: float = 1.0
    """On the speed of copies to another GPU."""
    resistance_per_week: float = 0.0
    """Growth of the thermal resistance, as a fraction of the first day's, up to `MOST_DRIFT`."""
    wrong_share: float = 0.0
    """Fraction of the runs whose result has wrong elements."""
    wrong_one_in: int = 1
    """In such a run, one repetition in so many is wrong, each by chance."""
    sticks: bool = False
    """Whether its power reading freezes at some time."""
    falls: bool = False
    """Whether it falls off the bus at some time."""
    blind: bool = False
    """Whether its power sensor reads 0 W at all times; the energy counter works."""
    overlap_loss: float = 0.0
    """By how much less of the copies hides behind a kernel, as a share."""
    of_node: bool = False
    """Whether all GPUs of a node have it."""
    retires: bool = False
    """Whether pages of its memory were retired: the driver says so when it is loaded."""

    @property
    def sets_in(self) -> bool:
        """Whether it begins within a simulated span instead of being there from the start."""
        return self.sticks or self.falls

    def sized(self, size: float | None = None) -> Fault:
        """The same fault of a size, or of its usual one."""
        size = self.size if size is None else size
        if size is None or self.effects is None:
            return self
        return replace(self, size=size, **self.effects(size))


def _braked(size: float) -> dict[str, Any]:
    """A braked board that takes about so much longer under SGEMM: on V100 and H100 within a twentieth of the size.

    The one board of the public cluster ran SGEMM at 250 W and 81 °C, 20 % slower than the fleet, at a median clock of
    1312 MHz. A cap of 252 W alone costs 7 %. Half the clock for 29 % of the time gives the slowness; and the board runs
    at 1312 MHz between those stretches, at 250 W on average, only if it leaks as at 81 °C. Smaller ones have less of
    each alike: `strength` costs 16.6 % and its square 2.75 %.
    """
    strength = ((16.6**2 + 4 * 2.75 * 100 * size) ** 0.5 - 16.6) / (2 * 2.75)
    return {
        "cap_factor": 1 - 0.16 * strength,
        "resistance_factor": 1 + 0.65 * strength,
        "slowdown_share": 0.29 * strength,
    }


# The order of the first three is part of a seed's fleet; new rows go to the end.
_ROWS = (
    Fault(
        "brake",
        "power brake: a lower power cap, half the clock for part of the time, a hotter board",
        share=0.0025,
        size=0.1935,
        least=0.005,
        most=0.3,
        size_says="by how much SGEMM takes longer",
        effects=_braked,
    ),
    Fault(
        "hot",
        "poor cooling: thermal resistance x 1.6",
        share=0.004,
        size=0.6,
        least=0.02,
        most=3.0,
        size_says="by how much the thermal resistance is higher",
        effects=lambda size: {"resistance_factor": 1 + size},
    ),
    Fault(
        "pinned",
        "clock ceiling at the maximum / 1.45",
        share=0.0015,
        size=1 - 1 / 1.45,
        least=0.005,
        most=0.8,
        size_says="by how much the highest clock is lower",
        effects=lambda size: {"ceiling_factor": 1 - size},
    ),
    # These have no published share. Their sizes are assumptions, chosen to be visible and not glaring.
    Fault(
        "slow_memory",
        "memory at 60 % of its speed",
        size=0.4,
        least=0.002,
        most=0.8,
        size_says="by how much the memory is slower",
        effects=lambda size: {"memory_factor": 1 - size},
    ),
    Fault("stuck_sensor", "the power reading freezes at some time", sticks=True),
    Fault(
        "drift",
        "thermal resistance grows by 5 % of its first value a week",
        size=0.003,
        least=0.0005,
        most=0.03,
        size_says="by how much SGEMM gets slower a week, at first",
        # On V100 a thermal resistance that is higher by 5 % costs 0.3 % of SGEMM.
        effects=lambda size: {"resistance_per_week": size / 0.06},
    ),
    Fault(
        "wrong_results",
        "wrong elements in the result of two runs in five",
        size=0.4,
        least=0.001,
        most=1.0,
        size_says="the share of the runs with wrong elements",
        effects=lambda size: {"wrong_share": size},
    ),
    Fault("lost", "falls off the bus at some time (XID 79); every second one returns", falls=True),
    Fault(
        "throttling",
        "in one run in ten the hardware halves the clock for heat, a third of the time",
        size=0.1,
        least=0.005,
        most=1.0,
        size_says="the share of the runs that are throttled",
        effects=lambda size: {"throttled_share": size},
    ),
    Fault(
        "slow_nvlink",
        "copies to other GPUs at half their speed",
        size=0.5,
        least=0.005,
        most=0.9,
        size_says="by how much copies to other GPUs are slower",
        effects=lambda size: {"peer_factor": 1 - size},
    ),
    Fault(
        "retired_pages",
        "pages of the memory were retired (XID 63, memory errors); memory 1 % slower",
        size=0.01,
        least=0.0,
        most=0.1,
        size_says="by how much the memory is slower",
        effects=lambda size: {"memory_factor": 1 - size},
        retires=True,
    ),
    Fault("zero_power", "the power sensor reads 0 W; the energy counter works", blind=True),
    Fault(
        "poor_overlap",
        "on a whole node only 60 % of the copies hide behind kernels",
        size=0.35,
        least=0.02,
        most=0.9,
        size_says="by how much less of the copies hides behind kernels",
        effects=lambda size: {"overlap_loss": size},
        of_node=True,
    ),
)
FAULTS = tuple(row.sized() for row in _ROWS)
HEALTHY = Fault("ok", "nothing", share=1.0 - sum(fault.share for fault in FAULTS))
KINDS = tuple(fault.kind for fault in FAULTS)

SLOWDOWN_DIVISOR = 2.0
"""By how much the hardware slowdown divides the SM clock."""

THROTTLED_TIME = 0.33
"""Of a throttled run's time under load, how much the hardware slowdown is on."""

MOST_DRIFT = 0.8
"""Where the drift of the thermal resistance ends, as a fraction of its first value."""


@lru_cache(4096)
def fault_of(index: int, size: float) -> Fault:
    """The fault of an index into `FAULTS` (-1: none), of a size (NaN: its own)."""
    row = FAULTS[index] if index >= 0 else HEALTHY
    return row.sized(size) if isfinite(size) else row


def plant(
    gpus: int, seed: int, faults: int | None, kinds: Sequence[str] = (), at: Mapping[int, str] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which fault each GPU has: an index into `FAULTS`, or -1 for a healthy one; and its size, NaN for none.

    With `faults=None` every GPU has each fault with the probability of its row, or, where `kinds` are named, one
    GPU has each of them. With a number exactly so many GPUs are faulty, the kinds (those with a share, where none
    is named) taking turns and the places drawn from the seed. A kind may name its size, as in "slow_memory=3%". The
    GPUs at the positions `at` have these kinds, whatever was drawn. InputError for an unknown kind, a size that it
    cannot have, and for more faults than GPUs.
    """
    index, size = _drawn(gpus, seed, faults, [_named(kind) for kind in kinds])
    for position, kind in (at or {}).items():
        index[position], size[position] = _named(kind)
    return index, size


def kinds_in_order(gpus: int, seed: int, faulty: Mapping[int, str]) -> list[str] | None:
    """The kinds with which `plant` gives these faults to the GPUs at these positions; None where none do."""
    places = _places(gpus, seed)[: len(faulty)]
    return [faulty[place] for place in places] if faulty.keys() == set(places) else None


def _places(gpus: int, seed: int) -> list[int]:
    """The GPUs in the order in which a number of faults is planted."""
    places: list[int] = stream(seed, "fault").permutation(gpus).tolist()
    return places


def _drawn(
    gpus: int, seed: int, faults: int | None, chosen: Sequence[tuple[int, float]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    usual = np.array([nan if fault.size is None else fault.size for fault in (*FAULTS, HEALTHY)])
    if faults is None and not chosen:
        edges = np.cumsum([fault.share for fault in FAULTS])
        index = np.searchsorted(edges, stream(seed, "fault").random(gpus), side="right").astype(np.int64)
        index = np.where(index < len(FAULTS), index, -1)
        return index, usual[index]
    turns = chosen or [(i, float(usual[i])) for i, fault in enumerate(FAULTS) if fault.share]
    faults = len(turns) if faults is None else faults
    if not 0 <= faults <= gpus:
        raise InputError(f"{faults} faults cannot be planted in {gpus} GPUs")
    index, size = np.full(gpus, -1, dtype=np.int64), np.full(gpus, nan)
    places, turn = _places(gpus, seed)[:faults], np.arange(faults) % len(turns)
    index[places], size[places] = (
        np.array([i for i, _ in turns])[turn],
        np.array([usual_size for _, usual_size in turns])[turn],
    )
    return index, size


def label(fault: Fault) -> str:
    """A fault as it is named: the kind, with its size where that is not the usual one."""
    usual = next(row.size for row in FAULTS if row.kind == fault.kind)
    return fault.kind if fault.size is None or fault.size == usual else f"{fault.kind}={100 * fault.size:.10g}%"


def _named(text: str) -> tuple[int, float]:
    """Index and size of a fault that is named as "slow_memory" or "slow_memory=3%"; InputError for any other text."""
    kind, has_size, size_text = (part.strip().lower() for part in text.partition("="))
    if kind not in KINDS:
        raise InputError(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
    row = FAULTS[KINDS.index(kind)]
    if not has_size:
        return KINDS.index(kind), nan if row.size is None else row.size
    if row.size is None:
        raise InputError(f"the fault {kind} has no size: leave out {text.strip()[len(kind) :]!r}")
    try:
        size = float(size_text.removesuffix("%")) / 100
    except ValueError:
        size = nan
    if not row.least <= size <= row.most:
        raise InputError(
            f"the size of the fault {kind} is {row.size_says}, from {100 * row.least:g} to {100 * row.most:g} %, not "
            f"{size_text!r}: write it as {kind}={100 * row.size:.3g}%"
        )
    return KINDS.index(kind), size


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
