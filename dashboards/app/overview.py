"""The first page: which GPUs, why, and what to do; the newest readings beside it; what the store holds."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dash import Input, Output, dcc, html

from ...analysis.contents import fleet_now, held, newest_campaigns, not_judged
from ..documents import fleet as documents
from ..documents.fleet import JudgedFleet
from ..documents.verdicts import as_judged, table
from ..words import MISSING, many, minute
from .drawing import component, components
from .first import MOST_CAMPAIGNS, judged_fleets
from .page import RUNS, VERDICTS, Page, following, heading, section, tiles, told
from .state import URL, parse

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from ...analysis.verdicts.judgements import StoredJudgement
    from .reading import Reading
    from .state import State

_ANSWERS, _NOW, _AGAIN = "overview-answers", "overview-now", "overview-again"
_AGAIN_MS = 30_000
"""How often the newest readings are read again."""


def _layout(reading: Reading, state: State) -> Component:
    return html.Div(
        [
            html.Div(_answers(reading, state), id=_ANSWERS),
            _campaigns(reading, state),
            section("What the store holds", _contents(reading)),
        ]
    )


def _answers(reading: Reading, state: State) -> list[Component]:
    """The three answers for one cluster, and what leads to the others."""
    fleets = reading.answer(judged_fleets)
    unjudged = [
        told(
            html.P(f"Nobody has judged the GPUs of {cluster} yet. Run this command, and load the page again:"),
            VERDICTS.command(reading.store.root, cluster),
            kind="empty",
        )
        for cluster in reading.answer(not_judged)
    ]
    now = html.Div([html.Div(id=_NOW), dcc.Interval(id=_AGAIN, interval=_AGAIN_MS)])
    if not fleets:
        return [heading("Which GPUs?"), *unjudged, *([now] if reading.has("telemetry") else [])]
    clusters = {fleet.judgement.cluster: (newest, fleet) for newest, fleet in fleets}
    newest, fleet = clusters.get(state.cluster or "", fleets[0])
    cluster = fleet.judgement.cluster
    single = {name for verdict in fleet.judgement.rows for name in verdict.gpus if len(verdict.gpus) == 1}

    def address(page: str, name: str) -> str | None:
        known = name if name in single else next((full for full in single if full.startswith(name)), None)
        return None if known is None else state.href(page, gpu=(known,), cluster=cluster, findings=None)

    if state.findings == "all":
        every = replace(table(fleet.judgement.rows, fleet.gpus["gpu"]), most=None)
        back = dcc.Link("Back to the worst", href=state.href("", findings=None))
        return [heading(f"{many(len(every.rows), 'finding')} of {cluster}"), html.P(back), component(every, address)]
    answers = components(documents.three_answers(fleet), address)
    if len(fleet.judgement.rows) > documents.WORST:
        count = len(fleet.judgement.rows)
        answers.append(
            html.P(dcc.Link(f"Show all {count:,}, to sort and to filter", href=state.href("", findings="all")))
        )
    return [
        heading(documents.headline(fleet), _judged(newest, fleet, reading)),
        *_other_clusters(clusters, cluster, state),
        *unjudged,
        html.Div([html.Div(answers), html.Div([component(documents.machine(fleet)), now])], className="answers"),
    ]


def _judged(newest: StoredJudgement, fleet: JudgedFleet, reading: Reading) -> str:
    """Of which cluster, judged when, and whether runs came since."""
    judgement = fleet.judgement
    about = (
        f"Cluster {judgement.cluster}: {many(judgement.looks, 'comparison')}, judged on {minute(newest.judged_at)} UTC"
    )
    if any(newer := newest.newer(reading.store)):
        command = ["whorl", "verdicts", "--store", str(reading.store.root), "--cluster", judgement.cluster]
        return f"Cluster {judgement.cluster}. {as_judged(newest.judged_at, newer, f'`{shlex.join(command)}`')}"
    return f"{about}."


def _other_clusters(
    clusters: dict[str, tuple[StoredJudgement, JudgedFleet]], cluster: str, state: State
) -> list[Component]:
    links = [
        html.Li([dcc.Link(name, href=state.href("", cluster=name)), f": {documents.headline(fleet)}"])
        for name, (_, fleet) in clusters.items()
        if name != cluster
    ]
    return [html.Details([html.Summary(f"Other clusters ({len(links)})"), html.Ul(links)])] if links else []


def _campaigns(reading: Reading, state: State) -> Component:
    rows = reading.answer(newest_campaigns, MOST_CAMPAIGNS)
    if not rows:
        return section("Campaigns", html.P("All runs of this store were imported, or measured outside campaigns."))
    clusters = {row["campaign"]: row["cluster"] for row in rows}

    def address(page: str, name: str) -> str:
        return state.href(page, campaign=name, cluster=clusters[name], gpu=())

    return section("Campaigns", component(documents.campaigns(rows), address), says="Newest first.")


def _contents(reading: Reading) -> Component:
    contents = reading.answer(held)
    upto = "up to " if contents.maybe_twice else ""
    different = f"runs of {many(contents.workloads, 'probe')} or workloads"
    figures = [
        (f"{upto}{contents.gpus:,}", f"GPUs on {many(contents.nodes, 'node')}" if contents.nodes else "GPUs"),
        (contents.models or MISSING, "models of the GPUs" if ", " in (contents.models or "") else "model of the GPUs"),
        (f"{contents.runs:,}", different if contents.workloads != 1 else "runs of one probe or workload"),
        (minute(contents.last), f"newest run (UTC); the first was {minute(contents.first)}"),
    ]
    return tiles(figures)


def _register(app: Dash, reading: Reading) -> None:
    @following(app, "", Output(_ANSWERS, "children"), Input(URL, "search"), prevent_initial_call=True)
    def show(search: str | None) -> list[Component]:
        return _answers(reading, parse(search)[0])

    @app.callback(Output(_NOW, "children"), Input(_AGAIN, "n_intervals"))
    def read_again(_: Any) -> Any:
        part = documents.newest_readings(fleet_now(reading.store), datetime.now(UTC).replace(tzinfo=None))
        return None if part is None else component(part)


PAGE = Page("", "Overview", (RUNS,), _layout, _register)
