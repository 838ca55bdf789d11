"""The page as a whole: figures that follow the address, the newest readings, and what came since on a live page."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update, set_props

from ....analysis.telemetry.bands import Bands, bands, sample
from ....analysis.telemetry.extent import extent, last_readings, newest_readings
from ....analysis.telemetry.happened import Happened, happened
from ....analysis.telemetry.lines import Lines, lines, silent_since, stretch
from ....analysis.telemetry.lines import following as readings_since
from ....errors import QueryError
from ...documents.telemetry import bands_text, freshness, lines_text, newest_section, silence
from ...figures.drawing import Figure
from ...figures.happened import arranged, behind, in_words, of_happened
from ...figures.telemetry import of_bands, of_lines, plainly
from ...words import listed
from ..drawing import component, graph, prose
from ..page import TELEMETRY, URL, Page, following, heading, told
from ..state import State as Address
from ..state import parse
from . import inputs
from .inputs import CLUSTER, FROM, GPUS, GRAPH, LANES, LIVE, METRIC, MOVED, SHOWN, TO, ZOOMS
from .view import METRICS, PATH, TelemetryView, answered, is_settled, known_boards, view_of

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ....store import Store
    from ..reading import Reading

SUMMARY, DRAWN, HAPPENED, MEANWHILE, NEWEST, SLOW, TICK, KNOWN, FRESH, STATUS = (
    f"telemetry-{name}"
    for name in (
        "summary", "drawn", "happened", "meanwhile", "newest", "slow", "tick", "known", "fresh", "status",
    )
)  # fmt: skip
_BESIDE = ("utilization", "power_mw", "temperature_c", "memory_used", "sm_clock_mhz")
"""What the newest readings show beside the metrics of the address."""
_CONFIG = {"doubleClick": "autosize", "scrollZoom": False}
_MOST_NEWEST, _NAMED = 2_000, 4
_SLOW_MS, _TICK_MS, _PAUSE_MS = 15_000, 2_000, 3_600_000


def _layout(reading: Reading, state: Address) -> Component:
    figures = html.Div(graph({}, "telemetry over time", config=_CONFIG, id=GRAPH), id=DRAWN, hidden=True)
    lanes = graph({}, "jobs, runs and events over time", config=_CONFIG, id=LANES)
    meanwhile = [html.H2("Meanwhile"), html.P(id=MEANWHILE, className="soft"), lanes]
    return html.Div(
        [
            heading("Telemetry", "Drag across a figure to look closer; double click to go back."),
            inputs.input_rows(reading, state),
            html.P(id=STATUS, role="status", className="status"),
            html.Div(id=SUMMARY, className="soft"),
            figures,
            html.Div(meanwhile, id=HAPPENED, hidden=True),
            html.Div(id=NEWEST),
            dcc.Interval(SLOW, interval=_SLOW_MS, disabled=True),
            dcc.Interval(TICK, interval=_TICK_MS, disabled=True),
            *(dcc.Store(name) for name in (SHOWN, KNOWN, FRESH, MOVED)),
            dcc.Store(ZOOMS, data=[]),
        ],
        className="telemetry",
    )


# -- figures ------------------------------------------------------------------------------------------------------


def _show(app: Dash, reading: Reading) -> None:
    """Draw what the address says, and the newest readings."""

    @following(
        app,
        PATH,
        Output(GRAPH, "figure"),
        Output(DRAWN, "hidden"),
        Output(SUMMARY, "children"),
        Output(SHOWN, "data"),
        Output(SLOW, "disabled"),
        Output(NEWEST, "children"),
        Input(URL, "search"),
        Input(SLOW, "n_intervals"),
        *(State(name, "value") for name in (GPUS, METRIC, CLUSTER, LIVE)),
    )
    def show(search: str | None, _: int | None, *values: Any) -> tuple[Any, ...]:
        state, _problems = parse(search)
        try:
            view = view_of(reading, state)
            newest_rows = _newest(reading, view, state)
            if ctx.triggered_id == SLOW and not (view.has_bands or view.has_masks):
                return (*(no_update,) * 5, newest_rows)  # what came since is added to the lines
            if is_settled(view.range.until):
                reading.soon(partial(_during, reading, view))  # `meanwhile` asks for it next
            figure, text, live_data = _figure(reading, view)
        except QueryError as error:
            return no_update, True, told(html.P(str(error)), kind="empty"), None, True, None
        _set_inputs(state, view, values)
        times = {
            "since": view.range.since, "until": view.range.until, "first": view.first, "last": view.last,
            "window": view.window,
        }  # fmt: skip
        now = {
            "search": search or "",
            "ends": _ends(view),
            **{name: at and str(at) for name, at in times.items()},  # a number of a browser has 53 bits
            **live_data,
        }
        notes = [told(html.P(prose(note))) for note in view.notes]
        summary = [*notes, html.P(prose(text))]
        return figure, False, summary, now, view.window is None, newest_rows


def _newest(reading: Reading, view: TelemetryView, state: Address) -> Component:
    metrics = tuple(dict.fromkeys((*_BESIDE, *view.metrics)))
    rows = newest_readings(reading.store, view.which, metrics, _MOST_NEWEST)
    return component(newest_section(rows, metrics), lambda page, name: state.href(page, gpu=(name,)))


def _meanwhile(app: Dash, reading: Reading) -> None:
    """Draw what happened meanwhile: jobs, probes and events."""

    @app.callback(
        Output(HAPPENED, "hidden"),
        Output(LANES, "style"),
        Output(LANES, "figure"),
        Output(MEANWHILE, "children"),
        Output(GRAPH, "figure", allow_duplicate=True),
        Input(SHOWN, "data"),
        Input(SLOW, "n_intervals"),
        prevent_initial_call=True,
    )
    def meanwhile(now: dict[str, Any] | None, _: int | None) -> tuple[Any, ...]:
        if not now:
            return True, no_update, no_update, None, no_update
        state, _problems = parse(now["search"])
        view = view_of(reading, state, None if ctx.triggered_id == SLOW else int(now["last"]))
        since, until = view.range.since, view.range.until
        events = _during(reading, view)
        lanes = arranged(events, {} if view.has_bands else view.names, until)
        figure = of_happened(lanes, since, until)
        patch = Patch()
        patch["layout"]["shapes"] = behind(events, since, until)
        if figure is None:
            return True, no_update, no_update, None, patch
        return False, {"height": figure.layout["height"]}, figure, in_words(lanes), patch


def _ready(reading: Reading) -> None:
    """Look once at what one GPU did: the first look of a process into a large store takes half a second."""
    for board in known_boards(reading).all[:1]:
        ends = extent(reading.store, (board.key,))
        if ends:
            lines(reading.store, (board.key,), METRICS, ends[1], ends[1] + 1)
        happened(reading.store, (board.key,), 0, 1, apart=True)


def _during(reading: Reading, view: TelemetryView) -> Happened:
    since, until = view.range.since, view.range.until
    return answered(reading, until, _happened, view.which, since, until, not view.has_bands)


def _happened(store: Store, which: Any, since: int, until: int, apart: bool) -> Happened:
    return happened(store, which, since, until, apart=apart)


def _ends(view: TelemetryView) -> tuple[str, str]:
    """What the fields of the range say: nothing of one that moves on with the newest readings."""
    return ("", "") if view.window else view.range.ends


def _set_inputs(state: Address, view: TelemetryView, values: tuple[Any, ...]) -> None:
    """Let the inputs say what is shown. Those that say it already are left alone: a person may be using them."""
    began, ended = _ends(view)
    set_props(FROM, {"value": began})
    set_props(TO, {"value": ended})
    targets = (inputs.gpu_values(state), list(view.metrics), state.cluster, inputs.live_window(state))
    for name, target, value in zip((GPUS, METRIC, CLUSTER, LIVE), targets, values, strict=True):
        if (target or value) and target != value:
            set_props(name, {"value": target})


def _figure(reading: Reading, view: TelemetryView) -> tuple[Figure, str, dict[str, Any]]:
    """The figure, what to know of it, and what following it needs."""
    since, until = view.range.since, view.range.until
    keys = view.chosen.keys
    if view.has_bands:
        band = answered(reading, until, _bands, sample(keys), view.metrics, since, until, len(keys))
        far_keys = tuple(dict.fromkeys(key for metric in band.bands for key, _ in metric.far))
        metrics = tuple(metric.metric for metric in band.bands)
        has_far = far_keys and metrics
        far = answered(reading, until, _lines, far_keys, metrics, since, until, None) if has_far else None
        names = {key: view.names[key] for key in far_keys}
        return of_bands(band, far, names), bands_text(band, names), {"known": None}
    last = last_readings(reading.store, keys) if view.window else {}
    width = stretch(view.window, len(keys), view.metrics) if view.window else None
    answer = answered(reading, until, _lines, keys, view.metrics, since, until, width)
    live_data = {
        "width": str(answer.width_ns),
        "traces": [[keys.index(line.key), line.metric] for line in answer.lines],
        "known": [str(last.get(key, 0)) for key in keys],
        "steps": [max((line.step_ns or 0 for line in answer.lines if line.key == key), default=0) for key in keys],
    }
    live = view.window is not None
    return of_lines(answer, view.names, listed=live), lines_text(answer, view.names, live=live), live_data


def _lines(store: Store, keys: Any, metrics: Any, since: int, until: int, width_ns: int | None) -> Lines:
    return lines(store, keys, metrics, since, until, width_ns=width_ns)


def _bands(store: Store, keys: Any, metrics: Any, since: int, until: int, count: int) -> Bands:
    return bands(store, keys, metrics, since, until, asked=count)


# -- what came since ----------------------------------------------------------------------------------------------


def _follow(app: Dash, reading: Reading) -> None:
    """Every few seconds add what came since, which the browser puts on the lines."""

    @app.callback(Output(TICK, "disabled"), Output(KNOWN, "data"), Output(STATUS, "hidden"), Input(SHOWN, "data"))
    def begin(now: dict[str, Any] | None) -> tuple[Any, ...]:
        live = bool(now and now["window"])
        return not live, now and now["known"], not live

    @app.callback(
        Output(FRESH, "data"),
        Output(KNOWN, "data", allow_duplicate=True),
        Output(STATUS, "children"),
        Input(TICK, "n_intervals"),
        State(URL, "search"),
        State(SHOWN, "data"),
        State(KNOWN, "data"),
        prevent_initial_call=True,
        running=[(Output(TICK, "interval"), _PAUSE_MS, _TICK_MS)],  # a slow answer is not asked for twice
    )
    def tick(
        _: int | None, search: str | None, now: dict[str, Any] | None, last_known: list[str] | None
    ) -> tuple[Any, ...]:
        if not now or not now["window"] or now["search"] != (search or ""):
            return no_update, no_update, no_update
        view = view_of(reading, parse(search)[0])
        now_ns = time.time_ns()
        if view.has_bands or last_known is None:
            return no_update, no_update, prose(freshness(view.last, now_ns))
        keys = view.chosen.keys
        before_ns = {key: int(at) for key, at in zip(keys, last_known, strict=True)}
        tail = readings_since(reading.store, keys, view.metrics, before_ns, int(now["width"]), int(now["window"]))
        silent = silent_since(tail.last, dict(zip(keys, map(int, now["steps"]), strict=True)), now_ns)
        if len(silent) == len(tail.last):
            text = silence(max(silent.values(), default=view.last), now_ns)
        else:
            text = freshness(max(tail.last.values()), now_ns)
            if silent:
                text += f" Nothing comes any more from {listed([view.names[key] for key in silent], _NAMED)}."
        if not tail.lines:
            return no_update, no_update, prose(text)
        places = {(keys[int(gpu)], metric): place for place, (gpu, metric) in enumerate(now["traces"])}
        fresh = {
            "since": tail.since / 1e6,
            "until": tail.until / 1e6,
            "window": int(now["window"]) / 1e6,
            "lines": [{"place": places[line.key, line.metric], **plainly(line)} for line in tail.lines],
        }
        return fresh, [str(tail.last.get(key, 0)) for key in keys], prose(text)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("telemetry", "follow"),
        Output(GRAPH, "figure", allow_duplicate=True),
        Input(FRESH, "data"),
        State(GRAPH, "figure"),
        prevent_initial_call=True,
    )


def _register(app: Dash, reading: Reading) -> None:
    for part in (inputs.register, _show, _meanwhile, _follow):
        part(app, reading)


def _ahead(reading: Reading) -> list[Callable[[], object]]:
    return [partial(known_boards, reading), partial(_ready, reading)]


PAGE = Page(PATH, "Telemetry", (TELEMETRY,), _layout, _register, _ahead)
