"""Where a job of a workload should run, which nodes it should avoid, and how much time that saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ...errors import InputError
from ...store.names import by_number
from ..statistics.ordering import Floats, Ints
from .noting import say_compared, say_doubtful, say_homeless
from .offering import fast, slow_elsewhere
from .once import Suspect
from .references import Reference
from .saying import finding
from .scores import SEED, Scores
from .tiers import HARD, SOFT, NodeEvidence, Nodes, age, evidence, nodes_of, stale, tier, when
from .workload_scores import WorkloadScores
from .worth import DRAWS, Gain, PlacedSet, worth

MAX_SHARE = 0.05
"""The share of the nodes that may be excluded where none is stated, and one node however few there are."""
MAX_AGE_DAYS = 90.0

LEAST_LEFT = 2
"""Of the GPUs that a job asks for, how many times as many must be left to choose from."""


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
    kind: str = ""
    """The kind of the workload that it rests on, as the scores call it: `workload` is a shorter name where GPUs are of
    several models. "" for all of `kinds`."""

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
        key=lambda row: (row[1] != "hard", -one.slow(one.belief)[row[2]], by_number(row[0])),
    )
    drained = [name for name, level, _ in slow if level == "hard"]
    say_compared(scores, one, partition is not None, notes)
    say_homeless(scores, one, hard, soft, notes)
    say_doubtful(scores, one, usable, hard, soft, notes)
    exclude, cost, kept = _excluded(drained, nodes, unknown, gpus, max_share, notes)
    width = _width(one.belief[usable])
    sensitive = one.repeatable and (bool(drained) or width >= soft - 1.0)
    rng = np.random.default_rng(seed)
    found = worth(scores, one, usable, gpus, locality, _on(scores, drained), _on(scores, exclude), replicates, rng)
    staleness = _staleness(scores, one, usable, now, max_age)
    prefer = fast(nodes, one, gpus, exclude) if sensitive else slow_elsewhere(scores, one, nodes, hard, soft, notes)
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
        exclude=tuple(sorted(exclude, key=by_number)),
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
        kind=workload,
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
    dated = usable[~np.isnat(one.newest[usable])]
    in_time = dated[np.argsort(one.newest[dated])].tolist()
    real = [gpu for gpu in in_time if not scores.places[gpu].simulated]
    old = [reason for reason in (stale(scores, one, int(gpu), now, max_age) for gpu in usable) if reason is not None]
    says = None
    if old:
        which = "all" if len(old) == len(usable) else f"{len(old):,} of {len(usable):,}"
        says = f"{which} scores may be out of date (for example: {old[0]}): measure again"
    return Staleness(
        newest=when(one, in_time[-1]) if in_time else None,
        newest_days=age(scores, one, real[-1], now) if real else None,
        oldest_days=age(scores, one, real[0], now) if real else None,
        stale_gpus=len(old),
        gpus=len(usable),
        simulated_gpus=sum(scores.places[gpu].simulated for gpu in usable),
        says=says,
    )
