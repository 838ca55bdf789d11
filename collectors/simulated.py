"""What a collector reads of simulated GPUs: who they are, their telemetry, and a backend without hardware."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..store.events import Event
from ..store.metrics import FAST, METRICS
from ..store.names import SIMULATED
from ..store.schema import TELEMETRY, arrow_rows, arrow_schema
from ..store.vocabulary import EventKind, PowerMeter, PowerOf
from .backend import Backend, Device, Reading, Status

if TYPE_CHECKING:
    import pyarrow as pa

    from ..simulation.cluster import Identity
    from ..simulation.models import GpuModel
    from ..simulation.nodes import NodeReadings
    from ..simulation.stepping import Readings
    from .node_power import PowerReading

_LOST = bytes([Status.LOST]) * len(METRICS)


def described(model: GpuModel) -> dict[str, Any]:
    """What the driver says of a simulated GPU of a model, by column of `gpus`."""
    limit_mw = round(1000 * model.power_limit_w)
    return {
        "model": model.name,
        "driver": SIMULATED,
        "power_limit_mw": limit_mw,
        "power_limit_default_mw": limit_mw,
        "power_limit_min_mw": round(1000 * model.min_power_limit_w),
        "power_limit_max_mw": limit_mw,
        "sm_clock_max_mhz": int(model.max_clock_mhz),
        "mem_clock_max_mhz": int(model.memory_clock_mhz),
        "temperature_max_operating_c": int(model.max_operating_c),
        "temperature_slowdown_c": int(model.slowdown_c),
        "temperature_shutdown_c": int(model.shutdown_c),
        "memory_total": model.memory_gb << 30,
    }


def devices_of(model: GpuModel, who: Sequence[Identity], vbios: Sequence[str | None] | None = None) -> list[Device]:
    """The GPUs of a simulated fleet, in order, with their VBIOS where it is known."""
    row = described(model)
    return [
        Device(
            identity.uuid,
            {
                "uuid": identity.uuid,
                "place": identity.place,
                "cabinet": f"c{identity.cabinet:03d}",
                "node": identity.host,
                "slot": identity.device,
                "nvml_index": identity.device,
                **({} if version is None else {"vbios": version}),
                **row,
            },
        )
        for identity, version in zip(who, vbios or [None] * len(who), strict=True)
    ]


def telemetry_of(cluster: str, devices: Sequence[Device], chunk: Sequence[Readings]) -> pa.RecordBatch:
    """What a fleet's drivers reported at several times, as rows of `telemetry` by GPU and time."""
    import numpy as np
    import pyarrow as pa

    order = sorted(range(len(devices)), key=lambda gpu: devices[gpu].gpu)
    keys = pa.array([devices[gpu].gpu for gpu in order]).take(pa.array(np.repeat(np.arange(len(order)), len(chunk))))
    lost = np.array([readings.lost for readings in chunk]).T[order].ravel()
    stamps = np.tile(np.array([readings.ts_ns for readings in chunk], np.int64) // 1000, len(devices))
    columns = {
        "ts": pa.array(stamps, arrow_schema(TELEMETRY.name).field("ts").type),
        "cluster": pa.array([cluster] * len(keys)),
        "gpu": keys,
    }
    for metric in METRICS:
        if metric.name in chunk[0].values:
            values = np.array([readings.values[metric.name] for readings in chunk], np.int64).T[order].ravel()
            columns[metric.name] = pa.array(values, mask=lost)
    return pa.RecordBatch.from_pydict(columns)


def node_power_of(cluster: str, nodes: Sequence[str], chunk: Sequence[NodeReadings]) -> pa.Table:
    """What the meters of a fleet's nodes showed at several times, as rows of `node_power`."""
    import numpy as np
    import pyarrow as pa

    from ..simulation.nodes import WINDOW_MS

    rows = len(nodes) * len(chunk)
    common = {
        "cluster": [cluster] * rows,
        "node": list(nodes) * len(chunk),
        "ts": np.repeat([readings.ts_ns for readings in chunk], len(nodes)),
    }
    wall_mw = np.concatenate([readings.wall_mw for readings in chunk])
    at_wall = {"source": [PowerMeter.SIMULATED] * rows, "covers": [PowerOf.NODE_WALL] * rows}
    at_wall |= {"power_mw": wall_mw, "window_ms": [WINDOW_MS] * rows}
    cpu_mj = np.concatenate([readings.cpu_mj for readings in chunk])
    of_cpus = {"source": [PowerMeter.RAPL] * rows, "covers": [PowerOf.CPU] * rows, "energy_mj": cpu_mj}
    tables = [arrow_rows("node_power", common | columns) for columns in (at_wall, of_cpus)]
    return pa.concat_tables(tables, promote_options="default")


class Simulated(Backend):
    """A simulated node: GPUs that run SGEMM for ten seconds and rest for ten.

    The simulated clock begins at the wall clock's time and goes on with the steady one. `node` makes the UUIDs of two
    nodes with the same seed differ.
    """

    name = "simulated"

    def __init__(self, *, gpus: int = 8, model: str = "H100", seed: int = 1, node: str = "local") -> None:
        self._gpus, self._model, self._seed, self._node = gpus, model, seed, node
        self._devices: list[Device] = []
        self._places: dict[str, int] = {}
        self._statuses: dict[bool, bytes] = {}  # by whether the slow metrics are read
        self.node_readings: NodeReadings | None = None
        """What the meters of the fleet's nodes showed when the slow metrics were last read."""

    def devices(self) -> list[Device]:
        """The GPUs, drawn at the first call. Raises InputError for an unknown model or no GPU."""
        if not self._devices:
            self._draw()
        return self._devices

    def _draw(self) -> None:
        from ..simulation.fleet import Fleet
        from ..simulation.load import find_load
        from ..simulation.models import find_model
        from ..simulation.stepping import Simulation

        model = find_model(self._model)
        fleet = Fleet.draw(model, self._gpus, self._seed, faults=0)
        self._offset = time.time_ns() - time.monotonic_ns()
        self._simulation = Simulation(fleet, find_load("square"), began_ns=self._now())
        self.period_ms = self._simulation.sensors.instant_period_ms
        row = described(model)
        for index in range(self._gpus):
            uuid = self._uuid(model.name, index)
            self._devices.append(Device(uuid, {"uuid": uuid, "slot": index, "nvml_index": index, **row}))
        self._places = {device.gpu: place for place, device in enumerate(self._devices)}

    def _uuid(self, model: str, index: int) -> str:
        digest = sha256(f"whorl simulated node {self._node} {model} {self._seed} {index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def _now(self) -> int:
        return time.monotonic_ns() + self._offset

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        """What the simulated drivers report now; see `Backend.read`."""
        self._simulation.advance(max(self._now(), self._simulation.now_ns))
        report = self._simulation.readings()
        if slow:
            self.node_readings = self._simulation.node_readings()
        if slow not in self._statuses:
            self._statuses[slow] = bytes(
                Status.OK if metric.name in report.values and (slow or metric.tier == "fast") else Status.UNREAD
                for metric in METRICS
            )
        nothing = [0] * self._gpus
        columns = [
            report.values[METRICS[row].name].tolist() if METRICS[row].name in report.values else nothing
            for row in (range(len(METRICS)) if slow else FAST)
        ]
        values, lost = list(zip(*columns, strict=True)), report.lost.tolist()
        for gpu in gpus:
            place = self._places[gpu]
            yield Reading(gpu, values[place], _LOST if lost[place] else self._statuses[slow])
        for news in self._simulation.happened():
            if news.kind != EventKind.LOST:  # that a GPU is lost, the readings say themselves
                yield Event(news.kind, self._devices[news.gpu].gpu, news.detail, news.ts_ns, code=news.code)


class SimulatedMeter:
    """The meters of a simulated node, as the backend showed them last: the sum of those of its fleet."""

    reason: str | None = None

    def __init__(self, backend: Simulated) -> None:
        self._backend = backend

    def read(self) -> list[PowerReading]:
        """Power at the wall and the counter of the CPUs; nothing where the backend has not been read since."""
        from ..simulation.nodes import WINDOW_MS
        from .node_power import PowerReading

        readings, self._backend.node_readings = self._backend.node_readings, None
        if readings is None:
            return []
        wall_mw, cpu_mj = int(readings.wall_mw.sum()), int(readings.cpu_mj.sum())
        return [
            PowerReading(readings.ts_ns, PowerMeter.SIMULATED, PowerOf.NODE_WALL, None, wall_mw, WINDOW_MS),
            PowerReading(readings.ts_ns, PowerMeter.RAPL, PowerOf.CPU, energy_mj=cpu_mj),
        ]
