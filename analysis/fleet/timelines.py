"""What GPUs did over a campaign, from a store's telemetry, and how a fleet's times move from campaign to campaign.

In a campaign, every GPU's time is counted from the beginning of its own first run. GPUs do not run their probes at the
same times: a slow one begins each later. The median that stands beside a GPU is therefore that of all GPUs at the same
point of the same probe, or of the time before it. In a trend, runs of no campaign, as imported ones, are put together
by day, week or month.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.metrics import board_power_mw
from ..runs.probing import Probed, only, parted
from ..runs.sittings import Floats, days, step_of
from ..statistics.ordering import median_interval
from ..verdicts.levels import Levels, levels
from ..verdicts.model import scaled
from .side_by_side import dated, with_gpu_numbers

if TYPE_CHECKING:
    from ...store import Store


METRICS = {
    "power_w": board_power_mw() / 1000,
    "sm_clock_mhz": pl.col("sm_clock_mhz"),
    "temperature_c": pl.col("temperature_c"),
}
"""What is shown, by name with unit, and how telemetry has it."""

POINTS = 500
"""Of a line; a longer campaign has longer steps between them."""
_READINGS = 1.5  # of a step at least: one that comes a little early or late leaves no step empty
_LEAST_SHARE = 0.5  # of the GPUs that are needed for a median of the fleet


@dataclass(frozen=True)
class Window:
    """A run of a GPU, in s since its first one began."""

    probe: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Timelines:
    """The telemetry of some GPUs over a campaign in equal steps; NaN where nothing was read."""

    step_s: float
    time_s: Floats
    """(steps,) the middle of each."""
    fleet: dict[str, dict[str, Floats]]
    """By GPU and metric, (steps,): the median of all GPUs at the same point of the same probe."""
    gpus: dict[str, dict[str, Floats]]
    """By GPU and metric, (steps,) means."""
    windows: dict[str, tuple[Window, ...]]
    """By GPU."""
    measured: int
    """GPUs with telemetry."""


def timelines(store: Store, campaign: Probed, gpus: Sequence[str]) -> Timelines | None:
    """The telemetry of `gpus` over a campaign, and the median of all its GPUs; None where the store has none."""
    first = campaign.runs.group_by(pl.col("gpu").cast(pl.String)).agg(
        pl.col("began").min().alias("first"), pl.col("ended").max().alias("last")
    )
    first = first.drop_nulls()
    if first.is_empty():
        return None
    longest_s = float((first["last"] - first["first"]).dt.total_nanoseconds().max() or 0) / 1e9  # type: ignore[arg-type]
    rows = (
        store.scan("telemetry")
        .filter(pl.col("cluster") == campaign.cluster)
        .join(first.lazy(), on="gpu", how="inner")
        .filter(pl.col("ts").is_between(pl.col("first"), pl.col("last")))
        .with_columns(((pl.col("ts") - pl.col("first")).dt.total_nanoseconds() / 1e9).alias("since"))
    )
    between = pl.col("since").sort().diff().over("gpu").median()
    readings = store.collect(rows.select(between.alias("s"), pl.col("gpu").n_unique().alias("gpus")))
    if readings["s"][0] is None or longest_s <= 0:
        return None
    with_telemetry = int(readings["gpus"][0])
    step = max(longest_s / POINTS, _READINGS * float(readings["s"][0]))
    binned = rows.with_columns((pl.col("since") / step).floor().cast(pl.Int64).alias("bin"))
    means = [value.mean().cast(pl.Float64).alias(name) for name, value in METRICS.items()]
    by_gpu = store.collect(binned.group_by("gpu", "bin").agg(*means))
    steps = int(longest_s / step) + 1
    enough = max(1, int(_LEAST_SHARE * with_telemetry))
    parts = _parts(campaign.runs, step)
    of_part = ("part", "phase")
    typical = (
        _placed(by_gpu, parts, step)
        .group_by(*of_part, "gpu")
        .agg(*(pl.col(name).mean() for name in METRICS))
        .group_by(of_part)
        .agg(*(pl.when(pl.col(name).count() >= enough).then(pl.col(name).median()).alias(name) for name in METRICS))
    )
    all_steps = pl.DataFrame({"gpu": list(gpus)}, schema={"gpu": pl.String}).join(
        pl.DataFrame({"bin": np.arange(steps)}, schema={"bin": pl.Int64}), how="cross"
    )
    fleet = _placed(all_steps, parts, step).join(typical, on=of_part, how="left")
    lines = {gpu: _lines(by_gpu.filter(pl.col("gpu") == gpu), steps) for gpu in gpus}
    return Timelines(
        step,
        np.asarray((np.arange(steps) + 0.5) * step, dtype=np.float64),
        {gpu: _lines(fleet.filter(pl.col("gpu") == gpu), steps) for gpu in gpus},
        lines,
        {gpu: _windows(campaign.runs.filter(pl.col("gpu") == gpu)) for gpu in gpus},
        with_telemetry,
    )


def _parts(runs: pl.DataFrame, step_s: float) -> pl.DataFrame:
    """What each GPU did when: its runs, and the time before each; `part` is the same for all GPUs, whenever it was.

    Columns: gpu, since and until (s since its first run began), part, and phases: into how many steps the part is cut.
    """
    seconds = [
        ((pl.col(edge) - pl.col("began").min().over("gpu")).dt.total_nanoseconds() / 1e9).alias(name)
        for edge, name in (("began", "since"), ("ended", "until"))
    ]
    ended_runs = runs.drop_nulls(["began", "ended"]).sort("gpu", "began").with_columns(*seconds)
    nth = pl.int_range(pl.len()).over("gpu", "workload").cast(pl.String)
    ended_runs = ended_runs.select(
        pl.col("gpu").cast(pl.String), "since", "until", pl.concat_str("workload", pl.lit(" "), nth).alias("part")
    )
    before = ended_runs.with_columns(
        pl.col("until").shift().over("gpu").alias("since"),
        pl.col("since").alias("until"),
        pl.concat_str(pl.lit("before "), "part").alias("part"),
    )
    parts = pl.concat([ended_runs, before]).filter(pl.col("until") > pl.col("since"))
    lasting = (pl.col("until") - pl.col("since")).median().over("part")
    return parts.with_columns((lasting / step_s).floor().cast(pl.Int64).clip(lower_bound=1).alias("phases")).sort(
        "since"
    )


def _placed(bins: pl.DataFrame, parts: pl.DataFrame, step_s: float) -> pl.DataFrame:
    """Rows of gpu and bin with the part that the bin's middle is in, and the phase of it; those of no part are left."""
    at = bins.with_columns(((pl.col("bin") + 0.5) * step_s).alias("at")).sort("at")
    in_parts = at.join_asof(
        parts, left_on="at", right_on="since", by="gpu", strategy="backward", check_sortedness=False
    )
    through = (pl.col("at") - pl.col("since")) / (pl.col("until") - pl.col("since"))
    phase = (through * pl.col("phases")).floor().cast(pl.Int64).alias("phase")
    return in_parts.filter(pl.col("at") < pl.col("until")).with_columns(phase)


def _lines(frame: pl.DataFrame, steps: int) -> dict[str, Floats]:
    inside = frame.filter(pl.col("bin").is_between(0, steps - 1))
    place = inside["bin"].to_numpy()
    lines = {}
    for name in METRICS:
        line = np.full(steps, np.nan)
        line[place] = inside[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        lines[name] = line
    return lines


def _windows(runs: pl.DataFrame) -> tuple[Window, ...]:
    ended_runs = runs.drop_nulls(["began", "ended"]).sort("began")
    since = [
        ((ended_runs[edge] - ended_runs["began"].min()).dt.total_nanoseconds() / 1e9).to_list()
        for edge in ("began", "ended")
    ]
    return tuple(Window(*row) for row in zip(ended_runs["workload"].to_list(), *since, strict=True))


MOST_PERIODS = 40
"""Points of time at most; days become weeks, weeks become months."""
_STEPS = (("day", "1d"), ("week", "1w"), ("month", "1mo"), ("year", "1y"))
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Trend:
    """One workload's times over campaigns, in % of the median GPU of the same model over all of them."""

    workload: str
    by: str
    """What a period is: "campaign", "day", "week", "month" or "year"."""
    periods: pl.DataFrame
    """One row each, in the order of time: period (its name), began, gpus, runs, the `p5`, `p25`, `median`, `p75` and
    `p95` of the GPUs, and `low` to `high`, the 95 % interval of the median; null where too few GPUs tell it."""
    gpus: pl.DataFrame
    """One row a GPU and period: gpu, place (the number of the period), slower_pct, low, high (the 95 % interval in
    another sitting; null where it is not known) and n (runs)."""

    def of(self, gpu: str) -> pl.DataFrame:
        """The rows of a GPU with the period's name and `began`; empty where it was never measured."""
        periods = (
            self.periods.select("period", "began").with_row_index("place").with_columns(pl.col("place").cast(pl.Int32))
        )
        return self.gpus.filter(pl.col("gpu") == gpu).join(periods, on="place", how="left").sort("place")


def trend(runs: Probed) -> Trend | None:
    """The trend of the runs of one workload, of all campaigns (`runs_of`); None where no run with a time has a date."""
    timed = dated(runs).select("workload", "model", "gpu_no", "campaign", "began", "value")
    timed = only(scaled(timed), pl.col("began").is_not_null())
    if timed.is_empty():
        return None
    keys = runs.gpus["gpu"].to_list()
    timed, by = _periods(with_gpu_numbers(timed, keys))
    names = timed.group_by("period").agg(pl.col("began").min()).sort("began", "period")
    place = {name: number for number, name in enumerate(names["period"])}
    centre = np.full(len(keys), np.nan)
    of_models: list[Levels] = []
    step = step_of(timed["x"].to_numpy())
    for _, runs_of_part in parted(timed, "model"):
        gpu = runs_of_part["gpu_no"].to_numpy()
        of_gpus = levels(
            gpu, runs_of_part.select(days()).to_series().to_numpy(), runs_of_part["x"].to_numpy(), len(keys), step
        )
        centre[of_gpus.known] = np.median(of_gpus.level[of_gpus.known])
        of_models.append(of_gpus)
    rows, of_periods = [], []
    for (name,), runs_of_part in parted(timed, "period"):
        gpu = runs_of_part["gpu_no"].to_numpy()
        of_gpus = levels(
            gpu, runs_of_part.select(days()).to_series().to_numpy(), runs_of_part["x"].to_numpy(), len(keys), step
        )
        on = np.flatnonzero(of_gpus.known)
        # One period does not tell how sittings differ. All together do.
        half = np.full(len(keys), np.nan)
        for of_model in of_models:
            half[of_model.known] = of_model.half(part=of_gpus)[of_model.known]
        off, half = of_gpus.level[on] - centre[on], half[on]
        of_periods.append(
            {"period": name, "gpus": len(on), "runs": runs_of_part.height, **_spread(100 * np.expm1(np.sort(off)))}
        )
        by_column = {"slower_pct": off, "low": off - half, "high": off + half}
        columns = {column: (100 * np.expm1(values)).astype(np.float32) for column, values in by_column.items()}
        frame = pl.DataFrame(
            {"gpu_no": on, "place": np.full(len(on), place[str(name)]), **columns, "n": of_gpus.runs[on]}
        )
        rows.append(frame.with_columns(pl.col(pl.Float32).fill_nan(None), pl.col("place", "n").cast(pl.Int32)))
    periods = names.join(pl.DataFrame(of_periods), on="period", how="left", maintain_order="left")
    all_rows = pl.concat(rows)
    gpus = all_rows.select(pl.Series("gpu", keys, dtype=pl.Categorical)[all_rows["gpu_no"]], pl.exclude("gpu_no"))
    return Trend(str(timed["workload"][0]), by, periods, gpus)


def _periods(timed: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The runs with the name of their `period`, and what it is."""
    if timed["campaign"].n_unique() > 1 and not timed["campaign"].has_nulls():
        return timed.with_columns(pl.col("campaign").alias("period")), "campaign"
    for by, step in _STEPS:
        with_period = timed.with_columns(pl.col("began").dt.truncate(step).dt.strftime("%Y-%m-%d").alias("period"))
        if with_period["period"].n_unique() <= MOST_PERIODS or by == _STEPS[-1][0]:
            break
    return with_period, by


def _spread(ordered: Floats) -> dict[str, float | None]:
    """Quantiles of values in order, and the interval of their median."""
    p5, p25, median, p75, p95 = (float(value) for value in np.quantile(ordered, _QUANTILES))
    low, high = median_interval(ordered)
    return {"p5": p5, "p25": p25, "median": median, "p75": p75, "p95": p95, "low": low, "high": high}
