"""Keeps spans in a store: rows of its table `spans`, written together every minute."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ...collectors.clock import Clock
from ...store import Store
from ...store.names import this_cluster, this_node
from ...store.schema import arrow_rows, texts_of
from .curve import WIDTH
from .figures import figure_of

if TYPE_CHECKING:
    import pyarrow as pa

    from .spans import Span

log = logging.getLogger(__name__)

_EVERY_S = 60.0
_TOGETHER = 20_000  # rows in a file
_MOST = 500_000  # rows that wait for a store that cannot be written


class Keeper:
    """What of the spans is to be stored. Raises StoreError where there can be no store."""

    def __init__(self, store: str | Path, cluster: str | None, clock: Clock) -> None:
        self._store = Store.create(store)
        self._cluster = cluster or this_cluster()
        self._clock = clock
        self._node = this_node()
        self._job = os.environ.get("SLURM_JOB_ID")
        self._spans: list[Span] = []
        self._begun: tuple[str, pa.Table] | None = None  # a file and its rows that may be stored or not: it failed
        self._flush_at = clock.steady() + 1e9 * _EVERY_S
        self._failed = False
        self.dropped = 0
        """Spans that were not stored, as the store could not be written for long."""

    def keep(self, span: Span) -> None:
        """Store a finished span at the next flush."""
        if len(self._spans) < _MOST:
            self._spans.append(span)
        else:
            self.dropped += 1

    def flush(self, *, all_of_it: bool = False) -> None:
        """Write what waits, if it is time to. A store that cannot be written is said once; the rows go on waiting."""
        now, many = self._clock.steady(), bool(self._spans) and len(self._spans) % _TOGETHER == 0
        if not (self._spans or self._begun) or not (all_of_it or now >= self._flush_at or many):
            return
        self._flush_at = now + 1e9 * _EVERY_S
        try:
            while self._begun or self._spans:
                if self._begun is None:
                    self._begun = f"spans-{self._node}-{uuid4().hex}", arrow_rows("spans", self._columns())
                    self._spans = []
                name, rows = self._begun
                self._store.append({"spans": rows}, name)
                self._begun = None
        except Exception as error:  # whatever it is, the application goes on
            if not self._failed:
                log.warning("spans wait to be stored: %s", error)
            self._failed = True
            return
        self._failed = False

    def _columns(self) -> dict[str, list[Any]]:
        shift = self._clock.wall() - self._clock.steady()
        rows = [self._row(span, shift) for span in self._spans]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, span: Span, shift_ns: int) -> dict[str, Any]:
        whole, own = figure_of(span, own=False), span.used
        if own is not None and span.used_inside is not None:
            own = own - span.used_inside
        assert span.book is not None
        assert span.began_ns is not None
        assert span.ended_ns is not None
        sensing = span.book.sensing
        return {
            "cluster": self._cluster,
            "span": span.id,
            "parent": span.parent_id,
            "within_parent": span.counted_within,
            "name": str(span.name),
            "attributes": texts_of(span.attributes) if span.attributes else None,
            "job_id": self._job if span.job is None else str(span.job),
            "node": self._node,
            "gpus": None if sensing is None else list(sensing.gpus),
            "began": span.began_ns + shift_ns,
            "ended": span.ended_ns + shift_ns,
            "own_j": None if own is None else float(own[:-1:WIDTH].sum()),
            "energy_j": whole.energy_j,
            "low_j": whole.low_j,
            "high_j": whole.high_j,
            "measured": whole.measured,
            "method": whole.method,
            "reason": whole.reason,
            "error": span.error,
        }
