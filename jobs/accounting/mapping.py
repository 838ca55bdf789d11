"""Which GPUs a job had: only where that is certain. No index of one kind is ever taken for one of another.

Slurm's accounting counts GPUs and does not say which. They are certain in three ways:

* a tag on the node read their UUIDs when the job began, or which device files they are (`tags`);
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

if TYPE_CHECKING:
    from ...store import Store

SHARED_NODE = "on a node that others may share: accounting does not say which of its GPUs (use tags)"
NOT_KNOWN = "on nodes whose GPUs the store did not know when the job began"
MIG = "on nodes with MIG instances (use tags)"
INCOMPLETE = "on nodes of which the store knew another number of GPUs than they have"
NO_NUMBER = "on nodes of which nobody said how many GPUs they have (give --set gpus-per-node=N)"
PARTS = "that had parts of GPUs (shards or MPS): accounting does not say of which (use tags)"
TAG_DIFFERS = "whose tags name another number of GPUs than accounting counts"
_NEAR = pl.duration(minutes=5)  # between the clock of a node and the controller's
_KEY = ["cluster", "allocation"]
_OF_NODE = [*_KEY, "node"]


def inventory(store: Store, clusters: list[str]) -> pl.DataFrame:
    """Which GPU was on which node from when to when (`seen`, `until`), whether it is about MIG, and whether neither it
    nor another in its place was seen before (`first`).

    A GPU leaves a place when it is seen on another node, or when another card is seen in its place.
    """
    rows = store.collect(store.scan("gpus").filter(pl.col("cluster").is_in(clusters)))
    rows = rows.filter(pl.col("node").is_not_null() & pl.col("first_seen").is_not_null())
    place, mig = pl.coalesce(pl.col("slot").cast(pl.String), "pci_bus_id"), pl.col("parent").is_not_null()
    rows = rows.select(
        "cluster",
        "gpu",
        "node",
        place.alias("place"),
        mig.alias("mig"),
        (place.is_not_null() & ~mig).alias("placed"),
        pl.col("first_seen").alias("seen"),
    ).sort("seen")
    of_gpu, of_place = ["cluster", "gpu"], ["cluster", "node", "place"]
    address = pl.concat_str("node", pl.col("place").fill_null(""), separator=" ")
    came = address != address.shift(1).over(of_gpu)
    changed = pl.col("placed") & (pl.col("gpu") != pl.col("gpu").shift(1).over([*of_place, "mig"]))
    rows = rows.filter(came.fill_null(True) | changed.fill_null(False))
    sighted = pl.col("seen")
    replaced = pl.when("placed").then(sighted.shift(-1).over([*of_place, "mig"]))
    earliest = pl.min_horizontal(sighted.min().over(of_gpu), pl.when("placed").then(sighted.min().over(of_place)))
    until = pl.min_horizontal(sighted.shift(-1).over(of_gpu), replaced)
    return rows.with_columns(until.alias("until"), (sighted == earliest).alias("first")).drop("place", "placed")


EVERY_NODE = ""
"""In numbers of GPUs by node: of all nodes that are not named. The store may know only those that somebody measured."""


def gpus_of(node: str, capacity: Mapping[str, int]) -> int | None:
    """How many GPUs a node has; None where nobody said."""
    return capacity.get(node, capacity.get(EVERY_NODE))


def place(
    jobs: pl.DataFrame, tags: pl.DataFrame, gpus: pl.DataFrame, capacity: Mapping[str, int]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Rows of `jobs`, one a GPU, or one a node where its GPUs are not known; how many allocations are so, by reason.

    `jobs` has a row for each allocation, `tags` one for each GPU (or node) of a tag, `gpus` is an `inventory`.
    `capacity` says how many GPUs a node has (`gpus_of`).
    """
    on_nodes = jobs.explode("nodes").rename({"nodes": "node"})
    of_collector = pl.col("source") == JobSource.CGROUP.value
    tagged = _by_tag(on_nodes, tags.filter(~of_collector))
    untagged = on_nodes.join(tagged, on=_OF_NODE, how="anti")
    processes = _by_tag(untagged, tags.filter(of_collector))
    every_gpu = pl.col("gpu").n_unique().over(_KEY) == pl.col("job_gpus")
    silent = tagged.filter(pl.col("gpu").is_null()).select(*_OF_NODE, "tag")  # tags that could not list GPUs
    named = tagged.filter(pl.col("gpu").is_not_null())
    tagged = pl.concat([named, processes.filter(every_gpu & ~pl.col("shared"))])
    counted = tagged.group_by(_KEY).agg(pl.col("gpu").count().alias("tagged"))
    others = on_nodes.join(tagged, on=_OF_NODE, how="anti").join(counted, on=_KEY, how="left")
    others = others.join(silent, on=_OF_NODE, how="left")
    node_rows, unknown = _of_nodes(others.with_columns(pl.col("tagged").fill_null(0)), gpus, capacity)
    rows = pl.concat([tagged, node_rows], how="diagonal")
    wrong = _differing(rows, jobs)
    if wrong.height:
        unknown[TAG_DIFFERS] = wrong.height
        bare = rows.join(wrong, on=_KEY, how="semi").unique(_OF_NODE, maintain_order=True)
        nothing = (pl.lit(None, rows.schema[name]).alias(name) for name in ("gpu", "gpu_from", "node_gpus", "share"))
        rows = pl.concat([rows.join(wrong, on=_KEY, how="anti"), bare.with_columns(nothing)], how="diagonal")
    alone = (pl.col("job_nodes") == 1) & pl.col("gpu").is_null()
    return rows.with_columns(
        pl.when(alone).then("job_gpus").otherwise("node_gpus").alias("node_gpus"),
        pl.lit(JobSource.SACCT.value).alias("source"),
    ), unknown


def _by_tag(on_nodes: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """The GPUs that tags give: of the job's tags on the node, else of what other sources name there, those that began
    nearest to it. Other sources have an allocation for each GPU."""
    tags = tags.filter((pl.col("source") == JobSource.TAG.value) | pl.col("gpu").is_not_null())
    source = pl.col("source").alias("tag_source")
    tag_columns = (pl.col("allocation").alias("tag"), pl.col("began").alias("tag_began"), source, "share", "gpu_from")
    rows = on_nodes.join(
        tags.select("cluster", "raw_id", "node", "gpu", *tag_columns), on=["cluster", "raw_id", "node"]
    )
    early = pl.col("tag_began") < pl.col("began") - _NEAR
    late = (pl.col("tag_began") > pl.col("ended") + _NEAR).fill_null(False)
    away = (pl.col("tag_began") - pl.col("began")).dt.total_nanoseconds().abs()
    rows = rows.filter(~early & ~late).with_columns(away.alias("away"))
    untagged = pl.col("tag_source") != JobSource.TAG.value
    of_job = pl.all_horizontal(
        pl.col(name) == pl.col(name).sort_by(untagged, "away", "tag_began", "tag_source").first().over(_OF_NODE)
        for name in ("tag_began", "tag_source")
    )
    of_tag = pl.col("allocation") == pl.col("allocation").sort_by("away", "allocation").first().over("cluster", "tag")
    certain = pl.col("gpu").is_not_null()
    return rows.filter(of_job & of_tag).select(
        *on_nodes.columns,
        "gpu",
        "tag",
        "gpu_from",
        pl.when(certain).then(pl.lit(1, pl.Int64)).alias("node_gpus"),
        pl.when(~pl.col("shared")).then("share").alias("share"),
    )


def _of_nodes(
    jobs: pl.DataFrame, gpus: pl.DataFrame, capacity: Mapping[str, int]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """The GPUs of jobs that had all of their nodes', and the nodes of the others; how many these are, by reason."""
    on_node = jobs.join(gpus, on=["cluster", "node"])
    met = pl.col("first") & (pl.col("seen") <= pl.col("ended") + _NEAR).fill_null(True)
    was_there = ((pl.col("seen") <= pl.col("began")) | met) & (pl.col("until") > pl.col("began")).fill_null(True)
    on_node = on_node.filter(was_there)
    counts = {node: gpus_of(node, capacity) for node in jobs["node"].unique()}
    number = pl.col("node").replace_strict(counts, default=None, return_dtype=pl.Int64)
    per_node = on_node.group_by(_OF_NODE).agg(pl.col("gpu").n_unique().alias("has"), pl.col("mig").any())
    per_job = (
        jobs.with_columns(number.alias("capacity"))
        .join(per_node, on=_OF_NODE, how="left")
        .group_by(_KEY)
        .agg(
            pl.col("has").sum(),
            pl.col("has").is_null().any().alias("not_known"),
            pl.col("capacity").is_null().any().alias("no_number"),
            (pl.col("has") != pl.col("capacity")).any().alias("incomplete"),
            pl.col("mig").any(),
            pl.col("shared").first(),
            (pl.col("job_gpus") - pl.col("tagged")).first().alias("needs"),
        )
    )
    too_many, fewer = pl.col("has") > pl.col("needs"), pl.col("has") < pl.col("needs")
    reasons = [
        (pl.col("shared"), PARTS), (pl.col("not_known"), NOT_KNOWN), (pl.col("mig"), MIG), (too_many, SHARED_NODE),
        (pl.col("no_number"), NO_NUMBER), (pl.col("incomplete") | fewer, INCOMPLETE),
    ]  # fmt: skip
    reason = pl.coalesce(pl.when(condition).then(pl.lit(sentence)) for condition, sentence in reasons)
    per_job = per_job.with_columns(reason.alias("reason"))
    certain = per_job.filter(pl.col("reason").is_null()).select(_KEY)
    columns = [name for name in jobs.columns if name != "tagged"]
    whole_nodes = on_node.join(certain, on=_KEY).unique([*_KEY, "gpu"], maintain_order=True)
    whole_nodes = whole_nodes.select(
        *columns,
        "gpu",
        pl.lit(GpuFrom.WHOLE_NODE.value).alias("gpu_from"),
        pl.lit(1, pl.Int64).alias("node_gpus"),
        pl.lit(1.0).alias("share"),
    )
    bare = jobs.select(columns).join(certain, on=_KEY, how="anti")
    unknown = per_job["reason"].drop_nulls().value_counts()
    return pl.concat([whole_nodes, bare], how="diagonal"), dict(unknown.iter_rows())


def _differing(rows: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Allocations whose tags name another number of GPUs than accounting counts, though all seem to be known."""
    counted = rows.group_by(_KEY).agg(
        pl.col("gpu").n_unique().alias("n"),
        pl.col("gpu").is_null().any().alias("open"),
        pl.col("gpu_from").is_in([GpuFrom.TAG.value, GpuFrom.FILE.value]).any().alias("by_tag"),
    )
    both_known = counted.join(jobs.filter(~pl.col("shared")).select(*_KEY, "job_gpus"), on=_KEY).filter("by_tag")
    wrong = (pl.col("n") != pl.col("job_gpus")) & (~pl.col("open") | (pl.col("n") > pl.col("job_gpus")))
    return both_known.filter(wrong).select(_KEY)
