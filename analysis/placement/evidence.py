"""Which nodes are slow, how certain that is, what says so, and how old that is.

A node is as slow as its slowest GPU. That is true for a job that takes the whole node, and it can happen to a job that
gets any GPU of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...store.names import by_number, plain_workload
from ..statistics.ordering import Floats
from ..verdicts import Kind, Level
from ..verdicts.judgements import last_judgement
from .notes import many, note
from .scores import Scores
from .sets import SynchronousJob, ends

if TYPE_CHECKING:
    from ...store import Store

HARD = 1.1
"""More than what silicon and cooling make of healthy boards: on Longhorn 391 of 392 stay below 1.08 in SGEMM."""
SOFT = 1.05
MAX_AGE_DAYS = 90.0
MAX_SHARE = 0.05
"""The share of the nodes that may be excluded where none is stated, and one node however few there are."""
FEWEST_RUNS = 2
"""Of a GPU by which a node is hard."""
_SEVERAL_MODELS = 0.15
"""Between the 5th and 95th percentile, as logarithms: GPUs of one model differ less."""


@dataclass(frozen=True)
class AdviceOptions(SynchronousJob):
    """What a user may state for `advise`, of the job and of the nodes. Raises `InputError`."""

    partition: Collection[str] | None = None  # the nodes that may be used; all, where None
    hard: float = HARD
    soft: float = SOFT  # slowdowns: with its interval above `hard` a node is excluded, above `soft` put behind others
    max_share: float | None = None
    """Of the nodes, never more than this share is excluded; None: `MAX_SHARE`, or one node."""
    max_age: float = MAX_AGE_DAYS  # days from which a score may be out of date
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))  # UTC without zone

    def __post_init__(self) -> None:
        factors = {"hard": self.hard, "soft": self.soft, "locality-penalty": self.locality_penalty}
        for option, factor in factors.items():
            if not 1.0 <= factor < math.inf:
                raise InputError(f"{option}={factor} is not a factor: write a number such as 1.2")
        if self.soft > self.hard:
            raise InputError(f"soft={self.soft:g} is above hard={self.hard:g}")
        if not 0.0 <= (self.max_share or 0.0) <= 1.0:
            raise InputError(f"max-share={self.max_share} is no share: write a number from 0 to 1")
        if self.gpus < 1:
            raise InputError("a job needs at least one GPU")


@dataclass(frozen=True)
class NodeEvidence:
    """A slow node and what says so: its slowest GPU beside the median GPU of the fleet. Unknown values are None."""

    node: str
    tier: str
    """"hard": certainly slower than `hard`; "soft": certainly slower than `soft`, used for weights only."""
    excluded: bool  # whether the advice excludes it. Not all hard nodes are excluded if there are too many.
    worst_gpu: str
    worst_gpu_name: str  # `node/slot` where that is known, else as `worst_gpu`
    slowdown: float  # over the median GPU of `reference`
    lower: float
    upper: float
    runs: int
    run_ids: tuple[str, ...]
    newest: datetime | None
    simulated: bool  # True for simulated GPUs, which have no age
    age_days: float | None
    stale: str | None  # why the evidence may be out of date
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    fleet_sm_clock_mhz: float | None
    fleet_power_w: float | None
    fleet_temperature_c: float | None
    reference: str  # the GPUs that it is compared with, in words: of its model and board variant


@dataclass(frozen=True)
class Staleness:
    """How old the measurements behind the advice are."""

    newest: datetime | None
    newest_days: float | None
    oldest_days: float | None  # of the GPU whose last measurement is longest ago
    stale_gpus: int
    gpus: int
    simulated_gpus: int  # how many GPUs are simulated: they have no age
    says: str | None  # a sentence, where something is out of date

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


class WorkloadEvidence:
    """What the scores of one workload say of GPUs and nodes, beside others of their model and board variant."""

    def __init__(self, scores: Scores, workload: str, job: AdviceOptions) -> None:
        self.scores, self.scored, self.job = scores, scores.one(workload), job
        scored = self.scored
        self.slowdown, self.lower, self.upper = map(scored.slow, (scored.belief, scored.lower, scored.upper))
        self._newest: list[datetime | None] = scored.newest.astype("datetime64[us]").tolist()
        # Never hard by a single run, and only where a GPU stands out of all that are compared.
        slower = np.nan_to_num(self.lower) if scored.repeatable else np.zeros(len(self.lower))
        self.hard = (slower > job.hard) & (scored.runs >= FEWEST_RUNS) & scored.standing_out
        self.soft = slower > job.soft
        self.nodes: dict[str, list[int]] = {}
        """The GPUs measured on each usable node, by name."""
        usable = None if job.partition is None else set(job.partition)
        for gpu, node in enumerate(scores.nodes):
            if node is not None and np.isfinite(scored.belief[gpu]) and (usable is None or node in usable):
                self.nodes.setdefault(node, []).append(gpu)
        self.nodes = dict(sorted(self.nodes.items()))

    @property
    def node_scores(self) -> dict[str, float]:
        """The score of each node: that of its slowest GPU."""
        belief = self.scored.belief.tolist()
        return {name: max(belief[gpu] for gpu in gpus) for name, gpus in self.nodes.items()}

    @property
    def unmeasured(self) -> int:
        """How many nodes of the partition were not measured."""
        return len(set(self.job.partition or ()).difference(self.nodes))

    def tier(self, gpus: Sequence[int]) -> tuple[str, int] | None:
        """The tier of a node with these GPUs and the GPU that puts it there; None for a usual node."""
        for tier, slow in (("hard", self.hard), ("soft", self.soft)):
            numbers = [gpu for gpu in gpus if slow[gpu]]
            if numbers:
                return tier, max(numbers, key=lambda gpu: float(self.slowdown[gpu]))
        return None

    def slow_nodes(self) -> list[NodeEvidence]:
        """The hard and the soft nodes, the worst first. Which are excluded is decided later."""
        tiers = {node: self.tier(gpus) for node, gpus in self.nodes.items()}
        slow = [self._of_node(node, *tier) for node, tier in tiers.items() if tier is not None]
        return sorted(slow, key=lambda node: (node.tier != "hard", -node.slowdown, by_number(node.node)))

    def _of_node(self, node: str, tier: str, gpu: int) -> NodeEvidence:
        scores, scored = self.scores, self.scored
        conditions = {column: getattr(scored, column) for column in ("sm_clock_mhz", "power_w", "temperature_c")}
        peers = scored.reference == scored.reference[gpu]
        return NodeEvidence(
            node,
            tier,
            excluded=False,
            worst_gpu=scores.gpus[gpu],
            worst_gpu_name=scores.name(gpu),
            slowdown=float(self.slowdown[gpu]),
            lower=float(self.lower[gpu]),
            upper=float(self.upper[gpu]),
            runs=int(scored.runs[gpu]),
            run_ids=scored.run_ids.get(scores.gpus[gpu], ()),
            newest=self._newest[gpu],
            simulated=scores.places[gpu].simulated,
            age_days=self._age_days(gpu),
            stale=self._stale(gpu),
            **{column: _median(values[[gpu]]) for column, values in conditions.items()},
            **{f"fleet_{column}": _median(values[peers]) for column, values in conditions.items()},
            reference=str(scored.references[scored.reference[gpu]]),
        )

    def _age_days(self, gpu: int) -> float | None:
        """How many days ago a GPU was measured last; None if that is not known, and for a simulated GPU."""
        newest = self._newest[gpu]
        simulated = self.scores.places[gpu].simulated
        return None if newest is None or simulated else (self.job.now - newest) / timedelta(days=1)

    def _stale(self, gpu: int) -> str | None:
        """Why a GPU's score may be out of date; None if it is not."""
        newest = self._newest[gpu]
        if newest is None:
            return note("undated")
        for (_, before), (since, driver) in pairwise(self.scores.places[gpu].drivers):
            if since is not None and since > newest:
                return note("driver", before=before, after=driver, since=since)
        days = self._age_days(gpu)
        return note("old", days=days) if days is not None and days > self.job.max_age else None

    def staleness(self, gpus: Sequence[int]) -> Staleness:
        """How old the scores of some GPUs are."""
        ages = [age for gpu in gpus if (age := self._age_days(gpu)) is not None]
        reasons = [reason for gpu in gpus if (reason := self._stale(gpu)) is not None]
        says = None
        if reasons:
            which = "all" if len(reasons) == len(gpus) else f"{len(reasons):,} of {len(gpus):,}"
            says = note("stale", which=which, reason=reasons[0])
        return Staleness(
            newest=max((newest for gpu in gpus if (newest := self._newest[gpu]) is not None), default=None),
            newest_days=min(ages, default=None),
            oldest_days=max(ages, default=None),
            stale_gpus=len(reasons),
            gpus=len(gpus),
            simulated_gpus=sum(self.scores.places[gpu].simulated for gpu in gpus),
            says=says,
        )

    def cautions(self, gpus: Sequence[int]) -> Iterator[str]:
        """Notes on what cannot be told of these GPUs: by comparing them, of their nodes, and where runs disagree."""
        scores, scored, job = self.scores, self.scored, self.job
        if job.partition is not None and self.unmeasured:
            yield note("unmeasured", count=self.unmeasured, total=len(set(job.partition)))
        for number, reference in enumerate(scored.references):
            if reference.nodes == 1 and reference.gpus > 1:
                [host] = {scores.nodes[gpu] for gpu in np.flatnonzero(scored.reference == number)} - {None}
                yield note("one_node", reference=reference, node=host)
        low, high = ends(np.log(scored.raw[np.isfinite(scored.raw)]))
        if job.partition is None and scored.references[0].model is None and high - low > _SEVERAL_MODELS:
            yield note("several_models")
        homeless = [gpu for gpu, node in enumerate(scores.nodes) if node is None]
        for gpu in homeless:
            if self.hard[gpu]:
                yield note("slow_homeless", gpu=scores.name(gpu), times=self.slowdown[gpu])
        doubtful = (self.upper > job.hard) & (self.lower <= job.soft) & (scored.runs > 1) & scored.repeatable
        unclear = [gpu for gpu in sorted({*gpus, *homeless}) if doubtful[gpu]]
        if unclear:
            gpu = max(unclear, key=lambda gpu: float(scored.belief[gpu]))
            node, place = scores.nodes[gpu], scores.places[gpu]
            name = scores.name(gpu) + (f" on {node}" if node is not None and place.slot is None else "")
            others = f"; {many(len(unclear) - 1, 'other is', 'others are')} like it" if len(unclear) > 1 else ""
            yield note("doubtful", gpu=name, low=self.lower[gpu], high=self.upper[gpu], others=others)


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


# -- one sitting only ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suspect:
    """A GPU that the judge names. Not excluded: a second sitting is missing."""

    gpu: str
    gpu_name: str
    node: str | None
    slowdown: float  # its time in the workload over that of the median GPU
    p: float | None  # the chance that a healthy GPU lies so far out, over all workloads
    finding: str  # what the judge calls it
    workloads: tuple[str, ...]  # in which it shows


def suspects(store: Store, scores: Scores, workloads: Iterable[str], soft: float) -> dict[str, tuple[Suspect, ...]]:
    """By workload, the GPUs that the judge names and that took more than `soft` times the usual time in it, the
    slowest first. None is looked for where the scores can tell what repeats.

    With one run of each GPU the scores cannot tell that. The judge looks at all workloads: a GPU that is slow in
    several of them is suspected after one campaign.
    """
    once = [name for name in workloads if scores.one(name).p is None]
    judged = last_judgement(store, scores.cluster) if once else None
    slow = [
        verdict
        for verdict in (judged.judgement.rows if judged else ())
        if verdict.level is not Level.BATCH and verdict.kind is not Kind.FAST and verdict.timed
    ]
    number = {scores.name(gpu): gpu for gpu in range(len(scores.gpus))} if slow else {}
    suspected: dict[str, tuple[Suspect, ...]] = {}
    for workload in once:
        scored, by_gpu = scores.one(workload), dict[int, Suspect]()
        slowdown = scored.slow(scored.raw)
        for verdict in slow:
            if plain_workload(workload) not in map(plain_workload, verdict.workloads):
                continue
            for name in verdict.gpus:
                gpu = number.get(name)
                if gpu is not None and slowdown[gpu] > soft and gpu not in by_gpu:
                    words = verdict.p, verdict.kind.value, verdict.workloads
                    by_gpu[gpu] = Suspect(scores.gpus[gpu], name, scores.nodes[gpu], float(slowdown[gpu]), *words)
        suspected[workload] = tuple(sorted(by_gpu.values(), key=lambda suspect: -suspect.slowdown))
    return suspected
