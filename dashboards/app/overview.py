"""The first page: what the store holds, the newest campaigns, who stands out, and where to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ...analysis.verdicts import Level
from ..table import MISSING, many
from ..verdict_words import interval, percent
from .page import RUNS, VERDICTS, Page, command, heading, rows, section, tiles, told

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .reading import Reading
    from .state import State

_MOST = 12
Link = Callable[..., Any]
"""A text and the path of a page, with what it shows: a link where there is such a page, else the text."""

_GPUS = (
    "SELECT count(*) AS gpus, count(DISTINCT (cluster, node)) FILTER (node IS NOT NULL) AS nodes, "
    "count(DISTINCT cluster) AS clusters, string_agg(DISTINCT model, ', ' ORDER BY model) AS models "
    "FROM gpus_now WHERE mig_profile IS NULL"
)
_RUNS = (
    "SELECT count(*) AS runs, count(DISTINCT workload) AS workloads, min(began) AS first, max(began) AS last FROM runs"
)
_CAMPAIGNS = (
    "SELECT c.*, r.runs, r.measured FROM (SELECT * FROM campaigns QUALIFY row_number() OVER (PARTITION BY cluster, "
    "campaign ORDER BY stored_to DESC) = 1) c LEFT JOIN (SELECT cluster, campaign, count(*) AS runs, "
    "count(DISTINCT gpu) AS measured FROM runs WHERE campaign IS NOT NULL GROUP BY cluster, campaign) r "
    f"ON c.cluster IS NOT DISTINCT FROM r.cluster AND c.campaign = r.campaign ORDER BY c.began DESC LIMIT {_MOST}"
)
_VERDICTS = "SELECT * FROM verdicts_now ORDER BY cluster, place"
_JUDGED = (
    "SELECT cluster, judged_at, gpus, findings FROM judgements WHERE campaign IS NULL QUALIFY row_number() OVER "
    "(PARTITION BY cluster ORDER BY judged_at DESC) = 1 ORDER BY cluster"
)


def _holds(reading: Reading) -> Component:
    gpus, runs = reading.frame(_GPUS).row(0, named=True), reading.frame(_RUNS).row(0, named=True)
    shown = [
        (f"{gpus['gpus']:,}", f"GPUs on {many(gpus['nodes'], 'node')}" if gpus["nodes"] else "GPUs"),
        (gpus["models"] or MISSING, "model of the GPUs"),
        (f"{runs['runs']:,}", f"runs of {runs['workloads']:,} different probes and workloads"),
        (_when(runs["last"]), f"newest run (UTC); the first was {_when(runs['first'])}"),
    ]
    return tiles(shown)


def _found(reading: Reading, link: Link) -> Component:
    judged = reading.frame(_JUDGED).to_dicts()
    if not judged:
        todo = told(
            html.P("Nobody has judged these GPUs yet. Run this command, and look at this page again:"),
            command(f"whorl {VERDICTS.fill.format(store=reading.store.root)}"),
            kind="empty",
        )
        return section("Who stands out", todo)
    found = reading.frame(_VERDICTS)
    about = "; ".join(
        f"{one['cluster'] or 'no cluster'}: {many(one['findings'], 'finding')} about {many(one['gpus'], 'GPU')}, "
        f"judged {_when(one['judged_at'])} UTC"
        for one in judged
    )
    if not found.height:
        return section("Who stands out", told(html.P("No GPU stands out."), kind="empty"), says=about)
    shown = [
        [
            link(one["name"], "gpu", gpu=(one["name"],), cluster=one["cluster"])
            if one["level"] == Level.GPU
            else one["name"],
            one["kind"],
            one["state"],
            None if one["effect_pct"] is None else f"{percent(one['effect_pct'])} %",
            interval(one["low_pct"], one["high_pct"]),
            _part(one["n"]),
            one["looks"],
        ]
        for one in found.head(_MOST).to_dicts()
    ]
    more = found.height - len(shown)
    rest = [html.P(f"{more:,} more: run whorl verdicts to see all.", className="soft")] if more else []
    head = ["GPU, node or batch", "finding", "state", "effect", "95 %", "n", "what was seen"]
    table = rows(head, shown, right=(3, 4, 5), wrapped=(6,), label="Findings, worst first")
    says = "effect: against the level of its peers; slower, hotter and more power are positive. n: how many compared."
    return section("Who stands out", html.P(about, className="soft"), table, *rest, says=says)


def _campaigns(reading: Reading, link: Link) -> Component:
    found = reading.frame(_CAMPAIGNS).to_dicts()
    if not found:
        return section(
            "Campaigns", told(html.P("All runs of this store were imported, or measured outside campaigns."))
        )
    shown = [
        [
            link(one["campaign"], "fleet", campaign=one["campaign"], cluster=one["cluster"], gpu=()),
            one["cluster"],
            _when(one["began"]),
            _when(one["ended"]),
            _part(one["measured"], one["gpus"]),
            _part(one["runs"]),
        ]
        for one in found
    ]
    head = ["campaign", "cluster", "began (UTC)", "ended (UTC)", "GPUs measured", "runs"]
    return section("Campaigns", rows(head, shown, right=(4, 5), label="Campaigns, newest first"), says="Newest first.")


def _part(number: int | None, of: int | None = None) -> str:
    """A number, and of how many where that is known."""
    return MISSING if number is None else f"{number:,}" if of is None else f"{number:,} of {of:,}"


def _when(at: Any) -> str:
    return MISSING if at is None else f"{at:%Y-%m-%d %H:%M}"


def page(others: frozenset[str]) -> Page:
    """The page; `others` are the paths of the pages that it may lead to."""

    def layout(reading: Reading, state: State) -> Component:
        def link(text: str, path: str, **changes: Any) -> Any:
            return dcc.Link(text, href=state.href(path, **changes)) if path in others else text

        return html.Div([heading("Overview"), _holds(reading), _found(reading, link), _campaigns(reading, link)])

    return Page("", "Overview", (RUNS,), layout, lambda *_: None)
