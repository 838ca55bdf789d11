"""The node on which probes run: its telemetry meanwhile, and other processes on its GPUs.

The watch reads this node's GPUs through NVML in a thread of its own, as `whorl collect` does, while the kernels run. It
costs them next to nothing: one thread makes the calls, which wait in C without Python's lock, ten times a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..collectors.collect import open_backend
from ..collectors.recording import StoreRecorder
from ..collectors.sampler import Sampler, Sampling
from ..errors import DeviceError, StoreError
from ..store.names import this_host
from ..store.system.locks import is_held

if TYPE_CHECKING:
    from ..collectors.backend import Device as Read
    from ..kernels.device import Device
    from ..store import Store
    from ..store.journal import Journal
    from ..store.journal_file import Ticks

_FIRST_S = 10.0  # the first reading of a GPU can take seconds
_LAST_S = 10.0
_SLOW_S = 5.0  # looking for GPUs that come and go takes longer than reading those that are there


class _Recorder:
    """A `Recorder` that gives telemetry to the probes' watch, and stores everything as long as the store accepts it."""

    def __init__(self, feed: Callable[[Ticks], None], into: StoreRecorder | None) -> None:
        self._feed, self._into = feed, into
        self.failure: StoreError | None = None
        self.fed = threading.Event()

    def append(self, ticks: Ticks) -> None:
        self._feed(ticks)
        self.fed.set()
        self._store(lambda into: into.append(ticks))

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        self._store(lambda into: into.append_rows(columns, table))

    def identify(self, devices: Sequence[Read], seen_ns: int) -> None:
        self._store(lambda into: into.identify(devices, seen_ns))

    def _store(self, write: Callable[[StoreRecorder], None]) -> None:
        """Once the store failed, readings are for the probes alone: what they measure must not end with it."""
        if self._into is None or self.failure is not None:
            return
        try:
            write(self._into)
        except StoreError as error:
            self.failure = error


class NodeWatch:
    """Telemetry of this node's GPUs while a block runs: to `feed`, tick by tick, and into a store.

    `feed` gets readings (all metrics or the fast ones), called from another thread. `interval_s` is the time
    between readings. Without a store, or where `whorl collect` writes this node's telemetry into it already, nothing
    is stored here; `notes` says so. Entering raises InputError where the driver cannot be reached. Leaving raises
    `failure`, the StoreError for which storing stopped in the middle, unless another error is on its way.
    """

    def __init__(
        self,
        feed: Callable[[Ticks], None],
        store: Store | None,
        *,
        node: str,
        cluster: str = "local",
        interval_s: float = 0.1,
    ) -> None:
        self.notes: list[str] = []
        self._feed, self._store = feed, store
        self._node, self._cluster, self._interval_s = node, cluster, interval_s
        self._stop = threading.Event()
        self._crash: BaseException | None = None

    @property
    def failure(self) -> StoreError | None:
        """Why the store takes no telemetry any more; None while it does."""
        return self._recorder.failure

    def pace(self, interval_s: float) -> None:
        """Read every so many seconds from now on."""
        self._sampler.pace(interval_s)

    def telemetry_of(self, gpu: str) -> str | None:
        """The UUID whose telemetry tells of a CUDA device: for a MIG instance, which has no power and no clock of its
        own, that of the whole GPU. None where NVML does not show the device."""
        for device in self._sampler.devices:
            if device.gpu.lower() == gpu.lower():
                return device.parent or device.gpu
        return None

    def __enter__(self) -> NodeWatch:
        opened = open_backend("nvml", {})
        assert opened is not None
        backend, devices = opened
        self._journal: Journal | None = None
        try:
            self._journal = self._open_journal()
            into = None
            if self._store is not None and self._journal is not None:
                into = StoreRecorder(self._store.root, self._journal, cluster=self._cluster, node=self._node)
            self._recorder = _Recorder(self._feed, into)
            sampling = Sampling(self._interval_s, self._cluster, self._node, slow_s=max(_SLOW_S, self._interval_s))
            self._sampler = Sampler(backend, self._recorder, sampling, devices=devices)
            self._thread = threading.Thread(target=self._sample, name="whorl-watch", daemon=True)
            self._thread.start()
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            backend.close()
            raise
        last = time.monotonic() + _FIRST_S
        while not self._recorder.fed.wait(0.1) and self._thread.is_alive() and time.monotonic() < last:
            pass
        if self._crash is not None:
            self.__exit__(None)
        return self

    def _open_journal(self) -> Journal | None:
        """A journal beside that of this node's collector, which must not find its own name taken."""
        if self._store is None:
            return None
        if any(is_held(_lock_of(self._store, name)) is not False for name in (self._node, this_host())):
            self.notes.append(
                f"whorl collect writes the telemetry of {self._node} into this store; the probes' own readings are not "
                f"stored beside it"
            )
            return None
        return self._store.journal(free_name(self._store, f"{self._node}.probes"))

    def _sample(self) -> None:
        try:
            self._sampler.run(ended=self._stop.is_set)
        except BaseException as error:  # told when the block ends
            self._crash = error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_S)
        failure: BaseException | None = self._recorder.failure or self._crash
        if self._journal is not None and not self._sampler.waiting_for_store:
            try:
                self._journal.close()
            except StoreError as error:
                failure = failure or error
        if not self._sampler.stuck_in and not self._thread.is_alive():  # a hanging driver may keep us for ever
            self._sampler.close()
        if failure is not None and kind is None:
            raise failure


def free_name(store: Store, name: str) -> str:
    """This name for a journal, or another where probes on the node's other GPUs have it."""
    return name if is_held(_lock_of(store, name)) is False else f"{name}-{os.getpid()}"


def _lock_of(store: Store, journal: str) -> Path:
    return store.root / "journal" / f"{journal}.lock"


def refuse_shared(devices: Sequence[Device]) -> None:
    """Raises DeviceError where a device is not known to be this process's alone; it names who else is there."""
    for device in devices:
        others = device.others()
        if others:
            raise DeviceError(
                f"{device.facts.gpu}: exclusive needs a GPU that no other process uses: "
                f"{', '.join(others)}; end the other processes, or measure without exclusive"
            )
