"""What was found about one GPU: the part of the newest judgement of its cluster that is about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ..verdicts.recording import StoredJudgement, stored
from ..verdicts.verdict import Change, Judgement, Kind, Level, NotJudged, Smallest, Verdict

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class Found:
    """What a judgement says of a GPU."""

    judged_at: datetime | None
    """UTC; None: it was judged now, and nothing of that is stored."""
    verdicts: tuple[Verdict, ...]
    """Those that cover it, the worst first."""
    not_judged: tuple[NotJudged, ...]
    """About it, its workloads, or its whole cluster."""
    watch: bool
    """Whether it should be measured again: its newest sitting is slower than its earlier ones."""
    changes: tuple[Change, ...]
    """Dates at which its level changed."""
    smallest: tuple[Smallest, ...]
    """In its workloads, the smallest effect that could have been named; nothing where it was judged earlier."""
    judged: int
    """How many GPUs of its cluster were judged."""
    newer: int | None
    """Runs of the cluster that are not in the judgement; None where that is not known."""


def last_judgement(store: Store, cluster: str) -> StoredJudgement | None:
    """The newest judgement of a cluster that is stored; None where it was never judged."""
    return next(iter(stored(store, cluster)), None)


def runs_of_cluster(store: Store, cluster: str) -> int:
    """How many runs a cluster has."""
    counted = store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())
    return int(store.collect(counted).item())


def found(of: StoredJudgement, row: Mapping[str, Any], workloads: Collection[str], runs: int) -> Found:
    """What a stored judgement says of the GPU of `row` (of `known_gpus`). `runs`: how many its cluster has now."""
    said, keys = of.judgement, set(row["keys"])
    mine = tuple(one for one, covers in zip(said.rows, of.keys, strict=True) if keys & covers)
    newer = None if said.runs is None else max(0, runs - said.runs)
    return _found(said, row, workloads, mine, of.judged_at, watch=row["name"] in of.watch, newer=newer)


def found_now(said: Judgement, row: Mapping[str, Any], workloads: Collection[str]) -> Found:
    """The same of a judgement that was made now, of all runs."""
    names = {row["name"], row["gpu"]}
    mine = tuple(one for one in said.rows if names & set(one.gpus))
    watch = any(names & set(one.gpus) for one in said.watch)
    return _found(said, row, workloads, mine, None, watch=watch, newer=0)


def _found(
    said: Judgement, row: Mapping[str, Any], workloads: Collection[str], mine: tuple[Verdict, ...],
    judged_at: datetime | None, *, watch: bool, newer: int | None,
) -> Found:  # fmt: skip
    subjects = {row["name"], row["gpu"], row["cluster"], *workloads}
    return Found(
        judged_at,
        mine,
        tuple(one for one in said.not_judged if one.subject in subjects),
        watch,
        tuple(one for one in said.changes if one.gpu in row["keys"]),
        tuple(one for one in said.smallest if one.workload in workloads and one.model in (None, row["model"])),
        said.gpus,
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
    found: dict[tuple[str, str], Named] = {}
    for of in stored(store):
        for one, keys in zip(of.judgement.rows, of.keys, strict=True):
            if one.level is not Level.BATCH and one.kind is not Kind.FAST:
                alone = len(one.gpus) == 1
                for gpu in sorted(keys):
                    found.setdefault((one.cluster, gpu), Named(one.cluster, gpu, one.gpus[0] if alone else gpu, one))
    return list(found.values())
