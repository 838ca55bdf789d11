"""From a DCGM engine to the store, as `whorl collect --backend dcgm` runs: nothing lost, nothing twice, true joules."""

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

from whorl.analysis.energy.metering.reading import meters
from whorl.cli import cli
from whorl.collectors.dcgm.dcgm import Dcgm
from whorl.collectors.dcgm.events import HeldDown
from whorl.store import Store
from whorl.store.vocabulary import EventKind
from whorl.tests.collectors.meanwhile import LONG, meanwhile, until
from whorl.tests.dcgm_library import DcgmEngine
from whorl.tests.stores import ask, new_store

PATIENCE_S = 60.0


@pytest.fixture
def two(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with two H100s that work every other second; this process asks it ten times a second."""
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._LEAST_POLL_S", 0.1)
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._CHORES_US", 300_000)
    monkeypatch.setenv("WHORL_NVML_CONTROL", str(engine.nvml.control))  # for what is true
    engine.nvml.write("gpus 2", "model H100", "load 2 0.5")
    engine.restart()
    engine.bindings()
    return engine


def options(engine: DcgmEngine, store: Path) -> list[str]:
    where = ["--backend", "dcgm", "--host", engine.address, "--node", "n1"]
    return ["collect", *where, "--interval", "0.1", "--store", str(store)]


@contextmanager
def collecting(engine: DcgmEngine, store: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that collects, and has stored something."""
    command = [sys.executable, "-m", "whorl", *options(engine, store)]
    with subprocess.Popen(command, env=engine.environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            rows, last = len(ask(store, "from telemetry")), time.monotonic() + PATIENCE_S
            while len(ask(store, "from telemetry")) <= rows:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < last, "nothing is stored"
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_a_collector_that_is_killed_loses_nothing_and_a_second_one_doubles_nothing(
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
    # What was sampled while nobody collected is the other client's.
    assert max(later - sooner for sooner, later in itertools.pairwise(stamps)) > 500_000_000


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
        energy = meter.over([since], [until])  # type: ignore[arg-type]
        true = two.nvml.energy_j(number, until / 1e9) - two.nvml.energy_j(number, since / 1e9)
        assert true > 300
        assert energy.energy_j[0] == pytest.approx(true, rel=0.05)  # a busy machine shifts readings; a second is 20 %


@pytest.mark.long
def test_a_lost_gpu_an_xid_and_a_sick_gpu_are_events_and_the_rest_goes_on(two: DcgmEngine, tmp_path: Path) -> None:
    store = tmp_path / "S"
    new_store(store)

    def powers() -> int:
        return len(ask(store, "select gpu from telemetry where power_mw is not null"))

    def fail() -> None:
        until(lambda: powers() >= 8)
        two.nvml.add(f"from {time.time()} gpu 0 xid 48")
        until(lambda: ask(store, "select gpu from events where kind = 'xid'"))
        two.nvml.add(f"from {time.time()} gpu 1 lost")
        until(lambda: ask(store, "select gpu from events where kind = 'lost'"))
        until(lambda: ask(store, "select gpu from events where kind = 'health'"))
        before = powers()
        until(lambda: powers() >= before + 8)

    with meanwhile(fail):
        done = CliRunner().invoke(cli, [*options(two, store), *LONG])
    assert done.exit_code == 0, done.stderr
    (first, second) = ask(
        store,
        "select gpu, count(*) n, count(power_mw) p, count(*) filter (quality = 'lost') lost, max(ts) last "
        "from telemetry group by gpu order by gpu",
    )
    assert first["p"] > second["p"] > 0
    assert (first["lost"], second["lost"]) == (0, 1)
    for row in (first, second):
        assert row["p"] > row["n"] / 2  # a pause of this machine cuts a cycle in two rows
    events = ask(store, "select gpu, kind, code, value, detail from events order by ts")
    told = {event["kind"]: event for event in events}
    assert (told["xid"]["gpu"], told["xid"]["code"]) == (first["gpu"], 48)
    assert told["lost"]["gpu"] == second["gpu"]
    assert "source_gone" not in told
    sick = [event for event in events if event["kind"] == "health"]
    assert sick
    assert len({(event["gpu"], event["code"], event["value"]) for event in sick}) == len(sick)


def test_a_clock_is_not_held_down_for_longer_than_the_time_that_passed() -> None:
    held, key = HeldDown(), ("GPU-a", 0)
    for second in range(6):
        assert held._note(key, second * 10**9, second * 10**9 + (29_000_000 if second == 5 else 0)) == []
    (event,) = held.end()
    assert event.detail.endswith("held down for 5.029 s of 5.029 s")
    assert (event.duration_ns, event.value) == (5_029_000_000, 5.029)


@pytest.mark.long
def test_a_time_in_which_the_clock_was_held_down_is_one_event(
    two: DcgmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.collectors.dcgm.events._QUIET_NS", 700_000_000)
    store = tmp_path / "S"
    new_store(store)
    two.nvml.write("gpus 2", "model H100", "load 10 1")

    def hold() -> None:
        until(lambda: ask(store, "select gpu from telemetry where power_mw is not null"))
        now = time.time()
        two.nvml.add(f"from {now} until {now + 0.8} gpu 1 slowdown brake")
        until(lambda: ask(store, "select gpu from events where kind = 'held_down'"))

    with meanwhile(hold):
        done = CliRunner().invoke(cli, [*options(two, store), *LONG])
    assert done.exit_code == 0, done.stderr
    (event,) = ask(store, "select * from events where kind = 'held_down' and metric = 'power_brake_ns'")
    assert event["gpu"] == max(row["gpu"] for row in ask(store, "select distinct gpu from telemetry"))
    assert event["duration_ns"] == pytest.approx(0.8e9, abs=0.2e9)
    assert event["value"] >= 0.6  # a pause of this machine makes it longer


def test_the_engines_statistics_of_a_job_are_events_at_the_end(
    two: DcgmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.collectors.dcgm.job._EVERY_US", 100_000)
    store = tmp_path / "S"
    new_store(store)
    newest = "select gpu, max(energy_mj) / 1000.0 j from telemetry group by gpu order by gpu"
    within: list[float] = []  # what telemetry saw each GPU use while the statistics ran, J

    def work() -> None:
        until(lambda: len(ask(store, newest)) == 2)
        two.nvml.add(f"from {time.time()} gpu 1 xid 31")
        until(lambda: ask(store, "select gpu from events where kind = 'xid'"))
        first = [row["j"] for row in ask(store, newest)]
        until(lambda: all(row["j"] > j + 100 for row, j in zip(ask(store, newest), first, strict=True)))
        within.extend(row["j"] - j for row, j in zip(ask(store, newest), first, strict=True))

    began = time.time()
    with meanwhile(work):
        done = CliRunner().invoke(cli, [*options(two, store), *LONG, "--job", "4711"])
    assert done.exit_code == 0, done.stderr
    told = ask(
        store,
        "select gpu, job_id, value, n, duration_ns, detail, epoch_ns(ts) ended from events "
        "where kind = 'job_statistics' order by gpu",
    )
    assert [(event["job_id"], event["n"]) for event in told] == [("4711", 0), ("4711", 1)]
    for number, event in enumerate(told):
        assert 0 < event["duration_ns"] < (time.time() - began) * 1e9
        true = two.nvml.energy_j(number, event["ended"] / 1e9) - two.nvml.energy_j(number, began)
        assert within[number] <= event["value"] <= true + 100  # the counter is up to 0.1 s old
        assert "n/a" not in event["detail"]


def test_statistics_that_we_began_are_taken_away_also_over_another_connection(two: DcgmEngine) -> None:
    pydcgm, agent, structs = two.bindings()
    first, second = (Dcgm(host=two.address, job="4712") for _ in range(2))
    first.open()
    first.close()
    second.open()
    assert [event.kind for event in second.end()] == [EventKind.JOB_STATISTICS] * 2
    second.close()
    handle = pydcgm.DcgmHandle(ipAddress=two.address, timeoutMs=2000)
    with pytest.raises(structs.DCGMError):
        agent.dcgmJobGetStats(handle.handle, "4712")


@pytest.mark.long
def test_statistics_of_a_job_that_others_began_stay_theirs(two: DcgmEngine, tmp_path: Path) -> None:
    store = tmp_path / "S"
    new_store(store)
    pydcgm, _, structs = two.bindings()
    handle = pydcgm.DcgmHandle(ipAddress=two.address, timeoutMs=2000)
    group = pydcgm.DcgmGroup(handle, groupName="prolog", groupType=structs.DCGM_GROUP_DEFAULT)
    group.stats.WatchJobFields(100_000, 3600.0, 0)
    group.stats.StartJobStats("12")
    done = CliRunner().invoke(cli, [*options(two, store), "--duration", "1.2", "--job", "12"])
    assert done.exit_code == 0, done.stderr
    assert len(ask(store, "select gpu from events where kind = 'job_statistics' and job_id = '12'")) == 2
    group.stats.StopJobStats("12")
    assert group.stats.GetJobStats("12").numGpus == 2
    group.stats.RemoveJob("12")
    group.Delete()
    handle.Shutdown()
