"""The page of a replay: for each trace and scheduler what was gained, and how jobs, queue and GPUs fared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.replay.findings import ALL, BETTER, ONE_SEED, Finding, GainTable
from ..analysis.replay.outcome import BRIEF_S, UNFAIR
from ..analysis.replay.study import Replayed
from .page import Drawing, Section, page
from .printed.replay import of_seeds
from .replay import BARS, Floats, gain_by_seed, gantt, jct_against, jct_distribution, load_over_time, queue_over_time
from .table import Table, number

if TYPE_CHECKING:
    from .figures.drawing import Figure

_BARS_OF_A_PAGE = 20_000  # some 10 bytes each, compressed


def replay_page(
    results: Sequence[Replayed], findings: Sequence[Finding], *, conditions: Mapping[str, str], notes: Sequence[str]
) -> str:
    """The page as HTML. What happens over time is drawn from the recorded results, those of the first seed."""
    groups = [
        (trace, scheduler, list(members))
        for (trace, scheduler), members in groupby(results, key=lambda one: (one.trace, one.case.scheduler))
    ]
    recorded = sum(result.outcome is not None for result in results)
    bars = max(200, min(BARS, _BARS_OF_A_PAGE // max(1, recorded)))
    sections, said = [], []
    for trace, scheduler, members in groups:
        own = [one for one in findings if (one.trace, one.scheduler) == (trace, scheduler)]
        where = f"{trace}, {scheduler}" if len(groups) > 1 else ""
        said += summary(own, where)
        sections.append(_section(f"{trace}, {scheduler}", members, own, bars))
    together = [one for one in findings if one.trace == ALL]
    for scheduler, of_all in groupby(together, key=lambda one: one.scheduler):
        own = list(of_all)
        said += summary(own, f"{ALL}, {scheduler}")
        sections.append(Section(f"{ALL}, {scheduler}", "", _gains(own)))
    names = list(dict.fromkeys(trace for trace, _, _ in groups))
    title = f"Replay of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    return page(title, said, sections, conditions=conditions, notes=notes)


def summary(findings: Sequence[Finding], where: str) -> list[str]:
    """The policy that gains most over what is hardest for it, in a sentence."""
    own = [one for one in findings if one.finding and one.gains]
    if not own:
        return []
    best = max(own, key=lambda one: (one.finding == BETTER, min(gain.mean_pct for gain in one.gains)))
    place = f"{where}: " if where else ""
    seeds = best.gains[0].n
    if best.finding not in (BETTER, ONE_SEED):
        over = " and ".join(gain.against for gain in best.gains if not gain.of_control)
        return [f"{place}No policy gains measurably over {over} and over itself without scores ({seeds} seeds)."]
    sizes = " and ".join(
        f"{abs(gain.mean_pct):.1f} % {'shorter' if gain.mean_pct >= 0 else 'longer'} than with {gain.against}"
        + ("" if gain.lower_pct is None else f" (90 % interval {gain.lower_pct:.1f} to {gain.upper_pct:.1f})")
        for gain in best.gains
    )
    rests = "one seed, which is not evidence" if seeds < 2 else f"{seeds} seeds"
    return [f"{place}With {best.policy} the average completion time is {sizes}; {rests}."]


def _gains(findings: Sequence[Finding]) -> list[Table | Drawing]:
    """The gains of all policies, as a table and seed by seed."""
    table = GainTable.of(findings)
    if not table.rows:
        return []
    counts = [max(gain.n for gain in finding.gains) for finding, _ in table.rows]
    rows = [
        [finding.policy, *texts, finding.finding, str(count)]
        for (finding, texts), count in zip(table.rows, counts, strict=True)
    ]
    seeds = max(counts)
    rests = (
        f"n = {seeds} seeds; each draws what is not sure of the scores, the order of nodes and, after the first, the "
        "jobs. The bars are 90 % intervals for another such trace."
    )
    if seeds == 1:
        rests = "One seed is not evidence and has no interval."
    return [
        Table(["gain in average JCT", *table.heads, "finding", "seeds"], rows, [len(table.heads) + 2]),
        Drawing(
            "Gain in average completion time, seed by seed",
            "A point is a seed. Right of 0 the policy is faster than the baseline, or than itself without scores, with "
            f"the same seed. {rests}",
            {head: gain_by_seed(table.drawn[head]) for head in reversed(table.heads)},
        ),
    ]


def _section(title: str, results: Sequence[Replayed], findings: Sequence[Finding], bars: int) -> Section:
    policies = list(dict.fromkeys(result.case.policy for result in results))
    seeds = len({result.case.seed for result in results})
    parts = [*_gains(findings), _figures_table(results, policies), _waiting_table(results, policies)]
    n = f"n = {results[0].metrics.jobs:,} jobs x {seeds} seed{'s' if seeds > 1 else ''}"
    pooled = {
        policy: np.concatenate([result.jct_s for result in results if result.case.policy == policy])
        for policy in policies
    }
    parts.append(
        Drawing(
            "Completion times of the jobs",
            f"From submission to the end, waiting included; {n}. A line of several names is the same for all.",
            _distributions(pooled),
        )
    )
    parts += _over_time(results, bars)
    return Section(title, "", parts)


def _distributions(jct_s: Mapping[str, Floats]) -> dict[str, Figure]:
    """First against packed: times that differ by some percent can hardly be told apart as they are."""
    packed = [name for name in ("packed", "packed-sticky") if name in jct_s and len(jct_s) > 1]
    return {f"against {name}": jct_against(jct_s, name) for name in packed} | {"as they are": jct_distribution(jct_s)}


def _over_time(results: Sequence[Replayed], bars: int) -> list[Drawing]:
    recorded = {result.case.policy: result for result in results if result.outcome is not None}
    outcomes = {policy: result.outcome for policy, result in recorded.items() if result.outcome is not None}
    if not outcomes:
        return []
    seed = next(iter(recorded.values())).case.seed
    drawn = {policy: gantt(outcome, recorded[policy].world, bars) for policy, outcome in outcomes.items()}
    cut = [policy for policy, (_, until) in drawn.items() if until < outcomes[policy].end_s]
    part = f" Only the first {bars:,} bars are shown of {', '.join(cut)}." if cut else ""
    mean = f"Seed {seed}; each point is the mean over a 400th of the time."
    return [
        Drawing("Jobs waiting", mean, {"": queue_over_time(outcomes)}),
        Drawing("GPUs held", f"Share of the fleet. {mean}", {"": load_over_time(outcomes)}),
        Drawing(
            "Which job held which GPU",
            f"Seed {seed}. A bar is one job on neighbouring GPUs. The colour shows its slowdown against median GPUs of "
            f"one node.{part}",
            {policy: figure for policy, (figure, _) in drawn.items()},
        ),
    ]


def _figures_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    cells = _in_s("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")
    rows = _means(results, policies, cells | {"util_held": lambda share: f"{100 * share:.1f} %"})
    header = [of_seeds(results), "avg JCT, s", "median, s", "p99, s", "makespan, s", "GPUs held"]
    return Table(header, rows, range(1, 6))


def _waiting_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    cells = _in_s("p50_queue_s", "p95_queue_s", "p99_queue_s")
    cells |= dict.fromkeys(("bounded_slowdown", "worst_ftf_themis"), lambda mean: number(mean, 3))
    rows = _means(results, policies, cells | {"unfair_pct_themis": "{:.0f} %".format})
    header = [of_seeds(results), "queueing p50, s", "p95, s", "p99, s", "bounded slowdown", "worst rho", "unfair jobs"]
    says = (
        "Queueing is the time for which a job had no GPUs. The slowdown is the mean over the jobs, each of "
        f"which counts as {BRIEF_S:g} s long at least. Rho is the finish-time fairness: a job above {UNFAIR:g} is "
        "treated unfairly."
    )
    return Table(header, rows, range(1, 7), says=says)


def _in_s(*names: str) -> dict[str, Callable[[float], str]]:
    return dict.fromkeys(names, "{:,.0f}".format)


def _means(
    results: Sequence[Replayed], policies: Sequence[str], cells: Mapping[str, Callable[[float], str]]
) -> list[list[str]]:
    """A row for each policy: its name, and the means of figures over its seeds, each written by a function."""
    rows = []
    for policy in policies:
        own = [result.metrics for result in results if result.case.policy == policy]
        rows.append([policy, *(write(fmean(getattr(one, name) for one in own)) for name, write in cells.items())])
    return rows
