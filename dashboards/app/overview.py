"""The first page: what the store holds, the newest campaigns, who stands out, and where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Input, Output, dcc, html

from ...analysis.contents import held, last_judgements, newest_campaigns, not_judged
from ..table import MISSING, many
from ..words import interval, percent
from ..words import short_names as short
from .first import MOST_CAMPAIGNS, worded_findings
from .grid import MOST, Column, table
from .page import RUNS, URL, VERDICTS, Page, following, heading, prose, rows, section, tiles, told
from .state import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dash import Dash
    from dash.development.base_component import Component

    from .reading import Reading
    from .state import State

_WORST = 20
"""Findings of a cluster that are shown at first."""
_FOUND = "overview-found"


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


def _found(reading: Reading, state: State) -> Component:
    judged = reading.answer(last_judgements)
    if not judged:
        todo = told(
            html.P("Nobody has judged these GPUs yet. Run this command, and look at this page again:"),
            VERDICTS.command(reading.store.root),
            kind="empty",
        )
        return section("Who stands out", todo)
    found = reading.answer(worded_findings)
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
    several = len(judged) > 1
    shown = _all(found, state, several=several) if state.findings == "all" else _worst(found, state, several=several)
    others = [html.P(sentence) for one in judged if (sentence := _others(one, found, several=several))]
    return section("Who stands out", *shown, *others, *open_, says=f"{about}.")


def _others(judged: Mapping[str, Any], found: pl.DataFrame, *, several: bool) -> str | None:
    """That nothing was found about the other GPUs of a judged cluster; None where there are none."""
    named = found.filter(pl.col("cluster").eq_missing(pl.lit(judged["cluster"])))["gpus"].explode().n_unique()
    others = judged["gpus"] - named
    where = f" of {judged['cluster'] or 'no cluster'}" if several else ""
    if others <= 0 or not judged["findings"]:
        return None
    fine = "it is fine" if others == 1 else "they are fine"
    return f"Nothing was found about the other {many(others, 'GPU')}{where}: {fine}."


def _worst(found: pl.DataFrame, state: State, *, several: bool) -> list[Component]:
    """The worst as plain rows: they are there at once. What draws large tables takes the browser half a second."""
    worst = found.group_by("cluster", maintain_order=True).head(_WORST)
    names = short(worst["name"])
    cells = [
        [
            _several(one, state) if one["gpu"] is None else dcc.Link(names[one["name"]], href=_its(one, state)),
            one["kind"],
            one["state"],
            _with_unit(percent(one["effect_pct"])),
            _with_unit(interval(one["low_pct"], one["high_pct"])),
            one["reference"] or None,
            None if one["action"] is None else prose(one["action"]),
            one["looks"],
            *([one["cluster"]] if several else []),
        ]
        for one in worst.iter_rows(named=True)
    ]
    columns = _findings(several=several)
    head = [one.title for one in columns]
    drawn = rows(head, cells, right=(3, 4), wrapped=(5, 6, 7), cards=True, label="Findings, worst first")
    if worst.height == found.height:
        return [drawn]
    of = "of each cluster" if several else f"of {found.height:,}"
    link = dcc.Link(f"Show all {found.height:,}, to sort and to filter", href=state.href("", findings="all"))
    return [drawn, html.P([f"The worst {_WORST} {of}. ", link, "."])]


def _several(one: Mapping[str, Any], state: State) -> Component:
    """The name of a node or a batch, which opens as the list of its GPUs."""
    links = [
        html.Li(dcc.Link(gpu, href=state.href("gpu", gpu=(gpu,), cluster=one["cluster"], findings=None)))
        for gpu in one["gpus"] or ()
    ]
    return html.Details([html.Summary(one["name"]), html.Ul(links)])


def _with_unit(text: str) -> str:
    return text if text == MISSING else f"{text} %"


def _its(one: Mapping[str, Any], state: State) -> str:
    """The address of the page of a GPU."""
    return state.href("gpu", gpu=(one["gpu"],), cluster=one["cluster"], findings=None)


def _all(found: pl.DataFrame, state: State, *, several: bool) -> list[Component]:
    """All of them, in a table that a person sorts and filters."""
    cut = [html.P(f"The worst {MOST:,} of {found.height:,}.", className="soft")] if found.height > MOST else []
    fewer = html.P(dcc.Link("Show the worst only", href=state.href("", findings=None)))
    worst = found.head(MOST).drop("gpus")
    return [*cut, table("findings", _findings(several=several), worst, label="Findings", height=640), fewer]


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
        Column("reference", "compared with", wraps=True),
        Column("action", "what to do", wraps=True),
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
    found = html.Div(_found(reading, state), id=_FOUND)
    return html.Div([heading("Overview"), _holds(reading), found, _campaigns(reading, state)])


def _register(app: Dash, reading: Reading) -> None:
    @following(app, "", Output(_FOUND, "children"), Input(URL, "search"), prevent_initial_call=True)
    def show(search: str | None) -> Component:
        return _found(reading, parse(search)[0])


PAGE = Page("", "Overview", (RUNS,), _layout, _register)
