"""The inputs of the page: GPUs, metrics, a range of time; each writes the address."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update

from ....analysis.telemetry.choosing import Boards, matching
from ....analysis.telemetry.extent import before
from ....analysis.telemetry.shown import shown
from ....store.metrics import METRICS as EVERY
from ...table import many
from ..page import URL, labelled, told
from ..state import State as Address
from ..state import moment, parse
from .asked import METRICS, known

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

GPUS, METRIC, CLUSTER, LIVE = (f"telemetry-{name}" for name in ("gpus", "metrics", "cluster", "live"))
FROM, TO, BACK, ZOOMS, WRONG, MOVED = (
    f"telemetry-{name}" for name in ("from", "to", "back", "zooms", "wrong", "moved")
)
GRAPH, LANES, SHOWN = (f"telemetry-{name}" for name in ("graph", "lanes", "shown"))
_LENGTH = "telemetry-length"
_LENGTHS = {"hour": "Last hour", "day": "Day", "week": "Week", "all": "All"}
_WINDOWS = {"": "Live: off", "5m": "Live: 5 minutes", "15m": "Live: 15 minutes", "1h": "Live: 1 hour"}
_OFFERED = 30  # of cabinets, nodes and GPUs each, that fit what is typed
_ZOOMS = 50
_KINDS = {"gpu": "", "node": "node ", "cabinet": "cabinet "}


def inputs(reading: Reading, state: Address) -> Component:
    """The inputs, as an address sets them."""
    every = known(reading)
    chosen = values_of(state)
    clusters = [one for one in every.clusters if one is not None]
    gpus = dcc.Dropdown(
        options(every, "", chosen), chosen, id=GPUS, multi=True, debounce=True, maxHeight=400,
        placeholder=f"all {many(len(every.all), 'GPU')}",
    )  # fmt: skip
    metrics = dcc.Dropdown(
        [
            {
                "label": shown(one.name).label,
                "value": one.name,
                "title": shown(one.name).says,
                "search": f"{one.name} {shown(one.name).label} {one.description}",
            }
            for one in EVERY
        ],
        list(metrics_of(state)), id=METRIC, multi=True, debounce=True, maxHeight=400,
        placeholder="power, clock, temperature",
    )  # fmt: skip
    cluster = dcc.Dropdown(
        clusters, state.cluster if state.cluster in clusters else None, id=CLUSTER, placeholder="all clusters"
    )
    lengths = [
        html.Button(text, id={"type": _LENGTH, "length": length}, type="button", n_clicks=0)
        for length, text in _LENGTHS.items()
    ]
    live = dcc.Dropdown(
        [{"label": text, "value": value} for value, text in _WINDOWS.items()], window_of(state), id=LIVE,
        clearable=False, searchable=False,
    )  # fmt: skip
    return html.Div(
        [
            html.Div(
                [
                    html.Label(["GPUs, nodes, cabinets", gpus], className="grow"),
                    html.Label(["Metrics", metrics], className="grow"),
                    html.Label(["Cluster", cluster], hidden=len(clusters) < 2),
                ],
                className="inputs",
            ),
            html.Div(
                [
                    html.Div(lengths, role="group", className="buttons", **labelled("Range")),
                    html.Label(["From (UTC)", dcc.Input(id=FROM, type="text", className="when", autoComplete="off")]),
                    html.Label(["to", dcc.Input(id=TO, type="text", className="when", autoComplete="off")]),
                    html.Button("Back", id=BACK, type="button", n_clicks=0, title="The range before the last zoom"),
                    html.Label([html.Span("Live", className="unseen"), live], className="live"),
                ],
                className="inputs",
            ),
            html.Div(id=WRONG, role="alert"),
            dcc.Store(ZOOMS, data=[]),
            dcc.Store(MOVED),
        ]
    )


def window_of(state: Address) -> str:
    """How much of the newest readings an address shows, as the list has it; "" where it shows none."""
    return state.live if state.live in _WINDOWS else ""


def metrics_of(state: Address) -> tuple[str, ...]:
    """The metrics of an address that there are, as the list has them."""
    there = {one.name for one in EVERY}
    return tuple(name for name in state.metric if name in there) or METRICS


def values_of(state: Address) -> list[str]:
    """The GPUs, nodes and cabinets of an address, as the list has them."""
    return [f"{kind}:{name}" for kind in _KINDS for name in getattr(state, kind)]


def options(every: Boards, typed: str, chosen: list[str]) -> list[dict[str, Any]]:
    """What the list offers: what is chosen, and what fits the letters that were typed."""
    cabinets, nodes, gpus = matching(every, typed, _OFFERED)
    offered = [f"cabinet:{name}" for name in cabinets] + [f"node:{name}" for name in nodes]
    offered += [f"gpu:{name}" for name in gpus]
    offered = list(dict.fromkeys([*offered, *chosen] if typed else [*chosen, *offered]))
    return [{"label": _label(every, one), "value": one, "search": f"{one} {typed}"} for one in offered]


def _label(every: Boards, value: str) -> str:
    kind, _, name = value.partition(":")
    own = {"node": every.by_node, "cabinet": every.by_cabinet}.get(kind, {}).get(name)
    return f"{_KINDS.get(kind, '')}{name}" + (f" ({many(len(own), 'GPU')})" if own else "")


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks that follow the inputs."""

    @app.callback(Output(GPUS, "options"), Input(GPUS, "search_value"), State(GPUS, "value"), prevent_initial_call=True)
    def offer(typed: str | None, chosen: list[str] | None) -> Any:
        return options(known(reading), typed or "", chosen or [])

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("telemetry", "moved"),
        Output(MOVED, "data"),
        Input(GRAPH, "relayoutData"),
        Input(LANES, "relayoutData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Output(ZOOMS, "data"),
        Output(WRONG, "children"),
        Output(GRAPH, "figure", allow_duplicate=True),
        Input(GPUS, "value"),
        Input(METRIC, "value"),
        Input(CLUSTER, "value"),
        Input(LIVE, "value"),
        Input(FROM, "n_submit"),
        Input(FROM, "n_blur"),
        Input(TO, "n_submit"),
        Input(TO, "n_blur"),
        Input({"type": _LENGTH, "length": ALL}, "n_clicks"),
        Input(BACK, "n_clicks"),
        Input(MOVED, "data"),
        State(FROM, "value"),
        State(TO, "value"),
        State(URL, "search"),
        State(SHOWN, "data"),
        State(ZOOMS, "data"),
        prevent_initial_call=True,
    )
    def change(
        gpus: list[str] | None, metrics: list[str] | None, cluster: str | None, live: str | None, *more: Any
    ) -> tuple[Any, ...]:
        event, began, ended, search, shown_now, zooms = more[-6:]
        state, _ = parse(search)
        zooms, now, did = zooms or [], shown_now or {}, _did()
        new = _set(state, did, gpus or [], tuple(metrics or ()), cluster, live or "", known(reading).clusters)
        moved = _zoomed(event or {}) if MOVED in did else None
        length = next((one["length"] for one in did if isinstance(one, dict)), None)
        wrong = None
        if BACK in did or moved == "back":
            new, zooms = _back(new, zooms)
        elif isinstance(moved, tuple):
            new = replace(new, since=moved[0], until=moved[1], live=None)
        elif length is not None:  # a click takes the focus from a field, too
            new = _of_length(new, length, now)
        elif FROM in did or TO in did:
            new, wrong = _typed(new, began, ended, now)
        if new == state:
            return no_update, no_update, wrong, _as_it_was(now) if moved else no_update
        if (new.since, new.until) != (state.since, state.until) and len(zooms) == len(more[-1] or []):
            zooms = [*zooms, _range(state)][-_ZOOMS:]
        return new.search(), zooms, wrong, no_update


def _did() -> list[Any]:
    """What a person used. When the page comes, all is told as used: a button that was never pressed has no number."""
    pressed = {one["prop_id"]: one["value"] for one in ctx.triggered}
    by = ctx.triggered_prop_ids
    return [by[prop] for prop, value in pressed.items() if value or not prop.rpartition(".")[2].startswith("n_")]


def _set(
    state: Address,
    did: list[Any],
    gpus: list[str],
    metrics: tuple[str, ...],
    cluster: str | None,
    live: str,
    clusters: Collection[str | None],
) -> Address:
    """The address after what was chosen in the lists. What an address asks for and no list has is left in it, so that
    the page goes on saying so."""
    if GPUS in did and gpus != values_of(state):
        state = replace(state, **_named(gpus))
    if METRIC in did and metrics != metrics_of(state):
        state = replace(state, metric=() if metrics == METRICS else metrics)
    if CLUSTER in did and cluster != (state.cluster if state.cluster in clusters else None):
        state = replace(state, cluster=cluster)
    if LIVE in did and live != window_of(state):
        state = replace(state, live=live or None, since=None, until=None)
    return state


def _named(values: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for value in values:
        kind, _, name = value.partition(":")
        if kind in found:
            found[kind].append(name)
    return {kind: tuple(names) for kind, names in found.items()}


def _of_length(state: Address, length: str, now: dict[str, Any]) -> Address:
    """The last hour is what an address without a range shows."""
    if length == "hour" or not (now or length == "all"):
        return replace(state, since=None, until=None, live=None)
    first, last = (int(now["first"]), int(now["last"])) if now else (0, 0)
    since = first if length == "all" else max(first, before(last, length))
    return replace(state, since=since, until=None, live=None)


def _typed(state: Address, began: str | None, ended: str | None, now: dict[str, Any]) -> tuple[Address, Any]:
    """The address with the range that was typed, and what is wrong with it."""
    if now and [began or "", ended or ""] == now["ends"]:
        return state, None
    found = []
    for text in (began, ended):
        at = moment(text.strip()) if text else None
        if at is None and text:
            return state, told(f"{text[:40]!r} is no time: write it as 2026-11-23 14:05:00 (UTC).", kind="problem")
        found.append(at)
    since, until = found
    if since is not None and until is not None and since >= until:
        return state, told("The range ends before it begins: write the earlier time on the left.", kind="problem")
    return replace(state, since=since, until=until, live=None), None


def _zoomed(event: dict[str, Any]) -> tuple[int, int] | str | None:
    """The range that a person dragged a figure to; "back" for a double click."""
    if event.get("back"):
        return "back"
    ends = event.get("range") or [None, None]
    since, until = (moment(end) if isinstance(end, str) else end and round(end * 1e6) for end in ends)
    return (since, until) if since is not None and until is not None and since < until else None


def _range(state: Address) -> dict[str, Any]:
    ends = {"since": state.since, "until": state.until}
    return {**{name: None if at is None else str(at) for name, at in ends.items()}, "live": state.live}


def _back(state: Address, zooms: list[dict[str, Any]]) -> tuple[Address, list[dict[str, Any]]]:
    """The range before the last zoom; without one, the last hour."""
    last = zooms[-1] if zooms else {"since": None, "until": None, "live": state.live}
    since, until = (None if at is None else int(at) for at in (last["since"], last["until"]))
    return replace(state, since=since, until=until, live=last["live"]), zooms[:-1]


def _as_it_was(now: dict[str, Any]) -> Any:
    """The figure at the range that the address says, where a person moved it and nothing came of that."""
    if not now:
        return no_update
    patch = Patch()
    patch["layout"]["xaxis"]["range"] = [int(now["since"]) / 1e6, int(now["until"]) / 1e6]
    patch["layout"]["xaxis"]["uirevision"] = time.time_ns() // 1_000_000  # another one than before
    return patch
