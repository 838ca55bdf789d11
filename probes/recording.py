"""Stores runs: rows of `runs`, `results` and `events`, appended a few seconds after they were made.

Runs are gathered for at most `LONGEST_S` or `MOST` runs; what a killed process loses is no more than that. All
tables of one append appear at once or not at all.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ..collectors.backend import Device
from ..collectors.recording import short_hash
from ..errors import StoreError
from ..store.events import Event, event_rows
from ..store.schema import arrow_rows
from ..store.system import signals
from ..store.vocabulary import EndedBy, Outcome
from .figures import Figure
from .watch import Window

if TYPE_CHECKING:
    from ..kernels.work import Facts
    from ..store import Store
    from ..store.journal import Journal

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

    def __init__(
        self, store: Store | None, *, cluster: str, campaign: str, most: int = MOST, journal: Journal | None = None
    ) -> None:
        """Rows go into the `journal` if one is given, which makes one file of them when it ends, else into files.

        Without a store what was gathered is to be dropped (`forget`).
        """
        self._journal = journal
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
        self.ended_ns = 0
        """When the last of the runs ended that it was given; UTC."""
        self._number = 0
        self._failure: StoreError | None = None

    def run(self, run: Run) -> None:
        """Take a run."""
        with self._lock:
            self._runs.append(run)
            self.ended_ns = max(self.ended_ns, run.ended_ns)

    def event(self, event: Event) -> None:
        """Take something that happened; it must have its time."""
        with self._lock:
            self._events.append(replace(event, campaign=self.campaign, job_id=self._job))

    def take(self, name: str, rows: pa.Table) -> None:
        """Take rows of any table, to be stored with the next runs."""
        with self._lock:
            self._tables.setdefault(name, []).append(rows)

    @property
    def full(self) -> bool:
        """Whether so many runs were gathered that they should be stored now."""
        return len(self._runs) >= self._most

    @property
    def due(self) -> bool:
        """Whether what was gathered should be stored now."""
        return self.full or time.monotonic() - self._since >= LONGEST_S

    @property
    def gathered(self) -> tuple[int, int]:
        """How many runs and events were gathered."""
        return len(self._runs), len(self._events)

    def forget(self, beyond: tuple[int, int] = (0, 0)) -> None:
        """Drop what was gathered, all of it or the runs and events that came after an earlier `gathered`."""
        with self._lock:
            del self._runs[beyond[0] :], self._events[beyond[1] :]
            self._tables.clear()

    def flush(self, name: str | None = None) -> None:
        """Store what was gathered. StoreError where that fails, and then at once whenever it is tried again.

        `name` names the files, and is unique to the content. Ctrl-C waits until it is done: rows that were on their
        way to the disk would be stored twice otherwise.
        """
        if self._failure:
            raise self._failure
        with self._lock, signals.held((signal.SIGINT, signal.SIGTERM), once=True):
            runs, events, tables = self._runs, self._events, self._tables
            self._runs, self._events, self._tables = [], [], {}
            self._since = time.monotonic()
            rows_of_table = {name: pa.concat_tables(parts) for name, parts in tables.items()}
            if runs:
                rows_of_table |= self._run_rows(runs)
            if events:
                new = pa.Table.from_batches([event_rows(events, cluster=self.cluster)])
                events_gathered = rows_of_table.get("events")
                rows_of_table["events"] = (
                    new
                    if events_gathered is None
                    else pa.concat_tables([events_gathered, new], promote_options="default")
                )
            rows_of_table = {name: rows for name, rows in rows_of_table.items() if len(rows)}
            if not rows_of_table:
                return
            self._number += 1
            try:
                self._append(rows_of_table, name)
            except StoreError as error:
                self._failure = error
                raise
            for name, rows in rows_of_table.items():
                self.rows[name] = self.rows.get(name, 0) + len(rows)

    def _append(self, rows: Mapping[str, pa.Table], name: str | None) -> None:
        if self._journal is None:
            assert self.store is not None, "a recorder without a store is not flushed"
            own = f"probe-{short_hash(self.campaign)}-{time.time_ns()}-{os.getpid()}-{self._number}"
            self.store.append(rows, name or own)
            return
        for table in sorted(rows, key=lambda table: table == "runs"):  # a run that is seen has its results
            for batch in rows[table].combine_chunks().to_batches():
                self._journal.append_batch(batch, table)

    # -- rows ---------------------------------------------------------------------------------------------

    def _run_rows(self, runs: Sequence[Run]) -> dict[str, pa.Table]:
        n, figures = len(runs), [figure for run in runs for figure in run.figures]
        columns = {
            "run_id": [short_hash([self.cluster, self.campaign, run.gpu, run.probe, run.began_ns]) for run in runs],
            "cluster": [self.cluster] * n,
            "campaign": [self.campaign] * n,
            "job_id": [self._job] * n,
            "workload": [run.probe for run in runs],
            "gpu": [run.gpu for run in runs],
            "began": [run.began_ns for run in runs],
            "ended": [run.ended_ns for run in runs],
            "sm_clock_mhz": [run.window.sm_clock_mhz for run in runs],
            "mem_clock_mhz": [run.window.mem_clock_mhz for run in runs],
            "temperature_c": [run.window.temperature_c for run in runs],
            "power_w": [run.window.power_w for run in runs],
            "conditions": [run.conditions for run in runs],
            "probe_version": [run.version for run in runs],
            "versions": [run.versions for run in runs],
            "clock_events": [run.window.clock_events for run in runs],
            "ended_by": [run.ended_by for run in runs],
            "status": [run.status for run in runs],
            "status_detail": [run.status_detail for run in runs],
        }
        rows = arrow_rows("runs", columns)
        run_of_figure = np.repeat(np.arange(n), [len(run.figures) for run in runs])
        shared = rows.select(["run_id", "cluster", "workload", "gpu"]).take(pa.array(run_of_figure))
        columns_of_figures = {
            "repeat": [figure.repeat for figure in figures],
            "figure": [figure.name for figure in figures],
            "unit": [figure.unit for figure in figures],
            "value": [figure.value for figure in figures],
        }
        results = arrow_rows("results", columns_of_figures)
        for name in reversed(shared.column_names):
            results = results.add_column(0, shared.schema.field(name), shared[name])
        return {"runs": rows, "results": results}


def identity_of(facts: Facts) -> Device:
    """What CUDA tells of a GPU, as its row of `gpus`, where no driver tells more."""
    return Device(
        facts.gpu,
        {
            "uuid": facts.gpu,
            "node": facts.node,
            "slot": facts.index,
            "model": facts.model,
            "sm_clock_max_mhz": round(facts.max_clock_mhz),
            "memory_total": facts.memory_bytes,
        },
    )


@dataclass(frozen=True)
class Past:
    """The runs of some GPUs that a store holds, whatever campaign they belong to."""

    rows: pa.Table
    """Some columns of `runs`."""

    @property
    def began_ns(self) -> int | None:
        """When the first of them began, UTC; None where there is none."""
        return self._times("began", compute.min)

    @property
    def ended_ns(self) -> int | None:
        """When the last of them ended, UTC; None where there is none."""
        return self._times("ended", compute.max)

    def _times(self, name: str, which: Callable[[pa.ChunkedArray], pa.Scalar]) -> int | None:
        microseconds: int | None = which(self.rows[name].cast(pa.int64())).as_py()
        return None if microseconds is None else 1000 * microseconds

    def runs_of(self, campaign: str, before_ns: int | None = None) -> dict[tuple[str, str], list[dict[str, object]]]:
        """Those of a campaign that neither failed nor were stopped, by GPU and probe.

        Of each: its conditions, with the version of the probe beside them as `probe_version`. With `before_ns` only
        those that began earlier (UTC).
        """
        of_campaign = compute.equal(self.rows["campaign"], campaign)
        if before_ns is not None:
            of_campaign = compute.and_(
                of_campaign, compute.less(self.rows["began"].cast(pa.int64()), before_ns // 1000)
            )
        conditions_by_probe: dict[tuple[str, str], list[dict[str, object]]] = {}
        for row in self.rows.filter(of_campaign).drop_columns(["began", "ended"]).to_pylist():
            if row["ended_by"] not in (EndedBy.FAILED, EndedBy.STOPPED):
                conditions = (row["conditions"] or {}) | {"probe_version": row["probe_version"]}
                conditions_by_probe.setdefault((row["gpu"], row["workload"]), []).append(conditions)
        return conditions_by_probe


def past_of(store: Store, cluster: str, gpus: Sequence[str]) -> Past:
    """The runs of these GPUs of a cluster that the store holds."""
    names = ["cluster", "campaign", "gpu", "workload", "began", "ended", "probe_version", "conditions", "ended_by"]
    rows = store.arrow("runs", columns=names, gpus=[(cluster, gpu) for gpu in gpus])
    return Past(rows.filter(compute.equal(rows["cluster"], cluster)))
