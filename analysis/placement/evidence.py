"""Which nodes are slow, how certain that is, what says so, and how old that is.

A node is as slow as its slowest GPU. That is true for a job that takes the whole node, and it can happen to a job that
gets any GPU of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.names import plain_workload
from ..statistics.ordering import Floats, Ints
from ..verdicts import Kind, Level, Verdict
from ..verdicts.judgements import last_judgement
from .scores import Scores, WorkloadScores

if TYPE_CHECKING:
    from ...store import Store

HARD = 1.1
"""More than what silicon and cooling make of healthy boards: on Longhorn 391 of 392 stay below 1.08 in SGEMM."""
SOFT = 1.05
MAX_AGE_DAYS = 90.0
_FEWEST_RUNS = 2
"""Of a GPU by which a node is hard."""


@dataclass(frozen=True)
class SlowLimits:
    """From which slowdown a node is hard or soft, and from which age (days) a score is out of date; the time (UTC)."""

    hard: float
    soft: float
    max_age: float
    now: datetime


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
class MeasuredNodes:
    """The usable nodes: the GPUs of each that were measured, and the slowest of them."""

    names: tuple[str, ...]
    gpus: tuple[tuple[int, ...], ...]
    worst: tuple[int, ...]

    def scores(self, belief: Floats) -> dict[str, float]:
        """The score of each node: that of its slowest GPU."""
        return {name: float(belief[gpu]) for name, gpu in zip(self.names, self.worst, strict=True)}

    @property
    def sizes(self) -> dict[str, int]:
        """How many GPUs of each were measured."""
        return {name: len(gpus) for name, gpus in zip(self.names, self.gpus, strict=True)}


def measured_nodes(scores: Scores, workload: str, usable: Collection[str] | None) -> MeasuredNodes:
    """The nodes with a GPU measured in `workload`, of `usable` where given, by name."""
    belief, lower = scores.belief(workload).tolist(), scores.of[workload].lower.tolist()
    usable = None if usable is None else set(usable)
    gpus_of: dict[str, list[int]] = {}
    for gpu, node in enumerate(scores.nodes):
        if node is not None and math.isfinite(belief[gpu]) and (usable is None or node in usable):
            gpus_of.setdefault(node, []).append(gpu)
    names = tuple(sorted(gpus_of))
    worst = tuple(max(gpus_of[name], key=lambda gpu: (belief[gpu], lower[gpu])) for name in names)
    return MeasuredNodes(names, tuple(tuple(gpus_of[name]) for name in names), worst)


class Tiers:
    """Which GPUs are hard or soft in one workload: certainly slower than others of their model and board variant.

    Never hard by a single run, and only where a GPU stands out of all that are compared.
    """

    def __init__(self, scored: WorkloadScores, limits: SlowLimits) -> None:
        self._slow = scored.slow(scored.belief)
        lower = np.nan_to_num(scored.slow(scored.lower), nan=0.0) if scored.repeatable else np.zeros(len(scored.lower))
        self._soft = lower > limits.soft
        self._hard = (lower > limits.hard) & (scored.runs >= _FEWEST_RUNS) & scored.standing_out

    def of(self, gpus: Sequence[int]) -> tuple[str, int] | None:
        """The tier of a node with these GPUs and the GPU that puts it there; None for a usual node."""
        for tier, slow in (("hard", self._hard), ("soft", self._soft)):
            numbers = [gpu for gpu in gpus if slow[gpu]]
            if numbers:
                return tier, max(numbers, key=lambda gpu: float(self._slow[gpu]))
        return None


def evidence(
    scores: Scores, scored: WorkloadScores, node: str, limits: SlowLimits, *, gpu: int, tier: str
) -> NodeEvidence:
    """What says that `node` is slow: GPU number `gpu`. Whether it is excluded is decided later."""
    slowdown, lower, upper = (float(scored.slow(values)[gpu]) for values in (scored.belief, scored.lower, scored.upper))
    conditions = {name: getattr(scored, name) for name in ("sm_clock_mhz", "power_w", "temperature_c")}
    peers = scored.reference == scored.reference[gpu]
    return NodeEvidence(
        node,
        tier,
        excluded=False,
        worst_gpu=scores.gpus[gpu],
        worst_gpu_name=scores.name(gpu),
        slowdown=slowdown,
        lower=lower,
        upper=upper,
        runs=int(scored.runs[gpu]),
        run_ids=scored.run_ids.get(scores.gpus[gpu], ()),
        newest=newest_run(scored, gpu),
        simulated=scores.places[gpu].simulated,
        age_days=age_days(scores, scored, gpu, limits.now),
        stale=stale(scores, scored, gpu, limits),
        **{name: _or_none(values[gpu]) for name, values in conditions.items()},
        **{f"fleet_{name}": _median(values[peers]) for name, values in conditions.items()},
        reference=str(scored.references[scored.reference[gpu]]),
    )


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


# -- how old it is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staleness:
    """How old the measurements behind the advice are."""

    newest: datetime | None
    newest_days: float | None
    oldest_days: float | None
    """Of the GPU whose last measurement is longest ago."""
    stale_gpus: int
    gpus: int
    simulated_gpus: int
    """How many GPUs are simulated: they have no age."""
    says: str | None
    """A sentence, where something is out of date."""

    @classmethod
    def together(cls, parts: Sequence[Staleness]) -> Staleness:
        """Of the measurements behind several advices, on other GPUs each."""

        def stated(name: str) -> list[Any]:
            return [value for part in parts if (value := getattr(part, name)) is not None]

        return cls(
            newest=max(stated("newest"), default=None),
            newest_days=min(stated("newest_days"), default=None),
            oldest_days=max(stated("oldest_days"), default=None),
            stale_gpus=sum(stated("stale_gpus")),
            gpus=sum(stated("gpus")),
            simulated_gpus=sum(stated("simulated_gpus")),
            says="; ".join(dict.fromkeys(stated("says"))) or None,
        )


def newest_run(scored: WorkloadScores, gpu: int) -> datetime | None:
    """When a GPU was measured last, UTC."""
    newest = scored.newest[gpu]
    return None if np.isnat(newest) else newest.astype("datetime64[us]").item()


def age_days(scores: Scores, scored: WorkloadScores, gpu: int, now: datetime) -> float | None:
    """How many days ago a GPU was measured last; None if that is not known, and for a simulated GPU."""
    newest = newest_run(scored, gpu)
    return None if newest is None or scores.places[gpu].simulated else (now - newest) / timedelta(days=1)


def stale(scores: Scores, scored: WorkloadScores, gpu: int, limits: SlowLimits) -> str | None:
    """Why a GPU's score may be out of date; None if it is not."""
    newest = newest_run(scored, gpu)
    if newest is None:
        return "the date of its measurement is not known"
    for (_, before), (since, driver) in pairwise(scores.places[gpu].drivers):
        if since is not None and since > newest:
            return f"the driver changed from {before} to {driver} after it was measured (seen {since:%Y-%m-%d})"
    days = age_days(scores, scored, gpu, limits.now)
    return f"measured {days:,.0f} days ago" if days is not None and days > limits.max_age else None


def staleness(scores: Scores, scored: WorkloadScores, usable: Ints, limits: SlowLimits) -> Staleness:
    """How old the scores of the GPUs `usable` are."""
    dated = usable[~np.isnat(scored.newest[usable])]
    in_time = dated[np.argsort(scored.newest[dated])].tolist()
    real = [gpu for gpu in in_time if not scores.places[gpu].simulated]
    reasons = [reason for gpu in usable.tolist() if (reason := stale(scores, scored, gpu, limits)) is not None]
    says = None
    if reasons:
        which = "all" if len(reasons) == len(usable) else f"{len(reasons):,} of {len(usable):,}"
        says = f"{which} scores may be out of date (for example: {reasons[0]}): measure again"
    return Staleness(
        newest=newest_run(scored, in_time[-1]) if in_time else None,
        newest_days=age_days(scores, scored, real[-1], limits.now) if real else None,
        oldest_days=age_days(scores, scored, real[0], limits.now) if real else None,
        stale_gpus=len(reasons),
        gpus=len(usable),
        simulated_gpus=sum(scores.places[gpu].simulated for gpu in usable.tolist()),
        says=says,
    )


# -- one sitting only ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suspect:
    """A GPU that the judge names. Not excluded: a second sitting is missing."""

    gpu: str
    gpu_name: str
    node: str | None
    slowdown: float
    """Its time in the workload over that of the median GPU."""
    p: float | None
    """The chance that a healthy GPU lies so far out, over all workloads."""
    finding: str
    """What the judge calls it."""
    workloads: tuple[str, ...]
    """In which it shows."""


def suspects(store: Store, scores: Scores, workloads: Iterable[str], soft: float) -> dict[str, tuple[Suspect, ...]]:
    """By workload, the GPUs that the judge names and that took more than `soft` times the usual time in it, the
    slowest first. None is looked for where the scores can tell what repeats.

    With one run of each GPU the scores cannot tell that. The judge looks at all workloads: a GPU that is slow in
    several of them is suspected after one campaign.
    """
    once = [name for name in workloads if scores.one(name).p is None]
    judged = last_judgement(store, scores.cluster) if once else None
    if judged is None:
        return dict.fromkeys(once, ())
    slow = [
        verdict
        for verdict in judged.judgement.rows
        if verdict.level is not Level.BATCH and verdict.kind is not Kind.FAST and verdict.timed
    ]
    return {name: _suspects_in(scores, name, slow, soft) for name in once}


def _suspects_in(scores: Scores, workload: str, verdicts: Iterable[Verdict], soft: float) -> tuple[Suspect, ...]:
    scored = scores.one(workload)
    slow = scored.slow(scored.raw)
    number = {scores.name(gpu): gpu for gpu in range(len(scores.gpus))}
    by_gpu: dict[int, Suspect] = {}
    for verdict in verdicts:
        if plain_workload(workload) not in {plain_workload(name) for name in verdict.workloads}:
            continue
        for name in verdict.gpus:
            gpu = number.get(name)
            if gpu is None or not slow[gpu] > soft:
                continue
            suspect = Suspect(
                scores.gpus[gpu], name, scores.nodes[gpu], float(slow[gpu]), verdict.p, verdict.kind.value,
                verdict.workloads,
            )  # fmt: skip
            by_gpu.setdefault(gpu, suspect)
    return tuple(sorted(by_gpu.values(), key=lambda suspect: -suspect.slowdown))
