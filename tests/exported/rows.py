"""Rows of telemetry that tests choose, written by a real journal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from whorl.dashboards.exported.exporter import LIMITS, PATH, Exporter, application, page
from whorl.dashboards.exported.series import UNITS, Kind, Series, stem
from whorl.dashboards.serving import Limits, Server
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.metrics import METRICS, Metric
from whorl.store.schema import arrow_rows

SECOND = 1_000_000_000
EVERY = {metric.name: 1000 + row for row, metric in enumerate(METRICS)}
"""A value of every metric, each another one."""


def spelled(metric: Metric) -> str:
    """The name of a metric's series in Prometheus."""
    kind: Kind = "counter" if metric.kind == "counter" else "gauge"
    return Series(stem(metric), UNITS[metric.unit], kind, "", (), (), ()).prometheus


def batch(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of the same columns; cluster "c" where they name none."""
    full_rows = [{"cluster": "c"} | dict(row) for row in rows]
    names = list(full_rows[0])
    table = arrow_rows("telemetry", {name: [row[name] for row in full_rows] for name in names})
    return table.combine_chunks().to_batches()[0]


@contextmanager
def journal_of(store: Store, name: str = "n1") -> Iterator[Journal]:
    """A journal without a thread: it seals when the test says so."""
    with store.journal(name, background=False, offline=True) as journal:
        yield journal


def ago(seconds: float) -> int:
    """That long ago, ns."""
    return time.time_ns() - int(seconds * SECOND)


def metrics_server(exporter: Exporter, limits: Limits = LIMITS) -> Server:
    """The page of an exporter at a free port, as `whorl export prometheus` serves it."""
    return Server(application(lambda: page(exporter.series())), "127.0.0.1", 0, limits, path=PATH)
