"""Draws what the address says: lines or bands, and what happened meanwhile under them."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, Patch, State, ctx, dcc, html, no_update, set_props

from ....analysis.telemetry.bands import Bands, bands, sample
from ....analysis.telemetry.extent import extent, last_readings, written
from ....analysis.telemetry.happened import Happened, happened
from ....analysis.telemetry.lines import Lines, lines, stretch
from ....analysis.telemetry.shown import shown
from ....errors import QueryError
from ...figures.drawing import Figure
from ...figures.happened import arranged, behind, in_words, of_happened
from ...figures.telemetry import duration, of_bands, of_lines
from ...table import many, minus
from ..page import URL, following, graph, told
from ..state import State as Address
from ..state import parse
from .asked import METRICS, PATH, Asked, answered, ask, known, settled
from .controls import CLUSTER, FROM, GPUS, GRAPH, LANES, LIVE, METRIC, SHOWN, TO, values_of, window_of

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ....store import Store
    from ..reading import Reading

SUMMARY, DRAWN, HAPPENED, MEANWHILE, SLOW = (
    f"telemetry-{name}" for name in ("summary", "drawn", "happened", "meanwhile", "slow")
)
_SLOW_MS = 15_000
_CONFIG = {"doubleClick": "autosize", "scrollZoom": False}


def drawing() -> Component:
    """Where the figures come."""
    return html.Div(
        [
            html.Div(id=SUMMARY, className="soft"),
            html.Div(graph({}, "telemetry over time", config=_CONFIG, id=GRAPH), id=DRAWN, hidden=True),
            html.Div(
                [
                    html.H2("Meanwhile"),
                    html.P(id=MEANWHILE, className="soft"),
                    graph({}, "jobs, runs and events over time", config=_CONFIG, id=LANES),
                ],
                id=HAPPENED,
                hidden=True,
            ),
            dcc.Store(SHOWN),
            dcc.Interval(SLOW, interval=_SLOW_MS, disabled=True),
        ]
    )


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks that draw."""

    @following(
        app,
        PATH,
        Output(GRAPH, "figure"),
        Output(DRAWN, "hidden"),
        Output(SUMMARY, "children"),
        Output(SHOWN, "data"),
        Output(SLOW, "disabled"),
        Input(URL, "search"),
        Input(SLOW, "n_intervals"),
        State(SHOWN, "data"),
        *(State(name, "value") for name in (GPUS, METRIC, CLUSTER, LIVE)),
    )
    def show(search: str | None, _: int | None, before: dict[str, Any] | None, *set_now: Any) -> tuple[Any, ...]:
        state, _problems = parse(search)
        try:
            asked = ask(reading, state)
            if ctx.triggered_id == SLOW and not (asked.many or asked.masks):
                return (no_update,) * 5  # what came since is added to the lines
            if settled(asked.range.until):
                reading.soon(partial(_during, reading, asked))  # `meanwhile` asks for it next
            drawn, says, more = _drawn(reading, asked)
        except QueryError as error:
            return no_update, True, told(html.P(str(error)), kind="empty"), None, True
        _set_inputs(state, asked, set_now)
        figure = drawn.to_plotly_json()
        structure = _structure(figure)
        times = {
            "since": asked.range.since, "until": asked.range.until, "first": asked.first, "last": asked.last,
            "window": asked.window,
        }  # fmt: skip
        now = {
            "search": search or "",
            "structure": structure,
            "ends": _typed_ends(asked),
            **{name: at and str(at) for name, at in times.items()},  # a number of a browser has 53 bits
            **more,
        }
        same = before is not None and before.get("structure") == structure
        notes = [told(html.P(one)) for one in asked.says]
        return _patch(figure) if same else figure, False, [*notes, html.P(says)], now, asked.window is None

    @app.callback(
        Output(LANES, "figure"),
        Output(HAPPENED, "hidden"),
        Output(MEANWHILE, "children"),
        Output(GRAPH, "figure", allow_duplicate=True),
        Input(SHOWN, "data"),
        Input(SLOW, "n_intervals"),
        prevent_initial_call=True,
    )
    def meanwhile(now: dict[str, Any] | None, _: int | None) -> tuple[Any, ...]:
        if not now:
            return no_update, True, None, no_update
        state, _problems = parse(now["search"])
        asked = ask(reading, state, None if ctx.triggered_id == SLOW else int(now["last"]))
        since, until = asked.range.since, asked.range.until
        found = _during(reading, asked)
        placed = arranged(found, {} if asked.many else asked.names, until)
        figure = of_happened(placed, since, until)
        patch = Patch()
        patch["layout"]["shapes"] = behind(found, since, until)
        if figure is None:
            return no_update, True, None, patch
        return figure, False, in_words(placed), patch


def ready(reading: Reading) -> None:
    """Look once at what one GPU did: the first look of a process into a large store takes half a second."""
    for board in known(reading).all[:1]:
        ends = extent(reading.store, (board.key,))
        if ends:
            lines(reading.store, (board.key,), METRICS, ends[1], ends[1] + 1)
        happened(reading.store, (board.key,), 0, 1, apart=True)


def _during(reading: Reading, asked: Asked) -> Happened:
    since, until = asked.range.since, asked.range.until
    return answered(reading, until, _happened, asked.which, since, until, not asked.many)


def _happened(store: Store, which: Any, since: int, until: int, apart: bool) -> Happened:
    return happened(store, which, since, until, apart=apart)


def _typed_ends(asked: Asked) -> tuple[str, str]:
    """What the fields of the range say: nothing of one that moves on with the newest readings."""
    return ("", "") if asked.window else asked.range.ends


def _set_inputs(state: Address, asked: Asked, set_now: tuple[Any, ...]) -> None:
    """Let the inputs say what is shown. Those that say it already are left alone: a person may be using them."""
    began, ended = _typed_ends(asked)
    set_props(FROM, {"value": began})
    set_props(TO, {"value": ended})
    shall = (values_of(state), list(asked.metrics), state.cluster, window_of(state))
    for name, value, is_now in zip((GPUS, METRIC, CLUSTER, LIVE), shall, set_now, strict=True):
        if (value or is_now) and value != is_now:
            set_props(name, {"value": value})


def _drawn(reading: Reading, asked: Asked) -> tuple[Figure, str, dict[str, Any]]:
    """The figure, what to know of it, and what following it needs."""
    since, until = asked.range.since, asked.range.until
    if asked.many:
        some = sample(asked.chosen.keys)
        band = answered(reading, until, _bands, some, asked.metrics, since, until, len(asked.chosen.boards))
        odd = tuple(dict.fromkeys(key for one in band.bands for key, _ in one.far))
        drawn = [one.metric for one in band.bands]
        far = answered(reading, until, _lines, odd, tuple(drawn), since, until, None) if odd and drawn else None
        names = {key: asked.names[key] for key in odd}
        return of_bands(band, far, names), _of_bands(band, names), {"known": None}
    keys = asked.chosen.keys
    last = last_readings(reading.store, keys) if asked.window else {}
    width = stretch(asked.window, len(keys), asked.metrics) if asked.window else None
    found = answered(reading, until, _lines, keys, asked.metrics, since, until, width)
    more = {
        "width": str(found.width_ns),
        "traces": [[keys.index(line.key), line.metric] for line in found.lines],
        "known": [str(last.get(key, 0)) for key in keys],
        "steps": [max((line.step_ns or 0 for line in found.lines if line.key == key), default=0) for key in keys],
    }
    figure = of_lines(found, asked.names, listed=asked.window is not None)
    return figure, _of_lines(found, asked), more


def _lines(store: Store, keys: Any, metrics: Any, since: int, until: int, width_ns: int | None) -> Lines:
    return lines(store, keys, metrics, since, until, width_ns=width_ns)


def _bands(store: Store, keys: Any, metrics: Any, since: int, until: int, asked: int) -> Bands:
    return bands(store, keys, metrics, since, until, asked=asked)


def _of_lines(found: Lines, asked: Asked) -> str:
    steps = [line.step_ns for line in found.lines if line.step_ns]
    says = [f"n = {found.readings:,} readings of {many(len(asked.names), 'GPU')}"]
    if steps:
        fast, slow = duration(min(steps)), duration(max(steps))
        says.append(f"one every {fast}" if fast == slow else f"one every {fast} to {slow}")
    text = ", ".join(says) + (" when this began; what comes since is added." if asked.window else ".")
    if found.reduced:
        text += f" Of every {duration(found.width_ns)} a line shows the first, lowest, highest and last reading."
    if found.pruned_ns is not None and found.pruned_ns > found.since:
        text += (
            f" Up to {written(found.pruned_ns)} only minutes are kept: a line joins their means, and strokes go from "
            "the lowest to the highest value."
        )
    if found.more_spans:
        text += f" {many(found.more_spans, 'shorter span')} of reasons and marks are not shown."
    for metric in dict.fromkeys(line.metric for line in found.lines):
        none = [asked.names[line.key] for line in found.lines if line.metric == metric and not line.readings]
        if none:
            whose = "" if len(none) == len(asked.names) else f" of {', '.join(none[:4])}" + " ..." * (len(none) > 4)
            text += f" {shown(metric).title}{whose}: n/a, no reading in this time."
    return text


def _of_bands(found: Bands, names: dict[Any, str]) -> str:
    taken = f" that were taken evenly out of {found.asked:,}" if found.taken < found.asked else ""
    text = (
        f"n = {found.seen:,} of {many(found.taken, 'GPU')}{taken}: {found.readings:,} readings. The bands are "
        f"quantiles over the GPUs, of the mean of each GPU in {duration(found.width_ns)}; the lightest goes from the "
        "lowest to the highest single reading."
    )
    if taken:
        text += f" A quantile of these is one of all GPUs within {found.off_points:.0f} percentage points (95 %)."
    far: dict[Any, list[str]] = {}
    for band in found.bands:
        for key, apart in band.far:
            far.setdefault(key, []).append(minus(f"{apart:+,.3g} {shown(band.metric).unit}"))
    told = "; ".join(f"{names[key]} ({', '.join(by)})" for key, by in far.items())
    return text + (f" Far from the median of the others: {told}." if far else "")


def _structure(figure: dict[str, Any]) -> str:
    """The same for two figures of which one can take the numbers of the other."""
    parts = [[trace.get(part) for part in ("type", "name", "yaxis")] for trace in figure["data"]]
    heads = [one["text"] for one in figure["layout"].get("annotations", ())]
    return hashlib.sha256(repr((parts, heads, figure["layout"].get("height"))).encode()).hexdigest()[:16]


def _patch(figure: dict[str, Any]) -> Patch:
    """The numbers of a figure, for one of the same structure: what a person hid or moved in it stays."""
    patch = Patch()
    for place, trace in enumerate(figure["data"]):
        for name in ("x", "y", "base", "text", "customdata", "marker", "width"):
            if name in trace:
                patch["data"][place][name] = trace[name]
    for name, value in figure["layout"].items():
        if name == "xaxis" or (name.startswith("yaxis") and "ticktext" in value):
            patch["layout"][name] = value
    return patch
