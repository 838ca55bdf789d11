"""The inputs of the page: GPUs, metrics, a range of time; each writes the address."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update

from ....analysis.telemetry.choosing import Boards, matching
from ....analysis.telemetry.extent import before
from ....analysis.telemetry.readings import shown
from ....errors import InputError
from ....store.metrics import METRICS as ALL_METRICS
from ....store.metrics import ROW
from ...words import many
from ..drawing import labelled
from ..page import URL, choice, field, told
from ..state import State as Address
from ..state import moment, parse, typed_times
from .view import METRICS, known_boards

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

GPUS, METRIC, CLUSTER, LIVE, FROM, TO, BACK, ZOOMS, WRONG, MOVED, LENGTH, GRAPH, LANES, SHOWN = (
    f"telemetry-{name}"
    for name in (
        "gpus", "metrics", "cluster", "live", "from", "to", "back", "zooms", "wrong", "moved", "length", "graph",
        "lanes", "shown",
    )
)  # fmt: skip
_LENGTHS = {"hour": "Last hour", "day": "Day", "week": "Week", "all": "All"}
_WINDOWS = {"": "Live: off", "5m": "Live: 5 minutes", "15m": "Live: 15 minutes", "1h": "Live: 1 hour"}
_KINDS = {"gpu": "", "node": "node ", "cabinet": "cabinet "}
_OFFERED = 30  # of cabinets, nodes and GPUs each, that fit what is typed
_ZOOMS = 50


def input_rows(reading: Reading, state: Address) -> Component:
    """The inputs, as an address sets them."""
    fleet, values = known_boards(reading), gpu_values(state)
    clusters = [cluster for cluster in fleet.clusters if cluster is not None]
    gpus = dcc.Dropdown(
        _options(fleet, "", values), values, id=GPUS, multi=True, debounce=True, maxHeight=400,
        placeholder=f"all: {many(len(fleet.all), 'GPU')}",
    )  # fmt: skip
    metrics = [
        {
            "label": shown(metric.name).label,
            "value": metric.name,
            "title": shown(metric.name).says,
            "search": f"{metric.name} {shown(metric.name).label} {metric.description}",
        }
        for metric in ALL_METRICS
    ]
    metric_list = dcc.Dropdown(
        metrics, list(_metrics(state)), id=METRIC, multi=True, debounce=True, maxHeight=400,
        placeholder="power, clock, temperature",
    )  # fmt: skip
    cluster = state.cluster if state.cluster in clusters else None
    cluster_list = dcc.Dropdown(clusters, cluster, id=CLUSTER, placeholder="all clusters")
    lengths = [
        html.Button(text, id={"type": LENGTH, "length": length}, type="button", n_clicks=0)
        for length, text in _LENGTHS.items()
    ]
    which = [
        html.Label(["GPUs, nodes, cabinets", gpus], className="grow"),
        html.Label(["Metrics", metric_list], className="grow"),
        html.Label(["Cluster", cluster_list], hidden=len(clusters) < 2),
    ]
    times = [
        html.Div(lengths, role="group", className="buttons", **labelled("Range")),
        html.Label(["From (UTC)", field(FROM)]),
        html.Label(["to", field(TO)]),
        html.Button("Back", id=BACK, type="button", n_clicks=0, title="The range before the last zoom"),
        html.Label(
            [html.Span("Live", className="unseen"), choice(LIVE, _WINDOWS, live_window(state))], className="live"
        ),
    ]
    rows = [html.Div(inputs, className="inputs") for inputs in (which, times)]
    return html.Div([*rows, html.Div(id=WRONG, role="alert")])


def live_window(state: Address) -> str:
    """How much of the newest readings an address shows, as the list has it; "" where it shows none."""
    return state.live if state.live in _WINDOWS else ""


def _metrics(state: Address) -> tuple[str, ...]:
    """The metrics of an address that there are, as the list has them."""
    return tuple(name for name in state.metric if name in ROW) or METRICS


def gpu_values(state: Address) -> list[str]:
    """The GPUs, nodes and cabinets of an address, as the list has them."""
    return [f"{kind}:{name}" for kind in _KINDS for name in getattr(state, kind)]


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


def register(app: Dash, reading: Reading) -> None:
    """Write what a person chooses, types or drags into the address."""

    @app.callback(Output(GPUS, "options"), Input(GPUS, "search_value"), State(GPUS, "value"), prevent_initial_call=True)
    def offer(typed: str | None, chosen: list[str] | None) -> Any:
        return _options(known_boards(reading), typed or "", chosen or [])

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
        *(Input(name, "value") for name in (GPUS, METRIC, CLUSTER, LIVE)),
        *(Input(name, event) for name in (FROM, TO) for event in ("n_submit", "n_blur")),
        Input({"type": LENGTH, "length": ALL}, "n_clicks"),
        Input(BACK, "n_clicks"),
        Input(MOVED, "data"),
        *(State(name, "value") for name in (FROM, TO)),
        State(URL, "search"),
        State(SHOWN, "data"),
        State(ZOOMS, "data"),
        prevent_initial_call=True,
    )
    def change(
        gpus: list[str] | None, metrics: list[str] | None, cluster: str | None, live: str | None, *inputs: Any
    ) -> tuple[Any, ...]:
        event, began, ended, search, shown_data, before_zooms = inputs[-6:]
        state, _ = parse(search)
        zooms, now, used = before_zooms or [], shown_data or {}, _used()
        values = {GPUS: gpus or [], METRIC: tuple(metrics or ()), CLUSTER: cluster, LIVE: live or ""}
        new = _with_lists(
            state, {name: value for name, value in values.items() if name in used}, known_boards(reading).clusters
        )
        moved = _zoomed(event or {}) if MOVED in used else None
        length = next((name["length"] for name in used if isinstance(name, dict)), None)
        wrong = None
        if BACK in used or moved == "back":
            new, zooms = _back(new, zooms)
        elif isinstance(moved, tuple):
            new = replace(new, since=moved[0], until=moved[1], live=None)
        elif length is not None:  # a click takes the focus from a field, too
            new = _with_length(new, length, now)
        elif FROM in used or TO in used:
            new, wrong = _with_times(new, began, ended, now)
        if new == state:
            return no_update, no_update, wrong, _as_it_was(now) if moved else no_update
        if (new.since, new.until) != (state.since, state.until) and len(zooms) == len(before_zooms or []):
            zooms = [*zooms, _zoom_of(state)][-_ZOOMS:]
        return new.search(), zooms, wrong, no_update


def _used() -> list[Any]:
    """What a person used. When the page comes, all is told as used: a button that was never pressed has no number."""
    pressed = {trigger["prop_id"]: trigger["value"] for trigger in ctx.triggered}
    names = ctx.triggered_prop_ids
    return [names[prop] for prop, value in pressed.items() if value or not prop.rpartition(".")[2].startswith("n_")]


def _with_lists(state: Address, used: dict[str, Any], clusters: Collection[str | None]) -> Address:
    """The address after what was chosen in the lists. What an address asks for and no list has is left in it, so that
    the page goes on saying so."""
    if GPUS in used and used[GPUS] != gpu_values(state):
        by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        for value in used[GPUS]:
            kind, _, name = value.partition(":")
            by_kind.get(kind, []).append(name)
        changes: dict[str, Any] = {kind: tuple(names) for kind, names in by_kind.items()}
        state = replace(state, **changes)
    if METRIC in used and used[METRIC] != _metrics(state):
        state = replace(state, metric=() if used[METRIC] == METRICS else used[METRIC])
    if CLUSTER in used and used[CLUSTER] != (state.cluster if state.cluster in clusters else None):
        state = replace(state, cluster=used[CLUSTER])
    if LIVE in used and used[LIVE] != live_window(state):
        state = replace(state, live=used[LIVE] or None, since=None, until=None)
    return state


def _with_length(state: Address, length: str, now: dict[str, Any]) -> Address:
    """The last hour is what an address without a range shows."""
    if length == "hour" or not (now or length == "all"):
        return replace(state, since=None, until=None, live=None)
    first, last = (int(now["first"]), int(now["last"])) if now else (0, 0)
    since = first if length == "all" else max(first, before(last, length))
    return replace(state, since=since, until=None, live=None)


def _with_times(state: Address, began: str | None, ended: str | None, now: dict[str, Any]) -> tuple[Address, Any]:
    """The address with the range that was typed, and what is wrong with it."""
    if now and [began or "", ended or ""] == now["ends"]:
        return state, None
    try:
        since, until = typed_times(began, ended)
    except InputError as error:
        return state, told(str(error), kind="problem")
    return replace(state, since=since, until=until, live=None), None


def _zoomed(event: dict[str, Any]) -> tuple[int, int] | str | None:
    """The range that a person dragged a figure to; "back" for a double click."""
    if event.get("back"):
        return "back"
    ends = event.get("range") or [None, None]
    since, until = (moment(end) if isinstance(end, str) else end and round(end * 1e6) for end in ends)
    return (since, until) if since is not None and until is not None and since < until else None


def _zoom_of(state: Address) -> dict[str, Any]:
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
