"""The watch over a real node's GPUs: what the probes see, what is stored, and what happens when a part fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from whorl.collectors.nvml_settings import settings_of
from whorl.errors import DeviceError, StoreError
from whorl.kernels.device import Device
from whorl.probes.node_watch import NodeWatch, refuse_shared
from whorl.probes.watch import Recent
from whorl.store import Store
from whorl.store.journal_file import Ticks
from whorl.tests.collectors.sampling import as_rows
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import BUSY, PATIENCE_S, uuids
from whorl.tests.stores import rows_of_ticks


class Fed:
    """Telemetry that a watch gave, as rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, ticks: Ticks) -> None:
        self.rows += as_rows(rows_of_ticks(ticks))

    def of(self, gpu: str) -> list[dict[str, Any]]:
        return [row for row in list(self.rows) if row["gpu"] == gpu]


def until(reached: Callable[[], object]) -> None:
    last = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < last, "it did not come"
        time.sleep(0.01)


def stored(store: Store, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.sql(f"select {columns}").to_pylist()
    return rows


TELEMETRY = "gpu, epoch_ns(ts) as ts, power_mw from telemetry"


def test_what_the_probes_see_is_what_is_stored(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    gpus, fed = uuids(), Fed()
    with NodeWatch(fed, store, node="n1", cluster="c", interval_s=0.02) as watch:
        assert fed.rows, "there is a reading when the block begins"
        until(lambda: len(fed.of(gpus[2])) >= 10)
        assert watch.notes == []
    rows = {(row["gpu"], row["ts"]): row for row in stored(store, TELEMETRY)}
    assert len(rows) == len(fed.rows)
    assert all(rows[row["gpu"], row["ts"]]["power_mw"] == row["power_mw"] for row in fed.rows)
    assert {row["node"] for row in stored(store, "* exclude (first_seen) from gpus")} == {"n1"}
    assert {row["gpu"] for row in stored(store, "* exclude (first_seen) from gpus")} == set(gpus)


def test_a_window_of_recent_readings(nvml: NvmlLibrary) -> None:
    nvml.write(*BUSY, "limit 500000")
    gpus = uuids()
    recent = Recent(gpus, seconds=60, interval_s=0.02)
    began = time.time_ns()
    with NodeWatch(recent.feed, None, node="n1", interval_s=0.02):
        until(lambda: recent.window(gpus[1], began, time.time_ns()).readings >= 25)
        ended = time.time_ns()
    window = recent.window(gpus[1], began, ended)
    assert window.power_w == pytest.approx(500, abs=25)
    assert window.counter_w == pytest.approx(500, abs=25)
    assert window.clock_events is not None
    assert window.clock_events["power_cap"] == pytest.approx((ended - began) / 1e9, rel=0.2)


def test_a_gpu_that_falls_off_leaves_the_others_watched(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    gpus, fed = uuids(), Fed()
    with NodeWatch(fed, store, node="n1", interval_s=0.02):
        nvml.add("gpu 0 lost")
        before = len(fed.of(gpus[1]))
        until(lambda: len(fed.of(gpus[1])) > before + 5)
    assert "lost" in {row["kind"] for row in stored(store, "gpu, kind from events") if row["gpu"] == gpus[0]}


@pytest.mark.long
def test_beside_a_collector_nothing_is_stored_twice(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    uuids()
    fed = Fed()
    command = [sys.executable, "-m", "whorl", "collect", "--store", str(store.root), "--node", "n1", "--interval", "1s"]
    with subprocess.Popen(command, env=nvml.environment(), stderr=subprocess.PIPE, text=True) as collector:
        try:
            assert collector.stderr is not None
            assert "collecting" in collector.stderr.readline()
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


@pytest.mark.long
def test_a_collector_can_start_while_probes_run(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    uuids()
    with NodeWatch(Fed(), store, node="n1", interval_s=0.05):
        command = [sys.executable, "-m", "whorl", "collect", "--store", str(store.root), "--node", "n1"]
        done = subprocess.run(
            [*command, "--duration", "0.3", "--interval", "0.1"], env=nvml.environment(), capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr


def test_two_that_probe_one_node_both_store(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    uuids()
    one, other = Fed(), Fed()
    with NodeWatch(one, store, node="n1", interval_s=0.02), NodeWatch(other, store, node="n1", interval_s=0.02):
        until(lambda: len(other.rows) > 10)
    assert len(stored(store, TELEMETRY)) == len(one.rows) + len(other.rows)


def test_a_store_that_takes_no_more_ends_the_storing_and_not_the_watch(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)
    fed = Fed()
    uuids()

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
    assert watch._journal is not None
    watch._journal.close()
    until(lambda: watch.failure)


def test_a_hearer_that_fails_is_told_and_not_swallowed(nvml: NvmlLibrary, store: Store) -> None:
    nvml.write(*BUSY)

    def feed(ticks: Ticks) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), NodeWatch(feed, store, node="n1", interval_s=0.02):
        raise AssertionError("the block began without telemetry")


def test_no_driver_is_one_sentence(store: Store) -> None:
    code = (
        "from whorl.errors import InputError\nfrom whorl.probes.node_watch import NodeWatch\n"
        "try:\n    NodeWatch(print, None, node='n').__enter__()\nexcept InputError as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WHORL_NVML_CONTROL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if done.stdout == "":
        pytest.skip("this machine has a driver")
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("NVML: ")


@pytest.mark.long
def test_a_hanging_gpu_does_not_keep_the_block_from_ending(nvml: NvmlLibrary) -> None:
    nvml.write(*BUSY)
    gpus, fed = uuids(), Fed()
    with NodeWatch(fed, None, node="n1", interval_s=0.02):
        nvml.add("gpu 2 hang")
        seen = len(fed.of(gpus[0]))
        until(lambda: len(fed.of(gpus[0])) > seen + 3)  # after 5 s it is given up
    assert fed.of(gpus[0])[-1]["power_mw"] is not None
    assert fed.of(gpus[2])[-1]["power_mw"] is None
    nvml.remove("gpu 2 hang")


def test_an_instance_is_told_by_its_gpu(nvml: NvmlLibrary) -> None:
    nvml.write(*BUSY, "gpu 1 mig 3g.40gb 1g.10gb")
    gpus = uuids()
    instance = "MIG-77686f72-6c00-5000-0001-000000000001"
    with NodeWatch(Fed(), None, node="n1", interval_s=0.05) as watch:
        assert watch.telemetry_of(instance) == gpus[1]
        assert watch.telemetry_of(instance.lower().replace("mig", "MIG")) == gpus[1]
        assert watch.telemetry_of(gpus[0].upper()) == gpus[0]
        assert watch.telemetry_of("GPU-none") is None
    assert settings_of(instance)["mig"] is True


def test_settings_that_move_figures(nvml: NvmlLibrary) -> None:
    nvml.write(*BUSY, "gpu 1 limit 450000", "gpu 2 deny 3 nvmlDeviceGetEccMode nvmlDeviceGetEnforcedPowerLimit")
    gpus = uuids()
    assert settings_of(gpus[1]) == {
        "power_limit_w": 450.0,
        "power_limit_default_w": 700.0,
        "compute_mode": "default",
        "mig": False,
        "persistence": True,
        "ecc": True,
    }
    told = settings_of(gpus[2])
    assert told["ecc"] is None
    assert told["power_limit_w"] is None
    assert set(settings_of("GPU-none").values()) == {None}
    assert not nvml.setters()


@dataclass
class Used:
    """A device that others use; all that `refuse_shared` looks at."""

    facts: Any
    users: Sequence[str]

    def others(self) -> Sequence[str]:
        return self.users


def test_exclusive_names_who_else_is_there() -> None:
    def used(gpu: str, *users: str) -> Device:
        return cast("Device", Used(SimpleNamespace(gpu=gpu), users))

    refuse_shared([used("GPU-a"), used("GPU-b")])
    with pytest.raises(
        DeviceError, match=r"GPU-b: .*no other process uses: pid 7 \(python\), pid 8; end the other processes"
    ):
        refuse_shared([used("GPU-a"), used("GPU-b", "pid 7 (python)", "pid 8")])
    with pytest.raises(DeviceError, match=r"GPU-c: .*not known: no NVML"):
        refuse_shared([used("GPU-c", "not known: no NVML here")])
