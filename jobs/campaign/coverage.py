"""What the store has of a campaign, node by node: which GPUs are measured, which failed, and how often it was tried.

Table `runs` decides: a job that ran and stored no run did not measure. Events tell what was not possible on a GPU,
and which jobs were submitted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ...store.catalog import quoted
from ...store.events import EventKind
from ...store.names import gpu_name
from ...store.outcomes import EndedBy
from .asking import Request, of_campaign

if TYPE_CHECKING:
    from ...store import Store

SKEW_S = 120.0
"""A clock that is off by less is not spoken of."""


class GpuState(StrEnum):
    """How far a GPU is measured."""

    COVERED = "covered"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the campaign has measured or tried to."""

    gpu: str
    node: str | None
    slot: int | None
    state: GpuState
    done: int
    """Probes that are measured, or that are not possible on it."""
    why: str | None = None
    """Why it failed, in a sentence."""

    @property
    def name(self) -> str:
        return gpu_name(self.gpu, self.node, self.slot)


@dataclass(slots=True)
class Covered:
    """What the store has of one node."""

    gpus: list[Gpu] = field(default_factory=list)
    tries: int = 0
    """Jobs that were submitted."""
    jobs: set[str] = field(default_factory=set)
    span_s: float = 0.0
    """From the first run to the last of each job, added up."""
    measured_s: float = 0.0
    """Its runs, added up."""
    skew_s: float = 0.0
    """By how much its clock is certainly wrong; negative: it is slow."""

    def count(self, state: GpuState) -> int:
        return sum(one.state is state for one in self.gpus)

    @property
    def settled(self) -> int:
        """GPUs that need no further job: measured, or failed."""
        return self.count(GpuState.COVERED) + self.count(GpuState.FAILED)


def coverage(store: Store | None, request: Request) -> Mapping[str, Covered]:
    """By the store's name of the node, what the store has of the campaign."""
    found: dict[str, Covered] = {}
    if store is None or request.is_new:
        return found

    def of(node: str | None) -> Covered:
        return found.setdefault(node or "", Covered())

    for gpu in _gpus(store, request):
        of(gpu.node).gpus.append(gpu)
    submitted = _submitted(store, request)
    for name, n, number, _ in submitted:
        one = of(name)
        one.jobs.add(number)
        one.tries = max(one.tries, n or 0)
    sent = {number: ns for _, _, number, ns in submitted}
    now = time.time_ns()
    for node, job, began, ended, measured in _jobs(store, request):
        one = of(node)
        one.span_s += (ended - began) / 1e9
        one.measured_s += measured / 1e9
        one.jobs |= {job} if job else set()
        if request.fleet is None:  # a simulated fleet has a clock of its own
            slow = (began - sent.get(job or "", began)) / 1e9
            fast = (ended - now) / 1e9
            one.skew_s = min(one.skew_s, slow) if slow < -SKEW_S else fast if fast > SKEW_S else one.skew_s
    for one in found.values():
        one.tries = max(one.tries, len(one.jobs))
    return found


def _rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in store.sql(query).columns), strict=True))


def _placed(request: Request) -> str:
    cluster = "" if request.cluster is None else f"AND cluster = {quoted(request.cluster)} "
    return (
        "placed AS (SELECT gpu, arg_max(node, first_seen) AS node, arg_max(slot, first_seen) AS slot FROM gpus "
        f"WHERE node IS NOT NULL {cluster}GROUP BY gpu)"
    )


def _gpus(store: Store, request: Request) -> list[Gpu]:
    """The GPUs with runs in the campaign, or that could not be used."""
    mine = of_campaign(request)
    probes = ", ".join(map(quoted, request.probes))
    rows = _rows(
        store,
        f"""WITH mine AS (SELECT gpu, workload, ended, ended_by, status_detail FROM runs WHERE {mine}),
        told AS (SELECT gpu, node, workload, kind, detail, ts FROM events WHERE {mine}),
        done AS (SELECT gpu, workload FROM mine WHERE ended_by IS DISTINCT FROM '{EndedBy.FAILED}'
                 UNION SELECT gpu, workload FROM told WHERE kind = '{EventKind.PROBE_NOT_RUN}'),
        counted AS (SELECT gpu, count(*) AS n FROM done WHERE workload IN ({probes}) GROUP BY gpu),
        failed AS (SELECT gpu, any_value(node) AS node, arg_max(why, ended) AS why FROM (
            SELECT gpu, NULL AS node, workload || ': ' || coalesce(status_detail, 'failed') AS why, ended
            FROM mine WHERE ended_by = '{EndedBy.FAILED}'
            UNION ALL SELECT coalesce(gpu, detail), node, detail, ts FROM told
            WHERE kind = '{EventKind.PROBE_FAILED}' AND workload IS NULL) GROUP BY gpu),
        {_placed(request)}
        SELECT gpu, coalesce(placed.node, failed.node), slot, coalesce(n, 0), why, failed.gpu IS NOT NULL
        FROM counted FULL JOIN failed USING (gpu) LEFT JOIN placed USING (gpu)""",
    )

    def state(done: int, failed: bool) -> GpuState:
        if done >= len(request.probes):
            return GpuState.COVERED
        return GpuState.FAILED if failed else GpuState.PARTIAL

    found = [Gpu(gpu, node, slot, state(n, failed), n, why) for gpu, node, slot, n, why, failed in rows]
    return sorted(found, key=lambda one: (one.node or "", one.slot if one.slot is not None else -1, one.gpu))


def _submitted(store: Store, request: Request) -> list[tuple[str, int | None, str, int]]:
    """Node, number of the try, job, and when: the jobs that were submitted."""
    return _rows(
        store,
        f"SELECT node, n, coalesce(job_id, ''), epoch_ns(ts) FROM events "
        f"WHERE kind = '{EventKind.JOB_SUBMITTED}' AND {of_campaign(request)}",
    )


def _jobs(store: Store, request: Request) -> list[tuple[str | None, str | None, int, int, int]]:
    """Node, job, when its first run began and its last one ended, and how long its runs took together; ns."""
    return _rows(
        store,
        f"""WITH {_placed(request)}
        SELECT node, job_id, min(epoch_ns(began)), max(epoch_ns(ended)),
            CAST(sum(epoch_ns(ended) - epoch_ns(began)) AS BIGINT)
        FROM runs LEFT JOIN placed USING (gpu) WHERE {of_campaign(request)} AND began IS NOT NULL AND ended IS NOT NULL
        GROUP BY node, job_id""",
    )
