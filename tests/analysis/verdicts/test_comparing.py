"""The comparison of GPUs with their peers, on populations that are not normal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whorl.analysis.runs.sittings import UNKNOWN, step_of
from whorl.analysis.verdicts.changes import own_past
from whorl.analysis.verdicts.compare import Fleet, compare
from whorl.analysis.verdicts.levels import levels
from whorl.tests.analysis.verdicts.populations import POPULATIONS, Runs, compared, draw, named
from whorl.tests.sizes import count


@pytest.mark.long(short=3)
@pytest.mark.parametrize("population", POPULATIONS)
def test_healthy_fleets_are_left_alone(population: str) -> None:
    fleets = count(6, 2)
    random = np.random.default_rng(7)
    found = [int(named(compared(draw(random, 256, population))).sum()) for _ in range(fleets)]
    # At most 5 % of the fleets, and 1 GPU in 1,000: with few fleets, what chance allows of that.
    assert sum(many > 0 for many in found) <= 0.05 * fleets + 3 * np.sqrt(0.05 * fleets)
    assert sum(found) <= 1e-3 * 256 * fleets + 3


@pytest.mark.parametrize(("spread", "effect"), [(0.0012, 0.02), (0.0027, 0.04)])
def test_a_slow_gpu_is_named_where_the_others_are_alike(spread: float, effect: float) -> None:
    random = np.random.default_rng(3)
    for _ in range(4):
        runs = draw(random, 256, "normal", spread=spread)
        slow = (runs.gpu == 17) | (runs.gpu == 200)
        found = compared(Runs(runs.gpu, runs.at, runs.x + np.where(slow, np.log1p(effect), 0.0), runs.fleet))
        assert set(np.flatnonzero(named(found))) == {17, 200}
        assert found.confirmed[[17, 200]].all()
        assert (found.low[[17, 200]] > 0).all()


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("gpus", "effects"), [(64, (0.3, 0.3, 0.3)), (64, (0.5, 0.4, 0.3)), (32, (0.5, 0.4)), (16, (0.5, 0.4))]
)
def test_a_few_slow_gpus_do_not_hide_each_other(gpus: int, effects: tuple[float, ...]) -> None:
    """They are more than the tail leaves out, and lie beyond a gap that no tail makes."""
    random = np.random.default_rng(12)
    fleets, seen = count(8, 3), 0
    for _ in range(fleets):
        runs = draw(random, gpus, "normal", spread=0.02)
        slow = random.permutation(gpus)[: len(effects)]
        longer = np.zeros(gpus)
        longer[slow] = np.log1p(effects)
        found = named(compared(Runs(runs.gpu, runs.at, runs.x + longer[runs.gpu], runs.fleet)))
        seen += int(found[slow].sum())
    assert seen >= 0.8 * fleets * len(effects)  # two on one small node may be taken for the node


def test_a_node_that_is_slow_as_a_whole_is_one_finding() -> None:
    random = np.random.default_rng(5)
    runs = draw(random, 256, "normal", spread=0.003)
    found = compared(Runs(runs.gpu, runs.at, runs.x + 0.05 * (runs.gpu // 4 == 9), runs.fleet))
    (shift,) = [one for one in found.shifts if one.p < 1e-3]
    assert (shift.what, shift.value, list(shift.gpus)) == ("node", 9, [36, 37, 38, 39])
    assert shift.effect == pytest.approx(0.05, abs=0.006)
    assert not named(found).any()


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
        found = compared(Runs(runs.gpu, runs.at, runs.x + longer[runs.gpu], runs.fleet))
        shifts = {one.value for one in found.shifts if one.p < 1e-3}
        assert all(one.what == "node" for one in found.shifts)
        nodes_found += len(shifts & set(nodes[:shifted]))
        gpus_found += int(named(found)[slow].sum())
        assert not np.delete(named(found), slow).any()
    assert nodes_found >= 0.85 * fleets * shifted
    assert gpus_found >= 0.95 * fleets * 3


@pytest.mark.parametrize("population", ["lognormal", "t3"])
def test_a_heavy_tail_names_few_in_one_file(population: str) -> None:
    random = np.random.default_rng(31)
    fleets, with_named = count(40, 12), 0
    for _ in range(fleets):
        own = np.exp(random.standard_normal(256)) - 1 if population == "lognormal" else random.standard_t(3, 256)
        runs = draw(random, 256, "normal", spread=0.0)
        with_named += bool(named(compared(replace(runs, x=runs.x + 0.005 * own[runs.gpu]))).any())
    assert with_named <= 0.05 * fleets + 3 * np.sqrt(0.05 * fleets)


@pytest.mark.parametrize("population", ["gamma", "t5"])
def test_a_gpu_far_out_is_named_though_the_tail_is_not_known(population: str) -> None:
    random = np.random.default_rng(32)
    fleets, hits = count(20, 6), 0
    for _ in range(fleets):
        own = 0.006 * random.gamma(2, 1, 256) if population == "gamma" else 0.008 * random.standard_t(5, 256)
        slow = random.permutation(64)[:3] * 4
        own[slow] += 0.1
        runs = draw(random, 256, "normal", spread=0.0)
        hits += int(named(compared(replace(runs, x=runs.x + own[runs.gpu])))[slow].sum())
    assert hits >= 0.6 * 3 * fleets


def test_gpus_that_share_a_firmware_are_one_batch() -> None:
    random = np.random.default_rng(5)
    runs = draw(random, 256, "normal", spread=0.003)
    firmware = (np.arange(256) // 4 % 8 == 0).astype(np.int64)
    fleet = Fleet(runs.fleet.node, {"vbios": firmware})
    found = compared(Runs(runs.gpu, runs.at, runs.x + 0.03 * firmware[runs.gpu], fleet))
    (shift,) = [one for one in found.shifts if one.p < 1e-3]
    assert (shift.what, shift.value, len(shift.gpus)) == ("vbios", 1, 32)
    assert shift.effect == pytest.approx(0.03, abs=0.003)
    assert not named(found).any()


def test_a_batch_of_nodes_that_nobody_recorded_hides_neither_gpus_nor_nodes() -> None:
    """A third of the nodes is 5 % slower. A GPU or a node that is 8 or 10 % slower for itself belongs to its nodes."""
    random = np.random.default_rng(33)
    for _ in range(count(12, 4)):
        nodes = random.permutation(64)
        slow = nodes[20:23] * 4 + random.integers(4, size=3)
        runs = draw(random, 256, "normal", spread=0.008)
        longer = 0.05 * np.isin(np.arange(256) // 4, nodes[:20]) + 0.1 * np.isin(np.arange(256) // 4, nodes[-2:])
        longer[slow] += 0.08
        found = compared(replace(runs, x=runs.x + longer[runs.gpu]))
        assert set(np.flatnonzero(named(found))) == set(slow)
        (batch,) = [one for one in found.shifts if one.what == "mode"]
        assert set(np.repeat(nodes[:20], 4)) <= set(batch.gpus // 4) <= {*nodes[:20], *nodes[-2:]}
        assert {one.value for one in found.shifts if one.what == "node" and one.p < 1e-3} >= set(nodes[-2:])


def test_a_cabinet_that_is_slow_hides_no_gpu_in_it() -> None:
    random = np.random.default_rng(34)
    cabinet = np.arange(256) // 32
    for effect in (0.03, 0.1):
        runs = draw(random, 256, "normal", spread=0.008)
        longer = effect * (cabinet == 3) + 0.09 * np.isin(np.arange(256), (100, 200))
        found = compared(replace(runs, x=runs.x + longer[runs.gpu], fleet=Fleet(runs.fleet.node, {"cabinet": cabinet})))
        assert set(np.flatnonzero(named(found))) == {100, 200}
        assert [(one.what, one.value) for one in found.shifts if one.p < 1e-3] == [("cabinet", 3)]


@pytest.mark.parametrize(
    ("gpus", "x"), [(3, [0.0, 1.0, 2.0]), (9, [1.0] * 9), (9, [0.0] * 8 + [0.3])], ids=["few", "equal", "one apart"]
)
def test_small_and_equal_fleets_give_no_verdict_from_single_runs(gpus: int, x: list[float]) -> None:
    of = levels(np.arange(gpus), np.full(gpus, UNKNOWN), np.array(x), gpus)
    found = compare(of, Fleet(np.full(gpus, -1)))
    if gpus < 8:
        assert found is None
    else:
        assert found is not None
        assert found.single.all()
        assert np.isnan(found.low).all()
        assert np.isfinite(found.p).all()


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
        found = own_past(runs.gpu, runs.at, runs.x)
        assert (found.steps, found.drifts, found.unstable) == ([], [], [])
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
