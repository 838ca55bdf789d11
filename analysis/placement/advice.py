"""What to do with jobs of one workload: which nodes to avoid and to prefer, and how much time that saves.

`advise` takes scores and gives plain frozen rows with `as_dict()`; it reads and writes nothing. A node is as slow as
its slowest GPU: that is true for a job that takes the whole node, and it can happen to a job that gets any GPU of it.
docs/placement.md defines every figure. What to do is said in words at the end of this file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number, plain_workload
from ..by_number import by_number as columns_by_number
from ..statistics.ordering import Floats, Ints
from ..verdicts import Kind, Level
from ..verdicts.judgements import last_judgement
from .notes import many, note, percent
from .scores import Reference, Scores, WorkloadScores
from .sets import Gain, PlacedSet, SynchronousJob, best_sets, ends

if TYPE_CHECKING:
    from ...store import Store

HARD = 1.1
"""More than what silicon and cooling make of healthy boards: on Longhorn 391 of 392 stay below 1.08 in SGEMM."""
SOFT = 1.05
MAX_AGE_DAYS = 90.0
MAX_SHARE = 0.05
"""The share of the nodes that may be excluded where none is stated, and one node however few there are."""
LEAST_LEFT = 2
"""Of the GPUs that a job asks for, how many times as many must be left to choose from."""
_FEWEST_RUNS = 2
"""Of a GPU by which a node is hard."""
_FAST = 0.25
"""The share of the nodes that is offered as fast."""
_SEVERAL_MODELS = 0.15
"""Between the 5th and 95th percentile, as logarithms: GPUs of one model differ less."""
EXCLUDED, KEPT, AVOIDED, PREFERRED, UNMARKED = "excluded", "hard, kept", "avoid", "prefer", ""
"""What the advice says about a node: `hard, kept` is certainly slow and not excluded; `avoid` is slow."""


@dataclass(frozen=True)
class AdviceOptions(SynchronousJob):
    """What a user may state for `advise`, of the job and of the nodes. Raises `InputError`."""

    partition: Collection[str] | None = None
    """The nodes that may be used; all, where None."""
    hard: float = HARD
    soft: float = SOFT
    """Slowdowns from which a node is excluded or put behind others, if its interval lies above."""
    max_share: float | None = None
    """Of the nodes, never more than this share is excluded; None: `MAX_SHARE`, or one node."""
    max_age: float = MAX_AGE_DAYS
    """Days from which a score may be out of date."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))
    """UTC without zone."""

    def __post_init__(self) -> None:
        if self.locality < 1.0 or not 0.0 <= (self.max_share or 0.0) <= 1.0 or not 1.0 <= self.soft <= self.hard:
            raise InputError("the locality penalty must be at least 1, the share from 0 to 1, and 1 <= soft <= hard")
        if self.gpus < 1:
            raise InputError("a job needs at least one GPU")


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
        comparable = self.reason is None and (self.sensitive or bool(self.nodes))
        return comparable and not self.hard_nodes

    @property
    def hard_nodes(self) -> tuple[str, ...]:
        """The nodes that are certainly slow, the worst first."""
        return tuple(node.node for node in self.nodes if node.tier == "hard")

    def as_dict(self) -> dict[str, Any]:
        """The advice as JSON-ready values; times as ISO 8601 in UTC."""
        document: dict[str, Any] = _plain(asdict(self))
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return value.isoformat(timespec="seconds") + "Z" if isinstance(value, datetime) else value


def advise(scores: Scores, workload: str, *, suspected: Sequence[Suspect] = (), **options: Any) -> Advice:
    """The advice for a synchronous job of `workload` on so many GPUs.

    `suspected`: as `suspects` finds them. `options`: those of `AdviceOptions`, by name.

    Raises `InputError` for a workload without scores, for fewer GPUs than one and for more than were measured.
    """
    scored, job = scores.one(workload), AdviceOptions(**options)
    nodes = measured_nodes(scores, scored, job.partition)
    usable = _usable(scored, nodes, job, scores.cluster)
    tiers = Tiers(scored, job)
    slow = sorted(
        (_evidence(scores, scored, job, node, tier) for node, gpus in nodes.items() if (tier := tiers.of(gpus))),
        key=lambda node: (node.tier != "hard", -node.slowdown, by_number(node.node)),
    )
    hard = [node.node for node in slow if node.tier == "hard"]
    notes = [*scores.notes_on(workload), *_cautions(scores, scored, nodes, usable, job=job)]
    exclude, cost, spared = _excluded(hard, nodes, job, notes)
    low, high = ends(scored.belief[usable])
    sensitive = scored.repeatable and (bool(hard) or high / low >= job.soft)
    drained, excluded = (np.isin(np.array(scores.nodes, dtype=object), list(names)) for names in (hard, exclude))
    best = best_sets(scores, scored, usable, job=job, drained=drained, excluded=excluded)
    prefer = _fast(nodes, scored, job, exclude) if sensitive else _slow_elsewhere(scores, scored, nodes, job)
    if prefer and not sensitive:
        which, serve = (
            many(len(prefer), f"node ({prefer[0]}) is", "nodes are"),
            "serves" if len(prefer) == 1 else "serve",
        )
        notes.append(note("slow_elsewhere", nodes=which, serve=serve, workload=workload))
    advice = Advice(
        cluster=scores.cluster,
        workload=workload,
        gpus=job.gpus,
        finding="",
        repeatable=scored.repeatable,
        sensitive=sensitive,
        reason=scored.reason,
        exclude=tuple(sorted(exclude, key=by_number)),
        prefer=prefer,
        nodes=tuple(replace(node, excluded=node.node in exclude) for node in slow),
        score_of_node=_node_scores(nodes, scored),
        packed=best.packed,
        spread=best.spread,
        break_even=best.break_even,
        gains=best.gains,
        cost=cost,
        staleness=_staleness(scores, scored, usable, job),
        notes=tuple(notes),
        suspected=tuple(gpu for gpu in suspected if job.partition is None or gpu.node in job.partition),
        references=scored.references,
        usual_ms=scored.usual_ms,
        kind=workload,
    )
    return replace(advice, finding=finding(advice, high / low - 1.0, job.hard, spared=spared, once=scored.p is None))


def measured_nodes(scores: Scores, scored: WorkloadScores, usable: Collection[str] | None) -> dict[str, list[int]]:
    """The nodes with a GPU measured in a workload, of `usable` where given, by name; and these GPUs of each."""
    usable = None if usable is None else set(usable)
    gpus_of: dict[str, list[int]] = {}
    for gpu in np.flatnonzero(np.isfinite(scored.belief)).tolist():
        node = scores.nodes[gpu]
        if node is not None and (usable is None or node in usable):
            gpus_of.setdefault(node, []).append(gpu)
    return dict(sorted(gpus_of.items()))


def _node_scores(nodes: Mapping[str, Sequence[int]], scored: WorkloadScores) -> dict[str, float]:
    """The score of each node: that of its slowest GPU."""
    belief = scored.belief.tolist()
    return {name: max(belief[gpu] for gpu in gpus) for name, gpus in nodes.items()}


def _usable(scored: WorkloadScores, nodes: Mapping[str, Sequence[int]], job: AdviceOptions, cluster: str) -> Ints:
    """The GPUs to choose among: those on a known node, or all where no node is known."""
    usable = np.flatnonzero(np.isfinite(scored.belief))
    if nodes or job.partition is not None:
        usable = np.array(sorted(gpu for members in nodes.values() for gpu in members), dtype=np.intp)
    if job.gpus > len(usable):
        part = "" if job.partition is None else "of the partition "
        number, were = ("1 GPU", "was") if len(usable) == 1 else (f"{len(usable)} GPUs", "were")
        raise InputError(
            f"the job needs {job.gpus} GPUs, but only {number} {part}on {cluster} {were} measured in {scored.workload}"
        )
    return usable


# -- which nodes are slow --------------------------------------------------------------------------------------------


class Tiers:
    """Which GPUs are hard or soft in one workload: certainly slower than others of their model and board variant.

    Never hard by a single run, and only where a GPU stands out of all that are compared.
    """

    def __init__(self, scored: WorkloadScores, limits: AdviceOptions) -> None:
        self._slowdown = scored.slow(scored.belief)
        lower = np.nan_to_num(scored.slow(scored.lower)) if scored.repeatable else np.zeros(len(scored.lower))
        hard = (lower > limits.hard) & (scored.runs >= _FEWEST_RUNS) & scored.standing_out
        self._tiers = {"hard": hard, "soft": lower > limits.soft}

    def of(self, gpus: Sequence[int]) -> tuple[str, int] | None:
        """The tier of a node with these GPUs and the GPU that puts it there; None for a usual node."""
        for tier, slow in self._tiers.items():
            numbers = [gpu for gpu in gpus if slow[gpu]]
            if numbers:
                return tier, max(numbers, key=lambda gpu: float(self._slowdown[gpu]))
        return None


def _evidence(
    scores: Scores, scored: WorkloadScores, limits: AdviceOptions, node: str, tier: tuple[str, int]
) -> NodeEvidence:
    """What says that `node` is slow: the GPU of its tier. Whether it is excluded is decided later."""
    name, gpu = tier
    slowdown, lower, upper = (float(scored.slow(values)[gpu]) for values in (scored.belief, scored.lower, scored.upper))
    conditions = {column: getattr(scored, column) for column in ("sm_clock_mhz", "power_w", "temperature_c")}
    peers = scored.reference == scored.reference[gpu]
    return NodeEvidence(
        node,
        name,
        excluded=False,
        worst_gpu=scores.gpus[gpu],
        worst_gpu_name=scores.name(gpu),
        slowdown=slowdown,
        lower=lower,
        upper=upper,
        runs=int(scored.runs[gpu]),
        run_ids=scored.run_ids.get(scores.gpus[gpu], ()),
        newest=_newest(scored, gpu),
        simulated=scores.places[gpu].simulated,
        age_days=_age_days(scores, scored, gpu, limits.now),
        stale=_stale(scores, scored, gpu, limits),
        **{column: _median(values[[gpu]]) for column, values in conditions.items()},
        **{f"fleet_{column}": _median(values[peers]) for column, values in conditions.items()},
        reference=str(scored.references[scored.reference[gpu]]),
    )


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _cautions(
    scores: Scores, scored: WorkloadScores, nodes: Mapping[str, Sequence[int]], usable: Ints, *, job: AdviceOptions
) -> Iterable[str]:
    """Notes on what cannot be told of these GPUs: by comparing them, of their nodes, and where their runs disagree."""
    if job.partition is not None and (unmeasured := len(set(job.partition).difference(nodes))):
        yield note("unmeasured", count=unmeasured, total=len(set(job.partition)))
    for number, reference in enumerate(scored.references):
        if reference.nodes == 1 and reference.gpus > 1:
            [host] = {scores.nodes[gpu] for gpu in np.flatnonzero(scored.reference == number)} - {None}
            yield note("one_node", reference=reference, node=host)
    low, high = ends(np.log(scored.raw[np.isfinite(scored.raw)]))
    if job.partition is None and scored.references[0].model is None and high - low > _SEVERAL_MODELS:
        yield note("several_models")
    tiers, slowdown = Tiers(scored, job), scored.slow(scored.belief)
    homeless = np.array([gpu for gpu, node in enumerate(scores.nodes) if node is None], dtype=np.intp)
    for gpu in homeless.tolist():
        if (tiers.of([gpu]) or ("",))[0] == "hard":
            yield note("slow_homeless", gpu=scores.name(gpu), times=slowdown[gpu])
    lower, upper = scored.slow(scored.lower), scored.slow(scored.upper)
    doubtful = (upper > job.hard) & (lower <= job.soft) & (scored.runs > 1) & scored.repeatable
    gpus = [gpu for gpu in np.union1d(usable, homeless).tolist() if doubtful[gpu]]
    if gpus:
        gpu = max(gpus, key=lambda gpu: float(scored.belief[gpu]))
        node, place = scores.nodes[gpu], scores.places[gpu]
        name = scores.name(gpu) + (f" on {node}" if node is not None and place.slot is None else "")
        others = f"; {many(len(gpus) - 1, 'other is', 'others are')} like it" if len(gpus) > 1 else ""
        yield note("doubtful", gpu=name, low=lower[gpu], high=upper[gpu], others=others)


# -- which of them to exclude, and what to prefer --------------------------------------------------------------------


def _excluded(
    hard: Sequence[str], nodes: Mapping[str, Sequence[int]], job: AdviceOptions, notes: list[str]
) -> tuple[set[str], Cost, str | None]:
    """The nodes to exclude, worst first until one of the two limits is reached; the cost; and which limit it was."""
    unmeasured = len(set(job.partition or ()).difference(nodes))
    sizes = {name: len(gpus) for name, gpus in nodes.items()}
    usual = float(np.median(list(sizes.values()))) if sizes else 0.0
    gpus_left = sum(sizes.values()) + int(unmeasured * usual)
    total = len(sizes) + unmeasured
    share = max(MAX_SHARE, 1.0 / max(1, total)) if job.max_share is None else job.max_share
    most = int(share * total + 1e-9)
    exclude: set[str] = set()
    limit: str | None = None
    for name in hard:
        if gpus_left - sizes[name] < LEAST_LEFT * job.gpus:
            notes.append(note("needed", node=name, least=LEAST_LEFT * job.gpus))
            limit = "too few GPUs would be left"
            break
        if len(exclude) == most:
            notes.append(
                note(
                    "too_many",
                    slow=many(len(hard), "node is", "nodes are"),
                    nodes=total,
                    allowed=f"at most {most:,} may" if most else "none may",
                    share=100 * share,
                    others="it" if len(hard) == 1 else "the others" if most else "them",
                    enough=math.ceil(100.0 * len(hard) / total - 1e-9),
                )
            )
            limit = f"one node of {total:,} is more than --max-share {100 * share:.4g}% allows"
            break
        gpus_left -= sizes[name]
        exclude.add(name)
    return exclude, Cost(total, len(exclude), len(exclude) / total if total else 0.0, gpus_left), limit


def _fast(
    nodes: Mapping[str, Sequence[int]], scored: WorkloadScores, job: AdviceOptions, exclude: Collection[str]
) -> tuple[str, ...]:
    """The fastest nodes, best first: a quarter of all nodes, or twice as many as the job needs if that is more."""
    score = _node_scores(nodes, scored)
    best = sorted((name for name in score if name not in exclude), key=lambda name: (score[name], by_number(name)))
    enough = int(np.searchsorted(np.cumsum([len(nodes[name]) for name in best]), 2 * job.gpus)) + 1
    usual = float(np.median(list(score.values()))) if score else 0.0
    return tuple(name for name in best[: max(int(_FAST * len(score)), enough)] if score[name] < usual)


def _slow_elsewhere(
    scores: Scores, scored: WorkloadScores, nodes: Mapping[str, Sequence[int]], limits: AdviceOptions
) -> tuple[str, ...]:
    """The nodes that are soft in another, sensitive workload: a job that is not sensitive leaves the good ones to it.

    Hard nodes are never offered. Nor are nodes that are or may be slow in the job's own workload: if its differences
    repeat, the whole interval of a node's slowest GPU must lie below `soft`. If it is not known whether they repeat,
    no node is offered.
    """
    if scored.p is None:
        return ()
    slow: set[str] = set()
    if scored.repeatable:
        slow = {name for name, gpus in nodes.items() if not max(scored.upper[gpus]) < limits.soft}
    worst: dict[str, float] = {}
    for elsewhere in scores.of.values():
        if elsewhere is scored or not elsewhere.repeatable:
            continue
        tiers = Tiers(elsewhere, limits)
        for name, gpus in measured_nodes(scores, elsewhere, nodes).items():
            tier, gpu = tiers.of(gpus) or ("", 0)
            if tier == "hard":
                slow.add(name)
            elif tier:
                worst[name] = max(worst.get(name, 0.0), float(elsewhere.belief[gpu]))
    return tuple(sorted(worst.keys() - slow, key=lambda name: (-worst[name], by_number(name))))


# -- how old the scores are ------------------------------------------------------------------------------------------


def _newest(scored: WorkloadScores, gpu: int) -> datetime | None:
    """When a GPU was measured last, UTC."""
    newest: datetime | None = scored.newest[gpu].astype("datetime64[us]").item()
    return newest


def _age_days(scores: Scores, scored: WorkloadScores, gpu: int, now: datetime) -> float | None:
    """How many days ago a GPU was measured last; None if that is not known, and for a simulated GPU."""
    newest = _newest(scored, gpu)
    return None if newest is None or scores.places[gpu].simulated else (now - newest) / timedelta(days=1)


def _stale(scores: Scores, scored: WorkloadScores, gpu: int, limits: AdviceOptions) -> str | None:
    """Why a GPU's score may be out of date; None if it is not."""
    newest = _newest(scored, gpu)
    if newest is None:
        return "the date of its measurement is not known"
    for (_, before), (since, driver) in pairwise(scores.places[gpu].drivers):
        if since is not None and since > newest:
            return f"the driver changed from {before} to {driver} after it was measured (seen {since:%Y-%m-%d})"
    days = _age_days(scores, scored, gpu, limits.now)
    return f"measured {days:,.0f} days ago" if days is not None and days > limits.max_age else None


def _staleness(scores: Scores, scored: WorkloadScores, usable: Ints, limits: AdviceOptions) -> Staleness:
    """How old the scores of the GPUs `usable` are."""
    gpus = usable.tolist()
    ages = [age for gpu in gpus if (age := _age_days(scores, scored, gpu, limits.now)) is not None]
    reasons = [reason for gpu in gpus if (reason := _stale(scores, scored, gpu, limits)) is not None]
    says = None
    if reasons:
        which = "all" if len(reasons) == len(gpus) else f"{len(reasons):,} of {len(gpus):,}"
        says = f"{which} scores may be out of date (for example: {reasons[0]}): measure again"
    return Staleness(
        newest=max((newest for gpu in gpus if (newest := _newest(scored, gpu)) is not None), default=None),
        newest_days=min(ages, default=None),
        oldest_days=max(ages, default=None),
        stale_gpus=len(reasons),
        gpus=len(gpus),
        simulated_gpus=sum(scores.places[gpu].simulated for gpu in gpus),
        says=says,
    )


# -- one sitting only ------------------------------------------------------------------------------------------------


def suspects(store: Store, scores: Scores, workloads: Iterable[str], soft: float) -> dict[str, tuple[Suspect, ...]]:
    """By workload, the GPUs that the judge names and that took more than `soft` times the usual time in it, the
    slowest first. None is looked for where the scores can tell what repeats.

    With one run of each GPU the scores cannot tell that. The judge looks at all workloads: a GPU that is slow in
    several of them is suspected after one campaign.
    """
    once = [name for name in workloads if scores.one(name).p is None]
    judged = last_judgement(store, scores.cluster) if once else None
    suspected: dict[str, tuple[Suspect, ...]] = dict.fromkeys(once, ())
    number = {scores.name(gpu): gpu for gpu in range(len(scores.gpus))} if judged else {}
    for workload in once if judged else ():
        scored, by_gpu = scores.one(workload), dict[int, Suspect]()
        slow = scored.slow(scored.raw)
        for verdict in judged.judgement.rows if judged else ():
            timed = verdict.level is not Level.BATCH and verdict.kind is not Kind.FAST and verdict.timed
            if not timed or plain_workload(workload) not in map(plain_workload, verdict.workloads):
                continue
            for name in verdict.gpus:
                gpu = number.get(name)
                if gpu is not None and slow[gpu] > soft and gpu not in by_gpu:
                    found = float(slow[gpu]), verdict.p, verdict.kind.value, verdict.workloads
                    by_gpu[gpu] = Suspect(scores.gpus[gpu], name, scores.nodes[gpu], *found)
        suspected[workload] = tuple(sorted(by_gpu.values(), key=lambda suspect: -suspect.slowdown))
    return suspected


# -- several models, and rows to be read -----------------------------------------------------------------------------


def together(parts: Sequence[Advice]) -> Advice:
    """The advice on all of `parts`, of which each is for one kind of the same work, on other GPUs than the others.

    Each GPU is compared with its like. Nodes to exclude and to prefer are those of all kinds. The sets are those of
    the kind that is faster with its best set. There are no gains: a random choice among several models is no choice.
    `kinds` has each part.
    """
    work = plain_workload(parts[0].workload)
    if len(parts) == 1:
        only = _renamed(parts[0], work, work)
        if _label(parts[0], work) not in (work, only.references[0].model):
            only = replace(only, notes=(*only.notes, note("one_kind", kind=parts[0].workload)))
        return only
    parts = sorted((_renamed(part, _label(part, work), work) for part in parts), key=_time_ms)

    def every(name: str) -> list[Any]:
        return [member for part in parts for member in getattr(part, name)]

    first, dates = parts[0], [part.staleness for part in parts]
    common = [sentence for sentence in first.notes if all(sentence in part.notes for part in parts)]
    of_kinds = [f"{part.workload}: {sentence}" for part in parts for sentence in part.notes if sentence not in common]
    score: dict[str, float] = {}
    for node, value in (pair for part in parts for pair in part.score_of_node.items()):
        score[node] = max(score.get(node, 0.0), value)
    exclude = sorted(set(every("exclude")), key=by_number)
    nodes, excluded, gpus_left = (
        sum(getattr(part.cost, name) for part in parts) for name in ("nodes", "nodes_excluded", "gpus_left")
    )
    return replace(
        first,
        workload=work,
        finding=" ".join(f"{part.workload}: {part.finding}" for part in parts),
        repeatable=any(part.repeatable for part in parts),
        sensitive=any(part.sensitive for part in parts),
        reason=first.reason if all(part.reason is not None for part in parts) else None,
        exclude=tuple(exclude),
        prefer=tuple(dict.fromkeys(node for node in every("prefer") if node not in exclude)),
        nodes=tuple(sorted(every("nodes"), key=lambda node: (node.tier != "hard", -node.slowdown))),
        score_of_node=score,
        gains=(),
        cost=Cost(nodes, excluded, excluded / nodes if nodes else 0.0, gpus_left),
        staleness=_oldest(dates),
        notes=(*common, *of_kinds),
        suspected=tuple(every("suspected")),
        references=tuple(every("references")),
        kinds=tuple(parts),
        kind="",
    )


def _oldest(parts: Sequence[Staleness]) -> Staleness:
    """Of the measurements behind several advices, on other GPUs each."""

    def stated(name: str) -> list[Any]:
        return [value for part in parts if (value := getattr(part, name)) is not None]

    return Staleness(
        newest=max(stated("newest"), default=None),
        newest_days=min(stated("newest_days"), default=None),
        oldest_days=max(stated("oldest_days"), default=None),
        stale_gpus=sum(stated("stale_gpus")),
        gpus=sum(stated("gpus")),
        simulated_gpus=sum(stated("simulated_gpus")),
        says="; ".join(dict.fromkeys(stated("says"))) or None,
    )


def _label(part: Advice, work: str) -> str:
    """What sets a kind apart: `A100` of `sgemm [A100]`."""
    return part.workload.removeprefix(f"{work} [").removesuffix("]")


def _renamed(part: Advice, label: str, work: str) -> Advice:
    """A part under another name; its sentences name the work: which GPUs it is about is said by `references`."""
    notes = tuple(sentence.replace(part.workload, work) for sentence in part.notes)
    return replace(part, workload=label, finding=part.finding.replace(part.workload, work), notes=notes)


def _time_ms(part: Advice) -> float:
    """What the best set takes, or any GPU where none is better."""
    best = part.packed or part.spread
    return part.usual_ms * (1.0 if best is None else best.slowdown)


def node_rows(scores: Scores, advice: Advice) -> pl.DataFrame:
    """Every node with GPUs measured in the workload of one kind of advice, fastest first.

    Columns: node, gpus (measured there), worst (name of its slowest GPU), runs (of that GPU), score, low, high (of that
    GPU, as in `gpu_rows`), mark.
    """
    scored = scores.one(advice.kind)
    nodes = measured_nodes(scores, scored, None)
    marks = dict.fromkeys(advice.prefer, PREFERRED)
    marks |= {node.node: KEPT if node.tier == "hard" else AVOIDED for node in advice.nodes}
    marks |= dict.fromkeys(advice.exclude, EXCLUDED)
    worst = [max(gpus, key=lambda gpu: (scored.belief[gpu], scored.lower[gpu])) for gpus in nodes.values()]
    columns = {
        "node": pl.Series(list(nodes), dtype=pl.String),
        "gpus": pl.Series(map(len, nodes.values()), dtype=pl.Int64),
        "worst": pl.Series(map(scores.name, worst), dtype=pl.String),
        "runs": pl.Series(scored.runs[worst], dtype=pl.Int64),
        "score": scored.belief[worst],
        "low": scored.lower[worst],
        "high": scored.upper[worst],
        "mark": pl.Series([marks.get(name, UNMARKED) for name in nodes], dtype=pl.String),
    }
    rows = pl.DataFrame(columns).with_columns(pl.selectors.float().fill_nan(None))
    return rows.sort("score", *columns_by_number("node"), nulls_last=True)


# -- what to do, in words --------------------------------------------------------------------------------------------

_LISTED = 4
"""Nodes that a sentence names."""


def finding(advice: Advice, width: float, hard: float, *, spared: str | None, once: bool) -> str:
    """What to do with such a job, and how much time that saves.

    `width`: the relative distance between the 5th and 95th percentile of the scores. `hard`: the slowdown from which a
    node is excluded. `spared`: why some hard nodes are not excluded. `once`: whether nobody knows what repeats.
    """
    workload, reason, slow = advice.workload, advice.reason, advice.nodes
    elsewhere = ""
    if advice.prefer:
        which = f"{advice.prefer[0]} is" if len(advice.prefer) == 1 else f"{len(advice.prefer)} nodes are"
        elsewhere = f"; {which} slow only in other workloads"
    if reason is not None and once and advice.suspected:
        return _suspicion(workload, advice.suspected)
    if reason is not None:
        # Where it is unknown what repeats, it is also unknown whether any node is as good.
        return f"No measurable benefit: for {workload}, {reason}.{'' if once else f' Use any node{elsewhere}.'}"
    best = _best_set(advice)
    within = f"90 % of the GPUs lie within {percent(width)}"
    if not advice.sensitive and not slow:
        return f"{workload} runs almost equally fast on all GPUs ({within}). Use any node{elsewhere}{best}."
    if not advice.sensitive:
        return f"Exclude nothing: {_why_soft(slow, hard)}. The others are almost equal ({within}){elsewhere}{best}."
    if advice.exclude:
        saved = [gain for gain in advice.gains if gain.choice == "exclude"]
        measurable = f": a random job then takes {_less(saved[0])}" if saved and saved[0].measurable else ""
        return f"Exclude {_first(advice.exclude)}{measurable or ' (no measurable benefit)' if saved else ''}{best}."
    if advice.hard_nodes:
        return f"Certainly slow, but not excluded because {spared}: {_first(advice.hard_nodes)}{best}."
    return f"Exclude nothing{f': {_why_soft(slow, hard)}' if slow else ''}{best}."


def _why_soft(slow: Sequence[NodeEvidence], hard: float) -> str:
    """Why slow nodes are not excluded. The first one of `slow` is the slowest."""
    worst, further = slow[0], len(slow) - 1
    time = f"{worst.slowdown:.3f} times the usual time ({worst.lower:.3f} to {worst.upper:.3f})"
    if worst.lower <= hard:
        why = f"but the interval is not above {hard:g}"
    elif worst.runs < _FEWEST_RUNS:
        why = "but has only one run: measure it again"
    else:
        why = "but does not stand out: too many nodes are slow, or there are too few runs to rule out chance"
    return f"{worst.node} takes {time}, {why}" + (
        f"; {many(further, 'more is', 'more are')} slow too" if further else ""
    )


def _suspicion(workload: str, suspected: Sequence[Suspect]) -> str:
    worst, names = suspected[0], [suspect.gpu_name for suspect in suspected[1:]]
    further = f" ({_first(names, _LISTED - 1)} {'is' if len(names) == 1 else 'are'} slow too)" if names else ""
    p = "" if worst.p is None else f" (p = {worst.p:.0e})" if worst.p >= 1e-12 else " (p < 1e-12)"
    count = len(worst.workloads)
    in_workloads = f"{workload}, and is slow in {count} workloads" if count > 1 else workload
    return (
        f"{worst.gpu_name} takes {worst.slowdown:.2f} times the usual time in {in_workloads}: beyond doubt{p}{further}."
        " Exclude nothing yet: all of this is of one sitting, and a second one is missing. Measure again on another "
        "day."
    )


def _first(names: Sequence[str], most: int = _LISTED) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _best_set(advice: Advice) -> str:
    by_choice = {gain.choice: gain for gain in advice.gains if gain.against == "drained"}
    gain = by_choice.get("packed") or by_choice.get("spread")
    if gain is None:
        return ""
    packed = "packed " if gain.choice == "packed" else ""
    best = "the best GPU" if advice.gpus == 1 else f"the best {packed}{advice.gpus} GPUs"
    others = "a random choice that avoids the slow nodes" if advice.hard_nodes else "a random choice"
    return f"; {best}: {f'{_less(gain)} than' if gain.measurable else 'no measurable benefit over'} {others}"


def _less(gain: Gain) -> str:
    return f"{percent(gain.median)} ({percent(gain.lower)} to {percent(gain.upper)}) less time"
