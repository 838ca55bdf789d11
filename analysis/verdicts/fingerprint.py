"""Fingerprints: what each GPU is, figure by figure and per class of workload, beside the GPUs of its model.

A figure is the GPU's level, with the 95 % interval of another sitting, as the judge has them (`standing`). Conditions
are taken out where there is a model (`channels`): power at the peers' clock, idle power at the peers' temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ... import __version__
from ...errors import StoreError
from ...store.schema import FINGERPRINTS, arrow_schema
from ...store.vocabulary import EventKind, Outcome
from ..choosing import find
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, Probed, parted, probed
from ..runs.sittings import begins, days, in_order
from ..spread.passive import passive_fingerprints
from ..spread.repeats import JOBS_COUPLE
from .alike import Alike, Neighbour
from .causes import Evidence
from .channels import FINGERPRINT, WORK, channels
from .model import Figure, jobs_share, usable
from .standing import Measure, scaled, standings, table
from .states import codes

if TYPE_CHECKING:
    from ...store import Store

CLASSES = ("compute", "memory", "power", "latency", "path", "other")
CLOCK = Measure("sm_clock_mhz", "sm_clock", "MHz")
POWER = Measure("power_w", "power", "W")
COUNTS = {
    "wrong_results": "runs with a wrong result",
    "failed_runs": "runs that failed, hung or were lost",
    "xids": "errors that the driver told of",
    "losses": "times that it did not answer any more",
}
"""Errors that are counted, of each GPU."""
_EVIDENCE = 20
_BY_NAME = {"sgemm": COMPUTE, "gemm": COMPUTE, "hgemm": COMPUTE, "dgemm": COMPUTE}
_OF_RUN = ("run_id", "gpu", "model", "workload")
_OF_JOB = ("job_id", "node", "probe_version")


def fingerprint(
    campaign: Probed, serials: pl.DataFrame | None = None, evidence: Evidence | None = None
) -> pl.DataFrame:
    """The rows of `fingerprints` of all GPUs of a cluster, without `version` and `made_at`.

    `campaign`: from `probed(..., every=True)`. `serials`: columns gpu and serial. `evidence`: of this campaign, where
    it is known already, as from judging it.
    """
    timed, _ = usable(campaign, columns=(*_OF_RUN, "began", "value", *_OF_JOB, CLOCK.column, POWER.column))
    timed, jobs = timed.drop(_OF_JOB), timed
    classes = _classes(campaign.runs)
    keys = campaign.gpus["gpu"].to_list()
    standings_of_times = standings(timed, campaign.gpus)
    parts = [table(standings_of_times, keys)]
    times_of_gpus = _of_gpus(jobs, standings_of_times)
    still = parts[0] if len(times_of_gpus) == len(standings_of_times) else table(times_of_gpus, keys)
    parts += [
        table(standings(scaled(timed, measure), campaign.gpus, least=None, times=False), keys, measure)
        for measure in (CLOCK, POWER)
    ]
    parts[0] = parts[0].join(_newest(timed), on=["workload", "gpu"], how="left")
    of_gpus = [_stability(still), _errors(campaign)]
    parts += _channels(campaign, evidence or Evidence.of(campaign))
    by_workload = pl.concat(parts, how="diagonal_relaxed").join(classes, on="workload", how="left")
    by_workload = _shown(by_workload).with_columns(
        pl.col("class").fill_null("power"), pl.when(pl.col("workload") != "").then("workload")
    )
    of_gpus = [part for part in (_of_class(by_workload), *of_gpus) if part.height]
    rows = pl.concat([by_workload, *of_gpus], how="diagonal_relaxed")
    serial = pl.DataFrame(schema={"gpu": pl.String, "serial": pl.String}) if serials is None else serials
    rows = rows.join(serial, on="gpu", how="left").with_columns(pl.lit(campaign.cluster).alias("cluster"))
    missing = [name for name in FINGERPRINTS.names if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None).alias(name) for name in missing)
    return rows.select(FINGERPRINTS.names).sort("gpu", "class", "workload", "figure", nulls_last=True)


def _of_gpus(runs: pl.DataFrame, figures: list[Figure]) -> list[Figure]:
    """Those whose times belong to the GPU and not to the job that its GPUs finish together."""
    if runs["job_id"].null_count() == runs.height:
        return figures
    by_key = {(standing.workload, standing.model): standing for standing in figures}
    parts = [(by_key[str(workload), model], rows) for (workload, model), rows in parted(runs, "workload", "model")]
    return [standing for standing, rows in parts if (jobs_share(rows, standing.levels) or 0.0) < JOBS_COUPLE]


def _newest(timed: pl.DataFrame) -> pl.DataFrame:
    """Of each workload and GPU the newest runs: workload, gpu, evidence."""
    workload = codes(timed["workload"])
    gpu, at = (timed[name].to_numpy() for name in ("gpu_no", "at"))
    owner = gpu * (int(workload.max(initial=0)) + 1) + workload
    order = in_order(owner, at)
    ends = np.flatnonzero(np.diff(owner[order], append=-1)) + 1
    sizes = np.minimum(np.diff(ends, prepend=0), _EVIDENCE)
    last = np.cumsum(sizes)
    rows = order[np.arange(last[-1] if len(last) else 0) + np.repeat(ends - last, sizes)]
    groups = pl.DataFrame({"group": np.repeat(np.arange(len(ends)), sizes), "run_id": timed["run_id"][rows]})
    listed = groups.group_by("group", maintain_order=True).agg("run_id")
    newest = timed.select("workload", "gpu")[order[ends - 1]]
    return newest.with_columns(listed["run_id"].alias("evidence"))


def _classes(runs: pl.DataFrame) -> pl.DataFrame:
    """The class of each workload."""
    name = pl.col("workload").str.split(" [").list.first()
    counted = runs.group_by("workload", "stresses").agg(pl.len(), pl.col("latency").is_not_null().any())
    counted = counted.sort("len", "stresses", descending=True)
    stresses = counted.group_by("workload").agg(
        pl.col("stresses").drop_nulls().first(), pl.col("latency").any().alias("serial_")
    )
    workload_class = (
        pl.when("serial_").then(pl.lit("latency"))
        .when(name.str.starts_with("power-") | (name == "idle")).then(pl.lit("power"))
        .when(pl.col("stresses") == COMPUTE).then(pl.lit("compute"))
        .when(pl.col("stresses").is_in([MEMORY, CACHE])).then(pl.lit("memory"))
        .when(pl.col("stresses") == LINK).then(pl.lit("path"))
        .otherwise(name.replace_strict(_BY_NAME, default="other"))
    )  # fmt: skip
    return stresses.select("workload", workload_class.alias("class"))


def _channels(campaign: Probed, evidence: Evidence) -> Iterator[pl.DataFrame]:
    """The figures besides times, at the conditions of the peers (`channels`)."""
    by_channel = channels(evidence)
    for channel in FINGERPRINT:
        rows = by_channel[channel].rename({"value": "x"})
        least = None if channel.kind is None else channel.floor
        standings_of_figure = standings(rows, campaign.gpus, least=least, times=channel is WORK)  # times are in it
        measure = Measure("x", channel.name.replace(" ", "_"), channel.unit, channel.log)
        rows_of_figure = table(standings_of_figure, campaign.gpus["gpu"].to_list(), measure)
        # A normal interval of a share can reach beyond what a share can be.
        yield (
            rows_of_figure.with_columns(pl.col("low", "high").clip(0.0, 1.0))
            if channel.unit == "share"
            else rows_of_figure
        )


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    """A GPU without peers has no ratio: it is not like the others, as there are none."""
    alone = pl.col("peers") < 2
    return rows.with_columns(
        pl.when(~alone).then(pl.col(name)).alias(name) for name in ("ratio", "ratio_low", "ratio_high", "rank")
    )


def _of_class(rows: pl.DataFrame) -> pl.DataFrame:
    """The time of a class: the median of the ratios of its workloads, and of the ends of their intervals."""
    times = rows.filter((pl.col("figure") == "time") & pl.col("ratio").is_not_null())
    ratios = ("ratio", "ratio_low", "ratio_high")
    classes = times.group_by("class", "model", "gpu").agg(
        pl.col(*ratios).median(), pl.col("n").sum(), pl.col("sittings").max()
    )
    beside = ["class", "model"]
    return classes.with_columns(
        pl.lit("time").alias("figure"),
        pl.lit("").alias("unit"),
        pl.col("ratio").alias("value"),
        pl.col("ratio_low").alias("low"),
        pl.col("ratio_high").alias("high"),
        pl.col("ratio").rank("min").over(beside).cast(pl.Int64).alias("rank"),
        pl.len().over(beside).alias("peers"),
    )


def _stability(times: pl.DataFrame) -> pl.DataFrame:
    """How far the GPU's own level moves from sitting to sitting, in % (a standard deviation over workloads)."""
    free = pl.col("sittings") - 1
    spread = (
        times.drop_nulls("moved")
        .group_by("model", "gpu")
        .agg(
            (100 * ((free * pl.col("moved")).sum() / free.sum()).sqrt()).alias("value"),
            pl.col("n").sum(),
            pl.col("sittings").max(),
        )
    )
    return _counted(spread, "time_spread", "%", "other")


def _errors(campaign: Probed) -> pl.DataFrame:
    """What went wrong, counted. Who only imported runs of a GPU did not watch its driver, unless events say so."""
    runs, events = campaign.runs, campaign.events
    status = pl.col("status").fill_null(Outcome.OK.value)
    number = codes(runs["gpu"], campaign.gpus["gpu"].to_list())
    at = runs.select(days()).to_series().to_numpy()
    order = in_order(number, at)
    sittings = np.bincount(number[order][begins(number[order], at[order])], minlength=campaign.gpus.height)
    wrong, failed = (
        np.bincount(number[runs.select(bad).to_series().to_numpy()], minlength=campaign.gpus.height)
        for bad in (
            status == Outcome.WRONG_RESULT.value,
            status.is_in([Outcome.FAILED.value, Outcome.HUNG.value, Outcome.LOST.value]),
        )
    )
    n = np.bincount(number, minlength=campaign.gpus.height)
    counted = campaign.gpus.select("model", "gpu").with_columns(
        wrong_results=pl.Series(wrong), failed_runs=pl.Series(failed), n=pl.Series(n), sittings=pl.Series(sittings)
    )
    counted = counted.filter(pl.col("n") > 0)
    happened = events.group_by("gpu").agg(
        (pl.col("kind") == EventKind.XID.value).sum().alias("xids"),
        (pl.col("kind") == EventKind.LOST.value).sum().alias("losses"),
    )
    watched = pl.col("gpu").is_in(runs.drop_nulls("probe_version")["gpu"].unique().implode())
    counted = counted.join(happened, on="gpu", how="left").with_columns(
        pl.when(watched).then(pl.col("xids", "losses").fill_null(0)).otherwise(pl.col("xids", "losses"))
    )
    return pl.concat(
        _counted(
            counted.select("model", "gpu", pl.col(name).cast(pl.Float64).alias("value"), "n", "sittings"),
            name,
            "",
            "other",
        )
        for name in COUNTS
    )


def _counted(rows: pl.DataFrame, figure: str, unit: str, workload_class: str) -> pl.DataFrame:
    """A figure of the GPU without an interval."""
    return rows.with_columns(
        pl.lit(figure).alias("figure"),
        pl.lit(unit).alias("unit"),
        pl.lit(workload_class).alias("class"),
        pl.col("value").count().over("model").alias("peers"),
        pl.col("value").rank("min").over("model").cast(pl.Int64).alias("rank"),
    )


def with_passive(rows: pl.DataFrame, passive: pl.DataFrame, serials: pl.DataFrame) -> pl.DataFrame:
    """With the passive fingerprints (`analysis.passive`) as figure `passive_power`: power of ordinary jobs at full load
    and clock, % above the median GPU's; who draws less is expected to be faster in compute."""
    scored = passive.filter(pl.col("score").is_not_null())
    if scored.is_empty():
        return rows
    model = rows.select("gpu", "model").unique("gpu")
    passive_rows = scored.select(
        "cluster", "gpu", "workload", value="score", low="low", high="high", rank="rank", n="runs",
        peers=pl.len().over("workload"), figure=pl.lit("passive_power"), unit=pl.lit("%"), **{"class": pl.lit("power")},
    ).join(model, on="gpu", how="left").join(serials, on="gpu", how="left")  # fmt: skip
    missing = [pl.lit(None).alias(name) for name in FINGERPRINTS.names if name not in passive_rows.columns]
    whole_rows = passive_rows.with_columns(missing).select(FINGERPRINTS.names)
    joined = pl.concat([rows, whole_rows], how="vertical_relaxed")
    return joined.sort("gpu", "class", "workload", "figure", nulls_last=True)


# -- in the store -----------------------------------------------------------------------------------------------


def store_fingerprint(store: Store, rows: pl.DataFrame) -> tuple[str, ...]:
    """Store a fingerprint beside the earlier ones, unless the newest is of the same runs. Returns notes for people."""
    if not store.writable():
        return (f"the fingerprint is not stored: this user may only read {store.root}",)
    same = ["cluster", "gpu", "class", "workload", "figure", "n", "sittings"]
    with_version = rows.with_columns(pl.lit(__version__).alias("version"))
    clusters = rows["cluster"].unique().to_list()
    stored = store.scan("fingerprints").filter(pl.col("cluster").is_in(clusters))
    last = store.collect(
        stored.filter(pl.col("made_at") == pl.col("made_at").max().over("cluster")).select(*same, "version", "made_at")
    )
    newest = last["made_at"].max()
    last = last.drop("made_at")
    new = with_version.select(*same, "version").cast(last.schema)
    if new.sort(same, nulls_last=True).equals(last.sort(same, nulls_last=True)):
        return ()
    at = datetime.now(UTC).replace(tzinfo=None)
    if isinstance(newest, datetime) and newest >= at:  # by a clock that was ahead: it would stay the newest for long
        at = newest + timedelta(microseconds=1)
    stored_rows = with_version.with_columns(pl.lit(at).alias("made_at"))
    schema = arrow_schema(FINGERPRINTS.name)
    table = stored_rows.select(FINGERPRINTS.names).to_arrow().cast(schema.remove_metadata())
    try:
        store.append({FINGERPRINTS.name: table}, f"fingerprint-{at:%Y%m%dT%H%M%S%f}")
    except StoreError as error:
        return (f"the fingerprint is not stored: {error}",)
    return ()


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of a cluster's GPUs, or that of one."""

    cluster: str
    rows: pl.DataFrame
    """Rows of the table `fingerprints`, with `name`; of one GPU where one was asked for."""
    gpu: str | None
    neighbours: tuple[Neighbour, ...]
    """The GPUs most like it; none where all GPUs were asked for."""
    notes: tuple[str, ...]


def fingerprints(store: Store | str | Path, *, cluster: str | None = None, gpu: str | None = None) -> Fingerprints:
    """Compute the fingerprints of a cluster, store them, and give those of all GPUs or of the one that `gpu` means.

    InputError where there are no runs, where several clusters have some and none is named, and where no GPU or
    several fit.
    """
    from ...store import Store

    opened = store if isinstance(store, Store) else Store.open(store)
    key: str | None = None
    if gpu is not None:
        row = find(opened, gpu, cluster)
        cluster, key = str(row["cluster"]), str(row["gpu"])
    campaign = probed(opened, cluster=cluster, every=True, facts=True)
    rows, names = computed(opened, campaign)
    notes = store_fingerprint(opened, rows)
    chosen = rows if key is None else rows.filter(pl.col("gpu") == key)
    chosen = chosen.with_columns(pl.col("gpu").replace_strict(dict(names), default=pl.col("gpu")).alias("name"))
    neighbours = () if key is None else tuple(Alike.of(rows).nearest(key, names))
    return Fingerprints(campaign.cluster, chosen, key, neighbours, notes)


def computed(
    store: Store, campaign: Probed, evidence: Evidence | None = None
) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """The rows of `fingerprints` of all GPUs of a cluster, not stored, and the names of its GPUs by key.

    `campaign`: from `probed(..., every=True)`. `evidence`: of it, where it is known already.
    """
    query = f"select gpu, name, serial from gpus_now where cluster = '{campaign.cluster.replace(chr(39), chr(39) * 2)}'"
    identities = pl.DataFrame(
        store.sql(query).to_pylist(), schema={"gpu": pl.String, "name": pl.String, "serial": pl.String}
    )
    names: Mapping[str, str] = dict(identities.select("gpu", "name").iter_rows())
    serials = identities.select("gpu", "serial")
    passive = passive_fingerprints(store, cluster=campaign.cluster)
    return with_passive(fingerprint(campaign, serials, evidence), passive, serials), names
