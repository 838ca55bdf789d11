"""What a replay says: which policy is best here, by how much, what it costs; then the figures, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from ...analysis.replay.findings import ALL, BETTER, ONE_SEED, GainTable, PolicyFinding, PolicyGain
from ...analysis.replay.outcome import FIGURES, UNFAIR
from ...analysis.replay.policies import POLICIES
from ...analysis.replay.power import JOULES_PER_KWH
from ...analysis.replay.setting import Answered, Group
from ...analysis.replay.study import Replayed
from ..document import Cell, Chart, Column, Document, Facts, Part, Section, Table, TableColumns
from ..figures.replay import (
    BARS,
    KINDS_OF_ENERGY,
    energy_by_kind,
    fairness_distribution,
    gain_by_seed,
    gantt,
    jct_against,
    jct_distribution,
    load_over_time,
    queue_over_time,
)
from ..words import capital, duration, in_unit, many, with_interval

_LEAVE_NODES_OUT = ("drain-outliers", "advice-exclude")
_COUNTS = ("late", "limits_hit")
_BARS_OF_A_PAGE = 20_000  # some 10 bytes each, compressed
_DEFINITIONS = {figure.name: figure.definition for figure in FIGURES}


FigureColumn = tuple[str, Column]
"""A figure of a replay as a column of a table."""


def _column(head: str, figure: str, digits: int | None = None, unit: str = "", drops: int = 0) -> FigureColumn:
    return figure, Column(head, "number", digits, unit, explains=_DEFINITIONS[figure], drops=drops)


_TABLES = (
    (
        _column("avg JCT, s", "avg_jct_s", 0),
        _column("median, s", "median_jct_s", 0, drops=1),
        _column("p99, s", "p99_jct_s", 0),
        _column("makespan, s", "makespan_s", 0),
        _column("held", "util_held", 3, drops=2),
        _column("jobs, kWh", "energy_j"),
    ),
    (
        _column("queueing p50, s", "p50_queue_s", 0, drops=1),
        _column("p95, s", "p95_queue_s", 0),
        _column("p99, s", "p99_queue_s", 0),
        _column("slowdown", "bounded_slowdown"),
        _column("Themis FTF", "worst_ftf_themis", drops=2),
        _column("Themis unfair", "unfair_pct_themis", 0, "%"),
    ),
    (
        _column("Shockwave FTF", "worst_ftf"),
        _column("Shockwave unfair", "unfair_pct", 0, "%"),
        _column("late", "late", drops=1),
        _column("limits hit", "limits_hit", drops=2),
        _column("wasted GPU-h", "wasted_gpu_h"),
        _column("node-hours", "node_hours"),
        _column("in all, kWh", "energy_kwh", drops=3),
        _column("at work, kWh", "jobs_kwh", drops=4),
        _column("idle, kWh", "idle_kwh", drops=5),
        _column("nodes, kWh", "base_kwh"),
    ),
)


# -- for programs ------------------------------------------------------------------------------------------------


def mapping(answered: Answered, apart: Sequence[str] = ()) -> dict[str, Any]:
    """`whorl.replay/1`; the policies `apart` run beside the chosen ones and stand under `baselines`."""
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
    waits = {f"{name}_s": getattr(result.metrics, f"{name}_queue_s") for name in ("p50", "p95", "p99")}
    return result.place() | waits | {"bounded_slowdown": result.metrics.bounded_slowdown}


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


def mean_of(results: Sequence[Replayed], policy: str, figure: str) -> float | None:
    """The mean of a figure over the seeds of a policy; None where there are none, or a seed does not know it."""
    numbers = [getattr(result.metrics, figure) for result in results if result.case.policy == policy]
    return None if not numbers or None in numbers else fmean(numbers)


# -- for people --------------------------------------------------------------------------------------------------


def replay_document(
    answered: Answered, clocks: Mapping[str, Sequence[str]] | None = None, *, charts: bool = False
) -> Document:
    """The replay for people, with `charts` as a page of its own.

    `clocks`: by scheduler, the policies whose decisions wait for the edge of a round while their baselines' do not.
    What happens over time is drawn from the recorded results, those of the first seed.
    """
    groups = answered.groups
    recorded = sum(result.outcome is not None for result in answered.results)
    bars = max(200, min(BARS, _BARS_OF_A_PAGE // max(1, recorded)))
    parts: list[Part] = []
    for group in groups:
        parts += opening(group, group.title if len(groups) > 1 else "")
    for group in groups:
        inside = [*gain_parts(group, charts=charts), *_clock_remark(group, clocks or {}), *figure_tables(group.results)]
        inside += _charts(group, bars) if charts else []
        parts.append(Section(f"Gains and figures{f': {group.title}' if len(groups) > 1 else ''}", inside))
    if any(finding.gains for finding in answered.findings):
        parts.append(Section("What a gain is", [_reading(answered.findings)]))
    parts += [ground(answered), _terms(answered.results)]
    names = list(dict.fromkeys(result.trace for result in answered.results))
    return Document(f"Replay of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}", parts)


def opening(group: Group, title: str = "") -> Iterator[str]:
    """Which policy is best, by how much, and what it costs; `title` says of what, if not ""."""
    about = f"{title}: " if title else ""
    for findings, energy in ((group.findings, False), (group.energy, True)):
        best = best_findings(findings)
        if best:
            yield f"{about}{_verdict(best, energy=energy)}"
        costs = "" if energy or not best or not _measurable(best[0]) else _costs(group, best[0])
        if costs:
            yield f"{about}{costs}"


def best_findings(findings: Sequence[PolicyFinding]) -> list[PolicyFinding]:
    """The policy that gains measurably over most baselines, then most over what is hardest for it, and those that gain
    the same to a tenth of a per cent; none is compared: []."""

    def rank(finding: PolicyFinding) -> tuple[bool, int, float]:
        gains = finding.gains
        return finding.finding == BETTER, len(_measurable(finding)), min(gain.mean_pct for gain in gains)

    candidates = [finding for finding in findings if finding.finding and finding.gains]
    best = max(candidates, key=rank, default=None)
    if best is None:
        return []
    same = [gain.as_text() for gain in best.gains]
    return [finding for finding in candidates if [gain.as_text() for gain in finding.gains] == same]


def _measurable(finding: PolicyFinding) -> list[PolicyGain]:
    """What a policy gains measurably; where one seed was replayed, all of it."""
    one_seed = finding.finding == ONE_SEED
    return [gain for gain in finding.gains if one_seed or (gain.measurable and gain.mean_pct > 0)]


def _verdict(best: Sequence[PolicyFinding], *, energy: bool) -> str:
    """What the best policy gains, and over what no gain is measurable."""
    gains, seeds = best[0].gains, best[0].gains[0].n
    counted = f"n = {many(seeds, 'seed')}, 90 % intervals" if seeds > 1 else "one seed, which is not evidence"
    lower, higher = ("less energy", "more energy") if energy else ("sooner", "later")

    def sizes(chosen: Sequence[PolicyGain]) -> str:
        baselines: dict[str, list[str]] = {}
        for gain in chosen:
            baseline = "without scores" if gain.of_control else f"with {gain.against}"
            baselines.setdefault(_size(gain, lower, higher), []).append(baseline)
        return ", ".join(f"{size} than {' and '.join(names)}" for size, names in baselines.items())

    measurable = _measurable(best[0])
    unsure = [gain for gain in gains if gain not in measurable]
    if not any(gain for gain in measurable if not gain.of_control):
        saves = "saves energy measurably" if energy else "gains measurably"
        over = " and ".join(gain.against for gain in gains if not gain.of_control)
        return f"No policy {saves} over {over} and over itself without scores ({counted}). The nearest: {sizes(gains)}."
    names = " and ".join(finding.policy for finding in best)
    is_better = best[0].finding in (BETTER, ONE_SEED)
    one, several = ("needs", "need") if energy else ("is", "are") if is_better else ("gains", "gain")
    verb = one if len(best) == 1 else several
    leads = (
        f"{names} {verb}" if energy else f"{names} {verb}{' best here' if is_better else ''}: jobs are done on average"
    )
    but = f"; not measurable: {sizes(unsure)}" if unsure else ""
    return f"{leads} {sizes(measurable)}{but} ({counted})."


def _size(gain: PolicyGain, lower: str, higher: str) -> str:
    sign = 1 if gain.mean_pct >= 0 else -1
    ends = (gain.lower_pct, gain.upper_pct) if sign > 0 else (gain.upper_pct, gain.lower_pct)
    low, high = (None if end is None else sign * end for end in ends)
    return f"{with_interval(sign * gain.mean_pct, low, high, unit='%')} {lower if sign > 0 else higher}"


def _costs(group: Group, best: PolicyFinding) -> str:
    """What the best policy costs beside packed: waiting, fairness, energy; "" where packed was not replayed."""
    if group.packed not in group.policies or best.policy == group.packed:
        return ""
    texts = []
    for figure, write, wording in (
        ("p95_queue_s", duration, "95 % of the jobs wait at most {} ({})"),
        ("unfair_pct_themis", lambda mean: f"{mean:.0f} %", "{} of the jobs are treated unfairly ({})"),
        ("energy_kwh", lambda mean: in_unit(mean * JOULES_PER_KWH), "the energy is {} ({})"),
    ):
        means = [mean_of(group.results, policy, figure) for policy in (best.policy, group.packed)]
        known = [write(mean) for mean in means if mean is not None]
        if len(known) == len(means):
            texts.append(wording.format(*known))
    return f"What it costs, in brackets beside {group.packed}: {'; '.join(texts)}." if texts else ""


def gain_parts(group: Group, *, charts: bool = False) -> Iterator[Part]:
    """The gains of all policies, and with `charts` seed by seed; first in time, then in energy."""
    for figure, findings in (("average completion time", group.findings), ("energy", group.energy)):
        table = GainTable.of(findings)
        if not table.rows:
            continue
        rows: list[list[Cell]] = [
            [finding.policy, *texts, finding.finding, _seeds(finding)] for finding, texts in table.rows
        ]
        columns = [Column(f"gain in {figure}"), *map(Column, table.heads), Column("finding", "sentence")]
        below = _waiting_costs(group) if findings is group.findings else ""
        yield Table([*columns, Column("seeds", "count", drops=1)], rows, below=below)
        if charts:
            yield _by_seed(figure, table, max(_seeds(finding) for finding, _ in table.rows))


def _seeds(finding: PolicyFinding) -> int:
    return max(gain.n for gain in finding.gains)


def _by_seed(figure: str, table: GainTable, seeds: int) -> Chart:
    counted = (
        f"n = {seeds} seeds; each draws what is not sure of the scores, the order of nodes and, after the first, the "
        "jobs. The bars are 90 % intervals for another such trace."
    )
    if seeds == 1:
        counted = "One seed is not evidence and has no interval."
    return Chart(
        f"Gain in {figure}, seed by seed",
        "A point is a seed. Right of 0 the policy is better than the baseline, or than itself without scores, with the "
        f"same seed. {counted}",
        {head: gain_by_seed(table.drawn[head]) for head in reversed(table.heads)},
    )


def _waiting_costs(group: Group) -> str:
    """What nodes that are left out cost in waiting; "" where no policy leaves any out, or jobs wait as long."""
    policies = [name for name in group.policies if name in _LEAVE_NODES_OUT]
    waits = {name: mean_of(group.results, name, "p95_queue_s") for name in (group.packed, *policies)}
    texts = [f"{wait:,.0f} s with {name}" for name, wait in waits.items() if wait is not None]
    if len({wait for wait in waits.values() if wait is not None}) < 2:
        return ""
    return f"Nodes that are left out cost waiting. 95 % of the jobs waited for at most {', '.join(texts)}."


def _clock_remark(group: Group, clocks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    slower = clocks.get(group.scheduler or "", ())
    if group.trace != ALL and slower:
        yield (
            f"{', '.join(slower)}: these wait for the edges of rounds and the baselines do not, "
            "which is part of the difference; without clock=own all decide alike."
        )


def figure_tables(results: Sequence[Replayed]) -> list[Table]:
    """The means of the figures over the seeds, a row for each policy; figures that nobody knows are left out."""
    if not results:
        return []
    seeds = {result.case.seed for result in results}
    head = f"mean of {len(seeds):,} seeds" if len(seeds) > 1 else f"seed {min(seeds)}"
    policies = list(dict.fromkeys(result.case.policy for result in results))
    tables = []
    for figures in _TABLES:
        columns: TableColumns = [(head, str)]
        for figure, column in _known_columns(results, figures):
            means = {policy: mean_of(results, policy, figure) for policy in policies}
            if figure == "energy_j":  # stored in joules, and written in kWh
                means = {policy: mean and mean / JOULES_PER_KWH for policy, mean in means.items()}
            if figure in _COUNTS and all(mean is None or mean.is_integer() for mean in means.values()):
                column = replace(column, digits=0)  # over seeds it need not be whole
            columns.append((column, means.get))
        tables.append(Table.of(policies, columns))
    return tables


def _known_columns(results: Sequence[Replayed], columns: Iterable[FigureColumn]) -> list[FigureColumn]:
    """The columns whose figure some replay knows."""
    return [
        (figure, column)
        for figure, column in columns
        if any(getattr(row.metrics, figure) is not None for row in results)
    ]


def _reading(findings: Sequence[PolicyFinding]) -> str:
    """What a gain is, and of how many seeds."""
    gains = [gain for finding in findings for gain in finding.gains]
    n = max(gain.n for gain in gains)
    if n < 2:
        return "A gain is the share of the time, or of the energy, saved. One seed is not evidence."
    baselines = " and ".join(dict.fromkeys(gain.against for gain in gains if not gain.of_control))
    return (
        f"A gain is the share of the time, or of the energy, saved: its mean over {n:,} seeds with the 90 % interval "
        "for another such trace on this fleet. Each seed draws what is not sure of the scores, the order of nodes and, "
        f"after the first, the jobs. Better: a measurable gain over {baselines}, and over the policy itself without "
        "scores. No gain by scores: not over itself. Times are those of the traces as they are."
    )


def ground(answered: Answered) -> Section:
    """Under what conditions the replay holds, and its notes."""
    facts = [Facts([(capital(name), text) for name, text in answered.conditions.items()])]
    return Section("Conditions and notes", [*facts, *(f"Note: {note}" for note in answered.notes)])


def _terms(results: Sequence[Replayed]) -> Section:
    """What the figures are."""
    units = {figure.name: "kWh" if figure.unit == "J" else figure.unit for figure in FIGURES}
    columns: TableColumns = [
        ("figure", lambda row: row[1].head.partition(",")[0]),
        ("unit", lambda row: units[row[0]]),
        (Column("what it is", "sentence"), lambda row: _DEFINITIONS[row[0]]),
    ]
    table = Table.of([row for of_table in _TABLES for row in _known_columns(results, of_table)], columns)
    return Section("What the figures are", [table], folded=True)


def policy_table() -> Table:
    """All policies, and what each needs to know of the work of jobs."""
    columns: TableColumns = [
        ("policy", "name"),
        ("kind", lambda policy: "whole" if policy.whole else "placement"),
        ("needs to know of work", "knowledge"),
        (Column("what it does", "sentence"), "summary"),
    ]
    return Table.of(POLICIES, columns)


# -- figures -----------------------------------------------------------------------------------------------------


def _charts(group: Group, bars: int) -> list[Part]:
    results, policies = group.results, group.policies
    if not results:
        return []
    counted = f"n = {results[0].metrics.jobs:,} jobs x {many(len({result.case.seed for result in results}), 'seed')}"
    same = f"{counted}. A line of several names is the same for all."
    times, themis, shockwave = (
        {
            policy: np.concatenate([getattr(result, name) for result in results if result.case.policy == policy])
            for policy in policies
        }
        for name in ("jct_s", "fairness", "shockwave_fairness")
    )
    # First against packed: times that differ by some per cent can hardly be told apart as they are.
    against = {f"against {group.packed}": jct_against(times, group.packed)} if group.packed in times else {}
    charts: list[Part] = [
        Chart(
            "Completion times of the jobs",
            f"From submission to the end, waiting included; {same}",
            (against if len(times) > 1 else {}) | {"as they are": jct_distribution(times)},
        ),
        Chart(
            "Finish-time fairness of the jobs",
            f"1 is an equal share of the fleet; above {UNFAIR:g} a job counts as treated unfairly; {same}",
            {"after Themis": fairness_distribution(themis), "after Shockwave": fairness_distribution(shockwave)},
        ),
    ]
    kwh = {name: {policy: mean_of(results, policy, name) for policy in policies} for name in KINDS_OF_ENERGY}
    if any(mean is not None for means in kwh.values() for mean in means.values()):
        caption = "Mean over the seeds. Jobs: what they drew above the idle power of their GPUs, where that is known."
        charts.append(Chart("Energy", caption, {"": energy_by_kind(kwh)}))
    return [*charts, *_charts_over_time(results, bars)]


def _charts_over_time(results: Sequence[Replayed], bars: int) -> list[Chart]:
    recorded = {result.case.policy: result for result in results if result.outcome is not None}
    outcomes = {policy: result.outcome for policy, result in recorded.items() if result.outcome is not None}
    if not outcomes:
        return []
    seed = next(iter(recorded.values())).case.seed
    gantts = {policy: gantt(outcome, recorded[policy].world, bars) for policy, outcome in outcomes.items()}
    cut = [policy for policy, (_, until) in gantts.items() if until < outcomes[policy].end_s]
    part = f" Only the first {bars:,} bars are shown of {', '.join(cut)}." if cut else ""
    mean = f"Seed {seed}; each point is the mean over a 400th of the time."
    return [
        Chart("Jobs waiting", mean, {"": queue_over_time(outcomes)}),
        Chart("GPUs held", f"Share of the fleet. {mean}", {"": load_over_time(outcomes)}),
        Chart(
            "Which job held which GPU",
            f"Seed {seed}. A bar is one job on neighbouring GPUs. The colour shows its slowdown against median GPUs of "
            f"one node.{part}",
            {policy: figure for policy, (figure, _) in gantts.items()},
        ),
    ]
