"""The runs of a store for the statistics: one row a run, with its GPU's place and its job, kind by kind.

Runs of several models, power limits or locked clocks must not be pooled: each such kind of a workload has a name of its
own. Other conditions that differ are told in a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import plain_workload
from ...store.vocabulary import COMPARED, CONDITIONS, ClockSetting, Outcome, stated
from .sittings import Floats, Ints, groups_median

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
    times = store.scan("results").filter(pl.col("figure") == "time")
    works = {*workloads, *map(plain_workload, workloads)}
    for column, names in (("cluster", clusters), ("workload", works)):
        if names:  # of results too: a join with those of all workloads takes twice as long
            runs = runs.filter(pl.col(column).is_in(list(names)))
            times = times.filter(pl.col(column).is_in(list(names)) | pl.col(column).is_null())
    runs = runs.select("run_id", short("cluster", "workload", "gpu"), *_CONDITIONS)
    if store.collect(times.select((pl.col("repeat") > 0).any())).item():
        times = times.group_by("run_id").agg(pl.col("value").median(), pl.col("unit").first())
    times = times.select("run_id", "value", short("unit"))
    frame, timed = store.collect(runs), store.collect(times)
    if frame["run_id"].equals(timed["run_id"]):  # as an import writes them: many runs take long to join
        frame = frame.hstack(timed.drop("run_id"))
    else:  # in the order of the files, so that the same store gives the same answer to the last bit
        frame = frame.join(timed, on="run_id", how="left" if untimed else "inner", maintain_order="left")
    frame = frame.join(places(store), on=["cluster", "gpu"], how="left", maintain_order="left")
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


def short(*names: str) -> pl.Expr:
    """Columns of few different texts in many rows, as 4 bytes a row."""
    return pl.col(names).cast(pl.Categorical)


def places(store: Store) -> pl.DataFrame:
    """One row a GPU (cluster, gpu, node, cabinet; categorical): its place, where it is known and unique."""
    placed = store.scan("gpus").filter(pl.col("node").is_not_null())
    by_gpu = placed.group_by("cluster", "gpu").agg(
        pl.col("node").n_unique().alias("nodes"), pl.col("node").first(), pl.col("cabinet").drop_nulls().first()
    )
    return store.collect(by_gpu.filter(pl.col("nodes") == 1).select(short("cluster", "gpu", "node", "cabinet")))


def coupled_jobs(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with a `job_id` that the GPUs of one job share, null where a job held one GPU.

    Published files may number the *processes* of a multi-GPU job, so that nearly every row has its own
    job_id. Where most rows of a workload do, its rows with a job_id that began on one node in the same
    second are one job instead: in the Longhorn files this gives groups of exactly four GPUs. Rows without a
    job_id are never coupled. Nor are runs of probes (`probe_version`, where there is such a column): a probe times
    each GPU alone, whatever the job that it runs in.
    """
    if "probe_version" in frame.columns and frame["job_id"].null_count() < frame.height:
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
    gpu_rows = store.scan("gpus").select("cluster", "gpu", "uuid", "place").unique()
    return store.collect(gpu_rows.sort("cluster", "gpu", "uuid", "place"))


def imported(store: Store) -> dict[tuple[str, str], dict[str, int]]:
    """Rows read, duplicates dropped and rows refused, by cluster and workload, over all imports."""
    counts = store.collect(
        store.scan("imports")
        .filter(pl.col("workload").is_not_null())
        .group_by("cluster", "workload")
        .agg(pl.col("rows").sum(), pl.col("duplicates").sum(), pl.col("refused").sum())
    )
    return {(row.pop("cluster"), row.pop("workload")): row for row in counts.iter_rows(named=True)}


APART = ("asked_power_limit_w", "clock")
"""The fields of `runs.conditions` that part the runs of a workload."""
STATED = f"struct_pack({', '.join(f'{name} := conditions.{name}' for name in (*APART, 'locked_clock_mhz'))})"
"""These and the clock, in SQL: Polars would read all conditions of all runs."""
_KINDS = f"""
    SELECT DISTINCT cluster, workload, gpu, {STATED} AS conditions,
    CASE WHEN gpu IN (SELECT gpu FROM gpus WHERE uuid IS NULL) THEN run_id END AS run_id
    FROM runs WHERE coalesce(status, '{Outcome.OK}') IN {tuple(map(str, COMPARED))}
"""
"""What tells kinds of runs apart; which run it is says so where cards of several models may have stood in a place."""
_UNKNOWN = {"model": "model unknown", "limit": "power limit not set", "lock": "clock not locked"}
_FEW = 10_000  # runs: of so few, only the rows of their own GPUs are read


def told_apart(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """`runs` with a workload of its own for each model of GPU, power limit and locked clock, where these differ.

    `runs`: with run_id, cluster, workload and gpu; with `conditions`, these are not read again. A workload whose runs
    are alike in these keeps its name; one of two models becomes `sgemm [Tesla V100]` and `sgemm [A100]`. What is not
    known is a kind of its own. Where a GPU is known by its place only, cards of several models may have been there: a
    run is of the model that was there when it began.
    """
    sightings = store.scan("gpus").select("cluster", "gpu", "uuid", "model", "first_seen").drop_nulls("model")
    if runs.height <= _FEW:
        sightings = sightings.filter(pl.col("gpu").is_in(runs["gpu"].drop_nulls().unique().cast(pl.String).to_list()))
    sightings = store.collect(
        sightings.sort("first_seen", nulls_last=False, maintain_order=True)
    ).lazy()  # it is asked thrice
    models = sightings.group_by("cluster", "gpu").agg(pl.col("model").last())
    keys = ["cluster", "workload"]
    settings = limits(store, runs)
    # Most stores have one kind of each workload: then no row needs a name of its own.
    models_then = _models_then(store, sightings)
    of_gpus = runs.lazy().select(pl.col(*keys, "gpu").cast(pl.Categorical)).unique()
    of_gpus = of_gpus.collect(engine="streaming").lazy().cast(pl.String)  # in much less memory
    works_of_gpus = store.collect(of_gpus.join(models, on=["cluster", "gpu"], how="left"))
    one_model = works_of_gpus.group_by(keys).agg(pl.col("model").n_unique() == 1)["model"].all()
    if one_model and models_then is None and all(settings[name].n_unique() <= 1 for name in ("limit", "lock")):
        return runs.with_columns(pl.col("workload").cast(pl.Categorical))
    kinds = runs.select(pl.col(*keys, "gpu").cast(pl.String)).hstack(settings).lazy()
    kinds = kinds.join(models, on=["cluster", "gpu"], how="left", maintain_order="left")
    if models_then is not None:
        kinds = kinds.with_columns(runs["run_id"].cast(pl.String)).join(
            models_then, "run_id", "left", maintain_order="left"
        )
        kinds = kinds.with_columns(pl.coalesce("then", "model").alias("model"))
    usual = pl.col("limit").is_null() & pl.col("lock").is_null()
    parts = [
        pl.when((pl.col(kind).n_unique().over(keys) > 1) & ~(usual & (kind != "model"))).then(
            pl.col(kind).fill_null(unknown)
        )
        for kind, unknown in _UNKNOWN.items()
    ]
    kind = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    kinds = kinds.select(pl.when(kind == "").then("workload").otherwise(pl.format("{} [{}]", "workload", kind)))
    return runs.with_columns(store.collect(kinds)["workload"].cast(pl.Categorical))


def kinds_of_works(store: Store) -> pl.DataFrame:
    """Every cluster and workload with runs that ended well, and each of the names (`kind`) that `told_apart` gives."""
    rows = store.sql(_KINDS).polars()
    kind = told_apart(store, rows)["workload"].cast(pl.String).alias("kind")
    return rows.select("cluster", "workload", kind).unique()


def kind_of(
    workload: str, limit: str | None, lock: str | None, *, model: str | None, names: Collection[str]
) -> str | None:
    """Of `names` that `told_apart` gave, that of the runs of a workload with this model, power limit and locked clock;
    None where none fits. `limit`, `lock`: of `limits`."""
    settings = (model, limit, lock)
    parts = [unknown if value is None else value for value, unknown in zip(settings, _UNKNOWN.values(), strict=True)]
    suffixes = (", ".join(chosen) for n in range(len(parts), 0, -1) for chosen in combinations(parts, n))
    return next((name for name in (*(f"{workload} [{kind}]" for kind in suffixes), workload) if name in names), None)


def _models_then(store: Store, sightings: pl.LazyFrame) -> pl.LazyFrame | None:
    """The model at the time of each run (`run_id`, `then`) of a place in which cards of several models were.

    A card with a UUID is of one model, however its name is spelled.
    """
    of_gpu = ["cluster", "gpu"]
    plain = pl.col("model").str.to_lowercase().str.replace_all("nvidia|tesla", "").str.extract("([a-z]+ ?[0-9]+[a-z]*)")
    places = sightings.filter(pl.col("uuid").is_null().all().over(of_gpu)).with_columns(plain.alias("plain"))
    exchanged = store.collect(places.filter(pl.col("plain").n_unique().over(of_gpu) > 1))
    if exchanged.is_empty():
        return None
    exchanged = exchanged.select(
        *of_gpu, pl.col("first_seen").alias("began"), pl.col("model").alias("then")
    ).drop_nulls("began")
    runs = store.scan("runs").drop_nulls("began").select("run_id", *of_gpu, "began")
    runs = runs.join(exchanged.select(of_gpu).unique().lazy(), on=of_gpu, how="semi").sort("began")
    in_time = runs.join_asof(exchanged.sort("began").lazy(), on="began", by=of_gpu, check_sortedness=False)
    return in_time.select("run_id", "then")


def limits(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """The power limit (`limit`) and locked clock (`lock`) of each run, as text; null where nothing is stated."""
    if "conditions" in runs.columns:
        conditions = runs.select("conditions")
        if conditions["conditions"].null_count() == runs.height:
            return _nothing_stated(runs.height)
    else:
        any_stated = " or ".join(f"conditions.{name} is not null" for name in (*APART, "locked_clock_mhz"))
        stated_of = store.sql(f"select run_id, {STATED} as conditions from runs where {any_stated}").polars()
        if stated_of.is_empty():
            return _nothing_stated(runs.height)
        conditions = runs.select("run_id").join(stated_of, on="run_id", how="left", maintain_order="left")
    return conditions.select(
        pl.format("{} W", _number("asked_power_limit_w")).alias("limit"),
        pl.when(stated("clock") == ClockSetting.LOCKED.value)
        .then(pl.format("locked at {} MHz", _number("locked_clock_mhz").fill_null("none")))
        .alias("lock"),
    )


def _nothing_stated(runs: int) -> pl.DataFrame:
    nothing = pl.repeat(None, runs, dtype=pl.String, eager=True)
    return pl.DataFrame([nothing.alias("limit"), nothing.alias("lock")])


def _number(key: str) -> pl.Expr:
    """A number of the conditions as text, without a fraction of zero."""
    return stated(key).cast(pl.String).str.strip_suffix(".0")


_ALIKE = {one.name: one.alike for one in CONDITIONS if one.alike and one.name not in APART}
"""What it is called, by the field of `runs.conditions`."""
_MOST_NAMED = 3
_LONGEST = 40  # characters of a value


def mixed_conditions(store: Store, *, clusters: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[str]:
    """A sentence for each workload of a cluster whose sound runs were measured under conditions that differ.

    Only what a run states is compared. Models, power limits and clocks are not here: `told_apart` parts the runs.
    """
    runs = store.scan("runs").filter(SOUND, pl.col("conditions").is_not_null())
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in([*workloads, *map(plain_workload, workloads)]))
    states = [stated(key).alias(key) for key in _ALIKE]
    kinds = store.collect(runs.select("cluster", "workload", *states)).group_by("cluster", "workload")
    rows = kinds.agg(pl.col(list(_ALIKE)).drop_nulls().unique()).sort("cluster", "workload")
    return [sentence for row in rows.iter_rows(named=True) if (sentence := _sentence(row, _ALIKE))]


def _sentence(row: dict[str, list[Any]], names: Mapping[str, str]) -> str | None:
    differ = [f"{name} ({_named(row[key])})" for key, name in names.items() if len(row[key]) > 1]
    if not differ:
        return None
    subject = f"{row['workload']} on {row['cluster']}"
    return f"{subject}: the runs differ in {'; '.join(differ)}, which changes their times too"


def _named(values: Sequence[str | Mapping[str, float]]) -> str:
    texts = sorted(value if isinstance(value, str) else _sizes(value) for value in values)
    short = [text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..." for text in texts]
    others = len(short) - _MOST_NAMED
    return ", ".join(short[:_MOST_NAMED]) + (f" and {others} more" if others > 0 else "")


def _sizes(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:g}" for name, size in sizes.items()) or "none"


REQUIRED = ("cluster", "workload", "gpu", "value", "unit")
OTHERS = {"sm_clock": "sm_clock_mhz", "power": "power_w", "temperature": "temperature_c"}
"""The name of a figure in a result, and its column in a frame of runs."""
SPOKEN = {"sm_clock": "SM clock", "power": "power", "temperature": "temperature"}
"""The name that people see."""


@dataclass(frozen=True)
class Runs:
    """The runs of one workload on one cluster that have a GPU and a finite value, as columns of equal length."""

    cluster: str
    workload: str
    unit: str | None
    names: list[str]
    """The GPUs, sorted; a GPU's number is its place here."""
    gpu: Ints
    value: Floats
    frame: pl.DataFrame
    """The same rows with the optional columns."""
    left_out: int
    """Rows without a GPU or a finite value."""

    def other(self, name: str) -> Floats | None:
        """The column `name` of OTHERS with NaN where unknown, or None when the frame has no such column."""
        column = OTHERS[name]
        if column not in self.frame.columns:
            return None
        return self.frame[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()


def workloads(runs: pl.DataFrame) -> Iterator[Runs]:
    """The runs of each (cluster, workload), in sorted order.

    Raises `InputError` when a required column is missing, a row names no cluster or workload, or one workload of a
    cluster mixes units.
    """
    missing = [name for name in REQUIRED if name not in runs.columns]
    if missing:
        raise InputError(f"the runs have no column {', '.join(missing)}")
    for name in ("cluster", "workload"):
        if runs[name].null_count():
            raise InputError(f"{runs[name].null_count()} runs have no {name}")
    optional = ("job_id", "cabinet", "node", "began", "run_id", *OTHERS.values())
    runs = runs.select([*REQUIRED, *(name for name in optional if name in runs.columns)])
    keys = sorted((str(c), str(w)) for c, w in runs.select("cluster", "workload").unique().iter_rows())
    for cluster, workload in keys:
        of_workload = runs if len(keys) == 1 else runs.filter(cluster=cluster, workload=workload)
        units = of_workload["unit"].unique().to_list()
        if len(units) > 1:
            unit_names = ", ".join(sorted(str(unit) for unit in units))
            raise InputError(
                f"the values of {workload} on {cluster} are in several units ({unit_names}): convert them to one "
                "unit first"
            )
        of_columns = _columns(cluster, workload, None if units[0] is None else str(units[0]), of_workload)
        if len(of_columns.value):
            yield of_columns


def _columns(cluster: str, workload: str, unit: str | None, frame: pl.DataFrame) -> Runs:
    rows = frame.height
    usable = frame["gpu"].is_not_null() & frame["value"].cast(pl.Float64).is_finite().fill_null(value=False)
    if not usable.all():
        frame = frame.filter(usable)
    gpu, names = numbers(frame["gpu"])
    value = frame["value"].cast(pl.Float64).to_numpy()
    return Runs(cluster, workload, unit, names, gpu, value, frame, rows - frame.height)


def codes(texts: pl.Series, names: Sequence[str] | None = None) -> Ints:
    """A number for each text, the same for the same ones: its place in `names`, where these are given, and -1 for a
    text that is not one of them, and for null."""
    if names is None:
        return texts.cast(pl.Categorical).to_physical().cast(pl.Int64).to_numpy()
    if texts.dtype == pl.Categorical:
        distinct = texts.drop_nulls().unique()
        return _by_number(texts, distinct, codes(distinct.cast(pl.String), names))
    places = texts.cast(pl.Enum(names), strict=False).to_physical().cast(pl.Int64)
    return places.fill_null(-1).to_numpy()


def numbers(texts: pl.Series) -> tuple[Ints, list[str]]:
    """The number of each text, -1 for null, and the distinct texts in sorted order, in which a number is a place."""
    distinct = texts.drop_nulls().unique()
    names = distinct.cast(pl.String).sort().to_list()
    if texts.dtype == pl.Categorical:
        return _by_number(texts, distinct, codes(distinct.cast(pl.String), names)), names
    return codes(texts, names), names


def _by_number(texts: pl.Series, distinct: pl.Series, places: Ints) -> Ints:
    """The places of categorical texts, from those of the distinct ones; -1 for null."""
    kinds = distinct.to_physical().to_numpy()
    of_kind = np.full(int(kinds.max(initial=0)) + 2, -1, dtype=np.int64)
    of_kind[kinds] = places
    return np.asarray(of_kind[texts.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()])


def gpu_medians(values: Floats, gpu: Ints, count: int) -> Floats:
    """Each GPU's median of a column with NaN where unknown; NaN for a GPU without a known value."""
    is_finite = np.isfinite(values)
    return groups_median(values[is_finite], gpu[is_finite], count)
