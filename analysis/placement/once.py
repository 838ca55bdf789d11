"""GPUs that are slow beyond doubt in the one sitting that was measured, as the judge has them.

With one run of each GPU the scores cannot tell what repeats. The judge looks at all workloads: a GPU that is slow in
several of them is suspected after one campaign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...store.names import plain_workload
from ..verdicts import Kind, Level, judge
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


def suspects(store: Store, scores: Scores, workload: str, soft: float) -> tuple[Suspect, ...]:
    """The GPUs that the judge names and that took more than `soft` times the usual time in `workload`, slowest first.

    None is looked for where the scores can tell what repeats.
    """
    one = scores.one(workload)
    if one.p is not None:
        return ()
    number = {scores.name(gpu): gpu for gpu in range(len(scores.gpus))}
    found: dict[int, Suspect] = {}
    for verdict in judge(store, cluster=scores.cluster).rows:
        shows = plain_workload(workload) in {plain_workload(name) for name in verdict.workloads}
        if verdict.level is Level.BATCH or verdict.kind is Kind.FAST or not verdict.timed or not shows:
            continue
        for name in verdict.gpus:
            gpu = number.get(name)
            if gpu is None or not np.isfinite(one.raw[gpu]) or one.raw[gpu] <= soft:
                continue
            its = Suspect(
                scores.gpus[gpu], name, scores.nodes[gpu], float(one.raw[gpu]), verdict.p, verdict.kind.value,
                verdict.workloads,
            )  # fmt: skip
            found.setdefault(gpu, its)
    return tuple(sorted(found.values(), key=lambda its: -its.slowdown))
