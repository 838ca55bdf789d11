"""The stream `dcgm` over the real pydcgm, our DCGM and our driver: what it gives, and what it does when things fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from whorl.collectors.backends import Readings, Status
from whorl.collectors.dcgm import connection
from whorl.collectors.dcgm.dcgm import Dcgm
from whorl.collectors.dcgm.entities import find_entities
from whorl.errors import InputError
from whorl.store.events import Event
from whorl.store.metrics import METRICS, ROW
from whorl.store.vocabulary import EventKind
from whorl.tests.dcgm_library import DcgmEngine, DcgmLibrary

EVERY_S = 0.05
GPU, INSTANCE = 1, 4


class Taken:
    """What a stream gave so far."""

    def __init__(self, stream: Dcgm) -> None:
        self.stream = stream
        self.parts: list[Readings] = []
        self.events: list[Event] = []

    def poll(self, times: int = 1, *, pause_s: float = 0.15) -> Taken:
        for _ in range(times):
            time.sleep(pause_s)
            readings, events = self.stream.poll()
            self.parts.append(readings)
            self.events += events
        return self

    def until(self, done: Callable[[], object], *, within_s: float = 20.0) -> Taken:
        last = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < last, "it did not happen"
            self.poll(pause_s=0.05)
        return self

    def ts(self, device: int) -> list[int]:
        return [int(at) for part in self.parts for at in part.ts[part.device == device]]

    def column(self, name: str, device: int) -> list[int | None]:
        """A column of the rows of a device, None for NULL. The first row may lack what was measured before it."""
        row = ROW[name]
        return [
            int(value) if status == Status.OK else None
            for part in self.parts
            for value, status, one in zip(part.values[row], part.status[row], part.device, strict=True)
            if one == device
        ]

    def statuses(self, device: int) -> list[list[int]]:
        return [part.status[:, at].tolist() for part in self.parts for at in np.flatnonzero(part.device == device)]

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


@pytest.fixture
def four(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with four H100s that work all the time."""
    monkeypatch.setenv("WHORL_NVML_CONTROL", str(engine.nvml.control))  # for what is true
    engine.nvml.write("gpus 4", "model H100", "load 10 1")
    engine.restart()
    engine.bindings()
    return engine


@pytest.fixture
def stream(four: DcgmEngine) -> Iterator[Dcgm]:
    stream = Dcgm(host=four.address, interval_s=EVERY_S, slow_s=1.0)
    stream.open()
    yield stream
    stream.close()


def only_ours(engine: DcgmEngine) -> None:
    if engine.binary.parent != engine.folder:
        pytest.skip("only our engine refuses what a test says")


def test_every_gpu_has_a_row_for_each_cycle_of_the_engine(four: DcgmEngine, stream: Dcgm) -> None:
    taken = Taken(stream).poll(5)
    assert [device.gpu for device in stream.devices()] == [
        f"GPU-77686f72-6c00-4000-8000-00000000000{n}" for n in range(4)
    ]
    assert {device.row["model"] for device in stream.devices()} == {"NVIDIA H100 80GB HBM3"}
    assert stream.devices()[2].row["power_limit_mw"] == 700_000
    assert stream.period_ms == 100
    for device in range(4):
        stamps = np.array(taken.ts(device))
        assert len(stamps) > 8
        assert (np.diff(stamps) > 0).all()
        assert np.median(np.diff(stamps)) == pytest.approx(EVERY_S * 1e9, rel=0.2)
        for name in ("power_mw", "energy_mj", "sm_clock_mhz", "temperature_c", "utilization", "power_violation_ns"):
            # the first cycle is under way already, and a pause of this machine cuts one in two
            assert taken.column(name, device).count(None) <= 2 + len(stamps) // 5
    assert stream.late == 0


def test_values_are_those_of_the_driver_in_the_units_of_telemetry(four: DcgmEngine, stream: Dcgm) -> None:
    taken = Taken(stream)
    taken.until(lambda: any(taken.column("memory_used", 1)) and len(taken.ts(1)) > 8)
    columns = (taken.ts(1), taken.column("energy_mj", 1), taken.column("power_instant_mw", 1))
    whole = [row for row in zip(*columns, strict=True) if None not in row]
    assert len(whole) > len(taken.ts(1)) / 2  # a cycle that was cut by a pause of this machine makes two rows
    for ts, energy, power in whole:
        assert energy is not None
        assert power is not None
        assert energy / 1000 == pytest.approx(four.nvml.energy_j(1, ts / 1e9), abs=20)  # 30 ms at 700 W
        assert power == pytest.approx(four.nvml.power_w(1, ts / 1e9) * 1000, rel=0.2)
    assert max(filter(None, taken.column("memory_used", 1))) > 2**30
    assert {*taken.column("power_window_ms", 1)} - {None} == {1000}  # a cycle that was cut lacks it
    ages = [age for age in taken.column("power_age_us", 1) if age is not None]
    assert ages
    assert -30_000 < min(ages) < max(ages) - 30_000  # the sensor has a new value every 100 ms, and a row is every 50 ms
    assert max(ages) < 150_000


def test_slow_metrics_come_at_their_own_interval(stream: Dcgm) -> None:
    taken = Taken(stream)
    taken.until(lambda: len(taken.ts(0)) > 2 + 2 / EVERY_S)
    known = [value is not None for value in taken.column("power_limit_mw", 0)]
    assert 2 <= sum(known) <= 4
    assert stream.late == 0


def test_profiling_metrics_are_parts_per_million_and_rates(stream: Dcgm) -> None:
    taken = Taken(stream)
    taken.until(lambda: any(taken.column("sm_active_ppm", 0)))
    (share,) = {value for value in taken.column("sm_active_ppm", 0) if value is not None}
    assert 500_000 < share <= 1_000_000
    assert EventKind.NOT_SUPPORTED not in taken.kinds()


def test_without_permission_for_profiling_the_other_metrics_come(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 2")
    stopped_engine.write("profiling -29")
    stopped_engine.start()
    stopped_engine.bindings()
    stream = Dcgm(host=stopped_engine.address, interval_s=EVERY_S)
    stream.open()
    taken = Taken(stream).poll(4)
    stream.close()
    assert len(taken.ts(1)) > 4
    assert taken.column("power_mw", 1).count(None) <= 2
    (said,) = [event for event in taken.events if event.kind == EventKind.NOT_PERMITTED]
    assert said.gpu is None
    assert "may not read the profiling fields 1001, " in said.detail
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said.detail
    assert set(taken.column("sm_active_ppm", 1)) == {None}


def test_after_a_restart_of_the_engine_it_is_opened_again(four: DcgmEngine, stream: Dcgm) -> None:
    taken = Taken(stream).poll(3)
    four.stop()
    with pytest.raises(
        InputError, match=rf"no DCGM engine answers at {four.address}: check the address, and that nv-h"
    ):
        taken.poll()
    stream.close()
    with pytest.raises(InputError, match="no DCGM engine answers"):
        stream.open()
    before = taken.ts(0)
    four.start()
    stream.open()
    taken.poll(3)
    after = taken.ts(0)[len(before) :]
    assert len(after) > 4
    assert after[0] > before[-1]
    assert taken.column("energy_mj", 0)[len(before) :].count(None) <= 2  # of a cycle that was under way


def test_a_gpu_that_is_lost_has_one_row_that_says_so_and_returns(four: DcgmEngine, stream: Dcgm) -> None:
    taken = Taken(stream).poll(3)
    four.nvml.add("gpu 2 lost")
    taken.until(lambda: any(Status.LOST in row for row in taken.statuses(2)))
    taken.poll(6)
    lost = [row for row in taken.statuses(2) if Status.LOST in row]
    assert len(lost) == 1
    assert lost[0][ROW["power_mw"]] == Status.LOST
    assert Status.OK not in lost[0]
    rows = len(taken.ts(2))
    others = len(taken.ts(1))
    assert rows < others - 4
    four.nvml.remove("gpu 2 lost")  # an engine sees that when it starts
    four.restart()
    stream.close()
    stream.open()
    taken.until(lambda: len(taken.ts(2)) > rows + 3)
    stamps = taken.ts(2)
    assert stamps == sorted(set(stamps))
    assert taken.column("energy_mj", 2)[rows:].count(None) <= 2  # of a cycle that was under way


def test_another_client_that_watches_faster_changes_neither_our_rows_nor_its_own(
    four: DcgmEngine, stream: Dcgm
) -> None:
    other = Other(four)
    other.watch([156, 155], 10_000)
    time.sleep(0.3)
    late = Dcgm(host=four.address, interval_s=EVERY_S)
    began = time.time_ns()
    late.open()
    taken = Taken(late).poll(5)
    late.close()
    stamps = np.array(taken.ts(0))
    assert stamps[0] >= began - 1000  # nothing of what was sampled for the other before
    assert np.median(np.diff(stamps)) > 0.6 * EVERY_S * 1e9
    before = other.count()
    time.sleep(0.3)
    assert other.count() > before + 9  # six, if it had our rate now, and thirty where the engine has the time
    other.close()


def test_nothing_of_ours_stays_in_the_engine(four: DcgmEngine) -> None:
    other = Other(four)
    before = other.groups()
    for _ in range(2):
        stream = Dcgm(host=four.address, interval_s=EVERY_S)
        stream.open()
        stream.poll()
        assert other.groups() != before
        stream.close()
        assert other.groups() == before
    other.close()


def test_two_collectors_of_one_process_do_not_meet(four: DcgmEngine, stream: Dcgm) -> None:
    second = Dcgm(host=four.address, interval_s=EVERY_S)
    second.open()
    one, two = Taken(stream).poll(4), Taken(second).poll(4)
    second.close()
    assert min(len(one.ts(0)), len(two.ts(0))) > 4
    one.poll(2)


def test_an_xid_is_one_event_with_the_time_of_the_engine(four: DcgmEngine, stream: Dcgm) -> None:
    taken = Taken(stream).poll(2)
    when = time.time() + 0.1
    four.nvml.add(f"from {when} gpu 3 xid 79")
    taken.until(lambda: EventKind.XID in taken.kinds()).poll(3)
    (event,) = [one for one in taken.events if one.kind == EventKind.XID]
    assert (event.gpu, event.code) == (stream.devices()[3].gpu, 79)
    assert event.detail == "XID 79: the GPU has fallen off the bus"
    assert event.ts_ns is not None
    assert event.ts_ns == pytest.approx(when * 1e9, abs=1e9)


def test_a_driver_that_is_slow_makes_samples_late_and_none_is_lost(four: DcgmEngine) -> None:
    four.nvml.add("latency 300")
    other = Other(four)
    stream = Dcgm(host=four.address, interval_s=EVERY_S, slow_s=60.0)
    stream.open()
    other.watch([156, 155], 10_000_000)  # reads what the engine samples for us
    taken = Taken(stream).poll(8, pause_s=0.06)
    taken.until(lambda: len(taken.ts(0)) > 12)
    sampled, powers = other.stamps(156), other.stamps(155)
    stream.close()
    other.close()
    for device in range(4):
        energy = taken.column("energy_mj", device)
        ours = [ts for ts, joules in zip(taken.ts(device), energy, strict=True) if joules is not None]
        theirs = {ts * 1000 for ts in sampled[device] if ours[0] <= ts * 1000 <= ours[-1]}
        assert ours == sorted(theirs)
        known = [power for power in taken.column("power_mw", device) if power is not None]
        there = [ts * 1000 for ts in powers[device] if ours[0] < ts * 1000 < ours[-1]]
        assert abs(len(known) - len(there)) <= 2  # of the first and the last row, they may lie outside
    assert stream.late == 0


def test_a_gpu_that_the_engine_shows_later_is_watched_too(four: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._CHORES_US", 300_000)
    found = find_entities
    monkeypatch.setattr(connection, "find_entities", lambda *where: found(*where)[1:])
    stream = Dcgm(host=four.address, interval_s=EVERY_S)
    stream.open()
    first = [device.gpu for device in stream.devices()]
    monkeypatch.setattr(connection, "find_entities", found)
    rows: dict[str, list[int]] = {}
    last = time.monotonic() + 20
    while len(rows) < 4 and time.monotonic() < last:
        time.sleep(0.1)
        readings, _ = stream.poll()
        for device, ts in zip(readings.device.tolist(), readings.ts.tolist(), strict=True):
            rows.setdefault(stream.devices()[device].gpu, []).append(ts)
    stream.close()
    assert len(first) == 3
    assert len(rows) == 4
    for stamps in rows.values():
        assert stamps == sorted(set(stamps))


def test_health_checks_that_do_not_work_cost_no_row(four: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    only_ours(four)
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._CHORES_US", 100_000)
    four.write("refuse -3 HealthCheck")
    stream = Dcgm(host=four.address, interval_s=EVERY_S)
    stream.open()
    taken = Taken(stream).poll(6)
    stream.close()
    assert len(taken.ts(0)) > 6
    (said,) = [event for event in taken.events if event.kind == EventKind.NOT_SUPPORTED]
    assert said.detail.startswith("the engine's health checks do not work: ")


def test_mig_instances_are_named_and_have_no_power(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 2", "model H100", "gpu 1 mig 3g.40gb 1g.10gb")
    stopped_engine.start()
    stopped_engine.bindings()
    stream = Dcgm(host=stopped_engine.address, interval_s=EVERY_S, slow_s=0.5)
    stream.open()
    taken = Taken(stream)
    taken.until(lambda: taken.ts(2) and taken.ts(3))
    stream.close()
    parts = stream.devices()[2:]
    assert [(part.parent, part.row["mig_profile"]) for part in parts] == [(1, "3g.40gb"), (1, "1g.10gb")]
    assert {part.row["parent"] for part in parts} == {stream.devices()[1].gpu}
    assert all(part.gpu.startswith("MIG-") for part in parts)
    assert any(taken.column("memory_used", 2))
    for name in ("power_mw", "energy_mj", "sm_clock_mhz", "temperature_c"):
        assert set(taken.column(name, 2)) == {None}


def test_an_engine_within_the_process_is_the_last_resort(dcgm: DcgmLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgm.nvml.write("gpus 2", "load 10 1")
    dcgm.bindings()
    monkeypatch.setattr("whorl.collectors.dcgm.reaching.LOCAL", "127.0.0.1:1")
    monkeypatch.setattr("whorl.collectors.dcgm.reaching.LOCAL_SOCKET", "/nowhere")
    stream = Dcgm(interval_s=EVERY_S)
    stream.open()
    taken = Taken(stream).poll(4)
    stream.close()
    assert len(taken.ts(1)) > 4
    (version,) = [event for event in taken.events if event.kind == EventKind.SOURCE_VERSION]
    assert "within this process" in version.detail


def test_a_unix_socket_is_another_way_to_the_engine(stopped_engine: DcgmEngine) -> None:
    stopped_engine.nvml.write("gpus 1")
    stopped_engine.start(unix=True)
    stopped_engine.bindings()
    stream = Dcgm(socket=str(stopped_engine.socket), interval_s=EVERY_S)
    stream.open()
    assert len(Taken(stream).poll(3).ts(0)) > 2
    stream.close()


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
        Dcgm(**where).open()


def test_a_job_id_that_the_engine_could_not_keep() -> None:
    for job in ("", "j" * 64, "\u00e9" * 32):
        with pytest.raises(InputError, match="1 to 63 bytes"):
            Dcgm(job=job)


def test_bindings_of_another_version_than_the_engine(stopped_engine: DcgmEngine) -> None:
    stopped_engine.write("version 3.3.5")
    stopped_engine.start()
    stopped_engine.bindings()
    with pytest.raises(
        InputError, match=r"do not fit the engine at .*give the bindings of the engine's version in WHORL"
    ):
        Dcgm(host=stopped_engine.address).open()


def test_an_engine_that_may_not_be_used(stopped_engine: DcgmEngine) -> None:
    stopped_engine.write("refuse -17 Connect")
    stopped_engine.start()
    stopped_engine.bindings()
    with pytest.raises(
        InputError, match=r"this user may not use the DCGM engine at .*; run as root, or ask for access"
    ):
        Dcgm(host=stopped_engine.address).open()


def test_a_refused_read_is_a_sentence_and_what_was_watched_is_taken_back(four: DcgmEngine, stream: Dcgm) -> None:
    only_ours(four)
    four.write("refuse -3 GetValuesSince")
    with pytest.raises(InputError, match=rf"the DCGM engine at {four.address} refuses: .*\(code -3\)"):
        stream.poll()
    four.write()
    assert len(Taken(stream).poll(3).ts(0)) > 4


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


def test_the_tests_know_every_metric_that_dcgm_has() -> None:
    assert sum(metric.dcgm is not None for metric in METRICS) > 40
