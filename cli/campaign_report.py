"""What `whorl campaign` says: tables for people, and documents for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..dashboards.table import Line, Table, many, number
from ..jobs.campaign.coverage import GpuState
from ..jobs.campaign.planning import How, allocated_h, cost, minutes
from ..jobs.campaign.status import NodeState, NodeStatus, Status
from ..store.hostlist import compress
from ..store.names import by_number

if TYPE_CHECKING:
    from ..jobs.campaign.asking import CampaignRequest

_LISTED = 20
_MODES = ("busy", "idle")


def _about(request: CampaignRequest) -> dict[str, Any]:
    began = request.began_ns
    return {
        "campaign": request.campaign,
        "cluster": request.cluster,
        "suite": request.suite,
        "probes": list(request.probes),
        "neighbours": request.neighbours,
        "partition": request.partition,
        "began": None if began is None else datetime.fromtimestamp(began / 1e9, UTC).replace(tzinfo=None),
    }


# -- plan ---------------------------------------------------------------------------------------------------------


def _within(found: Status, how: How, budget_h: float | None) -> int | None:
    """How many of the jobs a budget allows; None without one."""
    if budget_h is None:
        return None
    spent, jobs = found.allocated_h, 0
    for one in found.nodes:
        spent += allocated_h(found.request, one.gpus, how) if one.job else 0.0
    for one in found.of(NodeState.TO_DO):
        spent += allocated_h(found.request, one.gpus, how)
        jobs += spent <= budget_h
    return jobs


def plan_document(found: Status, how: How, budget_h: float | None) -> dict[str, Any]:
    """`whorl.campaign.plan/1`."""
    request = found.request
    todo = [one.target for one in found.of(NodeState.TO_DO) if one.target]
    costs = {mode: cost(request, todo, how, mode) for mode in _MODES}
    chosen = costs[request.neighbours]
    return {
        "schema": "whorl.campaign.plan/1",
        **_about(request),
        "new": request.is_new,
        "nodes": {state: found.count(state) for state in NodeState},
        "gpus": sum(one.gpus for one in found.nodes),
        "jobs": chosen.jobs,
        "gpus_to_do": chosen.gpus,
        "seconds_per_gpu": request.expected_s(),
        "minutes_per_job": max((minutes(request, one.gpus, how) for one in todo), default=None),
        "gpu_hours_measured": chosen.measured_h,
        "gpu_hours_allocated": chosen.allocated_h,
        "gpu_hours_allocated_by_neighbours": {mode: one.allocated_h for mode, one in costs.items()},
        "budget_gpu_hours": budget_h,
        "jobs_within_budget": _within(found, how, budget_h),
        "unavailable": [{"node": one.name, "why": one.why} for one in found.of(NodeState.UNAVAILABLE)],
        "notes": found.notes,
    }


def plan_answer(found: Status, how: How, budget_h: float | None, *, named: bool) -> Iterable[str | Table]:
    """The plan for people. `named`: they chose the campaign's name."""
    request = found.request
    said = plan_document(found, how, budget_h)
    new = "new campaign" if request.is_new else "campaign"
    yield (
        f"{new} {request.campaign}: suite {request.suite}, {many(len(request.probes), 'probe')}, neighbours "
        f"{request.neighbours}"
    )
    if request.is_new and not named:
        yield "that name is made from the day; --campaign NAME, here and for `whorl campaign run`, chooses another"
    yield f"{many(len(found.nodes), 'node')} with {many(said['gpus'], 'GPU')}: {_states(found)}"
    if said["jobs"]:
        yield (
            f"{many(said['jobs'], 'job')} for {many(said['gpus_to_do'], 'GPU')}, each of one whole node and at most "
            f"{said['minutes_per_job']:,} min"
        )
        yield (
            f"GPU-hours at most: {number(said['gpu_hours_measured'], 3)} measured, "
            f"{number(said['gpu_hours_allocated'], 3)} allocated"
        )
        other = "idle" if request.neighbours == "busy" else "busy"
        hours = said["gpu_hours_allocated_by_neighbours"][other]
        yield f"with --neighbours {other} it would be {number(hours, 3)} allocated"
    else:
        yield "no job can be sent now" if found.of(NodeState.UNAVAILABLE) else "no job is needed now"
    if budget_h is not None:
        within = said["jobs_within_budget"]
        yield f"the budget of {number(budget_h, 3)} GPU-hours allows {within:,} of these jobs"
    yield from _unavailable(found)
    yield from found.notes


def _states(found: Status) -> str:
    counts = Counter(one.state for one in found.nodes)
    return ", ".join(f"{counts[state]:,} {state}" for state in NodeState if counts[state])


def _unavailable(found: Status) -> Iterable[str]:
    """The nodes that are not available, by reason."""
    reasons: dict[str, list[str]] = {}
    for one in found.of(NodeState.UNAVAILABLE):
        reasons.setdefault(one.why or "unknown", []).append(one.name)
    for why, names in reasons.items():
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        yield f"not available: {compress(names[:_LISTED])}{more} ({why})"


# -- status -------------------------------------------------------------------------------------------------------


def status_document(found: Status) -> dict[str, Any]:
    """`whorl.campaign.status/1`."""
    gpus = found.gpus
    return {
        "schema": "whorl.campaign.status/1",
        **_about(found.request),
        "complete": found.is_complete,
        "nodes": {state: found.count(state) for state in NodeState},
        "gpus": {
            "expected": sum(one.gpus for one in found.nodes),
            **{state.value: gpus[state] for state in GpuState},
        },
        "gpu_hours_measured": found.measured_h,
        "gpu_hours_allocated": found.allocated_h,
        "by_node": [_node(one) for one in found.nodes],
        "notes": found.notes,
    }


def _node(one: NodeStatus) -> dict[str, Any]:
    return {
        "node": one.name,
        "state": one.state,
        "gpus": one.gpus,
        "covered": one.covered.count(GpuState.COVERED),
        "failed": one.covered.count(GpuState.FAILED),
        "tries": one.tries,
        "job": one.job.id if one.job else None,
        "job_state": one.job.state if one.job else None,
        "why": one.why,
        "by_gpu": [
            {"gpu": gpu.gpu, "name": gpu.name, "state": gpu.state, "probes": gpu.done, "why": gpu.why}
            for gpu in one.covered.gpus
        ],
    }


def status_answer(found: Status, store: str, *, every: bool = False) -> Iterable[str | Table]:
    """The status for people."""
    request, gpus = found.request, found.gpus
    expected = sum(one.gpus for one in found.nodes)
    yield (
        f"campaign {request.campaign}: suite {request.suite}, neighbours {request.neighbours}; "
        f"{gpus[GpuState.COVERED]:,} of {many(expected, 'GPU')} measured, {gpus[GpuState.FAILED]:,} failed"
    )
    yield f"{many(len(found.nodes), 'node')}: {_states(found)}"
    if found.measured_h:
        yield (
            f"GPU-hours so far: {number(found.measured_h, 3)} measured, {number(found.allocated_h, 3)} allocated, "
            "without the start of the jobs"
        )
    shown = [one for one in found.nodes if every or one.state is not NodeState.COVERED or one.why]
    order = list(NodeState)[::-1]
    shown.sort(key=lambda one: (order.index(one.state), by_number(one.name)))
    if shown:
        rows = [
            [
                one.name,
                one.state,
                f"{one.covered.count(GpuState.COVERED)}/{one.gpus}",
                str(one.tries),
                one.job.id if one.job else "",
                one.why or "",
            ]
            for one in (shown if every else shown[:_LISTED])
        ]
        yield Table(("node", "state", "GPUs", "tries", "job", "why"), rows, (2, 3), wrapped=(5,), leaves=(4, 3))
        if len(shown) > len(rows):
            yield f"and {len(shown) - len(rows):,} more: --all lists every node"
    yield from found.notes
    if found.is_complete:
        yield Line(f"whorl report --store {store} --campaign {request.campaign}")
