"""Where a GPU stands: sittings, the interval of another sitting, and ranks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.sittings import UNKNOWN, numbered
from whorl.analysis.verdicts.channels import CLOCK, Channel
from whorl.analysis.verdicts.compare import Fleet
from whorl.analysis.verdicts.model import Figure, figures_of, table
from whorl.tests.analysis.longhorn import needs_longhorn
from whorl.tests.analysis.longhorn import runs as longhorn
from whorl.tests.sizes import count


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


def fleet(
    gpus: int, sittings: int, *, between: float, day: float, run: float, seed: int, tails: bool = False
) -> pl.DataFrame:
    """Runs of GPUs. Standard deviations of the log: of GPUs `between`, of sittings `day`, of runs `run`."""
    random = np.random.default_rng(seed)

    def drawn(sd: float, *shape: int) -> np.ndarray:
        return sd * (random.standard_t(4, shape) / np.sqrt(2) if tails else random.normal(0, 1, shape))

    x = drawn(between, gpus, 1, 1) + drawn(day, gpus, sittings, 1) + drawn(run, gpus, sittings, 3)
    gpu, sitting, repeat = np.indices(x.shape)
    began = (sitting * 2 * 86_400 + repeat * 600).ravel() * 10**9
    return pl.DataFrame(
        {
            "workload": "w",
            "model": "m",
            "gpu": [f"g{number:04}" for number in gpu.ravel()],
            "began": pl.Series(began).cast(pl.Datetime("ns")),
            "value": 100 * np.exp(x.ravel()),
            "sitting_of": sitting.ravel(),
        }
    )


def test_a_pause_of_six_hours_ends_a_sitting_and_so_does_a_day() -> None:
    assert starts(0, 5.9, 11.8, 17.9) == 2
    assert starts(*range(50)) == 3
    assert starts(*(hour + 1 / 7 for hour in (0, 6, 12))) == 3  # exact, whatever rounding leaves of days


def test_gpus_and_unknown_times_are_sittings_of_their_own() -> None:
    assert starts(0, None, None) == 2
    assert numbered(np.array([0, 1]), np.array([20_000.0, 20_000.1])).tolist() == [0, 1]


@pytest.mark.parametrize("tails", [False, True])
def test_the_interval_holds_the_level_of_another_sitting(tails: bool) -> None:
    """The published interval of one run held it in 10 to 16 of 100 cases."""
    held = []
    for seed in range(count(6, short=3)):
        runs = fleet(150, 4, between=0.02, day=0.01, run=0.004, seed=seed, tails=tails)
        before = standing(runs.filter(pl.col("sitting_of") < 3))
        after = standing(runs.filter(pl.col("sitting_of") == 3)).select("gpu", later="value")
        both = before.join(after, on="gpu")
        held.append(float(((both["later"] >= both["low"]) & (both["later"] <= both["high"])).to_numpy().mean()))
    assert 0.93 <= np.mean(held) <= 0.995


@needs_longhorn
def test_the_interval_holds_on_later_dates_of_published_runs() -> None:
    """Learnt from the first half of the dates of Longhorn's SGEMM runs, held against the sittings of the second."""
    runs = longhorn("sgemm").drop_nulls("began").with_columns(pl.lit(None, pl.String).alias("model"))
    middle = runs["began"].median()
    before = standing(runs.filter(pl.col("began") < middle))
    [later], gpus = stood(runs.filter(pl.col("began") >= middle))
    sat = later.levels.sat
    after = pl.DataFrame({"gpu": [gpus[gpu] for gpu in sat.series], "later": np.exp(sat.value)})
    both = before.join(after, on="gpu")
    assert both.height > 400
    held = ((both["later"] >= both["low"]) & (both["later"] <= both["high"])).to_numpy().mean()
    assert 0.92 <= held <= 0.985


def test_of_one_sitting_the_runs_say_how_much_another_may_differ_and_of_one_run_nothing_does() -> None:
    runs = fleet(20, 1, between=0.02, day=0.01, run=0.004, seed=1)
    found = standing(runs)
    assert sorted(found["rank"]) == list(range(1, 21))
    wide = (found["high"] / found["low"]).log()
    assert (wide > 2 * 2.6 * 1.3 * 0.003).all()
    of_one = standing(runs.unique("gpu"))
    assert of_one["low"].null_count() == of_one["ratio_high"].null_count() == of_one["rank_low"].null_count() == 20


@needs_longhorn
def test_the_interval_of_a_clock_of_some_days_holds_in_other_weeks() -> None:
    runs = longhorn("sgemm").drop_nulls("began").with_columns(pl.lit(None, pl.String).alias("model"))
    middle = runs["began"].median()
    parts = (pl.col("began") >= middle, pl.col("began") < middle)
    before, after = (table(*stood(runs.filter(part), CLOCK)) for part in parts)
    both = before.join(after.select("gpu", later="value"), on="gpu")
    assert both.height > 250
    assert 0.93 <= both.select(pl.col("later").is_between("low", "high").mean()).item() <= 0.98


def test_a_clock_that_never_moves_has_a_narrow_interval() -> None:
    runs = fleet(20, 3, between=0.02, day=0.001, run=0.001, seed=1).with_columns(pl.lit(1530.0).alias("sm_clock_mhz"))
    found = table(*stood(runs, CLOCK))
    assert (found["high"] - found["low"]).max() < 2  # type: ignore[operator]


def test_a_node_with_few_gpus_knows_its_own_sittings() -> None:
    runs = fleet(4, 12, between=0.02, day=0.01, run=0.0, seed=2).unique(["gpu", "sitting_of"])
    [one], _ = stood(runs)
    assert one.levels.again == pytest.approx(0.01, rel=0.4)
    assert one.half == pytest.approx(2.6 * one.levels.again * np.sqrt(1 + 1 / 12), rel=0.1)
    [few], _ = stood(runs.filter((pl.col("gpu") == "g0000") | (pl.col("sitting_of") == 0)))
    assert np.isnan(few.half).all()


def test_ranks_hold_the_true_place() -> None:
    runs = fleet(40, 4, between=0.0, day=0.001, run=0.001, seed=3)
    slow = pl.when(pl.col("gpu") == "g0007").then(pl.col("value") * 1.2).otherwise("value")
    found = standing(runs.with_columns(slow.alias("value"))).sort("rank")
    worst, others = found.row(-1, named=True), found.head(-1)
    assert (worst["gpu"], worst["rank_low"], worst["rank_high"]) == ("g0007", 40, 40)
    assert (others["rank_low"] <= others["rank"]).all()
    assert (others["rank_high"] >= others["rank"]).all()
    assert others["rank_high"].max() == 39
    assert worst["ratio"] == pytest.approx(1.2, abs=0.01)
    assert worst["ratio_low"] < worst["ratio"] < worst["ratio_high"]


def test_what_is_no_time_is_left_out() -> None:
    runs = fleet(12, 2, between=0.02, day=0.01, run=0.004, seed=1)
    bad = pl.when(pl.col("gpu") == "g0003").then(pl.lit(float("nan"))).otherwise("value")
    bad = pl.when(pl.col("gpu") == "g0004").then(pl.lit(-1.0)).otherwise(bad)
    found = standing(runs.with_columns(bad.alias("value")))
    assert found.height == 10
    assert found["peers"].unique().to_list() == [10]


def test_nothing_gives_nothing() -> None:
    runs = fleet(2, 1, between=0.02, day=0.01, run=0.004, seed=1).clear()
    assert standing(runs).is_empty()


def test_equal_gpus_share_their_rank_and_have_no_spread() -> None:
    runs = fleet(6, 3, between=0.0, day=0.0, run=0.0, seed=1)
    found = standing(runs)
    assert found["rank"].to_list() == [1] * 6
    assert found["ratio"].to_list() == pytest.approx([1.0] * 6)
    assert found["ratio_high"].to_list() == pytest.approx([1.0] * 6, abs=6e-4)  # no time is known better


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
