"""The page Telemetry: what any GPUs did at any time, what they do at this moment, and what happened meanwhile.

Each input writes the address, and the figures follow it; a live page draws them again every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from ...analysis.telemetry.bands import bands, sample
from ...analysis.telemetry.choosing import Boards, Chosen, boards, choose, matching
from ...analysis.telemetry.extent import (
    SECOND,
    WINDOWS,
    Range,
    before,
    extent,
    last_hour,
    last_readings,
    meant,
    newest,
    newest_readings,
)
from ...analysis.telemetry.happened import happened
from ...analysis.telemetry.lines import Lines, lines, silent_since
from ...analysis.telemetry.readings import Key, Which, shown
from ...errors import QueryError
from ...store.metrics import METRICS as ALL_METRICS
from ...store.metrics import ROW
from ..documents.telemetry import bands_text, freshness, lines_text, newest_section, silence
from ..figures.drawing import Figure
from ..figures.telemetry import MOST_LINES, arranged, behind, in_words, of_bands, of_happened, of_lines
from ..words import listed, many
from .page import (
    TELEMETRY,
    URL,
    Page,
    choice,
    component,
    field,
    following,
    graph,
    heading,
    labelled,
    prose,
    told,
    writing,
)
from .reading import STILL
from .state import State as Address
from .state import parse, typed_times

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .reading import Reading

T = TypeVar("T")

PATH = "telemetry"
METRICS = ("power_mw", "sm_clock_mhz", "temperature_c")
"""What an address without metrics shows."""
TABLES = (*STILL, "telemetry")
"""Tables that tell when readings of the past may have changed: an import, a new day."""
GPUS, METRIC, CLUSTER, LIVE, FROM, TO, WRONG, LENGTH = (
    f"telemetry-{name}" for name in ("gpus", "metrics", "cluster", "live", "from", "to", "wrong", "length")
)
GRAPH, LANES, SUMMARY, DRAWN, MEANWHILE, NEWEST, TICK, STATUS = (
    f"telemetry-{name}" for name in ("graph", "lanes", "summary", "drawn", "meanwhile", "newest", "tick", "status")
)
_BESIDE = ("utilization", "power_mw", "temperature_c", "memory_used", "sm_clock_mhz")
"""What the newest readings show beside the metrics of the address."""
_LENGTHS = {"hour": "Last hour", "day": "Day", "week": "Week", "all": "All"}
_WINDOWS = {"": "Live: off", "5m": "Live: 5 minutes", "15m": "Live: 15 minutes", "1h": "Live: 1 hour"}
_KINDS = {"gpu": "", "node": "node ", "cabinet": "cabinet "}
_CONFIG = {"doubleClick": "autosize", "doubleClickDelay": 500, "scrollZoom": False}  # ms: as desktops have it
_OFFERED = 30  # of cabinets, nodes and GPUs each, that fit what is typed
_MOST_METRICS, _MOST_NEWEST, _NAMED = 6, 2_000, 4
_LOOKED_AT = 8  # GPUs that tell when readings began
_SETTLED_NS = 900_000_000_000  # so long ago, everything is written: rows of slow sources come late
_TICK_MS, _PAUSE_MS = 2_000, 3_600_000
_TABLE_TICKS = 8  # the table of the newest readings is drawn anew so seldom, as a person may sort it


# -- what an address asks for -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TelemetryView:
    """What an address asks for."""

    chosen: Chosen
    names: dict[Key, str]
    """Of the GPUs; with their cluster where the store has several."""
    metrics: tuple[str, ...]
    range: Range
    first: int
    last: int
    window: int | None
    """The page follows the newest readings, and shows so much of them (ns)."""
    notes: tuple[str, ...]

    @property
    def which(self) -> Which:
        """The GPUs, for a query: all of them, or each by its key."""
        return self.chosen.cluster if self.chosen.everything else self.chosen.keys

    @property
    def has_bands(self) -> bool:
        """Whether the GPUs are too many for a line each."""
        return len(self.chosen.boards) > MOST_LINES

    @property
    def ends(self) -> tuple[str, str]:
        """What the fields of the range say: nothing of one that moves on with the newest readings."""
        return ("", "") if self.window else self.range.ends


def view_of(reading: Reading, state: Address) -> TelemetryView:
    """What an address asks for. Raises QueryError, which says what there is, where there is nothing to show."""
    chosen = choose(
        known_boards(reading), cluster=state.cluster, gpus=state.gpu, nodes=state.node, cabinets=state.cabinet
    )
    notes = [f"{name} is not in this store: it is left out." for name in chosen.unknown]
    if not chosen.boards:
        raise QueryError(f"This store has no {', '.join(chosen.unknown) or 'GPU'}: choose other GPUs in the list.")
    notes += [f"There is no metric {name[:60]!r}: choose one of the list." for name in state.metric if name not in ROW]
    if len(state.metric) > _MOST_METRICS:
        notes.append(f"The first {_MOST_METRICS} metrics are shown.")
    which: Which = chosen.cluster if chosen.everything else chosen.keys
    ends, last = reading.answer(extent, which, tables=TABLES), newest(reading.store, which)
    if ends is None and last is None:
        raise QueryError(
            "These GPUs have no telemetry: whorl collect reads it, whorl import brings that of other tools."
        )
    read = reading.answer(last_readings, which, tables=TABLES)  # a store may know more GPUs by their runs
    with_readings = tuple(board for board in chosen.boards if board.key in read)
    if 0 < len(with_readings) < len(chosen.boards):
        notes.append(f"{many(len(chosen.boards) - len(with_readings), 'GPU')} without readings left out.")
        chosen = replace(chosen, boards=with_readings, everything=False)
    first, last = ends[0] if ends else last or 0, max(last or 0, ends[1] if ends else 0)
    window = WINDOWS.get(state.live or "")
    if state.live and window is None:
        notes.append(f"live={state.live[:20]!r} is none of {', '.join(WINDOWS)}: it is left out.")
    if window:
        span = Range(last - window, last + 1)
    elif state.since is None and state.until is None:
        span = Range(settled(reading, last, last_hour, sample(chosen.keys, _LOOKED_AT), first, last), last + SECOND)
    else:
        span = meant(first, last, state.since, state.until)
    several = len({board.cluster for board in chosen.boards}) > 1
    names = {
        board.key: f"{board.cluster or 'no cluster'}: {board.name}" if several else board.name
        for board in chosen.boards
    }
    notes += [span.says] if span.says else []
    return TelemetryView(chosen, names, metrics_of(state), span, first, last, window, tuple(notes))


def metrics_of(state: Address) -> tuple[str, ...]:
    """The metrics of an address that there are, as the list has them."""
    return tuple(name for name in state.metric if name in ROW)[:_MOST_METRICS] or METRICS


def known_boards(reading: Reading) -> Boards:
    """The GPUs of the store."""
    return reading.answer(boards, tables=("gpus", "telemetry"))


def settled(reading: Reading, until: int, answer: Callable[..., T], *arguments: Hashable, **options: Hashable) -> T:
    """What `answer` answers: kept where the range that it is about has ended, else made anew."""
    if until < time.time_ns() - _SETTLED_NS:
        return reading.answer(answer, *arguments, tables=TABLES, **options)
    return answer(reading.store, *arguments, **options)


# -- inputs -------------------------------------------------------------------------------------------------------


def _inputs(reading: Reading, state: Address) -> Component:
    """The inputs, as an address sets them."""
    fleet = known_boards(reading)
    clusters = [cluster for cluster in fleet.clusters if cluster is not None]
    gpus, metrics, cluster, live = _values(state, clusters)
    gpu_list = dcc.Dropdown(
        _options(fleet, "", gpus), gpus, id=GPUS, multi=True, debounce=True, maxHeight=400,
        placeholder=f"all: {many(len(fleet.all), 'GPU')}",
    )  # fmt: skip
    offered = [
        {
            "label": shown(metric.name).label,
            "value": metric.name,
            "title": shown(metric.name).says,
            "search": f"{metric.name} {shown(metric.name).label} {metric.description}",
        }
        for metric in ALL_METRICS
    ]
    metric_list = dcc.Dropdown(offered, metrics, id=METRIC, multi=True, debounce=True, maxHeight=400)
    cluster_list = dcc.Dropdown(clusters, cluster, id=CLUSTER, placeholder="all clusters")
    lengths = [
        html.Button(text, id={"type": LENGTH, "length": length}, type="button", n_clicks=0)
        for length, text in _LENGTHS.items()
    ]
    rows: list[list[Any]] = [
        [
            html.Label(["GPUs, nodes, cabinets", gpu_list], className="grow"),
            html.Label(["Metrics", metric_list], className="grow"),
            html.Label(["Cluster", cluster_list], hidden=len(clusters) < 2),
        ],
        [
            html.Div(lengths, role="group", className="buttons", **labelled("Range")),
            html.Label(["From (UTC)", field(FROM)]),
            html.Label(["to", field(TO)]),
            html.Label([html.Span("Live", className="unseen"), choice(LIVE, _WINDOWS, live or "")], className="live"),
        ],
    ]
    return html.Div([*(html.Div(row, className="inputs") for row in rows), html.Div(id=WRONG, role="alert")])


def _values(state: Address, clusters: Collection[str | None]) -> tuple[list[str], list[str], str | None, str | None]:
    """What the lists of GPUs, metrics, clusters and live windows say of an address."""
    gpus = [f"{kind}:{name}" for kind in _KINDS for name in getattr(state, kind)]
    cluster = state.cluster if state.cluster in clusters else None
    return gpus, list(metrics_of(state)), cluster, state.live if state.live in _WINDOWS else ""


def _options(fleet: Boards, typed: str, chosen: list[str]) -> list[dict[str, Any]]:
    """What the list offers: what is chosen, and what fits the letters that were typed."""
    cabinets, nodes, gpus = matching(fleet, typed, _OFFERED)
    offers = [f"cabinet:{name}" for name in cabinets] + [f"node:{name}" for name in nodes]
    offers += [f"gpu:{name}" for name in gpus]
    values = dict.fromkeys([*offers, *chosen] if typed else [*chosen, *offers])
    return [{"label": _label(fleet, value), "value": value, "search": f"{value} {typed}"} for value in values]


def _label(fleet: Boards, value: str) -> str:
    kind, _, name = value.partition(":")
    inside = {"node": fleet.by_node, "cabinet": fleet.by_cabinet}.get(kind, {}).get(name)
    return f"{_KINDS.get(kind, '')}{name}" + (f" ({many(len(inside), 'GPU')})" if inside else "")


def _changed(reading: Reading, state: Address, used: Any, value: Any, times: tuple[str | None, str | None]) -> Address:
    """The address after a person used an input. What an address asks for and no list has is left in it, so that the
    page goes on saying so. Raises InputError for a time that is none."""
    clusters = known_boards(reading).clusters
    names = (GPUS, METRIC, CLUSTER, LIVE)
    now = dict(zip(names, _values(state, clusters), strict=True))
    if used in names and (value or None) == (now[used] or None):
        return state
    if used == GPUS:
        by_kind: dict[str, Any] = {
            kind: tuple(name.partition(":")[2] for name in value or () if name.partition(":")[0] == kind)
            for kind in _KINDS
        }
        return replace(state, **by_kind)
    if used == METRIC:
        return replace(state, metric=() if tuple(value or ()) == METRICS else tuple(value or ()))
    if used == CLUSTER:
        return replace(state, cluster=value)
    if used == LIVE:
        return replace(state, live=value or None, since=None, until=None)
    view = view_of(reading, state)
    if isinstance(used, dict):  # the last hour is what an address without a range shows
        length = used["length"]
        since = view.first
        if length not in ("all", "hour"):
            since = max(view.first, before(view.last, length))
        return replace(state, since=None if length == "hour" else since, until=None, live=None)
    if (times[0] or "", times[1] or "") == view.ends:
        return state
    since_ns, until_ns = typed_times(*times)
    return replace(state, since=since_ns, until=until_ns, live=None)


def _used() -> list[tuple[Any, Any]]:
    """What a person used, and its value. When the page comes, all is told as used: what nobody pressed has no number. A
    click on a button takes the focus from a field, which says nothing by that."""
    used = [
        (ctx.triggered_prop_ids[trigger["prop_id"]], trigger["value"])
        for trigger in ctx.triggered
        if trigger["value"] or not trigger["prop_id"].rpartition(".")[2].startswith("n_")
    ]
    is_pressed = any(isinstance(name, dict) for name, _ in used)
    return [(name, value) for name, value in used if not (is_pressed and name in (FROM, TO))]


def _follow_inputs(app: Dash, reading: Reading) -> None:
    """Write what a person chooses or types into the address, and let the lists say what the address does. What a
    person drags is written by `assets/telemetry.js`."""
    lists = (GPUS, METRIC, CLUSTER, LIVE)

    @app.callback(Output(GPUS, "options"), Input(GPUS, "search_value"), State(GPUS, "value"), prevent_initial_call=True)
    def offer(typed: str | None, chosen: list[str] | None) -> Any:
        return _options(known_boards(reading), typed or "", chosen or [])

    @following(
        app,
        PATH,
        *(Output(name, "value") for name in lists),
        Input(URL, "search"),
        *(State(name, "value") for name in lists),
    )
    def follow(search: str | None, *values: Any) -> list[Any]:
        state, _ = parse(search)
        wanted = _values(state, known_boards(reading).clusters)
        return [no_update if (new or None) == (old or None) else new for new, old in zip(wanted, values, strict=True)]

    @writing(
        app,
        *(Input(name, "value") for name in lists),
        *(Input(name, event) for name in (FROM, TO) for event in ("n_submit", "n_blur")),
        Input({"type": LENGTH, "length": ALL}, "n_clicks"),
        *(State(name, "value") for name in (FROM, TO)),
        wrong=WRONG,
    )
    def change(state: Address, *values: Any) -> Address:
        for used, value in _used():
            state = _changed(reading, state, used, value, values[-2:])
        return state


# -- figures ------------------------------------------------------------------------------------------------------


def _figure(reading: Reading, view: TelemetryView) -> tuple[Figure, str, Iterator[tuple[Key, int]]]:
    """The figure, what to know of it, and the usual time from one reading of a GPU to the next, ns."""
    since, until, keys = view.range.since, view.range.until, view.chosen.keys
    if view.has_bands:
        band = settled(reading, until, bands, sample(keys), view.metrics, since, until, asked=len(keys))
        far_keys = tuple(dict.fromkeys(key for metric in band.bands for key, _ in metric.far))
        metrics = tuple(metric.metric for metric in band.bands)
        far = settled(reading, until, lines, far_keys, metrics, since, until) if far_keys and metrics else None
        names = {key: view.names[key] for key in far_keys}
        return of_bands(band, far, names), bands_text(band, names), iter(())
    answer: Lines = settled(reading, until, lines, keys, view.metrics, since, until)
    steps = ((line.key, line.step_ns or 0) for line in answer.lines)
    return of_lines(answer, view.names), lines_text(answer, view.names, live=False), steps


def _freshness(reading: Reading, view: TelemetryView, steps: dict[Key, int]) -> str:
    """How old the newest reading is, and from which GPUs nothing comes any more."""
    now_ns = time.time_ns()
    last = {} if view.has_bands else last_readings(reading.store, view.chosen.keys)
    silent = silent_since(last, steps, now_ns)
    if silent and len(silent) == len(last):
        return silence(max(silent.values()), now_ns)
    text = freshness(view.last, now_ns)
    return text + (
        f" Nothing comes any more from {listed([view.names[key] for key in silent], _NAMED)}." if silent else ""
    )


def _newest(reading: Reading, view: TelemetryView, state: Address) -> Component:
    metrics = tuple(dict.fromkeys((*_BESIDE, *view.metrics)))
    rows = newest_readings(reading.store, view.which, metrics, _MOST_NEWEST)
    return component(newest_section(rows, metrics), lambda page, name, _: state.href(page, gpu=(name,)))


def _show(app: Dash, reading: Reading) -> None:
    """Draw what the address says: the readings, what happened meanwhile, and the newest readings."""
    outputs = {
        "figure": Output(GRAPH, "figure"), "style": Output(GRAPH, "style"), "hidden": Output(DRAWN, "hidden"),
        "summary": Output(SUMMARY, "children"),
        "lanes": Output(LANES, "figure"), "lane_style": Output(LANES, "style"),
        "meanwhile": Output(MEANWHILE, "children"), "newest": Output(NEWEST, "children"),
        "status": Output(STATUS, "children"), "quiet": Output(TICK, "disabled"), "since": Output(FROM, "value"),
        "until": Output(TO, "value"),
    }  # fmt: skip
    pause = [(Output(TICK, "interval"), _PAUSE_MS, _TICK_MS)]  # a slow answer is not asked for twice

    @following(app, PATH, outputs, Input(URL, "search"), Input(TICK, "n_intervals"), running=pause)
    def show(search: str | None, ticks: int | None) -> dict[str, Any]:
        state, _problems = parse(search)
        again = ctx.triggered_id == TICK
        try:
            view = view_of(reading, state)
            if again and view.has_bands and (ticks or 0) % _TABLE_TICKS:
                return dict.fromkeys(outputs, no_update)
            figure, text, steps = _figure(reading, view)
        except QueryError as error:
            problem = told(html.P(str(error)), kind="empty")
            return dict.fromkeys(outputs, no_update) | {"hidden": True, "summary": problem, "newest": None}
        since, until = view.range.since, view.range.until
        events = settled(reading, until, happened, view.which, since, until, apart=not view.has_bands)
        lanes = arranged(events, {} if view.has_bands else view.names, until)
        drawn_lanes = of_happened(lanes, since, until)
        figure.layout["shapes"] = behind(events, since, until)
        answer = {
            "figure": figure,
            "style": {"height": figure.layout["height"]},
            "hidden": False,
            "summary": [*(told(html.P(prose(note))) for note in view.notes), html.P(prose(text))],
            "lanes": drawn_lanes or {},
            "lane_style": {"height": drawn_lanes.layout["height"]} if drawn_lanes else {"display": "none"},
            "meanwhile": in_words(lanes) or "Nothing is known of jobs, runs or events of this time.",
            "newest": _newest(reading, view, state),
            "status": prose(_freshness(reading, view, dict(steps))) if view.window else None,
            "quiet": view.window is None,
            "since": view.ends[0],
            "until": view.ends[1],
        }
        if again:  # a person may be typing, or sorting the table
            answer |= {"since": no_update, "until": no_update}
            answer |= {"newest": no_update} if (ticks or 0) % _TABLE_TICKS else {}
        return answer


# -- the page -----------------------------------------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    meanwhile = [html.H2("Meanwhile"), html.P(id=MEANWHILE, className="soft")]
    drawn = [
        graph({}, "telemetry over time", config=_CONFIG, id=GRAPH),
        *meanwhile,
        graph({}, "jobs, runs and events over time", config=_CONFIG, id=LANES),
    ]
    return html.Div(
        [
            heading("Telemetry", "Drag across a figure to look closer; double click to go back."),
            _inputs(reading, state),
            html.P(id=STATUS, role="status", className="status"),
            html.Div(id=SUMMARY, className="soft"),
            html.Div(drawn, id=DRAWN, hidden=True),
            html.Div(id=NEWEST),
            dcc.Interval(TICK, interval=_TICK_MS, disabled=True),
        ],
        className="telemetry",
    )


def _register(app: Dash, reading: Reading) -> None:
    _follow_inputs(app, reading)
    _show(app, reading)


def _ready(reading: Reading) -> None:
    """Look once at what one GPU did: the first look of a process into a large store takes half a second."""
    for board in known_boards(reading).all[:1]:
        ends = extent(reading.store, (board.key,))
        if ends:
            lines(reading.store, (board.key,), METRICS, ends[1], ends[1] + 1)
        happened(reading.store, (board.key,), 0, 1, apart=True)


def _ahead(reading: Reading) -> list[Callable[[], object]]:
    return [partial(known_boards, reading), partial(_ready, reading)]


PAGE = Page(PATH, "Telemetry", (TELEMETRY,), _layout, _register, _ahead)
