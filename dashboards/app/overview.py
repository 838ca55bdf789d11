"""The first page: what the store holds, the newest campaigns, who stands out, and where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ...analysis.contents import held, last_findings, last_judgements, newest_campaigns, not_judged
from ..table import MISSING, many
from .first import MOST_CAMPAIGNS
from .grid import MOST, Column, table
from .page import RUNS, VERDICTS, Page, heading, rows, section, tiles, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dash.development.base_component import Component

    from .reading import Reading
    from .state import State


def _holds(reading: Reading) -> Component:
    has = reading.answer(held)
    shown = [
        (
            f"{'up to ' if has.maybe_twice else ''}{has.gpus:,}",
            (f"GPUs on {many(has.nodes, 'node')}" if has.nodes else "GPUs")
            + ("; some may have two names" if has.maybe_twice else ""),
        ),
        (has.models or MISSING, "models of the GPUs" if ", " in (has.models or "") else "model of the GPUs"),
        (
            f"{has.runs:,}",
            f"runs of {has.workloads:,} different probes and workloads"
            if has.workloads > 1
            else "runs of one probe or workload",
        ),
        (_when(has.last), f"newest run (UTC); the first was {_when(has.first)}"),
    ]
    return tiles(shown)


def _found(reading: Reading) -> Component:
    judged = reading.answer(last_judgements)
    if not judged:
        todo = told(
            html.P("Nobody has judged these GPUs yet. Run this command, and look at this page again:"),
            VERDICTS.command(reading.store.root),
            kind="empty",
        )
        return section("Who stands out", todo)
    found = reading.answer(last_findings)
    about = "; ".join(
        f"{one['cluster'] or 'no cluster'}: {_judging(one)} on {_when(one['judged_at'])} UTC" for one in judged
    )
    open_ = [
        told(
            html.P(f"Nobody has judged the GPUs of {cluster} yet:"),
            VERDICTS.command(reading.store.root, cluster),
            kind="empty",
        )
        for cluster in reading.answer(not_judged)
    ]
    if found.is_empty():
        none = (
            "No GPU stands out."
            if any(one["gpus"] for one in judged)
            else "No GPU could be judged: the page Fleet says why, for each probe."
        )
        return section("Who stands out", told(html.P(none), kind="empty"), *open_, says=f"{about}.")
    shown = found.head(MOST)
    cut = [html.P(f"The worst {MOST:,} of {found.height:,}.", className="soft")] if found.height > MOST else []
    drawn = table("findings", _findings(several=len(judged) > 1), shown, label="Findings, worst first", height=480)
    return section("Who stands out", *cut, drawn, *open_, says=f"{about}.")


def _judging(one: Mapping[str, Any]) -> str:
    """What a judging of a cluster came to."""
    if not one["gpus"] and not one["findings"]:
        return "none of its GPUs could be judged"
    return f"{many(one['findings'], 'finding')}, {many(one['gpus'], 'GPU')} judged"


def _findings(*, several: bool) -> list[Column]:
    """The columns of the findings; the cluster where there are several, as one is named above the table."""
    name = "GPU, node or batch"
    asks = {"gpu": "gpu", "cluster": "cluster"}
    effect = "against the level of its peers; slower, hotter and more power are positive"
    return [
        Column("name", name, link="gpu", asks=asks),
        Column("kind", "finding"),
        Column("state", "state"),
        Column("effect_pct", "effect", kind="percent", digits=1, says=effect),
        Column("low_pct", "95 %", kind="interval", digits=1, high="high_pct", unit="%"),
        Column("n", "n", kind="number", says="how many compared"),
        Column("looks", "what was seen", wraps=True),
        *([Column("cluster", "cluster")] if several else []),
    ]


def _campaigns(reading: Reading, state: State) -> Component:
    found = reading.answer(newest_campaigns, MOST_CAMPAIGNS)
    if not found:
        return section(
            "Campaigns", told(html.P("All runs of this store were imported, or measured outside campaigns."))
        )
    shown = [
        [
            dcc.Link(
                one["campaign"],
                href=state.href("fleet", campaign=one["campaign"], cluster=one["cluster"], gpu=()),
            ),
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


def _layout(reading: Reading, state: State) -> Component:
    return html.Div([heading("Overview"), _holds(reading), _found(reading), _campaigns(reading, state)])


PAGE = Page("", "Overview", (RUNS,), _layout, lambda *_: None)
