"""The page of a replay: for each trace and scheduler what was gained, and how jobs, queue and GPUs fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.replay.findings import BETTER, ONE_SEED, GainTable, PolicyFinding
from ..analysis.replay.outcome import UNFAIR
from ..analysis.replay.setting import Answered, Group
from ..analysis.replay.study import Replayed
from .page import Drawing, Section, page
from .printed.replay import definitions, figure_tables, mean_of, waiting_costs
from .replay import (
    BARS,
    KINDS_OF_ENERGY,
    Floats,
    energy_by_kind,
    fairness_distribution,
    gain_by_seed,
    gantt,
    jct_against,
    jct_distribution,
    load_over_time,
    queue_over_time,
)
from .table import Table

if TYPE_CHECKING:
    from .figures.drawing import Figure

_BARS_OF_A_PAGE = 20_000  # some 10 bytes each, compressed


def replay_page(answered: Answered) -> str:
    """The page as HTML. What happens over time is drawn from the recorded results, those of the first seed."""
    groups = answered.groups
    recorded = sum(result.outcome is not None for result in answered.results)
    bars = max(200, min(BARS, _BARS_OF_A_PAGE // max(1, recorded)))
    summaries: list[str] = []
    for group in groups:
        title = group.title if len(groups) > 1 else ""
        summaries += [*summary(group.findings, title), *summary(group.energy, title, energy=True)]
    sections = [Section(group.title, "", [*_gains(group), *_figures(group, bars)]) for group in groups]
    rows = [
        [column.head, "kWh" if figure.unit == "J" else figure.unit, figure.definition]
        for column, figure in definitions(answered.results)
    ]
    sections.append(Section("Figures", "", [Table(["figure", "unit", "what it is"], rows, wrapped=(2,))]))
    names = list(dict.fromkeys(result.trace for result in answered.results))
    title = f"Replay of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    return page(title, summaries, sections, conditions=answered.conditions, notes=answered.notes)


def summary(findings: Sequence[PolicyFinding], title: str, *, energy: bool = False) -> list[str]:
    """The policy that gains most over what is hardest for it, in a sentence; `title` says of what, if not "".

    The findings are of the average completion time, or of the energy.
    """
    candidates = [finding for finding in findings if finding.finding and finding.gains]
    if not candidates:
        return []
    best = max(candidates, key=lambda row: (row.finding == BETTER, min(gain.mean_pct for gain in row.gains)))
    about = f"{title}: " if title else ""
    gains, figure = ("saves energy measurably", "energy") if energy else ("gains measurably", "average completion time")
    less, more = ("lower", "higher") if energy else ("shorter", "longer")
    seeds = best.gains[0].n
    if best.finding not in (BETTER, ONE_SEED):
        over = " and ".join(gain.against for gain in best.gains if not gain.of_control)
        return [f"{about}No policy {gains} over {over} and over itself without scores ({seeds} seeds)."]
    sizes = " and ".join(
        f"{abs(gain.mean_pct):.1f} % {less if gain.mean_pct >= 0 else more} than with {gain.against}"
        + ("" if gain.lower_pct is None else f" (90 % interval {gain.lower_pct:.1f} to {gain.upper_pct:.1f})")
        for gain in best.gains
    )
    rests = "one seed, which is not evidence" if seeds < 2 else f"{seeds} seeds"
    return [f"{about}With {best.policy} the {figure} is {sizes}; {rests}."]


def _gains(group: Group) -> list[Table | Drawing]:
    """The gains of all policies, as a table and seed by seed; first in time, then in energy."""
    parts: list[Table | Drawing] = []
    for figure, findings, costs in (
        ("average completion time", group.findings, waiting_costs(group)),
        ("energy", group.energy, ""),
    ):
        table = GainTable.of(findings)
        if not table.rows:
            continue
        counts = [max(gain.n for gain in finding.gains) for finding, _ in table.rows]
        rows = [
            [finding.policy, *texts, finding.finding, str(count)]
            for (finding, texts), count in zip(table.rows, counts, strict=True)
        ]
        seeds = max(counts)
        rests = (
            f"n = {seeds} seeds; each draws what is not sure of the scores, the order of nodes and, after the first, "
            "the jobs. The bars are 90 % intervals for another such trace."
        )
        if seeds == 1:
            rests = "One seed is not evidence and has no interval."
        head = [f"gain in {figure}", *table.heads, "finding", "seeds"]
        parts.append(Table(head, rows, [len(head) - 1], says=costs))
        parts.append(
            Drawing(
                f"Gain in {figure}, seed by seed",
                "A point is a seed. Right of 0 the policy is better than the baseline, or than itself without scores, "
                f"with the same seed. {rests}",
                {over: gain_by_seed(table.drawn[over]) for over in reversed(table.heads)},
            )
        )
    return parts


def _figures(group: Group, bars: int) -> list[Table | Drawing]:
    results, policies = group.results, group.policies
    if not results:
        return []
    seeds = len({result.case.seed for result in results})
    n = f"n = {results[0].metrics.jobs:,} jobs x {seeds} seed{'s' if seeds > 1 else ''}"
    same = f"{n}. A line of several names is the same for all."
    times, themis, shockwave = (
        {
            policy: np.concatenate([getattr(result, name) for result in results if result.case.policy == policy])
            for policy in policies
        }
        for name in ("jct_s", "fairness", "shockwave_fairness")
    )
    kwh = {name: {policy: mean_of(results, policy, name) for policy in policies} for name in KINDS_OF_ENERGY}
    drawings = [
        Drawing(
            "Completion times of the jobs",
            f"From submission to the end, waiting included; {same}",
            _distributions(times, group.packed),
        ),
        Drawing(
            "Finish-time fairness of the jobs",
            f"1 is an equal share of the fleet; above {UNFAIR:g} a job counts as treated unfairly; {same}",
            {"after Themis": fairness_distribution(themis), "after Shockwave": fairness_distribution(shockwave)},
        ),
    ]
    if any(mean is not None for means in kwh.values() for mean in means.values()):
        says = "Mean over the seeds. Jobs: what they drew above the idle power of their GPUs, where that is known."
        drawings.append(Drawing("Energy", says, {"": energy_by_kind(kwh)}))
    return [*figure_tables(results), *drawings, *_over_time(results, bars)]


def _distributions(jct_s: Mapping[str, Floats], packed: str) -> dict[str, Figure]:
    """First against packed: times that differ by some percent can hardly be told apart as they are."""
    against = {f"against {packed}": jct_against(jct_s, packed)} if packed in jct_s and len(jct_s) > 1 else {}
    return against | {"as they are": jct_distribution(jct_s)}


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
