"""What boards' sensors are wrong by: from measured boards, by model, and learnt from the power of nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.signal
import scipy.special
from numpy.typing import NDArray

from whorl.analysis.energy.answers import energy, reconcile
from whorl.analysis.energy.boards import BoardErrors
from whorl.analysis.energy.calibration import NodeWindows, calibrate, calibrated_boards
from whorl.analysis.energy.nodes import NodeMeter
from whorl.analysis.energy.settings import read_settings
from whorl.store.power_sensors import MEASURED_BOARDS, NORMAL_95, SENSOR_ERROR, SensorError
from whorl.store.vocabulary import PowerMeter, PowerOf
from whorl.tests.analysis.energy.stored import S, at, gpu, job, readings, rows, store_of

Floats = NDArray[np.float64]

LOADS_W = (30.0, 100.0, 200.0, 300.0, 400.0)


def solved(gain_pct: float, offset_w: float) -> tuple[float, float]:
    return 1 / (1 + gain_pct / 100) - 1, -offset_w / (1 + gain_pct / 100)


@pytest.mark.parametrize("whole_model", [False, True])
def test_boards_that_are_left_out_lie_inside_what_the_others_let_expect(whole_model: bool) -> None:
    """Leave one board, and leave one model out: intervals of the power at several loads hold 17 of 19 or more."""
    quantile = float(scipy.special.stdtrit(len(MEASURED_BOARDS) - 1, 0.975))
    assert SENSOR_ERROR.quantile == pytest.approx(quantile, abs=1e-6)
    held = dict.fromkeys(LOADS_W, 0)
    for left_out, (model, gain_pct, offset_w) in enumerate(MEASURED_BOARDS):
        others = [
            board
            for place, board in enumerate(MEASURED_BOARDS)
            if (board[0] != model if whole_model else place != left_out)
        ]
        error = SensorError.of_model(model, others, float(scipy.special.stdtrit(len(others) - 1, 0.975)))
        h, p = solved(gain_pct, offset_w)
        for watts in LOADS_W:
            joules, seconds = np.array(watts), np.array(1.0)
            over = error.variance(joules, seconds)
            low, high = error.ends(joules, seconds, over)
            held[watts] += int(low <= h * watts + p <= high)
    assert min(held.values()) >= 17, held
    assert sum(held.values()) >= 0.94 * len(MEASURED_BOARDS) * len(LOADS_W), held


def test_errors_add_up_as_those_of_one_sensor_and_shared_parts_do_not_average_out() -> None:
    rng = np.random.default_rng(1)
    gpus = [f"GPU-{number}" for number in range(40)]
    read = pl.DataFrame(
        {
            "job": ["a"] * 20 + ["b"] * 20,
            "cluster": "c",
            "gpu": gpus,
            "sensed_j": rng.uniform(1e4, 3e4, 40),
            "sensed_s": 100.0,
        }
    )
    equal_boards = BoardErrors.alike(SENSOR_ERROR)
    joules, seconds = (read[name].to_numpy() for name in ("sensed_j", "sensed_s"))
    low, high = SENSOR_ERROR.ends(joules.sum(), seconds.sum(), SENSOR_ERROR.variance(joules, seconds).sum())
    total = equal_boards.added(read, []).row(0, named=True)
    assert total["error_j"] == pytest.approx((low + high) / 2)
    assert NORMAL_95 * math.sqrt(total["board_j2"]) == pytest.approx((high - low) / 2)
    by_model = BoardErrors.of_models([("c", gpu, "NVIDIA GeForce RTX 5090") for gpu in gpus])
    assert by_model.added(read, []).row(0) == pytest.approx(equal_boards.added(read, []).row(0))
    quadros = BoardErrors.of_models([("c", gpu, "Quadro P4000") for gpu in gpus])
    assert quadros.added(read, []).row(0) == pytest.approx(equal_boards.added(read, []).row(0))
    jobs = by_model.added(read, ["job"])
    assert jobs["job"].to_list() == ["a", "b"]
    # Jobs on other boards of the model are wrong together: the sum is known hardly better than either, in per cent.
    assert math.sqrt(total["board_j2"]) > 0.95 * sum(map(math.sqrt, jobs["board_j2"]))
    # Two models are not.
    two = BoardErrors.of_models([("c", gpu, "H100" if at < 20 else "B200") for at, gpu in enumerate(gpus)])
    assert math.sqrt(two.added(read, [])["board_j2"][0]) < 0.8 * sum(map(math.sqrt, jobs["board_j2"]))


BOARDS, MINUTES = 8, 1440
MODEL = "NVIDIA H100 80GB HBM3"


def fleet(
    seed: int, gains: Floats, *, together: bool = False, meter: PowerMeter = PowerMeter.PDU, drift: float = 0.0
) -> list[NodeWindows]:
    """NodeWindows of a minute of eight nodes of eight boards, which read gain x true + 5 W; jobs last some minutes."""
    rng, windows = np.random.default_rng(seed), []
    ts = S * 60 * np.arange(1, MINUTES + 1)
    for number in range(len(gains) // BOARDS):
        gain = gains[number * BOARDS :][:BOARDS, None] * (1 + drift * np.linspace(-0.5, 0.5, MINUTES))
        turns = rng.random((1 if together else BOARDS, MINUTES // 8)).repeat(8, axis=1)
        true = np.where(turns < 0.3, 70.0, 100 + 550 * turns) * np.ones((BOARDS, 1))
        host = 800 + 20 * scipy.signal.lfilter([1], [1, -0.8], rng.standard_normal(MINUTES))
        wall = (true.sum(axis=0) + host) / 0.94 * (1 + 0.003 * rng.standard_normal())
        nothing = np.zeros(MINUTES)
        node = NodeMeter("c", f"n{number}", meter, PowerOf.NODE_WALL, ts, ts, nothing, nothing, wall, nothing + 60)
        gpus = [("c", f"GPU-{number}-{board}") for board in range(BOARDS)]
        windows.append(NodeWindows(node, gpus, ts, wall, gain * true + 5, np.zeros((0, MINUTES)), 0.0))
    return windows


def half_of(boards: pl.DataFrame) -> Floats:
    """Half of the 95 % interval of h of each board."""
    shared = boards["shared"].list.eval(pl.element().struct.field("h") ** 2).list.sum()
    return np.asarray(NORMAL_95 * np.sqrt((boards["hh"] + shared).to_numpy()))


def drawn_gains(seed: int) -> Floats:
    rng = np.random.default_rng(100 + seed)
    return 1 + np.array([gain for _, gain, _ in MEASURED_BOARDS])[rng.integers(len(MEASURED_BOARDS), size=64)] / 100


def learnt(windows: list[NodeWindows]) -> pl.DataFrame:
    return calibrated_boards(windows, {key: MODEL for of_node in windows for key in of_node.gpus})


@pytest.mark.parametrize("seed", [1, 2])
def test_gains_of_64_boards_are_found_within_3_percent_and_by_their_intervals(seed: int) -> None:
    gains = drawn_gains(seed)
    boards = learnt(fleet(seed, gains))
    apart = boards["h"].to_numpy() - (1 / gains - 1)
    assert np.abs(apart).max() < 0.03
    assert (np.abs(apart) <= half_of(boards)).sum() >= 0.93 * len(gains)
    assert set(boards["finding"]) == {"ok"}
    assert (boards["learnt"] > 0.9).all()
    # The boards of a node are told apart better than all of them from what the host adds.
    of_node = apart.reshape(-1, BOARDS)
    assert np.abs(of_node - of_node.mean(axis=1, keepdims=True)).max() < 0.02
    assert np.median(np.sqrt(boards["hh"])) < 0.4 * np.median(half_of(boards)) / NORMAL_95


def test_boards_that_always_work_together_stay_unsure_and_it_is_told() -> None:
    gains = drawn_gains(3)
    boards = learnt(fleet(3, gains, together=True))
    assert set(boards["finding"]) == {"together"}
    apart = np.abs(boards["h"].to_numpy() - (1 / gains - 1))
    assert (apart <= half_of(boards)).sum() >= 0.93 * len(gains)
    assert np.median(half_of(boards)) > 0.05
    assert np.abs(boards["h"].to_numpy().reshape(-1, BOARDS).std(axis=1)).max() < 0.01


def test_a_meter_that_is_stuck_or_of_half_a_node_is_not_used(tmp_path: Path) -> None:
    seconds = list(range(0, 900, 10))
    watts = [60.0 if second % 300 < 150 else 250.0 for second in seconds]
    store = store_of(tmp_path / "S", [gpu("GPU-a")], [readings("GPU-a", seconds, watts)], [])
    meter = {"cluster": "c", "node": "n1", "source": "ipmi", "covers": "node_dc", "power_mw": 500_000}
    power = [{**meter, "window_ms": 1000, "ts": at(second)} for second in seconds]
    store.append({"node_power": rows("node_power", power)}, "stuck")
    calibration = calibrate(store)
    assert (calibration.nodes, calibration.stored) == (0, False)
    assert calibration.refused.rows() == [("c", "n1", "ipmi", pytest.approx(0.0, abs=1e-9))]
    assert calibration.boards["source"].to_list() == ["population"]
    [node, *_] = fleet(8, np.ones(64))
    assert node.watts_per_watt == pytest.approx(1.0, abs=0.05)
    assert replace(node, node_w=node.node_w / 2).watts_per_watt == pytest.approx(0.5, abs=0.05)


def test_a_site_that_knows_its_nodes_gets_narrower_intervals(tmp_path: Path) -> None:
    gains = drawn_gains(6)
    windows = fleet(6, gains)
    path = tmp_path / "energy.toml"
    path.write_text("[node]\nmeter_within_pct = 0.6\nefficiency_within_pct = 0.2\nefficiency = 0.94\n"
                    "host_pct = 0\nhost_within_pct = 0.5\n")  # fmt: skip
    models = {key: MODEL for of_node in windows for key in of_node.gpus}
    stated = calibrated_boards(windows, models, read_settings(path))
    assert np.median(half_of(stated)) < 0.75 * np.median(half_of(learnt(windows)))
    apart = np.abs(stated["h"].to_numpy() - (1 / gains - 1))
    assert (apart <= half_of(stated)).sum() >= 0.93 * len(gains)


@pytest.mark.long
def test_energy_is_that_of_calibrated_boards_and_the_books_still_balance(tmp_path: Path) -> None:
    """One board reads 8 % too much, and the other 6 % too little; a meter of the node says so to `whorl energy`."""
    rng, seconds = np.random.default_rng(7), np.arange(0, 4 * 3600, 5)
    turns = rng.random((2, len(seconds) // 60)).repeat(60, axis=1)
    true = np.where(turns < 0.4, 50.0, 250.0)
    names, gains, offsets = ("GPU-a", "GPU-b"), (1.08, 0.94), (-6.0, 4.0)
    read = np.array(gains)[:, None] * true + np.array(offsets)[:, None]
    power = rows(
        "node_power",
        [
            {"cluster": "c", "node": "n1", "ts": at(second), "source": "pdu", "covers": "node_wall", "window_ms": 5000,
             "power_mw": round(1000 * (300 + true[:, max(place - 1, 0)].sum() + rng.normal(0, 2)) / 0.94)}
            for place, second in enumerate(seconds.tolist())
        ],
    )  # fmt: skip
    store = store_of(
        tmp_path / "store",
        [gpu(name) for name in names],
        [readings(name, seconds.tolist(), watts) for name, watts in zip(names, read, strict=True)],
        [job(1, "GPU-a", 600, 9000)],
    )
    store.append({"node_power": power}, "pdu")
    before = {row["gpu"]: row for row in energy(store, "gpu").rows.iter_rows(named=True)}
    calibration = calibrate(store)
    assert (calibration.nodes, calibration.stored) == (1, True)
    assert calibration.boards["finding"].to_list() == ["ok", "ok"]
    assert calibration.boards["gain_pct"].to_list() == pytest.approx([8.0, -6.0], abs=2.5)
    after = {row["gpu"]: row for row in energy(store, "gpu").rows.iter_rows(named=True)}
    for name, watts in zip(names, true, strict=True):
        joules = float(watts.sum() * 5)
        assert after[name]["low_j"] < joules < after[name]["high_j"]
        assert abs(after[name]["energy_j"] - joules) < 0.6 * abs(before[name]["energy_j"] - joules)
        width = [row[name]["high_j"] - row[name]["low_j"] for row in (before, after)]
        assert width[1] < width[0]
    books = reconcile(store)
    assert books.balances
    assert books.gpus["attributed_j"].max() == pytest.approx(energy(store, job="1").total["energy_j"], rel=1e-9)
    [row] = energy(store, "node").rows.to_dicts()
    assert row["energy_j"] == pytest.approx(sum(row["energy_j"] for row in after.values()), rel=1e-9)
