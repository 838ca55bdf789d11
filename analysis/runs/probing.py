"""A campaign of probes as a store holds it: one row a run, with its figures, its conditions and its GPU's place.

A large fleet has millions of runs, so rows are joined by numbers of runs and GPUs and not by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.names import TRIAL_CAMPAIGN, gpu_name
from ...store.vocabulary import EventKind, stated
from ..by_number import by_number
from ..engines import HERE, Coverage, Engine, opened
from .measurements import SOUND, coupled_jobs, short, told_apart
from .windows import GpuDays, PartRows, Progress, gpu_days, made, reasons_of

if TYPE_CHECKING:
    from ...store import Store


_RUNS = (
    "job_id", "began", "ended", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "conditions",
    "probe_version", "versions", "clock_events", "ended_by", "status_detail",
)  # fmt: skip
_SHORT = ("workload", "gpu", "status")

_STATED = (
    "simulated", "path", "flop", "bytes", "operations", "input", "clock", "locked_clock_mhz", "asked_power_limit_w",
    "power_limit_w", "suite", "neighbours", "seed", "asked_precision", "time_limit_s", "warm_up_s",
)  # fmt: skip
"""The fields of `conditions` that are kept in memory: of a large fleet all of them are a gigabyte."""

_MAYBE_EMPTY = (
    "conditions", "versions", "clock_events", "job_id", "mem_clock_mhz", "probe_version", "ended_by", "status_detail",
)  # fmt: skip
"""Columns that imports leave null: of a large fleet, to read what is not there takes a second and a gigabyte."""
_MANY_RUNS = 200_000  # from which on it is counted first which of them are there
_PROGRESS = ("gpus", "probes", "stored_to", "ended")  # columns of `campaigns`

COMPUTE, MEMORY, CACHE, LINK, OTHER = "compute", "memory", "cache", "link", "other"
"""What a probe stresses, as its conditions tell it."""

_COUNTERS = ("row_remap_failed", "ecc_uncorrected")
_FAILED: Any = {
    **dict.fromkeys(("cluster", "gpu"), pl.String),
    **dict.fromkeys(("first", "last"), pl.Datetime("us")),
    **dict.fromkeys(_COUNTERS, pl.Int64),
}
_LOOKED_AT = 20_000_000  # readings of a part in which hardly any tells of memory that failed
_NAMED = 5  # campaigns in a sentence
_BALANCE = 8.0  # FLOP a byte from which arithmetic and not memory is what a probe stresses


OF_HARDWARE = {
    61: "its micro-controller warned",
    62: "its micro-controller halted",
    74: "NVLink",
    79: "it fell off the bus",
    119: "its system processor did not answer",
    120: "its system processor failed",
}
"""XIDs that tell of an error of the GPU or its links, besides those of its memory."""
OF_MEMORY = {
    48: "an error that ECC cannot correct",
    63: "a page retired or a row remapped",
    64: "retiring a page or remapping a row failed",
    92: "many errors that ECC corrected",
    94: "an error that was contained",
    95: "an error that was not contained",
}
"""XIDs that tell of errors of the memory."""
IS_FACT = pl.col("kind").is_in([EventKind.LOST.value, EventKind.NEEDS_RESET.value]) | pl.col("code").is_in(
    [*OF_HARDWARE, *OF_MEMORY]
)
"""Of an event: whether it tells what needs no run and no peers."""
FACT_GPU = pl.coalesce(pl.col("gpu").cast(pl.String), pl.concat_str("node", pl.lit("/"), "pci_bus_id"))
"""Of an event: the GPU, else its place on the node where nobody knows which GPU is there; null where neither is known.
"""


@dataclass(frozen=True)
class Probed:
    """A campaign. Times are in ms and the UTC clock, columns as in the tables."""

    cluster: str
    campaign: str
    """'' where it is all runs of a cluster that belong to no campaign."""
    gpus: pl.DataFrame
    """One row a GPU that the campaign touched: gpu, name, node, cabinet, slot, model, uuid, vbios, driver,
    power_limit_w, sm_clock_max_mhz, temperature_max_operating_c, temperature_slowdown_c; sorted by cabinet, node and
    slot. `name` is that of view `gpus_now`."""
    runs: pl.DataFrame
    """One row a run: the columns of `runs` (of `conditions` some fields), node, model, slot and power_limit_w of its
    GPU, `FIGURES`, and `value`, `low`, `high` (the median of its repeats with its 95 % interval, ms; null where it has
    none), `repeats`, and `stresses`."""
    events: pl.DataFrame
    """ts, gpu, node, kind, code, detail: of these GPUs, while the campaign ran."""
    planned: int | None = None
    """How many runs it was to have, where the store knows that some of them are missing."""

    counters: pl.DataFrame | None = None
    """gpu, first, last, row_remap_failed, ecc_uncorrected: of GPUs whose telemetry tells of memory that failed; None
    where nobody looked."""
    coverage: Coverage | None = None
    """Of the telemetry in which that was looked for; None where nobody looked."""

    @property
    def models(self) -> list[str]:
        return sorted(str(name) for name in self.gpus["model"].drop_nulls().unique())

    @property
    def simulated(self) -> bool:
        """Whether its GPUs are."""
        return is_simulated(self.runs)

    @property
    def maybe_twice(self) -> int:
        """GPUs known by their UUID alone, where others are known by their place alone: some may be the same GPU."""
        slot, uuid = (self.gpus[name].is_not_null() for name in ("slot", "uuid"))
        by_uuid, by_place = uuid & ~slot, slot & ~uuid
        return int(by_uuid.sum()) if not self.campaign and by_place.any() else 0

    @property
    def cut_says(self) -> str | None:
        """That not all runs are there, in a sentence without a full stop; None where that is not known."""
        if self.planned is None:
            return None
        return f"{self.runs.height:,} of {self.planned:,} runs: the campaign was interrupted, or it still runs"

    @cached_property
    def probes(self) -> list[str]:
        """In the order in which they began."""
        first = self.runs.group_by("workload").agg(pl.col("began").min()).sort("began", "workload", nulls_last=True)
        return [str(name) for name in first["workload"]]

    @cached_property
    def sound(self) -> pl.DataFrame:
        """The runs whose times can be compared, as `measurements` has them: those with a time that ended well.

        The time of a wrong result is not to be trusted: who computed something else did other work.
        """
        return only(self.trusted, pl.col("value").is_not_null())

    @cached_property
    def trusted(self) -> pl.DataFrame:
        """The runs that ended well, with a time or without one, but those of copies that had the host to themselves.

        Where all GPUs of a node copy at once, they share the host's path. Where one of them is lost, the others are
        faster, and that is no property of theirs.
        """
        runs, few = only(self.runs, SOUND), self._few_copies
        if few.is_empty():
            return runs
        day = pl.col("began").dt.date().alias("day")
        return runs.with_columns(day).join(few, on=few.columns, how="anti").drop("day")

    @property
    def _few_copies(self) -> pl.DataFrame:
        """node, workload, day: copies over the host's path that fewer GPUs made at once than on most nodes."""
        conditions = self.runs.schema["conditions"]
        fields = {field.name for field in conditions.fields} if isinstance(conditions, pl.Struct) else set()
        if not {"path", "neighbours"} <= fields:
            return pl.DataFrame()
        at_once = (stated("path") == "pcie") & (stated("neighbours") == "busy") & pl.col("node").is_not_null()
        copies = self.runs.lazy().filter(at_once & SOUND & pl.col("value").is_not_null())
        keys = ("node", "workload", pl.col("began").dt.date().alias("day"))
        mates = copies.group_by(*keys).agg(pl.col("gpu").n_unique().alias("mates")).collect()
        usual = pl.col("mates").quantile(0.5, "lower").over("workload", "day")
        return mates.filter(pl.col("mates") < usual).drop("mates")

    @cached_property
    def untrusted(self) -> dict[str, int]:
        """By probe, how many runs have a time and are left out, as their result was wrong."""
        timed = self.runs.filter(pl.col("value").is_not_null() & ~SOUND)
        return {probe: n for probe in self.probes if (n := timed.filter(pl.col("workload") == probe).height)}

    def since(self, date: datetime) -> Probed:
        """The same without the runs and events before `date` (UTC, without zone), and those without a date."""
        runs = self.runs.filter(pl.col("began") >= date)
        events = self.events.filter(pl.col("ts") >= date)
        gpus = self.gpus.filter(pl.col("gpu").is_in(runs["gpu"].unique().implode()))
        return replace(self, runs=runs, events=events, gpus=gpus)

    @property
    def untrusted_says(self) -> str | None:
        """The same in a sentence, without a full stop; None where there are none."""
        if not self.untrusted:
            return None
        count = sum(self.untrusted.values())
        which = ", ".join(f"{n:,} of {probe}" for probe, n in self.untrusted.items())
        runs, results = ("1 run", "its result was") if count == 1 else (f"{count:,} runs", "their results were")
        return f"left out of the times: {runs}, as {results} wrong ({which})"


def only(runs: pl.DataFrame, fit: pl.Expr) -> pl.DataFrame:
    """The runs that fit; where all do, no copy is made, as that of a large fleet takes a second and a gigabyte."""
    mask = runs.select(fit.alias("fit"))["fit"]
    return runs if mask.all(ignore_nulls=False) else runs.filter(mask)


def durations(campaign: Probed, gpu_places: pl.DataFrame) -> pl.DataFrame:
    """The duration of every run of a campaign that ended well, in the columns of `measurements` but for `run_id`.

    `campaign`: also of some runs, as `side_by_side.runs_of` has them with job_id and probe_version. `gpu_places`: of
    `measurements.places`.
    """
    names = ("workload", "gpu", "sm_clock_mhz", "temperature_c", "power_w", "job_id", "began", "probe_version")
    timed = only(campaign.runs.select(*names, "status", "value"), SOUND & pl.col("value").is_not_null())
    timed = timed.select(pl.lit(campaign.cluster).alias("cluster"), *names, "value", pl.lit("ms").alias("unit"))
    timed = timed.with_columns(pl.col("cluster", "workload", "gpu", "unit").cast(pl.Categorical))
    timed = timed.join(gpu_places, on=["cluster", "gpu"], how="left", maintain_order="left")
    return coupled_jobs(timed).drop("probe_version")


def parted(runs: pl.DataFrame, *names: str) -> Iterator[tuple[tuple[str | None, ...], pl.DataFrame]]:
    """The rows of each combination of these columns, by their names; one at a time, as all at once are a copy."""
    code, kinds = np.zeros(runs.height, dtype=np.int64), [runs[name].cast(pl.Categorical) for name in names]
    for kind in kinds:
        number = (kind.to_physical().cast(pl.Int64) + 1).fill_null(0).to_numpy()
        code = code * (int(number.max(initial=0)) + 1) + number
    first = pl.Series(code).arg_unique()
    keys = [(tuple(None if kind[at] is None else str(kind[at]) for kind in kinds), code[at]) for at in first]
    for key, number in sorted(keys, key=lambda entry: tuple(map(str, entry[0]))):
        yield key, runs.filter(pl.Series(code == number)) if len(keys) > 1 else runs


def campaigns(store: Store) -> pl.DataFrame:
    """Every campaign: cluster, campaign, began, runs, gpus; the one that began last comes last.

    Runs that belong to no campaign, as imported ones do, are one row per cluster; its campaign is null.
    """
    return _campaigns(store, (pl.len().alias("runs"), pl.col("gpu").n_unique().alias("gpus")))


def _campaigns(store: Store, counts: Sequence[pl.Expr]) -> pl.DataFrame:
    """The same with these counts: those of a large fleet take as long as all else that chooses a campaign."""
    runs = store.scan("runs").drop_nulls("cluster")
    by_campaign = runs.group_by("cluster", "campaign").agg(pl.col("began").min(), *counts)
    return store.collect(by_campaign.sort("began", "cluster", "campaign", nulls_last=False))


def probed(
    store: Store, campaign: str | None = None, cluster: str | None = None, *, every: bool = False, facts: bool = False
) -> Probed:
    """A campaign of a store: the last one where none is named (a trial of `whorl tune` only where there is no other);
    where there is none, all runs of the cluster.

    `every`: all runs of the cluster, whatever their campaign. `facts`: a cluster without runs will do, if an event
    tells of its GPUs what needs none. InputError where there are no runs, no campaign or cluster of that name, and
    where several clusters have runs of no campaign and none is named.
    """
    of_runs = _campaigns(store, ())
    bare = _without_runs(store, of_runs, cluster) if facts and campaign is None else None
    if bare is not None:
        return _probed(store, None, bare, every=True)
    name, chosen_cluster = _chosen(store, of_runs, campaign, cluster, every=every)
    return _probed(store, name, chosen_cluster, every=every)


def _without_runs(store: Store, of_runs: pl.DataFrame, cluster: str | None) -> str | None:
    """The cluster, or the only one of the store, if it has facts and no runs. InputError where several have.

    `of_runs`: of `campaigns`.
    """
    with_runs = of_runs["cluster"].to_list()
    if cluster in with_runs or (cluster is None and with_runs):
        return None
    clusters = clusters_with_facts(store)
    if cluster is None and len(clusters) > 1:
        raise InputError(f"{store.root} has events of {', '.join(clusters)}, and no runs: choose one by --cluster")
    return cluster if cluster in clusters else clusters[0] if cluster is None and clusters else None


def clusters_with_facts(store: Store, *, engine: Engine = HERE) -> list[str]:
    """The clusters with an event that tells what needs no run: a GPU that is lost, or an error of the hardware.

    Of a store without such events and without runs, those whose telemetry tells of memory that failed.
    """
    facts = store.scan("events").filter(IS_FACT & FACT_GPU.is_not_null()).select("cluster")
    clusters = store.collect(facts.drop_nulls().unique().sort("cluster"))["cluster"]
    if not len(clusters) and not has_rows(store, "runs"):
        clusters = failed_memory(store, engine=engine)[0]["cluster"].unique()
    return sorted(map(str, clusters))


def failed_memory(
    store: Store, *, engine: Engine = HERE, progress: Progress | None = None
) -> tuple[pl.DataFrame, Coverage]:
    """The GPUs whose telemetry tells of rows that could not be remapped, or of errors that ECC could not correct, and
    what this covers. Made in parts of some days.

    cluster, gpu, first, last (when it told so), row_remap_failed, ecc_uncorrected (the highest readings).
    """
    results, coverage = made(store, engine, _failed_memory, gpu_days(store, most=_LOOKED_AT), progress)
    by_part = [result.rows for result in results if result is not None]
    by_gpu = pl.concat([pl.DataFrame(schema=_FAILED), *by_part]).lazy().pipe(_extremes, "first", "last").collect()
    return by_gpu.drop_nulls(["cluster", "gpu"]).sort("cluster", "gpu"), coverage


def _failed_memory(part: GpuDays) -> PartRows:
    """The same of all GPUs in some days."""
    store = opened(part.root)
    failed = store.scan("telemetry", within=part.bounds).filter(pl.any_horizontal(pl.col(_COUNTERS) > 0))
    by_gpu = store.collect(failed.pipe(_extremes, "ts", "ts")).cast(_FAILED)
    return PartRows(by_gpu, reasons_of(store.left_out("telemetry", part.bounds)))


def _extremes(rows: pl.LazyFrame, first: str, last: str) -> pl.LazyFrame:
    """By GPU the first and last time, and the highest counters."""
    times = (pl.col(first).min().alias("first"), pl.col(last).max().alias("last"))
    by_gpu = rows.select(pl.col("cluster", "gpu").cast(pl.String), *dict.fromkeys((first, last)), *_COUNTERS)
    return by_gpu.group_by("cluster", "gpu").agg(*times, pl.col(_COUNTERS).max())


def clusters_with_timelines(store: Store) -> list[str]:
    """The clusters with timelines of training jobs."""
    clusters = store.scan("operations").select("cluster").drop_nulls().unique().sort("cluster")
    return [str(name) for name in store.collect(clusters)["cluster"]]


def with_facts(
    store: Store, campaign: Probed, since: datetime | None = None, *, engine: Engine = HERE,
    progress: Progress | None = None,
) -> Probed:  # fmt: skip
    """The same with all facts about GPUs of its cluster, whenever they were, also of GPUs without runs.

    `since` (UTC, without zone): facts that are older are left out. Telemetry is read in parts.
    """
    facts = store.scan("events").filter((pl.col("cluster") == campaign.cluster) & IS_FACT & FACT_GPU.is_not_null())
    if since is not None:
        facts = facts.filter(pl.col("ts") >= since)
    facts_of_cluster = store.collect(_with_cards(store, campaign.cluster, facts).select(campaign.events.columns))
    counters, coverage = failed_memory(store, engine=engine, progress=progress)
    counters = counters.filter(pl.col("cluster") == campaign.cluster).drop("cluster")
    counters = counters if since is None else counters.filter(pl.col("last") >= since)
    if facts_of_cluster.is_empty() and counters.is_empty():
        return replace(campaign, coverage=coverage)
    other_facts = facts_of_cluster.join(campaign.events, on=["ts", "gpu", "kind", "code"], how="anti", nulls_equal=True)
    gpu_keys = pl.concat([facts_of_cluster["gpu"], counters["gpu"]])
    others = gpu_keys.filter(~gpu_keys.is_in(campaign.gpus["gpu"].implode())).unique()
    gpus = pl.concat([campaign.gpus, gpus_of(store, campaign.cluster, others, {})]) if len(others) else campaign.gpus
    events = pl.concat([campaign.events, other_facts]).sort("ts", "gpu", nulls_last=True)
    return replace(campaign, gpus=gpus, events=events, counters=counters, coverage=coverage)


def _probed(store: Store, name: str | None, cluster: str, *, every: bool) -> Probed:
    """The runs of a campaign, or of a cluster, with what is known of their GPUs."""
    runs, empty = _rows(store, name, cluster, every=every)
    of_kind = runs.select("run_id", "cluster", "workload", "gpu", *{"conditions"}.difference(empty))
    of_kind = of_kind.with_columns(pl.lit(None, kind).alias(column) for column, kind in empty.items())
    runs = runs.drop("cluster").with_columns(told_apart(store, of_kind)["workload"])
    names = other_names(store, cluster) if name is None else {}
    events = _events(store, cluster, runs)
    touched = runs["gpu"] if runs.height else events.filter(IS_FACT)["gpu"].drop_nulls()
    gpus = gpus_of(store, cluster, touched.unique().cast(pl.String), names)
    runs = runs.hstack(figures(store, runs["run_id"]))
    if names:
        runs = runs.with_columns(pl.col("gpu").replace(names))
    runs = in_time(runs, gpus.select("gpu", short("node", "model"), "slot", "power_limit_w"))
    runs = runs.with_columns(
        pl.coalesce("time_median", "time").alias("value"),
        pl.col("time_low").alias("low"),
        pl.col("time_high").alias("high"),
        (pl.lit(OTHER) if "conditions" in empty else stresses()).cast(pl.Categorical).alias("stresses"),
        # Only here, as every step would copy them.
        *(pl.repeat(None, runs.height, dtype=kind).alias(column) for column, kind in empty.items()),
    ).drop("time")
    planned = None if name is None else _planned(store, cluster, name)
    missing = planned is not None and planned > runs.height
    return Probed(cluster, name or "", gpus, runs, events, planned if missing else None)


def _rows(
    store: Store, name: str | None, cluster: str, *, every: bool
) -> tuple[pl.DataFrame, Mapping[str, pl.DataType]]:
    """The rows of `runs` with `cluster`, and the columns that are left out of them, as all are null."""
    is_chosen = pl.lit(every) | (pl.col("campaign").is_null() if name is None else pl.col("campaign") == name)
    has_conditions = pl.col("conditions").is_not_null()
    conditions = pl.when(has_conditions).then(pl.struct(map(stated, _STATED))).alias("conditions")
    rows = store.scan("runs").filter(is_chosen & (pl.col("cluster") == cluster))
    rows = rows.select(
        "run_id", short("cluster", *_SHORT), *(column for column in _RUNS if column != "conditions"), conditions
    )
    if store.collect(rows.select(pl.len())).item() < _MANY_RUNS:
        return store.collect(rows), {}
    counts = ", ".join(f"count({column}) AS {column}" for column in _MAYBE_EMPTY)
    counted = store.sql(f"SELECT {counts} FROM runs WHERE cluster = {quoted(cluster)}")
    kinds = rows.collect_schema()
    empty = {column: kinds[column] for column, number in counted.to_pylist()[0].items() if not number}
    return store.collect(rows.drop(empty)), empty


def no_runs(store: Store, has: str = "no runs") -> InputError:
    """The error of a store in which no runs can be read: it says what is lost, or how to add some.

    `has`: what the store holds instead.
    """
    root = store.root
    skipped = sum(path.is_relative_to(root / table) for path in store.skipped for table in ("runs", "results"))
    if skipped:
        files = "file of runs was" if skipped == 1 else "files of runs were"
        return InputError(
            f"{root} holds no runs that can be read: {skipped} {files} skipped, see the warnings: restore what is "
            f"damaged from a copy; `whorl doctor --store {root}` checks every file"
        )
    if has_rows(store, "results") and not has_rows(store, "runs"):
        return InputError(f"{root} holds results of runs, but its folder runs has no runs: restore it from a copy")
    if has_rows(store, "operations"):
        judges = f"`whorl verdicts --store {root}` says which of their ranks are slow"
        return InputError(f"{root} holds timelines of training jobs and no runs: {judges}")
    adds = f"`whorl import --store {root} FILES` or `whorl probe run --store {root} --suite quick` adds some"
    return InputError(f"{root} holds {has}: {adds}")


def has_rows(store: Store, name: str) -> bool:
    """Whether a row of a table can be read."""
    return store.scan(name).head(1).collect().height > 0


def _chosen(
    store: Store, of_runs: pl.DataFrame, campaign: str | None, cluster: str | None, *, every: bool
) -> tuple[str | None, str]:
    """The campaign, None for runs of none (and for all of them, if `every`), and the cluster. `of_runs`: of
    `campaigns`."""
    all_campaigns = of_runs
    if all_campaigns.is_empty():
        raise no_runs(store, "telemetry and no runs" if has_rows(store, "telemetry") else "no runs")
    clusters = sorted(all_campaigns["cluster"].unique().to_list())
    if cluster is not None and cluster not in clusters:
        raise InputError(f"{store.root} holds no runs of cluster {cluster!r}; it has {', '.join(clusters)}")
    if cluster is not None:
        all_campaigns = all_campaigns.filter(pl.col("cluster") == cluster)
    with_names = all_campaigns.drop_nulls("campaign")
    if campaign is not None:
        chosen = with_names.filter(pl.col("campaign") == campaign)
        if chosen.is_empty():
            of_cluster = "" if cluster is None else f" of cluster {cluster}"
            names = with_names["campaign"].to_list()[-_NAMED:][::-1]
            has = f"the last ones are {', '.join(names)}" if names else "its runs belong to no campaign"
            raise InputError(f"{store.root} holds no campaign {campaign!r}{of_cluster}; {has}")
        with_names = chosen
    elif not (full_campaigns := with_names.filter(~pl.col("campaign").str.starts_with(TRIAL_CAMPAIGN))).is_empty():
        with_names = full_campaigns  # a trial says little of the fleet
    if not with_names.is_empty() and not every:
        return str(with_names["campaign"][-1]), str(with_names["cluster"][-1])
    if all_campaigns["cluster"].n_unique() > 1:
        raise InputError(f"{store.root} has runs of {', '.join(clusters)}: choose one by --cluster")
    return None, str(all_campaigns["cluster"][0])


def _planned(store: Store, cluster: str, campaign: str) -> int | None:
    """How many runs an unfinished campaign was to have; None where it is finished or the store does not know."""
    of_campaign = (pl.col("cluster") == cluster) & (pl.col("campaign") == campaign)
    last = store.collect(store.scan("campaigns").filter(of_campaign).sort("stored_to").tail(1).select(_PROGRESS)).rows()
    for gpus, probes, stored_to, ended in last:
        if gpus and probes and stored_to is not None and ended is not None and stored_to < ended:
            return int(gpus) * len(probes)
    return None


def other_names(store: Store, cluster: str) -> dict[str, str]:
    """Files may name a GPU by its place where others name it by its UUID: place -> UUID, where one file has both.

    Only places that had one GPU, and GPUs that had one place.
    """
    gpu_rows = store.scan("gpus").filter(pl.col("cluster") == cluster).select("gpu", "uuid", "place").unique()
    alone = store.collect(gpu_rows.filter(pl.col("uuid").is_null()).drop_nulls("place").drop("uuid"))
    if alone.is_empty():
        return {}
    with_both = store.collect(gpu_rows.drop_nulls(["uuid", "place"])).filter(
        (pl.col("uuid").n_unique().over("place") == 1) & (pl.col("place").n_unique().over("uuid") == 1)
    )
    alone = alone.join(with_both, on="place", suffix="_known").select("gpu", "gpu_known")
    return {other_name: gpu for other_name, gpu in alone.sort("gpu", "gpu_known").iter_rows() if other_name != gpu}


def gpus_of(store: Store, cluster: str, names: pl.Series, others: Mapping[str, str]) -> pl.DataFrame:
    """One row a GPU: what was said of it last. `others` are names that a GPU has beside its own."""
    gpu_rows = store.scan("gpus").filter((pl.col("cluster") == cluster) & pl.col("gpu").is_in(names.implode()))
    names = names.replace(others).unique()
    last = (
        gpu_rows.with_columns(pl.col("gpu").replace(others))
        .sort("first_seen", nulls_last=False)
        .group_by("gpu")
        .agg(
            *(
                pl.col(name).drop_nulls().last()
                for name in ("node", "cabinet", "slot", "model", "uuid", "vbios", "driver")
            ),
            (pl.col("power_limit_mw").drop_nulls().last() / 1000).alias("power_limit_w"),
            *(
                pl.col(name).drop_nulls().last()
                for name in ("sm_clock_max_mhz", "temperature_max_operating_c", "temperature_slowdown_c")
            ),
        )
    )
    all_names = pl.DataFrame({"gpu": names.sort()}, schema={"gpu": pl.String})
    gpus = all_names.join(store.collect(last), on="gpu", how="left")
    gone = _exchanged(store, cluster)
    places = gpus.select("gpu", "node", "slot").iter_rows()
    display_names = [gpu if gpu in gone else gpu_name(gpu, node, slot) for gpu, node, slot in places]
    gpus = gpus.with_columns(pl.Series("name", display_names, dtype=pl.String))
    return gpus.sort(*by_number("cabinet", "node"), "slot", *by_number("gpu"), nulls_last=True)


def _exchanged(store: Store, cluster: str) -> set[str]:
    """The cards in whose slot another card was seen later, which has the slot's name: the rule of view `gpus_now`."""
    gpu_rows = store.scan("gpus").filter((pl.col("cluster") == cluster) & pl.col("parent").is_null())
    sightings = gpu_rows.drop_nulls(["node", "uuid"]).sort("first_seen", nulls_last=False)
    now = sightings.group_by("gpu", maintain_order=True).agg(pl.col("uuid", "node", "slot", "first_seen").last())
    several = store.collect(now.drop_nulls("slot").sort("first_seen", nulls_last=False)).filter(
        pl.col("uuid").n_unique().over("node", "slot") > 1
    )
    last = pl.col("uuid").last().over("node", "slot")
    return set(several.filter(pl.col("uuid") != last)["gpu"])


def _events(store: Store, cluster: str, runs: pl.DataFrame) -> pl.DataFrame:
    """The events of the GPUs while they ran; of a cluster without runs, all events."""
    events = _with_cards(store, cluster, store.scan("events").filter(pl.col("cluster") == cluster))
    if runs.height:
        events = events.filter(pl.col("gpu").is_in(runs["gpu"].unique().implode()))
    began, ended = runs["began"].min(), runs["ended"].max()
    if began is not None and ended is not None:
        margin = pl.duration(minutes=1)
        events = events.filter(pl.col("ts").is_between(pl.lit(began) - margin, pl.lit(ended) + margin))
    columns = ("ts", "gpu", "node", "kind", "code", "detail")
    return store.collect(events.select(columns).sort("ts", "gpu", nulls_last=True))


def _with_cards(store: Store, cluster: str, events: pl.LazyFrame) -> pl.LazyFrame:
    """Events of a cluster with the GPU (`gpu`) that each tells of. Where a fact names a PCI address alone, it is the
    only card that was ever seen there, earlier or later; of several, or none, nobody knows which: then it is
    `FACT_GPU`. MIG instances have the address of their card."""
    node = pl.col("node").cast(pl.String)
    bus = pl.col("pci_bus_id").cast(pl.String).str.to_lowercase().str.strip_chars_start("0:").alias("bus")
    cards = store.scan("gpus").filter((pl.col("cluster") == cluster) & pl.col("parent").is_null())
    cards = cards.select(node, bus, pl.col("gpu").cast(pl.String).alias("card")).drop_nulls().unique()
    cards = cards.filter(pl.len().over("node", "bus") == 1)
    named = events.with_columns(node, bus).join(cards, on=["node", "bus"], how="left")
    gpu = pl.coalesce(pl.col("gpu").cast(pl.String), pl.when(IS_FACT).then(pl.coalesce("card", FACT_GPU)))
    return named.with_columns(gpu.alias("gpu"))


def names_of(gpus: pl.DataFrame) -> dict[str, str]:
    """The names of `Probed.gpus` by key, in their order; of GPUs without the column `name`, made from their place."""
    if "name" in gpus.columns:
        return dict(gpus.select("gpu", "name").iter_rows())
    return {gpu: gpu_name(gpu, node, slot) for gpu, node, slot in gpus.select("gpu", "node", "slot").iter_rows()}


def is_simulated(runs: pl.DataFrame) -> bool:
    """Whether the GPUs of these runs are, as the first of them that has conditions says."""
    conditions = runs["conditions"].drop_nulls()
    return bool(len(conditions)) and bool(conditions.struct.field("simulated")[0])


def stresses() -> pl.Expr:
    """What a run's probe stresses, by the path of its bytes and its FLOP a byte."""
    path, flop, moved = stated("path"), stated("flop").fill_null(0.0), stated("bytes").fill_null(0.0)
    operations = stated("operations").fill_null(0.0)
    return (
        pl.when(path.is_in(["pcie", "peer"]))
        .then(pl.lit(LINK))
        .when((flop > 0) & (flop >= _BALANCE * moved))
        .then(pl.lit(COMPUTE))
        .when(path == "l2")
        .then(pl.lit(CACHE))
        .when((path == "dram") & ((moved > 0) | (operations > 0)))
        .then(pl.lit(MEMORY))
        .otherwise(pl.lit(OTHER))
    )


FIGURES = (
    "time_median", "time_low", "time_high", "rate", "operation_rate", "bandwidth", "latency", "energy", "efficiency",
    "wrong_elements", "checked_elements",
)  # fmt: skip
"""Figures of a run that become columns."""


def in_time(runs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """`runs` by `began` and `gpu`, those without a time last, with the columns of their GPU. It empties `runs`."""
    # Numbers are sorted and joined several times as fast as names.
    known = gpus.with_row_index("row").drop_nulls("gpu").sort("gpu")
    gpu = runs["gpu"].cast(pl.Enum(known["gpu"])).to_physical()
    # One whole number for both keys is sorted several times as fast as the two.
    times = runs["began"].cast(pl.Int64).rank("dense").cast(pl.Int64)
    key = times.fill_null(runs.height + 1).to_numpy() * (known.height + 1) + gpu.fill_null(known.height).to_numpy()
    order = pl.Series(np.argsort(key, kind="stable"))
    # Column by column, as a second copy of all the runs of a large fleet does not fit beside the first; and all columns
    # without a value are one in memory.
    nothing: dict[pl.DataType, pl.Series] = {}

    def placed(column: pl.Series, rows: pl.Series) -> pl.Series:
        if column.null_count() < len(column):
            return column.rechunk().gather(rows)
        if column.dtype not in nothing:
            nothing[column.dtype] = pl.repeat(None, len(rows), dtype=column.dtype, eager=True)
        return nothing[column.dtype].alias(column.name)

    place = pl.select(known["row"].alias("row")).select(pl.col("row").gather(gpu.gather(order)))["row"]
    del times, key, gpu
    of_runs = [placed(runs.drop_in_place(name), order) for name in runs.columns]
    return pl.DataFrame([*of_runs, *(placed(column, place) for column in gpus.drop("gpu"))])


def figures(
    store: Store, run_ids: pl.Series, *, where: pl.Expr | None = None, gpus: Collection[str] | None = None,
    names: Sequence[str] = FIGURES,
) -> pl.DataFrame:  # fmt: skip
    """A row for each run: the figures `names`, and of the repeats the median time and their number. Of a part of all
    runs, `where` says which rows of `results` are theirs; `gpus`: theirs, where these are few, so that no other files
    are read."""
    results, figure = store.scan("results", gpus), pl.col("figure")
    where = where if gpus is None else pl.col("gpu").is_in(list(gpus))
    rows = (results if where is None else results.filter(where)).select("run_id", "figure", "value")
    rows = rows if where is None else store.collect(rows.filter(figure.is_in(["time", *names]))).lazy()  # read once
    single = with_run_numbers(store.collect(rows.filter(figure.is_in(list(names)))), run_ids)
    parts = single.partition_by("figure", as_dict=True)
    nothing = single.clear()
    columns = [_placed(parts.get((name,), nothing), "value", len(run_ids)).alias(name) for name in names]
    times = with_run_numbers(store.collect(rows.filter(figure == "time").drop("figure")), run_ids)
    times = times.with_columns(pl.lit(1, pl.Int64).alias("repeats"))
    if times["number"].n_unique() < times.height:
        times = times.group_by("number").agg(pl.col("value").median(), pl.col("repeats").sum())
    with_figures = single.select("number", pl.lit(0, pl.Int64).alias("none")).unique("number")
    columns.append(_placed(times, "value", len(run_ids)).alias("time"))
    repeats = (_placed(times, "repeats", len(run_ids)), _placed(with_figures, "none", len(run_ids)))
    return pl.DataFrame(columns).with_columns(pl.coalesce(*repeats).alias("repeats"))


def with_run_numbers(rows: pl.DataFrame, run_ids: pl.Series) -> pl.DataFrame:
    """Rows of `results` with the number of their run in `run_ids`, without those of other runs."""
    if rows.height == len(run_ids) and (rows["run_id"] == run_ids).all():  # as an import writes them
        return rows.with_row_index("number").drop("run_id")
    numbers = pl.DataFrame({"run_id": run_ids}).with_row_index("number")
    return rows.join(numbers, on="run_id", maintain_order="left").drop("run_id")


def _placed(rows: pl.DataFrame, name: str, runs: int) -> pl.Series:
    """(runs,) a column in the order of the runs; of several rows of a run the first, null where it has none."""
    if rows.is_empty():
        return pl.repeat(None, runs, dtype=rows.schema[name], eager=True)
    numbers = rows["number"].to_numpy()
    place = np.full(runs, rows.height)
    place[numbers[::-1]] = np.arange(rows.height)[::-1]
    column = rows[name]
    return column.extend_constant(None, 1)[place]
