"""The simulated fleet in time: against its own steady state, against plain physics, and cut into calls in any way."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from whorl.simulation.control import BLOCK, DIE_S, DIE_SHARE, SINK_S, SINK_SHARE, STEP_NS, STEP_S
from whorl.simulation.draws import Floats
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import IDLE, SGEMM, STREAM, Load, find_load
from whorl.simulation.models import A100, H100, MODELS, V100, GpuModel
from whorl.simulation.nodes import EFFICIENCY
from whorl.simulation.physics import Silicon, power
from whorl.simulation.spread import find_population
from whorl.simulation.stepping import Readings, Simulation
from whorl.store.schema import TELEMETRY

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
AT_ONCE = Load(
    "at once", "sgemm all the time, from the start", (SGEMM,), busy_s=inf, idle_s=0.0, begins_s=0.0, repeats=0
)


def simulation(
    model: GpuModel = V100, gpus: int = 8, seed: int = 1, load: Load = AT_ONCE, **options: object
) -> Simulation:
    kinds = options.pop("kinds", ())
    fleet = Fleet.draw(model, gpus, seed, faults=len(kinds), kinds=kinds)  # type: ignore[arg-type]
    return Simulation(fleet, load, began_ns=BEGAN, **options)  # type: ignore[arg-type]


def fault_at(fleet: Fleet, kind: str) -> int:
    return next(gpu for gpu, planted in fleet.planted.items() if planted == kind)


def same(a: Readings, b: Readings) -> bool:
    return a.ts_ns == b.ts_ns and all(np.array_equal(a.values[name], b.values[name]) for name in a.values)


# -- the control loop -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warm() -> Simulation:
    """64 V100s after three minutes of SGEMM."""
    simulated = simulation(gpus=64)
    simulated.advance(BEGAN + 180 * S)
    return simulated


def test_the_loop_settles_where_the_steady_state_says(warm: Simulation) -> None:
    steady = warm.fleet.steady(SGEMM)
    clocks, watts, celsius = [], [], []
    for second in range(180, 200):  # the wobble of the load moves clocks by a bin
        warm.advance(BEGAN + second * S)
        clocks.append(warm.clock_mhz)
        watts.append(warm.filtered_power_w)
        celsius.append(warm.temperature_c)
    off = np.mean(clocks, axis=0) - steady.clock_mhz
    # The published prototype of the loop: 1366 MHz against 1361 MHz, rms 5.8 MHz, 297.3 W, 67.0 °C.
    assert 0 <= off.mean() <= 7
    assert np.sqrt(np.mean(off**2)) < 8
    assert np.mean(watts) == pytest.approx(297.3, abs=0.7)
    assert np.mean(celsius) == pytest.approx(67.0, abs=1.0)
    assert np.mean(celsius, axis=0) == pytest.approx(steady.temperature_c, abs=1.5)


def test_every_step_is_what_the_equations_say() -> None:
    """The same physics written plainly, one GPU at a time, from the outside: power, heat and filter."""
    fleet = Fleet.draw(V100, 4, 5, faults=0)
    simulated = Simulation(fleet, replace(AT_ONCE, begins_s=2.0), began_ns=BEGAN)
    silicon = fleet.silicon
    idle = fleet.idle().true_power_w
    own_k_w = silicon.resistance_k_w - silicon.preheat_k_w
    upstream = np.array([0.0, 1.0, 0.0, 1.0])
    assert ((silicon.preheat_k_w > 0) == (upstream > 0)).all()
    die, sink = DIE_SHARE * own_k_w * idle, SINK_SHARE * own_k_w * idle + silicon.preheat_k_w * np.roll(idle, 1)
    block = []
    for step in range(150):
        clock = simulated.clock_mhz
        simulated.advance(BEGAN + (step + 1) * STEP_NS)
        working = step >= 100
        plain = power(V100, silicon, SGEMM if working else IDLE, clock, silicon.inlet_c + die + sink)
        # The wobble of the load is random: the power may differ by five of its standard deviations.
        load = plain - power(V100, silicon, IDLE, clock, silicon.inlet_c + die + sink)
        watts = simulated.true_power_w
        assert (np.abs(watts - plain) <= 0.02 * load + 1e-9).all()
        die += -np.expm1(-STEP_S / DIE_S) * (DIE_SHARE * own_k_w * watts - die)
        block.append(watts)
        if len(block) == BLOCK:
            mean = np.mean(block, axis=0)
            goal = SINK_SHARE * own_k_w * mean + silicon.preheat_k_w * np.roll(mean, 1)
            sink += -np.expm1(-STEP_S * BLOCK / SINK_S) * (goal - sink)
            block = []
        assert simulated.temperature_c == pytest.approx(silicon.inlet_c + die + sink, abs=1e-9)


def test_a_cap_and_a_lock_are_kept() -> None:
    capped, locked = simulation(gpus=16, cap=200.0), simulation(gpus=16, lock=1000.0)
    for simulated in (capped, locked):
        simulated.advance(BEGAN + 60 * S)
    assert (capped.filtered_power_w < 203).all()
    assert (capped.readings().values["power_limit_mw"] == 200_000).all()
    assert (locked.clock_mhz == 997.5).all()


# -- the clock, and what is the same --------------------------------------------------------------------------


def test_how_the_time_is_cut_does_not_change_a_bit() -> None:
    load = Load("gaps", "", (SGEMM, STREAM), busy_s=7.0, idle_s=3.3, begins_s=0.5, stagger_s=2.0, repeats=0)
    kinds = ("brake", "hot", "lost", "stuck_sensor", "pinned")

    def made() -> Simulation:
        return simulation(H100, gpus=24, seed=9, load=load, span_s=40.0, kinds=kinds)

    stepped, cut = made(), made()
    stepped.advance(BEGAN + 40 * S)
    random = np.random.default_rng(5)
    happened = []
    at = BEGAN
    while at < BEGAN + 40 * S:
        at = min(at + int(random.integers(0, S)), BEGAN + 40 * S)
        cut.advance(at)
        assert cut.now_ns <= at < cut.now_ns + STEP_NS
        cut.readings()  # reading changes nothing either
        happened += cut.happened()
    assert same(stepped.readings(), cut.readings())
    assert np.array_equal(stepped.energy_mj, cut.energy_mj)
    assert np.array_equal(stepped.worked_s, cut.worked_s)
    assert happened == stepped.happened()


# -- sensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_readings_are_columns_of_the_table(model: GpuModel) -> None:
    simulated = simulation(model)
    simulated.advance(BEGAN + 3 * S)
    readings = simulated.readings()
    assert readings.ts_ns == simulated.now_ns == BEGAN + 3 * S
    types = {column.name: column.type for column in TELEMETRY.columns}
    for name, values in readings.values.items():
        assert types[name] in ("INTEGER", "BIGINT"), name
        assert values.shape == (8,)
        assert values.dtype == np.int64, name
        assert (values >= 0).all(), name
        assert not readings.lost.any()
    assert ("power_average_mw" in readings.values) == (model.name[:2] == "H1" or model.name[:2] == "H2")
    assert ("memory_temperature_c" in readings.values) == (model is not V100)


def _by_step(simulated: Simulation, column: str, steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    start, values = simulated.now_ns, []
    for step in range(1, steps + 1):
        simulated.advance(start + step * STEP_NS)
        values.append(simulated.readings().values[column])
    return np.array(values)


@pytest.mark.parametrize(("model", "steps_a_reading"), [(V100, 1), (A100, 5), (H100, 5)], ids=["V100", "A100", "H100"])
def test_a_power_reading_repeats_until_the_sensors_next_tick(model: GpuModel, steps_a_reading: int) -> None:
    simulated = simulation(model)
    simulated.advance(BEGAN + 2 * S)
    changes = np.diff(_by_step(simulated, "power_instant_mw", 50), axis=0) != 0
    ticks = (np.arange(1, 50) + 1) % steps_a_reading == 0
    assert changes[ticks].all()
    assert not changes[~ticks].any()
    ages = _by_step(simulated, "power_age_us", 10)
    assert ages[:, 0].tolist() == [20_000 * ((step + 1) % steps_a_reading) for step in range(10)]


def test_the_part_time_sensor_sees_the_last_quarter_of_its_period() -> None:
    simulated = simulation(A100, gpus=64, load=replace(AT_ONCE, begins_s=0.06))
    watts = []
    for step in range(1, 6):
        simulated.advance(BEGAN + step * STEP_NS)
        watts.append(simulated.true_power_w * simulated.fleet.silicon.sensor)
    expected = (20 * watts[4] + 5 * watts[3]) / 25
    noise = simulated.readings().values["power_mw"] / 1000 - expected
    assert np.abs(noise).max() < 5 * 0.0008 * A100.power_limit_w
    assert 0.5 < noise.std() / (0.0008 * A100.power_limit_w) < 1.5
    assert np.abs(np.mean(watts, axis=0) - expected).min() > 3, "a sensor that saw all of it would read otherwise"


def test_the_averaged_power_is_the_mean_of_a_second() -> None:
    simulated = simulation(H100, gpus=16, load=replace(AT_ONCE, begins_s=0.5))
    watts: list[Floats] = []
    for step in range(1, 151):
        simulated.advance(BEGAN + step * STEP_NS)
        watts.append(simulated.true_power_w * simulated.fleet.silicon.sensor)
    values = simulated.readings().values
    assert values["power_average_mw"] / 1000 == pytest.approx(np.mean(watts[-50:], axis=0), abs=1.5)
    assert np.array_equal(values["power_mw"], values["power_average_mw"])
    assert (values["power_window_ms"] == 1000).all()


def test_the_energy_counter_is_the_integral_of_the_true_power() -> None:
    simulated = simulation(gpus=8, load=find_load("square"), kinds=("brake",))
    joules = np.zeros(8)
    for step in range(1, 1001):
        simulated.advance(BEGAN + step * STEP_NS)
        joules += simulated.true_power_w * STEP_S
        if step % 333 == 0:
            assert simulated.energy_mj == pytest.approx(1000 * joules, rel=1e-12)
    assert np.array_equal(simulated.readings().values["energy_mj"], np.floor(simulated.energy_mj).astype(np.int64))


def test_what_a_driver_says_of_idle_and_of_capped_gpus() -> None:
    simulated = simulation(gpus=8, load=find_load("sgemm"))
    simulated.advance(BEGAN + 9 * S)
    idle = simulated.readings().values
    assert (idle["clock_event_reasons"] == 1).all()
    assert (idle["sm_clock_mhz"] == 135).all()
    assert (idle["utilization"] == 0).all()
    simulated.advance(BEGAN + 100 * S)
    first = simulated.readings().values
    simulated.advance(BEGAN + 200 * S)
    second = simulated.readings().values
    assert (second["utilization"] == 100).all()
    assert (second["memory_used"] == 7884 << 20).all()
    assert (second["clock_event_reasons"] & 4).mean() > 2, "most are held at the cap at any time"
    held = (second["power_violation_ns"] - first["power_violation_ns"]) / (100 * S)
    assert ((held > 0.95) & (held <= 1)).all()
    assert (second["thermal_violation_ns"] == 0).all()


# -- loads ----------------------------------------------------------------------------------------------------


def test_a_square_wave_is_at_work_half_of_the_time() -> None:
    simulated = simulation(load=find_load("square"))
    busy = []
    for second in range(1, 61):
        simulated.advance(BEGAN + second * S)
        busy.append(bool(simulated.readings().values["utilization"].all()))
    assert [second for second in range(1, 61) if busy[second - 1]] == [*range(11, 21), *range(31, 41), *range(51, 61)]


def test_a_staggered_load_starts_one_gpu_after_the_other() -> None:
    simulated = simulation(gpus=5, load=find_load("staggered"))
    for second, working in ((9, 0), (15, 1), (75, 2), (135, 3), (251, 5), (301, 4), (311, 5)):
        simulated.advance(BEGAN + second * S)
        assert (simulated.readings().values["utilization"] > 0).sum() == working, second


def test_a_mixed_load_gives_each_gpu_of_a_node_its_own_work() -> None:
    simulated = simulation(gpus=8, load=find_load("mixed"))
    simulated.advance(BEGAN + 60 * S)
    values = simulated.readings().values
    assert values["memory_utilization"].tolist() == [12, 35, 92, 25] * 2
    assert np.array_equal(values["memory_utilization"][:4], values["memory_utilization"][4:])
    assert (values["power_mw"][1::4] < values["power_mw"][::4]).all()


# -- faults ---------------------------------------------------------------------------------------------------


def test_a_board_that_cannot_cool_is_slowed_by_its_temperature() -> None:
    fleet = Fleet.draw(V100, 4, 1, faults=0)
    resistance = fleet.silicon.resistance_k_w * np.array([2.2, 1.0, 1.0, 1.0])
    silicon = Silicon(**(vars(fleet.silicon) | {"resistance_k_w": resistance}))
    simulated = Simulation(replace(fleet, silicon=silicon), AT_ONCE, began_ns=BEGAN)
    hottest = 0.0
    for second in range(1, 200):
        simulated.advance(BEGAN + second * S)
        hottest = max(hottest, float(simulated.temperature_c[0]))
    values = simulated.readings().values
    assert V100.slowdown_c - 2 < hottest < V100.slowdown_c + 1
    assert values["thermal_violation_ns"][0] > 50 * S
    assert (values["thermal_violation_ns"][1:] == 0).all()
    assert simulated.clock_mhz[0] < simulated.clock_mhz[1:].min() - 100


def test_profiling_metrics_of_hopper_follow_the_work() -> None:
    copies = replace(STREAM, link_share=0.2)
    slow = simulation(H100, gpus=16, load=replace(AT_ONCE, workloads=(copies,)), kinds=("slow_memory",))
    slow.advance(BEGAN + 60 * S)
    values, worked = slow.readings().values, slow.worked_s / 60
    assert values["dram_active_ppm"] == pytest.approx(1e6 * copies.bandwidth_share * worked, rel=0.02)
    assert values["sm_active_ppm"] == pytest.approx(1e6 * (1 - 0.2 * worked), rel=0.02)
    assert (
        np.argmin(values["dram_active_ppm"])
        == fault_at(slow.fleet, "slow_memory")
        == np.argmax(values["sm_active_ppm"])
    )
    assert (values["gr_engine_active_ppm"] == 1_000_000).all()
    assert (values["memory_used"] + values["memory_free"] == H100.memory_gb << 30).all()
    idle = simulation(H100, load=find_load("constant"))
    idle.advance(BEGAN + S)
    assert not idle.readings().values["sm_active_ppm"].any()
    assert not idle.readings().values["pcie_tx_bytes_per_s"].any()
    assert "sm_active_ppm" not in simulation(A100).readings().values


def test_a_stuck_sensor_freezes_while_all_else_goes_on() -> None:
    simulated = simulation(H100, load=find_load("square"), span_s=100.0, kinds=("stuck_sensor",))
    gpu = fault_at(simulated.fleet, "stuck_sensor")
    onset = simulated.onsets_s[0][gpu]
    assert 20 <= onset <= 60
    simulated.advance(BEGAN + round((onset - 1) * S))
    before = _by_step(simulated, "power_instant_mw", 45)[:, gpu]
    assert len(np.unique(before)) > 5
    simulated.advance(BEGAN + round(onset * S) + STEP_NS)
    columns: dict[str, list[int]] = {name: [] for name in ("power_mw", "power_instant_mw", "energy_mj", "sm_clock_mhz")}
    for second in range(40):
        simulated.advance(BEGAN + round((onset + 1 + second) * S))
        for name, values in columns.items():
            values.append(int(simulated.readings().values[name][gpu]))
    assert len(set(columns["power_mw"])) == len(set(columns["power_instant_mw"])) == 1
    assert len(set(columns["energy_mj"])) == 40
    assert len(set(columns["sm_clock_mhz"])) > 1


def test_a_sensor_that_reads_0_w_leaves_the_energy_counter() -> None:
    simulated = simulation(H100, load=find_load("square"), span_s=100.0, kinds=("zero_power",))
    dark = np.arange(len(simulated.fleet)) == fault_at(simulated.fleet, "zero_power")
    joules = []
    for second in range(10, 40, 5):
        simulated.advance(BEGAN + second * S)
        values = simulated.readings().values
        for name in ("power_mw", "power_instant_mw", "power_average_mw"):
            assert ((values[name] == 0) == dark).all()
        joules.append(int(values["energy_mj"][dark][0]))
    assert min(np.diff(joules)) > 10_000


def test_lost_gpus_are_told_and_every_second_one_returns() -> None:
    simulated = simulation(gpus=16, load=find_load("constant"), span_s=100.0, kinds=("lost", "lost"))
    gone = sorted(simulated.fleet.planted)
    began, ended = simulated.onsets_s
    assert np.isfinite(ended[gone]).sum() == 1
    happened, lost = [], []
    for second in range(1, 101):
        simulated.advance(BEGAN + second * S)
        readings = simulated.readings()
        lost.append(readings.lost)
        happened += simulated.happened()
    seconds = np.array(lost).sum(axis=0)
    back = next(gpu for gpu in gone if np.isfinite(ended[gpu]))
    for gpu in gone:
        kinds = [change.kind for change in happened if change.gpu == gpu]
        assert kinds == (["xid", "lost", "returned"] if gpu == back else ["xid", "lost"])
        assert seconds[gpu] == pytest.approx(min(ended[gpu], 100) - began[gpu], abs=1)
    assert {change.gpu for change in happened} == set(gone)
    assert "79" in next(change.detail for change in happened if change.kind == "xid")
    values = readings.values
    others = np.delete(np.arange(16), gone)
    assert 0 < values["energy_mj"][back] < values["energy_mj"][others].min()
    assert values["utilization"][back] == 100, "it works again"


# -- nodes ----------------------------------------------------------------------------------------------------


def test_a_node_is_its_gpus_and_a_host_and_a_calm_fit_finds_the_gain_of_each_board() -> None:
    """The wall meter has 0.5 % and 1 W; whatever the host does within minutes, the counter of its CPUs shows."""
    fleet = Fleet.draw(V100, 8, 3, find_population("sensors"), faults=0)
    simulated = Simulation(fleet, find_load("turns"), began_ns=BEGAN)
    watts, node_w, counted = [], [], []
    for second in range(0, 900, 10):
        simulated.advance(BEGAN + second * 10**9)
        nodes = simulated.node_readings()
        watts.append(simulated.readings().values["power_mw"] / 1000)
        node_w.append(nodes.wall_mw / 1000 * EFFICIENCY)
        counted.append(nodes.cpu_mj / 1e6)
    rest_w = np.array(node_w)[1:] - np.diff(counted, axis=0) * 100  # without the CPUs
    for node in range(2):
        boards = slice(4 * node, 4 * node + 4)
        table = np.column_stack([np.array(watts)[1:, boards], np.ones(len(rest_w))])
        fitted = np.linalg.lstsq(table, rest_w[:, node], rcond=None)[0]
        assert fitted[:4] * fleet.silicon.sensor[boards] == pytest.approx(1, rel=0.03)
    assert np.ptp(fleet.silicon.sensor) > 0.08
    assert np.abs(fleet.silicon.sensor_offset_w).max() > 3


def test_a_counter_with_the_error_of_its_sensor_counts_what_the_sensor_shows() -> None:
    fleet = Fleet.draw(V100, 8, 3, find_population("sensors"), faults=1, kinds=("lost",))
    simulated = Simulation(fleet, find_load("gemm"), began_ns=BEGAN, span_s=60.0)
    shown_w = []
    for step in range(1000):
        simulated.advance(BEGAN + step * 20_000_000)
        shown_w.append(simulated.readings().values["power_mw"] / 1000)
    joules = simulated.readings().values["energy_mj"] / 1000
    assert joules == pytest.approx(np.sum(shown_w, axis=0) * 0.02, rel=0.003)
    assert np.abs(joules / (simulated.energy_mj / 1000) - 1).max() > 0.03
    simulated.advance(BEGAN + 120 * 10**9)
    assert not simulated.lost.any()  # the one that was lost is back, and counts from 0
    assert simulated.readings().values["energy_mj"].min() >= 0
