"""Where a GPU stands: sittings, the interval of another sitting, and ranks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.sittings import UNKNOWN, numbered
from whorl.analysis.verdicts.channels import Channel
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
