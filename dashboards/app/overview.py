"""The first page: which GPUs, why, and what to do; the newest readings beside it; what the store holds."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from dash import Input, Output, dcc, html

from ...analysis.contents import fleet_now, held, newest_campaigns, not_judged
from ..document import Tiles
from ..documents import fleet as documents
from ..documents.verdicts import as_judged, table
from ..words import many, minute
from .page import RUNS, VERDICTS, Page, component, components, following, heading, section, told
from .reading import MOST_CAMPAIGNS, JudgedCluster, judged_clusters
from .state import URL, parse

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

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
    clusters = {cluster.fleet.judgement.cluster: cluster for cluster in judged_clusters(reading)}
    unjudged = [
        told(
            html.P(f"Nobody has judged the GPUs of {name} yet. Run this command, and load the page again:"),
            VERDICTS.command(reading.store.root, name),
            kind="empty",
        )
        for name in reading.answer(not_judged)
    ]
    now = html.Div([html.Div(id=_NOW), dcc.Interval(id=_AGAIN, interval=_AGAIN_MS)])
    if not clusters:
        return [heading("Which GPUs?"), *unjudged, *([now] if reading.has("telemetry") else [])]
    cluster = clusters.get(state.cluster or "") or next(iter(clusters.values()))
    fleet, verdicts = cluster.fleet, cluster.fleet.judgement.rows
    names = {name for verdict in verdicts for name in verdict.gpus}
    link = partial(state.href, cluster=fleet.judgement.cluster, findings=None)

    def address(page: str, name: str, _: str | None) -> str | None:
        full_name = name if name in names else next((full for full in names if full.startswith(name)), None)
        return None if full_name is None else link(page, gpu=(full_name,))

    if state.findings == "all":
        every = replace(table(verdicts, fleet.gpus["gpu"]), most=None)
        back = html.P(dcc.Link("Back to the worst", href=link("")))
        title = f"{many(len(verdicts), 'finding')} of {fleet.judgement.cluster}"
        return [heading(title), back, component(every, address)]
    answers = components(documents.three_answers(fleet), address)
    answers += [
        html.Details(
            [
                html.Summary(f"The GPUs of {verdict.name}"),
                html.Ul([html.Li(dcc.Link(name, href=link("gpu", gpu=(name,)))) for name in verdict.gpus]),
            ]
        )
        for verdict in verdicts[: documents.WORST]
        if len(verdict.gpus) > 1
    ]
    if len(verdicts) > documents.WORST:
        every_finding = state.href("", cluster=fleet.judgement.cluster, findings="all")
        answers.append(html.P(dcc.Link(f"Show all {len(verdicts):,}, to sort and to filter", href=every_finding)))
    pictures = [component(documents.machine(fleet), address)] if fleet.gpus.height else []
    pictures += [component(part, address) for part in [documents.unseen(fleet)] if part is not None]
    others = [
        html.Li([dcc.Link(name, href=state.href("", cluster=name)), f": {documents.headline(other.fleet)}"])
        for name, other in clusters.items()
        if other is not cluster
    ]
    return [
        heading(documents.headline(fleet), _judged(cluster, reading)),
        *([html.Details([html.Summary(f"Other clusters ({len(others)})"), html.Ul(others)])] if others else []),
        *unjudged,
        html.Div([html.Div(answers), html.Div([*pictures, now])], className="answers"),
    ]


def _judged(cluster: JudgedCluster, reading: Reading) -> str:
    """Of which cluster, judged when, and whether runs came since."""
    judgement, at = cluster.fleet.judgement, cluster.judged_at
    if any(cluster.newer):
        command = ["whorl", "verdicts", "--store", str(reading.store.root), "--cluster", judgement.cluster]
        return f"Cluster {judgement.cluster}. {as_judged(at, cluster.newer, f'`{shlex.join(command)}`')}"
    return f"Cluster {judgement.cluster}: {many(judgement.looks, 'comparison')}, judged on {minute(at)} UTC."


def _campaigns(reading: Reading, state: State) -> Component:
    rows = reading.answer(newest_campaigns, MOST_CAMPAIGNS)
    if not rows:
        return section("Campaigns", html.P("All runs of this store were imported, or measured outside campaigns."))
    clusters = {row["campaign"]: row["cluster"] for row in rows}

    def address(page: str, name: str, _: str | None) -> str:
        return state.href(page, campaign=name, cluster=clusters[name], gpu=())

    return section("Campaigns", component(documents.campaigns(rows), address), says="Newest first.")


def _contents(reading: Reading) -> Component:
    contents = reading.answer(held)
    upto, gpus = "up to " if contents.maybe_twice else "", contents.gpus
    clusters = judged_clusters(reading)
    if contents.maybe_twice and clusters and not reading.answer(not_judged):  # a GPU of two names has one cell
        gpus = sum(cluster.fleet.grid.gpus for cluster in clusters)
    different = f"runs of {many(contents.workloads, 'probe')} or workloads"
    figures = [
        (f"{upto}{gpus:,}", f"GPUs on {many(contents.nodes, 'node')}" if contents.nodes else "GPUs"),
        (f"{contents.runs:,}", different if contents.workloads != 1 else "runs of one probe or workload"),
        (minute(contents.last), f"newest run (UTC); the first was {minute(contents.first)}"),
    ]
    if contents.models:
        figures.insert(1, (contents.models, f"model{'s' if ', ' in contents.models else ''} of the GPUs"))
    return component(Tiles(figures))


def _register(app: Dash, reading: Reading) -> None:
    @following(app, "", Output(_ANSWERS, "children"), Input(URL, "search"), prevent_initial_call=True)
    def show(search: str | None) -> list[Component]:
        return _answers(reading, parse(search)[0])

    @app.callback(Output(_NOW, "children"), Input(_AGAIN, "n_intervals"))
    def read_again(_: Any) -> Any:
        part = documents.newest_readings(fleet_now(reading.store), datetime.now(UTC).replace(tzinfo=None))
        return None if part is None else component(part)


PAGE = Page("", "Overview", (RUNS,), _layout, _register)
