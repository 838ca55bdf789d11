"""The page Jobs and energy: what `whorl energy` says, and inputs that write the address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, ctx, dcc, html

from ...analysis.contents import clusters
from ...analysis.energy.answers import ALL, LENGTHS, By, EnergySummary, offline, summary
from ...analysis.energy.books import EnergyQuestion
from ...analysis.energy.options import Ground, ground
from ...analysis.energy.quote import OneJob, one_job
from ...analysis.telemetry.extent import written
from ...store.power_sensors import SensorError
from ..document import Part, Section, Table
from ..documents.books import summary_parts
from ..documents.job import job_document
from .page import (
    TELEMETRY,
    URL,
    Page,
    choice,
    components,
    field,
    follow_slowly,
    following,
    heading,
    prose,
    slow_parts,
    told,
    writing,
)
from .reading import STILL, Later
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
OF_ALL, WRONG, BACK = "energy-of-all", "energy-wrong", "energy-back"
_METRICS = ("power_mw", "utilization", "temperature_c")


# -- the address, and what is drawn -------------------------------------------------------------------------------


def _known(state: Address) -> tuple[Address, list[str]]:
    """The address with what the page knows, and a sentence about each word that it does not."""
    notes = []
    if state.by is not None and state.by not in set(By):
        notes.append(f"by={state.by[:40]!r} in the address is none of {', '.join(BYS)}: energy by user is shown.")
    if state.last is not None and state.last not in (*LENGTHS, ALL):
        lengths = f"{', '.join(LENGTHS)} and {ALL}"
        notes.append(f"last={state.last[:40]!r} in the address is none of {lengths}: it is left out.")
        state = replace(state, last=None)
    return replace(state, by=state.by if state.by in set(By) else By.USER.value), notes


def _ask(reading: Reading, state: Address, *, again: bool) -> Later[EnergySummary | OneJob]:
    """The answer, as far as it is."""
    address, _ = _known(state)
    store, version = reading.store, reading.version((*STILL, "telemetry"))
    if address.job is not None:
        number = address.job

        def grounds(cluster: str, sensor: SensorError) -> Ground:
            return reading.answer(ground, cluster, sensor, tables=("gpus", "runs", "results", "fingerprints"))

        def ask(say: Callable[[str], None]) -> OneJob:
            question = EnergyQuestion(address.cluster, settings=offline(store))
            return one_job(store, number, question, progress=say, grounds=grounds)

        return reading.slowly.ask(("job", number, address.cluster), ask, version, again=again)
    question = address.cluster, address.since, address.until, address.last
    return reading.slowly.ask(
        ("energy", *question), lambda say: summary(store, *question, progress=say), version, again=again
    )


def _body(answer: EnergySummary | OneJob, state: Address) -> list[Component]:
    """The answer as components: tables with all their rows, whose names lead to GPUs and jobs."""
    address, notes = _known(state)

    def link(page: str, name: str, cluster: str | None) -> str | None:
        if name.startswith("("):  # idle, unattributed, or not known
            return None
        cluster = cluster or state.cluster
        return state.href(page, cluster=cluster, **{"job": name} if page == PATH else {"gpu": (name,), "job": None})

    parts: list[Any] = [told(html.P(prose(note))) for note in notes]
    if isinstance(answer, OneJob):
        if gpus := tuple(answer.gpus["gpu"].drop_nulls().head(MOST_GPUS)):
            since, until = answer.ends_ns
            cluster = next(iter(answer.gpus["cluster"].drop_nulls().to_list()), None)
            to = replace(state, job=None, last=None, by=None, cluster=cluster)
            href = to.href("telemetry", gpu=gpus, metric=_METRICS, since=since, until=until)
            parts.append(html.P(dcc.Link("The power of its GPUs over its time", href=href)))
        return [*parts, *components(map(_whole, job_document(answer).parts), link)]
    if answer.cut:
        parts.append(
            told(html.P("There are very many readings: only the last part of them is shown. Choose a longer time."))
        )
    return [*parts, *components(map(_whole, summary_parts(answer, (By(address.by or By.USER),))), link)]


def _whole(part: Part) -> Part:
    """The part with all rows of its tables, which a page sorts and filters."""
    if isinstance(part, Section):
        return replace(part, parts=[_whole(inside) for inside in part.parts])
    return replace(part, most=None) if isinstance(part, Table) else part


def _to_all(state: Address) -> Component:
    """The way back from one job."""
    return html.P(dcc.Link("← All jobs", href=state.href(PATH, job=None)), hidden=state.job is None)


def _waiting(state: Address) -> Component:
    """What stands on the page before there is an answer."""
    if state.job is not None:
        return told(html.P("Reading the telemetry of its GPUs, and comparing these with the fleet."))
    return told(html.P("Adding up the energy of each GPU. This is done once; of 27,648 GPUs it takes some seconds."))


# -- the page -----------------------------------------------------------------------------------------------------


def _values(state: Address, names: tuple[str, ...]) -> dict[str, str | None]:
    """What the inputs say of an address. A cluster that no list has stays in the address, so that the page goes on
    saying so."""
    address, _ = _known(state)
    ends = {name: "" if at is None else written(at) for name, at in ((SINCE, state.since), (UNTIL, state.until))}
    cluster = state.cluster if state.cluster in names else None
    return {CLUSTER: cluster, LAST: address.last or "", BY: address.by, JOB: state.job or "", **ends}


def _clusters(reading: Reading) -> tuple[str, ...]:
    return tuple(reading.answer(clusters, tables=("gpus", "jobs")))


def _layout(reading: Reading, state: Address) -> Component:
    """The inputs, and room for what follows the address."""
    names = _clusters(reading)
    values = _values(state, names)
    of_all = [
        html.Label(["Time, up to the last reading", choice(LAST, TIMES, values[LAST] or "")]),
        html.Label(["From (UTC)", field(SINCE, value=values[SINCE])]),
        html.Label(["to", field(UNTIL, value=values[UNTIL])]),
        html.Label(["Energy by", choice(BY, {by.value: name for by, name in BYS.items()}, values[BY] or "")]),
    ]
    chosen = dcc.Dropdown(list(names), values[CLUSTER], id=CLUSTER, placeholder="all clusters")
    inputs = [
        html.Label(["Cluster", chosen], hidden=len(names) < 2 and state.cluster is None),
        html.Div(of_all, id=OF_ALL, className="inputs"),
        html.Label(["One job", field(JOB, value=values[JOB], placeholder="its number")]),
    ]
    return html.Div(
        [
            heading("Jobs and energy"),
            html.Div(inputs, className="inputs"),
            html.Div(id=WRONG, role="alert"),
            html.Div(_to_all(state), id=BACK),
            *slow_parts(PATH),
        ]
    )


def _register(app: Dash, reading: Reading) -> None:
    inputs = (CLUSTER, LAST, BY, JOB, SINCE, UNTIL)
    follow_slowly(app, PATH, lambda state, again: _ask(reading, state, again=again), _body, _waiting)

    @following(
        app,
        PATH,
        *(Output(name, "value") for name in inputs),
        Output(OF_ALL, "hidden"),
        Output(BACK, "children"),
        Input(URL, "search"),
    )
    def follow(search: str | None) -> list[Any]:
        state, _ = parse(search)
        values = _values(state, _clusters(reading))
        return [*(values[name] for name in inputs), state.job is not None, _to_all(state)]

    @writing(
        app,
        *(Input(name, "value") for name in (CLUSTER, LAST, BY)),
        *(Input(name, event) for name in (SINCE, UNTIL, JOB) for event in ("n_submit", "n_blur")),
        *(State(name, "value") for name in (SINCE, UNTIL, JOB)),
        wrong=WRONG,
    )
    def change(state: Address, cluster: str | None, last: str | None, by: str | None, *values: Any) -> Address | None:
        since, until, number = values[-3:]
        now = _values(state, _clusters(reading))
        typed = {CLUSTER: cluster, LAST: last or "", BY: by, JOB: (number or "").strip(), SINCE: since, UNTIL: until}
        used = str(ctx.triggered_id)
        if used in (SINCE, UNTIL):
            if (since or "", until or "") == (now[SINCE], now[UNTIL]):
                return None
            since_ns, until_ns = typed_times(since, until)
            return replace(state, since=since_ns, until=until_ns, last=None)
        changes: dict[str, dict[str, Any]] = {
            CLUSTER: {"cluster": cluster, "job": None},
            LAST: {"last": last or None, "since": None, "until": None},
            BY: {"by": by},
            JOB: {"job": typed[JOB] or None},
        }
        return None if typed[used] == now[used] else replace(state, **changes[used])


PAGE = Page(PATH, "Jobs and energy", (TELEMETRY,), _layout, _register)
