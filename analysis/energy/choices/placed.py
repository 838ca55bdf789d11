"""The rows of `whorl energy excess`: what the place of a store's jobs cost, by GPU, node or job, and in a year."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ....errors import InputError
from ....store.catalog import quoted
from ...runs.probing import campaigns, probed
from ...verdicts.fingerprint import fingerprint
from ...verdicts.model import Model
from ..attribute import Kind
from ..books import Booked, add_up, booked
from .busy import busy
from .excess import YEAR_S, add, excess
from .levels import LEAST, levels
from .waiting import held

if TYPE_CHECKING:
    from ....store import Store

LEAST_FOR_A_YEAR_S = 86_400.0
"""Of less time nobody should say what a year is."""
_COSTS = ("co2e_g", "cost")
_FIGURES = ("energy_j", "low_j", "high_j", "idle_j", "duration_s", "method", "reason", *_COSTS)
_TOLD = ("cluster", "gpu", "model", "class", "workload", "figure", "value", "high", "n", "sittings", "made_at")


class Of(StrEnum):
    """What the rows are of."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"

    @classmethod
    def _missing_(cls, value: object) -> Of:
        raise InputError(f"the excess has no rows by {value!r}; there are those by {', '.join(cls)}")


@dataclass(frozen=True)
class Placed:
    """What the place cost, those that cost most first. `totals` has a row for each cluster."""

    by: Of
    rows: pl.DataFrame
    totals: pl.DataFrame
    booked: Booked
    notes: Sequence[str]


def placed(
    store: Store | str | Path,
    by: str = Of.GPU,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: Callable[[str], None] | None = None,
    **more: Any,
) -> Placed:
    """What the place of the jobs of a store cost, by GPU, node or job. `more`: as `booked` takes it.

    Raises InputError where no GPU was compared with others, and as `booked`.
    """
    from ....store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    say = progress or (lambda _: None)
    say("comparing the GPUs")
    told, notes = fingerprints(opened, cluster)
    found = booked(opened, cluster=cluster, since=since, until=until, progress=progress, **more)
    named = identities(opened)
    of = levels(told, named, sensor=found.sensor)
    if of.is_empty():
        raise InputError(
            f"no GPU of {opened.root} can be compared: {LEAST} GPUs of one model must be measured in the same work, so "
            "often that it is known what repeats (8 GPUs on two days, or 4 on three): run `whorl campaign`, or import "
            "results, and then again"
        )
    if of["model"].null_count():
        unnamed = of.filter(pl.col("model").is_null())["gpu"].n_unique()
        notes.append(
            f"the store does not name the model of {unnamed:,} GPUs: they are compared as if they were of one model "
            "(`whorl import --map COLUMN=model` adds the models)"
        )
    say("reading how busy the GPUs were")
    used = found.lit.filter(pl.col("kind") != Kind.UNATTRIBUTED)
    rows = excess(used, of, busy(opened, used), sensor=found.sensor)
    by = Of(by)
    if by is Of.JOB:
        jobs = job_allocations(opened)
        rows, used = (
            frame.filter(pl.col("kind") == Kind.JOB).join(
                jobs, on=["cluster", "allocation"], how="left", maintain_order="left"
            )
            for frame in (rows, used)
        )
    keys = ["cluster", {Of.GPU: "gpu", Of.NODE: "node", Of.JOB: "job_id"}[by]]
    window_s = _read_s(found)
    whole = _rows(rows, used, keys, found, window_s)
    if by is Of.GPU:
        slow = whole.filter(pl.col("excess_s_shown"))
        whole = whole.join(held(rows, slow, job_allocations(opened), used), on=keys, how="left")
    whole = _with_names(whole, opened, by, named)
    return Placed(by, whole, _rows(rows, used, ["cluster"], found, window_s), found, notes)


def identities(store: Store) -> pl.DataFrame:
    """Each GPU as it is known now: cluster, gpu, name, node, model, limit_w."""
    query = (
        "select cluster, gpu, name, node, model, coalesce(power_limit_mw, power_limit_default_mw) / 1e3 as limit_w "
        "from gpus_now order by cluster, gpu"
    )
    rows = store.sql(query).polars()
    texts = pl.col("cluster", "gpu", "name", "node", "model").cast(pl.String)
    return rows.with_columns(texts, pl.col("limit_w").cast(pl.Float64))


def job_allocations(store: Store, numbers: pl.Series | None = None) -> pl.DataFrame:
    """The job of each allocation: cluster, allocation, job_id, user, account; of all jobs, or of some numbers."""
    where = "" if numbers is None else f"where job_id in ({', '.join(map(quoted, numbers.unique().to_list()))}) "
    query = "select cluster, allocation, any_value(job_id) as job_id, any_value(user) as user, any_value(account) as "
    return store.sql(f"{query} account from jobs_now {where}group by cluster, allocation").polars().cast(pl.String)


def fingerprints(store: Store, cluster: str | None) -> tuple[pl.DataFrame, list[str]]:
    """The newest fingerprints, of clusters that have none those of their runs; and notes."""
    rows = store.sql(f"select {', '.join(_TOLD)} from fingerprints_now order by all").polars()
    rows = rows.with_columns(pl.col("cluster", "gpu", "model", "class", "workload", "figure").cast(pl.String))
    known = campaigns(store)["cluster"].unique().sort().to_list()
    if cluster is not None:
        rows, known = rows.filter(pl.col("cluster") == cluster), [one for one in known if one == cluster]
    has = set(rows["cluster"])
    made = [fingerprint(Model(probed(store, cluster=one, every=True))) for one in known if one not in has]
    notes = []
    for (one,), part in rows.group_by("cluster", maintain_order=True):
        newest = part["made_at"].max()
        assert isinstance(newest, datetime)
        notes.append(
            f"GPUs of {one} are compared by the fingerprint of {newest:%Y-%m-%d}: `whorl fingerprint` makes a new one"
        )
    kept = [name for name in _TOLD if name != "made_at"]
    parts = [rows.select(kept), *(one.select(kept) for one in made)]
    return pl.concat(parts, how="vertical_relaxed"), notes


def _read_s(found: Booked) -> float:
    """How long any GPU was read in the time that was asked for: time before and after tells no pace."""
    first, last = found.metered["first"].min(), found.metered["last"].max()
    return (last - first).total_seconds() if isinstance(first, datetime) and isinstance(last, datetime) else 0.0


def _rows(rows: pl.DataFrame, used: pl.DataFrame, keys: list[str], found: Booked, window_s: float) -> pl.DataFrame:
    """The energy and the excess by `keys`, and the excess of a year at the same pace."""
    energy = add_up(used, keys, errors=found.errors, also=_COSTS).select(*keys, *_FIGURES, "gpu_s", "measured_s")
    of = add(rows, keys)
    whole = energy.join(of.drop("energy_j", "gpu_s"), on=keys, how="left", nulls_equal=True)
    of_year = YEAR_S / window_s if window_s >= LEAST_FOR_A_YEAR_S else None
    yearly = {"year_kwh": ("excess_j", 3.6e6), "year_low_kwh": ("excess_low_j", 3.6e6),
              "year_high_kwh": ("excess_high_j", 3.6e6), "year_gpu_h": ("excess_s", 3600.0),
              "year_cost": ("excess_cost", 1.0), "year_co2e_g": ("excess_co2e_g", 1.0)}  # fmt: skip
    years = [
        (pl.lit(None, pl.Float64) if of_year is None else pl.col(name) * of_year / unit).alias(year)
        for year, (name, unit) in yearly.items()
    ]
    sure = pl.col("excess_j_shown").fill_null(value=False) | pl.col("excess_s_shown").fill_null(value=False)
    return whole.with_columns(years).sort(sure, "excess_j", descending=True, nulls_last=True, maintain_order=True)


_EXCESS = (
    "excess_j", "excess_low_j", "excess_high_j", "excess_j_shown", "excess_j_reason", "excess_j_of_s", "excess_s",
    "excess_low_s", "excess_high_s", "excess_s_shown", "excess_s_reason", "excess_s_of_s", "excess_co2e_g",
    "excess_cost", "year_kwh", "year_low_kwh", "year_high_kwh", "year_gpu_h", "year_cost", "year_co2e_g", "jobs",
    "gpus", "runs", "sittings", "compared", "gpu_s", "measured_s",
)  # fmt: skip


def _with_names(rows: pl.DataFrame, store: Store, by: Of, named: pl.DataFrame) -> pl.DataFrame:
    if by is Of.NODE:
        return rows.select("cluster", "node", *_FIGURES, *_EXCESS)
    if by is Of.JOB:
        of = job_allocations(store).group_by("cluster", "job_id").agg(pl.col("user", "account").drop_nulls().last())
        rows = rows.join(of, on=["cluster", "job_id"], how="left", nulls_equal=True)
        return rows.select("cluster", "job_id", "user", "account", *_FIGURES, *_EXCESS)
    for more in (named, verdicts(store)):
        rows = rows.join(more, on=["cluster", "gpu"], how="left", nulls_equal=True)
    return rows.select("cluster", "gpu", "name", "node", "model", *_FIGURES, *_EXCESS, "held_s", "held_j", "verdicts")


def verdicts(store: Store) -> pl.DataFrame:
    """What the judge says of each GPU: cluster, gpu, verdicts (kinds of findings, the worst first)."""
    query = "select cluster, unnest(gpus).gpu as gpu, kind, place from verdicts_now where level = 'gpu'"
    rows = store.sql(query).polars().sort("place").group_by("cluster", "gpu")
    return rows.agg(pl.col("kind").unique(maintain_order=True).str.join(", ").alias("verdicts"))
