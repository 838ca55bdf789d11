"""Our own DCGM keeps to the facts that the collector must deal with; the real pydcgm asks it."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from whorl.store.metrics import METRICS
from whorl.tests.dcgm_library import Bindings, DcgmEngine, real_engine

GPU = 1
BLANK_INT = 0x7FFFFFFFFFFFFFF0
EVERY_US = 20_000


class Row(NamedTuple):
    ts: int
    status: int
    value: Any


class Client:
    """A connection with one group of all GPUs, as a collector has."""

    def __init__(self, bindings: Bindings, **where: Any) -> None:
        self.pydcgm, self.agent, self.structs = bindings
        self.handle = self.pydcgm.DcgmHandle(**where)
        self.system = self.handle.GetSystem()
        self.gpus = self.system.discovery.GetAllSupportedGpuIds()
        self.group = self.group_of([(GPU, gpu) for gpu in self.gpus])

    def group_of(self, entities: Sequence[tuple[int, int]]) -> Any:
        group = self.pydcgm.DcgmGroup(self.handle, groupName="test", groupType=self.structs.DCGM_GROUP_EMPTY)
        for kind, entity in entities:
            group.AddEntity(kind, entity)
        return group

    def fields(self, *ids: int, name: str = "test") -> Any:
        return self.pydcgm.DcgmFieldGroup(self.handle, name, list(ids))

    def watch(self, fields: Any, every_us: int = EVERY_US, age_s: float = 60, keep: int = 100) -> None:
        self.group.samples.WatchFields(fields, every_us, age_s, keep)
        self.system.UpdateAllFields(1)

    def read(self, fields: Any, since: int = 0) -> tuple[dict[tuple[int, int], list[Row]], int]:
        """Rows by (entity, field), and the time to go on from."""
        rows = defaultdict(list)

        def keep(kind: int, entity: int, values: Any, count: int, data: object) -> int:
            for value in values[:count]:
                kind_of = {"d": "dbl", "i": "i64", "s": "str"}[chr(value.fieldType)]
                rows[entity, value.fieldId].append(Row(value.ts, value.status, getattr(value.value, kind_of)))
            return 0

        callback = self.agent.dcgmFieldValueEntityEnumeration_f(keep)
        after = self.agent.dcgmGetValuesSince_v2(
            self.handle.handle, self.group.GetId(), fields.fieldGroupId, since, callback, None
        )
        return dict(rows), after

    def read_until(self, fields: Any, entity: int, field: int, count: int) -> dict[tuple[int, int], list[Row]]:
        """All rows, as soon as there are so many of a field."""
        until = time.monotonic() + 20
        while True:
            rows, _ = self.read(fields)
            if sum(row.ts > 0 for row in rows[entity, field]) >= count:
                return rows
            assert time.monotonic() < until
            time.sleep(0.01)

    def close(self) -> None:
        self.handle.Shutdown()


@pytest.fixture
def client(engine: DcgmEngine) -> Iterator[Client]:
    engine.nvml.write("gpus 4", "model H100")
    engine.restart()
    client = Client(engine.bindings(), ipAddress=engine.address, timeoutMs=2000)
    yield client
    client.close()


def test_nothing_to_report_is_a_row_without_a_time_on_every_read(client: Client) -> None:
    fields = client.fields(230)
    client.watch(fields)
    for since in (0, 1):
        rows, _ = client.read(fields, since)
        assert rows[0, 230] == [Row(0, -14, BLANK_INT)]


def test_a_read_hands_out_what_came_up_to_the_time_it_says_to_go_on_from(client: Client) -> None:
    fields = client.fields(155)
    client.watch(fields)
    since = 0
    seen: list[int] = []
    while len(seen) < 8:
        time.sleep(2 * EVERY_US / 1e6)
        rows, after = client.read(fields, since)
        assert all(row.ts == 0 or since <= row.ts < after for row in rows[0, 155])
        seen += [row.ts for row in rows[0, 155] if row.ts]
        since = after
    assert len(seen) == len(set(seen))


def test_the_shortest_interval_of_all_clients_counts_and_its_values_are_handed_to_all(
    engine: DcgmEngine, client: Client
) -> None:
    other = Client(engine.bindings(), ipAddress=engine.address, timeoutMs=2000)
    fast, slow = other.fields(155, name="fast"), client.fields(155, 150, name="slow")
    other.watch(fast, every_us=10_000)
    time.sleep(0.15)
    began = time.time() * 1e6
    client.watch(slow, every_us=100_000)
    rows = client.read_until(slow, 0, 150, 5)
    assert rows[0, 155][0].ts < began - 50_000 < began - 1000 < rows[0, 150][0].ts
    assert len(rows[0, 155]) > 3 * len(rows[0, 150])
    other.close()


def test_what_is_read_can_pass_by_a_value_that_comes_late(client: Client, engine: DcgmEngine) -> None:
    """A value has the time of before the driver was asked: reading on from `after` misses some, an overlap does not."""
    engine.nvml.add("latency 3000 nvmlDeviceGetPowerUsage")
    fields = client.fields(155)
    client.watch(fields)
    started = since = client.read(fields)[1]
    exact, overlapped = set(), set()
    for _ in range(20):
        time.sleep(EVERY_US / 1e6)
        rows, after = client.read(fields, since)
        exact |= {(gpu, row.ts) for (gpu, _), series in rows.items() for row in series if row.ts}
        rows, _ = client.read(fields, since - 100 * EVERY_US)
        overlapped |= {(gpu, row.ts) for (gpu, _), series in rows.items() for row in series if row.ts >= started}
        since = after
    rows, _ = client.read(fields, started)
    everything = {(gpu, row.ts) for (gpu, _), series in rows.items() for row in series if 0 < row.ts < since - EVERY_US}
    assert everything - exact
    assert not everything - overlapped


def test_one_profiling_field_that_cannot_be_watched_refuses_the_whole_group(engine: DcgmEngine) -> None:
    engine.nvml.write("gpus 2", "model A100")
    engine.restart()
    client = Client(engine.bindings(), ipAddress=engine.address, timeoutMs=2000)
    mixed = client.fields(155, 1002, 150)
    with pytest.raises(client.structs.DCGMError_ModuleNotLoaded):
        client.watch(mixed)
    rows, _ = client.read(mixed)
    assert {row.status for series in rows.values() for row in series} == {-16}
    alone = client.fields(155, 150, name="alone")
    client.watch(alone)
    assert client.read(alone)[0][0, 155][0].status == 0
    with pytest.raises(client.structs.DCGMError_ModuleNotLoaded):
        client.agent.dcgmProfGetSupportedMetricGroups(client.handle.handle, 0)
    client.close()


def test_profiling_values_are_means_since_the_last_and_the_first_is_blank(client: Client, engine: DcgmEngine) -> None:
    engine.nvml.add("load 10 1")
    time.sleep(0.1)
    fields = client.fields(1002, 1009)
    client.watch(fields, every_us=100_000)
    rows = client.read_until(fields, 0, 1009, 4)
    active, sent = rows[0, 1002], rows[0, 1009]
    assert active[0].value >= 2.0**47
    assert sent[0].value >= BLANK_INT
    assert [row.value for row in active[2:]] == pytest.approx([0.96] * len(active[2:]))
    assert [row.value for row in sent[2:]] == pytest.approx([9e9] * len(sent[2:]), rel=1e-6)
    assert len(active) >= 3
    groups = client.agent.dcgmProfGetSupportedMetricGroups(client.handle.handle, 0)
    assert {1001, 1002, 1009} <= set(groups.metricGroups[0].fieldIds[: groups.metricGroups[0].numFieldIds])


def test_a_lost_gpu_floods_its_watches_with_blanks_and_nothing_is_raised(client: Client, engine: DcgmEngine) -> None:
    fields = client.fields(155)
    client.watch(fields, every_us=200_000)
    engine.nvml.add("gpu 2 lost")
    time.sleep(1.2)
    rows, _ = client.read(fields)
    blanks = [row for row in rows[2, 155] if row.value >= 2.0**47]
    assert len(blanks) > 5 * len(rows[1, 155])
    assert all(row.ts > 0 and row.status == 0 for row in blanks)
    status = ctypes.c_uint()
    for gpu, expected in ((1, 1), (2, 4)):
        client.structs.dcgmLib.dcgmGetGpuStatus(client.handle.handle, gpu, ctypes.byref(status))
        assert status.value == expected
    assert client.system.discovery.GetAllSupportedGpuIds() == [0, 1, 3]
    assert client.system.discovery.GetAllGpuIds() == [0, 1, 2, 3]


def test_an_xid_is_a_value_with_a_time_and_a_health_incident(client: Client, engine: DcgmEngine) -> None:
    fields = client.fields(230)
    client.watch(fields)
    client.group.health.Set(client.structs.DCGM_HEALTH_WATCH_DRIVER)
    assert client.group.health.Check().overallHealth == 0
    happens = time.time() + 0.05
    engine.nvml.add(f"from {happens} gpu 1 xid 79")
    rows = client.read_until(fields, 1, 230, 1)
    assert [(row.status, row.value) for row in rows[1, 230]] == [(0, 79)]
    assert happens <= rows[1, 230][0].ts / 1e6 < happens + 5
    assert rows[0, 230] == [Row(0, -14, BLANK_INT)]
    response = client.group.health.Check()
    assert (response.overallHealth, response.incidentCount) == (20, 1)
    assert response.incidents[0].entityInfo.entityId == 1
    assert "79" in response.incidents[0].error.msg


def test_a_field_of_every_metric_is_known(stopped_engine: DcgmEngine) -> None:
    bindings = stopped_engine.bindings()
    by_id = bindings.structs.dcgmLib.DcgmFieldGetById
    by_id.restype = ctypes.c_void_p
    assert [metric.name for metric in METRICS if metric.dcgm and not by_id(metric.dcgm.id)] == []


# What the control file of DCGM says: of our own engine only.


@pytest.fixture
def own(stopped_engine: DcgmEngine) -> DcgmEngine:
    stopped_engine.nvml.write("gpus 2")
    stopped_engine.start()
    return stopped_engine


# An engine in this process


@pytest.mark.real_dcgm
def test_a_real_engine_is_here() -> None:
    if real_engine() is None:
        pytest.skip("no nv-hostengine is installed: these tests ran over the simulated DCGM only")
