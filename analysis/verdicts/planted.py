"""The simulated faults of a fleet compared with the verdicts: which were found, which were missed, and why.

The caller gives the faults. They are used to judge the analysis and are never its input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from ..runs.probing import Probed
from . import Judgement, Kind
from .causes import Evidence
from .channels import RISE, channels
from .compare import LEAST_GPUS
from .levels import RELEVANT
from .model import usable
from .standing import standings, table

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
}
"""The kind of verdict that each kind of fault should have."""
_SLOW = ("brake", "hot", "pinned", "slow_memory")
"""The faults that make a GPU slower than its peers."""
_HIDING = 4
"""If more than one GPU in this many is slow, nobody knows which ones are the healthy ones."""


class Fault(Protocol):
    """The fault of a simulated GPU, and when it sets in (UTC ns; None: from the start)."""

    @property
    def uuid(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def began_ns(self) -> int | None: ...


@dataclass(frozen=True)
class Planted:
    """A fault of a simulated GPU, and the verdict that was found."""

    gpu: str
    kind: str
    found: str
    """The kind of the verdict; '' if the GPU has none."""
    remark: str = ""


def compared(
    planted: Sequence[Fault], judged: Judgement, campaign: Probed, ended_ns: int | None = None
) -> tuple[Planted, ...]:
    """Each fault with the verdict that was found. `ended_ns`: when the campaign ended, UTC."""
    verdicts = judged.by_key(campaign.gpus)
    rows = []
    for fault in planted:
        kinds, wanted, remark = [one.kind for one in verdicts.get(fault.uuid, ())], LOOKS_LIKE[fault.kind], ""
        found = wanted if wanted in kinds else next(iter(kinds), "")
        if not found:
            remark = _missed(fault, sum(each.kind in _SLOW for each in planted), judged, ended_ns, campaign)
        elif found != wanted:
            remark = f"found, but not as {wanted}"
        rows.append(Planted(fault.uuid, fault.kind, str(found), remark))
    return tuple(rows)


def falsely_named(planted: Sequence[Planted], judged: Judgement, campaign: Probed) -> list[str]:
    """The healthy GPUs that a verdict covers, be it of the GPU, its node or a batch."""
    faulty = {one.gpu for one in planted}
    return [gpu for gpu in judged.by_key(campaign.gpus, batches=True) if gpu not in faulty]


def _missed(fault: Fault, slow: int, judged: Judgement, ended_ns: int | None, campaign: Probed) -> str:
    """Why a fault was not found; `slow` is the number of GPUs whose faults make them slower."""
    if fault.began_ns is not None and ended_ns is not None and fault.began_ns >= ended_ns:
        return "it would have set in after the campaign had ended"
    if fault.kind == "drift":
        return "it grows over weeks: one campaign is too short to show it"
    if fault.kind == "wrong_results":
        return "two of five of its runs give wrong results: by chance, none did here"
    if not judged.gpus:
        return f"there were too few GPUs to compare it with: {LEAST_GPUS} of a model are needed"
    rise, n, parts = _rise(campaign, fault.uuid), campaign.gpus.height, []
    times = table(standings(usable(campaign)[0], campaign.gpus), campaign.gpus["gpu"].to_list())
    own = times.filter(pl.col("gpu") == fault.uuid).sort("ratio")
    if own.height and (ratio := float(own["ratio"][-1])) >= 1 + RELEVANT:
        n = int(own["peers"][-1])
        parts.append(f"it is {100 * (ratio - 1):.1f} % slower than its peers in {own['workload'][-1]}")
    if rise is not None and rise >= RISE.relevant:
        parts.append(f"its temperature rises {100 * math.expm1(rise):.0f} % more a watt than that of its peers")
    if not parts:
        return "its figures are among those of its peers"
    apart = ", and ".join(parts)
    if slow * _HIDING > n:
        return f"{apart}; but {slow} of {n:,} GPUs are faulty, and more than about one in {_HIDING} hide each other"
    return f"{apart}; among {n:,} such GPUs this may be chance"


def _rise(campaign: Probed, gpu: str) -> float | None:
    """By how much its temperature rises more a watt than that of its peers (ln); None where that is not known."""
    rises = channels(Evidence.of(campaign))[RISE]
    by_gpu = dict(rises.group_by("gpu").agg(pl.col("value").median()).iter_rows())
    return by_gpu[gpu] - float(np.median(list(by_gpu.values()))) if gpu in by_gpu else None
