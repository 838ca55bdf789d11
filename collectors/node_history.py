"""What the store remembers of this node when a collector begins: GPUs, and jobs that had processes on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExpectedGpu:
    """A GPU that belongs on this node."""

    gpu: str
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class RunningJob:
    """An allocation that was running by the last record of an earlier collector; times are UTC, in ns."""

    allocation: str
    job_id: str
    began_ns: int
    seen_ns: int
    """The last reading of its GPUs before now: it was running then, as far as anybody knows."""
    shares: Mapping[str, float | None]
    """By GPU: the column `share`."""


class NodeHistory:
    """The memory of the store, read in a thread of its own; a collector begins without it.

    `read` gives the `expected` GPUs and the `running` jobs, each by the names of its fields.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any] | None]) -> None:
        self.expected: list[ExpectedGpu] = []
        self.running: list[RunningJob] = []
        self._read = read
        self._thread = threading.Thread(target=self._load, name="whorl-history", daemon=True)
        self._thread.start()

    @property
    def loading(self) -> bool:
        """Whether it is not known yet."""
        return self._thread.is_alive()

    def _load(self) -> None:
        try:
            history = self._read() or {}
        except StoreError as error:
            log.warning("what the store knows of this node could not be read: %s", error)
            return
        self.expected = [ExpectedGpu(**gpu) for gpu in history.get("expected", ())]
        self.running = [RunningJob(**job) for job in history.get("running", ())]
