"""What a GPU ran under at each time: its driver, firmware, place and software, and its neighbours. Frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....store.vocabulary import EventKind
from ..states import codes

if TYPE_CHECKING:
    from ....store import Store
    from ...runs.probing import Probed

SOFTWARE = ("driver", "vbios", "cublas", "kernel", "probe_version")
"""What makes a regime: a change of it may move the times of every GPU alike."""
PLACE = ("node", "slot")

_TIME = pl.Datetime("us")
_FIELDS = ("driver", "vbios", *PLACE)
_SAID = ("driver", "cublas", "kernel")  # what runs themselves tell


def with_regimes(known: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """`runs` (gpu, node, began, versions, probe_version) with a column `had_X` for each of `SOFTWARE` and `PLACE`.

    What the run itself says counts first, then what was last seen of its GPU by then (`known`, of `identities_seen`).
    Null where nothing is known.
    """
    if not runs["began"].is_sorted():
        runs = runs.sort("began", maintain_order=True)
    said = {name: pl.col("versions").struct.field(name) for name in _SAID}
    for name in _FIELDS:
        runs = _seen(runs, known.drop_nulls(name).select("gpu", "first_seen", pl.col(name).cast(pl.String)), name)
    return runs.with_columns(
        pl.coalesce(said["driver"], "had_driver").alias("had_driver"),
        said["cublas"].alias("had_cublas"),
        said["kernel"].alias("had_kernel"),
        pl.col("probe_version").cast(pl.String).alias("had_probe_version"),
    )


def _seen(runs: pl.DataFrame, known: pl.DataFrame, name: str) -> pl.DataFrame:
    """`runs` with `had_X`: what was last seen of the GPU when the run began; before the first sight, that one."""
    had = f"had_{name}"
    known = known.rename({name: had}).sort("first_seen", maintain_order=True)
    first = known.group_by("gpu").agg(pl.col(had).first().alias("first"), (pl.col(had).n_unique() > 1).alias("several"))
    if known.is_empty():
        return runs.with_columns(pl.lit(None, pl.String).alias(had))
    place = codes(runs["gpu"], first["gpu"].to_list())
    of_first = first["first"].extend_constant(None, 1)[np.where(place >= 0, place, first.height)]
    if not first["several"].any():
        return runs.with_columns(of_first.alias(had))
    runs = runs.join_asof(known, left_on="began", right_on="first_seen", by="gpu", check_sortedness=False)
    return runs.drop("first_seen", strict=False).with_columns(pl.coalesce(had, of_first).alias(had))


@dataclass(frozen=True)
class Neighbours:
    """Which GPUs were seen on which node, and when each was seen there first."""

    seen: Mapping[str, tuple[tuple[datetime, str], ...]]

    def new(self, node: str | None, gpu: str, since: datetime, until: datetime) -> tuple[str, ...]:
        """GPUs that came to the node in this time, other than `gpu`."""
        came = self.seen.get(node or "", ())
        return tuple(sorted({name for at, name in came if since < at <= until and name != gpu}))


def neighbours(campaign: Probed, store: Store | None) -> Neighbours:
    """Of all GPUs of the cluster."""
    if store is None:
        return Neighbours({})
    rows = store.scan("gpus").filter(
        (pl.col("cluster") == campaign.cluster) & pl.col("node").is_not_null() & pl.col("first_seen").is_not_null()
    )
    first = store.collect(rows.group_by("node", "gpu").agg(pl.col("first_seen").min()))
    seen: dict[str, list[tuple[datetime, str]]] = {}
    for node, gpu, at in first.sort("node", "first_seen", "gpu").iter_rows():
        seen.setdefault(node, []).append((at, gpu))
    # The GPUs that a node was first seen with are not new to it.
    return Neighbours({node: tuple(of for of in came if of[0] > came[0][0]) for node, came in seen.items()})


def identities_seen(campaign: Probed, store: Store | None) -> pl.DataFrame:
    """gpu, first_seen and `_FIELDS`: every identity with a time, and the drivers that events tell of."""
    if store is None:
        texts = {name: pl.String() for name in ("gpu", "driver", "vbios", "node")}
        return pl.DataFrame(schema={**texts, "first_seen": _TIME, "slot": pl.Int64()})
    mine = campaign.gpus["gpu"].implode()
    rows = store.scan("gpus").filter((pl.col("cluster") == campaign.cluster) & pl.col("gpu").is_in(mine))
    rows = rows.drop_nulls("first_seen").select("gpu", pl.col("first_seen"), *_FIELDS).unique()
    known = store.collect(rows)
    reloaded = store.scan("events").filter(
        (pl.col("cluster") == campaign.cluster)
        & (pl.col("kind") == EventKind.DRIVER_RELOADED.value)
        & pl.col("version").is_not_null()
    )
    events = store.collect(reloaded.select(pl.col("ts"), "gpu", "node", "version"))
    if events.is_empty():
        return known
    of_gpu = events.filter(pl.col("gpu").is_not_null()).select("gpu", "ts", "version")
    of_node = events.filter(pl.col("gpu").is_null()).drop("gpu").join(campaign.gpus.select("gpu", "node"), on="node")
    told = pl.concat([of_gpu, of_node.select("gpu", "ts", "version")])
    told = told.select("gpu", pl.col("ts").alias("first_seen"), pl.col("version").alias("driver"))
    return pl.concat([known, told], how="diagonal_relaxed").select("gpu", "first_seen", *_FIELDS)
