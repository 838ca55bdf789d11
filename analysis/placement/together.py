"""Advice for a job that may run on GPUs of several models: each compared with its like, told apart, in one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...store.names import by_number, plain_workload
from .advice import Advice, Cost, Staleness


def together(parts: Sequence[Advice]) -> Advice:
    """The advice on all of `parts`, of which each is for one kind of the same work, on other GPUs than the others.

    Nodes to exclude and to prefer are those of all kinds. The sets are those of the kind that is faster with its best
    set. There are no gains: a random choice among several models is no choice. `kinds` has each part.
    """
    work = plain_workload(parts[0].workload)
    if len(parts) == 1:
        return _of_work(parts[0], work)
    parts = sorted((_labelled(one, work) for one in parts), key=_time_ms)
    first = parts[0]
    every = [part.notes for part in parts]
    common = [note for note in first.notes if all(note in notes for notes in every)]
    own = [f"{part.workload}: {note}" for part in parts for note in part.notes if note not in common]
    hard_first = sorted((node for part in parts for node in part.nodes), key=lambda n: (n.tier != "hard", -n.slowdown))
    score: dict[str, float] = {}
    for part in parts:
        for node, value in part.score_of_node.items():
            score[node] = max(score.get(node, 0.0), value)
    exclude = sorted({node for part in parts for node in part.exclude}, key=by_number)
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
        cost=_cost([part.cost for part in parts]),
        staleness=_staleness([part.staleness for part in parts]),
        notes=(*common, *own),
        suspected=tuple(one for part in parts for one in part.suspected),
        references=tuple(one for part in parts for one in part.references),
        kinds=tuple(parts),
        kind="",
    )


def _of_work(one: Advice, work: str) -> Advice:
    """Advice on one kind under the name of the work: which GPUs it is about is said by `references`."""
    notes = tuple(note.replace(one.workload, work) for note in one.notes)
    kind = one.workload.removeprefix(f"{work} [").removesuffix("]")
    if kind not in (work, one.references[0].model):
        notes = (*notes, f"from the runs of {one.workload} only")
    return replace(one, workload=work, finding=one.finding.replace(one.workload, work), notes=notes)


def _labelled(one: Advice, work: str) -> Advice:
    """A part under what sets it apart: `A100` of `sgemm [A100]`."""
    label = one.workload.removeprefix(f"{work} [").removesuffix("]")
    notes = tuple(note.replace(one.workload, work) for note in one.notes)
    return replace(one, workload=label, finding=one.finding.replace(one.workload, work), notes=notes)


def _time_ms(one: Advice) -> float:
    """What the best set takes, or any GPU where none is better."""
    best = one.packed or one.spread
    return one.usual_ms * (1.0 if best is None else best.slowdown)


def _cost(costs: Sequence[Cost]) -> Cost:
    nodes, excluded = (sum(getattr(one, name) for one in costs) for name in ("nodes", "nodes_excluded"))
    return Cost(nodes, excluded, excluded / nodes if nodes else 0.0, sum(one.gpus_left for one in costs))


def _staleness(all_: Sequence[Staleness]) -> Staleness:
    def known(name: str) -> list[float]:
        return [value for one in all_ if (value := getattr(one, name)) is not None]

    return Staleness(
        newest=max((one.newest for one in all_ if one.newest is not None), default=None),
        newest_days=min(known("newest_days"), default=None),
        oldest_days=max(known("oldest_days"), default=None),
        stale_gpus=sum(one.stale_gpus for one in all_),
        gpus=sum(one.gpus for one in all_),
        simulated_gpus=sum(one.simulated_gpus for one in all_),
        says="; ".join(dict.fromkeys(one.says for one in all_ if one.says)) or None,
    )
