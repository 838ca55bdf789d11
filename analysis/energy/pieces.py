"""Pieces: what one job, or nobody, used of one GPU between two times; and how pieces add up to a figure.

The pieces of a GPU cover its metered time without overlap of shares, so their energies add up to its metered energy.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ...store.power_sensors import SENSOR_ERROR, SensorError
from ...store.vocabulary import Code


class Kind(Code):
    """Whose the energy of a piece is."""

    JOB = "job", "a job had the GPU, or this share of it"
    IDLE = "idle", "no job had the GPU, or this share of it, and it did nothing"
    UNATTRIBUTED = (
        "unattributed",
        "no known job had it and nothing shows that it was idle, or a job had GPUs of the node and nobody knows which",
    )


SCHEMA: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),  # the physical GPU, also for a job on a MIG instance
    "node": pl.String(),
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
    "kind": pl.String(),
    "allocation": pl.String(),  # of jobs_now; NULL but for jobs
    "share": pl.Float64(),  # the part of the GPU; energy splits by activity too where it is known
    "energy_j": pl.Float64(),  # NULL where nothing at all bounds it
    "idle_j": pl.Float64(),  # of it, what the GPU would have drawn without work; NULL where it was never seen idle
    "below_j": pl.Float64(),  # how much less it could be, and more, because of gaps: bounds add up linearly
    "above_j": pl.Float64(),
    "variance_j2": pl.Float64(),  # of sampling and of the ends: independent, adds up
    "sensed_j": pl.Float64(),  # of energy_j, what a sensor's gain acts on
    "sensed_s": pl.Float64(),  # share x the seconds that a sensor's offset acts on
    "measured_s": pl.Float64(),  # share x the seconds with readings
    "method": pl.String(),  # counter or power: which gave most of it; NULL where neither
    "reason": pl.String(),  # code: why energy_j is a bound and no figure; NULL where it is one
    "idle_low_j": pl.Float64(),  # the least and the most that idle_j may be: the same is wrong at all times of a GPU
    "idle_high_j": pl.Float64(),
    "idle_source": pl.Int8(),  # what idle_j stands on: number in `idle.IDLE_SOURCES`
}
"""The columns of a frame of pieces; more may follow after them (co2e_g, cost)."""

REFUSED_FROM = 0.5
"""A figure is refused where its pieces with a reason have at least this part of its time."""

_SECONDS = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9


def add_up(
    pieces: pl.DataFrame, by: Sequence[str], *, sensor: SensorError = SENSOR_ERROR, also: Sequence[str] = ()
) -> pl.DataFrame:
    """The pieces added up by the columns `by`, in order of these.

    Columns: energy_j with the 95 % interval low_j to high_j; idle_j; duration_s (time with at least one piece; times
    that overlap count once); gpu_s (share x time, over all GPUs); measured_s (of it, with readings); method; reason;
    known_j (energy of the pieces that are no mere bounds); gpus (how many are known; NULL where none is); and the sums
    of the columns `also`, NULL where one is. If `energy_j` is NULL, so are low_j, high_j and idle_j, and `reason`
    says why in a code.
    """
    by = list(by)
    known = pl.col("reason").is_null() & pl.col("energy_j").is_not_null()
    boards = pieces.group_by(list(dict.fromkeys([*by, "cluster", "gpu"])), maintain_order=True).agg(
        *(pl.col(name).sum() for name in ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        _sum("energy_j", pl.col("energy_j").filter(known)).fill_null(0.0).alias("known_j"),
        (pl.col("share") * _SECONDS).sum().alias("gpu_s"),
        (pl.col("share") * _SECONDS).filter(~known).sum().alias("unknown_s"),
        pl.col("measured_s").filter(pl.col("method") == "counter").sum().alias("counter_s"),
        _most("reason", ~known).alias("reason"),
        (~known).any().alias("doubtful"),
    )
    read = [boards[name].to_numpy() for name in ("sensed_j", "sensed_s")]
    boards = boards.with_columns(pl.Series("board_j2", sensor.variance(*read), pl.Float64))
    keys: list[str | pl.Expr] = [*by] if by else [pl.lit(0).alias("_all")]
    sums = ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s", "known_j", "gpu_s", "unknown_s")
    total = boards.group_by(keys, maintain_order=True).agg(  # a sum in another order ends in other digits
        *(pl.col(name).sum() for name in (*sums, "counter_s", "board_j2")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        pl.col("reason").sort_by("unknown_s", descending=True).drop_nulls().first(),
        pl.struct("cluster", "gpu").filter(pl.col("gpu").is_not_null()).n_unique().replace({0: None}).alias("gpus"),
        pl.col("doubtful").any(),
    )
    total = _with_interval(total, sensor)
    times = _time_with_any(pieces, by)
    total = (
        total.join(times, on=by, how="left", nulls_equal=True) if by else pl.concat([total, times], how="horizontal")
    )
    refused = pl.col("doubtful") & (pl.col("unknown_s") >= REFUSED_FROM * pl.col("gpu_s"))
    refused |= pl.col("energy_j").is_null()
    figures = ("energy_j", "low_j", "high_j", "idle_j")
    return (
        total.with_columns(
            *(pl.when(~refused).then(name).alias(name) for name in figures),
            pl.when(refused).then("reason").alias("reason"),
            pl.when(pl.col("measured_s") > 0)
            .then(
                pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s"))
                .then(pl.lit("counter"))
                .otherwise(pl.lit("power"))
            )
            .alias("method"),
        )
        .select(*by, *figures, "duration_s", "method", "reason", "gpu_s", "measured_s", "known_j", "gpus", *also)
        .sort(by, nulls_last=True)
    )


def _sum(name: str, values: pl.Expr | None = None) -> pl.Expr:
    """The sum of a column, NULL where a value is: a sum without it would be too small."""
    column = pl.col(name) if values is None else values
    return pl.when(column.null_count() == 0).then(column.sum()).alias(name)


def _most(name: str, of: pl.Expr) -> pl.Expr:
    """The value of a column that has most of the time, among the rows `of`."""
    return (
        pl.col(name).filter(of).sort_by((pl.col("share") * _SECONDS).filter(of), descending=True).drop_nulls().first()
    )


def _with_interval(total: pl.DataFrame, sensor: SensorError) -> pl.DataFrame:
    sums = (total[name].to_numpy() for name in ("sensed_j", "sensed_s", "board_j2", "variance_j2"))
    lower, upper = sensor.ends(*sums)
    return total.with_columns(
        (pl.col("energy_j") + pl.Series(lower.clip(max=0)) - pl.col("below_j")).clip(lower_bound=0).alias("low_j"),
        (pl.col("energy_j") + pl.Series(upper.clip(min=0)) + pl.col("above_j")).alias("high_j"),
    )


def _time_with_any(pieces: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """`duration_s` of each group: the length of the union of its pieces' times."""
    order = pieces.select(*by, "began", "ended").sort(*by, "began", "ended")
    before = pl.col("ended").cum_max().shift(1)
    latest = before.over(by) if by else before
    fresh = pl.col("ended") - pl.max_horizontal("began", latest)
    order = order.with_columns((fresh.dt.total_nanoseconds() / 1e9).clip(lower_bound=0).alias("duration_s"))
    return order.group_by(by).agg(pl.col("duration_s").sum()) if by else order.select(pl.col("duration_s").sum())
