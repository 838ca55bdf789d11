"""The inputs of the page, which write the address, and what follows it: the answer, or what is done to make it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ....analysis.contents import clusters
from ....analysis.energy.one_job import OneJob
from ....analysis.telemetry.extent import written
from ..page import URL, failure, following, heading, prose, told
from ..state import State as Address
from ..state import moment, parse
from . import job, whole
from .asked import BYS, LASTS, PATH, Asked, ask

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

CLUSTER, LAST, SINCE, UNTIL, BY, JOB = (f"energy-{one}" for one in ("cluster", "last", "since", "until", "by", "job"))
BODY, DOING, MADE, AGAIN, POLL, SHOWN, WRONG = (
    f"energy-{one}" for one in ("body", "doing", "made", "again", "poll", "shown", "wrong")
)
OF_ALL = "energy-of-all"
"""The inputs that say nothing about one job."""
_EVERY_MS = 1000


def layout(reading: Reading, state: Address) -> Component:
    """The inputs, and room for what follows the address."""
    known = _clusters(reading)
    asked = ask(state)
    return html.Div(
        [
            heading("Jobs and energy"),
            html.Div(
                [
                    html.Label(
                        [
                            "Cluster",
                            dcc.Dropdown(list(known), _listed(state, known), id=CLUSTER, placeholder="all clusters"),
                        ],
                        hidden=len(known) < 2 and state.cluster is None,
                    ),
                    html.Div(
                        [
                            html.Label(["Time, up to the last reading", _chosen(LAST, LASTS, asked.state.last or "")]),
                            html.Label(["From (UTC)", _typed(SINCE)]),
                            html.Label(["to", _typed(UNTIL)]),
                            html.Label(
                                ["Energy by", _chosen(BY, {one.value: name for one, name in BYS.items()}, asked.by)]
                            ),
                        ],
                        id=OF_ALL,
                        className="inputs",
                    ),
                    html.Label(["One job", _typed(JOB, value=state.job or "", placeholder="its number")]),
                ],
                className="inputs",
            ),
            html.Div(id=WRONG, role="alert"),
            html.Div(
                [
                    html.Span(id=MADE, className="soft"),
                    html.Button("Reload", id=AGAIN, type="button", n_clicks=0, hidden=True),
                    html.Span(id=DOING, role="status"),
                ],
                className="made",
            ),
            html.Div(id=BODY),
            dcc.Interval(POLL, interval=_EVERY_MS, disabled=True),
            dcc.Store(SHOWN),
        ]
    )


def _clusters(reading: Reading) -> Collection[str]:
    return reading.answer(clusters, tables=("gpus", "jobs"))


def _listed(state: Address, known: Collection[str]) -> str | None:
    """The cluster of an address as the list has it. One that no list has stays in the address, so that the page goes
    on saying so."""
    return state.cluster if state.cluster in known else None


def _chosen(name: str, options: dict[str, str], value: str) -> Component:
    listed = [{"label": label, "value": one} for one, label in options.items()]
    return dcc.Dropdown(listed, value, id=name, clearable=False, searchable=False)


def _typed(name: str, **more: Any) -> Component:
    return dcc.Input(id=name, type="text", className="when", autoComplete="off", **more)


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks of the page."""
    _follow(app, reading)
    _change(app, reading)
    whole.register(app, reading)


def _follow(app: Dash, reading: Reading) -> None:
    outputs = {
        "body": Output(BODY, "children"), "made": Output(MADE, "children"), "doing": Output(DOING, "children"),
        "alone": Output(AGAIN, "hidden"), "quiet": Output(POLL, "disabled"), "shown": Output(SHOWN, "data"),
        "cluster": Output(CLUSTER, "value"), "last": Output(LAST, "value"), "since": Output(SINCE, "value"),
        "until": Output(UNTIL, "value"), "by": Output(BY, "value"), "job": Output(JOB, "value"),
        "of_one": Output(OF_ALL, "hidden"),
    }  # fmt: skip

    @following(
        app,
        PATH,
        outputs,
        Input(URL, "search"),
        Input(POLL, "n_intervals"),
        Input(AGAIN, "n_clicks"),
        State(SHOWN, "data"),
    )
    def follow(search: str | None, _: int | None, __: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
        asked = ask(parse(search)[0])
        state = asked.state
        same = dict.fromkeys(outputs, no_update)
        inputs = {
            "cluster": _listed(state, _clusters(reading)),
            "last": state.last or "",
            "by": asked.by.value,
            "job": state.job or "",
            "of_one": state.job is not None,
        }
        inputs |= {name: "" if at is None else written(at) for name, at in _ends(state)}
        try:
            found = asked.later(reading, again=ctx.triggered_id == AGAIN)
        except Exception as error:
            problem = told(html.P(prose(failure(error))), kind="problem")
            body = [problem] if state.job is None else [job.to_all(asked), problem]
            return inputs | {"body": body, "made": None, "doing": None, "alone": True, "quiet": True, "shown": None}
        made = {"search": state.search(), "at": str(found.made_at)}
        now = {"doing": found.doing, "quiet": found.doing is None}
        if ctx.triggered_id == POLL and before is not None and made.items() <= before.items():
            return same | now
        if found.answer is None:
            return inputs | now | {"body": _waiting(asked), "made": None, "alone": True, "shown": made}
        if isinstance(found.answer, OneJob):
            body = job.body(found.answer, asked)
        else:
            times = {name: written(at) for name, at in zip(("since", "until"), found.answer.ends_ns, strict=True)}
            inputs |= times
            made |= times
            body = whole.body(found.answer, asked, reading.store.root)
        says = f"as of {found.made_at:%Y-%m-%d %H:%M:%S} UTC" + ("; more was stored since" if found.newer else "")
        return inputs | now | {"body": body, "made": says, "alone": False, "shown": made}


def _ends(state: Address) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
    return ("since", state.since), ("until", state.until)


def _waiting(asked: Asked) -> Component:
    """What stands on the page before there is an answer."""
    if asked.state.job is not None:
        says = "Reading the telemetry of its GPUs, and comparing these with the fleet."
    else:
        says = "Adding up the energy of each GPU. This is done once; of 27,648 GPUs it takes about a minute."
    return told(html.P(says), kind="note")


def _change(app: Dash, reading: Reading) -> None:
    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Output(WRONG, "children"),
        Input(CLUSTER, "value"),
        Input(LAST, "value"),
        Input(BY, "value"),
        *(Input(name, event) for name in (SINCE, UNTIL, JOB) for event in ("n_submit", "n_blur")),
        State(SINCE, "value"),
        State(UNTIL, "value"),
        State(JOB, "value"),
        State(URL, "search"),
        State(SHOWN, "data"),
        prevent_initial_call=True,
    )
    def change(cluster: str | None, last: str | None, by: str | None, *more: Any) -> tuple[Any, Any]:
        since, until, number, search, shown = more[-5:]
        state = new = ask(parse(search)[0]).state
        match ctx.triggered_id:
            case one if one == CLUSTER:
                same = cluster == _listed(state, _clusters(reading))
                new = state if same else replace(state, cluster=cluster, job=None)
            case one if one == LAST:
                if (last or None) != state.last:
                    new = replace(state, last=last or None, since=None, until=None)
            case one if one == BY:
                new = state if by == ask(state).by else replace(state, by=by)
            case one if one == JOB:
                new = replace(state, job=(number or "").strip() or None)
            case one if one in (SINCE, UNTIL):
                ends = {"since": since or "", "until": until or ""}
                if ends.items() <= (shown or {}).items():  # nothing was typed
                    return no_update, None
                found = {name: moment(text.strip()) for name, text in ends.items() if text.strip()}
                for name, at in found.items():
                    if at is None:
                        said = f"{ends[name][:40]!r} is no time: write it as 2026-11-23 14:05 (UTC)."
                        return no_update, told(html.P(said), kind="problem")
                new = replace(state, since=found.get("since"), until=found.get("until"), last=None)
                if new.since is not None and new.until is not None and new.since >= new.until:
                    said = "The time ends before it begins: write the earlier one on the left."
                    return no_update, told(html.P(said), kind="problem")
        return no_update if new == state else new.search(), None
