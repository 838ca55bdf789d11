"""What `whorl demo` says: what ran and what was found, what was planted, what to do next; and the same as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...analysis.verdicts.judge import ERROR_RATE
from ...analysis.verdicts.planted import Planted, falsely_named
from ..answers import mappings
from ..document import Part
from ..documents.evidence import because, remark
from ..table import Line, Table, many
from .campaign import caught, next_commands, notes, sound, spread, stand_out

if TYPE_CHECKING:
    from ...probes.campaign import Report
    from ..store_report import Looked


@dataclass(frozen=True)
class DemoResult:
    """A demo and its results."""

    looked: Looked
    report: Report
    sittings: int
    planted: Sequence[Planted] | None
    suite: str
    seed: int | None
    store: Path
    page: Path | None
    taken_s: float

    @property
    def seconds(self) -> float | None:
        """How long the campaign took, on the clock of its GPUs."""
        began, ended = self.report.began_ns, self.report.ended_ns
        return None if began is None or ended is None else (ended - began) / 1e9


def document(result: DemoResult) -> dict[str, Any]:
    """The demo as `whorl.demo/1`."""
    campaign, judged = result.looked.campaign, result.looked.judged
    return {
        "schema": "whorl.demo/1",
        "campaign": campaign.campaign,
        "cluster": campaign.cluster,
        "simulated": campaign.simulated,
        "models": campaign.models,
        "gpus": campaign.gpus.height,
        "seed": result.seed,
        "suite": result.suite,
        "probes": campaign.probes,
        "runs": campaign.runs.height,
        "sound_runs": sound(campaign),
        "seconds": result.seconds,
        "sittings": result.sittings,
        "wall_s": result.taken_s,
        "variability": [row.as_dict() for row in result.looked.spread if row.level == "gpu"],
        "comparisons": judged.looks,
        "error_rate": ERROR_RATE,
        "not_judged": [mappings.not_judged(gap) for gap in judged.not_judged],
        "wrong_runs": result.looked.campaign.untrusted,
        "stand_out": _stand_out(result.looked),
        "verdicts": [mappings.finding(verdict) for verdict in judged.rows],
        "planted": None
        if result.planted is None
        else [
            {"gpu": one.gpu, "kind": one.kind, "found": one.found or None, "remark": remark(one) or None}
            for one in result.planted
        ],
        "falsely_named": None if result.planted is None else falsely_named(result.planted, judged, campaign),
        "not_run": [{"gpu": gpu, "probe": probe, "reason": reason} for gpu, probe, reason in result.report.unrun],
        "failed": [{"gpu": gpu, "error": why} for gpu, why in sorted(result.report.failures.items())],
        "notes": result.report.notes,
        "store": str(result.store),
        "report": None if result.page is None else str(result.page),
    }


def _stand_out(looked: Looked) -> list[dict[str, Any]]:
    """One row a GPU that has verdicts: the worst of them."""
    places = {row["gpu"]: row for row in looked.campaign.gpus.select("gpu", "node", "cabinet", "slot").to_dicts()}
    return [
        {**places[gpu], "name": looked.names[gpu], "cause": own[0].kind, "looks": because(own[0]), "p": own[0].p}
        for gpu, own in looked.verdicts.items()
    ]


def answer(result: DemoResult) -> Iterable[Part | Table]:
    """For people: what ran, how the GPUs differ, which stand out, what was planted, and what to do next."""
    looked, report = result.looked, result.report
    campaign = looked.campaign
    made = "simulated " if campaign.simulated else ""
    yield from report.notes
    nodes = campaign.gpus["node"].drop_nulls().n_unique()
    took = result.seconds
    spent = "" if took is None else f"{took:,.0f} s{' of simulated time' if made else ''}, "
    yield (
        f"{campaign.gpus.height:,} {made}{' and '.join(campaign.models)} GPUs on {many(nodes, 'node')}: "
        f"{campaign.runs.height:,} runs of {len(campaign.probes)} probes (suite {result.suite}, all GPUs of a node at "
        f"once), {sound(campaign):,} of them valid; {spent}{result.taken_s:.0f} s here"
    )
    yield ""
    yield from spread(looked)
    yield from stand_out(looked)
    if result.planted is not None:
        yield from caught(looked, result.planted)
    yield from notes(looked)
    yield from _not_run(report, looked.names)
    yield from left_out(looked, report)
    if result.sittings > 1:
        yield (
            "Everything was measured twice, on two simulated days: the times above are those of the second day. The "
            "findings rest on both, because one time cannot show what repeats."
        )
    if result.page is not None:
        yield Line(f"report: {result.page} (open it in a browser; it needs no network)")
    yield from next_commands(looked, result.store)
    if result.planted is not None:  # invented jobs had the simulated GPUs
        yield Line(f"      whorl energy --store {shlex.quote(str(result.store))}")


def _not_run(report: Report, names: Mapping[str, str]) -> Iterable[str]:
    reasons: dict[tuple[str, str], set[str]] = {}
    for gpu, probe, reason in report.unrun:
        reasons.setdefault((probe, reason), set()).add(gpu)
    together: dict[tuple[str, frozenset[str]], list[str]] = {}
    for (probe, reason), gpus in reasons.items():
        together.setdefault((reason, frozenset(gpus)), []).append(probe)
    for (reason, named), probes in together.items():
        on = f"{len(named):,} GPUs" if len(named) > 1 else names.get(min(named), min(named))
        yield f"not run on {on}: {', '.join(probes)} ({reason})"


def left_out(looked: Looked, report: Report) -> list[str]:
    """The GPUs that failed before they ran anything: no table of the campaign has them."""
    ran = set(looked.campaign.gpus["gpu"])
    return [f"{gpu} was not measured: {why}" for gpu, why in sorted(report.failures.items()) if gpu not in ran]
