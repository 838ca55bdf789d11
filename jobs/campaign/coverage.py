"""What the store has of a campaign, node by node: which GPUs are measured, which failed, and how often it was tried.

Table `runs` decides: a job that ran and stored no run did not measure. Events tell what was not possible on a GPU,
and which jobs were submitted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ...store.catalog import quoted
from ...store.names import by_number, gpu_name
from ...store.vocabulary import EndedBy, EventKind
from .asking import CampaignRequest, of_campaign, select

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


def coverage(store: Store | None, request: CampaignRequest) -> Mapping[str, Covered]:
    """By the store's name of the node, what the store has of the campaign."""
    found: dict[str, Covered] = {}
    if store is None:
        return found

    def of(node: str | None) -> Covered:
        return found.setdefault(node or "", Covered())

    ran, told, places = _ran(store, request), _told(store, request), _places(store, request)
    for gpu in _gpus(request, ran, told, places):
        of(gpu.node).gpus.append(gpu)
    submitted = [one for one in told if one.kind == EventKind.JOB_SUBMITTED]
    for event in submitted:
        one = of(event.node)
        one.jobs |= {event.job} if event.job else set()
        one.tries = max(one.tries, event.n or 0)
    sent = {event.job: event.ts_ns for event in submitted}
    now = time.time_ns()
    spans: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    for run in ran:
        node = places.get(run.gpu, (None, None))[0]
        of(node).measured_s += run.measured_ns / 1e9
        began, ended = spans.get((node, run.job), (run.began_ns, run.ended_ns))
        spans[node, run.job] = min(began, run.began_ns), max(ended, run.ended_ns)
    for (node, job), (began, ended) in spans.items():
        one = of(node)
        one.span_s += (ended - began) / 1e9
        one.jobs |= {job} if job else set()
        if request.fleet is None:  # a simulated fleet has a clock of its own
            slow = (began - sent.get(job, began)) / 1e9
            fast = (ended - now) / 1e9
            one.skew_s = min(one.skew_s, slow) if slow < -SKEW_S else fast if fast > SKEW_S else one.skew_s
    for one in found.values():
        one.tries = max(one.tries, len(one.jobs))
    return found


class _Ran(NamedTuple):
    """The runs of one GPU in one job; ns."""

    gpu: str
    job: str | None
    done: str | None
    """The probes that are measured, with commas."""
    why: str | None
    """Why the last of those that failed did; None where none did."""
    began_ns: int
    ended_ns: int
    measured_ns: int


class _Told(NamedTuple):
    """An event of the campaign."""

    kind: str
    gpu: str | None
    node: str | None
    workload: str | None
    detail: str | None
    n: int | None
    job: str | None
    ts_ns: int


def _ran(store: Store, request: CampaignRequest) -> list[_Ran]:
    failed = f"ended_by = '{EndedBy.FAILED}'"
    query = f"""SELECT gpu, job_id, string_agg(workload, ',') FILTER (ended_by IS DISTINCT FROM '{EndedBy.FAILED}'),
        arg_max(workload || ': ' || coalesce(status_detail, 'failed'), ended) FILTER ({failed}),
        min(epoch_ns(began)), max(epoch_ns(ended)), CAST(sum(epoch_ns(ended) - epoch_ns(began)) AS BIGINT)
        FROM runs WHERE {of_campaign(request)} AND began IS NOT NULL AND ended IS NOT NULL GROUP BY gpu, job_id"""
    return list(itertools.starmap(_Ran, select(store, query)))


def _told(store: Store, request: CampaignRequest) -> list[_Told]:
    query = f"""SELECT kind, gpu, node, workload, detail, n, job_id, epoch_ns(ts) FROM events
        WHERE {of_campaign(request)} AND (kind IN ('{EventKind.JOB_SUBMITTED}', '{EventKind.PROBE_NOT_RUN}')
        OR (kind = '{EventKind.PROBE_FAILED}' AND workload IS NULL))"""
    return list(itertools.starmap(_Told, select(store, query)))


def _places(store: Store, request: CampaignRequest) -> dict[str, tuple[str, int | None]]:
    """The last node and slot of each GPU."""
    where = "" if request.cluster is None else f"AND cluster = {quoted(request.cluster)}"
    query = f"SELECT gpu, node, slot FROM gpus WHERE node IS NOT NULL {where} ORDER BY first_seen NULLS FIRST"
    return {gpu: (node, slot) for gpu, node, slot in select(store, query)}


def _gpus(
    request: CampaignRequest, ran: Sequence[_Ran], told: Sequence[_Told], places: Mapping[str, tuple[str, int | None]]
) -> list[Gpu]:
    """The GPUs with runs in the campaign, or that could not be used, in the order of their names."""
    probes = set(request.probes)
    done: dict[str, set[str]] = {}
    failed: dict[str, str] = {}
    nodes: dict[str, str | None] = {}
    for run in ran:
        done.setdefault(run.gpu, set()).update((run.done or "").split(","))
        if run.why is not None:
            failed[run.gpu] = run.why
    for event in told:
        if event.kind == EventKind.PROBE_NOT_RUN and event.gpu and event.workload:
            done.setdefault(event.gpu, set()).add(event.workload)
        elif event.kind == EventKind.PROBE_FAILED:
            name = event.gpu or event.detail or ""
            failed[name], nodes[name] = event.detail or "it could not be used", event.node
    found = []
    for gpu in done.keys() | failed.keys():
        node, slot = places.get(gpu, (nodes.get(gpu), None))
        n = len(done.get(gpu, set()) & probes)
        state = GpuState.COVERED if n == len(probes) else GpuState.FAILED if gpu in failed else GpuState.PARTIAL
        found.append(Gpu(gpu, node, slot, state, n, failed.get(gpu)))
    return sorted(found, key=lambda one: (by_number(one.node or ""), one.slot if one.slot is not None else -1, one.gpu))
