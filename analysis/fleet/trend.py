"""How a fleet's times move from campaign to campaign, and those of single GPUs with them.

Runs of no campaign, as imported ones, are put together by day, week or month instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..runs.probing import Probed, parted
from ..runs.sittings import Floats, days
from ..statistics.ordering import median_interval, quantiles
from ..verdicts.levels import Levels, levels
from ..verdicts.model import scaled
from ..verdicts.sittings import step_of
from .runs_of import runs_of
from .side_by_side import dated, with_gpu_numbers

if TYPE_CHECKING:
    from ...store import Store

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
        named = (
            self.periods.select("period", "began").with_row_index("place").with_columns(pl.col("place").cast(pl.Int32))
        )
        return self.gpus.filter(pl.col("gpu") == gpu).join(named, on="place", how="left").sort("place")


def trend_of(store: Store, cluster: str, workload: str) -> Trend | None:
    """The trend of a workload of a store, as `runs_of.comparable` names it. InputError where there are no such runs."""
    return trend(runs_of(store, cluster, workload))


def trend(runs: Probed) -> Trend | None:
    """The trend of the runs of one workload, of all campaigns (`runs_of`); None where no run with a time has a date."""
    timed = dated(runs).select("workload", "model", "gpu_no", "campaign", "began", "value")
    timed = scaled(timed).filter(pl.col("began").is_not_null())
    if timed.is_empty():
        return None
    keys = runs.gpus["gpu"].to_list()
    timed, by = _periods(with_gpu_numbers(timed, keys))
    names = timed.group_by("period").agg(pl.col("began").min()).sort("began", "period")
    place = {name: number for number, name in enumerate(names["period"])}
    centre = np.full(len(keys), np.nan)
    whole: list[Levels] = []
    step = step_of(timed["x"].to_numpy())
    for _, some in parted(timed, "model"):
        gpu = some["gpu_no"].to_numpy()
        of = levels(gpu, some.select(days()).to_series().to_numpy(), some["x"].to_numpy(), len(keys), step)
        centre[of.known] = np.median(of.level[of.known])
        whole.append(of)
    rows, found = [], []
    for (name,), some in parted(timed, "period"):
        gpu = some["gpu_no"].to_numpy()
        of = levels(gpu, some.select(days()).to_series().to_numpy(), some["x"].to_numpy(), len(keys), step)
        on = np.flatnonzero(of.known)
        # One period does not tell how sittings differ. All together do.
        half = np.full(len(keys), np.nan)
        for of_model in whole:
            half[of_model.known] = of_model.half(part=of)[of_model.known]
        off, half = of.level[on] - centre[on], half[on]
        found.append({"period": name, "gpus": len(on), "runs": some.height, **_spread(100 * np.expm1(np.sort(off)))})
        each = {"slower_pct": off, "low": off - half, "high": off + half}
        columns = {column: (100 * np.expm1(values)).astype(np.float32) for column, values in each.items()}
        frame = pl.DataFrame({"gpu_no": on, "place": np.full(len(on), place[str(name)]), **columns, "n": of.runs[on]})
        rows.append(frame.with_columns(pl.col(pl.Float32).fill_nan(None), pl.col("place", "n").cast(pl.Int32)))
    periods = names.join(pl.DataFrame(found), on="period", how="left", maintain_order="left")
    every = pl.concat(rows)
    gpus = every.select(pl.Series("gpu", keys, dtype=pl.Categorical)[every["gpu_no"]], pl.exclude("gpu_no"))
    return Trend(str(timed["workload"][0]), by, periods, gpus)


def _periods(timed: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The runs with the name of their `period`, and what it is."""
    if timed["campaign"].n_unique() > 1 and not timed["campaign"].has_nulls():
        return timed.with_columns(pl.col("campaign").alias("period")), "campaign"
    for by, step in _STEPS:
        named = timed.with_columns(pl.col("began").dt.truncate(step).dt.strftime("%Y-%m-%d").alias("period"))
        if named["period"].n_unique() <= MOST_PERIODS or by == _STEPS[-1][0]:
            break
    return named, by


def _spread(ordered: Floats) -> dict[str, float | None]:
    """Quantiles of values in order, and the interval of their median."""
    p5, p25, median, p75, p95 = (float(value) for value in quantiles(ordered, _QUANTILES))
    low, high = median_interval(ordered)
    return {"p5": p5, "p25": p25, "median": median, "p75": p75, "p95": p95, "low": low, "high": high}
