"""What `whorl doctor` and `whorl campaign doctor` say: what works on this machine or on a node, and what does not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...dashboards.document import Column, Command, Document, Part, Table
from ...dashboards.words import listed, many

if TYPE_CHECKING:
    from ...jobs.node_doctor import NodeFinding, NodeReport

_NAMED = 8


def machine_mapping(findings: Sequence[NodeFinding]) -> dict[str, Any]:
    """`whorl.doctor/1`."""
    rows = [
        {"what": row.what, "works": row.works, "detail": row.detail, "needed_for": row.needed_for or None}
        for row in findings
    ]
    return {"schema": "whorl.doctor/1", "findings": rows}


def machine_document(findings: Sequence[NodeFinding]) -> Document:
    """Whether whorl works on this machine, and every part; what does not work comes first."""
    broken = list(dict.fromkeys(row.what for row in findings if row.vital and not row.works))
    missing = list(dict.fromkeys(row.what for row in findings if not row.works and not row.vital))
    answer = f"something that whorl needs does not work: {listed(broken, _NAMED)}" if broken else "whorl works here"
    if missing:
        do = "does" if len(missing) == 1 else "do"
        answer += f"; {many(len(missing), 'part')} that only some verbs need {do} not: {listed(missing, _NAMED)}"
    rows = [
        ["yes" if row.works else "no", row.needed_for, f"{row.what}: {row.detail}"]
        for row in sorted(findings, key=lambda row: (row.works, not row.vital))
    ]
    columns: list[Column | str] = ["works", Column("needed for", "sentence"), Column("what", "sentence")]
    return Document("Doctor", [answer, Table(columns, rows)])


def node_mapping(report: NodeReport) -> dict[str, Any]:
    """`whorl.campaign.doctor/1`."""
    return {
        "schema": "whorl.campaign.doctor/1",
        "node": report.node,
        "job": report.job,
        "waited_s": round(report.waited_s, 1),
        "works": report.works,
        "findings": [
            {"what": finding.what, "works": finding.works, "detail": finding.detail, "needed": finding.vital}
            for finding in report.findings
        ],
    }


def node_document(report: NodeReport, store: str, fleet: str | None) -> Document:
    """Whether a campaign can measure on a node, what it has and lacks, and what to do next, with the simulated fleet
    of the question."""
    rows = [["yes" if finding.works else "no", finding.what, finding.detail] for finding in report.findings]
    missing = ", ".join(finding.what for finding in report.findings if finding.vital and not finding.works)
    answer = "a campaign can measure" if report.works else "a campaign cannot measure"
    parts: list[Part] = [
        f"node {report.node}, by job {report.job}, after {report.waited_s:.0f} s: {answer} there"
        + (f": {missing}" if missing else ""),
    ]
    if report.works:
        simulated = "" if fleet is None else f" --set {shlex.quote(f'fleet={fleet}')}"
        parts.append(Command(f"next: whorl campaign plan --suite quick --store {shlex.quote(store)}{simulated}"))
    parts.append(Table(["works", "what", Column("detail", "sentence")], rows))
    return Document(f"Node {report.node}", parts)
