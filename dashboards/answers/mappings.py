"""What the verbs about verdicts print with --json: findings, one GPU, fingerprints, what changed, what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ...analysis.verdicts import Judgement, NotJudged, Smallest, Verdict
from ...analysis.verdicts.verdict import Change
from ..documents.evidence import action, because, changed_with, reference, why_none, why_not

FINDING = (
    "level", "name", "gpus", "cluster", "model", "workloads", "kind", "state", "effect_pct", "low_pct", "high_pct", "p",
    "q", "n", "causes", "looks", "first_seen", "last_seen", "runs", "action", "reference", "figure",
)  # fmt: skip
"""The columns of a finding in `whorl.verdicts/1`."""


def verdicts(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The document of `whorl.verdicts/1` over all clusters."""
    return {
        "schema": "whorl.verdicts/1",
        "rows": [finding(verdict) for judgement in judgements for verdict in judgement.rows],
        "not_judged": [not_judged(gap) for judgement in judgements for gap in judgement.not_judged],
        "watch": [finding(verdict) for judgement in judgements for verdict in judgement.watch],
        "smallest": [
            {"cluster": judgement.cluster, **smallest(effect)}
            for judgement in judgements
            for effect in judgement.smallest
        ],
        "changes": [
            {"cluster": judgement.cluster, **_change(change)}
            for judgement in judgements
            for change in judgement.changes
        ],
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


def _change(change: Change) -> dict[str, Any]:
    beside = [text for value in change.joined_with if (text := changed_with(value))]
    return _dated(asdict(change) | {"joined_with": beside}, "since", "at")


def _dated(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """Fields with these times as text, UTC."""
    times: dict[str, datetime | None] = {name: fields[name] for name in names}
    return fields | {name: None if at is None else f"{at.isoformat()}Z" for name, at in times.items()}
