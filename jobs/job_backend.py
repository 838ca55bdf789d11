"""A backend that shows only the GPUs of the job in which it runs, and of these only those that no other task reads.

Where a job starts a collector in each of its tasks, the tasks of a node may have GPUs of their own or share them. Each
GPU is read by one of them: the one that holds the lock of the GPU in the job's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..collectors.backend import Backend, Device
from ..errors import StoreError
from ..store.events import Event
from ..store.system.locks import JOURNALS, Lock, locked
from .allocation import job_gpus

if TYPE_CHECKING:
    from ..collectors.backend import Reading


class TakenError(StoreError):
    """Other collectors of this job read all of its GPUs here."""


class JobGpus:
    """The GPUs of this job that this process reads, with their locks in the job's store, the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.devices: list[Device] = []
        self.note: str | None = None
        """What the job's variables say that is not so; None: nothing."""
        self._root = root
        self._locks: list[Lock] = []

    def among(self, devices: Sequence[Device]) -> list[Device]:
        """Those of a node's devices that are read; the first call chooses them.

        Raises InputError as `job_gpus`, TakenError, and StoreError where a lock cannot be written.
        """
        if not self.devices:
            chosen, self.note = job_gpus(devices)
            self.devices = [device for device in chosen if self._take(device)]
            if not self.devices:
                raise TakenError("another collector of this job reads its GPUs on this node")
        gpus = {device.gpu for device in self.devices}
        return [device for device in devices if device.gpu in gpus or device.parent in gpus]

    def _take(self, device: Device) -> bool:
        try:
            self._locks.append(locked(self._root / JOURNALS / f"{device.gpu}.gpu.lock", f"the GPU {device.gpu}"))
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.release()


class JobBackend(Backend):
    """What another backend shows of these GPUs."""

    def __init__(self, backend: Backend, gpus: JobGpus) -> None:
        self.name, self.one_by_one = backend.name, backend.one_by_one  # type: ignore[misc]
        self._backend, self._gpus = backend, gpus

    def devices(self) -> list[Device]:
        """As `Backend.devices`; raises as `JobGpus.among` too."""
        devices = self._backend.devices()
        self.period_ms = self._backend.period_ms
        return self._gpus.among(devices)

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        """As `Backend.read`; events of other GPUs are left out."""
        known = {*gpus, *(device.gpu for device in self._gpus.devices), None}
        for entry in self._backend.read(gpus, slow=slow):
            if not isinstance(entry, Event) or entry.gpu in known:
                yield entry

    def close(self) -> list[Event]:
        """As `Backend.close`."""
        return self._backend.close()
