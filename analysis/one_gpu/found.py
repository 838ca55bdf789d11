"""What was found about one GPU: the part of the newest judgement of its cluster that is about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..verdicts.judgements import Newer, StoredJudgement, stored
from ..verdicts.verdict import ACROSS_NODES, Change, Kind, NotJudged, Smallest, Verdict

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class Found:
    """What a judgement says of a GPU."""

    judged_at: datetime | None
    """UTC; None: it was judged just now."""
    verdicts: tuple[Verdict, ...]
    """Those that cover it, the worst first."""
    not_judged: tuple[NotJudged, ...]
    """About it, its workloads, or its whole cluster."""
    watch: bool
    """Whether it should be measured again: its newest sitting is slower than its earlier ones."""
    changes: tuple[Change, ...]
    """Dates at which its level changed."""
    smallest: tuple[Smallest, ...]
    """In its workloads, the smallest effect that could have been named."""
    judged: int
    """How many GPUs of its cluster were judged."""
    newer: Newer
    """What of the cluster is not in the judgement."""

    @classmethod
    def of(cls, judged: StoredJudgement, row: Mapping[str, Any], workloads: Collection[str], newer: Newer) -> Found:
        """What a judgement says of the GPU of `row` (of `known_gpus`). `newer`: what is not in it."""
        judgement, keys = judged.judgement, set(row["keys"])
        subjects = {row["name"], row["gpu"], row["cluster"], *workloads}
        covering = zip(judgement.rows, judged.keys, strict=True)
        return cls(
            judged.judged_at,
            tuple(verdict for verdict, covered in covering if keys & covered),
            tuple(no for no in judgement.not_judged if no.subject in subjects),
            row["name"] in judged.watch,
            tuple(change for change in judgement.changes if change.gpu in keys),
            tuple(
                least
                for least in judgement.smallest
                if least.workload in workloads and least.model in (None, row["model"])
            ),
            judgement.gpus,
            newer,
        )


@dataclass(frozen=True, slots=True)
class Named:
    """A GPU that a finding is about, by itself or with others of its node."""

    cluster: str
    gpu: str
    name: str
    verdict: Verdict


def named(store: Store) -> list[Named]:
    """The GPUs that the newest judgements name, each with its worst finding; the worst first. Those of batches, which
    may be half of a fleet, are left out."""
    by_gpu: dict[tuple[str, str], Named] = {}
    for judged in stored(store):
        for verdict, keys in zip(judged.judgement.rows, judged.keys, strict=True):
            if verdict.level not in ACROSS_NODES and verdict.kind is not Kind.FAST:
                alone = len(verdict.gpus) == 1
                for gpu in sorted(keys):
                    name = verdict.gpus[0] if alone else gpu
                    by_gpu.setdefault((verdict.cluster, gpu), Named(verdict.cluster, gpu, name, verdict))
    return list(by_gpu.values())
