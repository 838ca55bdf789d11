"""The inputs of the page, which write the address, and what follows it: the answer, or what is done to make it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ....analysis.contents import clusters
from ....analysis.energy.one_job import OneJob
from ....analysis.telemetry.extent import written
from ..page import URL, failure, following, heading, prose, told
from ..state import State as Address
from ..state import moment, parse
from . import fleet, job
from .address import BYS, PATH, TIMES, EnergyAddress, address_of

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

CLUSTER, LAST, SINCE, UNTIL, BY, JOB = (f"energy-{name}" for name in ("cluster", "last", "since", "until", "by", "job"))
BODY, DOING, MADE, AGAIN, POLL, SHOWN, WRONG = (
    f"energy-{name}" for name in ("body", "doing", "made", "again", "poll", "shown", "wrong")
)
OF_ALL = "energy-of-all"
"""The inputs that say nothing about one job."""
_EVERY_MS = 1000


def layout(reading: Reading, state: Address) -> Component:
    """The inputs, and room for what follows the address."""
    names, address = _clusters(reading), address_of(state)
    chosen = dcc.Dropdown(list(names), _listed(state, names), id=CLUSTER, placeholder="all clusters")
    by = _chosen(BY, {grouping.value: name for grouping, name in BYS.items()}, address.by)
    of_all = [
        html.Label(["Time, up to the last reading", _chosen(LAST, TIMES, address.state.last or "")]),
        html.Label(["From (UTC)", _typed(SINCE)]),
        html.Label(["to", _typed(UNTIL)]),
        html.Label(["Energy by", by]),
    ]
    inputs = [
        html.Label(["Cluster", chosen], hidden=len(names) < 2 and state.cluster is None),
        html.Div(of_all, id=OF_ALL, className="inputs"),
        html.Label(["One job", _typed(JOB, value=state.job or "", placeholder="its number")]),
    ]
    progress = [
        html.Span(id=MADE, className="soft"),
        html.Button("Reload", id=AGAIN, type="button", n_clicks=0, hidden=True),
        html.Span(id=DOING, role="status"),
    ]
    return html.Div(
        [
            heading("Jobs and energy"),
            html.Div(inputs, className="inputs"),
            html.Div(id=WRONG, role="alert"),
            html.Div(progress, className="made"),
            html.Div(id=BODY),
            dcc.Interval(POLL, interval=_EVERY_MS, disabled=True),
            dcc.Store(SHOWN),
        ]
    )


def _clusters(reading: Reading) -> Collection[str]:
    return reading.answer(clusters, tables=("gpus", "jobs"))


def _listed(state: Address, names: Collection[str]) -> str | None:
    """The cluster of an address as the list has it. One that no list has stays in the address, so that the page goes
    on saying so."""
    return state.cluster if state.cluster in names else None


def _chosen(name: str, options: Mapping[str, str], value: str) -> Component:
    labels = [{"label": label, "value": option} for option, label in options.items()]
    return dcc.Dropdown(labels, value, id=name, clearable=False, searchable=False)


def _typed(name: str, **properties: Any) -> Component:
    return dcc.Input(id=name, type="text", className="when", autoComplete="off", **properties)


def _problem(sentence: str) -> Component:
    return told(html.P(prose(sentence)), kind="problem")


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks of the page."""
    _follow(app, reading)
    _change(app, reading)
    fleet.register(app, reading)


def _follow(app: Dash, reading: Reading) -> None:
    outputs = {
        "body": Output(BODY, "children"), "made": Output(MADE, "children"), "doing": Output(DOING, "children"),
        "alone": Output(AGAIN, "hidden"), "quiet": Output(POLL, "disabled"), "shown": Output(SHOWN, "data"),
        "cluster": Output(CLUSTER, "value"), "last": Output(LAST, "value"), "since": Output(SINCE, "value"),
        "until": Output(UNTIL, "value"), "by": Output(BY, "value"), "job": Output(JOB, "value"),
        "of_one": Output(OF_ALL, "hidden"),
    }  # fmt: skip
    events = (Input(URL, "search"), Input(POLL, "n_intervals"), Input(AGAIN, "n_clicks"))

    @following(app, PATH, outputs, *events, State(SHOWN, "data"))
    def follow(search: str | None, _: int | None, __: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
        address = address_of(parse(search)[0])
        state = address.state
        inputs = {
            "cluster": _listed(state, _clusters(reading)),
            "last": state.last or "",
            "by": address.by.value,
            "job": state.job or "",
            "of_one": state.job is not None,
            "since": "" if state.since is None else written(state.since),
            "until": "" if state.until is None else written(state.until),
        }
        try:
            later = address.later(reading, again=ctx.triggered_id == AGAIN)
        except Exception as error:
            problem = _problem(failure(error))
            body = [problem] if state.job is None else [job.to_all(address), problem]
            return inputs | {"body": body, "made": None, "doing": None, "alone": True, "quiet": True, "shown": None}
        drawn = {"search": state.search(), "at": str(later.made_at)}
        progress = {"doing": later.doing, "quiet": later.doing is None}
        if ctx.triggered_id == POLL and before is not None and drawn.items() <= before.items():
            return dict.fromkeys(outputs, no_update) | progress
        if later.answer is None:
            return inputs | progress | {"body": _waiting(address), "made": None, "alone": True, "shown": drawn}
        if isinstance(later.answer, OneJob):
            body = job.body(later.answer, address)
        else:
            times = {name: written(at) for name, at in zip(("since", "until"), later.answer.ends_ns, strict=True)}
            inputs |= times
            drawn |= times
            body = fleet.body(later.answer, address, reading.store.root)
        says = f"as of {later.made_at:%Y-%m-%d %H:%M:%S} UTC" + ("; more was stored since" if later.newer else "")
        return inputs | progress | {"body": body, "made": says, "alone": False, "shown": drawn}


def _waiting(address: EnergyAddress) -> Component:
    """What stands on the page before there is an answer."""
    if address.state.job is not None:
        says = "Reading the telemetry of its GPUs, and comparing these with the fleet."
    else:
        says = "Adding up the energy of each GPU. This is done once; of 27,648 GPUs it takes about a minute."
    return told(html.P(says), kind="note")


def _change(app: Dash, reading: Reading) -> None:
    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Output(WRONG, "children"),
        *(Input(name, "value") for name in (CLUSTER, LAST, BY)),
        *(Input(name, event) for name in (SINCE, UNTIL, JOB) for event in ("n_submit", "n_blur")),
        *(State(name, "value") for name in (SINCE, UNTIL, JOB)),
        State(URL, "search"),
        State(SHOWN, "data"),
        prevent_initial_call=True,
    )
    def change(cluster: str | None, last: str | None, by: str | None, *texts: Any) -> tuple[Any, Any]:
        since, until, number, search, drawn = texts[-5:]
        address = address_of(parse(search)[0])
        state = new = address.state
        if ctx.triggered_id == CLUSTER and cluster != _listed(state, _clusters(reading)):
            new = replace(state, cluster=cluster, job=None)
        elif ctx.triggered_id == LAST and (last or None) != state.last:
            new = replace(state, last=last or None, since=None, until=None)
        elif ctx.triggered_id == BY and by != address.by:
            new = replace(state, by=by)
        elif ctx.triggered_id == JOB:
            new = replace(state, job=(number or "").strip() or None)
        elif ctx.triggered_id in (SINCE, UNTIL):
            ends = {"since": since or "", "until": until or ""}
            if ends.items() <= (drawn or {}).items():  # nothing was typed
                return no_update, None
            times = {name: moment(text.strip()) for name, text in ends.items() if text.strip()}
            for name, at in times.items():
                if at is None:
                    sentence = f"{ends[name][:40]!r} is no time: write it as 2026-11-23 14:05 (UTC)."
                    return no_update, told(html.P(sentence), kind="problem")
            new = replace(state, since=times.get("since"), until=times.get("until"), last=None)
            if new.since is not None and new.until is not None and new.since >= new.until:
                return no_update, _problem("The time ends before it begins: write the earlier one on the left.")
        return no_update if new == state else new.search(), None
