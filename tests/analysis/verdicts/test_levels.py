"""How much a level moves by itself: by the time between sittings, and what interval that gives."""

from __future__ import annotations

import numpy as np
import polars as pl

from whorl.analysis.runs.sittings import UNKNOWN, numbered
from whorl.analysis.verdicts.compare import Fleet
from whorl.analysis.verdicts.levels import Levels, levels
from whorl.analysis.verdicts.model import Figure, figures_of, table
from whorl.analysis.verdicts.states import Channel
from whorl.tests.analysis.longhorn import needs_longhorn, runs
from whorl.tests.analysis.longhorn import runs as longhorn


def _seen(days: tuple[float, ...], between: float, within: float, *, gpus: int = 200, each: int = 4) -> Levels:
    """From runs of `each` GPU on these days, which differ by `between`."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, between, (gpus, len(days), 1)) + rng.normal(0.0, within, (gpus, len(days), each))
    at = np.array(days)[:, None] + np.arange(each) / 1440
    owner = np.repeat(np.arange(gpus), len(days) * each)
    return levels(owner, np.broadcast_to(at, x.shape).ravel(), x.ravel(), gpus)


def test_runs_that_agree_do_not_make_sittings_agree_and_days_do_not_make_months_agree() -> None:
    known, days, run_once = (
        _seen((100.0, 101.0), between=0.01, within=0.001),
        _seen((100.0, 101.0), between=0.001, within=0.0001),
        _seen((100.0,), between=0.0, within=0.02),
    )
    assert (known.half() > 1.9 * 0.01).all()
    assert (days.half() > 3 * 1.9 * 0.001).all()
    assert not run_once.between_known
    assert (run_once.half() > 1.9 * 0.02).all()


def test_of_runs_without_a_date_their_differences_are_all_that_is_known() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0.0, 0.01, (300, 6))
    owner = np.repeat(np.arange(300), 5)
    found = levels(owner, np.full(len(owner), UNKNOWN), x[:, :5].ravel(), 300)
    held = np.abs(x[:, 5] - found.level) <= found.half()
    assert 0.92 <= held.mean() <= 0.99


@needs_longhorn
def test_at_every_cut_of_the_dates_the_interval_holds_the_level_of_the_other_part() -> None:
    frame = runs("sgemm").drop_nulls("began")
    gpu = frame["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    at, x = frame["began"].dt.epoch("s").to_numpy() / 86_400, np.log(frame["value"].to_numpy())
    every = []
    for cut in np.unique(np.floor(at))[1:]:
        parts = [levels(gpu[part], at[part], x[part], 392) for part in (at < cut, at >= cut)]
        for one, other in (parts, parts[::-1]):
            both = one.known & other.known & np.isfinite(one.half())
            apart = other.level - np.median(other.level[other.known]) - one.level + np.median(one.level[one.known])
            held = np.abs(apart[both]) <= one.half()[both]
            assert len(held) == 0 or held.mean() >= 0.90
            every.append(held)
    assert 0.93 <= np.concatenate(every).mean() <= 0.97


def starts(*hours: float | None) -> int:
    """How many sittings runs at these hours are."""
    at = np.array([UNKNOWN if hour is None else 20_000.0 + hour / 24 for hour in hours])
    return len(np.unique(numbered(np.zeros(len(at), np.int64), at)))


def stood(runs: pl.DataFrame, channel: Channel | None = None) -> tuple[list[Figure], list[str]]:
    """Of the times of runs, or a channel; nothing is known of what GPUs share. And the GPUs in the arrays' order."""
    gpus = runs["gpu"].cast(pl.String).unique().sort().to_list()
    runs = runs.with_columns(pl.Series("gpu_no", [gpus.index(gpu) for gpu in runs["gpu"]], dtype=pl.Int64))
    fleet = Fleet(np.full(len(gpus), -1)) if channel is None else None
    return figures_of(runs, len(gpus), fleet=fleet, channel=channel), gpus


def standing(runs: pl.DataFrame) -> pl.DataFrame:
    return table(*stood(runs))


def test_a_pause_of_six_hours_ends_a_sitting_and_so_does_a_day() -> None:
    assert starts(0, 5.9, 11.8, 17.9) == 2
    assert starts(*range(50)) == 3
    assert starts(*(hour + 1 / 7 for hour in (0, 6, 12))) == 3  # exact, whatever rounding leaves of days


@needs_longhorn
def test_ranks_hold_the_place_of_another_half_of_the_dates_and_are_no_wider_than_that_needs() -> None:
    runs = longhorn("sgemm").drop_nulls("began").with_columns(pl.lit(None, pl.String).alias("model"))
    middle = runs["began"].median()
    halves = [runs.filter(pl.col("began") < middle), runs.filter(pl.col("began") >= middle)]
    both = halves[0].join(halves[1], on="gpu", how="semi")["gpu"].unique().implode()
    before, after = (standing(half.filter(pl.col("gpu").is_in(both))) for half in halves)
    for one, other in ((before, after), (after, before)):
        held = one.join(other.select("gpu", pl.col("rank").alias("place")), on="gpu")
        assert held.height > 250
        inside = held.select(pl.col("place").is_between("rank_low", "rank_high").mean()).item()
        assert 0.95 <= inside <= 0.997
