"""Where runs go: rows of `runs`, `results` and `events`, appended to a store a few seconds after they were made.

Runs are gathered for at most `LONGEST_S` or `MOST` runs; what a killed process loses is no more than that. All
tables of one append appear at once or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import StoreError
from ..store import signals
from ..store.conditions import read
from ..store.events import Event, event_rows
from ..store.outcomes import EndedBy, Outcome
from ..store.schema import arrow_schema
from .figures import Figure
from .watch import Window

if TYPE_CHECKING:
    from ..kernels.work import Facts
    from ..store import Store

LONGEST_S = 10.0
MOST = 64


@dataclass(frozen=True)
class Run:
    """One probe on one GPU, once, as it is stored; UTC ns."""

    gpu: str
    probe: str
    version: str
    began_ns: int
    ended_ns: int
    window: Window
    figures: Sequence[Figure]
    conditions: Mapping[str, object]
    versions: Mapping[str, str]
    ended_by: EndedBy
    status: Outcome
    status_detail: str | None = None
    """The same in a sentence; None where it is OK."""


class Recorder:
    """Gathers what a campaign found, and appends it to a store. Thread-safe."""

    def __init__(self, store: Store, *, cluster: str, campaign: str, most: int = MOST) -> None:
        self.store, self.cluster, self.campaign = store, cluster, campaign
        self.rows: dict[str, int] = {}
        """Rows stored, by table."""
        self._most = most
        self._job = os.environ.get("SLURM_JOB_ID")
        self._runs: list[Run] = []
        self._events: list[Event] = []
        self._tables: dict[str, list[pa.Table]] = {}
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._number = 0
        self._failure: StoreError | None = None

    def run(self, run: Run) -> None:
        """Take a run."""
        with self._lock:
            self._runs.append(run)

    def event(self, event: Event) -> None:
        """Take something that happened; it must have its time."""
        with self._lock:
            self._events.append(event)

    def take(self, name: str, rows: pa.Table) -> None:
        """Take rows of any table, to be stored with the next runs."""
        with self._lock:
            self._tables.setdefault(name, []).append(rows)

    @property
    def due(self) -> bool:
        """Whether what was gathered should be stored now."""
        return len(self._runs) >= self._most or time.monotonic() - self._since >= LONGEST_S

    def flush(self) -> None:
        """Store what was gathered. StoreError where that fails, and then at once whenever it is tried again.

        Ctrl-C waits until it is done: rows that were on their way to the disk would be stored twice otherwise.
        """
        if self._failure:
            raise self._failure
        with self._lock, signals.held((signal.SIGINT, signal.SIGTERM), once=True):
            runs, events, tables = self._runs, self._events, self._tables
            self._runs, self._events, self._tables = [], [], {}
            self._since = time.monotonic()
            made = {name: pa.concat_tables(parts) for name, parts in tables.items()}
            if runs:
                made |= self._run_rows(runs)
            if events:
                told = pa.Table.from_batches([event_rows(events, cluster=self.cluster)])
                known = made.get("events")
                made["events"] = told if known is None else pa.concat_tables([known, told], promote_options="default")
            made = {name: rows for name, rows in made.items() if len(rows)}
            if not made:
                return
            self._number += 1
            try:
                self.store.append(made, f"probe-{_hash(self.campaign)}-{time.time_ns()}-{os.getpid()}-{self._number}")
            except StoreError as error:
                self._failure = error
                raise
            for name, rows in made.items():
                self.rows[name] = self.rows.get(name, 0) + len(rows)

    # -- rows ---------------------------------------------------------------------------------------------

    def _run_rows(self, runs: Sequence[Run]) -> dict[str, pa.Table]:
        ids = [_hash([self.cluster, self.campaign, run.gpu, run.probe, run.began_ns]) for run in runs]
        n = len(runs)
        table = _table(
            "runs",
            {
                "run_id": ids,
                "cluster": [self.cluster] * n,
                "campaign": [self.campaign] * n,
                "workload": [run.probe for run in runs],
                "gpu": [run.gpu for run in runs],
                "job_id": [self._job] * n,
                "began": [run.began_ns for run in runs],
                "ended": [run.ended_ns for run in runs],
                "sm_clock_mhz": [run.window.sm_clock_mhz for run in runs],
                "mem_clock_mhz": [run.window.mem_clock_mhz for run in runs],
                "temperature_c": [run.window.temperature_c for run in runs],
                "power_w": [run.window.power_w for run in runs],
                "conditions": [json.dumps(dict(run.conditions)) for run in runs],
                "probe_version": [run.version for run in runs],
                "versions": [json.dumps(dict(run.versions), sort_keys=True) for run in runs],
                "clock_events": [_events_of(run.window) for run in runs],
                "ended_by": [run.ended_by for run in runs],
                "status": [run.status for run in runs],
                "status_detail": [run.status_detail for run in runs],
            },
        )
        columns: dict[str, list[object]] = {name: [] for name in ("run_id", "cluster", "workload", "gpu")}
        figures: list[Figure] = []
        for run_id, run in zip(ids, runs, strict=True):
            k = len(run.figures)
            for name, value in zip(columns, (run_id, self.cluster, run.probe, run.gpu), strict=True):
                columns[name] += [value] * k
            figures += run.figures
        results = _table(
            "results",
            {
                **columns,
                "repeat": [figure.repeat for figure in figures],
                "figure": [figure.name for figure in figures],
                "unit": [figure.unit for figure in figures],
                "value": [figure.value for figure in figures],
            },
        )
        return {"runs": table, "results": results}


def identity_rows(facts: Sequence[Facts], cluster: str, seen_ns: int) -> pa.Table:
    """What CUDA tells of GPUs as rows of `gpus`, where no driver tells more."""
    n = len(facts)
    return _table(
        "gpus",
        {
            "cluster": [cluster] * n,
            "gpu": [one.gpu for one in facts],
            "uuid": [one.gpu for one in facts],
            "node": [one.node for one in facts],
            "slot": [one.index for one in facts],
            "model": [one.model for one in facts],
            "sm_clock_max_mhz": [round(one.max_clock_mhz) for one in facts],
            "memory_total": [one.memory_bytes for one in facts],
            "first_seen": [seen_ns] * n,
        },
    )


def stored_runs(store: Store, cluster: str, campaign: str) -> dict[tuple[str, str], list[dict[str, object]]]:
    """The runs of a campaign that the store holds and that did not fail, by GPU and probe.

    Of each: its conditions, with the version of the probe beside them as `probe_version`.
    """
    from pyarrow import compute

    names = ["cluster", "campaign", "gpu", "workload", "probe_version", "conditions", "ended_by"]
    runs = store.arrow("runs", columns=names)
    mine = compute.and_(compute.equal(runs["campaign"], campaign), compute.equal(runs["cluster"], cluster))
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in runs.filter(mine).to_pylist():
        if row["ended_by"] != EndedBy.FAILED:
            conditions = dict(read(row["conditions"])) | {"probe_version": row["probe_version"]}
            found.setdefault((row["gpu"], row["workload"]), []).append(conditions)
    return found


def _events_of(window: Window) -> str | None:
    return None if window.clock_events is None else json.dumps(dict(window.clock_events))


def _table(name: str, columns: Mapping[str, Sequence[object]]) -> pa.Table:
    schema = arrow_schema(name)
    return pa.table({key: pa.array(values, schema.field(key).type) for key, values in columns.items()})


def _hash(what: object) -> str:
    """Sixteen digits that are the same for the same plain data."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
