"""The simulated faults of a fleet compared with the findings: which were found, which were missed, and why.

The caller gives the faults. They are used to judge the analysis and are never its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .probing import Probed, slowest
from .signatures import BUS, CEILING, COOLING, DRAM, LOST, POWER, SENSOR, SPOKEN, WRONG
from .standing_out import LEAST_GPUS, RELEVANT_PCT, RELEVANT_THERMAL_PCT, Judged

LOOKS_LIKE = {
    "brake": POWER,
    "hot": COOLING,
    "pinned": CEILING,
    "slow_memory": DRAM,
    "stuck_sensor": SENSOR,
    "drift": COOLING,
    "wrong_results": WRONG,
    "lost": LOST,
    "throttling": COOLING,
    "slow_nvlink": BUS,
    "retired_pages": DRAM,
}
"""The cause that the analysis should name, by kind of fault."""
_SLOW = ("brake", "hot", "pinned", "slow_memory")
"""The faults that make a GPU slower than its peers."""
_HIDING = 6
"""If more than one GPU in this many is slow, they count as the tail of the population (docs/report.md)."""


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
    """A fault of a simulated GPU, and the cause that was found."""

    gpu: str
    kind: str
    found: str
    """The cause that was named; '' if the GPU does not stand out."""
    remark: str = ""


def compared(
    planted: Sequence[Fault], judged: Judged, campaign: Probed, ended_ns: int | None = None
) -> tuple[Planted, ...]:
    """Each fault with the cause that was found. `ended_ns`: when the campaign ended, UTC."""
    found = {one.gpu: one for one in judged.found}
    rows = []
    for fault in planted:
        one, remark = found.get(fault.uuid), ""
        if one is None:
            remark = _missed(fault, sum(each.kind in _SLOW for each in planted), judged, ended_ns, campaign)
        elif one.cause != LOOKS_LIKE[fault.kind]:
            remark = f"found, but not as {SPOKEN[LOOKS_LIKE[fault.kind]]}"
        rows.append(Planted(fault.uuid, fault.kind, "" if one is None else one.cause, remark))
    return tuple(rows)


def _missed(fault: Fault, slow: int, judged: Judged, ended_ns: int | None, campaign: Probed) -> str:
    """Why a fault was not found; `slow` is the number of GPUs whose faults make them slower."""
    if fault.began_ns is not None and ended_ns is not None and fault.began_ns >= ended_ns:
        return "it would have set in after the campaign had ended"
    if fault.kind == "drift":
        return "it grows over weeks: one campaign is too short to show it"
    if fault.kind == "wrong_results":
        return "two of five of its runs give wrong results: by chance, none did here"
    if not judged.looks:
        return f"there were too few GPUs to compare it with: {LEAST_GPUS} of a model are needed"
    excess, rise = slowest(campaign, fault.uuid), judged.rises.get(fault.uuid)
    if excess is not None and excess[1] >= RELEVANT_PCT:
        probe, pct, n = excess
        apart = f"it is {pct:.1f} % slower than the median in {probe}"
    elif rise is not None and rise.excess_pct >= RELEVANT_THERMAL_PCT:
        n, apart = rise.n, f"its temperature rises {rise.excess_pct:.0f} % more a watt than that of its peers"
    else:
        return "its figures are among those of its peers"
    if slow * _HIDING > n:
        return f"{apart}; but {slow} of {n:,} GPUs are faulty, and more than about one in {_HIDING} hide each other"
    return f"{apart}; among {n:,} such GPUs this may be chance"
