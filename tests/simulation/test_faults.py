"""Faults of a size: how they are named, what they cost, what drivers show of them, and what the store keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError
from whorl.simulation.bench import Bench
from whorl.simulation.draws import Floats
from whorl.simulation.faults import FAULTS, KINDS, label
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import PAGERANK, SGEMM, STREAM, Workload, find_load
from whorl.simulation.models import A100, H100, V100, GpuModel
from whorl.simulation.stepping import Simulation
from whorl.store import Store

PEER = Workload("peer", activity=0.05, compute_share=0.0, bandwidth_share=0.01, noise=0.0011, peer_share=1.0)
GPUS = 200


def cost(fault: str, workload: Workload, model: GpuModel = V100, days: float = 0.0) -> Floats:
    """How much longer work takes for a fault, as a share, on each GPU of a fleet of which all have it."""

    def times(fleet: Fleet) -> Floats:
        fleet = fleet.aged(days)
        return fleet.relative_time(workload, fleet.steady(workload))

    faulty = Fleet.draw(model, GPUS, 1, faults=GPUS, kinds=[fault])
    return times(faulty) / times(Fleet.draw(model, GPUS, 1, faults=0)) - 1


@pytest.mark.parametrize("model", [V100, H100], ids=lambda model: model.name)
@pytest.mark.parametrize("size", [0.01, 0.03, 0.1, 0.2])
def test_a_brake_costs_its_size(model: GpuModel, size: float) -> None:
    median_cost = np.median(cost(f"brake={100 * size:g}%", SGEMM, model))
    assert median_cost == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("size", [0.01, 0.03, 0.1])
def test_slow_memory_costs_its_size_where_the_memory_bounds(size: float) -> None:
    slower = 1 / (1 - size) - 1
    assert cost(f"slow_memory={100 * size:g}%", PAGERANK) == pytest.approx(0.98 * slower, rel=0.02)
    assert cost(f"retired_pages={100 * size:g}", STREAM) == pytest.approx(0.96 * slower, rel=0.02)
    assert np.median(cost(f"slow_memory={100 * size:g}%", SGEMM)) < 0.1 * size


@pytest.mark.parametrize("size", [0.002, 0.005, 0.01])
def test_a_drift_costs_its_size_in_the_first_week(size: float) -> None:
    assert (cost(f"drift={100 * size:g}%", SGEMM) == 0).all()
    assert np.median(cost(f"drift={100 * size:g}%", SGEMM, days=7.0)) == pytest.approx(size, rel=0.15)


def test_a_larger_size_costs_no_less() -> None:
    for kind, workload in (("hot", SGEMM), ("pinned", STREAM), ("brake", SGEMM)):
        row = FAULTS[KINDS.index(kind)]
        sizes = [row.least, 0.3 * row.most, 0.6 * row.most, row.most]
        costs = [cost(f"{kind}={100 * size}%", workload) for size in sizes]
        assert (np.diff(costs, axis=0) > -1e-9).all(), kind
        assert np.median(costs[-1]) > np.median(costs[0])


def test_a_fault_without_a_size_has_the_usual_one() -> None:
    usual = Fleet.draw(V100, 40, 1, faults=11, kinds=KINDS)
    sized = [f"{row.kind}={100 * row.size}%" if row.size is not None else row.kind for row in FAULTS]
    same = Fleet.draw(V100, 40, 1, faults=11, kinds=sized)
    assert usual.planted == same.planted == usual.named
    for name, values in vars(usual.silicon).items():
        assert getattr(same.silicon, name) == pytest.approx(values, rel=1e-12)
    brake, pinned = (FAULTS[KINDS.index(kind)] for kind in ("brake", "pinned"))
    assert (brake.cap_factor, brake.resistance_factor, brake.slowdown_share) == pytest.approx((0.84, 1.65, 0.29))
    assert pinned.ceiling_factor == pytest.approx(1 / 1.45)


def test_one_kind_has_several_sizes_in_a_fleet() -> None:
    fleet = Fleet.draw(V100, 40, 2, kinds=["slow_memory=1%", "slow_memory=10", " Hot = 20 % ", "lost"])
    assert sorted(fleet.named.values()) == ["hot=20%", "lost", "slow_memory=1%", "slow_memory=10%"]
    assert sorted(set(fleet.planted.values())) == ["hot", "lost", "slow_memory"]
    assert [label(fleet.fault_of(gpu)) for gpu in fleet.named] == list(fleet.named.values())
    again = Fleet.draw(V100, 40, 2, faults=4, kinds=["slow_memory=1%", "slow_memory=10%", "hot=20%", "lost"])
    assert np.array_equal(again.silicon.memory, fleet.silicon.memory)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rust", "there is no fault 'rust'; there are brake, hot, "),
        ("rust=3%", "there is no fault 'rust'"),
        ("lost=3%", "the fault lost has no size: leave out '=3%'"),
        (
            "slow_memory=90%",
            r"by how much the memory is slower, from 0\.2 to 80 %, not '90%': write it as slow_memory=40%",
        ),
        ("slow_memory=-3%", "from 0.2 to 80 %, not '-3%'"),
        ("slow_memory=", "from 0.2 to 80 %, not ''"),
        ("slow_memory=nan", "not 'nan'"),
        ("brake=three", "by how much SGEMM takes longer, from 0.5 to 30 %, not 'three'"),
    ],
)
def test_a_size_that_a_fault_cannot_have_is_said_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        Fleet.draw(V100, 8, 1, kinds=[text])
    assert "\n" not in str(raised.value)


# -- throttling -------------------------------------------------------------------------------------------------------


def test_throttling_slows_so_many_runs_and_leaves_the_others() -> None:
    fleet = Fleet.draw(V100, 100, 3, faults=100, kinds=["throttling=20%"])
    slowed = np.array([fleet.throttled(run).silicon.slowdown_share for run in range(60)]) > 0
    assert slowed.mean() == pytest.approx(0.2, abs=0.02)
    assert np.ptp(slowed.mean(axis=0)) < 0.5, "every GPU in some of its runs"
    assert np.array_equal(slowed[7], fleet.throttled(7).silicon.slowdown_share > 0)
    clean = fleet.relative_time(SGEMM, fleet.steady(SGEMM))
    run = fleet.throttled(7)
    ratio = run.relative_time(SGEMM, run.steady(SGEMM)) / clean
    assert ratio[~slowed[7]] == pytest.approx(1)
    assert ((ratio[slowed[7]] > 1.05) & (ratio[slowed[7]] < 1.25)).all()


def test_a_bench_throttles_whole_runs_and_its_driver_says_so() -> None:
    fleet = Fleet.draw(V100, 2, 3, faults=1, kinds=["throttling=50%"])
    (sick,) = fleet.planted
    bench = Bench(fleet, began_ns=0, lock_mhz=1200)
    rows: list[tuple[int, float, int, int]] = []  # GPU, time of a repetition, its thermal and its brake counter

    async def task(gpu: int) -> None:
        bench.hold(gpu)
        for _ in range(12):
            ready = bench.prepare(gpu, SGEMM, 0.01)
            await bench.work(ready, 10)
            before = bench.readings().values["hardware_thermal_ns"][gpu]
            done = await bench.work(ready, 20)
            values = bench.readings().values
            heat = int(values["hardware_thermal_ns"][gpu] - before)
            rows.append((gpu, float(done.times_s.mean()), heat, int(values["power_brake_ns"][gpu])))

    assert bench.run([task(0), task(1)]) == [None, None]
    usual = np.median([time for gpu, time, _, _ in rows if gpu != sick])
    slow = {(time > 1.1 * usual, heat > 0) for gpu, time, heat, _ in rows if gpu == sick}
    assert slow == {(True, True), (False, False)}, "the counter moves in the slow runs alone"
    assert all(time < 1.01 * usual and heat == 0 for gpu, time, heat, _ in rows if gpu != sick)
    assert all(brake == 0 for _, _, _, brake in rows)


# -- retired pages ----------------------------------------------------------------------------------------------------


def test_retired_pages_show_in_an_event_and_in_counters() -> None:
    for model in (V100, A100):
        fleet = Fleet.draw(model, 4, 3, faults=1, kinds=["retired_pages"])
        (sick,) = fleet.planted
        simulated = Simulation(fleet, find_load("idle"), began_ns=0)
        simulated.advance(1_000_000_000)
        assert [(event.gpu, event.code) for event in simulated.happened()] == [(sick, 63)]
        values = simulated.readings().values
        for name in ("ecc_corrected", "ecc_uncorrected", *(["remapped_rows"] if model is A100 else [])):
            assert (values[name] > 0).tolist() == [gpu == sick for gpu in range(4)], name
        assert ("remapped_rows" in values) == (model is A100)


# -- the store --------------------------------------------------------------------------------------------------------


def whorl(*arguments: str) -> str:
    return (
        CliRunner()
        .invoke(cli, ["demo", "sim", "--set", "runs=1", "--gpus", "12", *arguments], catch_exceptions=False)
        .output
    )


@pytest.mark.usefixtures("stores_are_copied")
def test_the_store_has_sizes_and_the_population_and_refuses_others(tmp_path: Path) -> None:
    folder = str(tmp_path / "S")
    common = ("--store", folder, "--set", "cluster=c", "--fault", "slow_memory=3%", "--fault", "lost")
    printed = whorl(*common, "--set", "population=mixed")
    assert "planted slow_memory=3%: " in printed
    assert "planted lost: " in printed
    store = Store.open(folder)
    truth = store.sql(
        "select kind, size_pct, population, count(*) as n from truth group by all order by kind"
    ).to_pylist()
    assert [(row["kind"], row["size_pct"], row["n"]) for row in truth] == [
        ("lost", None, 1),
        ("ok", None, 10),
        ("slow_memory", 3.0, 1),
    ]
    assert {row["population"] for row in truth} == {"mixed"}
    revisions = store.sql("select distinct vbios from gpus order by 1").to_pylist()
    assert [row["vbios"] for row in revisions] == ["simulated 1", "simulated 2"]
    for options, words in (
        (
            ("--set", "population=mixed", "--fault", "slow_memory=4%", "--fault", "lost"),
            "is 'slow_memory' of 3 % there",
        ),
        (("--fault", "slow_memory=3%", "--fault", "lost"), "of the population 'mixed', not 'normal'"),
    ):
        assert words in whorl("--store", folder, "--set", "cluster=c", *options)
    assert "of seed 1" in whorl("--store", folder, "--set", "population=t5-silicon"), "a cluster of its own"
    names = store.sql("select distinct cluster from gpus order by 1").to_pylist()
    assert [row["cluster"] for row in names] == ["c", "simulated-V100-1-t5-silicon"]
