"""GPUs that are slow beyond doubt in the one sitting that was measured, as the judge has them.

With one run of each GPU the scores cannot tell what repeats. The judge looks at all workloads: a GPU that is slow in
several of them is suspected after one campaign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...store.names import plain_workload
from ..verdicts import Kind, Level, Verdict
from ..verdicts.judgements import last_judgement
from .scores import Scores

if TYPE_CHECKING:
    from ...store import Store


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
    """
    once = [name for name in workloads if scores.one(name).p is None]
    if not once:
        return {}
    judged = last_judgement(store, scores.cluster)
    rows = () if judged is None else judged.judgement.rows
    slow = [
        verdict
        for verdict in rows
        if verdict.level is not Level.BATCH and verdict.kind is not Kind.FAST and verdict.timed
    ]
    return {name: _in(scores, name, slow, soft) for name in once}


def _in(scores: Scores, workload: str, verdicts: Iterable[Verdict], soft: float) -> tuple[Suspect, ...]:
    scored = scores.one(workload)
    slow = scored.slow(scored.raw)
    number = {scores.name(gpu): gpu for gpu in range(len(scores.gpus))}
    by_gpu: dict[int, Suspect] = {}
    for verdict in verdicts:
        if plain_workload(workload) not in {plain_workload(name) for name in verdict.workloads}:
            continue
        for name in verdict.gpus:
            gpu = number.get(name)
            if gpu is None or not np.isfinite(slow[gpu]) or slow[gpu] <= soft:
                continue
            suspect = Suspect(
                scores.gpus[gpu], name, scores.nodes[gpu], float(slow[gpu]), verdict.p, verdict.kind.value,
                verdict.workloads,
            )  # fmt: skip
            by_gpu.setdefault(gpu, suspect)
    return tuple(sorted(by_gpu.values(), key=lambda suspect: -suspect.slowdown))
