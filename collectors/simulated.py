"""What a collector reads of simulated GPUs: who they are, their telemetry, and a backend without hardware."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from ..store.events import Event
from ..store.metrics import METRICS, ROW
from ..store.names import SIMULATED
from ..store.vocabulary import EventKind
from .backends import Commit, Device, Status, Sweep
from .rows import Columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from ..simulation.identity import Identity
    from ..simulation.models import GpuModel
    from ..simulation.stepping import Readings


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
            one.uuid,
            {
                "uuid": one.uuid,
                "place": one.place,
                "cabinet": f"c{one.cabinet:03d}",
                "node": one.host,
                "slot": one.device,
                "nvml_index": one.device,
                **({} if version is None else {"vbios": version}),
                **row,
            },
        )
        for one, version in zip(who, vbios or [None] * len(who), strict=True)
    ]


def telemetry_of(cluster: str, devices: Sequence[Device], chunk: Sequence[Readings]) -> pa.RecordBatch:
    """What a fleet's drivers reported at several times, as rows of `telemetry` by GPU and time."""
    metrics = [metric for metric in METRICS if metric.name in chunk[0].values]
    order = sorted(range(len(devices)), key=lambda gpu: devices[gpu].gpu)
    gpus = [(cluster, devices[gpu].gpu) for gpu in order for _ in chunk]
    values = np.empty((len(metrics), len(gpus)), np.int64)
    for to, metric in zip(values, metrics, strict=True):
        to[:] = np.array([one.values[metric.name] for one in chunk]).T[order].ravel()
    lost = np.array([one.lost for one in chunk]).T[order].ravel()
    stamps = np.tile(np.array([one.ts_ns for one in chunk], np.int64), len(devices))
    return Columns(metrics).ticks(gpus, stamps, values, ~lost).rows()


class Simulated:
    """A simulated node as a `Backend`: GPUs that run SGEMM for ten seconds and rest for ten.

    The simulated clock begins at the wall clock's time and goes on with the steady one. `node` makes the UUIDs of two
    nodes with the same seed differ.
    """

    name = "simulated"

    def __init__(self, *, gpus: int = 8, model: str = "H100", seed: int = 1, node: str = "local") -> None:
        self._gpus, self._model, self._seed, self._node = gpus, model, seed, node
        self.period_ms: int | None = None
        self._devices: list[Device] = []

    def open(self) -> None:
        """Draw the GPUs. Raises InputError for an unknown model or no GPU."""
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
        shape = (len(METRICS), self._gpus)
        self._values = np.zeros(shape, np.int64)
        self._status: NDArray[np.uint8] = np.full(shape, Status.UNREAD, np.uint8)
        self._tier = np.zeros(self._gpus, np.uint8)
        self._slow_rows = np.array([metric.tier == "slow" for metric in METRICS])

    def _uuid(self, model: str, index: int) -> str:
        digest = sha256(f"whorl simulated node {self._node} {model} {self._seed} {index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def _now(self) -> int:
        return time.monotonic_ns() + self._offset

    def devices(self) -> Sequence[Device]:
        return self._devices

    def read(self, device: int, *, slow: bool) -> None:
        self._tier[device] = 2 if slow else 1

    def sweep(self, stamps: list[int]) -> Sweep:  # noqa: ARG002 - its clock is the simulation's
        """What the simulated drivers report now; see `Backend.sweep`."""
        self._simulation.advance(max(self._now(), self._simulation.now_ns))
        readings = self._simulation.readings()
        self._status[:] = Status.UNSUPPORTED
        for column, values in readings.values.items():
            row = ROW.get(column)
            if row is not None:
                self._values[row] = values
                self._status[row] = Status.OK
        self._status[:, readings.lost] = Status.LOST
        self._status[:, self._tier == 0] = Status.UNREAD
        self._status[np.ix_(self._slow_rows, self._tier == 1)] = Status.UNREAD
        self._tier[:] = 0
        return Sweep(self._values, self._status)

    def happened(self) -> list[Event]:
        # That a GPU is lost, the readings say themselves.
        return [
            Event(one.kind, self._devices[one.gpu].gpu, one.detail, one.ts_ns, code=one.code)
            for one in self._simulation.happened()
            if one.kind != EventKind.LOST
        ]

    def look_again(self, passed_over: frozenset[int], commit: Commit) -> list[Event]:  # noqa: ARG002 - none comes
        return []

    def lose(self, device: int) -> None:
        pass  # a simulated GPU that returns is simply there

    def close(self) -> None:
        pass
