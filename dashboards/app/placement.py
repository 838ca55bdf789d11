"""The page Placement: where a job should run and what it gains there, lines for a scheduler, scores, and a replay.

Inputs write the address; what the address asks for is made beside the pages, which ask again until it is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ...analysis.choosing import known_gpus, meant
from ...analysis.contents import timed_workloads
from ...analysis.replay.findings import GainTable
from ...analysis.replay.from_store import MOST_JOBS, stored_jobs, stored_trace
from ...analysis.replay.setting import Answered, general_of
from ...errors import WhorlError
from ..answers.replay import DEFAULTS
from ..document import Command, Part, Section
from ..documents.placement import PlacementAnswer, PlacementQuestion, SchedulerLines
from ..documents.replay import gain_parts, ground, opening
from ..figures.placement import nodes_by_score
from ..figures.replay import gain_by_seed
from ..words import capital, listed, many
from . import drawing, grid
from .drawing import failure, prose
from .page import RUNS, URL, Page, following, heading, section, told
from .reading import Slowly
from .state import parse

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ...analysis.replay.from_store import StoredJobs
    from ...store import Store
    from .reading import Later, Reading
    from .state import State as Address

_PATH = "placement"
_WORKLOAD, _MODEL, _GPUS, _SEEDS = "placement-workload", "placement-model", "placement-count", "placement-seeds"
_ALL, _AVOIDED = "placement-all", "placement-avoided"
_BODY, _DOING, _POLL, _SHOWN = "placement-body", "placement-doing", "placement-poll", "placement-shown"
_START, _CANCEL, _REPLAY, _AGAIN, _STATUS = (
    "placement-start", "placement-cancel", "placement-replay", "placement-again", "placement-status",
)  # fmt: skip
_EVERY_MS = 1000
_MOST_GPUS = 100_000
_REPLAY_WORKERS = 2
_BETWEEN = "\t"
_GAINING_MOST = "the one that gains most"
HARD, SOFT = 1.1, 1.05
"""The lines of the advice that a page asks for: the defaults of `whorl advise`."""
SEEDS = (5, 10, 20)
POLICIES = ("packed", "advice-exclude", "pm-first", "pal")
GRID = "placement-gpus"
COLUMNS = (
    grid.GridColumn("name", "GPU", link="gpu", asks={"gpu": "gpu", "cluster": "cluster"}),
    grid.GridColumn("node", "node"),
    grid.GridColumn("model", "model"),
    grid.GridColumn(
        "score", "score", "number", 3, says="time over that of the median GPU, as it is believed: above 1 is slow"
    ),
    grid.GridColumn("low", "90 %", "interval", 3, high="high", says="of the score in another sitting, at another time"),
    grid.GridColumn("runs", "n", "number", says="runs that the score rests on; where runs of a day are alike, days"),
    grid.GridColumn("raw", "measured", "number", 3, says="the level of its times over that of the median GPU"),
    grid.GridColumn(
        "finding", "finding", says="the worst finding about it or its node, as whorl verdicts last stored it", width=216
    ),
    grid.GridColumn("power_w", "power, W", "number", 0, says="median over its runs"),
    grid.GridColumn("sm_clock_mhz", "clock, MHz", "number", 0, says="median over its runs"),
    grid.GridColumn("temperature_c", "temperature, °C", "number", 0, says="median over its runs"),
    grid.GridColumn("newest", "newest run (UTC)", "time"),
    grid.GridColumn("workload", "workload"),
)


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
    nodes, avoided, unknown = reading.kept(
        ("without", cluster, state.without), lambda: _avoided(reading, cluster, state.without)
    )
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


# -- layout ------------------------------------------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    address = read_address(reading, state)
    if reading.advise is None:
        alone = told(html.P(prose("Advice is given by `whorl dashboard` and `whorl advise`, not here.")), kind="empty")
        return html.Div([heading("Placement"), alone])
    if address.question is None:
        todo = told(
            html.P("No run of this store has a time, so there are no scores. Measure every GPU a few times:"),
            RUNS.command(reading.store.root),
            kind="empty",
        )
        return html.Div([heading("Placement"), todo])
    seeds = int(state.seeds) if state.seeds in {str(number) for number in SEEDS} else SEEDS[1]
    seed_choices: Any = [{"label": f"{number} seeds", "value": number} for number in SEEDS]
    all_nodes = html.Button("Use all nodes", id=_ALL, type="button", n_clicks=0)
    return html.Div(
        [
            heading("Placement", "Where a job should run, which nodes to avoid, and what that gains."),
            _inputs(reading, state, address, address.question),
            html.Div([told(html.P(sentence)) for sentence in address.problems]),
            html.Div(told(html.P([address.avoided, " ", all_nodes])), id=_AVOIDED, hidden=address.avoided is None),
            html.Div(id=_DOING, role="status"),
            html.Div(id=_BODY),
            section(
                "Replay: would a policy have helped?",
                html.Div(id=_STATUS),
                html.Div(
                    [
                        html.Label(
                            ["Seeds", dcc.Dropdown(seed_choices, seeds, id=_SEEDS, clearable=False, searchable=False)]
                        ),
                        html.Button("Replay", id=_START, type="button", n_clicks=0, className="main"),
                        html.Button("Cancel", id=_CANCEL, type="button", n_clicks=0, disabled=True),
                    ],
                    className="buttons",
                ),
                html.Div(id=_REPLAY),
            ),
            dcc.Interval(_POLL, interval=_EVERY_MS, disabled=True),
            dcc.Interval(_AGAIN, interval=_EVERY_MS, disabled=True),
            dcc.Store(_SHOWN),
        ],
        className="placement",
    )


def _inputs(reading: Reading, state: Address, address: PlacementAddress, question: PlacementQuestion) -> Component:
    timed = reading.answer(timed_workloads, tables=("results", "gpus"))
    clusters = list(dict.fromkeys(row["cluster"] for row in timed))
    works: Any = []
    for cluster in clusters:
        place = f" on {cluster}" if len(clusters) > 1 else ""
        works.append({"label": f"{_GAINING_MOST}{place}", "value": f"{cluster}{_BETWEEN}"})
        works += [
            {
                "label": f"{row['workload']}{place} ({many(row['gpus'], 'GPU')})",
                "value": f"{cluster}{_BETWEEN}{row['workload']}",
            }
            for row in timed
            if row["cluster"] == cluster
        ]
    chosen = f"{question.cluster}{_BETWEEN}{question.workload or ''}"
    count = dcc.Input(id=_GPUS, type="number", min=1, step=1, value=question.gpus, debounce=True)
    models = dcc.Dropdown(list(address.models), state.model, id=_MODEL, placeholder="all models")
    return html.Div(
        [
            html.Label(["Workload", dcc.Dropdown(works, chosen, id=_WORKLOAD, clearable=False)]),
            html.Label(["Model", models], hidden=len(address.models) < 2 and state.model is None),
            html.Label(["GPUs of the job", count]),
        ],
        className="choices",
    )


# -- advice ------------------------------------------------------------------------------------------------------


def advice_body(answer: PlacementAnswer) -> Component:
    """What stands under the inputs when there is advice: the document of `whorl advise`, with its nodes drawn and the
    scores of all GPUs."""
    parts = answer.document.parts
    first = next((place for place, part in enumerate(parts) if isinstance(part, Section)), len(parts))
    return html.Div(
        [
            *_opening(parts[:first]),
            *(_nodes(answer, kind) for kind, nodes in answer.nodes.items() if nodes.height != 1),
            _scheduler_lines(answer.lines),
            *drawing.components(parts[first:]),
            _gpus(answer),
        ]
    )


def _opening(parts: Sequence[Part]) -> list[Component]:
    """The answer, larger than the sentences that follow. What is to be copied stands in a section of its own."""
    sentences = [part for part in parts if isinstance(part, str) and not isinstance(part, Command)]
    return [
        html.P(prose(sentence), className="finding" if place == 0 else None) for place, sentence in enumerate(sentences)
    ]


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
    return section(title, drawing.graph(figure, f"nodes by score: {kind}"), says=lead)


def _gpus(answer: PlacementAnswer) -> Component:
    few = answer.gpus if answer.gpus.height <= grid.MOST else None
    return section(
        "Scores of all GPUs",
        grid.table(GRID, COLUMNS, few, label="Scores of all GPUs"),
        says=f"n = {many(answer.gpus.height, 'GPU')}.",
    )


# -- replay ------------------------------------------------------------------------------------------------------


def replay_jobs(
    store: Store,
    cluster: str,
    workload: str,
    *,
    seeds: int,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Answered:
    """The store's own jobs, each as if it ran `workload`, under some policies. Raises InputError."""
    options: dict[str, Any] = {**DEFAULTS, "store": str(store.root), "cluster": cluster, "clock": "events"}
    setting = general_of([stored_trace(store, cluster)], options | {"classes": {"*": workload}, "policy": POLICIES})
    return setting.answer(seeds=seeds, workers=workers, progress=progress)


def about_jobs(jobs: StoredJobs, store: str) -> list[Component]:
    """What would be replayed, or why nothing can be."""
    if jobs.usable:
        newest = f" The newest {MOST_JOBS:,} are replayed." if jobs.usable > MOST_JOBS else ""
        sentence = (
            f"{jobs.usable:,} of {jobs.jobs:,} jobs of this cluster can be replayed on the measured GPUs, each as if "
            f"it ran the workload above.{newest}"
        )
        return [html.P(sentence, className="soft")]
    why = "This store has no jobs of this cluster." if not jobs.jobs else "None of its jobs can be replayed."
    return [
        told(
            html.P(f"{why} Read those of the last month from Slurm's accounting:"),
            drawing.component(Command(f"whorl jobs import --store {shlex.quote(store)} --since 30d")),
            html.P(prose("`whorl replay --trace FILE` replays the trace of another cluster.")),
            kind="empty",
        )
    ]


def replay_body(answered: Answered) -> Component:
    """What the replay says: the sections of `whorl replay`, and each gain seed by seed."""
    parts: list[Component] = []
    for group in answered.groups:
        sentences = [*opening(group)]
        parts += [
            html.P(prose(sentence), className="finding" if place == 0 else None)
            for place, sentence in enumerate(sentences)
        ]
        parts += drawing.components(gain_parts(group))
        table = GainTable.of(group.findings)
        for head in reversed(table.heads):
            parts.append(html.H3(f"Gain {head}, seed by seed"))
            parts.append(drawing.graph(gain_by_seed(table.drawn[head]), f"gain {head}, seed by seed"))
    parts.append(
        html.P(
            "A point is a seed; right of 0 the policy is faster. The bars are 90 % intervals for another such trace on "
            "this fleet: each seed draws what is not sure of the scores, the order of nodes and, after the first, the "
            "jobs.",
            className="soft",
        )
    )
    return html.Div([*parts, drawing.component(replace(ground(answered), folded=True))])


# -- callbacks ---------------------------------------------------------------------------------------------------


def _register(app: Dash, reading: Reading) -> None:
    advising, replaying = Slowly(), Slowly()

    def advice(state: Address) -> Later[PlacementAnswer] | None:
        question = read_address(reading, state).question
        if question is None or reading.advise is None:
            return None
        advise, version = reading.advise, reading.version()
        return advising.ask(question, lambda say: advise(reading.store, version, question, say), version)

    @following(
        app,
        _PATH,
        Output(_BODY, "children"),
        Output(_DOING, "children"),
        Output(_POLL, "disabled"),
        Output(_SHOWN, "data"),
        Input(URL, "search"),
        Input(_POLL, "n_intervals"),
        State(_SHOWN, "data"),
    )
    def follow(search: str | None, _: int | None, before: str | None) -> Any:
        state, _problems = parse(search)
        try:
            later = advice(state)
        except Exception as error:
            return told(html.P(failure(error)), kind="problem"), None, True, None
        if later is None:
            return None, None, True, None
        doing = None if later.doing is None else told(html.P(f"{capital(later.doing)}..."))
        if later.answer is None:
            return (no_update if before is None else None), doing, False, None
        now = f"{read_address(reading, state).question}{later.made_at}"
        body = no_update if now == before else advice_body(later.answer)
        return body, doing, later.doing is None, now

    @following(app, _PATH, Output(_AVOIDED, "hidden"), Input(URL, "search"))
    def avoid(search: str | None) -> bool:
        return not parse(search)[0].without

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(_ALL, "n_clicks"),
        Input(_WORKLOAD, "value"),
        Input(_MODEL, "value"),
        Input(_GPUS, "value"),
        Input(_SEEDS, "value"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def change(
        all_nodes: int | None,
        work: str | None,
        model: str | None,
        gpus: float | None,
        seeds: int | None,
        search: str | None,
    ) -> Any:
        state, _problems = parse(search)
        new = state
        if ctx.triggered_id == _ALL and all_nodes:
            new = replace(state, without=())
        elif ctx.triggered_id == _WORKLOAD and work:
            cluster, _tab, workload = work.partition(_BETWEEN)
            new = replace(state, cluster=cluster, probe=workload or None, model=None)
        elif ctx.triggered_id == _MODEL:
            new = replace(state, model=model)
        elif ctx.triggered_id == _GPUS and gpus is not None:
            new = replace(state, gpus=f"{int(gpus)}")
        elif ctx.triggered_id == _SEEDS and seeds:
            new = replace(state, seeds=str(seeds))
        return no_update if new == state else new.search()

    def rows_of(search: str | None) -> pl.DataFrame:
        later = advice(parse(search)[0])
        if later is None or later.answer is None:
            return pl.DataFrame(schema=dict.fromkeys(grid.column_names(COLUMNS), pl.String))
        return later.answer.gpus

    grid.serve(app, GRID, COLUMNS, rows_of, follows=("cluster", "probe", "model"))
    _register_replay(app, reading, replaying, advice)


def _register_replay(
    app: Dash, reading: Reading, replaying: Slowly, advice: Callable[[Address], Later[PlacementAnswer] | None]
) -> None:
    def ask(cluster: str, workload: str, seeds: int) -> Later[Answered]:
        def make(say: Callable[[str], None]) -> Answered:
            return replay_jobs(
                reading.store, cluster, workload, seeds=seeds, workers=_REPLAY_WORKERS,
                progress=lambda done, replays: say(f"{done:,} of {replays:,} replays are done"),
            )  # fmt: skip

        return replaying.ask((cluster, workload, seeds), make, reading.version())

    @following(app, _PATH, Output(_STATUS, "children"), Output(_START, "disabled"), Input(URL, "search"))
    def about(search: str | None) -> Any:
        question = read_address(reading, parse(search)[0]).question
        if question is None:
            return None, True
        jobs = reading.answer(stored_jobs, question.cluster, tables=("jobs",))
        return about_jobs(jobs, str(reading.store.root)), jobs.usable == 0

    @app.callback(
        Output(_REPLAY, "children"),
        Output(_AGAIN, "disabled"),
        Output(_CANCEL, "disabled"),
        Input(_START, "n_clicks"),
        Input(_AGAIN, "n_intervals"),
        Input(_CANCEL, "n_clicks"),
        State(URL, "search"),
        State(_SEEDS, "value"),
        prevent_initial_call=True,
    )
    def follow(starts: int, _: int | None, cancels: int, search: str | None, seeds: int) -> Any:
        state, _problems = parse(search)
        question = read_address(reading, state).question
        if question is None or not (starts or cancels):
            return no_update, True, True
        try:
            later = advice(state) if question.workload is None else None
            workload = question.workload or (later.answer.advice.workload if later and later.answer else None)
            if workload is None:
                return told(html.P("Waiting for the advice, which says which workload gains most...")), False, False
            if ctx.triggered_id == _CANCEL:
                replaying.give_up((question.cluster, workload, seeds))
                return told(html.P("The replay was cancelled.")), True, True
            replayed = ask(question.cluster, workload, seeds)
        except Exception as error:
            return told(html.P(failure(error)), kind="problem"), True, True
        if replayed.answer is None:
            return told(html.P(f"{replayed.doing or 'waiting'}...")), False, False
        return replay_body(replayed.answer), True, True


PAGE = Page(_PATH, "Placement", (RUNS,), _layout, _register)
