"""What to do with jobs of one workload: which nodes to avoid and to prefer, and how much time that saves.

`advise` takes scores and gives plain frozen rows with `as_dict()`; it reads and writes nothing.
docs/how-we-know/advice.md defines every figure. What to do is said in words at the end of this file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number, plain_workload
from ..by_number import by_number as columns_by_number
from ..statistics.ordering import Ints
from .evidence import (
    FEWEST_RUNS,
    MAX_SHARE,
    AdviceOptions,
    NodeEvidence,
    Staleness,
    Suspect,
    WorkloadEvidence,
)  # fmt: skip
from .notes import many, note, percent, percents
from .scores import Reference, Scores
from .sets import Gain, PlacedSet, best_sets, ends

LEAST_LEFT = 2
"""Of the GPUs that a job asks for, how many times as many must be left to choose from."""
_FAST = 0.25
"""The share of the nodes that is offered as fast."""
EXCLUDED, KEPT, AVOIDED, PREFERRED, UNMARKED = "excluded", "hard, kept", "avoid", "prefer", ""
"""What the advice says about a node: `hard, kept` is certainly slow and not excluded; `avoid` is slow."""


@dataclass(frozen=True)
class Cost:
    """What the exclusion takes away."""

    nodes: int
    nodes_excluded: int
    share: float
    gpus_left: int


@dataclass(frozen=True)
class Advice:
    """What to do with jobs of one workload. docs/how-we-know/advice.md defines every figure."""

    cluster: str
    workload: str
    gpus: int
    finding: str
    repeatable: bool
    sensitive: bool  # whether the GPUs differ enough in this workload to choose among them
    reason: str | None  # why there is nothing to choose by
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
    usual_ms: float = math.nan  # the time of the median GPU of all that are compared
    kinds: tuple[Advice, ...] = ()  # where the GPUs are of several models, the advice on each: see `together`
    kind: str = ""
    """The kind of the workload that it rests on, as the scores call it: `workload` is a shorter name where GPUs are of
    several models. "" for all of `kinds`."""

    @property
    def leaves_all(self) -> bool:
        """Whether the finding is to exclude nothing: it says so itself."""
        comparable = self.reason is None and (self.sensitive or bool(self.nodes))
        return comparable and not self.hard_nodes

    def best_gain(self, against: str = "random") -> Gain | None:
        """What the best set saves against random ones of its kind: a packed set where one fits; None where no gain is
        known. Of several kinds of GPUs, the largest of theirs."""
        by_kind = [kind.best_gain(against) for kind in self.kinds]
        known = [gain for gain in by_kind if gain is not None]
        if known:
            return max(known, key=lambda gain: gain.median)
        by_choice = {gain.choice: gain for gain in self.gains if gain.against == against}
        return by_choice.get("packed") or by_choice.get("spread")

    @property
    def hard_nodes(self) -> tuple[str, ...]:
        """The nodes that are certainly slow, the worst first."""
        return tuple(node.node for node in self.nodes if node.tier == "hard")

    def as_dict(self) -> dict[str, Any]:
        """The advice as JSON-ready values; times as ISO 8601 in UTC."""
        document: dict[str, Any] = _plain(asdict(self))
        return document


@dataclass(frozen=True)
class WorkloadGain:
    """What a job gains in one workload by the best set of GPUs, against random ones, as a scheduler takes them."""

    workload: str
    gpus: int  # GPUs that are compared
    runs: int  # runs that the scores rest on
    gain: Gain | None  # None where no gain is known: `reason` says why
    reason: str | None = None

    @property
    def order(self) -> tuple[bool, float]:
        """What workloads are ranked by, highest first: a measurable gain first, then its size."""
        return (False, 0.0) if self.gain is None else (self.gain.measurable, self.gain.median)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; shares of 1."""
        names = {"median": "saved", "lower": "low_saved", "upper": "high_saved", "measurable": "measurable"}
        figures = {label: getattr(self.gain, name, None) for name, label in names.items()}
        return {
            "workload": self.workload, "gpus": self.gpus, "runs": self.runs, **figures, "reason": self.reason
        }  # fmt: skip


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
    job = AdviceOptions(**options)
    evidence = WorkloadEvidence(scores, workload, job)
    scored, usable, slow = evidence.scored, _usable(evidence), evidence.slow_nodes()
    hard = [node.node for node in slow if node.tier == "hard"]
    notes = [*scores.notes_on(workload), *evidence.cautions(usable.tolist())]
    exclude, cost, spared = _excluded(hard, evidence, notes)
    low, high = ends(scored.belief[usable])
    sensitive = scored.repeatable and (bool(hard) or high / low >= job.soft)
    drained, excluded = (np.array([node in names for node in scores.nodes]) for names in (set(hard), exclude))
    best = best_sets(scores, scored, usable, job=job, drained=drained, excluded=excluded)
    advice = Advice(
        cluster=scores.cluster,
        workload=workload,
        gpus=job.gpus,
        finding="",
        repeatable=scored.repeatable,
        sensitive=sensitive,
        reason=scored.reason,
        exclude=tuple(sorted(exclude, key=by_number)),
        prefer=_fast(evidence, exclude) if sensitive else (),
        nodes=tuple(replace(node, excluded=node.node in exclude) for node in slow),
        score_of_node=evidence.node_scores,
        packed=best.packed,
        spread=best.spread,
        break_even=best.break_even,
        gains=best.gains,
        cost=cost,
        staleness=evidence.staleness(usable.tolist()),
        notes=tuple(notes),
        suspected=tuple(gpu for gpu in suspected if job.partition is None or gpu.node in job.partition),
        references=scored.references,
        usual_ms=scored.usual_ms,
        kind=workload,
    )
    return replace(advice, finding=finding(advice, high / low - 1.0, job.hard, spared=spared, once=scored.p is None))


def _usable(evidence: WorkloadEvidence) -> Ints:
    """The GPUs to choose among: those on a known node, or all where no node is known."""
    scored, job = evidence.scored, evidence.job
    usable = np.flatnonzero(np.isfinite(scored.belief))
    if evidence.nodes or job.partition is not None:
        usable = np.array(sorted(gpu for members in evidence.nodes.values() for gpu in members), dtype=np.intp)
    if job.gpus > len(usable):
        part = "" if job.partition is None else "of the partition "
        number, were = ("1 GPU", "was") if len(usable) == 1 else (f"{len(usable)} GPUs", "were")
        raise InputError(
            f"the job needs {job.gpus} GPUs, but only {number} {part}on {evidence.scores.cluster} {were} measured in "
            f"{scored.workload}"
        )
    return usable


# -- which of them to exclude, and what to prefer --------------------------------------------------------------------


def _excluded(hard: Sequence[str], evidence: WorkloadEvidence, notes: list[str]) -> tuple[set[str], Cost, str | None]:
    """The nodes to exclude, worst first until one of the two limits is reached; the cost; and which limit it was."""
    job, unmeasured = evidence.job, evidence.unmeasured
    sizes = {name: len(gpus) for name, gpus in evidence.nodes.items()}
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
            limit = note("too_few_left")
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
            limit = note("above_share", nodes=total, share=100 * share)
            break
        gpus_left -= sizes[name]
        exclude.add(name)
    return exclude, Cost(total, len(exclude), len(exclude) / total if total else 0.0, gpus_left), limit


def _fast(evidence: WorkloadEvidence, exclude: Collection[str]) -> tuple[str, ...]:
    """The fastest nodes, best first: a quarter of all nodes, or twice as many as the job needs if that is more."""
    score, nodes = evidence.node_scores, evidence.nodes
    best = sorted((name for name in score if name not in exclude), key=lambda name: (score[name], by_number(name)))
    enough = int(np.searchsorted(np.cumsum([len(nodes[name]) for name in best]), 2 * evidence.job.gpus)) + 1
    usual = float(np.median(list(score.values()))) if score else 0.0
    return tuple(name for name in best[: max(int(_FAST * len(score)), enough)] if score[name] < usual)


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

    first = parts[0]
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
        staleness=Staleness.together([part.staleness for part in parts]),
        notes=(*common, *of_kinds),
        suspected=tuple(every("suspected")),
        references=tuple(every("references")),
        kinds=tuple(parts),
        kind="",
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
    evidence = WorkloadEvidence(scores, advice.kind, AdviceOptions())
    scored, nodes = evidence.scored, evidence.nodes
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
    if reason is not None and once and advice.suspected:
        return _suspicion(workload, advice.suspected)
    if reason is not None:
        # Where it is unknown what repeats, it is also unknown whether any node is as good.
        return f"No measurable benefit: for {workload}, {reason}.{'' if once else ' Use any node.'}"
    best = _best_set(advice)
    within = f"90 % of the GPUs lie within {percent(width)}"
    if not advice.sensitive and not slow:
        return f"{workload} runs almost equally fast on all GPUs ({within}). Use any node{best}."
    if not advice.sensitive:
        return f"Exclude nothing: {_why_soft(slow, hard)}. The others are almost equal ({within}){best}."
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
    elif worst.runs < FEWEST_RUNS:
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
    gain = advice.best_gain("drained")
    if gain is None:
        return ""
    packed = "packed " if gain.choice == "packed" else ""
    best = "the best GPU" if advice.gpus == 1 else f"the best {packed}{advice.gpus} GPUs"
    others = "a random choice that avoids the slow nodes" if advice.hard_nodes else "a random choice"
    return f"; {best}: {f'{_less(gain)} than' if gain.measurable else 'no measurable benefit over'} {others}"


def _less(gain: Gain) -> str:
    return f"{percents(gain.median, gain.lower, gain.upper)} less time"
