"""What to do with jobs of one workload: which nodes to avoid and to prefer, and how much time that saves.

`advise` takes scores and gives plain frozen rows with `as_dict()`; it reads and writes nothing. docs/placement.md
defines every figure. The sentences of an advice stand at the end of this file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number, plain_workload
from ..by_number import by_number as columns_by_number
from ..statistics.ordering import Ints
from .evidence import (
    HARD,
    MAX_AGE_DAYS,
    SOFT,
    MeasuredNodes,
    NodeEvidence,
    SlowLimits,
    Staleness,
    Suspect,
    Tiers,
    evidence,
    measured_nodes,
    staleness,
)  # fmt: skip
from .posterior import Mask
from .scores import SEED, Reference, Scores, WorkloadScores
from .sets import DRAWS, Gain, PlacedSet, SynchronousJob, best_sets

MAX_SHARE = 0.05
"""The share of the nodes that may be excluded where none is stated, and one node however few there are."""
LEAST_LEFT = 2
"""Of the GPUs that a job asks for, how many times as many must be left to choose from."""
_FAST = 0.25
"""The share of the nodes that is offered as fast."""
EXCLUDED, KEPT, AVOIDED, PREFERRED, UNMARKED = "excluded", "hard, kept", "avoid", "prefer", ""
"""What the advice says about a node: `hard, kept` is certainly slow and not excluded; `avoid` is slow."""


class AdviceOptions(TypedDict, total=False):
    """What a user may state for `advise`."""

    gpus: int
    partition: Collection[str] | None
    """The nodes that may be used; all, where None."""
    locality: float
    """Factor on the time of a job that spans nodes; at least 1."""
    hard: float
    soft: float
    """Slowdowns from which a node is excluded or put behind others, if its interval lies above."""
    max_share: float | None
    """Of the nodes, never more than this share is excluded; None: `MAX_SHARE`, or one node."""
    max_age: float
    """Days from which a score may be out of date."""
    replicates: int
    """Draws behind the intervals."""
    seed: int


@dataclass(frozen=True)
class Cost:
    """What the exclusion takes away."""

    nodes: int
    nodes_excluded: int
    share: float
    gpus_left: int


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
        return comparable and not any(node.tier == "hard" for node in self.nodes)

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


def advise(
    scores: Scores,
    workload: str,
    *,
    now: datetime | None = None,
    suspected: Sequence[Suspect] = (),
    **options: Unpack[AdviceOptions],
) -> Advice:
    """The advice for a synchronous job of `workload` on so many GPUs.

    `now`: UTC without zone. `suspected`: as `suspects` finds them.

    Raises `InputError` for a workload without scores, for fewer GPUs than one and for more than were measured.
    """
    scored = scores.one(workload)
    partition, max_share = options.get("partition"), options.get("max_share")
    job = SynchronousJob(
        options.get("gpus", 1),
        options.get("locality", 1.0),
        options.get("replicates", DRAWS),
        options.get("seed", SEED),
    )
    limits = SlowLimits(
        options.get("hard", HARD),
        options.get("soft", SOFT),
        options.get("max_age", MAX_AGE_DAYS),
        now or datetime.now(UTC).replace(tzinfo=None),
    )
    if job.locality < 1.0 or not 0.0 <= (max_share or 0.0) <= 1.0 or not 1.0 <= limits.soft <= limits.hard:
        raise InputError("the locality penalty must be at least 1, the share from 0 to 1, and 1 <= soft <= hard")
    nodes = measured_nodes(scores, workload, partition)
    usable = _usable(scored, nodes, job.gpus, cluster=scores.cluster, bounded=partition is not None)
    notes = scores.notes_on(workload)
    unmeasured = set() if partition is None else set(partition) - set(nodes.names)
    if partition is not None and unmeasured:
        notes.append(f"{len(unmeasured):,} of the {len(set(partition)):,} nodes of the partition were not measured")
    tiers = Tiers(scored, limits)
    slow = [
        evidence(scores, scored, name, limits, gpu=tier[1], tier=tier[0])
        for name, gpus in zip(nodes.names, nodes.gpus, strict=True)
        if (tier := tiers.of(gpus)) is not None
    ]
    slow.sort(key=lambda node: (node.tier != "hard", -node.slowdown, by_number(node.node)))
    hard = [node.node for node in slow if node.tier == "hard"]
    _note_compared(scores, scored, notes, bounded=partition is not None)
    _note_homeless(scores, scored, tiers, notes)
    _note_doubtful(scores, scored, usable, limits, notes)
    exclude, cost, spared = _excluded(hard, nodes, len(unmeasured), job.gpus, max_share=max_share, notes=notes)
    slow = [replace(node, excluded=node.node in exclude) for node in slow]
    low, high = np.quantile(scored.belief[usable], (0.05, 0.95))
    width = float(high / low) - 1.0
    sensitive = scored.repeatable and (bool(hard) or width >= limits.soft - 1.0)
    best = best_sets(scores, scored, usable, job=job, drained=_on(scores, hard), excluded=_on(scores, exclude))
    prefer = (
        _fast(nodes, scored, job.gpus, exclude) if sensitive else _slow_elsewhere(scores, scored, nodes, limits, notes)
    )
    suspected = tuple(suspect for suspect in suspected if partition is None or suspect.node in partition)
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
        nodes=tuple(slow),
        score_of_node=nodes.scores(scored.belief),
        packed=best.packed,
        spread=best.spread,
        break_even=best.break_even,
        gains=best.gains,
        cost=cost,
        staleness=staleness(scores, scored, usable, limits),
        notes=tuple(notes),
        suspected=suspected,
        references=scored.references,
        usual_ms=scored.usual_ms,
        kind=workload,
    )
    once = scored.p is None
    return replace(advice, finding=finding(advice, width, limits.hard, spared=spared, once=once))


def _usable(scored: WorkloadScores, nodes: MeasuredNodes, gpus: int, *, cluster: str, bounded: bool) -> Ints:
    """The GPUs to choose among: those on a known node, or all where no node is known."""
    if gpus < 1:
        raise InputError("a job needs at least one GPU")
    usable = np.flatnonzero(np.isfinite(scored.belief))
    if nodes.names or bounded:
        usable = np.array(sorted(gpu for members in nodes.gpus for gpu in members), dtype=np.intp)
    if gpus > len(usable):
        part = "of the partition " if bounded else ""
        number, were = ("1 GPU", "was") if len(usable) == 1 else (f"{len(usable)} GPUs", "were")
        raise InputError(
            f"the job needs {gpus} GPUs, but only {number} {part}on {cluster} {were} measured in {scored.workload}"
        )
    return usable


def _on(scores: Scores, nodes: Collection[str]) -> Mask:
    """(gpus,) whether each GPU is on one of `nodes`."""
    return np.array([node in nodes for node in scores.nodes], dtype=np.bool_)


def _excluded(
    hard: Sequence[str], nodes: MeasuredNodes, unmeasured: int, gpus: int, *, max_share: float | None, notes: list[str]
) -> tuple[set[str], Cost, str | None]:
    """The nodes to exclude, worst first until one of the two limits is reached; the cost; and which limit it was."""
    sizes = nodes.sizes
    usual = float(np.median(list(sizes.values()))) if sizes else 0.0
    gpus_left = sum(sizes.values()) + int(unmeasured * usual)
    total = len(sizes) + unmeasured
    share = max(MAX_SHARE, 1.0 / max(1, total)) if max_share is None else max_share
    most = int(share * total + 1e-9)
    exclude: set[str] = set()
    limit: str | None = None
    for name in hard:
        if gpus_left - sizes[name] < LEAST_LEFT * gpus:
            notes.append(
                f"{name} is certainly slow, but not excluded: without it fewer than {LEAST_LEFT * gpus:,} GPUs would "
                "be left, twice what the job needs"
            )
            limit = "too few GPUs would be left"
            break
        if len(exclude) == most:
            are, others = ("1 node is", "it") if len(hard) == 1 else (f"{len(hard):,} nodes are", "them")
            allowed = "none may" if most == 0 else f"at most {most:,} may"
            notes.append(
                f"{are} certainly slow, but of {total:,} nodes {allowed} be excluded ({100 * share:.4g} %): repair "
                f"{'the others' if most and len(hard) > 1 else others}, or allow more (--max-share "
                f"{math.ceil(100.0 * len(hard) / total - 1e-9)}%)"
            )
            limit = f"one node of {total:,} is more than --max-share {100 * share:.4g}% allows"
            break
        gpus_left -= sizes[name]
        exclude.add(name)
    return exclude, Cost(total, len(exclude), len(exclude) / total if total else 0.0, gpus_left), limit


def _fast(nodes: MeasuredNodes, scored: WorkloadScores, gpus: int, exclude: Collection[str]) -> tuple[str, ...]:
    """The fastest nodes, best first: a quarter of all nodes, or twice as many as the job needs if that is more."""
    score, sizes = nodes.scores(scored.belief), nodes.sizes
    best = sorted((name for name in score if name not in exclude), key=lambda name: (score[name], by_number(name)))
    enough = int(np.searchsorted(np.cumsum([sizes[name] for name in best]), 2 * gpus)) + 1
    usual = float(np.median(list(score.values()))) if score else 0.0
    return tuple(name for name in best[: max(int(_FAST * len(score)), enough)] if score[name] < usual)


def _slow_elsewhere(
    scores: Scores, scored: WorkloadScores, nodes: MeasuredNodes, limits: SlowLimits, notes: list[str]
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
        slow = {
            name
            for name, gpus in zip(nodes.names, nodes.gpus, strict=True)
            if not max(scored.upper[list(gpus)]) < limits.soft
        }
    worst: dict[str, float] = {}
    for workload, elsewhere in scores.of.items():
        if elsewhere is scored or not elsewhere.repeatable:
            continue
        tiers, members = Tiers(elsewhere, limits), measured_nodes(scores, workload, nodes.names)
        for name, gpus in zip(members.names, members.gpus, strict=True):
            tier = tiers.of(gpus)
            if tier is not None and tier[0] == "hard":
                slow.add(name)
            elif tier is not None:
                worst[name] = max(worst.get(name, 0.0), float(elsewhere.belief[tier[1]]))
    offered = tuple(sorted(worst.keys() - slow, key=lambda name: (-worst[name], by_number(name))))
    if offered:
        which, serve = (f"1 node ({offered[0]}) is", "serves")
        if len(offered) > 1:
            which, serve = f"{len(offered):,} nodes are", "serve"
        notes.append(f"{which} slow in other workloads, but {serve} {scored.workload} as well as any other")
    return offered


# -- several models --------------------------------------------------------------------------------------------------


def together(parts: Sequence[Advice]) -> Advice:
    """The advice on all of `parts`, of which each is for one kind of the same work, on other GPUs than the others.

    Each GPU is compared with its like. Nodes to exclude and to prefer are those of all kinds. The sets are those of
    the kind that is faster with its best set. There are no gains: a random choice among several models is no choice.
    `kinds` has each part.
    """
    work = plain_workload(parts[0].workload)
    if len(parts) == 1:
        kind = _label(parts[0], work)
        only = _renamed(parts[0], work, work)
        if kind not in (work, only.references[0].model):
            only = replace(only, notes=(*only.notes, f"from the runs of {parts[0].workload} only"))
        return only
    parts = sorted((_renamed(part, _label(part, work), work) for part in parts), key=_time_ms)
    first = parts[0]
    common = [note for note in first.notes if all(note in part.notes for part in parts)]
    of_kinds = [f"{part.workload}: {note}" for part in parts for note in part.notes if note not in common]
    hard_first = sorted((node for part in parts for node in part.nodes), key=lambda n: (n.tier != "hard", -n.slowdown))
    score: dict[str, float] = {}
    for part in parts:
        for node, value in part.score_of_node.items():
            score[node] = max(score.get(node, 0.0), value)
    exclude = sorted({node for part in parts for node in part.exclude}, key=by_number)
    nodes, excluded = sum(part.cost.nodes for part in parts), sum(part.cost.nodes_excluded for part in parts)
    share = excluded / nodes if nodes else 0.0
    return replace(
        first,
        workload=work,
        finding=" ".join(f"{part.workload}: {part.finding}" for part in parts),
        repeatable=any(part.repeatable for part in parts),
        sensitive=any(part.sensitive for part in parts),
        reason=first.reason if all(part.reason is not None for part in parts) else None,
        exclude=tuple(exclude),
        prefer=tuple(dict.fromkeys(node for part in parts for node in part.prefer if node not in exclude)),
        nodes=tuple(hard_first),
        score_of_node=score,
        gains=(),
        cost=Cost(nodes, excluded, share, sum(part.cost.gpus_left for part in parts)),
        staleness=Staleness.together([part.staleness for part in parts]),
        notes=(*common, *of_kinds),
        suspected=tuple(suspect for part in parts for suspect in part.suspected),
        references=tuple(reference for part in parts for reference in part.references),
        kinds=tuple(parts),
        kind="",
    )


def _label(part: Advice, work: str) -> str:
    """What sets a kind apart: `A100` of `sgemm [A100]`."""
    return part.workload.removeprefix(f"{work} [").removesuffix("]")


def _renamed(part: Advice, label: str, work: str) -> Advice:
    """A part under another name; its sentences name the work: which GPUs it is about is said by `references`."""
    notes = tuple(note.replace(part.workload, work) for note in part.notes)
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
    scored, nodes = scores.one(advice.kind), measured_nodes(scores, advice.kind, None)
    marks = dict.fromkeys(advice.prefer, PREFERRED)
    marks |= {node.node: KEPT if node.tier == "hard" else AVOIDED for node in advice.nodes}
    marks |= dict.fromkeys(advice.exclude, EXCLUDED)
    worst = np.array(nodes.worst, dtype=np.intp)
    columns = {
        "node": pl.Series(nodes.names, dtype=pl.String),
        "gpus": pl.Series(map(len, nodes.gpus), dtype=pl.Int64),
        "worst": pl.Series([scores.name(gpu) for gpu in nodes.worst], dtype=pl.String),
        "runs": pl.Series(scored.runs[worst], dtype=pl.Int64),
        "score": scored.belief[worst],
        "low": scored.lower[worst],
        "high": scored.upper[worst],
        "mark": pl.Series([marks.get(name, UNMARKED) for name in nodes.names], dtype=pl.String),
    }
    rows = pl.DataFrame(columns).with_columns(pl.selectors.float().fill_nan(None))
    return rows.sort("score", *columns_by_number("node"), nulls_last=True)


# -- the advice in sentences -----------------------------------------------------------------------------------------

_LISTED = 4
"""Nodes that a sentence names."""
_SEVERAL_MODELS = 0.15
"""Between the 5th and 95th percentile, as logarithms: GPUs of one model differ less."""


def finding(advice: Advice, width: float, hard: float, *, spared: str | None, once: bool) -> str:
    """What to do with such a job, and how much time that saves.

    `width`: the relative distance between the 5th and 95th percentile of the scores. `hard`: the slowdown from which a
    node is excluded. `spared`: why some hard nodes are not excluded. `once`: whether nobody knows what repeats.
    """
    workload, reason, slow = advice.workload, advice.reason, advice.nodes
    hard_nodes = [node.node for node in slow if node.tier == "hard"]
    elsewhere = ""
    if advice.prefer:
        which = f"{advice.prefer[0]} is" if len(advice.prefer) == 1 else f"{len(advice.prefer)} nodes are"
        elsewhere = f"; {which} slow only in other workloads"
    if reason is not None and once and advice.suspected:
        return _suspicion(workload, advice.suspected)
    if reason is not None:
        # Where it is unknown what repeats, it is also unknown whether any node is as good.
        return f"No measurable benefit: for {workload}, {reason}.{'' if once else f' Use any node{elsewhere}.'}"
    best = _best_set(advice, "a random choice that avoids the slow nodes" if hard_nodes else "a random choice")
    within = f"90 % of the GPUs lie within {percent(width)}"
    if not advice.sensitive and not slow:
        return f"{workload} runs almost equally fast on all GPUs ({within}). Use any node{elsewhere}{best}."
    if not advice.sensitive:
        return f"Exclude nothing: {_why_soft(slow, hard)}. The others are almost equal ({within}){elsewhere}{best}."
    if advice.exclude:
        saved = [gain for gain in advice.gains if gain.choice == "exclude"]
        measurable = f": a random job then takes {_less(saved[0])}" if saved and saved[0].measurable else ""
        return f"Exclude {_first(advice.exclude)}{measurable or ' (no measurable benefit)' if saved else ''}{best}."
    if hard_nodes:
        return f"Certainly slow, but not excluded because {spared}: {_first(hard_nodes)}{best}."
    return f"Exclude nothing{f': {_why_soft(slow, hard)}' if slow else ''}{best}."


def _why_soft(slow: Sequence[NodeEvidence], hard: float) -> str:
    """Why slow nodes are not excluded. The first one of `slow` is the slowest."""
    worst = slow[0]
    time = f"{worst.slowdown:.3f} times the usual time ({worst.lower:.3f} to {worst.upper:.3f})"
    if worst.lower <= hard:
        why = f"but the interval is not above {hard:g}"
    elif worst.runs < 2:
        why = "but has only one run: measure it again"
    else:
        why = "but does not stand out: too many nodes are slow, or there are too few runs to rule out chance"
    others = f"; {len(slow) - 1:,} more {'is' if len(slow) == 2 else 'are'} slow too" if len(slow) > 1 else ""
    return f"{worst.node} takes {time}, {why}{others}"


def _suspicion(workload: str, suspected: Sequence[Suspect]) -> str:
    worst = suspected[0]
    further = f" ({', '.join(suspect.gpu_name for suspect in suspected[1:_LISTED])}" if len(suspected) > 1 else ""
    further += f" and {len(suspected) - _LISTED:,} more" if len(suspected) > _LISTED else ""
    further += f" {'is' if len(suspected) == 2 else 'are'} slow too)" if further else ""
    p = "" if worst.p is None else f" (p = {worst.p:.0e})" if worst.p >= 1e-12 else " (p < 1e-12)"
    count = len(worst.workloads)
    in_workloads = f"{workload}, and is slow in {count} workloads" if count > 1 else workload
    return (
        f"{worst.gpu_name} takes {worst.slowdown:.2f} times the usual time in {in_workloads}: beyond doubt{p}{further}."
        " Exclude nothing yet: all of this is of one sitting, and a second one is missing. Measure again on another "
        "day."
    )


def _first(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_LISTED]) + (f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else "")


def _best_set(advice: Advice, others: str) -> str:
    by_choice = {gain.choice: gain for gain in advice.gains if gain.against == "drained"}
    gain = by_choice.get("packed") or by_choice.get("spread")
    if gain is None:
        return ""
    packed = "packed " if gain.choice == "packed" else ""
    best = "the best GPU" if advice.gpus == 1 else f"the best {packed}{advice.gpus} GPUs"
    return f"; {best}: {f'{_less(gain)} than' if gain.measurable else 'no measurable benefit over'} {others}"


def _less(gain: Gain) -> str:
    return f"{percent(gain.median)} ({percent(gain.lower)} to {percent(gain.upper)}) less time"


def percent(share: float) -> str:
    """A share in %, to a tenth; what rounds to 0 has no sign."""
    return f"{100.0 * share:.1f} %".replace("-0.0", "0.0")


def _note_compared(scores: Scores, scored: WorkloadScores, notes: list[str], *, bounded: bool) -> None:
    """Note what cannot be told by comparing these GPUs."""
    for number, reference in enumerate(scored.references):
        if reference.nodes == 1 and reference.gpus > 1:
            host = {scores.nodes[gpu] for gpu in np.flatnonzero(scored.reference == number)} - {None}
            notes.append(
                f"{reference} are compared only with each other: whether {host.pop()} is slow as a whole cannot be told"
            )
    level = np.log(scored.raw[np.isfinite(scored.raw)])
    several = np.ptp(np.quantile(level, (0.05, 0.95))) > _SEVERAL_MODELS
    if not bounded and scored.references[0].model is None and several:
        notes.append(
            "the store does not name the model of these GPUs, and their times differ as those of several models may: "
            "then choose a partition (--partition), or import the models (`whorl import --map COLUMN=model`)"
        )


def _note_homeless(scores: Scores, scored: WorkloadScores, tiers: Tiers, notes: list[str]) -> None:
    """Note the hard GPUs whose node is not known."""
    slowdown = scored.slow(scored.belief)
    for gpu, node in enumerate(scores.nodes):
        tier = tiers.of([gpu]) if node is None else None
        if tier is not None and tier[0] == "hard":
            notes.append(
                f"{scores.name(gpu)} is certainly slow ({slowdown[gpu]:.2f} times the usual time), but its node is not "
                "known: find it"
            )


def _note_doubtful(scores: Scores, scored: WorkloadScores, usable: Ints, limits: SlowLimits, notes: list[str]) -> None:
    """Note the GPUs that may be hard and may be usual."""
    lower, upper = scored.slow(scored.lower), scored.slow(scored.upper)
    doubtful = (upper > limits.hard) & (lower <= limits.soft) & (scored.runs > 1)
    homeless = np.array([gpu for gpu, node in enumerate(scores.nodes) if node is None], dtype=np.intp)
    gpus = [int(gpu) for gpu in np.union1d(usable, homeless) if doubtful[gpu]] if scored.repeatable else []
    if gpus:
        gpu = max(gpus, key=lambda gpu: float(scored.belief[gpu]))
        node, others = scores.nodes[gpu], len(gpus) - 1
        on_node = f" on {node}" if node is not None and scores.places[gpu].slot is None else ""
        further = f"; {others:,} other{' is' if others == 1 else 's are'} like it" if others else ""
        notes.append(
            f"the runs of {scores.name(gpu)}{on_node} disagree: it takes between {lower[gpu]:.2f} and "
            f"{upper[gpu]:.2f} times the usual time{further}; measure again"
        )
