"""How much a level moves by itself: by the time between sittings, and what interval that gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.sittings import UNKNOWN, numbered, step_of
from whorl.analysis.verdicts.changes import own_past
from whorl.analysis.verdicts.compare import Fleet
from whorl.analysis.verdicts.levels import Levels, levels
from whorl.analysis.verdicts.model import Figure, figures_of, table
from whorl.analysis.verdicts.states import Channel
from whorl.tests.analysis.longhorn import needs_longhorn, runs
from whorl.tests.analysis.longhorn import runs as longhorn
from whorl.tests.analysis.verdicts.populations import POPULATIONS, Runs, compared, draw, named
from whorl.tests.sizes import count


def _seen(days: tuple[float, ...], between: float, within: float, *, gpus: int = 200, per_sitting: int = 4) -> Levels:
    """From runs of `each` GPU on these days, which differ by `between`."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, between, (gpus, len(days), 1)) + rng.normal(0.0, within, (gpus, len(days), per_sitting))
    at = np.array(days)[:, None] + np.arange(per_sitting) / 1440
    owner = np.repeat(np.arange(gpus), len(days) * per_sitting)
    return levels(owner, np.broadcast_to(at, x.shape).ravel(), x.ravel(), gpus)


def test_runs_that_agree_do_not_make_sittings_agree_and_days_do_not_make_months_agree() -> None:
    differences, days, run_once = (
        _seen((100.0, 101.0), between=0.01, within=0.001),
        _seen((100.0, 101.0), between=0.001, within=0.0001),
        _seen((100.0,), between=0.0, within=0.02),
    )
    assert (differences.half() > 1.9 * 0.01).all()
    assert (days.half() > 3 * 1.9 * 0.001).all()
    assert not run_once.between_known
    assert (run_once.half() > 1.9 * 0.02).all()


def test_of_runs_without_a_date_their_differences_are_all_that_is_known() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0.0, 0.01, (300, 6))
    owner = np.repeat(np.arange(300), 5)
    level_rows = levels(owner, np.full(len(owner), UNKNOWN), x[:, :5].ravel(), 300)
    held = np.abs(x[:, 5] - level_rows.level) <= level_rows.half()
    assert 0.92 <= held.mean() <= 0.99


@needs_longhorn
def test_at_every_cut_of_the_dates_the_interval_holds_the_level_of_the_other_part() -> None:
    frame = runs("sgemm").drop_nulls("began")
    gpu = frame["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    at, x = frame["began"].dt.epoch("s").to_numpy() / 86_400, np.log(frame["value"].to_numpy())
    all_levels = []
    for cut in np.unique(np.floor(at))[1:]:
        parts = [levels(gpu[part], at[part], x[part], 392) for part in (at < cut, at >= cut)]
        for first_part, second_part in (parts, parts[::-1]):
            pair = first_part.known & second_part.known & np.isfinite(first_part.half())
            apart = (
                second_part.level
                - np.median(second_part.level[second_part.known])
                - first_part.level
                + np.median(first_part.level[first_part.known])
            )
            held = np.abs(apart[pair]) <= first_part.half()[pair]
            assert len(held) == 0 or held.mean() >= 0.90
            all_levels.append(held)
    assert 0.93 <= np.concatenate(all_levels).mean() <= 0.97


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
    parts = halves[0].join(halves[1], on="gpu", how="semi")["gpu"].unique().implode()
    before, after = (standing(half.filter(pl.col("gpu").is_in(parts))) for half in halves)
    for first_part, second_part in ((before, after), (after, before)):
        held = first_part.join(second_part.select("gpu", pl.col("rank").alias("place")), on="gpu")
        assert held.height > 250
        inside = held.select(pl.col("place").is_between("rank_low", "rank_high").mean()).item()
        assert 0.95 <= inside <= 0.997


# -- comparing ---------------------------------------------------------------------------------------------------------
# The comparison of GPUs with their peers, on populations that are not normal.


@pytest.mark.long(short=3)
@pytest.mark.parametrize("population", POPULATIONS)
def test_healthy_fleets_are_left_alone(population: str) -> None:
    fleets = count(6, 2)
    random = np.random.default_rng(7)
    counts = [int(named(compared(draw(random, 256, population))).sum()) for _ in range(fleets)]
    # At most 5 % of the fleets, and 1 GPU in 1,000: with few fleets, what chance allows of that.
    assert sum(count_named > 0 for count_named in counts) <= 0.05 * fleets + 3 * np.sqrt(0.05 * fleets)
    assert sum(counts) <= 1e-3 * 256 * fleets + 3


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("gpus", "effects"), [(64, (0.3, 0.3, 0.3)), (64, (0.5, 0.4, 0.3)), (32, (0.5, 0.4)), (16, (0.5, 0.4))]
)
def test_a_few_slow_gpus_do_not_hide_each_other(gpus: int, effects: tuple[float, ...]) -> None:
    """They are more than the tail leaves out, and lie beyond a gap that no tail makes."""
    random = np.random.default_rng(12)
    fleets, hits = count(8, 3), 0
    for _ in range(fleets):
        runs = draw(random, gpus, "normal", spread=0.02)
        slow = random.permutation(gpus)[: len(effects)]
        longer = np.zeros(gpus)
        longer[slow] = np.log1p(effects)
        names = named(compared(Runs(runs.gpu, runs.at, runs.x + longer[runs.gpu], runs.fleet)))
        hits += int(names[slow].sum())
    assert hits >= 0.8 * fleets * len(effects)  # two on one small node may be taken for the node


@pytest.mark.parametrize("shift", [0.03, 0.10])
@pytest.mark.parametrize("shifted", [2, 6])
def test_shifted_nodes_hide_neither_each_other_nor_single_gpus(shifted: int, shift: float) -> None:
    random = np.random.default_rng([8, shifted])
    fleets, nodes_found, gpus_found = count(20, 4), 0, 0
    for _ in range(fleets):
        runs = draw(random, 256, "normal", spread=0.008)
        nodes = random.permutation(64)[: shifted + 3]
        slow = nodes[shifted:] * 4 + random.integers(4, size=3)
        longer = shift * np.isin(np.arange(256) // 4, nodes[:shifted])
        longer[slow] += 0.1
        comparison = compared(Runs(runs.gpu, runs.at, runs.x + longer[runs.gpu], runs.fleet))
        shifts = {row.value for row in comparison.shifts if row.p < 1e-3}
        assert all(row.what == "node" for row in comparison.shifts)
        nodes_found += len(shifts & set(nodes[:shifted]))
        gpus_found += int(named(comparison)[slow].sum())
        assert not np.delete(named(comparison), slow).any()
    assert nodes_found >= 0.85 * fleets * shifted
    assert gpus_found >= 0.95 * fleets * 3


def test_a_node_that_is_slow_as_a_whole_is_one_finding_of_its_size() -> None:
    runs = draw(np.random.default_rng(5), 256, "normal", spread=0.003)
    comparison = compared(replace(runs, x=runs.x + 0.05 * (runs.gpu // 4 == 9)))
    (shift,) = [row for row in comparison.shifts if row.p < 1e-3]
    assert (shift.what, shift.value, list(shift.gpus)) == ("node", 9, [36, 37, 38, 39])
    assert shift.effect == pytest.approx(0.05, abs=0.006)
    assert not named(comparison).any()


@pytest.mark.parametrize("population", ["lognormal", "t3"])
def test_a_heavy_tail_names_few_in_one_file(population: str) -> None:
    random = np.random.default_rng(31)
    fleets, with_named = count(40, 12), 0
    for _ in range(fleets):
        of_gpus = np.exp(random.standard_normal(256)) - 1 if population == "lognormal" else random.standard_t(3, 256)
        runs = draw(random, 256, "normal", spread=0.0)
        with_named += bool(named(compared(replace(runs, x=runs.x + 0.005 * of_gpus[runs.gpu]))).any())
    assert with_named <= 0.05 * fleets + 3 * np.sqrt(0.05 * fleets)


@pytest.mark.parametrize("population", ["gamma", "t5"])
def test_a_gpu_far_out_is_named_though_the_tail_is_not_known(population: str) -> None:
    random = np.random.default_rng(32)
    fleets, hits = count(20, 6), 0
    for _ in range(fleets):
        of_gpus = 0.006 * random.gamma(2, 1, 256) if population == "gamma" else 0.008 * random.standard_t(5, 256)
        slow = random.permutation(64)[:3] * 4
        of_gpus[slow] += 0.1
        runs = draw(random, 256, "normal", spread=0.0)
        hits += int(named(compared(replace(runs, x=runs.x + of_gpus[runs.gpu])))[slow].sum())
    assert hits >= 0.6 * 3 * fleets


def test_a_batch_of_nodes_that_nobody_recorded_hides_neither_gpus_nor_nodes() -> None:
    """A third of the nodes is 5 % slower. A GPU or a node that is 8 or 10 % slower for itself belongs to its nodes."""
    random = np.random.default_rng(33)
    for _ in range(count(12, 4)):
        nodes = random.permutation(64)
        slow = nodes[20:23] * 4 + random.integers(4, size=3)
        runs = draw(random, 256, "normal", spread=0.008)
        longer = 0.05 * np.isin(np.arange(256) // 4, nodes[:20]) + 0.1 * np.isin(np.arange(256) // 4, nodes[-2:])
        longer[slow] += 0.08
        comparison = compared(replace(runs, x=runs.x + longer[runs.gpu]))
        assert set(np.flatnonzero(named(comparison))) == set(slow)
        (batch,) = [shift for shift in comparison.shifts if shift.what == "mode"]
        assert set(np.repeat(nodes[:20], 4)) <= set(batch.gpus // 4) <= {*nodes[:20], *nodes[-2:]}
        assert {shift.value for shift in comparison.shifts if shift.what == "node" and shift.p < 1e-3} >= set(
            nodes[-2:]
        )


def test_a_cabinet_that_is_slow_hides_no_gpu_in_it() -> None:
    random = np.random.default_rng(34)
    cabinet = np.arange(256) // 32
    for effect in (0.03, 0.1):
        runs = draw(random, 256, "normal", spread=0.008)
        longer = effect * (cabinet == 3) + 0.09 * np.isin(np.arange(256), (100, 200))
        comparison = compared(
            replace(runs, x=runs.x + longer[runs.gpu], fleet=Fleet(runs.fleet.node, {"cabinet": cabinet}))
        )
        assert set(np.flatnonzero(named(comparison))) == {100, 200}
        (shift,) = [shift for shift in comparison.shifts if shift.p < 1e-3]
        assert (shift.what, shift.value, len(shift.gpus)) == ("cabinet", 3, 32)
        assert shift.effect == pytest.approx(effect, abs=0.012)


def _in_ms(random: np.random.Generator, sittings: int, faulty: int = -1) -> Runs:
    """64 GPUs whose runs of about 100 ms were written as whole numbers; a faulty one takes 30 % longer."""
    runs = draw(random, 64, "normal", spread=0.01, sittings=sittings)
    times = 100 * np.exp(runs.x) * np.where(runs.gpu == faulty, 1.3, 1.0)
    return Runs(runs.gpu, runs.at, np.log(np.round(times)), runs.fleet)


@pytest.mark.parametrize("sittings", [2, 6])
def test_times_in_whole_ms_do_not_make_gpus_change(sittings: int) -> None:
    """Most GPUs stay at their number from day to day; one that goes to the next one has changed by less than it."""
    random = np.random.default_rng(1)
    for _ in range(count(8, 3)):
        runs = _in_ms(random, sittings)
        result = own_past(runs.gpu, runs.at, runs.x)
        assert (result.steps, result.drifts, result.unstable) == ([], [], [])
        assert not named(compared(runs)).any()


@pytest.mark.parametrize(
    ("times", "step"),
    [
        ([], 0), ([5.0], 0), ([99, 100, 101, 103, 150], 1), ([9.9, 10.0, 10.1], 0.1), ([100.37, 101.92, 104.11], 0),
        ([100] * 20 + [200] * 3, 10), ([10] * 9 + [11] * 9, 1), ([0.96] * 9 + [1.04] * 9, 0.01),
    ],
)  # fmt: skip
def test_the_step_of_times(times: list[float], step: float) -> None:
    assert step_of(np.log(np.array(times, dtype=np.float64))) == pytest.approx(step)
