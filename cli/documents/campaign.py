"""What `whorl campaign` says of a plan and of a status: for people, and as documents for programs."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from ...dashboards.document import Column, Command, Document, Part, Table, TableColumns
from ...dashboards.words import many, minute, number
from ...jobs.campaign import CampaignRequest, SubmitOptions, allocated_h, job_minutes
from ...jobs.campaign_status import CampaignStatus, GpuState, NodeState, NodeStatus
from ...store.hostlist import compress
from ...store.names import by_number

_NODES_LISTED = 20
_MODES = ("busy", "idle")
_OF_REQUEST = ("campaign", "cluster", "suite", "probes", "neighbours", "partition")
_BY_LIMITS = (
    "a busy node is free at the latest when its jobs reach their time limits: they may end sooner, and jobs of others "
    "that wait may take it first"
)


def _about(request: CampaignRequest) -> dict[str, Any]:
    return {
        **{name: getattr(request, name) for name in _OF_REQUEST},
        "began": _utc(None if request.began_ns is None else request.began_ns / 1e9),
    }


def _utc(time_s: float | None) -> datetime | None:
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC).replace(tzinfo=None)


def _states(status: CampaignStatus) -> str:
    return ", ".join(f"{nodes:,} {state}" for state in NodeState if (nodes := status.count(state)))


def _by_free_time(nodes: Iterable[NodeStatus]) -> list[NodeStatus]:
    """The nodes that are known to be busy, in the order in which they become free."""
    return sorted((node for node in nodes if node.free_s is not None), key=lambda node: node.free_s or 0.0)


# -- plan --------------------------------------------------------------------------------------------------------


def plan_mapping(status: CampaignStatus, options: SubmitOptions, budget_h: float | None) -> dict[str, Any]:
    """`whorl.campaign.plan/1`."""
    request, to_do = status.request, status.of(NodeState.TO_DO)
    gpus = [node.gpus for node in to_do]
    hours = {mode: sum(allocated_h(request, count, options, mode) for count in gpus) for mode in _MODES}
    return {
        "schema": "whorl.campaign.plan/1",
        **_about(request),
        "new": request.is_new,
        "nodes": {state: status.count(state) for state in NodeState},
        "gpus": sum(node.gpus for node in status.nodes),
        "jobs": len(gpus),
        "gpus_to_do": sum(gpus),
        "seconds_per_gpu": request.expected_s(),
        "minutes_per_job": max((job_minutes(request, count, options) for count in gpus), default=None),
        "gpu_hours_measured": request.expected_s() * sum(gpus) / 3600,
        "gpu_hours_allocated": hours[request.neighbours],
        "gpu_hours_allocated_by_neighbours": hours,
        "budget_gpu_hours": budget_h,
        "jobs_within_budget": _within_budget(status, options, budget_h),
        "busy": [{"node": node.name, "free_by": _utc(node.free_s)} for node in to_do if not node.idle],
        "unavailable": [{"node": node.name, "why": node.why} for node in status.of(NodeState.UNAVAILABLE)],
        "notes": status.notes,
    }


def _within_budget(status: CampaignStatus, options: SubmitOptions, budget_h: float | None) -> int | None:
    """How many of the jobs a budget allows; None without one."""
    if budget_h is None:
        return None
    queued = [node for node in status.nodes if node.job]
    spent_h, jobs = status.allocated_h + sum(allocated_h(status.request, node.gpus, options) for node in queued), 0
    for node in status.of(NodeState.TO_DO):
        spent_h += allocated_h(status.request, node.gpus, options)
        jobs += spent_h <= budget_h
    return jobs


def plan_document(status: CampaignStatus, options: SubmitOptions, budget_h: float | None, *, named: bool) -> Document:
    """What a campaign would measure and cost. `named`: a person chose its name."""
    request, plan = status.request, plan_mapping(status, options, budget_h)
    name = f"{'new campaign' if request.is_new else 'campaign'} {request.campaign}"
    parts: list[Part] = [
        _jobs_of(plan) or ("no job can be sent now" if status.of(NodeState.UNAVAILABLE) else "no job is needed now"),
        f"{name}: suite {request.suite}, {many(len(request.probes), 'probe')}, neighbours {request.neighbours}",
    ]
    if request.is_new and not named:
        parts.append("that name is made from the day; --campaign NAME, here and for `whorl campaign run`, sets another")
    parts.append(f"{many(len(status.nodes), 'node')} with {many(plan['gpus'], 'GPU')}: {_states(status)}")
    if plan["jobs"]:
        other = "idle" if request.neighbours == "busy" else "busy"
        other_h = plan["gpu_hours_allocated_by_neighbours"][other]
        parts.append(f"with --neighbours {other} it would be {number(other_h, 3)} GPU-hours allocated")
    if budget_h is not None:
        parts.append(
            f"the budget of {number(budget_h, 3)} GPU-hours allows {plan['jobs_within_budget']:,} of these jobs"
        )
    return Document(f"Campaign {request.campaign}", [*parts, *_busy(status), *_unavailable(status), *status.notes])


def _jobs_of(plan: dict[str, Any]) -> str:
    """How many jobs would be sent, and what they cost; "" for none."""
    if not plan["jobs"]:
        return ""
    return (
        f"{many(plan['jobs'], 'job')} for {many(plan['gpus_to_do'], 'GPU')}, each of one whole node and at most "
        f"{plan['minutes_per_job']:,} min: at most {number(plan['gpu_hours_measured'], 3)} GPU-hours measured, "
        f"{number(plan['gpu_hours_allocated'], 3)} allocated"
    )


def _busy(status: CampaignStatus) -> Iterator[str]:
    """When the nodes that are busy are free, the first ones first."""
    busy = [node for node in status.of(NodeState.TO_DO) if not node.idle]
    timed = _by_free_time(busy)
    if not busy:
        return
    times = "; ".join(f"{node.name} by {minute(_utc(node.free_s))} UTC" for node in timed[:_NODES_LISTED])
    others = f"; and {len(timed) - _NODES_LISTED:,} more" if len(timed) > _NODES_LISTED else ""
    unknown = f"; {len(busy) - len(timed):,} without a known time" if len(busy) > len(timed) else ""
    yield f"{many(len(busy), 'node')} busy: {times or 'none with a known time'}{others}{unknown if timed else ''}"
    if timed:
        yield _BY_LIMITS


def _unavailable(status: CampaignStatus) -> Iterator[str]:
    """The nodes that are not available, by reason."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for node in status.of(NodeState.UNAVAILABLE):
        reasons[node.why or "unknown"].append(node.name)
    for why, names in reasons.items():
        others = f" and {len(names) - _NODES_LISTED:,} more" if len(names) > _NODES_LISTED else ""
        yield f"not available: {compress(names[:_NODES_LISTED])}{others} ({why})"


# -- status ------------------------------------------------------------------------------------------------------


def status_mapping(status: CampaignStatus) -> dict[str, Any]:
    """`whorl.campaign.status/1`."""
    gpus = status.gpus
    return {
        "schema": "whorl.campaign.status/1",
        **_about(status.request),
        "complete": status.is_complete,
        "nodes": {state: status.count(state) for state in NodeState},
        "gpus": {
            "expected": sum(node.gpus for node in status.nodes),
            **{state.value: gpus[state] for state in GpuState},
        },
        "gpu_hours_measured": status.measured_h,
        "gpu_hours_allocated": status.allocated_h,
        "by_node": [_node_mapping(node) for node in status.nodes],
        "notes": status.notes,
    }


def _node_mapping(node: NodeStatus) -> dict[str, Any]:
    return {
        "node": node.name,
        "state": node.state,
        "gpus": node.gpus,
        "covered": node.covered.count(GpuState.COVERED),
        "failed": node.covered.count(GpuState.FAILED),
        "tries": node.tries,
        "job": node.job.job if node.job else None,
        "job_state": node.job.state if node.job else None,
        "free_by": _utc(node.free_s),
        "why": node.why,
        "by_gpu": [
            {"gpu": gpu.gpu, "name": gpu.name, "state": gpu.state, "probes": gpu.done, "why": gpu.why}
            for gpu in node.covered.gpus
        ],
    }


def status_document(status: CampaignStatus, store: str, *, all_nodes: bool = False) -> Document:
    """How much is measured, what to do next, and the nodes that are not done."""
    request, gpus = status.request, status.gpus
    expected = sum(node.gpus for node in status.nodes)
    parts: list[Part] = [
        f"{gpus[GpuState.COVERED]:,} of {many(expected, 'GPU')} measured, {gpus[GpuState.FAILED]:,} failed; campaign "
        f"{request.campaign}: suite {request.suite}, neighbours {request.neighbours}",
        f"{many(len(status.nodes), 'node')}: {_states(status)}",
    ]
    if status.is_complete:
        parts.append(Command(f"next: whorl report --store {shlex.quote(store)} --campaign {request.campaign}"))
    if status.measured_h:
        parts.append(
            f"GPU-hours so far: {number(status.measured_h, 3)} measured, {number(status.allocated_h, 3)} allocated, "
            "without the start of the jobs"
        )
    nodes = [node for node in status.nodes if all_nodes or node.state is not NodeState.COVERED or node.why]
    order = list(NodeState)[::-1]
    nodes.sort(key=lambda node: (order.index(node.state), by_number(node.name)))
    listed = nodes if all_nodes else nodes[:_NODES_LISTED]
    if listed:
        parts.append(_node_table(listed))
        if len(nodes) > len(listed):
            parts.append(f"and {len(nodes) - len(listed):,} more: --set all=yes lists every node")
        if _by_free_time(listed):
            parts.append(_BY_LIMITS)
    parts += status.notes
    return Document(f"Campaign {request.campaign}", parts)


def _node_table(nodes: Iterable[NodeStatus]) -> Table:
    columns: TableColumns = [
        ("node", "name"),
        ("state", "state"),
        (Column("GPUs", "number"), lambda node: f"{node.covered.count(GpuState.COVERED)}/{node.gpus}"),
        (Column("tries", "count", drops=1), "tries"),
        (Column("job", drops=2), lambda node: node.job.job if node.job else ""),
        (Column("why", "sentence"), lambda node: "; ".join(filter(None, (_free_by(node), node.why)))),
    ]
    return Table.of(nodes, columns)


def _free_by(node: NodeStatus) -> str | None:
    return None if node.free_s is None else f"busy, free by {minute(_utc(node.free_s))} UTC"
