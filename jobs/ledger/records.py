"""Keeps spans in a store, in a journal of this process: rows of `spans` for those that ended, and every few seconds a
row of `spans_open` for each that goes on, so that a process that is killed leaves what its spans had used."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...collectors.clock import Clock
from ...collectors.collect import open_store
from ...errors import StoreError
from ...store.journal import Journal
from ...store.names import this_cluster, this_node
from ...store.schema import texts_of
from ...store.system.locks import is_held
from .spans import Span, SpanEnergy

log = logging.getLogger(__name__)

_TOGETHER = 5_000  # rows in an append
_MOST = 200_000  # rows that wait for a store that cannot be written
_WRITERS = 1_000  # on a node

Row = dict[str, Any]


class SpanRecords:
    """The rows of this process's spans. Raises StoreError where there can be no store."""

    def __init__(self, store: str | Path, cluster: str | None, clock: Clock, process: str) -> None:
        self._clock = clock
        self._cluster = cluster or this_cluster()
        self._node = this_node()
        self._process = process
        self._job = os.environ.get("SLURM_JOB_ID")
        self._journal = _journal(open_store(str(store)), f"{self._node}.spans")
        self._rows: list[Row] = []
        self._failed = False
        self.gpus: list[str] | None = None
        self.dropped = 0
        """Spans that were not stored, as the store could not be written for long."""

    @property
    def is_full(self) -> bool:
        """Whether so many rows wait that they should be written soon."""
        return len(self._rows) >= _TOGETHER and not self._failed

    def row(self, span: Span, energy: SpanEnergy, own_j: float | None, *, until_ns: int) -> Row:
        """The row of a span until a time, ns on the steady clock."""
        shift_ns, began_ns = self._clock.wall() - self._clock.steady(), span.began_ns or until_ns
        return {
            "cluster": self._cluster,
            "span": span.id,
            "parent": span.parent_id,
            "trace_id": span.trace_id,
            "process": self._process,
            "within_parent": span.within is not None,
            "name": str(span.name),
            "attributes": texts_of(span.attributes) if span.attributes else None,
            "job_id": self._job if span.job is None else str(span.job),
            "node": self._node,
            "gpus": self.gpus,
            "began": began_ns + shift_ns,
            "ended": max(began_ns, until_ns) + shift_ns,
            "own_j": own_j,
            "energy_j": energy.energy_j,
            "low_j": energy.low_j,
            "high_j": energy.high_j,
            "measured": energy.measured,
            "method": energy.method,
            "reason": energy.reason,
            "error": span.error,
        }

    def add(self, span: Span, energy: SpanEnergy, own_j: float | None) -> None:
        """Store a span that ended, at the next `write`."""
        if len(self._rows) < _MOST:
            self._rows.append(self.row(span, energy, own_j, until_ns=span.ended_ns or 0))
        else:
            self.dropped += 1

    def write(self, open_rows: Sequence[Row]) -> None:
        """Store what waits, and how far the open spans are. If the store cannot be written, that is said once, and the
        rows go on waiting."""
        try:
            while self._rows:
                self._append(self._rows[:_TOGETHER], "spans")
                del self._rows[:_TOGETHER]
            if open_rows:
                self._append(open_rows, "spans_open")
        except Exception as error:  # whatever it is, the application goes on
            if not self._failed:
                log.warning("spans wait to be stored: %s", error)
            self._failed = True
        else:
            self._failed = False

    def _append(self, rows: Sequence[Row], table: str) -> None:
        self._journal.append_columns({name: [row[name] for row in rows] for name in rows[0]}, table)

    def abandon(self) -> None:
        """Let go of the journal in a child process after a fork: it is the parent's."""
        self._journal.abandon()

    def close(self) -> None:
        """Seal the journal. Raises StoreError."""
        if self.dropped:
            log.warning("%d spans were not stored, as the store could not be written", self.dropped)
        self._journal.close()


def _journal(root: Path, name: str) -> Journal:
    """A journal of this name, or with a number where other processes of the node have it. A dead process leaves its
    name, and its rows, to the next one. Raises StoreError."""
    for number in range(_WRITERS):
        numbered = f"{name}-{number}" if number else name
        lock = root / "journal" / f"{numbered}.lock"
        if is_held(lock) is False:
            try:
                return Journal(root, numbered)
            except StoreError:
                if is_held(lock) is False:
                    raise
    raise StoreError(f"{_WRITERS} processes of {name} write spans into {root}: let fewer processes store theirs")
