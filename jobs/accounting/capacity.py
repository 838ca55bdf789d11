"""How many GPUs each node has. The store may know only some of them: those that somebody measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store import hostlist
from ...store.schema import JOBS
from ...store.vocabulary import GpuFrom
from ..slurm import Slurm

if TYPE_CHECKING:
    from ...store import Store

EVERY = ""  # stands for all nodes that are not named
_GIVEN = re.compile(r"(?:(.+)=)?([1-9][0-9]{0,3})")


def given(texts: Sequence[str]) -> dict[str, int]:
    """The numbers in texts such as `4` and `n[01-18]=8`, by node. Raises InputError."""
    found: dict[str, int] = {}
    for text in texts:
        match = _GIVEN.fullmatch(text)
        if match is None:
            raise InputError(f"--gpus-per-node {text!r} is not [NODES=]NUMBER: write 4, or n[01-18]=8 for some nodes")
        found |= dict.fromkeys(hostlist.expand(match[1]) if match[1] else [EVERY], int(match[2]))
    return found


def asked() -> dict[str, int]:
    """What Slurm has configured, by node. Raises SchedulerError."""
    return {node.name: node.gpus for node in Slurm().nodes().values() if node.gpus}


def learnt(store: Store, clusters: Sequence[str], nodes: pl.Series) -> dict[str, int]:
    """What earlier imports knew, by node: of jobs that had all GPUs of it."""
    rows = store.scan(JOBS.name).filter(
        (pl.col("gpu_from") == GpuFrom.WHOLE_NODE.value)
        & pl.col("cluster").is_in(clusters)
        & pl.col("node").is_in(nodes.unique().implode())
    )
    each = rows.group_by("allocation", "recorded", "node").agg(pl.col("gpu").n_unique().alias("gpus"))
    return dict(store.collect(each.group_by("node").agg(pl.col("gpus").max())).iter_rows())
