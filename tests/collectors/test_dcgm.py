"""The backend `dcgm` over the real pydcgm, our DCGM and our driver: what it gives, also when things fail."""

from __future__ import annotations

import ctypes
import itertools
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.collectors.backend import Reading, Status
from whorl.collectors.dcgm import bindings as looking
from whorl.collectors.dcgm import connection, dcgm
from whorl.collectors.dcgm.bindings import BLANK, BLANK_DOUBLE, find_bindings
from whorl.collectors.dcgm.connection import Value, find_entities
from whorl.collectors.dcgm.dcgm import Dcgm, decode
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.events import Event
from whorl.store.metrics import FAST, METRICS, ROW
from whorl.store.vocabulary import EventKind
from whorl.tests.analysis.energy.stored import meters
from whorl.tests.checks import not_none, until
from whorl.tests.dcgm_library import DcgmEngine, DcgmLibrary, real_engine
from whorl.tests.stores import ask, new_store

EVERY_S = 0.05


_OPEN: list[Dcgm] = []


@pytest.fixture(autouse=True)
def _ends_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Backends are closed while their engine is still there."""
    for name in {"dcgm", "stopped_engine"}.intersection(request.fixturenames):
        request.getfixturevalue(name)
    yield
    while _OPEN:
        _OPEN.pop().close()


class Ticks:
    """What a backend gave so far, as its loop asks it: every tenth tick reads the slow metrics too."""

    def __init__(self, backend: Dcgm) -> None:
        self.backend = backend
        _OPEN.append(backend)
        self.readings: list[Reading] = []
        self.events: list[Event] = []
        self.gpus = [device.gpu for device in backend.devices()]
        self._number = 0

    def tick(self, times: int = 1) -> Ticks:
        for _ in range(times):
            for given in self.backend.read(self.gpus, slow=self._number % 10 == 0):
                if isinstance(given, Reading):
                    self.readings.append(given)
                else:
                    self.events.append(given)
            self._number += 1
            time.sleep(EVERY_S)
        return self

    def until(self, done: Callable[[], object], *, within_s: float = 20.0) -> Ticks:
        last = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < last, "it did not happen"
            self.tick()
        return self

    def of(self, device: int) -> list[Reading]:
        return [reading for reading in self.readings if reading.gpu == self.gpus[device]]

    def ts(self, device: int) -> list[int]:
        return [reading.ts_ns for reading in self.of(device) if reading.ts_ns is not None]

    def column(self, name: str, device: int) -> list[int | None]:
        """A column of the readings of a device, None for NULL."""
        return [number(reading, name) for reading in self.of(device)]

    def known(self, name: str, device: int) -> list[int]:
        return [value for value in self.column(name, device) if value is not None]

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


def number(reading: Reading, name: str) -> int | None:
    row = ROW[name]
    if reading.statuses[row] != Status.OK:
        return None
    return reading.values[row if len(reading.values) == len(METRICS) else FAST.index(row)]


@pytest.fixture
def four(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with four H100s that work all the time."""
    monkeypatch.setenv("WHORL_NVML_CONTROL", str(engine.nvml.control))  # for what is true
    engine.nvml.write("gpus 4", "model H100", "load 10 1")
    engine.restart()
    engine.bindings()
    return engine


@pytest.fixture
def backend(four: DcgmEngine) -> Iterator[Dcgm]:
    backend = Dcgm(host=four.address, interval_s=EVERY_S, slow_s=10 * EVERY_S)
    yield backend
    backend.close()


def only_ours(engine: DcgmEngine) -> None:
    if engine.binary.parent != engine.folder:
        pytest.skip("only our engine refuses what a test says")


def test_every_gpu_has_the_latest_values_of_each_tick(four: DcgmEngine, backend: Dcgm) -> None:
    devices = backend.devices()
    assert [device.gpu for device in devices] == [f"GPU-77686f72-6c00-4000-8000-00000000000{n}" for n in range(4)]
    assert {device.row["model"] for device in devices} == {"NVIDIA H100 80GB HBM3"}
    assert [device.row["slot"] for device in devices] == [0, 1, 2, 3]
    assert devices[2].row["power_limit_mw"] == 700_000
    assert backend.period_ms == 100
    ticks = Ticks(backend).tick(12)
    for device in range(4):
        stamps = ticks.ts(device)
        assert len(stamps) >= 6
        assert stamps == sorted(set(stamps))
        for name in ("power_mw", "energy_mj", "sm_clock_mhz", "temperature_c", "utilization", "power_violation_ns"):
            assert len(ticks.known(name, device)) > len(stamps) / 2, name  # a pause cuts a cycle of the engine


def test_nothing_new_is_no_reading(four: DcgmEngine) -> None:
    ticks = Ticks(Dcgm(host=four.address, interval_s=10.0)).tick()
    assert [len(ticks.ts(device)) for device in range(4)] == [1, 1, 1, 1]
    assert len(ticks.tick(3).readings) == 4


def test_values_are_those_of_the_driver_in_the_units_of_telemetry(four: DcgmEngine, backend: Dcgm) -> None:
    ticks = Ticks(backend)
    ticks.until(lambda: ticks.known("memory_used", 1) and len(ticks.ts(1)) > 8)
    columns = (ticks.ts(1), ticks.column("energy_mj", 1), ticks.column("power_mw", 1), ticks.column("power_age_us", 1))
    complete = [row for row in zip(*columns, strict=True) if None not in row]
    assert len(complete) > len(ticks.ts(1)) / 2
    for ts, energy, power, _ in complete:
        assert not_none(energy) / 1000 == pytest.approx(four.nvml.energy_j(1, ts / 1e9), abs=20)  # 30 ms at 700 W
        assert not_none(power) == pytest.approx(four.nvml.power_w(1, ts / 1e9) * 1000, rel=0.2)
    assert max(ticks.known("memory_used", 1)) > 2**30
    assert {*ticks.known("power_window_ms", 1)} == {1000}
    ages = ticks.known("power_age_us", 1)
    assert ages
    assert -30_000 < min(ages) <= max(ages) < 250_000  # the sensor has a new value every 100 ms


def test_engines_that_answer_with_few_values_at_once_are_asked_more_often(
    backend: Dcgm, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.devices()
    agent, sizes = not_none(backend._connection).bindings.agent, list[int]()
    ask = agent.dcgmEntitiesGetLatestValues

    def count(handle: Any, entities: Sequence[Any], fields: Sequence[int], flags: int) -> Any:
        sizes.append(len(entities) * len(fields))
        return ask(handle, entities, fields, flags)

    monkeypatch.setattr(agent, "dcgmEntitiesGetLatestValues", count)
    monkeypatch.setattr(connection, "_AT_ONCE", 60)
    ticks = Ticks(backend).tick()
    assert 0 < max(sizes) <= 60
    assert all(ticks.known(name, device) for name in ("power_mw", "power_limit_mw") for device in range(4))


def test_slow_metrics_come_at_slow_ticks_only(backend: Dcgm) -> None:
    ticks = Ticks(backend)
    ticks.until(lambda: len(ticks.ts(0)) > 22)
    for reading in ticks.of(0):
        slow = len(reading.values) == len(METRICS)
        assert slow or len(reading.values) == len(FAST)
        assert (number(reading, "power_limit_mw") is not None) == slow
        assert (reading.statuses[ROW["fan_speed"]] == Status.UNREAD) != slow


def test_profiling_metrics_are_parts_per_million_and_rates(backend: Dcgm) -> None:
    ticks = Ticks(backend)
    ticks.until(lambda: ticks.known("sm_active_ppm", 0))
    (share,) = set(ticks.known("sm_active_ppm", 0))
    assert 500_000 < share <= 1_000_000
    assert not {EventKind.NOT_SUPPORTED, EventKind.NOT_PERMITTED} & {*ticks.kinds()}


def test_without_permission_for_profiling_the_other_metrics_come(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 2")
    stopped_engine.write("profiling -29")
    stopped_engine.start()
    stopped_engine.bindings()
    ticks = Ticks(Dcgm(host=stopped_engine.address, interval_s=EVERY_S)).tick(12)
    assert len(ticks.ts(1)) > 4
    (event,) = [event for event in ticks.events if event.kind == EventKind.NOT_PERMITTED]
    assert (event.gpu, event.metric) == (None, None)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in event.detail
    assert ticks.known("sm_active_ppm", 1) == []
    assert ticks.known("power_limit_mw", 1)


def test_a_gpu_without_profiling_fields_costs_the_others_nothing(engine: DcgmEngine) -> None:
    engine.nvml.write("gpus 3", "model H100", "load 10 1", "gpu 1 deny 3 nvmlGpmQueryDeviceSupport")
    engine.restart()
    engine.bindings()
    ticks = Ticks(Dcgm(host=engine.address, interval_s=EVERY_S, slow_s=10 * EVERY_S))
    ticks.until(lambda: ticks.known("sm_active_ppm", 0) and ticks.known("sm_active_ppm", 2))
    assert ticks.known("power_mw", 1)
    assert ticks.known("sm_active_ppm", 1) == []
    (event,) = [event for event in ticks.events if event.kind == EventKind.NOT_SUPPORTED]
    assert "of 1 of 3 GPUs" in event.detail


def test_a_field_that_the_engine_refuses_costs_only_itself(
    stopped_engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = 65_000  # as a field of health is to an engine that is older than it
    monkeypatch.setattr(connection, "FAST_FIELDS", (*connection.FAST_FIELDS, unknown))
    monkeypatch.setattr(dcgm, "FAST_FIELDS", connection.FAST_FIELDS)
    monkeypatch.setitem(connection.FIELDS, unknown, ROW["power_average_mw"])
    stopped_engine.nvml.write("gpus 2")
    stopped_engine.start()
    stopped_engine.bindings()
    ticks = Ticks(Dcgm(host=stopped_engine.address, interval_s=EVERY_S)).tick(4)
    assert ticks.known("power_mw", 1)
    assert {reading.statuses[ROW["power_average_mw"]] for reading in ticks.of(1)} == {Status.UNSUPPORTED}


def test_a_value_that_is_old_is_none(backend: Dcgm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "_OLD_US", 200_000)
    backend = Dcgm(host=backend._host, interval_s=EVERY_S, slow_s=10 * EVERY_S)
    ticks = Ticks(backend)
    ticks.until(lambda: ticks.known("power_mw", 0))
    assert backend._connection is not None
    latest = backend._connection.latest

    def old(*where: Any) -> Iterator[connection.Value]:
        for value in latest(*where):
            yield value._replace(ts_us=value.ts_us - 400_000) if value.number == 150 else value

    monkeypatch.setattr(backend._connection, "latest", old)
    backend._connection.start_us = 0
    ticks.readings.clear()
    ticks.until(lambda: len(ticks.known("energy_mj", 0)) > 2)
    assert ticks.known("temperature_c", 0) == []
    assert ticks.known("sm_clock_mhz", 0)
    backend.close()


def test_an_engine_that_measures_nothing_any_more_is_gone(
    four: DcgmEngine, backend: Dcgm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm, "_STALL_S", 0.3)
    ticks = Ticks(backend).tick(3)
    monkeypatch.setattr(not_none(backend._connection), "latest", lambda *_: iter(()))  # as of a clock that was set back
    with pytest.raises(InputError, match=rf"the DCGM engine at {four.address} has measured nothing for \d s: see"):
        ticks.until(lambda: False)
    monkeypatch.setattr(dcgm, "_STALL_S", 10.0)
    backend.devices()
    ticks.readings.clear()
    ticks.until(lambda: ticks.known("energy_mj", 0))


def test_another_client_that_watches_faster_changes_neither_our_readings_nor_its_own(four: DcgmEngine) -> None:
    other = Other(four)
    other.watch([156, 155], 10_000)
    time.sleep(0.3)
    began = time.time_ns()
    ticks = Ticks(Dcgm(host=four.address, interval_s=EVERY_S)).tick(8)
    assert ticks.ts(0)[0] >= began - 1000  # nothing of what was sampled for the other before
    assert len(ticks.ts(0)) <= 8
    before = other.count()
    time.sleep(1.0)
    assert other.count() > before + 25  # 20, if it had our rate now, and 100 where the engine has the time
    other.close()


def test_nothing_of_ours_stays_in_the_engine(four: DcgmEngine) -> None:
    other = Other(four)
    before = other.groups()
    backend = Dcgm(host=four.address, interval_s=EVERY_S)
    Ticks(backend).tick()
    assert other.groups() != before
    backend.close()
    assert other.groups() == before
    other.close()


def test_each_xid_of_a_flood_is_one_event_with_the_time_of_the_engine(four: DcgmEngine, backend: Dcgm) -> None:
    ticks = Ticks(backend).tick(2)
    when = time.time() + 0.1
    codes = [79, *range(31, 50)]
    four.nvml.add(*(f"from {when + 0.0001 * place} gpu 3 xid {code}" for place, code in enumerate(codes)))
    ticks.until(lambda: ticks.kinds().count(EventKind.XID) >= len(codes)).tick(4)
    events = [event for event in ticks.events if event.kind == EventKind.XID]
    assert [(event.gpu, event.code) for event in events] == [(ticks.gpus[3], code) for code in codes]
    assert events[0].ts_ns == pytest.approx(when * 1e9, abs=1e9)


def test_a_gpu_that_the_engine_shows_later_is_watched_too(four: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_entities", lambda *where: find_entities(*where)[1:])
    backend = Dcgm(host=four.address, interval_s=EVERY_S)
    assert len(backend.devices()) == 3
    monkeypatch.setattr(connection, "find_entities", find_entities)
    ticks = Ticks(backend)
    assert len(ticks.gpus) == 4
    ticks.until(lambda: all(ticks.known("energy_mj", device) for device in range(4)))
    backend.close()


def test_health_checks_that_do_not_work_cost_no_reading(four: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    only_ours(four)
    monkeypatch.setattr(dcgm, "_HEALTH_S", 0.05)
    four.write("refuse -3 HealthCheck")
    ticks = Ticks(Dcgm(host=four.address, interval_s=EVERY_S))
    ticks.until(lambda: len(ticks.ts(0)) > 2 and EventKind.NOT_SUPPORTED in ticks.kinds()).tick(2)
    (event,) = [event for event in ticks.events if event.kind == EventKind.NOT_SUPPORTED]
    assert event.detail.startswith("the engine's health checks do not work: ")


def test_mig_instances_are_named_and_have_no_power(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 2", "model H100", "gpu 1 mig 3g.40gb 1g.10gb")
    stopped_engine.start()
    stopped_engine.bindings()
    backend = Dcgm(host=stopped_engine.address, interval_s=EVERY_S, slow_s=0.5)
    ticks = Ticks(backend)
    ticks.until(lambda: ticks.ts(2) and ticks.ts(3) and ticks.known("sm_active_ppm", 2))
    devices = backend.devices()
    backend.close()
    instances = devices[2:]
    assert [device.parent for device in devices] == [None, None, devices[1].gpu, devices[1].gpu]
    assert [device.row["mig_profile"] for device in instances] == ["3g.40gb", "1g.10gb"]
    assert {device.row["parent"] for device in instances} == {devices[1].gpu}
    assert all(device.gpu.startswith("MIG-") for device in instances)
    assert ticks.known("memory_used", 2)
    for name in ("power_mw", "energy_mj", "sm_clock_mhz", "temperature_c"):
        assert ticks.known(name, 2) == []
    assert len(ticks.ts(2)) < len(ticks.ts(1))


def test_an_engine_within_the_process_is_the_last_resort(dcgm: DcgmLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgm.nvml.write("gpus 2", "load 10 1")
    dcgm.bindings()
    monkeypatch.setattr(connection, "LOCAL", "127.0.0.1:1")
    monkeypatch.setattr(connection, "LOCAL_SOCKET", "/nowhere")
    ticks = Ticks(Dcgm(interval_s=EVERY_S))
    ticks.until(lambda: len(ticks.ts(1)) > 2)
    (event,) = [event for event in ticks.events if event.kind == EventKind.SOURCE_VERSION]
    assert "within this process" in event.detail


def test_a_unix_socket_is_another_way_to_the_engine(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 1")
    stopped_engine.start(unix=True)
    stopped_engine.bindings()
    ticks = Ticks(Dcgm(socket=str(stopped_engine.socket), interval_s=EVERY_S))
    ticks.until(lambda: len(ticks.ts(0)) > 2)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"host": "127.0.0.1:1"}, "no DCGM engine answers at 127.0.0.1:1: check the address"),
        ({"host": "127.0.0.1:seven"}, "'127.0.0.1:seven' is not the address of an engine: write HOST or HOST:PORT"),
        ({"host": "127.0.0.1:70000"}, "'127.0.0.1:70000' is not the address of an engine"),
        ({"socket": "/nowhere/dcgm"}, "there is no socket /nowhere/dcgm: start the engine with nv-hostengine -d"),
    ],
)
def test_an_engine_that_is_not_there(dcgm: DcgmLibrary, where: dict[str, Any], says: str) -> None:
    dcgm.bindings()
    with pytest.raises(InputError, match=says):
        Dcgm(**where).devices()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("version 3.3.5", r"do not fit the engine at .*give the bindings of the engine's version in WHORL"),
        ("refuse -17 Connect", r"this user may not use the DCGM engine at .*; run as root, or ask for access"),
    ],
)
def test_an_engine_that_cannot_be_used(stopped_engine: DcgmEngine, statement: str, says: str) -> None:
    stopped_engine.write(statement)
    stopped_engine.start()
    stopped_engine.bindings()
    with pytest.raises(InputError, match=says):
        Dcgm(host=stopped_engine.address).devices()


def test_a_field_of_every_metric_is_known(stopped_engine: DcgmEngine) -> None:
    by_id = stopped_engine.bindings().structs.dcgmLib.DcgmFieldGetById
    by_id.restype = ctypes.c_void_p
    assert [metric.name for metric in METRICS if metric.dcgm and not by_id(metric.dcgm.id)] == []


@pytest.mark.real_dcgm
def test_a_real_engine_is_here() -> None:
    if real_engine() is None:
        pytest.skip("no nv-hostengine is installed: these tests ran over the simulated DCGM only")


def test_a_refused_read_is_a_sentence_and_what_was_watched_is_taken_back(four: DcgmEngine, backend: Dcgm) -> None:
    only_ours(four)
    ticks, other = Ticks(backend), Other(four)
    four.write("refuse -3 EntitiesGetLatestValues")
    with pytest.raises(InputError, match=rf"the DCGM engine at {four.address} refuses: .*\(code -3\)"):
        ticks.tick()
    four.write()
    assert other.groups()[1] == 0
    other.close()
    backend.devices()
    ticks.until(lambda: len(ticks.ts(0)) > 2)


class Other:
    """Another client of the engine, as a monitoring tool is."""

    def __init__(self, engine: DcgmEngine) -> None:
        self.pydcgm, self.agent, self.structs = engine.bindings()
        self.handle = self.pydcgm.DcgmHandle(ipAddress=engine.address, timeoutMs=2000)
        self.group = self.pydcgm.DcgmGroup(self.handle, groupName="other", groupType=self.structs.DCGM_GROUP_DEFAULT)
        self.fields: Any = None

    def watch(self, fields: Sequence[int], every_us: int) -> None:
        self.fields = self.pydcgm.DcgmFieldGroup(self.handle, "other", list(fields))
        self.group.samples.WatchFields(self.fields, every_us, 60.0, 0)

    def stamps(self, field: int) -> dict[int, list[int]]:
        """The stamps of all samples of a field that the engine has, by GPU."""
        found: dict[int, list[int]] = {}

        def keep(_kind: int, entity: int, values: Any, count: int, _data: object) -> int:
            for value in values[:count]:
                if value.ts and value.fieldId == field:
                    found.setdefault(entity, []).append(value.ts)
            return 0

        callback = self.agent.dcgmFieldValueEntityEnumeration_f(keep)
        group, fields = self.group.GetId(), self.fields.fieldGroupId
        self.agent.dcgmGetValuesSince_v2(self.handle.handle, group, fields, 0, callback, None)
        return found

    def count(self) -> int:
        return len(self.stamps(156)[0])

    def groups(self) -> tuple[list[Any], int]:
        """All groups and the number of field groups of the engine."""
        ids = self.agent.dcgmGroupGetAllIds(self.handle.handle)
        return ids, int(self.agent.dcgmFieldGroupGetAll(self.handle.handle).numFieldGroups)

    def close(self) -> None:
        for one in (self.fields, self.group):
            if one is not None:
                one.Delete()
        self.handle.Shutdown()


# -- to the store ------------------------------------------------------------------------------------------------------
# From a DCGM engine to the store, as `whorl collect --backend dcgm` runs: nothing twice, true joules, events.


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


# -- bindings ----------------------------------------------------------------------------------------------------------
# Where the bindings of DCGM are looked for, and what DCGM's values mean.


MODULES = {
    "pydcgm": "import DcgmHandle\nimport dcgm_structs\n",
    "DcgmHandle": "",
    "dcgm_agent": "import dcgm_structs\n",
    "dcgm_structs": "class DCGMError(Exception): pass\n",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a new process is: without bindings, and with the search path as it was afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WHORL_PYDCGM_PATH", raising=False)
    monkeypatch.setattr(looking, "FOLDERS", ())
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def folder(path: Path, **changed: str) -> Path:
    """A folder as DCGM installs it."""
    path.mkdir(exist_ok=True)
    for name, text in (MODULES | changed).items():
        (path / f"{name}.py").write_text(text)
    return path


@pytest.mark.usefixtures("clean")
def test_the_folder_in_the_environment_comes_first_then_the_newest_dcgm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, four, three = (folder(tmp_path / name) for name in ("given", "four", "three"))
    monkeypatch.setattr(looking, "FOLDERS", (str(tmp_path / "absent"), str(four), str(three)))
    assert find_bindings().folder == str(four)
    for name in MODULES:
        del sys.modules[name]
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    sys.path.remove(str(four))
    found = find_bindings()
    assert found.folder == str(given)
    assert found.pydcgm.__name__ == "pydcgm"
    assert sys.path[-1] == str(given)  # at the end, where it hides nothing


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"WHORL_PYDCGM_PATH is .*, and there is no pydcgm.py in it: give the folder of DCGM's Python bindings"),
        (
            {"DcgmHandle": "import nowhere_to_be\n"},
            r"the DCGM bindings in .* cannot be imported: No module named 'nowhere",
        ),
        ({"dcgm_structs": "1 / 0\n"}, r"cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_folder_in_the_environment_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], says: str
) -> None:
    given = folder(tmp_path / "given", **files) if files else tmp_path
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    with pytest.raises(InputError, match=says):
        find_bindings()


@pytest.mark.usefixtures("clean")
def test_a_file_that_hides_one_of_the_modules_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = folder(tmp_path / "given"), tmp_path / "other"
    other.mkdir()
    (other / "dcgm_agent.py").write_text("")
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    with pytest.raises(
        InputError, match=r"other/dcgm_agent.py has the same name as one of its modules and comes first"
    ):
        find_bindings()


@pytest.mark.usefixtures("clean")
def test_without_any_bindings_the_sentence_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "PACKAGE", "no.such.package")
    with pytest.raises(
        InputError, match=r"\(pydcgm\) were not found: install DCGM, or give their folder in WHORL_PYDCGM"
    ):
        find_bindings()


BLANKS = {0: Status.UNREAD, 1: Status.UNSUPPORTED, 2: Status.UNSUPPORTED, 3: Status.DENIED, 9: Status.DENIED}


def value(field: int, kind: str, number: float, *, status: int = 0) -> Value:
    """A value as the engine gives it."""
    (bits,) = struct.unpack("q", struct.pack("d" if kind == "d" else "q", number))
    return Value((1, 0), field, ord(kind), status, 5, bits)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (value(155, "d", 123.4567), 123457),
        (value(156, "i", 2**40), 2**40),
        (value(252, "i", 3), 3 * 2**20),
        (value(1002, "d", 0.25), 250_000),
        (value(150, "i", -4), -4),
        (value(156, "i", 0x7FFFFFF0), 0x7FFFFFF0),  # a blank of 32 bits is a number only of a counter
        (value(100, "i", 0x7FFFFFF2), Status.UNSUPPORTED),
        (value(100, "i", 0x7FFFFFEF), 0x7FFFFFEF),
        *((value(155, "d", number), Status.FAILED) for number in (float("nan"), float("inf"), float("-inf"))),
        (value(155, "d", 1e300), Status.DENIED),
        (value(1002, "d", 1e14), Status.FAILED),  # beyond all in its unit
        (value(252, "i", 2**50), Status.FAILED),
        *((value(155, "d", BLANK_DOUBLE + blank), status) for blank, status in BLANKS.items()),
        *((value(156, "i", BLANK + blank), status) for blank, status in BLANKS.items()),
        (value(150, "i", 40, status=-6), Status.UNSUPPORTED),
        (value(150, "i", 40, status=-17), Status.DENIED),
        (value(150, "i", 40, status=-18), Status.LOST),
        (value(150, "i", 40, status=-19), Status.NEEDS_RESET),
        (value(150, "i", 40, status=-16), Status.UNREAD),
        (value(150, "i", 40, status=-3), Status.FAILED),
    ],
)
def test_a_value_is_a_number_in_the_unit_of_its_column_or_says_why_not(given: Value, expected: int | Status) -> None:
    assert decode(given) == ((0, expected) if isinstance(expected, Status) else (expected, Status.OK))
