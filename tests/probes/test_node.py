"""The watch over a real node's GPUs: what the probes see, what is stored, and what happens when a part fails."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from whorl.collectors.nvml_settings import settings_of
from whorl.errors import StoreError
from whorl.probes.node_watch import NodeWatch
from whorl.probes.watch import FAST_S, Recent, power_between_renewals
from whorl.store import Store
from whorl.store.journal_file import Ticks, pack_readings
from whorl.tests.checks import not_none, until
from whorl.tests.collectors.sampling import as_rows
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import PATIENCE_S
from whorl.tests.stores import rows_of_ticks


class Fed:
    """Telemetry that a watch gave, as rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, ticks: Ticks) -> None:
        self.rows += as_rows(rows_of_ticks(ticks))

    def of(self, gpu: str) -> list[dict[str, Any]]:
        return [row for row in list(self.rows) if row["gpu"] == gpu]


def stored(store: Store, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.sql(f"select {columns}").to_pylist()
    return rows


TELEMETRY = "gpu, epoch_ns(ts) as ts, power_mw from telemetry"


def test_what_the_probes_see_is_what_is_stored(gpus: list[str], store: Store) -> None:
    fed = Fed()
    with NodeWatch(fed, store, node="n1", cluster="c", interval_s=0.02) as watch:
        assert fed.rows, "there is a reading when the block begins"
        until(lambda: len(fed.of(gpus[2])) >= 10)
        assert watch.notes == []
    rows = {(row["gpu"], row["ts"]): row for row in stored(store, TELEMETRY)}
    assert len(rows) == len(fed.rows)
    assert all(rows[row["gpu"], row["ts"]]["power_mw"] == row["power_mw"] for row in fed.rows)
    assert {row["node"] for row in stored(store, "* exclude (first_seen) from gpus")} == {"n1"}
    assert {row["gpu"] for row in stored(store, "* exclude (first_seen) from gpus")} == set(gpus)


def test_a_gpu_that_falls_off_leaves_the_others_watched(gpus: list[str], nvml: NvmlLibrary, store: Store) -> None:
    fed = Fed()
    with NodeWatch(fed, store, node="n1", interval_s=0.02):
        nvml.add("gpu 0 lost")
        before = len(fed.of(gpus[1]))
        until(lambda: len(fed.of(gpus[1])) > before + 5)
    assert "lost" in {row["kind"] for row in stored(store, "gpu, kind from events") if row["gpu"] == gpus[0]}


@pytest.mark.long
@pytest.mark.usefixtures("gpus")
def test_beside_a_collector_nothing_is_stored_twice(nvml: NvmlLibrary, store: Store) -> None:
    fed = Fed()
    command = [sys.executable, "-m", "whorl", "collect", "--store", str(store.root), "--node", "n1", "--interval", "1s"]
    with subprocess.Popen(command, env=nvml.environment(), stderr=subprocess.PIPE, text=True) as collector:
        try:
            assert "collecting" in not_none(collector.stderr).readline()
            with NodeWatch(fed, store, node="n1", interval_s=0.02) as watch:
                until(lambda: len(fed.rows) > 60)
                assert "whorl collect writes the telemetry of n1" in watch.notes[0]
            with NodeWatch(fed, store, node="n2", interval_s=0.02) as elsewhere:
                assert elsewhere.notes == []
        finally:
            collector.terminate()
            collector.wait(PATIENCE_S)
    times = [row["ts"] for row in fed.rows[:60]]
    assert not {row["ts"] for row in stored(store, TELEMETRY)} & set(times)


@pytest.mark.usefixtures("gpus")
def test_a_store_that_takes_no_more_ends_the_storing_and_not_the_watch(store: Store) -> None:
    fed = Fed()

    def measure(*, fails: bool) -> None:
        with NodeWatch(fed, store, node="n1", interval_s=0.02) as watch:
            fill_store(watch)
            before = len(fed.rows)
            until(lambda: len(fed.rows) > before + 10)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(StoreError, match=r"is closed|cannot write"):  # before or during a write
        measure(fails=False)
    with pytest.raises(ZeroDivisionError):  # the error on its way is not hidden
        measure(fails=True)


def fill_store(watch: NodeWatch) -> None:
    """Let the store of a watch take no more; a closed journal answers as a full disk does."""
    assert watch.failure is None
    not_none(watch._journal).close()
    until(lambda: watch.failure)


@pytest.mark.long
def test_a_hanging_gpu_does_not_keep_the_block_from_ending(gpus: list[str], nvml: NvmlLibrary) -> None:
    fed = Fed()
    with NodeWatch(fed, None, node="n1", interval_s=0.02):
        nvml.add("gpu 2 hang")
        before = len(fed.of(gpus[0]))
        until(lambda: len(fed.of(gpus[0])) > before + 3)  # after 5 s it is given up
    assert fed.of(gpus[0])[-1]["power_mw"] is not None
    assert fed.of(gpus[2])[-1]["power_mw"] is None
    nvml.remove("gpu 2 hang")


def test_an_instance_is_told_by_its_gpu(gpus: list[str], nvml: NvmlLibrary) -> None:
    nvml.add("gpu 1 mig 3g.40gb 1g.10gb")
    instance = "MIG-77686f72-6c00-5000-0001-000000000001"
    with NodeWatch(Fed(), None, node="n1", interval_s=0.05) as watch:
        assert watch.telemetry_of(instance) == gpus[1]
        assert watch.telemetry_of(instance.lower().replace("mig", "MIG")) == gpus[1]
        assert watch.telemetry_of(gpus[0].upper()) == gpus[0]
        assert watch.telemetry_of("GPU-none") is None
    assert settings_of(instance)["mig"] is True


def test_settings_that_move_figures(gpus: list[str], nvml: NvmlLibrary) -> None:
    nvml.add("gpu 1 limit 450000", "gpu 2 deny 3 nvmlDeviceGetEccMode nvmlDeviceGetEnforcedPowerLimit")
    assert settings_of(gpus[1]) == {
        "power_limit_w": 450.0,
        "power_limit_default_w": 700.0,
        "compute_mode": "default",
        "mig": False,
        "persistence": True,
        "ecc": True,
    }
    settings = settings_of(gpus[2])
    assert settings["ecc"] is None
    assert settings["power_limit_w"] is None
    assert set(settings_of("GPU-none").values()) == {None}
    assert not nvml.setters()


# -- watch -------------------------------------------------------------------------------------------------------------
# The memory of readings: medians, energy and clock events of a window, with what is missing missing.


SECOND = 1_000_000_000


def ticks(ts_ns: int, gpus: list[str], **columns: list[int | None]) -> Ticks:
    rows = list(zip(*columns.values(), strict=True))
    nulls = [sum((value is None) << place for place, value in enumerate(row)) for row in rows]
    values = [[value or 0 for value in row] for row in rows]
    stamps, keys = [ts_ns // 1000] * len(gpus), [("c", gpu) for gpu in gpus]
    return Ticks(stamps, keys, *pack_readings(list(columns), values), nulls)


def fed(*rows: dict[str, Any], gpus: tuple[str, ...] = ("a", "b")) -> Recent:
    recent = Recent(gpus, seconds=100, interval_s=1)
    for second, row in enumerate(rows, start=1):
        recent.feed(ticks(second * SECOND, list(gpus), **{name: [value] * len(gpus) for name, value in row.items()}))
    return recent


def test_a_window_has_the_medians_of_its_readings() -> None:
    rows = [{"power_mw": 1000 * w, "sm_clock_mhz": 1000 + w, "temperature_c": 30 + w} for w in (1, 5, 2, 9)]
    recent = fed(*rows)
    window = recent.window("a", 1 * SECOND, 3 * SECOND)
    assert (window.readings, window.power_w, window.sm_clock_mhz, window.temperature_c) == (3, 2.0, 1002.0, 32.0)
    assert window.shown_w.tolist() == [1.0, 5.0, 2.0]
    assert window.mem_clock_mhz is None
    assert window.counter_w is None
    assert window.clock_events is None
    latest = recent.latest("b")
    assert (not_none(latest).ts_ns, not_none(latest).temperature_c) == (4 * SECOND, 39.0)


def test_the_instantaneous_power_is_the_one_that_counts() -> None:
    recent = fed(*({"power_mw": 100_000, "power_instant_mw": value} for value in (200_000, 220_000, None)))
    window = recent.window("a", 0, 9 * SECOND)
    assert window.power_w == 200.0  # of 200, 220 and, where it is missing, 100
    assert window.instant_w.tolist() == [200.0, 220.0]
    assert window.shown_w.tolist() == [100.0] * 3


def test_power_by_the_energy_counter_and_none_where_it_fell() -> None:
    recent = fed(*({"energy_mj": 5_000 + 150_000 * second} for second in range(4)))
    window = recent.window("a", 0, 9 * SECOND)
    assert (window.counter_w, window.counter_low_w, window.counter_high_w) == pytest.approx((150.0, 100.0, 300.0))
    assert recent.window("a", 2 * SECOND, 2 * SECOND).counter_w is None
    reset = fed({"energy_mj": 5_000}, {"energy_mj": 10})
    assert reset.window("a", 0, 9 * SECOND).counter_w is None


def test_energy_between_renewals_of_a_counter_is_within_its_interval() -> None:
    """A counter that is renewed each 100 ms, read as often as beside a probe: 1,000 windows as of the quick suite."""
    random = np.random.default_rng(7)
    errors, widths = [], []
    for _ in range(1000):
        seconds = np.arange(random.uniform(0, FAST_S), random.uniform(0.8, 2.0), FAST_S)
        phase, period = random.uniform(0, 0.1), random.uniform(0.097, 0.103)
        renewed = np.floor((seconds - phase) / period) * period
        power = power_between_renewals(seconds, 300_000 * renewed, always=False)
        assert None not in power
        mean, low, high = np.array(power, np.float64)
        assert low <= 300.0 <= high
        errors.append(mean / 300 - 1)
        widths.append((high - low) / 600)
    assert np.std(errors) < 0.009, "2.2 % and more between the first and the last reading"
    assert np.max(np.abs(errors)) < 0.04
    assert np.median(widths) < 0.02


def test_clock_events_come_from_counters_where_there_are_and_else_from_bits() -> None:
    rows = [
        {"clock_event_reasons": bits, "power_violation_ns": held * SECOND // 2}
        for bits, held in ((0x4 | 0x80, 0), (0x80, 1), (0x4, 2), (0, 3), (0, 4))
    ]
    events = fed(*rows).window("a", 1 * SECOND, 5 * SECOND).clock_events
    assert dict(not_none(events)) == pytest.approx({"power_brake": 1.6, "power_cap": 2.0})
    assert fed(*({"clock_event_reasons": 0} for _ in range(3))).window("a", 0, 9 * SECOND).clock_events == {}


def test_old_readings_give_way_and_unknown_gpus_have_none() -> None:
    recent = Recent(["a"], seconds=20, interval_s=1)
    for second in range(1, 60):
        recent.feed(ticks(second * SECOND, ["x", "a"], power_mw=[7, 1000 * second]))
    assert recent.window("a", 0, 100 * SECOND).readings == 20
    assert recent.window("x", 0, 100 * SECOND).readings == 0
    assert recent.latest("x") is None
    latest = recent.latest("a")
    assert not_none(latest).ts_ns == 59 * SECOND


def test_temperature_slope() -> None:
    recent = fed(*({"temperature_c": 30 + 2 * second} for second in range(5)))
    assert recent.window("a", 0, 9 * SECOND).temperature_slope_k_s == pytest.approx(2.0)
    assert recent.window("a", 0, 2 * SECOND).temperature_slope_k_s is None
