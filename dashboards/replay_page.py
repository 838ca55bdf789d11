"""The page of a replay: for each trace and scheduler what was gained, and how jobs, queue and GPUs fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

import numpy as np

from ..analysis.replay.comparison import Gain, finding
from ..analysis.replay.outcome import BRIEF_S, UNFAIR
from ..analysis.replay.study import Replayed
from .page import Drawing, Section, page
from .replay import BARS, gain_by_seed, gantt, jct_distribution, load_over_time, queue_over_time
from .table import Table, number

_BARS_OF_A_PAGE = 20_000  # some 10 bytes each, compressed


def replay_page(
    results: Sequence[Replayed], gains: Sequence[Gain], *, conditions: Mapping[str, str], notes: Sequence[str]
) -> str:
    """The page as HTML. What happens over time is drawn from the recorded results, those of the first seed."""
    groups = [
        (trace, scheduler, list(members))
        for (trace, scheduler), members in groupby(results, key=lambda one: (one.trace, one.case.scheduler))
    ]
    recorded = sum(result.outcome is not None for result in results)
    bars = max(200, min(BARS, _BARS_OF_A_PAGE // max(1, recorded)))
    sections, summary = [], []
    for trace, scheduler, members in groups:
        own = [gain for gain in gains if (gain.trace, gain.scheduler) == (trace, scheduler)]
        where = f"{trace}, {scheduler}" if len(groups) > 1 else ""
        summary += _summary(own, where)
        sections.append(_section(f"{trace}, {scheduler}", members, own, bars))
    names = list(dict.fromkeys(trace for trace, _, _ in groups))
    title = f"Replay of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    return page(title, summary, sections, conditions=conditions, notes=notes)


def _summary(gains: Sequence[Gain], where: str) -> list[str]:
    """The policy that gains most over the baseline that is hardest for it, in a sentence."""
    own: dict[str, list[Gain]] = {}
    against = {gain.against for gain in gains}
    for gain in gains:
        if gain.figure == "avg_jct_s" and gain.policy not in against:
            own.setdefault(gain.policy, []).append(gain)
    if not own:
        return []
    best = max(own, key=lambda policy: min(gain.mean_pct for gain in own[policy]))
    place = f"{where}: " if where else ""
    found = finding(own[best])
    if found in ("worse", "no measurable gain"):
        return [f"{place}No policy gains measurably over {' and '.join(sorted(against))} ({own[best][0].n} seeds)."]
    sizes = " and ".join(
        f"{abs(gain.mean_pct):.1f} % {'shorter' if gain.mean_pct >= 0 else 'longer'} than with {gain.against}"
        + ("" if gain.lower_pct is None else f" (90 % interval {gain.lower_pct:.1f} to {gain.upper_pct:.1f})")
        for gain in own[best]
    )
    rests = "one seed, which is not evidence" if own[best][0].n < 2 else f"{own[best][0].n} seeds"
    return [f"{place}With {best} the average completion time is {sizes}; {rests}."]


def _section(title: str, results: Sequence[Replayed], gains: Sequence[Gain], bars: int) -> Section:
    parts: list[Table | Drawing] = []
    policies = list(dict.fromkeys(result.case.policy for result in results))
    seeds = len({result.case.seed for result in results})
    if gains:
        parts.append(_gain_table(gains, policies))
    parts += [_figures_table(results, policies), _waiting_table(results, policies)]
    average = [gain for gain in gains if gain.figure == "avg_jct_s"]
    rests = f"n = {seeds} seeds; the bars are 90 % intervals of the mean (Student's t)."
    if seeds == 1:
        rests = "One seed is not evidence and has no interval."
    against = list(dict.fromkeys(gain.against for gain in average))[::-1]
    if average:
        parts.append(
            Drawing(
                "Gain in average completion time, seed by seed",
                f"Above 0 the policy is faster than the baseline with the same seed. {rests}",
                {f"over {name}": gain_by_seed([g for g in average if g.against == name]) for name in against},
            )
        )
    n = f"n = {results[0].metrics.jobs:,} jobs x {seeds} seed{'s' if seeds > 1 else ''}"
    pooled = {
        policy: np.concatenate([result.jct_s for result in results if result.case.policy == policy])
        for policy in policies
    }
    parts.append(
        Drawing(
            "Completion times of the jobs",
            f"From submission to the end, waiting included; {n}.",
            {"": jct_distribution(pooled)},
        )
    )
    parts += _over_time(results, bars)
    return Section(title, "", parts)


def _over_time(results: Sequence[Replayed], bars: int) -> list[Drawing]:
    recorded = {result.case.policy: result for result in results if result.outcome is not None}
    outcomes = {policy: result.outcome for policy, result in recorded.items() if result.outcome is not None}
    if not outcomes:
        return []
    seed = next(iter(recorded.values())).case.seed
    drawn = {policy: gantt(outcome, recorded[policy].fleet, bars) for policy, outcome in outcomes.items()}
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


def _gain_table(gains: Sequence[Gain], policies: Sequence[str]) -> Table:
    found = {(gain.policy, gain.against, gain.figure): gain for gain in gains}
    against = list(dict.fromkeys(gain.against for gain in gains))
    rows = []
    for policy in policies:
        own = [found.get((policy, name, "avg_jct_s")) for name in against]
        if any(own):
            rows.append([policy, *(_gain_text(gain) for gain in own), str(max(gain.n for gain in own if gain))])
    return Table(["gain in average JCT", *(f"over {name}" for name in against), "seeds"], rows, [len(against) + 1])


def _gain_text(gain: Gain | None) -> str:
    if gain is None:
        return ""
    return gain.as_text() if gain.measurable or gain.n < 2 else f"{gain.as_text()}, not measurable"


def _figures_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    rows = []
    for policy in policies:
        own = [result.metrics for result in results if result.case.policy == policy]
        rows.append(
            [
                policy,
                *(
                    f"{fmean(getattr(one, name) for one in own):,.0f}"
                    for name in ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")
                ),
                f"{100 * fmean(one.util_held for one in own):.1f} %",
            ]
        )
    header = [_of_seeds(results), "avg JCT, s", "median, s", "p99, s", "makespan, s", "GPUs held"]
    return Table(header, rows, range(1, 6))


def _waiting_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    rows = []
    for policy in policies:
        own = [result.metrics for result in results if result.case.policy == policy]
        rows.append(
            [
                policy,
                *(
                    f"{fmean(getattr(one, name) for one in own):,.0f}"
                    for name in ("queueing_p50_s", "queueing_p95_s", "queueing_p99_s")
                ),
                *(
                    number(fmean(getattr(one, name) for one in own), 3)
                    for name in ("bounded_slowdown", "fairness_worst")
                ),
                f"{100 * fmean(one.unfair_share for one in own):.0f} %",
            ]
        )
    header = [_of_seeds(results), "queueing p50, s", "p95, s", "p99, s", "bounded slowdown", "worst rho", "unfair jobs"]
    says = (
        "Queueing is the time for which a job had no GPUs. The slowdown is the mean over the jobs, each of "
        f"which counts as {BRIEF_S:g} s long at least. Rho is the finish-time fairness: a job above {UNFAIR:g} is "
        "treated unfairly."
    )
    return Table(header, rows, range(1, 7), says=says)


def _of_seeds(results: Sequence[Replayed]) -> str:
    seeds = {result.case.seed for result in results}
    return f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {min(seeds)}"
