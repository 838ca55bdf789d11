"""From a DCGM engine to the store, as `whorl collect --backend dcgm` runs: nothing twice, true joules, events."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.store import Store
from whorl.tests.analysis.energy.stored import meters
from whorl.tests.checks import until
from whorl.tests.dcgm_library import DcgmEngine
from whorl.tests.stores import ask, new_store

PATIENCE_S = 60.0


@pytest.fixture
def two(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with two H100s that work every other second; this process asks it ten times a second."""
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._HEALTH_S", 0.3)
    monkeypatch.setenv("WHORL_NVML_CONTROL", str(engine.nvml.control))  # for what is true
    engine.nvml.write("gpus 2", "model H100", "load 2 0.5")
    engine.restart()
    engine.bindings()
    return engine


def options(engine: DcgmEngine, store: Path) -> list[str]:
    where = ["--backend", f"dcgm:host={engine.address}", "--node", "n1"]
    return ["collect", *where, "--interval", "0.1", "--store", str(store)]


@contextmanager
def collecting(engine: DcgmEngine, store: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that collects, and has stored something."""
    command = [sys.executable, "-m", "whorl", *options(engine, store)]
    with subprocess.Popen(command, env=engine.environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            rows = len(ask(store, "from telemetry"))
            until(lambda: len(ask(store, "from telemetry")) > rows, process, every_s=0.1)
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_a_killed_collector_keeps_what_it_stored_and_a_second_one_doubles_nothing(
    two: DcgmEngine, tmp_path: Path
) -> None:
    store = tmp_path / "S"
    new_store(store)
    # Another client has the engine go on and keep what it sampled, so the second collector could read it again.
    pydcgm, _, structs = two.bindings()
    handle = pydcgm.DcgmHandle(ipAddress=two.address, timeoutMs=2000)
    group = pydcgm.DcgmGroup(handle, groupName="other", groupType=structs.DCGM_GROUP_DEFAULT)
    fields = pydcgm.DcgmFieldGroup(handle, "other", [155, 156, 100, 150])
    group.samples.WatchFields(fields, 100_000, 60.0, 0)
    every = "select gpu, epoch_ns(ts) ts, power_mw, energy_mj from telemetry order by ts, gpu"
    with collecting(two, store) as process:
        time.sleep(0.5)
        before = ask(store, every)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with collecting(two, store) as process:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE_S)[1]
    for one in (fields, group):
        one.Delete()
    handle.Shutdown()
    assert process.returncode == 0, said
    after = ask(store, every)
    assert len(after) > len(before) > 0
    assert all(row in after for row in before)
    assert len({(row["gpu"], row["ts"]) for row in after}) == len(after)
    stamps = sorted({row["ts"] for row in after})
    # What was sampled each 0.1 s while nobody collected is the other client's.
    assert max(later - sooner for sooner, later in itertools.pairwise(stamps)) > 200_000_000


@pytest.mark.long
def test_joules_of_a_window_are_true_although_the_driver_is_slow(two: DcgmEngine, tmp_path: Path) -> None:
    store = tmp_path / "S"
    new_store(store)
    two.nvml.add("latency 300")
    done = CliRunner().invoke(cli, [*options(two, store), "--duration", "4.5"])
    assert done.exit_code == 0, done.stderr
    found = list(meters(Store.open(store)))
    assert len(found) == 2
    for number, meter in enumerate(sorted(found, key=lambda one: one.gpu)):
        since, until = meter.first_ns + 500_000_000, meter.last_ns - 500_000_000
        assert until - since > 2_000_000_000
        energy = meter.over([since], [until])
        true = two.nvml.energy_j(number, until / 1e9) - two.nvml.energy_j(number, since / 1e9)
        assert true > 300
        assert energy.energy_j[0] == pytest.approx(true, rel=0.05)  # a busy machine shifts readings; a second is 20 %
