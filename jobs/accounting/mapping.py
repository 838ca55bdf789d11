"""Which GPUs a job had: only where that is certain. No index of one kind is ever taken for one of another.

Slurm's accounting counts GPUs and does not say which. They are certain in three ways:

* a tag on the node read their UUIDs when the job began, or which device files they are (`tags`, `gres`);
* a collector saw processes of the job on as many GPUs as accounting counts, so it had these (`job_labels`);
* the job had as many GPUs as its nodes have in all, so it had all of them; the table `gpus` must have known every GPU
  of these nodes when the job began, as many as the scheduler says that they have. A GPU that was first seen while the
  job ran, in a place where no other was seen before, was there when it began: a campaign's own jobs make GPUs known.
  A node with MIG instances is left out, as its instances come and go.

Everything else is a row for each node without a GPU, and the report says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from ...store.vocabulary import GpuFrom, JobSource
from .capacity import EVERY

if TYPE_CHECKING:
    from ...store import Store

_NEAR = pl.duration(minutes=5)  # between the clock of a node and the controller's
SHARED_NODE = "on a node that others may share: accounting does not say which of its GPUs (use tags)"
NOT_KNOWN = "on nodes whose GPUs the store did not know when the job began"
MIG = "on nodes with MIG instances (use tags)"
INCOMPLETE = "on nodes of which the store knew another number of GPUs than they have"
NO_NUMBER = "on nodes of which nobody said how many GPUs they have (give --gpus-per-node)"
PARTS = "that had parts of GPUs (shards or MPS): accounting does not say of which (use tags)"
TAG_DIFFERS = "whose tags name another number of GPUs than accounting counts"


def inventory(store: Store, clusters: list[str]) -> pl.DataFrame:
    """Which GPU was on which node from when to when (`seen`, `until`), whether it is about MIG, and whether neither it
    nor another in its place was seen before (`first`).

    A GPU leaves a place when it is seen on another node, or when another card is seen in its place.
    """
    rows = store.collect(store.scan("gpus").filter(pl.col("cluster").is_in(clusters)))
    rows = rows.filter(pl.col("node").is_not_null() & pl.col("first_seen").is_not_null())
    rows = rows.select(
        "cluster",
        "gpu",
        "node",
        pl.coalesce(pl.col("slot").cast(pl.String), "pci_bus_id").alias("place"),
        pl.col("parent").is_not_null().alias("mig"),
        pl.col("first_seen").alias("seen"),
    ).sort("seen")
    of_gpu, of_place = ["cluster", "gpu"], ["cluster", "node", "place"]
    placed = pl.col("place").is_not_null() & ~pl.col("mig")
    here = pl.concat_str("node", pl.col("place").fill_null(""), separator=" ")
    came = here != here.shift(1).over(of_gpu)
    changed = placed & (pl.col("gpu") != pl.col("gpu").shift(1).over([*of_place, "mig"]))
    rows = rows.filter(came.fill_null(True) | changed.fill_null(False))
    left = pl.col("seen").shift(-1).over(of_gpu)
    replaced = pl.when(placed).then(pl.col("seen").shift(-1).over([*of_place, "mig"]))
    first = pl.col("seen") == pl.min_horizontal(
        pl.col("seen").min().over(of_gpu), pl.when("_placed").then(pl.col("seen").min().over(of_place))
    )
    until = pl.min_horizontal(left, replaced).alias("until")
    return rows.with_columns(placed.alias("_placed")).with_columns(until, first.alias("first")).drop("place", "_placed")


def place(
    jobs: pl.DataFrame, tags: pl.DataFrame, gpus: pl.DataFrame, capacity: Mapping[str, int]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Rows of `jobs`, one a GPU, or one a node where its GPUs are not known; how many allocations are so, by reason.

    `jobs` has a row for each allocation, `tags` one for each GPU (or node) of a tag, `gpus` is an `inventory`.
    `capacity` says how many GPUs a node has.
    """
    key = ["cluster", "allocation"]
    on_nodes = jobs.explode("nodes").rename({"nodes": "node"})
    seen = pl.col("source") == JobSource.CGROUP.value
    tagged = _by_tag(on_nodes, tags.filter(~seen))
    untagged = on_nodes.join(tagged, on=[*key, "node"], how="anti")
    tagged = pl.concat([tagged, _by_process(untagged, tags.filter(seen))])
    rest = on_nodes.join(tagged, on=[*key, "node"], how="anti")
    had = tagged.group_by(key).agg(pl.col("gpu").count().alias("tagged"))
    rest = rest.join(had, on=key, how="left").with_columns(pl.col("tagged").fill_null(0))
    whole, unknown, reasons = _whole_nodes(rest, gpus, capacity)
    rows = pl.concat([tagged, whole, unknown], how="diagonal")
    differs = _differing(rows, jobs)
    if differs.height:
        reasons[TAG_DIFFERS] = differs.height
        kept = rows.join(differs, on=key, how="anti")
        bare = rows.join(differs, on=key, how="semi").unique([*key, "node"], maintain_order=True)
        lost = [pl.lit(None, rows.schema[name]).alias(name) for name in ("gpu", "gpu_from", "node_gpus", "share")]
        rows = pl.concat([kept, bare.with_columns(lost)], how="diagonal")
    alone = (pl.col("job_nodes") == 1) & pl.col("gpu").is_null()
    return rows.with_columns(
        pl.when(alone).then("job_gpus").otherwise("node_gpus").alias("node_gpus"),
        pl.lit(JobSource.SACCT.value).alias("source"),
    ), reasons


def _by_tag(on_nodes: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """The GPUs that tags give: of the tags of the job on the node, the one that began nearest to it."""
    found = on_nodes.join(
        tags.select(
            "cluster",
            "raw_id",
            "node",
            "gpu",
            pl.col("allocation").alias("tag"),
            pl.col("began").alias("tag_began"),
            pl.col("share"),
        ),
        on=["cluster", "raw_id", "node"],
    )
    early = pl.col("tag_began") < pl.col("began") - _NEAR
    late = (pl.col("tag_began") > pl.col("ended") + _NEAR).fill_null(False)
    away = (pl.col("tag_began") - pl.col("began")).dt.total_nanoseconds().abs()
    found = found.filter(~early & ~late).with_columns(away.alias("away"))
    of_job = pl.col("tag") == pl.col("tag").sort_by("away", "tag").first().over("cluster", "allocation", "node")
    of_tag = pl.col("allocation") == pl.col("allocation").sort_by("away", "allocation").first().over("cluster", "tag")
    known = pl.col("gpu").is_not_null()
    return found.filter(of_job & of_tag).select(
        *on_nodes.columns,
        "gpu",
        "tag",
        pl.when(known).then(pl.lit(GpuFrom.TAG.value)).alias("gpu_from"),
        pl.when(known).then(pl.lit(1, pl.Int64)).alias("node_gpus"),
        pl.when(~pl.col("shared")).then("share").alias("share"),
    )


def _by_process(untagged: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    """The GPUs on which processes of a job were seen, where these are as many as accounting counts of it."""
    seen = _by_tag(untagged, labels).with_columns(pl.lit(GpuFrom.PROCESS.value).alias("gpu_from"))
    every_gpu = pl.col("gpu").n_unique().over("cluster", "allocation") == pl.col("job_gpus")
    return seen.filter(every_gpu & ~pl.col("shared"))


def _whole_nodes(
    rest: pl.DataFrame, gpus: pl.DataFrame, capacity: Mapping[str, int]
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """The GPUs of jobs that had all of their nodes'; the nodes of the others; how many these are, by reason."""
    key = ["cluster", "allocation"]
    there = rest.join(gpus, on=["cluster", "node"])
    met = pl.col("first") & (pl.col("seen") <= pl.col("ended") + _NEAR).fill_null(True)
    since = (pl.col("seen") <= pl.col("began")) | met
    there = there.filter(since & (pl.col("until") > pl.col("began")).fill_null(True))
    per_node = there.group_by(*key, "node").agg(pl.col("gpu").n_unique().alias("has"), pl.col("mig").any().alias("mig"))
    every = capacity.get(EVERY)
    number = pl.col("node").replace_strict(dict(capacity) or {EVERY: 0}, default=every, return_dtype=pl.Int64)
    rest = rest.with_columns(number.alias("capacity"))
    per_job = (
        rest.join(per_node, on=[*key, "node"], how="left")
        .group_by(key)
        .agg(
            pl.col("has").sum(),
            pl.col("has").is_null().any().alias("not_known"),
            pl.col("capacity").is_null().any().alias("no_number"),
            (pl.col("has") != pl.col("capacity")).any().alias("incomplete"),
            pl.col("mig").any(),
            pl.col("shared").first(),
            (pl.col("job_gpus") - pl.col("tagged")).first().alias("wanted"),
        )
    )
    reason = (
        pl.when("shared")
        .then(pl.lit(PARTS))
        .when("not_known")
        .then(pl.lit(NOT_KNOWN))
        .when("mig")
        .then(pl.lit(MIG))
        .when(pl.col("has") > pl.col("wanted"))
        .then(pl.lit(SHARED_NODE))
        .when("no_number")
        .then(pl.lit(NO_NUMBER))
        .when(pl.col("incomplete") | (pl.col("has") < pl.col("wanted")))
        .then(pl.lit(INCOMPLETE))
    )
    per_job = per_job.with_columns(reason.alias("reason"))
    certain = per_job.filter(pl.col("reason").is_null())
    whole = there.join(certain.select(key), on=key).unique([*key, "gpu"], maintain_order=True)
    whole = whole.select(
        *(name for name in rest.columns if name not in ("tagged", "capacity")),
        "gpu",
        pl.lit(None, pl.String).alias("tag"),
        pl.lit(GpuFrom.WHOLE_NODE.value).alias("gpu_from"),
        pl.lit(1, pl.Int64).alias("node_gpus"),
        pl.lit(1.0).alias("share"),
    )
    others = per_job.filter(pl.col("reason").is_not_null())
    unknown = rest.drop("tagged", "capacity").join(others.select(key), on=key)
    return whole, unknown, dict(others["reason"].value_counts().iter_rows())


def _differing(rows: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Allocations whose tags name another number of GPUs than accounting counts, though all seem to be known."""
    key = ["cluster", "allocation"]
    counted = rows.group_by(key).agg(
        pl.col("gpu").n_unique().alias("n"),
        pl.col("gpu").is_null().any().alias("open"),
        (pl.col("gpu_from") == GpuFrom.TAG.value).any().fill_null(False).alias("by_tag"),
    )
    both = counted.join(jobs.filter(~pl.col("shared")).select(*key, "job_gpus"), on=key).filter("by_tag")
    wrong = (pl.col("n") != pl.col("job_gpus")) & (~pl.col("open") | (pl.col("n") > pl.col("job_gpus")))
    return both.filter(wrong).select(key)
