"""What the verbs about verdicts print with --json: findings, one GPU, fingerprints, what changed, what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...analysis.verdicts import Judgement, NotJudged, Smallest, Verdict
from ...analysis.verdicts.verdict import Change
from ..documents.evidence import action, because, changed_with, reference, why_none, why_not

if TYPE_CHECKING:
    from ...analysis.one_gpu.explain import Explained, SharedFinding
    from ...analysis.one_gpu.standing import Line
    from ...analysis.verdicts.difference import Difference
    from ...analysis.verdicts.fingerprint import Fingerprints
    from ...analysis.verdicts.plan import Planned
    from ..documents.followup import NodeCommand

FINDING = (
    "level", "name", "gpus", "cluster", "model", "workloads", "kind", "state", "effect_pct", "low_pct", "high_pct", "p",
    "q", "n", "causes", "looks", "first_seen", "last_seen", "runs", "action", "reference", "figure",
)  # fmt: skip
"""The columns of a finding in `whorl.verdicts/1`."""

_SHARED = {"driver": ("driver", 1), "vbios": ("VBIOS", 1), "power_limit_mw": ("power limit, W", 1000)}
_EVENTS = 20


def verdicts(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The document of `whorl.verdicts/1` over all clusters."""
    return {
        "schema": "whorl.verdicts/1",
        "rows": [finding(verdict) for judgement in judgements for verdict in judgement.rows],
        "not_judged": [not_judged(gap) for judgement in judgements for gap in judgement.not_judged],
        "watch": [finding(verdict) for judgement in judgements for verdict in judgement.watch],
        "smallest": [{"cluster": each.cluster} | smallest(effect) for each in judgements for effect in each.smallest],
        "changes": [{"cluster": each.cluster} | _change(change) for each in judgements for change in each.changes],
    }


def finding(verdict: Verdict) -> dict[str, Any]:
    """A finding as a row of `whorl.verdicts/1`, with its sentences."""
    sentences = {"looks": because(verdict), "action": action(verdict), "reference": reference(verdict)}
    fields = asdict(verdict) | sentences
    return _dated({name: fields[name] for name in FINDING}, "first_seen", "last_seen")


def not_judged(gap: NotJudged) -> dict[str, str]:
    """What was not judged, as a row of `whorl.verdicts/1`."""
    return {"cluster": gap.cluster, "subject": gap.subject, "why": why_not(gap)}


def smallest(effect: Smallest) -> dict[str, Any]:
    """The smallest effect of a workload, as a row of `whorl.verdicts/1`."""
    return asdict(effect) | {"why": why_none(effect)}


def explain(gpu: Explained) -> dict[str, Any]:
    """The document of `whorl.explain/1`."""
    return {
        "schema": "whorl.explain/1",
        **{name: getattr(gpu, name) for name in ("cluster", "gpu", "name")},
        "identity": dict(gpu.identity),
        "judged": judged(gpu),
        "verdicts": [finding(verdict) for verdict in gpu.verdicts],
        "not_judged": [not_judged(gap) for gap in gpu.not_judged],
        "places": [asdict(place) for place in gpu.places],
        "history": [row for line in gpu.lines for row in _history(line)],
        "events": [{"ts": event.ts, "kind": event.kind, "detail": event.detail} for event in gpu.events[:_EVENTS]],
        "smallest": [smallest(effect) for effect in gpu.smallest],
        "conditions": {_SHARED[name][0]: [_condition(gpu, name)] for name in gpu.shared},
    }


def judged(gpu: Explained) -> dict[str, Any]:
    """When the GPUs were judged, of how many, and how many runs are newer."""
    judgement = gpu.found
    return {
        "at": None if judgement is None else judgement.judged_at,
        "gpus": gpu.judged,
        "newer_runs": None if judgement is None else judgement.newer.runs,
        "newer_events": None if judgement is None else judgement.newer.facts,
    }


def shared(finding_of_several: SharedFinding) -> dict[str, Any]:
    """The document of `whorl.explain.shared/1`."""
    return {
        "schema": "whorl.explain.shared/1",
        "cluster": finding_of_several.cluster,
        "name": finding_of_several.name,
        "gpus": list(finding_of_several.gpus),
        "verdicts": [finding(verdict) for verdict in finding_of_several.verdicts],
    }


def _history(line: Line) -> list[dict[str, Any]]:
    from ..documents.gpu import sittings

    return [
        {
            "workload": line.workload,
            **{name: getattr(sitting, name) for name in ("began", "n")},
            "effect_pct": sitting.off_pct if line.beside_peers else None,
            **{name: getattr(sitting, name) for name in ("that_day_pct", "sm_clock_mhz", "power_w", "temperature_c")},
        }
        for sitting in sittings(line)
    ]


def _condition(gpu: Explained, name: str) -> str:
    """What is recorded of the GPU, and how many of its model share it."""
    same, known = gpu.shared[name]
    unit = _SHARED[name][1]
    value = gpu.row[name] if unit == 1 else f"{gpu.row[name] / unit:g}"
    return f"{value}: {same:,} of {known:,} GPUs"


def _change(change: Change) -> dict[str, Any]:
    beside = [text for value in change.joined_with if (text := changed_with(value))]
    return _dated(asdict(change) | {"joined_with": beside}, "since", "at")


def _dated(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """Fields with these times as text, UTC."""
    times: dict[str, datetime | None] = {name: fields[name] for name in names}
    return fields | {name: None if at is None else f"{at.isoformat()}Z" for name, at in times.items()}


def fingerprints(computed: Fingerprints) -> dict[str, Any]:
    """The document of `whorl.fingerprint/1`."""
    return {
        "schema": "whorl.fingerprint/1",
        "cluster": computed.cluster,
        "gpu": computed.gpu,
        "rows": computed.rows.to_dicts(),
        "neighbours": [asdict(near) for near in computed.neighbours],
    }


def difference(changed: Difference) -> dict[str, Any]:
    """The document of `whorl.diff/1`."""
    from ...analysis.verdicts.difference import ERROR_RATE
    from ..documents.followup import difference_notes, why_not_compared

    steps = [asdict(step) | {"why": why_not_compared(step)} for step in changed.steps]
    return {
        "schema": "whorl.diff/1",
        **{name: getattr(changed, name) for name in ("cluster", "before", "after", "looks")},
        "error_rate": ERROR_RATE,
        "steps": [{name: value for name, value in step.items() if name != "compared"} for step in steps],
        "moved": [asdict(gpu) for gpu in changed.moved],
        "new": list(changed.new),
        "gone": list(changed.gone),
        "identity": dict(changed.identity),
        "notes": list(difference_notes(changed)),
    }


def plan(planned: Planned, todo: Sequence[NodeCommand]) -> dict[str, Any]:
    """The document of `whorl.plan/1`."""
    from ..documents.followup import passive_ranks, plan_notes, reason

    fields = {name: getattr(planned, name) for name in ("cluster", "budget_s", "left_out", "decided")}
    fields |= {"passive": passive_ranks(planned), "probes": list(planned.probes), "notes": list(plan_notes(planned))}
    gpus = [asdict(gpu) | {"reason": reason(gpu, planned.threshold_pct)} for gpu in planned.gpus]
    commands = [{"node": command.node, "command": str(command), "seconds": command.seconds} for command in todo]
    return {"schema": "whorl.plan/1", **fields, "gpus": gpus, "commands": commands}
