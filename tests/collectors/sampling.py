"""A sampler that runs beside a test, over the real bindings, and what it has recorded so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from whorl.collectors.backend import Backend, Device
from whorl.collectors.nvml import Nvml
from whorl.collectors.sampler import Counts, Sampler, Sampling
from whorl.store.journal_file import Ticks
from whorl.store.schema import arrow_rows
from whorl.tests.stores import rows_of_ticks

PATIENCE_S = 20.0
BUSY = {"missed_ticks", "hung", "answers_again"}
"""What a sampler also tells where the machine keeps it waiting."""


@dataclass
class Turned:
    """Clocks that a test turns: sleeping takes no time."""

    now: int = 1_000_000_000
    offset: int = 1_790_000_000_000_000_000
    asleep: int = 0
    plans: list[tuple[int, str, int]] = field(default_factory=list)  # steady ns, what, ns

    def steady(self) -> int:
        return self.now

    def wall(self) -> int:
        return self.now + self.offset + self.asleep

    def boot(self) -> int:
        return self.now + self.asleep

    def sleep(self, ns: int) -> None:
        self.now += ns
        while self.plans and self.plans[0][0] <= self.now:
            _, what, by = self.plans.pop(0)
            if what == "set":
                self.offset += by
            elif what == "suspend":
                self.asleep += by
            else:
                self.now += by  # the process was held up


class Kept:
    """A recorder that keeps what it is given in memory."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.told: list[pa.RecordBatch] = []
        self.identities: list[list[Device]] = []

    def append(self, ticks: Ticks) -> None:
        self.batches.append(rows_of_ticks(ticks))

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        assert table == "events"
        self.told += arrow_rows(table, columns).to_batches()

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
        self.identities.append(list(devices))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows; metrics that a tick did not read are missing."""
        return [{"quality": None} | row for batch in list(self.batches) for row in as_rows(batch)]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [row for batch in list(self.told) for row in as_rows(batch)]

    def kinds(self, gpu: str | None = None) -> list[str]:
        """The kinds of events, of one GPU if asked, in order."""
        return [event["kind"] for event in self.events if gpu is None or event["gpu"] == gpu]

    def detail(self, kind: str) -> str:
        """What the only event of a kind says."""
        (found,) = [event["detail"] for event in self.events if event["kind"] == kind]
        return str(found)

    def of(self, gpu: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["gpu"] == gpu]


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a batch, `ts` in ns."""
    at = batch.schema.get_field_index("ts")
    nanoseconds = batch.column(at).cast(pa.timestamp("ns")).cast(pa.int64())
    return list(batch.set_column(at, "ts", nanoseconds).to_pylist())


class Running:
    """A sampler in a thread of its own."""

    def __init__(self, kept: Kept, sampler: Sampler, duration_s: float | None = None) -> None:
        self.kept, self.sampler = kept, sampler
        self.gpus = [device.gpu for device in sampler.devices]
        self.counts: Counts | None = None
        self.failure: BaseException | None = None
        self._end = False
        self._thread = threading.Thread(target=self._run, args=(duration_s,))
        self._thread.start()

    def _run(self, duration_s: float | None) -> None:
        try:
            self.counts = self.sampler.run(duration_s, ended=lambda: self._end)
        except BaseException as error:
            self.failure = error

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that must come to pass."""
        last = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < last, f"it did not come to pass; events: {self.kept.events}"
            assert self._thread.is_alive(), f"the sampler ended: {self.failure!r}"
            time.sleep(0.01)

    def ticks(self, number: int) -> None:
        """Wait for further ticks."""
        there = len(self.kept.batches)
        self.until(lambda: len(self.kept.batches) >= there + number)

    def end(self) -> None:
        self._end = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def sampler_of(backend: Backend, kept: Kept, **more: Any) -> Sampler:
    """A sampler of cluster "c" and node "n", by default every 20 ms; `more` are fields of `Sampling`, or `fresh`."""
    beside = {name: more.pop(name) for name in ("fresh", "asides", "devices") if name in more}
    given: dict[str, Any] = {"interval_s": 0.02, "slow_s": 0.2, "cluster": "c", "node": "n"} | more
    return Sampler(backend, kept, Sampling(**given), **beside)


@contextmanager
def sampling(backend: Backend | None = None, *, duration_s: float | None = None, **more: Any) -> Iterator[Running]:
    """Sample until the block ends, by default NVML every 20 ms."""
    kept = Kept()
    running = Running(kept, sampler_of(backend or Nvml(), kept, **more), duration_s)
    try:
        yield running
    finally:
        running.end()
        running.sampler.close()
    if running.failure is not None:
        raise running.failure
