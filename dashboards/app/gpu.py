"""The page GPU: one GPU in full, found by a search or by links.

What it says is the document of `documents/gpu.py`: the same as `whorl explain` and `whorl report --gpu`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Dash, Input, Output, dcc, html
from dash import State as Also

from ...analysis.choosing import beside, known_gpus, meant, search, shared
from ...analysis.one_gpu import happened, standing
from ...analysis.one_gpu.explain import Found, Named, OneGpu, around, named, newest_reading, own_runs, timed
from ...analysis.one_gpu.happened import reasons
from ...analysis.one_gpu.standing import Compared
from ...analysis.verdicts.fingerprint import Neighbour
from ...analysis.verdicts.judgements import StoredJudgement, made_judgement
from ...errors import WhorlError
from ..document import Section
from ..documents import gpu as documents
from ..words import MISSING, many
from .page import VERDICTS, Need, Page, components, following, labelled, told, writing
from .reading import JUDGED, judgements
from .state import URL, State, parse

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ...store import Store
    from .reading import Reading

PATH = "gpu"
_TITLE, _CHOOSER, _CHOICE, _BODY = "gpu-title", "gpu-chooser", "gpu-choice", "gpu-body"
_NEWEST, _AGAIN, _AGAIN_MS = "gpu-newest", "gpu-again", 30_000
_OFFERED = 40
_KEY_LETTERS = 12  # of a UUID
_JUDGED = (*JUDGED, "levels", "day_levels")
Row = Mapping[str, Any]


# -- what is known -----------------------------------------------------------------------------------------------


def known(reading: Reading) -> pl.DataFrame:
    """The GPUs of the store."""
    return reading.answer(known_gpus, tables=("gpus",))


def _worst(reading: Reading) -> list[Named]:
    """The GPUs with findings, the worst first."""
    return reading.kept(("named",), lambda: named(judgements(reading)), tables=JUDGED)


def read_gpu(reading: Reading, row: Row) -> OneGpu:
    """All that is known of a GPU; what it shares with its cluster is kept. `row`: of `known`."""
    store, cluster, gpu, keys = reading.store, row["cluster"], row["gpu"], row["keys"]
    newest = next((judged for judged in judgements(reading) if judged.judgement.cluster == cluster), None)
    judgement = newest
    if judgement is None or not judgement.is_complete(store):
        judgement = reading.answer(_made, cluster, tables=("gpus", "runs", "results", "events", *_JUDGED))
    compared = Compared.read(store, judgement, keys, peers=True)
    workloads = set(compared.levels["workload"])
    runs = own_runs(store, cluster, keys, row["model"], workloads=workloads)
    explained = None
    if newest is not None:
        newer = reading.kept(("newer", cluster), lambda: newest.newer(store), tables=("runs", *_JUDGED))
        explained = Found.of(newest, row, workloads, newer)
    figures = reading.answer(standing.figures, cluster, tables=("fingerprints", "runs"))
    return OneGpu(
        row,
        explained,
        compared.places,
        compared.lines(timed(runs)),
        shared(known(reading), row),
        tuple(happened.events(store, cluster, keys, row["node"])),
        runs,
        pl.DataFrame(),  # read by itself: of a large fleet that takes longer than all else
        stands=() if figures is None else tuple(standing.standings(store, figures, gpu)),
        figures=figures,
        alike=_near(reading, figures, gpu),
        marks=tuple(happened.marks(store, cluster, keys, row["node"])),
        reasons=reasons(store, cluster, keys),
        telemetry=None,
    )


def _near(reading: Reading, figures: standing.Figures | None, gpu: str) -> tuple[Neighbour, ...]:
    """The GPUs that are most like it."""
    if figures is None:
        return ()
    of_cluster = pl.col("cluster") == figures.cluster
    alike, names = reading.kept(
        ("alike", figures.cluster),
        lambda: (
            standing.alike(reading.store, figures),
            dict(known(reading).filter(of_cluster).select("gpu", "name").iter_rows()),
        ),
        tables=("fingerprints", "runs", "gpus"),
    )
    return tuple(alike.nearest(gpu, names))


def _made(store: Store, cluster: str) -> StoredJudgement | None:
    """A judgement for the levels of a cluster that was never judged; None where it has many runs, which takes long."""
    runs = store.collect(store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())).item()
    return made_judgement(store, cluster) if 0 < runs <= standing.COMPUTED_RUNS else None


def _row(reading: Reading, state: State) -> tuple[Row | None, str]:
    """The GPU of an address, and why there is none."""
    if not state.gpu:
        return None, ""
    try:
        return meant(known(reading), state.gpu[0], state.cluster, "this store"), ""
    except WhorlError as error:
        return None, str(error)


def _ahead(reading: Reading) -> Iterator[Callable[[], object]]:
    """What the page reads of the worst GPU: most of it is the same for every other."""
    worst = _worst(reading)
    if worst:
        row = meant(known(reading), worst[0].gpu, worst[0].cluster, "this store")
        yield lambda: read_gpu(reading, row)


# -- what is drawn -----------------------------------------------------------------------------------------------


def _body(reading: Reading, row: Row, state: State) -> list[Component]:
    """The document of a GPU, with links to other pages under what was found."""

    def address(page: str, name: str, _: str | None) -> str:
        return state.href(page, gpu=(name,), cluster=row["cluster"])

    gpu = read_gpu(reading, row)
    parts = documents.document(gpu, str(reading.store.root)).parts
    titles = [part.title if isinstance(part, Section) else "" for part in parts]
    place = titles.index("What was found") + 1
    newest = html.Div([html.Div(id=_NEWEST), dcc.Interval(id=_AGAIN, interval=_AGAIN_MS)])
    head, which, remaining = (
        components(part, address, state) for part in (parts[:place], parts[place : place + 1], parts[place + 1 :])
    )
    return [*head, _links(reading, gpu, state), *which, newest, *remaining]


def _links(reading: Reading, gpu: OneGpu, state: State) -> Component:
    """Where to look on: the pages that have something to show."""
    this: dict[str, Any] = {"gpu": (gpu.name,), "cluster": gpu.cluster}
    window = around(gpu.runs)
    since, until = window or (None, None)
    telemetry = "Its telemetry around its newest run" if window else "Its telemetry"
    pages = [
        (telemetry, "telemetry", {"since": since, "until": until}, "telemetry"),
        ("The fleet, with this GPU marked", "fleet", {}, "runs"),
        ("Its jobs and energy", "energy", {}, "telemetry"),
        ("Exclude in placement", "placement", {"gpu": (), "without": this["gpu"]}, "runs"),
    ]
    links = [
        dcc.Link(text, href=state.href(path, **(this | changes)))
        for text, path, changes, table in pages
        if reading.has(table)
    ]
    return html.Nav(links, className="onward", **labelled("Look on"))


def _nothing_chosen(reading: Reading, state: State) -> Component:
    """What stands there while no GPU is chosen: those with findings."""
    by_cluster: dict[str, list[Named]] = {}
    for gpu in _worst(reading):
        by_cluster.setdefault(gpu.cluster, []).append(gpu)
    if by_cluster:
        tables = [
            component
            for cluster, gpus in by_cluster.items()
            for component in components(
                [documents.named(gpus, f"Cluster {cluster}" if len(by_cluster) > 1 else "")],
                lambda page, name, _, cluster=cluster: state.href(page, gpu=(name,), cluster=cluster),  # type: ignore[misc]
            )
        ]
        lead = html.P("Choose one of these, or search above.", className="soft")
        return html.Section([html.H2("GPUs with findings, the worst first"), lead, *tables])
    if reading.has("judgements"):
        return told(html.P("Choose a GPU above. No GPU has findings."), kind="empty")
    todo = [VERDICTS.command(reading.store.root)] if reading.has("runs") else []
    unjudged = f"Choose a GPU above. Nobody has judged these GPUs yet{':' if todo else '.'}"
    return told(html.P(unjudged), *todo, kind="empty")


# -- the search --------------------------------------------------------------------------------------------------


def _chooser(reading: Reading, row: Row | None, state: State) -> Component:
    """The search, and links to the GPUs of the node of the one that is chosen."""
    gpus = known(reading)
    # Nothing is chosen in it: the title says which GPU is shown, and a list without a choice begins with its search.
    choice = dcc.Dropdown(
        _options(gpus, "", state.cluster, reading), None, id=_CHOICE,
        placeholder="Another GPU: name, UUID, serial number, node, model",
    )  # fmt: skip
    parts: list[Any] = [html.Label([f"Search {many(gpus.height, 'GPU')}", choice], className="grow")]
    return html.Div([*parts, *([] if row is None else _node(gpus, row, state))], className="inputs gpu-chooser")


def _node(gpus: pl.DataFrame, row: Row, state: State) -> Sequence[Component]:
    """The GPU before, those of the node, the one after; none where the node is not known."""
    around_it = beside(gpus, row)
    if not around_it.gpus:
        return []

    def link(name: str | None, text: str, title: str, **attributes: Any) -> Component:
        if name is None:
            return html.Span(text, className="off")
        return dcc.Link(text, href=state.href(PATH, gpu=(name,), cluster=row["cluster"]), title=title, **attributes)

    node = f"node {row['node']}" if row["parent"] is None else "the same card"
    links = [link(around_it.previous, "‹ previous", f"previous GPU of {node}"), html.Span(f"{node}:", className="soft")]
    for name, gpu in around_it.gpus:
        slot = name.rpartition("/")[2] if "/" in name else name[:_KEY_LETTERS]
        links.append(link(name, slot, str(name), className="here" if gpu == row["gpu"] else ""))
    links.append(link(around_it.next, "next ›", f"next GPU of {node}"))
    return [html.Nav(links, className="beside", **labelled(f"GPUs of {node}"))]


def _options(gpus: pl.DataFrame, typed: str, cluster: str | None, reading: Reading) -> list[dict[str, str]]:
    """The GPUs that fit what is typed; at first those with findings."""
    worst = () if typed else tuple(gpu.gpu for gpu in _worst(reading))
    several = gpus["cluster"].n_unique() > 1
    options = []
    for row in search(gpus, typed, cluster, _OFFERED, worst).iter_rows(named=True):
        key = "" if row["name"] == row["gpu"] else f" · {str(row['gpu'])[:_KEY_LETTERS]}"
        cluster_name = f" · {row['cluster']}" if several else ""
        options.append(
            {
                "label": f"{row['name']}{key} · {row['model'] or MISSING}{cluster_name}",
                "value": json.dumps([row["cluster"], row["gpu"]]),
                "search": f"{row['names']} {row['model']} {row['node']} {row['cluster']} {typed}",
            }
        )
    return options


# -- the page ----------------------------------------------------------------------------------------------------


def _layout(*_: Any) -> Component:
    body = dcc.Loading(html.Div(id=_BODY), delay_show=400, type="dot", overlay_style={"visibility": "visible"})
    return html.Div([html.H1("GPU", id=_TITLE), html.Div(id=_CHOOSER), body], className="gpu")


def _register(app: Dash, reading: Reading) -> None:
    @following(app, PATH, Output(_TITLE, "children"), Output(_CHOOSER, "children"), Input(URL, "search"))
    def follow_title(address: str | None) -> tuple[str, Component]:
        state, _ = parse(address)
        row, _ = _row(reading, state)
        return "GPU" if row is None else f"GPU {row['name']}", _chooser(reading, row, state)

    @following(app, PATH, Output(_BODY, "children"), Input(URL, "search"))
    def follow(address: str | None) -> Any:
        state, _ = parse(address)
        row, problem = _row(reading, state)
        if row is not None:
            return _body(reading, row, state)
        return told(html.P(problem), kind="problem") if problem else _nothing_chosen(reading, state)

    @app.callback(Output(_NEWEST, "children"), Input(_AGAIN, "n_intervals"), Also(URL, "search"))
    def read_again(_: Any, address: str | None) -> list[Component]:
        state, _problems = parse(address)
        row = meant(known(reading), next(iter(state.gpu), ""), state.cluster, "this store")
        part = documents.newest(newest_reading(reading.store, row))
        return [] if part is None else components([part])

    @app.callback(
        Output(_CHOICE, "options"),
        Input(_CHOICE, "search_value"),
        Also(_CHOICE, "value"),
        Also(_CHOICE, "options"),
        Also(URL, "search"),
        prevent_initial_call=True,
    )
    def offer(typed: str | None, chosen: str | None, before: list[dict[str, str]], address: str | None) -> Any:
        options = _options(known(reading), typed or "", parse(address)[0].cluster, reading)
        # A list without what was just chosen would forget it, before the page has followed.
        return [*options, *(option for option in before if option["value"] == chosen and option not in options)]

    @writing(app, Input(_CHOICE, "value"))
    def choose(state: State, value: str | None) -> State | None:
        if value is None:
            return None
        cluster, gpu = json.loads(value)
        row = known(reading).filter((pl.col("cluster") == cluster) & (pl.col("gpu") == gpu))
        name = str(row["name"][0]) if row.height else gpu
        return replace(state, cluster=cluster, gpu=(name,))


PAGE = Page(PATH, "GPU", (Need("gpus", "probe run --store {store} --suite quick"),), _layout, _register, _ahead)
