"""What a collector for one job reads and tells: the job's GPUs alone, and a summary of them.

Where a job starts a collector in each of its tasks, the tasks of a node may have GPUs of their own or share them. Each
GPU is read by one of them: the one that holds the lock of the GPU in the job's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..collectors.backend import Backend, Device
from ..errors import StoreError
from ..store.events import Event
from ..store.names import gpu_name
from ..store.system import files
from ..store.system.locks import JOURNALS, Lock, locked
from .allocation import job_gpus
from .job_summary import GpuSummary, JobSums

if TYPE_CHECKING:
    from ..collectors.backend import Reading
    from ..collectors.sampler import Recorder
    from ..store.journal_file import Ticks


class GpusTakenError(StoreError):
    """Other collectors of this job read all of its GPUs here."""


class JobPart:
    """The GPUs of this job on this node that this process reads, and their sums so far."""

    def __init__(self, node: str) -> None:
        self.devices: list[Device] = []
        self.note: str | None = None
        """What the job's variables say that is not so; None: nothing."""
        self.sums = JobSums()
        self._node = node
        self._locks: list[Lock] = []

    def choose(self, backend: Backend) -> Backend:
        """What a backend shows of these GPUs."""
        return JobBackend(backend, self)

    def among(self, devices: Sequence[Device]) -> list[Device]:
        """Those of a node's devices that are of the part; the first call chooses them. Raises InputError as
        `job_gpus`."""
        if not self.devices:
            self.devices, self.note = job_gpus(devices)
        gpus = {device.gpu for device in self.devices}
        return [device for device in devices if device.gpu in gpus]

    def claim(self, root: Path, devices: Sequence[Device]) -> list[Device]:
        """Leave out the GPUs that other collectors read into the same store.

        Raises GpusTakenError where none is left, and StoreError where the store cannot be written.
        """
        folder = root / JOURNALS
        try:
            files.make_folder(folder)
        except OSError as error:
            raise files.failed("make", folder, error) from error
        self.devices = [device for device in devices if self._take(folder, device)]
        if not self.devices:
            raise GpusTakenError("another collector of this job reads its GPUs on this node")
        return self.devices

    def _take(self, folder: Path, device: Device) -> bool:
        try:
            self._locks.append(locked(folder / f"{device.gpu}.gpu.lock", f"the GPU {device.gpu}"))
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return False
        return True

    @property
    def journal(self) -> str:
        """The name of the journal: the node's with the first GPU, as each GPU has one reader. Where the scheduler hides
        GPUs, each task may count its own from 0."""
        return f"{self._node}.{self.devices[0].gpu}"

    def recorder(self, recorder: Recorder) -> Recorder:
        """A recorder that also adds up."""
        return JobRecorder(recorder, self.sums)

    def summaries(self) -> list[GpuSummary]:
        """The summary of each GPU so far, in the driver's order."""
        parents = {device.parent for device in self.devices}
        return [
            self.sums.of(device.gpu, device.row.get("model")).summary(
                device.gpu,
                name=gpu_name(device.gpu, self._node, device.row.get("slot")),
                node=self._node,
                shared=device.gpu in parents,
            )
            for device in self.devices
            if device.parent is None
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.release()


class JobBackend(Backend):
    """What another backend shows of a job's GPUs."""

    def __init__(self, backend: Backend, part: JobPart) -> None:
        self.name, self.one_by_one = backend.name, backend.one_by_one  # type: ignore[misc]
        self._backend, self._part = backend, part

    def devices(self) -> list[Device]:
        """As `Backend.devices`; raises as `JobPart.among` too."""
        devices = self._backend.devices()
        self.period_ms = self._backend.period_ms
        return self._part.among(devices)

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        """As `Backend.read`; events of other GPUs are left out."""
        known = {None, *gpus, *(device.gpu for device in self._part.devices)}
        for entry in self._backend.read(gpus, slow=slow):
            if not isinstance(entry, Event) or entry.gpu in known:
                yield entry

    def close(self) -> list[Event]:
        """As `Backend.close`."""
        return self._backend.close()


class JobRecorder:
    """Another recorder, with what it records added up."""

    def __init__(self, recorder: Recorder, sums: JobSums) -> None:
        self._recorder, self._sums = recorder, sums

    def append(self, ticks: Ticks) -> None:
        """Readings."""
        self._recorder.append(ticks)
        self._sums.add(ticks)

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        """Rows of another table."""
        self._recorder.append_rows(columns, table)
        for kind, gpu in zip(columns["kind"], columns["gpu"], strict=True) if table == "events" else ():
            self._sums.note(kind, gpu)

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
        """Who the devices are."""
        self._recorder.identify(devices, seen_ns)
