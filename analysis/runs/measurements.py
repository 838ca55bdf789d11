"""The measurements of a store for the statistics: one row for each run, with its GPU's place and its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from ...store.names import plain_workload
from ...store.vocabulary import COMPARED, Outcome
from .kinds import told_apart

if TYPE_CHECKING:
    from ...store import Store

SOUND = pl.col("status").fill_null(Outcome.OK.value).is_in([str(outcome) for outcome in COMPARED])
"""Of rows of `runs`: those that ended well. Imported ones may say nothing of it."""

_CONDITIONS = ("sm_clock_mhz", "temperature_c", "power_w", "job_id", "began", "probe_version")


def measurements(
    store: Store,
    *,
    clusters: Sequence[str] = (),
    workloads: Sequence[str] = (),
    run_ids: bool = False,
    untimed: bool = False,
) -> pl.DataFrame:
    """The duration of every run (figure 'time', in ms), of these clusters and workloads (all, where empty).

    Runs of several models, power limits or locked clocks are workloads of their own (see `told_apart`); `workloads`
    are such names, or that of the work, which means all its kinds.

    Of a run with several repeats it is their median: the repeats of one run share its conditions and are no runs.

    Columns: cluster, workload, gpu, unit, cabinet, node (categorical), value, sm_clock_mhz, temperature_c,
    power_w, job_id, began, and run_id where `run_ids` asks for it. `cabinet` and `node` are those of the GPU, from
    wherever the store knows them; a GPU that was seen on two nodes has none. `job_id` names the rows that ran
    together (see `coupled_jobs`). With `untimed`, runs without a duration are there too.
    """
    runs = store.scan("runs").filter(SOUND)
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in([*workloads, *map(plain_workload, workloads)]))
    runs = runs.select("run_id", _short("cluster", "workload", "gpu"), *_CONDITIONS)
    times = store.scan("results").filter(pl.col("figure") == "time")
    if store.collect(times.select((pl.col("repeat") > 0).any())).item():
        times = times.group_by("run_id").agg(pl.col("value").median(), pl.col("unit").first())
    times = times.select("run_id", "value", _short("unit"))
    # In the order of the files, so that the same store gives the same answer to the last bit.
    joined = runs.join(times, on="run_id", how="left" if untimed else "inner", maintain_order="left")
    frame = store.collect(joined)
    frame = frame.join(_places(store), on=["cluster", "gpu"], how="left", maintain_order="left")
    frame = coupled_jobs(frame).drop("probe_version")
    plain = frame["workload"]
    frame = told_apart(store, frame)
    if workloads:
        frame = frame.filter(plain.is_in(list(workloads)) | pl.col("workload").is_in(list(workloads)))
    return frame if run_ids else frame.drop("run_id")


def untrusted(store: Store, *, clusters: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[str]:
    """A sentence for each workload of a cluster with runs that `measurements` leaves out: they failed or were wrong."""
    runs = store.scan("runs").drop_nulls(["cluster", "workload"])
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in([*workloads, *map(plain_workload, workloads)]))
    bad = (~SOUND).sum().alias("bad")
    counted = runs.group_by("cluster", "workload").agg(bad, pl.len()).filter(pl.col("bad") > 0)
    return [
        f"{workload} on {cluster}: {bad:,} of {n:,} runs {'is' if bad == 1 else 'are'} left out: failed, or with a "
        "wrong result"
        for cluster, workload, bad, n in store.collect(counted.sort("cluster", "workload")).iter_rows()
    ]


def _short(*names: str) -> pl.Expr:
    """Columns of few values in many rows, as 4 bytes a row."""
    return pl.col(names).cast(pl.Categorical)


def _places(store: Store) -> pl.DataFrame:
    """One row a GPU: its cabinet and node, where these are known and unique."""
    known = store.scan("gpus").filter(pl.col("node").is_not_null())
    one = known.group_by("cluster", "gpu").agg(
        pl.col("node").n_unique().alias("nodes"), pl.col("node").first(), pl.col("cabinet").drop_nulls().first()
    )
    return store.collect(one.filter(pl.col("nodes") == 1).select(_short("cluster", "gpu", "node", "cabinet")))


def coupled_jobs(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with a `job_id` that the GPUs of one job share, null where a job held one GPU.

    Published files may number the *processes* of a multi-GPU job, so that nearly every row has its own
    job_id. Where most rows of a workload do, its rows with a job_id that began on one node in the same
    second are one job instead: in the Longhorn files this gives groups of exactly four GPUs. Rows without a
    job_id are never coupled. Nor are runs of probes (`probe_version`, where there is such a column): a probe times
    each GPU alone, whatever the job that it runs in.
    """
    if "probe_version" in frame.columns:
        frame = frame.with_columns(pl.when(pl.col("probe_version").is_null()).then("job_id").alias("job_id"))
    if frame["job_id"].null_count() == frame.height:
        return frame
    keys = ["cluster", "workload"]
    stated = pl.col("job_id").is_not_null()
    together = stated & pl.col("node").is_not_null() & pl.col("began").is_not_null()
    frame = frame.with_columns(
        (pl.col("gpu").n_unique().over([*keys, "job_id"]) > 1).alias("shared"),
        pl.when(together).then(pl.format("{} at {}", "node", pl.col("began").cast(pl.String))).alias("start"),
    )
    by_number = (pl.col("shared") & stated).sum().over(keys) * 2 > stated.sum().over(keys)
    job = pl.when(by_number).then(pl.col("job_id")).otherwise(pl.col("start"))
    frame = frame.with_columns(pl.when(stated).then(job).alias("job_id"))
    gpus_of_job = pl.col("gpu").n_unique().over([*keys, "job_id"])
    return frame.with_columns(pl.when(gpus_of_job > 1).then(pl.col("job_id")).alias("job_id")).drop("shared", "start")


def identities(store: Store) -> pl.DataFrame:
    """Every identity of every GPU: columns cluster, gpu, uuid (nullable), place (nullable)."""
    known = store.scan("gpus").select("cluster", "gpu", "uuid", "place").unique()
    return store.collect(known.sort("cluster", "gpu", "uuid", "place"))


def imported(store: Store) -> dict[tuple[str, str], dict[str, int]]:
    """Rows read, duplicates dropped and rows refused, by cluster and workload, over all imports."""
    counts = store.collect(
        store.scan("imports")
        .filter(pl.col("workload").is_not_null())
        .group_by("cluster", "workload")
        .agg(pl.col("rows").sum(), pl.col("duplicates").sum(), pl.col("refused").sum())
    )
    return {(row.pop("cluster"), row.pop("workload")): row for row in counts.iter_rows(named=True)}
