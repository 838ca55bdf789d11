"""What `whorl demo` replies: what ran, what stands out, what was planted, and what to do next; and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...analysis.runs.measurements import SOUND
from ...analysis.verdicts.judge import ERROR_RATE
from ...analysis.verdicts.verdict import Planted, falsely_named
from ..document import Command, Document, Part
from ..documents.evidence import because, remark
from ..report import next_commands, summary_parts
from ..words import in_store, many
from . import mappings

if TYPE_CHECKING:
    from ...probes.campaign import Report
    from ..report import Looked


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


def demo_json(result: DemoResult) -> dict[str, Any]:
    """The demo as `whorl.demo/1`."""
    campaign, judged = result.looked.campaign, result.looked.judged
    return {
        "schema": "whorl.demo/1",
        **{name: getattr(campaign, name) for name in ("campaign", "cluster", "simulated", "models")},
        "gpus": campaign.gpus.height,
        "seed": result.seed,
        "suite": result.suite,
        "probes": campaign.probes,
        "runs": campaign.runs.height,
        "sound_runs": campaign.runs.filter(SOUND).height,
        "seconds": result.seconds,
        "sittings": result.sittings,
        "wall_s": result.taken_s,
        "variability": [row.as_dict() for row in result.looked.spread],
        "comparisons": judged.looks,
        "error_rate": ERROR_RATE,
        "not_judged": [mappings.not_judged(gap) for gap in judged.not_judged],
        "wrong_runs": campaign.untrusted,
        "stand_out": _stand_out(result.looked),
        "verdicts": [mappings.finding(verdict) for verdict in judged.rows],
        "planted": None
        if result.planted is None
        else [
            {"gpu": fault.gpu, "kind": fault.kind, "found": fault.found or None, "remark": remark(fault) or None}
            for fault in result.planted
        ],
        "falsely_named": None if result.planted is None else falsely_named(result.planted, judged, campaign.gpus),
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
        {
            **places[gpu],
            "name": looked.names[gpu],
            "cause": of_gpu[0].kind,
            "looks": because(of_gpu[0]),
            "p": of_gpu[0].p,
        }
        for gpu, of_gpu in looked.verdicts.items()
    ]


def demo_document(result: DemoResult) -> Document:
    """For people: what ran, the three answers, what was planted, how the GPUs differ, and what to do next."""
    return Document("Demo", list(_parts(result)))


def _parts(result: DemoResult) -> Iterator[Part]:
    looked, report = result.looked, result.report
    yield from report.notes
    simulated = " of simulated time" if looked.campaign.simulated else ""
    took = "" if result.seconds is None else f"{result.seconds:,.0f} s{simulated}, "
    parts = summary_parts(looked, result.planted)
    yield next(parts)
    yield f"Suite {result.suite}, all GPUs of a node at once; {took}{result.taken_s:.0f} s here."
    yield from parts
    yield from _not_run(report, looked.names)
    yield from left_out(looked, report)
    if result.sittings > 1:
        yield (
            "Everything was measured twice, on two simulated days: the times are those of the second day. The findings "
            "rest on both, because one time cannot show what repeats."
        )
    yield from next_commands(looked, result.store, result.page)
    if result.planted is not None:  # invented jobs had the simulated GPUs
        yield Command(f"      whorl energy {in_store(result.store)}")


def _not_run(report: Report, names: Mapping[str, str]) -> Iterator[str]:
    gpus: dict[tuple[str, str], list[str]] = {}
    for gpu, probe, reason in report.unrun:
        gpus.setdefault((probe, reason), []).append(names.get(gpu, gpu))
    for (probe, reason), unrun in gpus.items():
        yield f"Not run on {many(len(unrun), 'GPU') if len(unrun) > 1 else unrun[0]}: {probe} ({reason})."


def left_out(looked: Looked, report: Report) -> list[str]:
    """The GPUs that failed before they ran anything: no table of the campaign has them."""
    ran = set(looked.campaign.gpus["gpu"])
    return [f"{gpu} was not measured: {why}" for gpu, why in sorted(report.failures.items()) if gpu not in ran]
