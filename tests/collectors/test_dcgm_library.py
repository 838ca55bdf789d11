"""Our own DCGM keeps to the facts that the collector must deal with; the real pydcgm asks it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from whorl.tests.dcgm_library import Bindings, DcgmEngine, DcgmLibrary, real_engine

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

    def close(self) -> None:
        self.handle.Shutdown()


@pytest.fixture
def client(engine: DcgmEngine) -> Iterator[Client]:
    engine.nvml.write("gpus 4", "model H100")
    engine.restart()
    client = Client(engine.bindings(), ipAddress=engine.address, timeoutMs=2000)
    yield client
    client.close()


def test_a_watched_field_is_sampled_until_it_is_read(client: Client) -> None:
    fields = client.fields(155, 156, 150, 54)
    client.watch(fields)
    time.sleep(10 * EVERY_US / 1e6)
    rows, after = client.read(fields)
    assert set(rows) == {(gpu, field) for gpu in client.gpus for field in (155, 156, 150, 54)}
    powers = rows[0, 155]
    assert len(powers) >= 5
    assert [row.ts for row in powers] == sorted({row.ts for row in powers})
    assert all(row.status == 0 and 50 < row.value < 800 for row in powers)
    attributes = client.system.discovery.GetGpuAttributes(0)
    assert rows[0, 54][0].value == attributes.identifiers.uuid
    assert all(row.ts < after for series in rows.values() for row in series)


def test_nothing_to_report_is_a_row_without_a_time_on_every_read(client: Client) -> None:
    fields = client.fields(230)
    client.watch(fields)
    for since in (0, 1):
        rows, _ = client.read(fields, since)
        assert rows[0, 230] == [Row(0, -14, BLANK_INT)]


def test_an_engine_that_is_gone_leaves_dead_handles(engine: DcgmEngine, client: Client) -> None:
    fields = client.fields(155)
    engine.restart()
    with pytest.raises(client.structs.DCGMError_ConnectionNotValid):
        client.read(fields)
    again = Client(engine.bindings(), ipAddress=engine.address, timeoutMs=2000)
    with pytest.raises(client.structs.DCGMError_NoData):
        again.read(fields)
    again.close()


def test_an_engine_in_this_process_samples_when_it_is_told_to(dcgm: DcgmLibrary) -> None:
    dcgm.nvml.write("gpus 2")
    client = Client(dcgm.bindings(), opMode=2)
    fields = client.fields(155, 156)
    client.group.samples.WatchFields(fields, 1000, 60, 100)
    for _ in range(5):
        client.system.UpdateAllFields(1)
        time.sleep(0.002)
    rows, _ = client.read(fields)
    assert {key: len(series) for key, series in rows.items()} == {(g, f): 5 for g in (0, 1) for f in (155, 156)}
    client.close()


@pytest.mark.real_dcgm
def test_a_real_engine_is_here() -> None:
    if real_engine() is None:
        pytest.skip("no nv-hostengine is installed: these tests ran over the simulated DCGM only")
