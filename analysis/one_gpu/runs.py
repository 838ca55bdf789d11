"""The runs of one GPU, and those of its peers on the same days, read without the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from ...store.vocabulary import clock_in_words
from ..runs.kinds import limits, told_apart
from ..runs.measurements import SOUND
from ..runs.run_figures import figures
from ..runs.sittings import UNKNOWN, days
from .standing import Standing

if TYPE_CHECKING:
    from ...store import Store

PEERS = 1_000
"""GPUs of a day that stand for all peers, where there are more; evenly drawn, the same on every day."""
_ROWS = 100_000  # GPUs, days and workloads at most: with many days, fewer GPUs stand for all
_LEAST_PEERS = 40
_RUNS = (
    "run_id", "campaign", "workload", "gpu", "began", "ended", "sm_clock_mhz", "mem_clock_mhz", "temperature_c",
    "power_w", "conditions", "clock_events", "versions", "probe_version", "job_id", "status", "status_detail",
)  # fmt: skip
_KIND = ("plain", "limit", "lock")


class Kind(NamedTuple):
    """Runs that are compared with each other."""

    plain: str
    """The name of the work."""
    limit: str | None
    lock: str | None
    """The power limit and the locked clock, as text."""
    workload: str
    """What it is called."""


def own_runs(store: Store, cluster: str, keys: Sequence[str], stands: Iterable[Standing] = ()) -> pl.DataFrame:
    """Every run of the GPU that has these keys, by time: columns of `runs`, the figures of a run
    (`run_figures.FIGURES`), `value` (its time, ms), `repeats`, `plain` (the name of the work), `limit` and `lock` (as
    `kinds.limits`).

    `workload` is its name in `stands`, where those know it: the kinds of a workload depend on the runs of others.
    """
    mine = store.scan("runs").filter((pl.col("cluster") == cluster) & pl.col("gpu").is_in(list(keys)))
    runs = store.collect(mine.select("cluster", *_RUNS))
    told = limits(store, runs)
    names = told_apart(store, runs)["workload"].cast(pl.String)
    runs = runs.with_columns(pl.col("workload").alias("plain")).hstack(told).with_columns(names.alias("workload"))
    kinds = _kinds(runs, stands)
    if kinds.height:
        runs = runs.join(kinds, on=list(_KIND), how="left", nulls_equal=True, maintain_order="left")
        runs = runs.with_columns(pl.coalesce("kind", "workload").alias("workload")).drop("kind")
    runs = runs.hstack(figures(store, runs["run_id"], gpus=keys))
    runs = runs.with_columns(pl.coalesce("time_median", "time").alias("value"))
    return runs.drop("cluster").sort("began", "workload", nulls_last=True)


def _kinds(runs: pl.DataFrame, stands: Iterable[Standing]) -> pl.DataFrame:
    """The names of the kinds of runs, by `_KIND`: those under which the runs behind a fingerprint were compared."""
    pairs = [(one.workload, run) for one in stands if one.figure == "time" and one.workload for run in one.runs]
    known = pl.DataFrame(pairs, schema={"kind": pl.String, "run_id": pl.String}, orient="row")
    return known.join(runs.select("run_id", *_KIND), on="run_id").select(*_KIND, "kind").unique(list(_KIND))


def timed(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of `own_runs` whose times are compared, with `at` (days since 1970) and `x` (ln time)."""
    good = runs.filter(SOUND & (pl.col("value") > 0) & pl.col("value").is_finite())
    return good.with_columns(days().alias("at"), pl.col("value").log().alias("x"))


def kinds_of(runs: pl.DataFrame) -> tuple[Kind, ...]:
    """The kinds of runs that a GPU has, of those of `timed`."""
    return tuple(Kind(*row) for row in runs.select(*_KIND, "workload").unique().sort("workload").iter_rows())


def days_of(runs: pl.DataFrame) -> tuple[int, ...]:
    """The days on which runs of `timed` began, since 1970."""
    known = runs.filter(pl.col("at") > UNKNOWN)["at"]
    return tuple(known.floor().cast(pl.Int64).unique().sort())


def peers_runs(
    store: Store, cluster: str, known: pl.DataFrame, model: str | None, kinds: Sequence[Kind], on: Sequence[int],
) -> pl.DataFrame:  # fmt: skip
    """Runs of the GPUs of a model on some days: gpu, workload, at, x, as of `timed`; of a GPU on a day all its runs.

    `known`: of `known_gpus`. `on`: days since 1970. Where there are more than `PEERS` GPUs on a day, as many are drawn
    by their keys, the same ones on each day.
    """
    empty = pl.DataFrame(schema={"gpu": pl.String, "workload": pl.String, "at": pl.Float64, "x": pl.Float64})
    if not kinds or not on:
        return empty
    of_cluster = known.filter(pl.col("cluster") == cluster)
    day = pl.col("began").dt.date().cast(pl.Int32)
    works = sorted({kind[0] for kind in kinds})
    wanted = (pl.col("cluster") == cluster) & pl.col("workload").is_in(works) & SOUND & day.is_in(list(on))
    if of_cluster["model"].n_unique() > 1:
        alike = of_cluster.filter(pl.col("model").eq_missing(pl.lit(model)))["keys"].explode()
        wanted &= pl.col("gpu").is_in(alike.implode())
    else:
        alike = of_cluster["keys"].explode()
    scan = store.scan("runs").filter(wanted)
    gpus = _drawn(store, scan, alike, day, max(_LEAST_PEERS, min(PEERS, _ROWS // (len(on) * len(works)))), on)
    if not gpus:
        return empty
    columns = ["run_id", "gpu", "began", pl.col("workload").alias("plain"), "conditions"]
    runs = store.collect(scan.filter(pl.col("gpu").is_in(gpus)).select(columns))
    told = limits(store, runs) if any(kind.limit or kind.lock for kind in kinds) or len(works) < len(kinds) else None
    runs = runs.drop("conditions")
    nothing = (pl.lit(None, pl.String).alias(name) for name in ("limit", "lock"))
    runs = runs.with_columns(nothing) if told is None else runs.hstack(told)
    named = pl.DataFrame(kinds, schema=dict.fromkeys((*_KIND, "workload"), pl.String), orient="row")
    runs = runs.join(named, on=list(_KIND), nulls_equal=True)
    taken = figures(store, runs["run_id"], gpus=gpus, names=("time_median",))
    runs = runs.hstack(taken.select(pl.coalesce("time_median", "time").alias("value")))
    runs = runs.filter((pl.col("value") > 0) & pl.col("value").is_finite())
    return runs.select("gpu", "workload", days().alias("at"), pl.col("value").log().alias("x"))


def _drawn(store: Store, scan: pl.LazyFrame, keys: pl.Series, day: pl.Expr, most: int, on: Sequence[int]) -> list[str]:
    """The GPUs that stand for all of `keys`: the same on every day, where enough of them ran on each."""
    if len(keys) <= most:
        return keys.to_list()
    by_hash = pl.DataFrame({"gpu": keys}).sort(pl.col("gpu").hash(1), "gpu")["gpu"].head(most).to_list()
    some = scan.filter(pl.col("gpu").is_in(by_hash)).group_by(day.alias("day")).agg(pl.col("gpu").n_unique())
    counted: list[int] = store.collect(some)["gpu"].to_list()
    if len(counted) == len(on) and min(counted) >= min(_LEAST_PEERS, most):
        return by_hash
    # On some day only a few GPUs were measured: those of each day.
    each = scan.select("gpu", day.alias("day")).unique()
    each = each.filter(pl.col("gpu").hash(1).rank("ordinal").over("day") <= most)
    return store.collect(each.select("gpu").unique())["gpu"].to_list()


def listed(runs: pl.DataFrame, most: int) -> pl.DataFrame:
    """The newest runs of `own_runs` for a table, the newest first: began, workload, time_ms, repeats, sm_clock_mhz,
    power_w, temperature_c, clock, power_limit_w, neighbours, status, campaign."""
    newest = runs.sort("began", descending=True, nulls_last=True).head(most)
    told = [one or {} for one in newest["conditions"]]
    limits_ = [one.get("asked_power_limit_w") or one.get("power_limit_w") for one in told]
    return newest.select(
        "began",
        "workload",
        pl.col("value").alias("time_ms"),
        pl.col("repeats").cast(pl.Int64),
        "sm_clock_mhz",
        "power_w",
        "temperature_c",
        pl.Series("clock", [clock_in_words(one.get("clock"), one.get("locked_clock_mhz")) for one in told], pl.String),
        pl.Series("power_limit_w", limits_, pl.Float64, strict=False),
        pl.Series("neighbours", [one.get("neighbours") for one in told], pl.String, strict=False),
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
