"""Which nodes are slow, how certain that is, the evidence, and its age.

A node is as slow as its slowest GPU. That is true for a job that takes the whole node, and it can happen to a job
that gets any GPU of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from ..statistics.ordering import Floats
from .scores import Scores
from .workload_scores import WorkloadScores

HARD = 1.1
"""More than what silicon and cooling make of healthy boards: on Longhorn 391 of 392 stay below 1.08 in SGEMM."""
SOFT = 1.05
_FEWEST_RUNS = 2


@dataclass(frozen=True)
class NodeEvidence:
    """A slow node and what says so: its slowest GPU beside the median GPU of the fleet. Unknown values are None."""

    node: str
    tier: str
    """"hard": certainly slower than `hard`; "soft": certainly slower than `soft`, used for weights only."""
    excluded: bool
    """Whether the advice excludes it. Not all hard nodes are excluded if there are too many."""
    worst_gpu: str
    worst_gpu_name: str
    """`node/slot` where that is known, else as `worst_gpu`."""
    slowdown: float
    """Over the median GPU of `reference`."""
    lower: float
    upper: float
    runs: int
    run_ids: tuple[str, ...]
    newest: datetime | None
    simulated: bool
    """True for simulated GPUs, which have no age."""
    age_days: float | None
    stale: str | None
    """Why the evidence may be out of date."""
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    fleet_sm_clock_mhz: float | None
    fleet_power_w: float | None
    fleet_temperature_c: float | None
    reference: str
    """The GPUs that it is compared with, in words: of its model and board variant."""


@dataclass(frozen=True)
class Nodes:
    """The usable nodes: the GPUs of each that were measured, and the slowest of them."""

    names: tuple[str, ...]
    gpus: tuple[tuple[int, ...], ...]
    worst: tuple[int, ...]

    def scores(self, belief: Floats) -> dict[str, float]:
        """The score of each node: that of its slowest GPU."""
        return {name: float(belief[gpu]) for name, gpu in zip(self.names, self.worst, strict=True)}


def nodes_of(scores: Scores, workload: str, usable: Collection[str] | None) -> Nodes:
    """The nodes with a GPU measured in `workload`, of `usable` where given, by name."""
    belief = scores.belief(workload).tolist()
    lower = scores.of[workload].lower.tolist()
    found: dict[str, list[int]] = {}
    usable = None if usable is None else set(usable)
    for gpu, node in enumerate(scores.nodes):
        if node is not None and math.isfinite(belief[gpu]) and (usable is None or node in usable):
            found.setdefault(node, []).append(gpu)
    names = tuple(sorted(found))
    worst = tuple(max(found[name], key=lambda gpu: (belief[gpu], lower[gpu])) for name in names)
    return Nodes(names, tuple(tuple(found[name]) for name in names), worst)


def tier(one: WorkloadScores, gpus: Sequence[int], hard: float, soft: float) -> tuple[str, int] | None:
    """The tier of a node with these GPUs and the GPU that puts it there; None for a usual node.

    Never "hard" by one run, and only by a GPU that stands out of all that are compared. A GPU is slow beside those of
    its own model and board variant.
    """
    found: tuple[str, int] | None = None
    usual = one.usual
    for gpu in sorted(gpus, key=lambda gpu: -one.belief[gpu] / usual[gpu]):
        lower = one.lower[gpu] / usual[gpu]
        if not one.repeatable or not np.isfinite(lower):
            continue
        if lower > hard and one.runs[gpu] >= _FEWEST_RUNS and one.standing_out[gpu]:
            return "hard", gpu
        if found is None and lower > soft:
            found = "soft", gpu
    return found


def evidence(
    scores: Scores, workload: str, node: str, gpu: int, tier: str, excluded: bool, now: datetime, max_age: float
) -> NodeEvidence:
    """What says that `node` is slow: GPU number `gpu`."""
    one = scores.of[workload]
    newest = when(one, gpu)
    belief, lower, upper = (values[gpu] / one.usual[gpu] for values in (one.belief, one.lower, one.upper))
    conditions = {name: getattr(one, name) for name in ("sm_clock_mhz", "power_w", "temperature_c")}
    alike = one.reference == one.reference[gpu]
    return NodeEvidence(
        node,
        tier,
        excluded,
        scores.gpus[gpu],
        scores.name(gpu),
        float(belief),
        float(lower),
        float(upper),
        int(one.runs[gpu]),
        one.run_ids.get(scores.gpus[gpu], ()),
        newest,
        scores.places[gpu].simulated,
        age(scores, one, gpu, now),
        stale(scores, one, gpu, now, max_age),
        **{name: _known(values[gpu]) for name, values in conditions.items()},
        **{f"fleet_{name}": _median(values[alike]) for name, values in conditions.items()},
        reference=str(one.references[one.reference[gpu]]),
    )


def when(one: WorkloadScores, gpu: int) -> datetime | None:
    """When a GPU was measured last, UTC."""
    at = one.newest[gpu]
    return None if np.isnat(at) else at.astype("datetime64[us]").item()


def age(scores: Scores, one: WorkloadScores, gpu: int, now: datetime) -> float | None:
    """How many days ago a GPU was measured last; None if that is not known, and for a simulated GPU."""
    newest = when(one, gpu)
    return None if newest is None or scores.places[gpu].simulated else (now - newest) / timedelta(days=1)


def stale(scores: Scores, one: WorkloadScores, gpu: int, now: datetime, max_age: float) -> str | None:
    """Why a GPU's score may be out of date; None if it is not."""
    newest = when(one, gpu)
    if newest is None:
        return "the date of its measurement is not known"
    last = None
    for seen, driver in scores.places[gpu].drivers:
        if last is not None and seen is not None and seen > newest:
            return f"the driver changed from {last} to {driver} after it was measured (seen {seen:%Y-%m-%d})"
        last = driver
    days = age(scores, one, gpu, now)
    return f"measured {days:,.0f} days ago" if days is not None and days > max_age else None


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
