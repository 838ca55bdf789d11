"""The runs of one GPU, read without the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import polars as pl

from ...store.catalog import quoted
from ...store.vocabulary import clock_in_words
from ..runs.kinds import kind_of, limits, told_apart
from ..runs.measurements import SOUND
from ..runs.run_figures import figures
from ..runs.sittings import days

if TYPE_CHECKING:
    from ...store import Store

_RUNS = (
    "run_id", "campaign", "workload", "gpu", "began", "ended", "sm_clock_mhz", "mem_clock_mhz", "temperature_c",
    "power_w", "conditions", "clock_events", "versions", "probe_version", "job_id", "status", "status_detail",
)  # fmt: skip


def own_runs(
    store: Store, cluster: str, keys: Sequence[str], model: str | None = None, *, workloads: Collection[str] = ()
) -> pl.DataFrame:
    """Every run of the GPU that has these keys, by time: columns of `runs`, `value` (its time, ms), `repeats`, `plain`
    (the name of the work), `limit` and `lock` (as `kinds.limits`).

    `workload` is its name in `workloads`, in which the GPU was compared, where one fits: the kinds of a workload depend
    on the runs of others. `model`: of the GPU.
    """
    # By SQL: of a large fleet, Polars would read the conditions of all runs.
    of_gpu = f"cluster = {quoted(cluster)} and gpu in ({', '.join(map(quoted, keys))})"
    runs = store.sql(f"select cluster, {', '.join(_RUNS)} from runs where {of_gpu}").polars()
    runs = runs.with_columns(pl.col("began", "ended").dt.cast_time_unit("us"))
    settings = limits(store, runs)
    with_settings = runs.with_columns(pl.col("workload").alias("plain")).hstack(settings)
    kinds = with_settings.select("plain", "limit", "lock").unique()
    names = [kind_of(*kind, model=model, names=workloads) for kind in kinds.iter_rows()]
    with_settings = with_settings.join(
        kinds.with_columns(pl.Series("kind", names, pl.String)), on=kinds.columns, how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    if None in names:
        alone = told_apart(store, runs)["workload"].cast(pl.String)
        with_settings = with_settings.with_columns(pl.coalesce("kind", alone).alias("kind"))
    runs = with_settings.with_columns(pl.col("kind").alias("workload")).drop("kind", "cluster")
    times = figures(store, runs["run_id"], gpus=keys, names=("time_median",))
    runs = runs.hstack(times.select(pl.coalesce("time_median", "time").alias("value"), "repeats"))
    return runs.sort("began", "workload", nulls_last=True)


def timed(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of `own_runs` whose times are compared, with `at` (days since 1970) and `x` (ln time)."""
    good = runs.filter(SOUND & (pl.col("value") > 0) & pl.col("value").is_finite())
    return good.with_columns(days().alias("at"), pl.col("value").log().alias("x"))


def listed(runs: pl.DataFrame, most: int) -> pl.DataFrame:
    """The newest runs of `own_runs` for a table, the newest first: began, workload, time_ms, repeats, sm_clock_mhz,
    power_w, temperature_c, clock, power_limit_w, neighbours, status, campaign."""
    newest = runs.sort("began", descending=True, nulls_last=True).head(most)
    conditions = [fields or {} for fields in newest["conditions"]]
    watts = [fields.get("asked_power_limit_w") or fields.get("power_limit_w") for fields in conditions]
    clocks = [clock_in_words(fields.get("clock"), fields.get("locked_clock_mhz")) for fields in conditions]
    neighbours = [fields.get("neighbours") for fields in conditions]
    return newest.select(
        "began",
        "workload",
        pl.col("value").alias("time_ms"),
        pl.col("repeats").cast(pl.Int64),
        "sm_clock_mhz",
        "power_w",
        "temperature_c",
        pl.Series("clock", clocks, pl.String),
        pl.Series("power_limit_w", watts, pl.Float64, strict=False),
        pl.Series("neighbours", neighbours, pl.String, strict=False),
        "status",
        "campaign",
    )


def around(runs: pl.DataFrame) -> tuple[int, int] | None:
    """When the newest run of `own_runs` was, with a minute on both sides: ns since 1970; None where none has a date."""
    dated = runs.drop_nulls("began").sort("began").tail(1)
    if dated.is_empty():
        return None
    began, ended = (dated[name].dt.epoch("ns").item() for name in ("began", "ended"))
    margin = 60 * 10**9
    return int(began) - margin, int(began if ended is None else ended) + margin
