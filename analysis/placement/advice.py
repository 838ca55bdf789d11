"""Where a job of a workload should run, which nodes it should avoid, and how much time that saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ...errors import InputError
from ..statistics.ordering import Floats, Ints
from .once import Suspect
from .references import Reference
from .saying import finding
from .scores import SEED, Scores, WorkloadScores
from .tiers import HARD, SOFT, NodeEvidence, Nodes, age, evidence, nodes_of, stale, tier, when
from .worth import DRAWS, Gain, PlacedSet, worth

MAX_SHARE = 0.05
"""The share of the nodes that may be excluded where none is stated, and one node however few there are."""
MAX_AGE_DAYS = 90.0

LEAST_LEFT = 2
"""Of the GPUs that a job asks for, how many times as many must be left to choose from."""
_FAST = 0.25
"""The share of the nodes that is offered as fast."""
_SEVERAL = 0.15
"""Between the 5th and 95th percentile, as logarithms: GPUs of one model differ less."""


@dataclass(frozen=True)
class Cost:
    """What the exclusion takes away."""

    nodes: int
    nodes_excluded: int
    share: float
    gpus_left: int


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


@dataclass(frozen=True)
class Advice:
    """What to do with jobs of one workload. docs/placement.md defines every figure."""

    cluster: str
    workload: str
    gpus: int
    finding: str
    repeatable: bool
    sensitive: bool
    """Whether the GPUs differ enough in this workload to choose among them."""
    reason: str | None
    """Why there is nothing to choose by."""
    exclude: tuple[str, ...]
    prefer: tuple[str, ...]
    nodes: tuple[NodeEvidence, ...]
    score_of_node: dict[str, float]
    packed: PlacedSet | None
    spread: PlacedSet | None
    break_even: float | None
    """The locality penalty above which the packed set is the faster one; None where both or neither span nodes."""
    gains: tuple[Gain, ...]
    cost: Cost
    staleness: Staleness
    notes: tuple[str, ...]
    suspected: tuple[Suspect, ...] = ()
    """GPUs that are slow beyond doubt, but in one sitting; only where nobody knows what repeats. None is excluded."""
    references: tuple[Reference, ...] = ()
    """What the scores are relative to: the GPUs of one model, or of each of its board variants."""
    usual_ms: float = math.nan
    """The time of the median GPU of all that are compared."""
    kinds: tuple[Advice, ...] = ()
    """Where the GPUs are of several models, the advice on each: see `together`."""

    @property
    def leaves_all(self) -> bool:
        """Whether the finding is to exclude nothing: it says so itself."""
        known = self.reason is None and (self.sensitive or bool(self.nodes))
        return known and not any(node.tier == "hard" for node in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        """The advice as JSON-ready values; times as ISO 8601 in UTC."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat(timespec="seconds") + "Z" if isinstance(value, datetime) else value


def advise(
    scores: Scores,
    workload: str,
    *,
    gpus: int = 1,
    partition: Collection[str] | None = None,
    locality: float = 1.0,
    hard: float = HARD,
    soft: float = SOFT,
    max_share: float | None = None,
    max_age: float = MAX_AGE_DAYS,
    replicates: int = DRAWS,
    seed: int = SEED,
    now: datetime | None = None,
    suspected: Sequence[Suspect] = (),
) -> Advice:
    """The advice for a synchronous job of `workload` on `gpus` GPUs.

    `partition`: the nodes that may be used; all, where None. `locality`: factor on the time of a job that spans
    nodes. `hard`, `soft`: slowdowns from which a node is excluded or put behind others, if its interval lies above.
    `max_share`: of the nodes, never more than this share is excluded; None: `MAX_SHARE`, or one node. `max_age`: in
    days. `replicates`: draws behind the intervals. `now`: UTC without zone. `suspected`: as `suspects` finds them.

    Raises `InputError` for a workload without scores, for fewer GPUs than one and for more than were measured.
    """
    one = scores.one(workload)
    if locality < 1.0 or not 0.0 <= (max_share or 0.0) <= 1.0 or not 1.0 <= soft <= hard:
        raise InputError("the locality penalty must be at least 1, the share from 0 to 1, and 1 <= soft <= hard")
    now = now or datetime.now(UTC).replace(tzinfo=None)
    notes = scores.notes_on(workload)
    nodes = nodes_of(scores, workload, partition)
    suspected = tuple(its for its in suspected if partition is None or its.node in partition)
    unknown = _unmeasured(partition, nodes, notes)
    usable = _usable(one, nodes, partition is not None)
    if gpus < 1:
        raise InputError("a job needs at least one GPU")
    if gpus > len(usable):
        where = "of the partition " if partition is not None else ""
        number, were = ("1 GPU", "was") if len(usable) == 1 else (f"{len(usable)} GPUs", "were")
        raise InputError(
            f"the job needs {gpus} GPUs, but only {number} {where}on {scores.cluster} {were} measured in {workload}"
        )
    tiers = {name: tier(one, its, hard, soft) for name, its in zip(nodes.names, nodes.gpus, strict=True)}
    slow = sorted(
        ((name, *slow_by) for name, slow_by in tiers.items() if slow_by is not None),
        key=lambda row: (row[1] != "hard", -one.slow(one.belief)[row[2]], row[0]),
    )
    drained = [name for name, level, _ in slow if level == "hard"]
    _say_compared(scores, one, partition is not None, notes)
    _say_homeless(scores, one, hard, soft, notes)
    _say_doubtful(scores, one, usable, hard, soft, notes)
    exclude, cost, kept = _excluded(drained, nodes, unknown, gpus, max_share, notes)
    width = _width(one.belief[usable])
    sensitive = one.repeatable and (bool(drained) or width >= soft - 1.0)
    rng = np.random.default_rng(seed)
    found = worth(scores, one, usable, gpus, locality, _on(scores, drained), _on(scores, exclude), replicates, rng)
    staleness = _staleness(scores, one, usable, now, max_age)
    prefer = _fast(nodes, one, gpus, exclude) if sensitive else _slow_elsewhere(scores, one, nodes, hard, soft, notes)
    its = tuple(
        evidence(scores, workload, name, gpu, level, name in exclude, now, max_age) for name, level, gpu in slow
    )
    return Advice(
        cluster=scores.cluster,
        workload=workload,
        gpus=gpus,
        finding=finding(one, gpus, width, sensitive, its, hard, found.gains, prefer, kept, suspected),
        repeatable=one.repeatable,
        sensitive=sensitive,
        reason=one.reason,
        exclude=tuple(sorted(exclude)),
        prefer=prefer,
        nodes=its,
        score_of_node=nodes.scores(one.belief),
        packed=found.packed,
        spread=found.spread,
        break_even=found.break_even,
        gains=found.gains,
        cost=cost,
        staleness=staleness,
        notes=tuple(notes),
        suspected=suspected,
        references=one.references,
        usual_ms=one.usual_ms,
    )


def _unmeasured(partition: Collection[str] | None, nodes: Nodes, notes: list[str]) -> int:
    """How many nodes of the partition have no run."""
    if partition is None:
        return 0
    unknown = len(set(partition) - set(nodes.names))
    if unknown:
        notes.append(f"{unknown:,} of the {len(set(partition)):,} nodes of the partition were not measured")
    return unknown


def _usable(one: WorkloadScores, nodes: Nodes, bounded: bool) -> Ints:
    """The GPUs to choose among: those on a known node, or all where no node is known."""
    if nodes.names or bounded:
        return np.array(sorted(gpu for its in nodes.gpus for gpu in its), dtype=np.intp)
    return np.flatnonzero(np.isfinite(one.belief))


def _say_compared(scores: Scores, one: WorkloadScores, bounded: bool, notes: list[str]) -> None:
    """Note what cannot be told by comparing these GPUs."""
    for number, reference in enumerate(one.references):
        if reference.nodes == 1 and reference.gpus > 1:
            host = {scores.nodes[gpu] for gpu in np.flatnonzero(one.reference == number)} - {None}
            notes.append(
                f"{reference} are compared only with each other: whether {host.pop()} is slow as a whole cannot be told"
            )
    level = np.log(one.raw[np.isfinite(one.raw)])
    if not bounded and one.references[0].model is None and np.ptp(np.quantile(level, (0.05, 0.95))) > _SEVERAL:
        notes.append(
            "the store does not name the model of these GPUs, and their times differ as those of several models may: "
            "then choose a partition (--partition), or import the models (`whorl import --map COLUMN=model`)"
        )


def _say_homeless(scores: Scores, one: WorkloadScores, hard: float, soft: float, notes: list[str]) -> None:
    for gpu in np.flatnonzero(np.isfinite(one.belief) & np.array([node is None for node in scores.nodes])):
        found = tier(one, [int(gpu)], hard, soft)
        if found is not None and found[0] == "hard":
            takes = one.slow(one.belief)[gpu]
            notes.append(
                f"{scores.name(int(gpu))} is certainly slow ({takes:.2f} times the usual time), but its node "
                "is not known: find it"
            )


def _say_doubtful(
    scores: Scores, one: WorkloadScores, usable: Ints, hard: float, soft: float, notes: list[str]
) -> None:
    """Note the GPUs that may be hard and may be usual."""
    if not one.repeatable:
        return
    homeless = [gpu for gpu, node in enumerate(scores.nodes) if node is None]
    lower, upper = one.slow(one.lower), one.slow(one.upper)
    doubtful = (upper > hard) & (lower <= soft) & (one.runs > 1)
    may = [int(gpu) for gpu in np.union1d(usable, np.array(homeless, dtype=np.intp)) if doubtful[gpu]]
    may.sort(key=lambda gpu: -one.belief[gpu])
    if may:
        gpu = may[0]
        known = scores.nodes[gpu] is not None and scores.places[gpu].slot is None
        where = f" on {scores.nodes[gpu]}" if known else ""
        others = len(may) - 1
        more = f"; {others:,} other{' is' if others == 1 else 's are'} like it" if others else ""
        notes.append(
            f"the runs of {scores.name(gpu)}{where} disagree: it takes between {lower[gpu]:.2f} and "
            f"{upper[gpu]:.2f} times the usual time{more}; measure again"
        )


def _on(scores: Scores, nodes: Collection[str]) -> np.typing.NDArray[np.bool_]:
    """(gpus,) whether each GPU is on one of `nodes`."""
    return np.array([node in nodes for node in scores.nodes], dtype=np.bool_)


def _excluded(
    drained: list[str], nodes: Nodes, unknown: int, gpus: int, max_share: float | None, notes: list[str]
) -> tuple[set[str], Cost, str | None]:
    """The nodes to exclude, worst first until one of the two limits is reached; the cost; and which limit it was."""
    size = {name: len(its) for name, its in zip(nodes.names, nodes.gpus, strict=True)}
    usual = float(np.median(list(size.values()))) if size else 0.0
    left = sum(size.values()) + int(unknown * usual)
    total = len(size) + unknown
    share = max(MAX_SHARE, 1.0 / max(1, total)) if max_share is None else max_share
    most = int(share * total + 1e-9)
    chosen: set[str] = set()
    kept: str | None = None
    for name in drained:
        if left - size[name] < LEAST_LEFT * gpus:
            notes.append(
                f"{name} is certainly slow, but not excluded: without it fewer than {LEAST_LEFT * gpus:,} GPUs would "
                "be left, twice what the job needs"
            )
            kept = "too few GPUs would be left"
            break
        if len(chosen) == most:
            notes.append(_above_share(len(drained), most, total, share))
            kept = f"one node of {total:,} is more than --max-share {100 * share:.4g}% allows"
            break
        left -= size[name]
        chosen.add(name)
    return chosen, Cost(total, len(chosen), len(chosen) / total if total else 0.0, left), kept


def _above_share(slow: int, most: int, total: int, max_share: float) -> str:
    """That the share keeps some nodes from being excluded, and which share would exclude them."""
    wanted = math.ceil(100.0 * slow / total - 1e-9)
    are = "1 node is" if slow == 1 else f"{slow:,} nodes are"
    allowed = "none may" if most == 0 else f"at most {most:,} may"
    return (
        f"{are} certainly slow, but of {total:,} nodes {allowed} be excluded ({100 * max_share:.4g} %): repair "
        f"{'it' if slow == 1 else 'the others' if most else 'them'}, or allow more (--max-share {wanted}%)"
    )


def _width(belief: Floats) -> float:
    """The relative distance between the 5th and 95th percentile of the scores."""
    low, high = np.quantile(belief, (0.05, 0.95))
    return float(high / low) - 1.0


def _staleness(scores: Scores, one: WorkloadScores, usable: Ints, now: datetime, max_age: float) -> Staleness:
    times = [at for at in (when(one, int(gpu)) for gpu in usable) if at is not None]
    old = [reason for reason in (stale(scores, one, int(gpu), now, max_age) for gpu in usable) if reason is not None]
    says = None
    if old:
        which = "all" if len(old) == len(usable) else f"{len(old):,} of {len(usable):,}"
        says = f"{which} scores may be out of date (for example: {old[0]}): measure again"
    ages = [days for days in (age(scores, one, int(gpu), now) for gpu in usable) if days is not None]
    return Staleness(
        newest=max(times, default=None),
        newest_days=min(ages, default=None),
        oldest_days=max(ages, default=None),
        stale_gpus=len(old),
        gpus=len(usable),
        simulated_gpus=sum(scores.places[gpu].simulated for gpu in usable),
        says=says,
    )


def _fast(nodes: Nodes, one: WorkloadScores, gpus: int, exclude: set[str]) -> tuple[str, ...]:
    """The fastest nodes, best first: a quarter of all nodes, or twice as many as the job needs if that is more."""
    score = nodes.scores(one.belief)
    best = sorted((name for name in score if name not in exclude), key=lambda name: (score[name], name))
    size = {name: len(its) for name, its in zip(nodes.names, nodes.gpus, strict=True)}
    enough = int(np.searchsorted(np.cumsum([size[name] for name in best]), 2 * gpus)) + 1
    usual = float(np.median(list(score.values()))) if score else 0.0
    count = max(int(_FAST * len(score)), enough)
    return tuple(name for name in best[:count] if score[name] < usual)


def _slow_elsewhere(
    scores: Scores, own: WorkloadScores, nodes: Nodes, hard: float, soft: float, notes: list[str]
) -> tuple[str, ...]:
    """The nodes that are soft in another, sensitive workload: a job that is not sensitive leaves the good ones to it.

    Hard nodes are never offered. Nor are nodes that are or may be slow in the job's `own` workload: if its differences
    repeat, the whole interval of a node's slowest GPU must lie below `soft`. If it is not known whether they repeat,
    no node is offered.
    """
    if own.p is None:
        return ()
    worst: dict[str, float] = {}
    broken: set[str] = set()
    for name, its in zip(nodes.names, nodes.gpus, strict=True):
        if own.repeatable and not max(own.upper[gpu] for gpu in its) < soft:
            broken.add(name)
    for other, one in scores.of.items():
        if one is own or not one.repeatable:
            continue
        theirs = nodes_of(scores, other, nodes.names)
        for name, its in zip(theirs.names, theirs.gpus, strict=True):
            found = tier(one, its, hard, soft)
            if found is not None and found[0] == "hard":
                broken.add(name)
            elif found is not None:
                worst[name] = max(worst.get(name, 0.0), float(one.belief[found[1]]))
    listed = tuple(sorted(worst.keys() - broken, key=lambda name: (-worst[name], name)))
    if listed:
        which = f"1 node ({listed[0]}) is" if len(listed) == 1 else f"{len(listed):,} nodes are"
        serve = "serves" if len(listed) == 1 else "serve"
        notes.append(f"{which} slow in other workloads, but {serve} {own.workload} as well as any other")
    return listed
