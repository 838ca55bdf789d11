"""A replay of the store's own jobs: what each policy gains over the baselines, and over itself without scores."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ....analysis.replay.findings import GainTable
from ....analysis.replay.setting import Answered, general_of
from ....analysis.replay.stored import MOST_JOBS, stored_trace
from ...answers.replay import DEFAULTS
from ...replay import gain_by_seed
from ...replay_page import summary
from ...table import minus
from ..page import command, graph, prose, rows, told

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ....analysis.replay.stored import StoredJobs
    from ....store import Store

SEEDS = (5, 10, 20)
POLICIES = ("packed", "advice-exclude", "pm-first", "pal")


def replayed(
    store: Store,
    cluster: str,
    workload: str,
    *,
    seeds: int,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Answered:
    """The store's own jobs, each as if it ran `workload`, under some policies. Raises InputError."""
    options: dict[str, Any] = {**DEFAULTS, "store": str(store.root), "cluster": cluster, "clock": "events"}
    setting = general_of([stored_trace(store, cluster)], options | {"classes": {"*": workload}, "policy": POLICIES})
    return setting.answer(seeds=seeds, workers=workers, progress=progress)


def about(jobs: StoredJobs, store: str) -> list[Component]:
    """What would be replayed, or why nothing can be."""
    if jobs.usable:
        newest = f" The newest {MOST_JOBS:,} are replayed." if jobs.usable > MOST_JOBS else ""
        says = (
            f"{jobs.usable:,} of {jobs.jobs:,} jobs of this cluster can be replayed on the measured GPUs, each as if "
            f"it ran the workload above.{newest}"
        )
        return [html.P(says, className="soft")]
    why = "This store has no jobs of this cluster." if not jobs.jobs else "None of its jobs can be replayed."
    return [
        told(
            html.P(f"{why} Read those of the last month from Slurm's accounting:"),
            command(f"whorl jobs import --store {shlex.quote(store)} --since 30d"),
            html.P(prose("`whorl replay --trace FILE` replays the trace of another cluster.")),
            kind="empty",
        )
    ]


def body(answered: Answered) -> Component:
    """The findings of a replay."""
    table = GainTable.of(answered.findings)
    cells = [
        [finding.policy, *texts, finding.finding, str(max(gain.n for gain in finding.gains))]
        for finding, texts in table.rows
    ]
    parts: list[Any] = [html.P(minus(sentence), className="finding") for sentence in summary(answered.findings, "")]
    parts.append(
        rows(
            ["gain in average JCT", *table.heads, "finding", "seeds"],
            cells,
            right=(len(table.heads) + 2,),
            label="Gains of policies",
        )
    )
    for head in reversed(table.heads):
        parts.append(html.H3(f"Gain {head}, seed by seed"))
        parts.append(graph(gain_by_seed(table.drawn[head]), f"gain {head}, seed by seed"))
    parts.append(
        html.P(
            "A point is a seed; right of 0 the policy is faster. The bars are 90 % intervals for another such trace on "
            "this fleet: each seed draws what is not sure of the scores, the order of nodes and, after the first, the "
            "jobs.",
            className="soft",
        )
    )
    remarks = [html.Li(f"{name}: {text}") for name, text in answered.conditions.items()]
    remarks += [html.Li(f"note: {note}") for note in answered.notes]
    parts.append(html.Details([html.Summary("Conditions and notes"), html.Ul(remarks)]))
    return html.Div(parts)


def choices(seeds: int) -> Component:
    """How many seeds to replay."""
    options: Any = [{"label": f"{count} seeds", "value": count} for count in SEEDS]
    return dcc.Dropdown(options, seeds, id="placement-seeds", clearable=False, searchable=False)
