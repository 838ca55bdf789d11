"""The page Jobs and energy: what `whorl energy` says, and inputs that write the address."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ...analysis.contents import clusters
from ...analysis.energy.answers import ALL, LENGTHS, By, EnergySummary, summary
from ...analysis.energy.options import Ground, ground
from ...analysis.energy.quote import OneJob, job_offline
from ...analysis.telemetry.extent import written
from ...errors import InputError
from ...store.power_sensors import SensorError
from ..document import Part, Section, Table
from ..documents.books import summary_parts
from ..documents.job import job_document
from .drawing import components, failure, prose
from .page import TELEMETRY, URL, Page, choice, field, following, heading, told
from .reading import Later
from .state import MOST_GPUS, parse, typed_times
from .state import State as Address

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .reading import Reading

PATH = "energy"
TIMES = {
    "": "30 days, or less", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "30d": "30 days", ALL: "all"
}  # fmt: skip
"""Lengths of time up to the last reading, as a person chooses them; "" is what an address without a time shows."""
BYS = {By.USER: "user", By.ACCOUNT: "account", By.JOB: "job", By.GPU: "GPU", By.NODE: "node", By.DAY: "day"}
CLUSTER, LAST, SINCE, UNTIL, BY, JOB = (f"energy-{name}" for name in ("cluster", "last", "since", "until", "by", "job"))
BODY, DOING, MADE, AGAIN, POLL, DRAWN, WRONG = (
    f"energy-{name}" for name in ("body", "doing", "made", "again", "poll", "drawn", "wrong")
)
OF_ALL = "energy-of-all"
"""The inputs that say nothing about one job."""
_METRICS = ("power_mw", "utilization", "temperature_c")
_EVERY_MS = 1000


# -- the address --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnergyAddress:
    """What an address asks for."""

    state: Address
    by: By
    notes: tuple[str, ...]
    """Sentences about what the address says and the page does not know."""

    def later(self, reading: Reading, *, again: bool = False) -> Later[EnergySummary] | Later[OneJob]:
        """The answer, as far as it is."""
        state = self.state
        if state.job is not None:

            def grounds(cluster: str, sensor: SensorError) -> Ground:
                return reading.answer(ground, cluster, sensor, tables=("gpus", "runs", "results", "fingerprints"))

            return reading.later(job_offline, state.job, state.cluster, again=again, grounds=grounds)
        return reading.later(summary, state.cluster, state.since, state.until, state.last, again=again)


def address_of(state: Address) -> EnergyAddress:
    """What an address asks for; a sentence about each word of it that is unknown."""
    notes, by = [], By.USER
    if state.by is not None:
        if state.by in set(By):
            by = By(state.by)
        else:
            notes.append(f"by={state.by[:40]!r} in the address is none of {', '.join(BYS)}: energy by user is shown.")
    if state.last is not None and state.last not in (*LENGTHS, ALL):
        lengths = f"{', '.join(LENGTHS)} and {ALL}"
        notes.append(f"last={state.last[:40]!r} in the address is none of {lengths}: it is left out.")
        state = replace(state, last=None)
    return EnergyAddress(state, by, tuple(notes))


# -- what is drawn ------------------------------------------------------------------------------------------------


def _body(answer: EnergySummary | OneJob, address: EnergyAddress) -> list[Component]:
    """The answer as components: tables with all their rows, whose names lead to GPUs and jobs."""
    state = address.state

    def link(page: str, name: str) -> str | None:
        if name.startswith("("):  # idle, unattributed, or not known
            return None
        return state.href(page, job=name) if page == PATH else state.href(page, gpu=(name,), job=None, last=None)

    notes = [_note(sentence) for sentence in address.notes]
    if isinstance(answer, OneJob):
        links = [_to_all(address)]
        if answer.gpus["gpu"].count():
            (since, until), gpus = answer.ends_ns, tuple(answer.gpus["gpu"].drop_nulls().head(MOST_GPUS))
            href = state.href("telemetry", gpu=gpus, metric=_METRICS, since=since, until=until, job=None, last=None)
            links.append(html.P(dcc.Link("The power of its GPUs over its time", href=href)))
        return [*notes, *links, *components(map(_whole, job_document(answer).parts), link)]
    if answer.cut:
        notes.append(_note("There are very many readings: only the last part of them is shown. Choose a longer time."))
    parts = summary_parts(answer, (address.by,))
    return [*notes, *components(map(_whole, parts), link)]


def _whole(part: Part) -> Part:
    """The part with all rows of its tables, which a page sorts and filters."""
    if isinstance(part, Section):
        return replace(part, parts=[_whole(inside) for inside in part.parts])
    return replace(part, most=None) if isinstance(part, Table) else part


def _to_all(address: EnergyAddress) -> Component:
    """The way back from one job."""
    return html.P(dcc.Link("← All jobs", href=address.state.href(PATH, job=None)))


def _note(sentence: str, kind: str = "note") -> Component:
    return told(html.P(prose(sentence)), kind=kind)


def _waiting(address: EnergyAddress) -> Component:
    """What stands on the page before there is an answer."""
    if address.state.job is not None:
        return _note("Reading the telemetry of its GPUs, and comparing these with the fleet.")
    return _note("Adding up the energy of each GPU. This is done once; of 27,648 GPUs it takes about a minute.")


# -- inputs -------------------------------------------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    """The inputs, and room for what follows the address."""
    names, address = _clusters(reading), address_of(state)
    chosen = dcc.Dropdown(list(names), _listed(state, names), id=CLUSTER, placeholder="all clusters")
    of_all = [
        html.Label(["Time, up to the last reading", choice(LAST, TIMES, address.state.last or "")]),
        html.Label(["From (UTC)", field(SINCE)]),
        html.Label(["to", field(UNTIL)]),
        html.Label(["Energy by", choice(BY, {by.value: name for by, name in BYS.items()}, address.by)]),
    ]
    inputs = [
        html.Label(["Cluster", chosen], hidden=len(names) < 2 and state.cluster is None),
        html.Div(of_all, id=OF_ALL, className="inputs"),
        html.Label(["One job", field(JOB, value=state.job or "", placeholder="its number")]),
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
            dcc.Store(DRAWN),
        ]
    )


def _clusters(reading: Reading) -> Collection[str]:
    return reading.answer(clusters, tables=("gpus", "jobs"))


def _listed(state: Address, names: Collection[str]) -> str | None:
    """The cluster of an address as the list has it. One that no list has stays in the address, so that the page goes
    on saying so."""
    return state.cluster if state.cluster in names else None


# -- callbacks ----------------------------------------------------------------------------------------------------


def _register(app: Dash, reading: Reading) -> None:
    _follow(app, reading)
    _change(app, reading)


def _follow(app: Dash, reading: Reading) -> None:
    outputs = {
        "body": Output(BODY, "children"), "made": Output(MADE, "children"), "doing": Output(DOING, "children"),
        "alone": Output(AGAIN, "hidden"), "quiet": Output(POLL, "disabled"), "drawn": Output(DRAWN, "data"),
        "cluster": Output(CLUSTER, "value"), "last": Output(LAST, "value"), "since": Output(SINCE, "value"),
        "until": Output(UNTIL, "value"), "by": Output(BY, "value"), "job": Output(JOB, "value"),
        "of_one": Output(OF_ALL, "hidden"),
    }  # fmt: skip
    events = (Input(URL, "search"), Input(POLL, "n_intervals"), Input(AGAIN, "n_clicks"))

    @following(app, PATH, outputs, *events, State(DRAWN, "data"))
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
            problem = _note(failure(error), "problem")
            body = [problem] if state.job is None else [_to_all(address), problem]
            return inputs | {"body": body, "made": None, "doing": None, "alone": True, "quiet": True, "drawn": None}
        figure_data = {"search": state.search(), "at": str(later.made_at)}
        progress = {"doing": later.doing, "quiet": later.doing is None}
        if ctx.triggered_id == POLL and before is not None and figure_data.items() <= before.items():
            return dict.fromkeys(outputs, no_update) | progress
        if later.answer is None:
            return inputs | progress | {"body": _waiting(address), "made": None, "alone": True, "drawn": figure_data}
        if isinstance(later.answer, EnergySummary):
            times = {name: written(at) for name, at in zip(("since", "until"), later.answer.ends_ns, strict=True)}
            inputs |= times
            figure_data |= times
        body = _body(later.answer, address)
        as_of = f"as of {later.made_at:%Y-%m-%d %H:%M:%S} UTC" + ("; more was stored since" if later.newer else "")
        return inputs | progress | {"body": body, "made": prose(as_of), "alone": False, "drawn": figure_data}


def _change(app: Dash, reading: Reading) -> None:
    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Output(WRONG, "children"),
        *(Input(name, "value") for name in (CLUSTER, LAST, BY)),
        *(Input(name, event) for name in (SINCE, UNTIL, JOB) for event in ("n_submit", "n_blur")),
        *(State(name, "value") for name in (SINCE, UNTIL, JOB)),
        State(URL, "search"),
        State(DRAWN, "data"),
        prevent_initial_call=True,
    )
    def change(cluster: str | None, last: str | None, by: str | None, *values: Any) -> tuple[Any, Any]:
        since, until, number, search, before = values[-5:]
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
            if ends.items() <= (before or {}).items():  # nothing was typed
                return no_update, None
            try:
                since_ns, until_ns = typed_times(since, until)
            except InputError as error:
                return no_update, _note(str(error), "problem")
            new = replace(state, since=since_ns, until=until_ns, last=None)
        return no_update if new == state else new.search(), None


PAGE = Page(PATH, "Jobs and energy", (TELEMETRY,), _layout, _register)
