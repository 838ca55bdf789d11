"""The page as a whole: its inputs write the address, and what the address asks for is made beside the pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Input, Output, State, ctx, dcc, html, no_update

from ....analysis.choosing import known_gpus, meant
from ....analysis.contents import timed_workloads
from ....analysis.replay.stored import stored_jobs
from ....analysis.spread.summary import leading_workload
from ....errors import WhorlError
from ....store.names import plain_workload
from ...table import many
from .. import grid
from ..page import RUNS, URL, Page, failure, following, heading, prose, section, told
from ..reading import Slowly
from ..state import parse
from . import advised, replayed
from .told import Question, Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash import Dash
    from dash.development.base_component import Component

    from ....analysis.replay.setting import Answered
    from ..reading import Later, Reading
    from ..state import State as Address

_PATH = "placement"
_WORK, _MODEL, _GPUS = "placement-workload", "placement-model", "placement-count"
_ALL, _AVOIDED = "placement-all", "placement-avoided"
_BODY, _DOING, _POLL, _SHOWN = "placement-body", "placement-doing", "placement-poll", "placement-shown"
_START, _CANCEL, _REPLAY, _AGAIN, _STATUS = (
    "placement-start", "placement-cancel", "placement-replay", "placement-again", "placement-status",
)  # fmt: skip
_EVERY_MS = 1000
_MOST_GPUS = 100_000
_WORKERS = 2
_BETWEEN = "\t"
_NAMED = 4


@dataclass(frozen=True)
class _Asked:
    """What an address asks for; `question` is None where the store has nothing to ask about."""

    question: Question | None
    models: tuple[str, ...]
    says: tuple[str, ...]
    avoided: str | None = None
    """Which GPUs the job shall avoid, and what follows."""


def _ask(reading: Reading, state: Address) -> _Asked:
    """What an address asks for: where it names no workload, that which a report leads with."""
    known = reading.answer(timed_workloads, tables=("results", "gpus"))
    of_cluster = [one for one in known if state.cluster in (None, one["cluster"])]
    says = []
    if not of_cluster and known:
        says.append(f"The cluster {state.cluster!r} has no times: {known[0]['cluster']} is shown.")
        of_cluster = known
    found = [one for one in of_cluster if one["workload"] == state.probe] or _leading_first(reading, of_cluster)
    if state.probe is not None and found and found[0]["workload"] != state.probe:
        says.append(f"There are no times of {state.probe!r}: {found[0]['workload']} is shown.")
    gpus = 1
    if state.gpus is not None:
        if state.gpus.isdecimal() and 1 <= int(state.gpus[:9]) <= _MOST_GPUS:
            gpus = int(state.gpus)
        else:
            says.append(f"gpus={state.gpus[:20]!r} in the address is no number of GPUs: 1 is shown.")
    if not found:
        return _Asked(None, (), tuple(says))
    one = found[0]
    nodes, avoided, unknown = reading.kept(
        ("without", one["cluster"], state.without), lambda: _avoided(reading, one["cluster"], state.without)
    )
    question = Question(one["cluster"], one["workload"], state.model, gpus, nodes)
    return _Asked(question, tuple(one["models"] or ()), (*says, *unknown), avoided)


def _leading_first(reading: Reading, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The workload that a report of the first cluster leads with, else all."""
    if not rows:
        return rows
    leading = reading.answer(leading_workload, rows[0]["cluster"])
    named = None if leading is None else (rows[0]["cluster"], plain_workload(leading.workload))
    return [one for one in rows if (one["cluster"], one["workload"]) == named] or rows


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
    some = f"{', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED:,} more' if len(names) > _NAMED else ''}"
    its = "its whole node is" if len(names) == 1 else f"the whole of {many(len(nodes), 'node')} is"
    return tuple(sorted(nodes)), f"The job avoids {some}: schedulers exclude nodes, so {its} left out.", problems


def _layout(reading: Reading, state: Address) -> Component:
    asked = _ask(reading, state)
    if reading.advise is None or asked.question is None:
        todo = told(
            html.P("No run of this store has a time, so there are no scores. Measure every GPU a few times:"),
            RUNS.command(reading.store.root),
            kind="empty",
        )
        alone = told(
            html.P(prose("Advice is given by `whorl dashboard` and `whorl advise`, and not here.")), kind="empty"
        )
        return html.Div([heading("Placement"), alone if reading.advise is None else todo])
    known = reading.answer(timed_workloads, tables=("results", "gpus"))
    several = len({one["cluster"] for one in known}) > 1
    works: Any = [
        {
            "label": f"{one['workload']}{' on ' + one['cluster'] if several else ''} ({many(one['gpus'], 'GPU')})",
            "value": f"{one['cluster']}{_BETWEEN}{one['workload']}",
        }
        for one in known
    ]
    chosen = asked.question
    seeds = int(state.seeds) if state.seeds in {str(one) for one in replayed.SEEDS} else replayed.SEEDS[1]
    return html.Div(
        [
            heading("Placement", "Where a job should run, which nodes to avoid, and what that gains."),
            html.Div(
                [
                    html.Label(
                        [
                            "Workload",
                            dcc.Dropdown(
                                works, f"{chosen.cluster}{_BETWEEN}{chosen.workload}", id=_WORK, clearable=False
                            ),
                        ]
                    ),
                    html.Label(
                        ["Model", dcc.Dropdown(list(asked.models), state.model, id=_MODEL, placeholder="all models")],
                        hidden=len(asked.models) < 2 and state.model is None,
                    ),
                    html.Label(
                        [
                            "GPUs of the job",
                            dcc.Input(id=_GPUS, type="number", min=1, step=1, value=chosen.gpus, debounce=True),
                        ]
                    ),
                ],
                className="choices",
            ),
            html.Div([told(html.P(sentence)) for sentence in asked.says]),
            html.Div(
                told(html.P([asked.avoided, " ", html.Button("Use all nodes", id=_ALL, type="button", n_clicks=0)])),
                id=_AVOIDED,
                hidden=asked.avoided is None,
            ),
            html.Div(id=_DOING, role="status"),
            html.Div(id=_BODY),
            section(
                "Replay: would a policy have helped?",
                html.Div(id=_STATUS),
                html.Div(
                    [
                        html.Label(["Seeds", replayed.choices(seeds)]),
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


def _register(app: Dash, reading: Reading) -> None:
    advising, replaying = Slowly(), Slowly()

    def advice(state: Address) -> Later[Told] | None:
        asked = _ask(reading, state).question
        if asked is None or reading.advise is None:
            return None
        advise, version = reading.advise, reading.version()
        return advising.ask(asked, lambda say: advise(reading.store, version, asked, say), version)

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
            found = advice(state)
        except Exception as error:
            return told(html.P(failure(error)), kind="problem"), None, True, None
        if found is None:
            return None, None, True, None
        doing = None if found.doing is None else told(html.P(f"{found.doing[:1].upper()}{found.doing[1:]}..."))
        if found.answer is None:
            return (no_update if before is None else None), doing, False, None
        now = f"{_ask(reading, state).question}{found.made_at}"
        shown = no_update if now == before else advised.body(found.answer)
        return shown, doing, found.doing is None, now

    @following(app, _PATH, Output(_AVOIDED, "hidden"), Input(URL, "search"))
    def avoid(search: str | None) -> bool:
        return not parse(search)[0].without

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(_ALL, "n_clicks"),
        Input(_WORK, "value"),
        Input(_MODEL, "value"),
        Input(_GPUS, "value"),
        Input("placement-seeds", "value"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def change(
        all_: int | None, work: str | None, model: str | None, gpus: float | None, seeds: int | None, search: str | None
    ) -> Any:
        state, _problems = parse(search)
        new = state
        if ctx.triggered_id == _ALL and all_:
            new = replace(state, without=())
        elif ctx.triggered_id == _WORK and work:
            cluster, _tab, workload = work.partition(_BETWEEN)
            new = replace(state, cluster=cluster, probe=workload, model=None)
        elif ctx.triggered_id == _MODEL:
            new = replace(state, model=model)
        elif ctx.triggered_id == _GPUS and gpus is not None:
            new = replace(state, gpus=f"{int(gpus)}")
        elif ctx.triggered_id == "placement-seeds" and seeds:
            new = replace(state, seeds=str(seeds))
        return no_update if new == state else new.search()

    def rows_of(search: str | None) -> pl.DataFrame:
        found = advice(parse(search)[0])
        if found is None or found.answer is None:
            return pl.DataFrame(schema=dict.fromkeys(grid.column_names(advised.COLUMNS), pl.String))
        return found.answer.gpus

    grid.serve(app, advised.GRID, advised.COLUMNS, rows_of, follows=("cluster", "probe", "model"))
    _replays(app, reading, replaying)


def _replays(app: Dash, reading: Reading, replaying: Slowly) -> None:
    def ask(question: Question, seeds: int) -> Later[Answered]:
        def make(say: Callable[[str], None]) -> Answered:
            return replayed.replayed(
                reading.store, question.cluster, question.workload, seeds=seeds, workers=_WORKERS,
                progress=lambda done, of: say(f"{done:,} of {of:,} replays are done"),
            )  # fmt: skip

        return replaying.ask((question.cluster, question.workload, seeds), make, reading.version())

    @following(app, _PATH, Output(_STATUS, "children"), Output(_START, "disabled"), Input(URL, "search"))
    def about(search: str | None) -> Any:
        asked = _ask(reading, parse(search)[0]).question
        if asked is None:
            return None, True
        jobs = reading.answer(stored_jobs, asked.cluster, tables=("jobs",))
        return replayed.about(jobs, str(reading.store.root)), jobs.usable == 0

    @app.callback(
        Output(_REPLAY, "children"),
        Output(_AGAIN, "disabled"),
        Output(_CANCEL, "disabled"),
        Input(_START, "n_clicks"),
        Input(_AGAIN, "n_intervals"),
        Input(_CANCEL, "n_clicks"),
        State(URL, "search"),
        State("placement-seeds", "value"),
        prevent_initial_call=True,
    )
    def follow(starts: int, _: int | None, cancels: int, search: str | None, seeds: int) -> Any:
        asked = _ask(reading, parse(search)[0]).question
        if asked is None or not (starts or cancels):
            return no_update, True, True
        if ctx.triggered_id == _CANCEL:
            replaying.give_up((asked.cluster, asked.workload, seeds))
            return told(html.P("The replay was cancelled.")), True, True
        try:
            found = ask(asked, seeds)
        except Exception as error:
            return told(html.P(failure(error)), kind="problem"), True, True
        if found.answer is None:
            return told(html.P(f"{found.doing or 'waiting'}...")), False, False
        return replayed.body(found.answer), True, True


PAGE = Page(_PATH, "Placement", (RUNS,), _layout, _register)
