"""How `whorl replay` looks: what each policy gains over the baselines, then the figures; and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from ...analysis.replay.findings import ALL, GainTable, PolicyFinding
from ...analysis.replay.outcome import FIGURES, ReplayFigure
from ...analysis.replay.policies import POLICIES
from ...analysis.replay.power import JOULES_PER_KWH
from ...analysis.replay.setting import Answered, Group
from ...analysis.replay.study import Replayed
from ..table import MISSING, Line, Table, number

_LEAVE_NODES_OUT = ("drain-outliers", "advice-exclude")


class FigureColumn(NamedTuple):
    """A figure in a table."""

    head: str
    figure: str
    write: Callable[[float], str]


_S, _PERCENT = "{:,.0f}".format, "{:.0f} %".format
_THREE, _FOUR = (partial(number, digits=digits) for digits in (3, 4))


def _count(mean: float) -> str:
    """A number of jobs, whole if it is one: the mean over seeds need not be."""
    return _S(mean) if mean.is_integer() else _THREE(mean)


_TIMES = (
    FigureColumn("avg JCT", "avg_jct_s", _S),
    FigureColumn("median", "median_jct_s", _S),
    FigureColumn("p99", "p99_jct_s", _S),
    FigureColumn("makespan", "makespan_s", _S),
    FigureColumn("held", "util_held", "{:.3f}".format),
    FigureColumn("kWh of jobs", "energy_j", lambda joules: number(joules / JOULES_PER_KWH)),
)
_WAITING = (
    FigureColumn("queueing p50", "p50_queue_s", _S),
    FigureColumn("p95", "p95_queue_s", _S),
    FigureColumn("p99", "p99_queue_s", _S),
    FigureColumn("slowdown", "bounded_slowdown", _THREE),
    FigureColumn("Themis FTF", "worst_ftf_themis", _THREE),
    FigureColumn("Themis unfair", "unfair_pct_themis", _PERCENT),
)
_FURTHER = (
    FigureColumn("Shockwave FTF", "worst_ftf", _THREE),
    FigureColumn("Shockwave unfair", "unfair_pct", _PERCENT),
    FigureColumn("late", "late", _count),
    FigureColumn("limits hit", "limits_hit", _count),
    FigureColumn("wasted GPU-h", "wasted_gpu_h", _THREE),
    FigureColumn("node-hours", "node_hours", _FOUR),
    FigureColumn("kWh in all", "energy_kwh", _FOUR),
    FigureColumn("kWh at work", "jobs_kwh", _FOUR),
    FigureColumn("kWh idle", "idle_kwh", _FOUR),
    FigureColumn("kWh nodes", "base_kwh", _FOUR),
)
_LEAVES = {_TIMES: (5, 2), _WAITING: (5, 1), _FURTHER: (9, 8, 7, 4, 3)}
"""The tables of figures, and the columns that a narrow terminal leaves out."""
COLUMNS = (*_TIMES, *_WAITING, *_FURTHER)


def document(answered: Answered, apart: Sequence[str] = ()) -> dict[str, Any]:
    """`whorl.replay/1`; the policies `apart` were not asked for and stand under `baselines`."""
    results = answered.results
    return {
        "schema": "whorl.replay/1",
        "rows": [result.row() for result in results if result.case.policy not in apart],
        "baselines": [result.row() for result in results if result.case.policy in apart],
        "comparisons": [gain.as_dict() for gain in answered.gains],
        "findings": [
            finding.as_dict() | _waited(group, finding.policy)
            for group in answered.groups
            for finding in group.findings
        ],
        "energy_findings": [finding.as_dict() for finding in answered.energy],
        "queueing": [_queueing(result) for result in results],
        "fairness": [_fairness(result) for result in results],
        "figures": {figure.name: {"unit": figure.unit, "definition": figure.definition} for figure in FIGURES},
        "conditions": answered.conditions,
        "notes": answered.notes,
    }


def _waited(group: Group, policy: str) -> dict[str, float | None]:
    """What nodes that are left out cost in waiting: the policy's 95th percentile beside that of packed."""
    waits = {name: mean_of(group.results, name, "p95_queue_s") for name in (policy, group.packed)}
    return {"p95_queue_s": waits[policy], "packed_p95_queue_s": waits[group.packed]}


def _queueing(result: Replayed) -> dict[str, Any]:
    metrics = result.metrics
    return result.place() | {
        "p50_s": metrics.p50_queue_s,
        "p95_s": metrics.p95_queue_s,
        "p99_s": metrics.p99_queue_s,
        "bounded_slowdown": metrics.bounded_slowdown,
    }


def _fairness(result: Replayed) -> dict[str, Any]:
    metrics = result.metrics
    return result.place() | {
        "worst": metrics.worst_ftf_themis,
        "unfair_share": metrics.unfair_pct_themis / 100,
        "shockwave_worst": metrics.worst_ftf,
        "shockwave_unfair_share": metrics.unfair_pct / 100,
        "preemptions": metrics.preemptions,
        "migrations": metrics.migrations,
        "restarts": metrics.restarts,
    }


def answer(answered: Answered, clocks: Mapping[str, Sequence[str]]) -> Iterable[str | Table]:
    """The findings and the figures for people.

    `clocks`: by scheduler, the policies whose decisions wait for the edge of a round while their baselines' do not.
    """
    several = len(answered.groups) > 1
    for group in answered.groups:
        if several:
            yield Line(group.title)
        yield from _gains(group)
        slower = clocks.get(group.scheduler or "", ())
        if group.trace != ALL and slower:
            yield (
                f"{', '.join(slower)}: these wait for the edges of rounds and the baselines do not, "
                "which is part of the difference; without --clock own all decide alike."
            )
            yield ""
        for table in figure_tables(group.results):
            yield table
            yield ""
    if any(finding.gains for finding in answered.findings):
        yield _reading(answered.findings)
        yield ""
    for column, figure in definitions(answered.results, (*_WAITING[-2:], *_FURTHER)):
        yield f"{column.head}: {figure.definition}"
    yield ""
    yield from (f"{name}: {text}" for name, text in answered.conditions.items())
    yield from (f"note: {note}" for note in answered.notes)


def _gains(group: Group) -> Iterable[str | Table]:
    for head, findings in (("gain in avg JCT", group.findings), ("gain in energy", group.energy)):
        table = GainTable.of(findings)
        if not table.rows:
            continue
        rows = [[finding.policy, *texts, finding.finding] for finding, texts in table.rows]
        yield Table([head, *table.heads, "finding"], rows, wrapped=(len(table.heads) + 1,))
        if findings is group.findings and (costs := waiting_costs(group)):
            yield costs
        yield ""


def waiting_costs(group: Group) -> str:
    """What nodes that are left out cost in waiting; "" where no policy leaves any out, or jobs wait as long."""
    policies = [name for name in group.policies if name in _LEAVE_NODES_OUT]
    waits = {name: mean_of(group.results, name, "p95_queue_s") for name in (group.packed, *policies)}
    texts = [f"{wait:,.0f} s with {name}" for name, wait in waits.items() if wait is not None]
    if len({wait for wait in waits.values() if wait is not None}) < 2:
        return ""
    return f"Nodes that are left out cost waiting. 95 % of the jobs waited for at most {', '.join(texts)}."


def _reading(findings: Sequence[PolicyFinding]) -> str:
    """What a gain is, and of how many seeds."""
    gains = [gain for finding in findings for gain in finding.gains]
    n = max(gain.n for gain in gains)
    if n < 2:
        return (
            "A gain is the share of the time, or of the energy, saved. One seed is not evidence. Times are in seconds."
        )
    baselines = " and ".join(dict.fromkeys(gain.against for gain in gains if not gain.of_control))
    return (
        f"A gain is the share of the time, or of the energy, saved: its mean over {n:,} seeds with the 90 % interval "
        "for another such trace on this fleet. Each seed draws what is not sure of the scores, the order of nodes and, "
        f"after the first, the jobs. Better: a measurable gain over {baselines}, and over the policy itself without "
        "scores. No gain by scores: not over itself. Times are in seconds, for the traces as they are."
    )


def figure_tables(results: Sequence[Replayed]) -> list[Table]:
    """The means of the figures over the seeds, a row for each policy; figures that nobody knows are left out."""
    if not results:
        return []
    seeds = {result.case.seed for result in results}
    head = f"mean of {len(seeds):,} seeds" if len(seeds) > 1 else f"seed {min(seeds)}"
    policies = list(dict.fromkeys(result.case.policy for result in results))
    tables = []
    for columns, leaves in _LEAVES.items():
        known_columns = _known(results, columns)
        rows = []
        for policy in policies:
            means = [(column, mean_of(results, policy, column.figure)) for column in known_columns]
            rows.append([policy, *(MISSING if mean is None else column.write(mean) for column, mean in means)])
        heads = [head, *(column.head for column in known_columns)]
        tables.append(Table(heads, rows, range(1, len(heads)), leaves=leaves))
    return tables


def _known(results: Sequence[Replayed], columns: Iterable[FigureColumn]) -> list[FigureColumn]:
    """The columns whose figure some replay knows."""
    return [column for column in columns if any(getattr(row.metrics, column.figure) is not None for row in results)]


def definitions(
    results: Sequence[Replayed], columns: Iterable[FigureColumn] = COLUMNS
) -> list[tuple[FigureColumn, ReplayFigure]]:
    """The columns whose figure some replay knows, each with what the figure is."""
    figures = {figure.name: figure for figure in FIGURES}
    return [(column, figures[column.figure]) for column in _known(results, columns)]


def mean_of(results: Sequence[Replayed], policy: str, figure: str) -> float | None:
    """The mean of a figure over the seeds of a policy; None where there are none, or a seed does not know it."""
    numbers = [getattr(result.metrics, figure) for result in results if result.case.policy == policy]
    return None if not numbers or None in numbers else fmean(numbers)


def policies() -> Table:
    """All policies, and what each needs to know of the work of jobs."""
    rows = [
        [policy.name, "whole" if policy.whole else "placement", policy.knowledge, policy.summary] for policy in POLICIES
    ]
    return Table(["policy", "kind", "needs to know of work", "what it does"], rows, wrapped=(3,))
