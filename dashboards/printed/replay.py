"""How `whorl replay` looks: what each policy gains over the baselines, then the figures; and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from ...analysis.replay.findings import ALL, Finding, Gain, GainTable
from ...analysis.replay.study import Replayed
from ..table import MISSING, Line, Table, number

_J_PER_KWH = 3.6e6


def document(
    results: Sequence[Replayed],
    gains: Sequence[Gain],
    findings: Sequence[Finding],
    conditions: Mapping[str, str],
    notes: Sequence[str],
    apart: Sequence[str] = (),
) -> dict[str, Any]:
    """`whorl.replay/1`; the policies `apart` were not asked for and stand under `baselines`."""
    return {
        "schema": "whorl.replay/1",
        "rows": [result.row() for result in results if result.case.policy not in apart],
        "baselines": [result.row() for result in results if result.case.policy in apart],
        "comparisons": [gain.as_dict() for gain in gains],
        "findings": [one.as_dict() for one in findings],
        "queueing": [_queueing(result) for result in results],
        "fairness": [_fairness(result) for result in results],
        "conditions": dict(conditions),
        "notes": list(notes),
    }


def _queueing(result: Replayed) -> dict[str, Any]:
    of = result.metrics
    return result.place() | {
        "p50_s": of.p50_queue_s,
        "p95_s": of.p95_queue_s,
        "p99_s": of.p99_queue_s,
        "bounded_slowdown": of.bounded_slowdown,
    }


def _fairness(result: Replayed) -> dict[str, Any]:
    of = result.metrics
    return result.place() | {
        "worst": of.worst_ftf_themis,
        "unfair_share": of.unfair_pct_themis / 100,
        "shockwave_worst": of.worst_ftf,
        "shockwave_unfair_share": of.unfair_pct / 100,
        "preemptions": of.preemptions,
        "migrations": of.migrations,
        "restarts": of.restarts,
    }


def answer(
    results: Sequence[Replayed],
    findings: Sequence[Finding],
    conditions: Mapping[str, str],
    notes: Sequence[str],
    clocks: Mapping[str, Sequence[str]],
) -> Iterable[str | Table]:
    """The findings and the figures for people.

    `clocks`: by scheduler, the policies whose decisions wait for the edge of a round while their baselines' do not.
    """
    several = len({result.case.scheduler for result in results}) > 1 or len({r.trace for r in results}) > 1
    for (trace, scheduler), members in groupby(results, key=lambda one: (one.trace, one.case.scheduler)):
        own = list(members)
        if several:
            yield Line(f"{trace}, {scheduler}")
        yield from _gains([one for one in findings if (one.trace, one.scheduler) == (trace, scheduler)])
        if scheduler in clocks:
            yield (
                f"{', '.join(clocks[scheduler])}: these wait for the edges of rounds and the baselines do not, "
                "which is part of the difference; without --clock own all decide alike."
            )
            yield ""
        yield _figures(own)
        yield ""
        yield _waiting(own)
        yield ""
    together = [one for one in findings if one.trace == ALL]
    for scheduler, its in groupby(together, key=lambda one: one.scheduler):
        yield Line(f"{ALL}, {scheduler}")
        yield from _gains(list(its))
    if any(one.gains for one in findings):
        yield _reading(findings)
        yield ""
    yield from (f"{name}: {text}" for name, text in conditions.items())
    yield from (f"note: {note}" for note in notes)


def _gains(findings: Sequence[Finding]) -> Iterable[str | Table]:
    table = GainTable.of(findings)
    if table.rows:
        rows = [[finding.policy, *texts, finding.finding] for finding, texts in table.rows]
        yield Table(["gain in avg JCT", *table.heads, "finding"], rows, wrapped=(len(table.heads) + 1,))
        yield ""


def _reading(findings: Sequence[Finding]) -> str:
    """What a gain is, and of how many seeds."""
    n = max(gain.n for one in findings for gain in one.gains)
    if n < 2:
        return "A gain is the share of the time saved. One seed is not evidence. Times are in seconds."
    both = " and ".join(dict.fromkeys(gain.against for one in findings for gain in one.gains if not gain.of_control))
    return (
        f"A gain is the share of the time saved: its mean over {n:,} seeds with the 90 % interval for another "
        "such trace on this fleet. Each seed draws what is not sure of the scores, the order of nodes and, after the "
        f"first, the jobs. Better: a measurable gain over {both}, and over the policy itself without scores. No gain "
        "by scores: not over itself. Times are in seconds, for the traces as they are."
    )


def _figures(results: Sequence[Replayed]) -> Table:
    energy = any(result.metrics.energy_j is not None for result in results)
    head = [of_seeds(results), "avg JCT", "median", "p99", "makespan", "held"]
    rows = []
    for policy in _policies(results):
        own = [result.metrics for result in results if result.case.policy == policy]
        figures = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")
        row = [policy, *(f"{fmean(getattr(one, name) for one in own):,.0f}" for name in figures)]
        row.append(f"{fmean(one.util_held for one in own):.3f}")
        if energy:
            known = [one.energy_j for one in own if one.energy_j is not None]
            row.append(number(fmean(known) / _J_PER_KWH, 4) if len(known) == len(own) else MISSING)
        rows.append(row)
    return Table([*head, "kWh"] if energy else head, rows, range(1, 7), leaves=(5, 2))


def _waiting(results: Sequence[Replayed]) -> Table:
    """How long jobs had no GPUs, and how that was shared out."""
    head = [of_seeds(results), "queueing p50", "p95", "p99", "slowdown", "rho", "unfair"]
    rows = []
    for policy in _policies(results):
        own = [result.metrics for result in results if result.case.policy == policy]
        figures = ("p50_queue_s", "p95_queue_s", "p99_queue_s")
        row = [policy, *(f"{fmean(getattr(one, name) for one in own):,.0f}" for name in figures)]
        row.append(number(fmean(one.bounded_slowdown for one in own), 3))
        row.append(number(fmean(one.worst_ftf_themis for one in own), 3))
        row.append(f"{fmean(one.unfair_pct_themis for one in own):.0f} %")
        rows.append(row)
    return Table(head, rows, range(1, 7), leaves=(5, 1))


def of_seeds(results: Sequence[Replayed]) -> str:
    """The head of the column of policies: over which seeds the figures are."""
    seeds = {result.case.seed for result in results}
    return f"mean of {len(seeds):,} seeds" if len(seeds) > 1 else f"seed {min(seeds)}"


def _policies(results: Sequence[Replayed]) -> list[str]:
    return list(dict.fromkeys(result.case.policy for result in results))
