"""The page GPU: one GPU in full, found by a search or by links, with what a reader may choose.

What it says stands in `documents/gpu.py`: the same sections as `whorl explain` and `whorl report --gpu`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Also

from ...analysis.choosing import beside, known_gpus, meant, search, shared
from ...analysis.one_gpu import happened, standing
from ...analysis.one_gpu.explain import Found, Named, around, named, newest_reading, own_runs, stands_in, timed
from ...analysis.one_gpu.happened import reasons
from ...analysis.one_gpu.standing import Compared, Line
from ...analysis.verdicts.judgements import StoredJudgement, made_judgement, stored
from ...errors import WhorlError
from ..document import Chart, Command, Part, Section
from ..documents import gpu as document
from ..words import MISSING, in_store, many
from .drawing import component, components, graph, labelled, prose
from .grid import MOST
from .page import VERDICTS, Need, Page, following, told
from .state import URL, State, parse

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ...analysis.verdicts.fingerprint import Neighbour
    from ...store import Store
    from .reading import Reading

PATH = "gpu"
_TITLE, _CHOOSER, _CHOICE = "gpu-title", "gpu-chooser", "gpu-choice"
_OFFERED = 40
_KEY_LETTERS = 12  # of a UUID
_FINGERPRINTED = ("fingerprints", "runs")
_JUDGED = ("judgements", "verdicts", "levels", "day_levels")
_MEASURED = ("gpus", "runs", "results", *_JUDGED)
Row = Mapping[str, Any]
T = TypeVar("T")


# -- what is known -----------------------------------------------------------------------------------------------


def known(reading: Reading) -> pl.DataFrame:
    """The GPUs of the store."""
    return reading.answer(known_gpus, tables=("gpus",))


class KnownGpu:
    """What is known of one GPU: each part is read once, and kept until the store changes."""

    def __init__(self, reading: Reading, row: Row) -> None:
        """`row`: of `known`."""
        self.reading, self.row = reading, row
        self.store, self.cluster, self.keys = reading.store, row["cluster"], row["keys"]

    def _kept(self, part: str, make: Callable[[], T], tables: Sequence[str]) -> T:
        return self.reading.kept((part, self.cluster, self.row["gpu"]), make, tables=tables)

    def fingerprints(self) -> standing.Figures | None:
        """The fingerprints of its cluster."""
        return self.reading.answer(standing.figures, self.cluster, tables=_FINGERPRINTED)

    def stands(self) -> Sequence[standing.Standing]:
        """Its figures beside its peers."""
        figures = self.fingerprints()
        if figures is None:
            return ()
        return self._kept("stands", lambda: standing.standings(self.store, figures, self.row["gpu"]), _FINGERPRINTED)

    def near(self) -> Sequence[Neighbour]:
        """The GPUs that are most like it."""
        figures, cluster = self.fingerprints(), self.cluster
        if figures is None:
            return ()
        neighbours = self.reading.kept(
            ("alike", cluster), lambda: standing.alike(self.store, figures), tables=_FINGERPRINTED
        )
        names = known(self.reading).filter(pl.col("cluster") == cluster).select("gpu", "name")
        by_key = self.reading.kept(("names", cluster), lambda: dict(names.iter_rows()), tables=("gpus",))
        return standing.neighbours(neighbours, self.row["gpu"], by_key)

    def runs(self) -> pl.DataFrame:
        """Its runs."""
        workloads = set(self.compared().levels["workload"])
        model = self.row["model"]
        return self._kept(
            "runs", lambda: own_runs(self.store, self.cluster, self.keys, model, workloads=workloads), _MEASURED
        )

    def compared(self) -> Compared:
        """Its levels and those of its peers, as judged."""
        judgement = self.reading.answer(_newest, self.cluster, tables=_JUDGED)
        if judgement is None or not judgement.is_complete(self.store):
            judgement = self.reading.answer(_made, self.cluster, tables=(*_MEASURED, "events"))
        return self._kept("compared", lambda: Compared.read(self.store, judgement, self.keys, peers=True), _MEASURED)

    def lines(self) -> Sequence[Line]:
        """Its past, by workload."""
        return self._kept("lines", lambda: self.compared().lines(timed(self.runs())), _MEASURED)

    def found(self) -> Found | None:
        """What the newest judgement says of it; None where its cluster was never judged."""
        judgement = self.reading.answer(_newest, self.cluster, tables=_JUDGED)
        if judgement is None:
            return None
        newer = self.reading.kept(
            ("newer", self.cluster), lambda: judgement.newer(self.store), tables=("runs", *_JUDGED)
        )
        return Found.of(judgement, self.row, set(self.compared().levels["workload"]), newer)

    def marks(self) -> Sequence[happened.Mark]:
        """What may have changed it."""
        make = lambda: happened.marks(self.store, self.cluster, self.keys, self.row["node"])  # noqa: E731
        return self._kept("marks", make, ("gpus", "events"))

    def events(self) -> Sequence[happened.Happened]:
        """Its events."""
        make = lambda: happened.events(self.store, self.cluster, self.keys, self.row["node"])  # noqa: E731
        return self._kept("events", make, ("events",))


def _newest(store: Store, cluster: str) -> StoredJudgement | None:
    """The newest judgement of a cluster that is stored; None where it was never judged."""
    return next(iter(stored(store, cluster)), None)


def _made(store: Store, cluster: str) -> StoredJudgement | None:
    """A judgement for the levels of a cluster that was never judged; None where it has many runs, which takes long."""
    runs = store.collect(store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())).item()
    return made_judgement(store, cluster) if 0 < runs <= standing.COMPUTED_RUNS else None


def _row(reading: Reading, state: State) -> tuple[Row | None, str]:
    """The GPU of an address, and why there is none."""
    if not state.gpu:
        return None, ""
    name, cluster = state.gpu[0], state.cluster
    try:
        make = lambda: meant(known(reading), name, cluster, "this store")  # noqa: E731
        return reading.kept(("meant", name, cluster), make, tables=("gpus",)), ""
    except WhorlError as error:
        return None, str(error)


def _ahead(reading: Reading) -> Iterator[Callable[[], object]]:
    """What the page reads of the worst GPU: most of it is the same for every other."""
    yield lambda: known(reading)
    worst = reading.answer(named, tables=("judgements", "verdicts"))
    if worst:
        gpu = KnownGpu(reading, meant(known(reading), worst[0].gpu, worst[0].cluster, "this store"))
        yield from (gpu.fingerprints, gpu.stands, gpu.runs, gpu.found, gpu.lines, gpu.near)


# -- the sections ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FigureChoice:
    """A choice among the figures of a chart: the field of the address that says which."""

    chart: str
    field: str

    @property
    def name(self) -> str:
        """Its id."""
        return f"gpu-{self.field}"


_CONTROLS = (_FigureChoice(document.BESIDE, "figure"), _FigureChoice(document.SITTINGS, "probe"))


def _head(gpu: KnownGpu, state: State) -> list[Component]:
    judged, runs = gpu.found(), gpu.runs()
    parts: list[Part | None] = [
        document.summary(gpu.stands(), judged),
        document.what_was_found(gpu.row, runs, judged, gpu.events(), store=str(gpu.store.root)),
    ]
    return [
        *_drawn(parts, state),
        _links(gpu, runs, state),
        *_drawn([_identity(gpu, runs), document.newest(newest_reading(gpu.store, gpu.row))], state),
    ]


def _identity(gpu: KnownGpu, runs: pl.DataFrame) -> Section:
    section = document.which(gpu.row, shared(known(gpu.reading), gpu.row), runs)
    options = in_store(gpu.store.root, gpu.row["cluster"])
    write = Command(f"whorl report --gpu {shlex.quote(str(gpu.row['name']))} {options} --out gpu.html")
    vendor = Section("Evidence for a vendor: the same as one offline file", [write], folded=True)
    return replace(section, parts=[*section.parts, vendor])


def _beside(gpu: KnownGpu, state: State) -> list[Component]:
    stands, root = gpu.stands(), str(gpu.store.root)
    parts = [
        document.places(gpu.compared().places, gpu.row["model"]),
        document.beside_its_peers(stands, gpu.fingerprints(), gpu.runs(), gpu.row, store=root),
    ]
    return _drawn(parts, state)


def _past(gpu: KnownGpu, state: State) -> list[Component]:
    judged = gpu.found()
    workloads = stands_in(gpu.compared().places, () if judged is None else judged.verdicts)
    if state.probe is not None:
        workloads = [state.probe, *workloads]
    return _drawn([document.past(gpu.lines(), judged, gpu.marks(), workloads)], state)


def _clock(gpu: KnownGpu, state: State) -> list[Component]:
    """Telemetry is never kept, as it comes all the time."""
    section = document.clock(
        reasons(gpu.store, gpu.cluster, gpu.keys, state.since, state.until), store=str(gpu.store.root)
    )
    clock_parts = _drawn([section], state)
    if state.since is None and state.until is None:
        return clock_parts
    everything = dcc.Link("Show all of it", href=state.href(PATH, since=None, until=None))
    return [html.P(["Only the time that the address asks for. ", everything, "."]), *clock_parts]


def _runs(gpu: KnownGpu, state: State) -> list[Component]:
    judged = gpu.found()
    parts = [
        document.runs(gpu.runs(), MOST),
        document.events(gpu.events(), MOST),
        document.like_it(gpu.near()),
        None if judged is None else document.not_judged(judged.not_judged),
        document.method(gpu.runs()),
    ]
    return _drawn(parts, state)


_PARTS: Mapping[str, tuple[Callable[[KnownGpu, State], list[Component]], tuple[str, ...]]] = {
    "gpu-head": (_head, ()),
    "gpu-peers": (_beside, ("figure",)),
    "gpu-past": (_past, ("probe",)),
    "gpu-clock": (_clock, ("since", "until")),
    "gpu-runs": (_runs, ()),
}
"""By id: what makes a part, and the names in the address that it depends on besides the GPU."""


def _drawn(parts: Iterable[Part | None], state: State) -> list[Component]:
    """Parts as components, with a choice above each chart that has one."""

    def address(page: str, name: str) -> str:
        return state.href(page, gpu=(name,))

    elements: list[Component] = []
    for part in parts:
        if isinstance(part, Section) and not part.folded and any(map(_control, part.parts)):
            inside = [
                drawn_part
                for inner in part.parts
                for drawn_part in (_choice(inner, state) or components([inner], address))
            ]
            lead = [html.P(prose(part.lead), className="soft")] if part.lead else []
            elements.append(html.Section([html.H2(part.title), *lead, *inside]))
        elif part is not None:
            elements.append(component(part, address))
    return elements


def _control(part: Part) -> _FigureChoice | None:
    if not isinstance(part, Chart):
        return None
    return next((control for control in _CONTROLS if control.chart == part.title), None)


def _choice(part: Part, state: State) -> list[Component]:
    """A chart with a choice above it; nothing for another part."""
    control = _control(part)
    if control is None or not isinstance(part, Chart):
        return []
    names, name = list(part.figures), getattr(state, control.field)
    chosen = name if name in part.figures else names[0]
    choose: Component = dcc.Dropdown(names, chosen, id=control.name, clearable=False)
    if len(names) <= 6:
        choose = dcc.RadioItems(names, chosen, id=control.name, inline=True, className="views")
    legend = html.Legend(f"{part.title}: which", className="unseen")
    return [
        html.H3(part.title),
        html.P(prose(part.caption), className="soft"),
        html.Fieldset([legend, choose], className="inputs narrow", hidden=len(names) == 1),
        dcc.Store(f"{control.name}-is", data=chosen),
        graph(part.figures[chosen], f"{part.title}: {chosen}", id=f"{control.name}-drawn"),
    ]


def _links(gpu: KnownGpu, runs: pl.DataFrame, state: State) -> Component:
    """Where to look on: the pages that have something to show."""
    this: dict[str, Any] = {"gpu": (gpu.row["name"],), "cluster": gpu.cluster}
    window = around(runs)
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
        if gpu.reading.has(table)
    ]
    return html.Nav(links, className="onward", **labelled("Look on"))


def _nothing_chosen(reading: Reading, state: State) -> Component:
    """What stands there while no GPU is chosen: those with findings."""
    worst = reading.answer(named, tables=("judgements", "verdicts"))
    if worst:
        by_cluster: dict[str, list[Named]] = {}
        for gpu in worst:
            by_cluster.setdefault(gpu.cluster, []).append(gpu)
        tables = []
        for cluster, gpus in by_cluster.items():
            of_cluster = replace(state, cluster=cluster)
            title = f"Cluster {cluster}" if len(by_cluster) > 1 else ""
            tables += _drawn([document.named(gpus, title)], of_cluster)
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


def _node(gpus: pl.DataFrame, row: Row, state: State) -> list[Component]:
    """The GPU before, those of the node, the one after; none where the node is not known."""
    around_it = beside(gpus, row)
    if not around_it.gpus:
        return []

    def link(name: str | None, text: str, title: str, **attributes: Any) -> Component:
        if name is None:
            return html.Span(text, className="off")
        return dcc.Link(text, href=state.href(PATH, gpu=(name,), cluster=row["cluster"]), title=title, **attributes)

    def slot(name: str) -> str:
        return name.rpartition("/")[2] if "/" in name else name[:_KEY_LETTERS]

    node = f"node {row['node']}" if row["parent"] is None else "the same card"
    slots = [
        link(name, slot(str(name)), str(name), className="here" if gpu == row["gpu"] else "")
        for name, gpu in around_it.gpus
    ]
    return [
        html.Nav(
            [
                link(around_it.previous, "‹ previous", f"previous GPU of {node}"),
                html.Span(f"{node}:", className="soft"),
                *slots,
                link(around_it.next, "next ›", f"next GPU of {node}"),
            ],
            className="beside",
            **labelled(f"GPUs of {node}"),
        )
    ]


def _options(gpus: pl.DataFrame, typed: str, cluster: str | None, reading: Reading) -> list[dict[str, str]]:
    """The GPUs that fit what is typed; at first those with findings."""
    worst = () if typed else tuple(gpu.gpu for gpu in reading.answer(named, tables=("judgements", "verdicts")))
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
    parts: list[Component] = [
        dcc.Loading(
            html.Div(id=name, className="part"), delay_show=400, type="dot", overlay_style={"visibility": "visible"}
        )
        for name in _PARTS
    ]
    stores = [dcc.Store(f"{name}-shown") for name in (_CHOOSER, *_PARTS)]
    return html.Div([html.H1("GPU", id=_TITLE), html.Div(id=_CHOOSER), *parts, *stores], className="gpu")


def _register(app: Dash, reading: Reading) -> None:
    _register_search(app, reading)

    @following(
        app,
        PATH,
        Output(_TITLE, "children"),
        Output(_CHOOSER, "children"),
        Output(f"{_CHOOSER}-shown", "data"),
        Input(URL, "search"),
        Also(f"{_CHOOSER}-shown", "data"),
    )
    def follow_title(address: str | None, before: Any) -> tuple[Any, Any, Any]:
        state, _ = parse(address)
        row, _ = _row(reading, state)
        now = {"gpu": None if row is None else [row["cluster"], row["gpu"]], "cluster": state.cluster}
        if now == before:  # a list that is open stays open
            return no_update, no_update, no_update
        title = "GPU" if row is None else f"GPU {row['name']}"
        return title, _chooser(reading, row, state), now

    for name in _PARTS:
        _register_part(app, reading, name)
    for control in _CONTROLS:
        _register_control(app, control)


def _register_part(app: Dash, reading: Reading, name: str) -> None:
    make, fields = _PARTS[name]

    @following(
        app,
        PATH,
        Output(name, "children"),
        Output(f"{name}-shown", "data"),
        Input(URL, "search"),
        Also(f"{name}-shown", "data"),
    )
    def follow_part(address: str | None, before: Any) -> tuple[Any, Any]:
        state, _ = parse(address)
        row, problem = _row(reading, state)
        now: dict[str, Any] = {"fields": [getattr(state, field) for field in fields], "problem": problem}
        now["gpu"] = None if row is None else [row["cluster"], row["gpu"]]
        if now == before:
            return no_update, no_update
        if row is not None:
            return make(KnownGpu(reading, row), replace(state, cluster=row["cluster"])), now
        if name != next(iter(_PARTS)):
            return None, now
        nothing = told(html.P(problem), kind="problem") if problem else _nothing_chosen(reading, state)
        return nothing, now


def _register_control(app: Dash, control: _FigureChoice) -> None:
    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(control.name, "value"),
        Also(f"{control.name}-is", "data"),
        Also(URL, "search"),
        prevent_initial_call=True,
    )
    def change(value: str | None, before: str | None, address: str | None) -> Any:
        if value is None or value == before:  # it was just drawn
            return no_update
        return replace(parse(address)[0], **{control.field: value}).search()  # type: ignore[arg-type]


def _register_search(app: Dash, reading: Reading) -> None:
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

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(_CHOICE, "value"),
        Also(URL, "search"),
        prevent_initial_call=True,
    )
    def choose(value: str | None, address: str | None) -> Any:
        state, _ = parse(address)
        if value is None:
            return no_update
        cluster, gpu = json.loads(value)
        row = known(reading).filter((pl.col("cluster") == cluster) & (pl.col("gpu") == gpu))
        name = str(row["name"][0]) if row.height else gpu
        return replace(state, cluster=cluster, gpu=(name,), since=None, until=None).search()


PAGE = Page(PATH, "GPU", (Need("gpus", "probe run --store {store} --suite quick"),), _layout, _register, _ahead)
