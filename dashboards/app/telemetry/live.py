"""Follows the newest readings: every few seconds what came since, which the browser adds to the lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from ....analysis.telemetry.extent import written
from ....analysis.telemetry.following import following, silent_since
from ...figures.telemetry import duration, plainly
from ..page import URL
from ..state import parse
from .asked import ask
from .controls import GRAPH, SHOWN

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

TICK, KNOWN, FRESH, STATUS = (f"telemetry-{name}" for name in ("tick", "known", "fresh", "status"))
_TICK_MS = 2_000
_PAUSE_MS = 3_600_000
_NAMED = 4


def following_parts() -> Component:
    """What asks for news, what came, and how old the newest reading is."""
    return html.Div(
        [
            dcc.Interval(TICK, interval=_TICK_MS, disabled=True),
            dcc.Store(KNOWN),
            dcc.Store(FRESH),
            html.P(id=STATUS, role="status", className="status"),
        ]
    )


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks that follow."""

    @app.callback(Output(TICK, "disabled"), Output(KNOWN, "data"), Output(STATUS, "hidden"), Input(SHOWN, "data"))
    def begin(now: dict[str, Any] | None) -> tuple[Any, ...]:
        follow = bool(now and now["window"])
        return not follow, now and now["known"], not follow

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
    def tick(_: int | None, search: str | None, now: dict[str, Any] | None, known: list[str] | None) -> tuple[Any, ...]:
        if not now or not now["window"] or now["search"] != (search or ""):
            return no_update, no_update, no_update
        asked = ask(reading, parse(search)[0])
        if asked.many or known is None:
            return no_update, no_update, _newest(asked.last)
        keys = asked.chosen.keys
        before = {key: int(at) for key, at in zip(keys, known, strict=True)}
        tail = following(reading.store, keys, asked.metrics, before, int(now["width"]), int(now["window"]))
        silent = silent_since(tail.last, dict(zip(keys, map(int, now["steps"]), strict=True)), time.time_ns())
        if len(silent) == len(tail.last):
            says = _silent(max(silent.values(), default=asked.last))
        else:
            says = _newest(max(tail.last.values()))
            if silent:
                some = ", ".join(asked.names[key] for key in list(silent)[:_NAMED])
                says += f" Nothing comes any more from {some}{' ...' if len(silent) > _NAMED else ''}."
        if not tail.lines:
            return no_update, no_update, says
        places = {(keys[int(gpu)], metric): place for place, (gpu, metric) in enumerate(now["traces"])}
        fresh = {
            "since": tail.since / 1e6,
            "until": tail.until / 1e6,
            "window": int(now["window"]) / 1e6,
            "lines": [{"place": places[line.key, line.metric], **plainly(line)} for line in tail.lines],
        }
        return fresh, [str(tail.last.get(key, 0)) for key in keys], says

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("telemetry", "follow"),
        Output(GRAPH, "figure", allow_duplicate=True),
        Input(FRESH, "data"),
        State(GRAPH, "figure"),
        prevent_initial_call=True,
    )


def _newest(at: int) -> str:
    return f"The newest reading is of {written(at)} UTC, {duration(max(0, time.time_ns() - at))} ago."


def _silent(at: int) -> str:
    return (
        f"No reading came since {written(at)} UTC ({duration(max(0, time.time_ns() - at))} ago). Does whorl collect "
        "still run there? This page goes on by itself when readings come again."
    )
