"""The page Placement: where a job should run and what it gains there, lines for a scheduler, and scores.

Inputs write the address; what the address asks for is made beside the pages, which ask again until it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, ctx, dcc, html

from ...analysis.choosing import known_gpus, meant
from ...analysis.contents import timed_workloads
from ...errors import WhorlError
from ..document import Column, Command, Section
from ..documents.placement import PlacementAnswer, PlacementQuestion, SchedulerLines
from ..figures.placement import nodes_by_score
from ..words import capital, listed, many
from .grid import GridOptions, frame_table, grid
from .page import (
    RUNS,
    URL,
    Page,
    components,
    follow_slowly,
    following,
    graph,
    heading,
    prose,
    section,
    slow_parts,
    told,
    writing,
)
from .state import State as Address
from .state import parse

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .reading import Later, Reading

PATH = "placement"
_WORKLOAD, _MODEL, _GPUS, _ALL, _AVOIDED = (
    f"placement-{name}" for name in ("workload", "model", "count", "all", "avoided")
)
_MOST_GPUS = 100_000
_BETWEEN = "\t"
_GAINING_MOST = "the one that gains most"
HARD, SOFT = 1.1, 1.05
"""The lines of the advice that a page asks for: the defaults of `whorl advise`."""
COLUMNS = {
    "name": Column("GPU", page="gpu"),
    "node": Column("node"),
    "model": Column("model"),
    "score": Column(
        "score", "number", 3, explains="time over that of the median GPU, as it is believed: above 1 is slow"
    ),
    "low high": Column("90 %", "interval", 3, explains="of the score in another sitting, at another time"),
    "runs": Column("n", "count", explains="runs that the score rests on; where runs of a day are alike, days"),
    "raw": Column("measured", "number", 3, explains="the level of its times over that of the median GPU"),
    "finding": Column("finding", explains="the worst finding about it or its node, as whorl verdicts last stored it"),
    "power_w": Column("power, W", "number", 0, explains="median over its runs"),
    "sm_clock_mhz": Column("clock, MHz", "number", 0, explains="median over its runs"),
    "temperature_c": Column("temperature, °C", "number", 0, explains="median over its runs"),
    "newest": Column("newest run (UTC)", "time"),
    "workload": Column("workload"),
}


# -- what an address asks for ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlacementAddress:
    """What an address asks for; `question` is None where the store has nothing to ask about."""

    question: PlacementQuestion | None
    models: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    avoided: str | None = None
    """Which GPUs the job shall avoid, and what follows."""


def read_address(reading: Reading, state: Address) -> PlacementAddress:
    """The question of an address: where it names no workload, about the one in which the job gains most."""
    timed = reading.answer(timed_workloads, tables=("results", "gpus"))
    of_cluster = [row for row in timed if state.cluster in (None, row["cluster"])]
    problems = []
    if not of_cluster and timed:
        problems.append(f"The cluster {state.cluster!r} has no times: {timed[0]['cluster']} is shown.")
        of_cluster = timed
    gpus = 1
    if state.gpus is not None:
        if state.gpus.isdecimal() and 1 <= int(state.gpus[:9]) <= _MOST_GPUS:
            gpus = int(state.gpus)
        else:
            problems.append(f"gpus={state.gpus[:20]!r} in the address is no number of GPUs: 1 is shown.")
    if not of_cluster:
        return PlacementAddress(None, (), tuple(problems))
    chosen = next((row for row in of_cluster if row["workload"] == state.probe), None)
    if state.probe is not None and chosen is None:
        problems.append(f"There are no times of {state.probe!r}: the workload that gains most is shown.")
    cluster = (chosen or of_cluster[0])["cluster"]
    models = sorted({model for row in ([chosen] if chosen else of_cluster) for model in row["models"] or ()})
    nodes, avoided, unknown = _avoided(reading, cluster, state.without)
    question = PlacementQuestion(cluster, chosen["workload"] if chosen else None, state.model, gpus, nodes)
    return PlacementAddress(question, tuple(models), (*problems, *unknown), avoided)


def _avoided(reading: Reading, cluster: str, gpus: tuple[str, ...]) -> tuple[tuple[str, ...], str | None, list[str]]:
    """The nodes of GPUs that a job shall avoid, a sentence that says so, and sentences about GPUs of no known node."""
    nodes, names, problems = dict[str, None](), list[str](), []
    for gpu in gpus:
        try:
            row = meant(reading.answer(known_gpus, tables=("gpus",)), gpu, cluster, "this store")
        except WhorlError as error:
            problems.append(f"Not excluded: {error}.")
            continue
        if row["node"] is None:
            problems.append(f"Not excluded: the node of {row['name']} is not known, and schedulers exclude nodes.")
        else:
            nodes[row["node"]] = None
            names.append(row["name"])
    if not names:
        return (), None, problems
    nodes_are = "its whole node is" if len(names) == 1 else f"the whole of {many(len(nodes), 'node')} is"
    sentence = f"The job avoids {listed(names)}: schedulers exclude nodes, so {nodes_are} left out."
    return tuple(sorted(nodes)), sentence, problems


# -- advice ------------------------------------------------------------------------------------------------------


def advice_body(answer: PlacementAnswer) -> Component:
    """What stands under the inputs when there is advice: the document of `whorl advise`, with its nodes drawn and the
    scores of all GPUs. The answer stands larger than the sentences that follow; what is to be copied, by itself."""
    parts = answer.document.parts
    first = next((place for place, part in enumerate(parts) if isinstance(part, Section)), len(parts))
    sentences = [part for part in parts[:first] if isinstance(part, str) and not isinstance(part, Command)]
    opening = [html.P(prose(text), className="finding" if place == 0 else None) for place, text in enumerate(sentences)]
    nodes = [_nodes(answer, kind) for kind, rows in answer.nodes.items() if rows.height != 1]
    who = {name: (gpu, cluster) for name, gpu, cluster in answer.gpus.select("name", "gpu", "cluster").iter_rows()}

    def address(page: str, name: str, _: str | None) -> str:
        gpu, cluster = who[name]
        return Address().href(page, gpu=(gpu,), cluster=cluster)

    drawn = grid(frame_table(answer.gpus, COLUMNS, "Scores"), address, options=GridOptions(list(COLUMNS)))
    scores = section("Scores of all GPUs", drawn, says=f"n = {many(answer.gpus.height, 'GPU')}.")
    return html.Div([*opening, *nodes, _scheduler_lines(answer.lines), *components(parts[first:]), scores])


def _scheduler_lines(lines: Sequence[SchedulerLines]) -> Component:
    """What a scheduler can be told, each with a button that copies it and the command that prints it."""
    return section(
        "For the scheduler",
        *(_scheduler_line(line, place) for place, line in enumerate(lines)),
        says="Names of nodes are those of the store: no scheduler was asked. Where one answers, the commands use its "
        "names, and leave out nodes that it does not know.",
        className="copies",
    )


def _scheduler_line(line: SchedulerLines, place: int) -> Component:
    name = f"placement-copy-{place}"
    copying: dict[str, Any] = {"className": "copy", "data-copy": name}
    text = [html.Pre(html.Code(line.text, id=name), className="command", tabIndex=0)] if line.text else []
    note = [html.P(capital(line.note), className="soft")] if line.note else []
    buttons = [html.Button("Copy", type="button", **copying)] if line.text else []
    printing = [html.Span("From a terminal:", className="soft"), html.Code(line.command)] if line.command else []
    below = html.Div([*buttons, *printing], className="buttons")
    return html.Details([html.Summary(line.title), *text, *note, below], open=place == 0)


def _nodes(answer: PlacementAnswer, kind: str) -> Component:
    nodes = answer.nodes[kind]
    title = "Nodes" if len(answer.nodes) == 1 else f"Nodes: {kind}"
    if nodes.is_empty():
        return section(title, told(html.P("No node of these GPUs is known, so GPUs are compared.")))
    interval = "Bars and band: 90 % interval of the score in another sitting."
    if nodes["low"].null_count() == nodes.height:
        interval = "There is no interval, as it is not known which differences repeat."
    lead = (
        f"n = {many(nodes.height, 'node')}, each by its slowest GPU. {interval} A node is excluded or avoided only "
        "where its whole interval lies above the line."
    )
    figure = nodes_by_score(nodes, hard=HARD, soft=SOFT)
    return section(title, graph(figure, f"nodes by score: {kind}"), says=lead)


# -- the page ----------------------------------------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    address = read_address(reading, state)
    if reading.advise is None or address.question is None:
        why: list[Any] = [html.P(prose("Advice is given by `whorl dashboard` and `whorl advise`, not here."))]
        if reading.advise is not None:
            none = "No run of this store has a time, so there are no scores. Measure every GPU a few times:"
            why = [html.P(none), RUNS.command(reading.store.root)]
        return html.Div([heading("Placement"), told(*why, kind="empty")])
    all_nodes = html.Button("Use all nodes", id=_ALL, type="button", n_clicks=0)
    return html.Div(
        [
            heading("Placement", "Where a job should run, which nodes to avoid, and what that gains."),
            _inputs(reading, state, address, address.question),
            html.Div([told(html.P(sentence)) for sentence in address.problems]),
            html.Div(told(html.P([address.avoided, " ", all_nodes])), id=_AVOIDED, hidden=address.avoided is None),
            *slow_parts(PATH),
        ],
        className="placement",
    )


def _inputs(reading: Reading, state: Address, address: PlacementAddress, question: PlacementQuestion) -> Component:
    timed = reading.answer(timed_workloads, tables=("results", "gpus"))
    clusters = list(dict.fromkeys(row["cluster"] for row in timed))
    works: dict[str, str] = {}
    for cluster in clusters:
        place = f" on {cluster}" if len(clusters) > 1 else ""
        works[f"{cluster}{_BETWEEN}"] = f"{_GAINING_MOST}{place}"
        for row in timed:
            if row["cluster"] == cluster:
                label = f"{row['workload']}{place} ({many(row['gpus'], 'GPU')})"
                works[f"{cluster}{_BETWEEN}{row['workload']}"] = label
    offered = [{"label": label, "value": value} for value, label in works.items()]
    chosen = f"{question.cluster}{_BETWEEN}{question.workload or ''}"
    count = dcc.Input(id=_GPUS, type="number", min=1, step=1, value=question.gpus, debounce=True)
    models = dcc.Dropdown(list(address.models), state.model, id=_MODEL, placeholder="all models")
    return html.Div(
        [
            html.Label(["Workload", dcc.Dropdown(offered, chosen, id=_WORKLOAD, clearable=False)]),
            html.Label(["Model", models], hidden=len(address.models) < 2 and state.model is None),
            html.Label(["GPUs of the job", count]),
        ],
        className="choices",
    )


def _register(app: Dash, reading: Reading) -> None:
    def advice(state: Address, again: bool = False) -> Later[PlacementAnswer] | None:
        question, advise = read_address(reading, state).question, reading.advise
        if question is None or advise is None:
            return None
        version = reading.version()
        return reading.slowly.ask(
            question, lambda say: advise(reading.store, version, question, say), version, again=again
        )

    follow_slowly(app, PATH, advice, lambda answer, _: advice_body(answer))

    @following(app, PATH, Output(_AVOIDED, "hidden"), Input(URL, "search"))
    def avoid(search: str | None) -> bool:
        return not parse(search)[0].without

    @writing(app, Input(_ALL, "n_clicks"), *(Input(name, "value") for name in (_WORKLOAD, _MODEL, _GPUS)))
    def change(
        state: Address, all_nodes: int | None, work: str | None, model: str | None, gpus: float | None
    ) -> Address | None:
        if ctx.triggered_id == _ALL and all_nodes:
            return replace(state, without=())
        if ctx.triggered_id == _WORKLOAD and work:
            cluster, _tab, workload = work.partition(_BETWEEN)
            return replace(state, cluster=cluster, probe=workload or None, model=None)
        if ctx.triggered_id == _MODEL:
            return replace(state, model=model)
        return replace(state, gpus=f"{int(gpus)}") if ctx.triggered_id == _GPUS and gpus is not None else None


PAGE = Page(PATH, "Placement", (RUNS,), _layout, _register)
