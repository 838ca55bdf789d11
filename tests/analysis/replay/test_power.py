"""The energy ledger."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay.power import JOULES_PER_KWH, Draw, EnergyLedger, Power

GPU_W = {"": np.full(8, 300.0)}
NODE_OF = (0, 0, 0, 0, 1, 1, 1, 1)


def test_energy_by_hand() -> None:
    ledger = EnergyLedger(Power(GPU_W, idle_w=50.0, node_w=700.0), NODE_OF)
    assert ledger.hold(0, (0, 1), Draw(400.0, 100.0), now_s=10.0) == 0
    ledger.hold(0, (0, 1), Draw(400.0, 75.0), now_s=20.0)
    ledger.hold(1, (1,), Draw(100.0, 25.0), now_s=20.0)
    ledger.release(0, 40.0)
    ledger.hold(1, (1,), Draw(100.0, 50.0), now_s=40.0)
    energy = ledger.close(100.0)
    idle_0, idle_1 = 50 * (30 + 10 + 20 / 2), 50 * (20 / 2 + 60)
    assert energy.jobs_j[0] == pytest.approx(400 * 30 + idle_0 + 700 * (10 + 20 / 2))
    assert energy.jobs_j[1] == pytest.approx(100 * 80 + idle_1 + 700 * (20 / 2 + 60))
    assert (energy.dynamic_j, energy.idle_j, energy.base_j) == (20_000, 8 * 50 * 100, 2 * 700 * 100)
    assert energy.awake_node_s == 200
    assert energy.total_j == pytest.approx(sum(energy.jobs_j.values()) + energy.unattributed_j)


def test_what_is_not_known_is_none() -> None:
    ledger = EnergyLedger(Power(GPU_W), NODE_OF)
    ledger.hold(0, (0,), Draw(300.0, 0.0), now_s=0.0)
    energy = ledger.close(10.0)
    assert (energy.jobs_j, energy.idle_j, energy.base_j, energy.total_j) == ({0: 3000.0}, None, None, 3000.0)
    ledger = EnergyLedger(Power(GPU_W, idle_w=50.0), NODE_OF)
    ledger.hold(0, (0,), Draw(math.nan, 0.0), now_s=0.0)
    energy = ledger.close(10.0)
    assert math.isnan(energy.jobs_j[0])
    assert (energy.dynamic_j, energy.idle_j, energy.total_j) == (None, 8 * 50 * 10, None)


def test_empty_nodes_sleep_and_take_time_to_wake_up() -> None:
    ledger = EnergyLedger(
        Power(GPU_W, idle_w=50.0, node_w=700.0, asleep_w=20.0, sleep_after_s=60.0, wake_s=30.0), NODE_OF
    )
    assert not ledger.sleeps(0, 60.0)
    assert ledger.sleeps(0, 61.0)
    assert ledger.hold(0, (0, 4), Draw(0.0, 0.0), now_s=100.0) == 30
    assert ledger.hold(1, (1,), Draw(0.0, 0.0), now_s=110.0) == 20
    assert ledger.hold(1, (1,), Draw(7.0, 0.0), now_s=125.0) == 5
    ledger.release(0, 200.0)
    ledger.release(1, 210.0)
    assert ledger.hold(0, (4,), Draw(0.0, 0.0), now_s=230.0) == 0
    ledger.release(0, 240.0)
    energy = ledger.close(1000.0)
    assert energy.awake_node_s == (60 + 110 + 60) + (60 + 140 + 60)
    assert energy.base_j == pytest.approx(700 * energy.awake_node_s + 20 * (2000 - energy.awake_node_s))
    assert energy.idle_j == pytest.approx(200 * energy.awake_node_s)
    assert energy.dynamic_j == 7 * 85


def test_a_node_that_is_down_draws_nothing() -> None:
    ledger = EnergyLedger(Power(GPU_W, idle_w=50.0, node_w=700.0, sleep_after_s=10.0, wake_s=5.0), NODE_OF)
    ledger.down(1, 5.0)
    assert not ledger.sleeps(1, 50.0)
    ledger.up(1, 50.0)
    assert ledger.hold(0, (4,), Draw(1.0, 0.0), now_s=60.0) == 0
    energy = ledger.close(100.0)
    assert energy.awake_node_s == 10 + 5 + 50


CO_LOCATION = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedulers" / "eaco" / "co_location.csv"


@pytest.mark.skipif(not CO_LOCATION.is_file(), reason=f"{CO_LOCATION} is not there")
def test_jobs_together_save_what_eaco_measured() -> None:
    """A node's own power counts once for all its jobs: from it come the six savings of EaCO's table."""
    savings = {
        "J1+J3": 29.85,
        "J1+J4": 31.38,
        "J2+J4": 31.69,
        "J1+J2+J3": 44.48,
        "J1+J2+J4": 42.40,
        "J1+J2+J3+J4": 42.07,
    }
    with CO_LOCATION.open() as lines:
        measured = {row["set"]: (float(row["energy_kwh"]), float(row["jct_h"])) for row in csv.DictReader(lines)}
    watts = {jobs: 1000 * kwh / hours for jobs, (kwh, hours) in measured.items()}
    for together, percent in savings.items():
        jobs = together.split("+")
        node_w = (sum(watts[job] for job in jobs) - watts[together]) / (len(jobs) - 1)
        assert 650 < node_w < 865

        def energy_kwh(runs: Sequence[str], hours: float, node_w: float = node_w) -> float:
            ledger = EnergyLedger(Power({}, idle_w=0.0, node_w=node_w), [0])
            for number, job in enumerate(runs):
                ledger.hold(number, (0,), Draw(watts[job] - node_w, 0.0), now_s=0.0)
            total_j = ledger.close(3600 * hours).total_j
            assert total_j is not None
            return total_j / JOULES_PER_KWH

        apart = sum(energy_kwh([job], measured[job][1]) for job in jobs)
        assert 100 * (1 - energy_kwh(jobs, measured[together][1]) / apart) == pytest.approx(percent, abs=0.05)
