"""Fingerprints: what each GPU is, figure by figure and per class of workload, beside the GPUs of its model.

A figure is the GPU's level, with the 95 % interval of another sitting, as the judge has them (`model`). Conditions are
taken out where there is a model of them (`channels`): power at the peers' clock, idle power at the peers' temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from ... import __version__
from ...errors import StoreError
from ...store.catalog import quoted
from ...store.schema import FINGERPRINTS, arrow_schema
from ...store.vocabulary import EventKind, Outcome
from ..choosing import find
from ..engines import HERE, Coverage, Engine
from ..runs.measurements import codes
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, Probed, probed
from ..runs.sittings import begins, days, in_order
from ..runs.windows import Progress
from ..spread.passive import passive
from ..spread.repeats import JOBS_COUPLE
from .model import Model, table, with_peers
from .states import FINGERPRINT

if TYPE_CHECKING:
    from ...store import Store

CLASSES = ("compute", "memory", "power", "latency", "path", "other")
COUNTS = {
    "wrong_results": "runs with a wrong result",
    "failed_runs": "runs that failed, hung or were lost",
    "xids": "errors that the driver told of",
    "losses": "times that it did not answer any more",
}
"""Errors that are counted, of each GPU."""
_EVIDENCE = 20
_BY_NAME = {"sgemm": COMPUTE, "gemm": COMPUTE, "hgemm": COMPUTE, "dgemm": COMPUTE}
_NEAREST = 3
_NORMAL = 1.4826  # times the median absolute deviation: the standard deviation of a normal distribution


def fingerprint(model: Model, serials: Mapping[str, str] | None = None) -> pl.DataFrame:
    """The rows of `fingerprints` of all GPUs of a cluster, without `version` and `made_at`.

    `model`: of `probed(..., every=True)`. `serials`: by GPU.
    """
    cluster = pl.lit(model.campaign.cluster).alias("cluster")
    return _complete((part.with_columns(cluster) for part in _parts(model) if part.height), serials)


def _parts(model: Model) -> Iterator[pl.DataFrame]:
    """The rows of what is counted, of times, of classes and of channels."""
    yield from _errors(model.campaign)  # first, as it needs most memory
    times = table(model.times, model.gpus)
    # Times that the GPUs of a job finish together belong to the job, and not to the GPU.
    alone = [figure for figure in model.times if (figure.jobs_share or 0.0) < JOBS_COUPLE]
    yield _stability(times if len(alone) == len(model.times) else table(alone, model.gpus))
    classes = _classes(model.campaign.runs)
    times = _by_workload(times, classes)
    yield _of_class(times)
    yield times.join(_newest(model.runs), on=["workload", "gpu"], how="left")
    yield from (_by_workload(table(model.of_channel(channel), model.gpus), classes) for channel in FINGERPRINT)


def _complete(parts: Iterable[pl.DataFrame], serials: Mapping[str, str] | None) -> pl.DataFrame:
    """With all columns of `fingerprints` but `version` and `made_at`, those that are missing as null, in its order."""
    serial = pl.col("gpu").replace_strict(serials or {}, default=None, return_dtype=pl.String).alias("serial")
    kinds = pl.DataFrame(arrow_schema(FINGERPRINTS.name).empty_table()).drop("version", "made_at")
    rows = pl.concat([kinds, *(part.with_columns(serial) for part in parts)], how="diagonal_relaxed")
    order = rows.select(pl.arg_sort_by("gpu", "class", "workload", "figure", nulls_last=True)).to_series()
    # Column by column, as a second copy of the rows of a large fleet is hundreds of megabytes.
    return pl.DataFrame([rows.drop_in_place(name).gather(order) for name in rows.columns])


def _by_workload(rows: pl.DataFrame, classes: Mapping[str, str]) -> pl.DataFrame:
    """Rows of `model.table` with the class of their workload; what is of all workloads is of the class power."""
    workload_class = pl.col("workload").replace_strict(classes, default="power").alias("class")
    with_class = with_peers(rows, "rank").with_columns(
        workload_class, pl.when(pl.col("workload") != "").then("workload")
    )
    return with_class.select(name for name in FINGERPRINTS.names if name in with_class.columns)


def _newest(runs: pl.DataFrame) -> pl.DataFrame:
    """Of each workload and GPU the newest runs: workload, gpu, evidence."""
    by_gpu = runs.select("workload", "gpu", "at", "run_id").sort("at", maintain_order=True).group_by("workload", "gpu")
    newest = by_gpu.agg(pl.col("run_id").tail(_EVIDENCE).alias("evidence"))
    return newest.with_columns(pl.col("workload", "gpu").cast(pl.String))


def _classes(runs: pl.DataFrame) -> dict[str, str]:
    """The class of each workload."""
    name = pl.col("workload").str.split(" [").list.first()
    counted = runs.group_by("workload", "stresses").agg(pl.len(), pl.col("latency").is_not_null().any())
    counted = counted.with_columns(pl.col("workload", "stresses").cast(pl.String))
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
    return dict(stresses.select("workload", workload_class).iter_rows())


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
    return _counted(spread, "time_spread", "%")


def _errors(campaign: Probed) -> Iterator[pl.DataFrame]:
    """What went wrong, counted. Who only imported runs of a GPU did not watch its driver, unless events say so."""
    number = codes(campaign.runs["gpu"], campaign.gpus["gpu"].to_list())
    at = campaign.runs.select(days()).to_series().to_numpy()
    order = in_order(number, at)
    first = number[order][begins(number[order], at[order])]
    status = pl.col("status").fill_null(Outcome.OK.value)
    failed = [Outcome.FAILED.value, Outcome.HUNG.value, Outcome.LOST.value]
    counted = campaign.runs.group_by(pl.Series("gpu", number)).agg(
        (status == Outcome.WRONG_RESULT.value).sum().alias("wrong_results"),
        status.is_in(failed).sum().alias("failed_runs"),
        pl.col("probe_version").is_not_null().any().alias("watched"),
        pl.len().alias("n"),
    )
    happened = campaign.events.group_by("gpu").agg(
        (pl.col("kind") == EventKind.XID.value).sum().alias("xids"),
        (pl.col("kind") == EventKind.LOST.value).sum().alias("losses"),
    )
    sittings = pl.Series("sittings", np.bincount(first, minlength=campaign.gpus.height))
    gpus = campaign.gpus.select("model", "gpu", sittings)
    counted = gpus[counted["gpu"]].hstack(counted.drop("gpu")).join(happened, on="gpu", how="left")
    unseen = pl.when("watched").then(0)
    for name in COUNTS:
        value = pl.coalesce(pl.col(name), unseen).cast(pl.Float64).alias("value")
        yield _counted(counted.select("model", "gpu", value, "n", "sittings"), name, "")


def _counted(rows: pl.DataFrame, figure: str, unit: str) -> pl.DataFrame:
    """A figure of the GPU without an interval."""
    return rows.with_columns(
        pl.lit(figure).alias("figure"),
        pl.lit(unit).alias("unit"),
        pl.lit("other").alias("class"),
        pl.col("value").count().over("model").alias("peers"),
        pl.col("value").rank("min").over("model").cast(pl.Int64).alias("rank"),
    )


def with_passive(rows: pl.DataFrame, passive: pl.DataFrame, serials: Mapping[str, str]) -> pl.DataFrame:
    """With the passive fingerprints (`analysis.passive`) as figure `passive_power`: power of ordinary jobs at full load
    and clock, % above the median GPU's; who draws less is expected to be faster in compute."""
    scored = passive.filter(pl.col("score").is_not_null())
    if scored.is_empty():
        return rows
    model = rows.select("gpu", "model").unique("gpu")
    passive_rows = scored.select(
        "cluster", "gpu", "workload", value="score", low="low", high="high", rank="rank", n="runs",
        peers=pl.len().over("workload"), figure=pl.lit("passive_power"), unit=pl.lit("%"), **{"class": pl.lit("power")},
    )  # fmt: skip
    return _complete([rows, passive_rows.join(model, on="gpu", how="left")], serials)


# -- which GPUs are alike -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A GPU whose fingerprint is like another one's."""

    gpu: str
    name: str
    distance: float
    """Root mean square of the differences, each in standard deviations of the peers."""
    figures: int
    """How many figures both have."""


@dataclass(frozen=True)
class Alike:
    """The figures of all GPUs of a cluster, as one array: those are alike whose figures differ least."""

    gpus: list[str]
    model: npt.NDArray[np.int64]
    """(gpus,) the number of its model; -1 where it is not known."""
    x: npt.NDArray[np.float32]
    """(gpus, figures) logarithms of the ratios to the peers; NaN where a GPU has none."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Alike:
        """From rows of `fingerprints`: gpu, model, workload, figure and ratio."""
        rows = rows.filter(pl.col("workload").is_not_null() & (pl.col("ratio") > 0))
        first = rows.select("gpu", "model").unique("gpu", keep="first").sort("gpu")
        figure = rows.select(pl.format("{}\n{}", "workload", "figure").alias("figure"))["figure"]
        names, gpus = figure.unique().sort().to_list(), first["gpu"].to_list()
        x = np.full((len(gpus), len(names)), np.nan, dtype=np.float32)
        x[codes(rows["gpu"], gpus), codes(figure, names)] = rows["ratio"].log().to_numpy()
        return cls(gpus, codes(first["model"], first["model"].drop_nulls().unique().sort().to_list()), x)

    def nearest(self, gpu: str, names: Mapping[str, str]) -> list[Neighbour]:
        """The GPUs of the same model that are most like `gpu`, of those that share half of its figures."""
        if gpu not in self.gpus:
            return []
        place = self.gpus.index(gpu)
        rows = np.flatnonzero(self.model == self.model[place])
        has = np.flatnonzero(np.isfinite(self.x[place]))
        x = self.x[np.ix_(rows, has)]
        wide = x.astype(np.float64)
        scale = _NORMAL * np.nanmedian(np.abs(wide - np.nanmedian(wide, axis=0)), axis=0)
        differs = (x - self.x[place, has])[:, scale > 0] / scale[scale > 0]
        shared = np.isfinite(differs).sum(axis=1)
        near = np.flatnonzero((2 * shared >= len(has)) & (shared > 0) & (rows != place))
        distance = np.sqrt(np.nansum(differs[near] ** 2, axis=1) / shared[near])
        keys = (self.gpus[number] for number in rows[near])
        nearest = sorted(zip(distance.tolist(), keys, shared[near].tolist(), strict=True))[:_NEAREST]
        return [Neighbour(key, names.get(key, key), far, figures) for far, key, figures in nearest]


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
    coverage: Coverage
    """Of the telemetry of ordinary jobs: GPUs of a part that could not be read may lack their passive score."""


def fingerprints(
    store: Store | str | Path, *, cluster: str | None = None, gpu: str | None = None, engine: Engine = HERE,
    progress: Progress | None = None,
) -> Fingerprints:  # fmt: skip
    """Compute the fingerprints of a cluster, store them, and give those of all GPUs or of the one that `gpu` means.

    InputError where there are no runs, where several clusters have some and none is named, and where no GPU or
    several fit. Telemetry is read in parts, where the `engine` says.
    """
    from ...store import Store

    opened = store if isinstance(store, Store) else Store.open(store)
    key: str | None = None
    if gpu is not None:
        row = find(opened, gpu, cluster)
        cluster, key = str(row["cluster"]), str(row["gpu"])
    campaign = probed(opened, cluster=cluster, every=True, facts=True)
    rows, names, coverage = computed(opened, campaign, engine=engine, progress=progress)
    notes = store_fingerprint(opened, rows)
    chosen = rows if key is None else rows.filter(pl.col("gpu") == key)
    chosen = chosen.with_columns(pl.col("gpu").replace_strict(dict(names), default=pl.col("gpu")).alias("name"))
    neighbours = () if key is None else tuple(Alike.of(rows).nearest(key, names))
    return Fingerprints(campaign.cluster, chosen, key, neighbours, notes, coverage)


def computed(
    store: Store, campaign: Probed, *, engine: Engine = HERE, progress: Progress | None = None
) -> tuple[pl.DataFrame, Mapping[str, str], Coverage]:
    """The rows of `fingerprints` of all GPUs of a cluster, not stored, the names of its GPUs by key, and of what
    telemetry they are.

    `campaign`: from `probed(..., every=True)`.
    """
    query = f"select gpu, name, serial from gpus_now where cluster = {quoted(campaign.cluster)}"
    identities = store.sql(query).to_pylist()
    names, serials = ({row["gpu"]: row[column] for row in identities} for column in ("name", "serial"))
    scores = passive(store, cluster=campaign.cluster, engine=engine, progress=progress)
    rows = with_passive(fingerprint(Model(campaign), serials), scores.rows, serials)
    return rows, names, scores.coverage
