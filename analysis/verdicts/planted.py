"""The simulated faults of a fleet compared with the verdicts: which were found, which were missed, and why.

The caller gives the faults. They are used to judge the analysis and are never its input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from ..runs.probing import Probed
from . import Judgement, Kind
from .channels import RISE
from .levels import RELEVANT, in_pct
from .model import Figure, Model

LOOKS_LIKE = {
    "brake": Kind.BRAKED,
    "hot": Kind.HOT,
    "pinned": Kind.PINNED,
    "slow_memory": Kind.SLOW,
    "stuck_sensor": Kind.SENSOR,
    "drift": Kind.HOT,
    "wrong_results": Kind.WRONG,
    "lost": Kind.LOST,
    "throttling": Kind.UNSTABLE,
    "slow_nvlink": Kind.SLOW,
    "retired_pages": Kind.MEMORY_ERRORS,
    "zero_power": Kind.SENSOR,
    "poor_overlap": Kind.SLOW,
}
"""The kind of verdict that each kind of fault should have."""
_SLOW = ("brake", "hot", "pinned", "slow_memory")
"""The faults that make a GPU slower than its peers."""
HIDING = 4
"""If more than one GPU in this many is slow, nobody knows which ones are the healthy ones."""


class Fault(Protocol):
    """The fault of a simulated GPU, and when it sets in (UTC ns; None: from the start)."""

    @property
    def uuid(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def began_ns(self) -> int | None: ...


class Miss(StrEnum):
    """Why a fault was not found, or not as what it is."""

    OTHER_KIND = "other kind"
    NOT_YET = "not yet"
    """It would have set in after the campaign had ended."""
    NEEDS_WEEKS = "needs weeks"
    BY_CHANCE = "by chance"
    """Two of five of its runs give wrong results, and none did."""
    FEW_GPUS = "few gpus"
    LIKE_PEERS = "like peers"
    HIDDEN = "hidden"
    """More than about one GPU in four is faulty: they hide each other."""
    MAY_BE_CHANCE = "may be chance"


@dataclass(frozen=True)
class Planted:
    """A fault of a simulated GPU, and the verdict that was found."""

    gpu: str
    kind: str
    found: str
    """The kind of the verdict; '' if the GPU has none."""
    miss: Miss | None = None
    """None where it was found as what it is."""
    gpus: int = 0
    """That it was compared with, itself included."""
    slow: int = 0
    """GPUs whose faults make them slower."""
    slower_pct: float | None = None
    """Than its peers, in the workload in which it is slowest; None where that is too little to matter."""
    workload: str = ""
    rise_pct: float | None = None
    """By how much its temperature rises more a watt than that of its peers; None where that is too little."""


def compared(
    planted: Sequence[Fault], judged: Judgement, campaign: Probed, ended_ns: int | None = None
) -> tuple[Planted, ...]:
    """Each fault with the verdict that was found. `ended_ns`: when the campaign ended, UTC."""
    verdicts, model = judged.by_key(campaign.gpus), Model(campaign)
    slow = sum(fault.kind in _SLOW for fault in planted)
    return tuple(
        _compared(fault, [verdict.kind for verdict in verdicts.get(fault.uuid, ())], judged, model, slow, ended_ns)
        for fault in planted
    )


def falsely_named(planted: Sequence[Planted], judged: Judgement, campaign: Probed) -> list[str]:
    """The healthy GPUs that a verdict covers, be it of the GPU, its node or a batch."""
    faulty = {fault.gpu for fault in planted}
    return [gpu for gpu in judged.by_key(campaign.gpus, batches=True) if gpu not in faulty]


def _compared(
    fault: Fault, kinds: Sequence[Kind], judged: Judgement, model: Model, slow: int, ended_ns: int | None
) -> Planted:  # fmt: skip
    kind = LOOKS_LIKE[fault.kind]
    planted = Planted(fault.uuid, fault.kind, str(kind if kind in kinds else next(iter(kinds), "")), slow=slow)
    if planted.found:
        return planted if planted.found == kind else replace(planted, miss=Miss.OTHER_KIND)
    if fault.began_ns is not None and ended_ns is not None and fault.began_ns >= ended_ns:
        return replace(planted, miss=Miss.NOT_YET)
    by_itself = {"drift": Miss.NEEDS_WEEKS, "wrong_results": Miss.BY_CHANCE}.get(fault.kind)
    if by_itself is not None or not judged.gpus:
        return replace(planted, miss=by_itself or Miss.FEW_GPUS)
    return _beside_peers(planted, model)


def _beside_peers(planted: Planted, model: Model) -> Planted:
    """A fault that no verdict names, with how far its GPU is from its peers."""
    gpus, place = len(model.gpus), model.place.get(planted.gpu)
    if place is None:
        return replace(planted, miss=Miss.LIKE_PEERS)
    time, rise = (_highest(figures, place) for figures in (model.times, model.of_channel(RISE)))
    if time is not None and time.effect[place] >= math.log1p(RELEVANT):
        gpus = int(time.peers[place])
        planted = replace(planted, slower_pct=in_pct(float(time.effect[place])), workload=time.workload)
    if rise is not None and rise.effect[place] >= rise.relevant:
        planted = replace(planted, rise_pct=in_pct(float(rise.effect[place])))
    if planted.slower_pct is None and planted.rise_pct is None:
        return replace(planted, miss=Miss.LIKE_PEERS)
    miss = Miss.HIDDEN if planted.slow * HIDING > gpus else Miss.MAY_BE_CHANCE
    return replace(planted, miss=miss, gpus=gpus)


def _highest(figures: Sequence[Figure], gpu: int) -> Figure | None:
    """The figure in which a GPU lies highest above its peers; None where it has none."""
    known = (figure for figure in figures if math.isfinite(figure.effect[gpu]))
    return max(known, key=lambda figure: float(figure.effect[gpu]), default=None)
