"""The watch over a real node's GPUs: what the probes see, what is stored, and what happens when a part fails."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from whorl.collectors.nvml_settings import settings_of
from whorl.errors import StoreError
from whorl.probes.node_watch import NodeWatch
from whorl.store import Store
from whorl.store.journal_file import Ticks
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
