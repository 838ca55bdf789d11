"""The parts of the page: its head, its figures, what is said of the brush, its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor, isfinite, isinf, log10
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import dcc, html

from ....analysis.verdicts import NO_FINDING, Level
from ...documents.evidence import why_not
from ...figures.drawing import Figure, figure_of
from ...figures.fleet import (
    GPU_FIGURES,
    LINES,
    UNIT,
    GpuFigure,
    against_power,
    over_campaigns,
    power_ring,
    signed,
    strip_ring,
    strips,
)
from ...figures.looks import Scale, box, chosen, points
from ...figures.machine import heat_map
from ...style import layout, nothing
from ...words import MISSING, many, minus
from ..drawing import graph
from ..grid import GridColumn, table
from ..page import VERDICTS, heading, section, told
from .view import LEVELS, Asked, View, trend_of

if TYPE_CHECKING:
    from pathlib import Path

    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State

STRIPS, MAP, POWER, TREND = "fleet-strips", "fleet-map", "fleet-power", "fleet-trend"
HEAD, SAID, BRUSH, TABLE = "fleet-head", "fleet-said", "fleet-brush", "fleet-table"
BRUSHED, DRAWN, FOLLOWED, CLEAR = "fleet-brushed", "fleet-drawn", "fleet-followed", "fleet-clear"
FIGURES = (STRIPS, MAP, POWER)
CHOICES = ("cluster", "probe", "figure", "campaign", "by")
ALL = ""
FADED = 0.2  # the map, where a brush holds only a part of it
_DIGITS = 5  # significant ones, of a number
_ROWS = 14  # of the table, that are seen at once
_LINKED = 50  # GPUs that a link hands on
_ODD = 4  # GPUs with findings whose trend is drawn where none is chosen
_PLACES = 6  # that are named

_WHO: tuple[GridColumn, ...] = (
    GridColumn("chosen", "chosen", says="Choose a GPU: click the cell, or press Enter on it.", width=80),
    GridColumn("label", "GPU", link="gpu", asks={"gpu": "gpu", "cluster": "cluster"}, width=150),
    GridColumn("finding", "finding", says="The worst verdict about the GPU or its node, of whorl verdicts", width=216),
)
_MEASURED: tuple[GridColumn, ...] = (
    GridColumn("slower_pct", "slower", "percent", 2, says="Its time against the median GPU of its model"),
    GridColumn("slower_pct_low", "slower, 95 %", "interval", 2, high="slower_pct_high", unit="%"),
    GridColumn("time", "time", "number", 4, unit="ms"),
    GridColumn("power_w", "power", "number", 1, unit="W"),
    GridColumn("sm_clock_mhz", "SM clock", "number", 0, unit="MHz"),
    GridColumn("temperature_c", "temperature", "number", 1, unit="°C"),
    GridColumn("n", "runs", "number"),
    GridColumn("sittings", "sittings", "number", says="Runs without a pause of 6 hours: what shows how far it repeats"),
    GridColumn("node", "node"),
    GridColumn("cabinet", "cabinet"),
    GridColumn("model", "model"),
)


def columns_of(words: GpuFigure, typical_ms: float | None = None) -> list[GridColumn]:
    """The columns of the table; a figure of the fingerprint is one more. The slowest, or the highest, comes first.

    `typical_ms`: of the times, which have as many digits as it needs.
    """
    own = [
        GridColumn(words.value, words.name, "number", words.digits, unit=words.unit),
        GridColumn(f"{words.value}_low", f"{words.name}, 95 %", "interval", words.digits, high=f"{words.value}_high"),
        GridColumn(f"{words.key}_n", "its runs", "number"),
    ]
    found = [*_WHO, *(() if words in GPU_FIGURES else own), *_MEASURED]
    first = words.apart if words is GPU_FIGURES[0] else words.value
    digits = 4 if not typical_ms else min(max(_DIGITS - 1 - floor(log10(typical_ms)), 0), 9)
    found = [replace(one, digits=digits) if one.name == "time" else one for one in found]
    return [replace(one, sort="desc") if one.name == first else one for one in found]


def shown_columns(of: View) -> list[GridColumn]:
    """The columns of the table for what is shown."""
    typical = of.rows["time"].median()
    return columns_of(of.asked.figure, typical if isinstance(typical, float) else None)


# -- what stays ---------------------------------------------------------------------------------------------------


def frame(asked: Asked) -> Component:
    """The page without what depends on the brush."""
    return html.Div(
        [
            heading(
                "Fleet",
                "How every GPU compares with the others of its model. Drag a rectangle in a figure to brush GPUs.",
            ),
            head(asked),
            html.Div(id=SAID),
            html.Div(id=BRUSH, role="status"),
            section("By place", _brushable(STRIPS, "every GPU by place")),
            section(
                "The machine",
                _brushable(MAP, "map of the machine"),
                says="A cell is a GPU, a row a node, a block a cabinet. A GPU without this figure is a gap.",
            ),
            html.Div(
                [
                    section(
                        "Time against power",
                        _brushable(POWER, "time against power"),
                        says="Slow at little power: something holds it back. Slow at much power: its silicon is poor.",
                    ),
                    section(
                        "Over the campaigns",
                        graph(_empty(), "the fleet over its campaigns", id=TREND),
                        says="Medians with their 95 % interval, of the fleet and of the chosen GPUs, or of those with "
                        "the worst findings; against the median GPU of all campaigns.",
                    ),
                ],
                className="halves",
            ),
            section(
                "All GPUs",
                table(TABLE, columns_of(asked.figure), None, key="gpu", label="all GPUs"),
                says="Those that the brush holds. Sort by a click on a head, by several with Ctrl.",
            ),
            dcc.Store(id=BRUSHED),
            dcc.Store(id=DRAWN),
            dcc.Store(id=FOLLOWED),
        ],
        className="fleet",
    )


def _brushable(name: str, label: str) -> Component:
    tip = dcc.Tooltip(id=tip_id(name), show=False)
    buttons = {"modeBarButtonsToRemove": ["autoScale2d", "lasso2d"]}
    return graph(_empty(), label, tip, config=buttons, id=name, clear_on_unhover=True)


def _empty() -> dict[str, Any]:
    return {"layout": {"height": 430, "xaxis": {"visible": False}, "yaxis": {"visible": False}}}


def tip_id(figure: str) -> str:
    return f"{figure}-tip"


def choice_id(name: str) -> str:
    return f"fleet-choose-{name}"


def head(asked: Asked) -> Component:
    """What a person chooses from."""
    works = [{"label": f"{one.name} ({many(one.gpus, 'GPU')})", "value": one.name} for one in asked.cluster.works]
    campaigns = [{"label": "all runs", "value": ALL}] + [
        {"label": one.name + ("" if one.began is None else f" ({one.began:%Y-%m-%d})"), "value": one.name}
        for one in asked.cluster.campaigns
    ]
    levels = [{"label": "automatic", "value": ALL}, *({"label": one, "value": one} for one in LEVELS)]
    shown: list[tuple[str, str, list[Any], str]] = [
        ("cluster", "Cluster", [{"label": one, "value": one} for one in asked.clusters], asked.cluster.cluster),
        ("probe", "Probe", works, asked.workload),
        ("figure", "Figure", [{"label": one.name, "value": one.key} for one in asked.figures], asked.figure.key),
        ("campaign", "Campaign", campaigns, asked.campaign or ALL),
        ("by", "Strips by", levels, asked.by or ALL),
    ]
    return html.Div(
        [
            html.Label(
                [html.Span(label), dcc.Dropdown(options, value, id=choice_id(name), clearable=False)],
                style={"display": "none"} if name == "cluster" and len(asked.clusters) == 1 else None,
            )
            for name, label, options, value in shown
        ],
        id=HEAD,
        className="choices",
    )


# -- what is said -------------------------------------------------------------------------------------------------


def said(of: View, problems: Sequence[str], store: Path) -> list[Component]:
    """What is compared, in a few numbers, and what cannot be."""
    asked, beside, words = of.asked, of.beside, of.asked.figure
    values = of.rows[words.apart].drop_nulls()
    n = len(values)
    when = (
        "" if beside.began is None or beside.ended is None else f", {beside.began:%Y-%m-%d} to {beside.ended:%Y-%m-%d}"
    )
    runs = f"{many(beside.measured, 'GPU')} in {many(beside.runs, 'run')} of {asked.workload}{when}."
    parts = [runs]
    if n:
        middle = of.rows[words.value].median()
        low, high = (values.quantile(at, "linear") for at in (0.05, 0.95))
        spread = f"90 % of the GPUs are {words.text(low)} to {words.text(high)} away from the median of their model"
        parts.append(
            f"{words.name.capitalize()}: the {'median' if n > 1 else 'only'} GPU has "
            + f"{_number(middle, words.digits)} {words.unit}".rstrip()
            + (f"; {spread} (n = {n:,})." if n > 1 else " (n = 1).")
        )
    found: list[Component] = [html.P(" ".join(parts))]
    notes = [*problems, *beside.notes]
    if of.judgement is None:
        todo = [html.P("Nobody has judged these GPUs yet, so none is marked. This command does:")]
        found.append(told(*todo, VERDICTS.command(store, asked.cluster.cluster), kind="empty"))
    else:
        notes += [
            f"Not judged in {asked.workload}: {why_not(no)}."
            for no in of.judgement.not_judged
            if no.subject == asked.workload
        ]
        batches = [one.name for one in of.judgement.rows if one.level is Level.BATCH]
        if batches:
            notes.append(
                f"The judge compares the GPUs of a batch ({', '.join(batches[:3])}) with each other only; here they "
                "stand beside all."
            )
    if asked.printed is not None and asked.printed.workload not in (None, asked.workload):
        notes.append(f"This figure is known in {asked.printed.workload}, not in {asked.workload}.")
    if of.strips.left_out:
        notes.append(
            f"By place, {len(of.strips.places)} {of.level}s are drawn, the slowest and the fastest; "
            f"{of.strips.left_out:,} are left out there."
        )
    return [*found, *([told(*(html.P(one) for one in notes))] if notes else [])]


def _number(value: Any, digits: int) -> str:
    """With so many digits behind the point, fewer of a large one."""
    if value is None:
        return MISSING
    before = len(str(int(abs(value))))
    return minus(f"{value:,.{max(0, min(digits, _DIGITS - before))}f}")


def brush_line(of: View, state: State, held: pl.Series | None, picked: Sequence[int]) -> list[Any]:
    """What the brush holds and which GPUs are chosen, with what to do with them."""
    if held is None and not picked:
        return [html.P("Nothing is brushed: the table shows all GPUs.", className="soft")]
    parts: list[Any] = []
    if held is not None:
        n = int(held.sum())
        what = ", ".join([*_ranges_say(of, state), *_places_say(state)])
        parts.append(html.P([html.Strong(f"{n:,} of {of.rows.height:,} GPUs"), f" are brushed: {what}."]))
    if picked:
        names = ", ".join(of.names[row] for row in picked[:_PLACES])
        more = f" and {len(picked) - _PLACES:,} more" if len(picked) > _PLACES else ""
        parts.append(html.P([html.Strong("Chosen: "), f"{names}{more}."]))
    rows = picked or farthest(of, held, _LINKED)
    gpus = tuple(of.called(row) for row in rows)
    some = "" if held is None or picked or len(rows) == int(held.sum()) else f" (the {len(rows)} farthest out)"
    links = [
        dcc.Link(
            f"{text}{some}",
            href=state.href(path, **{asks: gpus}, cluster=of.asked.cluster.cluster, range=(), place=()),
        )
        for path, text, asks in (
            ("telemetry", "Compare their telemetry", "gpu"),
            ("placement", "Exclude them in placement", "without"),
            *((("gpu", "Look at this GPU", "gpu"),) if len(gpus) == 1 else ()),
        )
        if gpus
    ]
    clear = html.Button("Clear", id=CLEAR, type="button", n_clicks=0)
    return [html.Div([html.Div(parts), html.Div([*links, clear], className="links")], className="told brush")]


def farthest(of: View, held: pl.Series | None, most: int) -> list[int]:
    """Of the brushed GPUs those that are farthest from the median, or have a finding."""
    shown = of.rows.with_row_index("number")
    shown = shown if held is None else shown.filter(held)
    far = pl.col(of.asked.figure.apart).abs()
    first = shown.sort(pl.col("finding") == NO_FINDING, far, descending=[False, True], nulls_last=True)
    return sorted(first.head(most)["number"].to_list())


def _ranges_say(of: View, state: State) -> list[str]:
    found = ["a part of the map"] if any(one.column in ("row", "column") for one in state.range) else []
    for one in state.range:
        if one.column == f"{of.level}_median":
            unit = of.asked.figure.apart_unit
            found.append(minus(f"{of.level}s with a median of {one.low:+.3g} to {one.high:+.3g} {unit}".strip()))
            continue
        words = next((its for its in of.asked.figures if one.column in (its.apart, its.value)), None)
        if words is None:
            continue
        own = one.column == words.apart
        name, unit = (words.more, words.apart_unit) if own else (words.name, words.unit)
        low, high = (minus(f"{end:{'+' if own else ''}.3g} {unit}".strip()) for end in (one.low, one.high))
        ends = f"up to {high}" if isinf(one.low) else f"from {low}" if isinf(one.high) else f"{low} to {high}"
        found.append(f"{name} {ends}")
    return found


def _places_say(state: State) -> list[str]:
    names = [one.partition(":")[2] for one in state.place]
    if not names:
        return []
    more = f" and {len(names) - _PLACES} more" if len(names) > _PLACES else ""
    level = state.place[0].partition(":")[0]
    return [f"{level}{'s' if len(names) > 1 else ''} {', '.join(names[:_PLACES])}{more}"]


def tip(of: View, row: int) -> list[Component]:
    """What stands beside the pointer: a GPU and its figure, with interval and n."""
    one, words = of.rows.row(row, named=True), of.asked.figure
    value, apart = one[words.value], one[words.apart]
    low, high = one[f"{words.apart}_low"], one[f"{words.apart}_high"]
    ends = MISSING if low is None or high is None else f"{signed(low)} to {signed(high)} {words.apart_unit}"
    where = ", ".join(str(one[name]) for name in ("node", "cabinet") if one[name])
    lines = [
        html.Strong(one["label"]),
        html.Span(where) if where else None,
        html.Span(f"{words.name}: {_number(value, words.digits)} {words.unit}"),
        html.Span(f"{words.difference}: {MISSING if apart is None else signed(apart)} (95 %: {ends})"),
        html.Span(f"{many(one.get(f'{words.key}_n') or one['n'], 'run')} in {many(one['sittings'], 'sitting')}"),
        html.Span(one["finding"], className="found") if one["finding"] not in (None, NO_FINDING) else None,
    ]
    return [html.Div([line for line in lines if line is not None], className="tip")]


# -- figures ------------------------------------------------------------------------------------------------------


def height(held: pl.Series | None) -> dict[str, str]:
    """The look of the table: no higher than its rows."""
    rows = _ROWS if held is None else max(3, min(int(held.sum()), _ROWS))
    return {"height": f"{100 + 34 * rows}px", "width": "100%"}


def figures(of: View, picked: Sequence[int]) -> dict[str, Figure]:
    """The three that can be brushed."""
    quantity, names = of.asked.figure, of.names
    marked = {of.rows["gpu"][row]: look for row, look in of.looks.items()}
    return {
        STRIPS: strips(of.strips, names, of.looks, picked),
        MAP: heat_map(of.grid, of.shades(), quantity.difference, quantity.apart_unit, marked, end=of.end),
        POWER: against_power(of.powered, names, of.looks, picked, live=True),
    }


def points_of(of: View, held: pl.Series | None) -> dict[str, Any]:
    """The marker of the points of a figure."""
    return points(None if held is None else held.to_numpy(), of.strips.usual)


def traces(of: View, figure: str) -> int:
    """How many traces a figure has."""
    if figure == MAP:
        return 3 + len(set(of.looks.values()))
    y = of.strips.y if figure == STRIPS else of.powered.y
    kinds = len({look for row, look in of.looks.items() if isfinite(y[row])})
    return (3 if figure == STRIPS else 2) + kinds


def rings(of: View, picked: Sequence[int]) -> dict[str, Any]:
    """The traces of the chosen GPUs, by figure."""
    cells = [of.grid.cell[of.rows["gpu"][row]] for row in picked]
    names = [of.names[row] for row in picked]
    return {
        STRIPS: strip_ring(of.strips, of.names, picked),
        MAP: chosen([column for _, column in cells], [row for row, _ in cells], names),
        POWER: power_ring(of.powered, of.names, picked),
    }


def boxes(of: View, state: State) -> dict[str, list[dict[str, Any]]]:
    """The edges of the brush, by figure."""
    ranges = {one.column: one for one in state.range}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in FIGURES}

    def ends(name: str, low: float, high: float, scale: Scale | None = None) -> tuple[float, float]:
        """Those of a range, within those of an axis."""
        one = ranges.get(name)
        if one is None:
            return low, high
        if scale is None:
            return max(one.low, low), min(one.high, high)
        bent = (end if isinf(end) else float(scale.bend(end)) for end in (one.low, one.high))
        return max(next(bent), low), min(next(bent), high)

    if of.asked.figure.apart in ranges:
        width = (-0.6 * UNIT, UNIT * (len(of.strips.places) - 0.4))
        found[STRIPS] = [box(*width, *ends(of.asked.figure.apart, -1e4, 1e4, of.strips.scale))]
    if "slower_pct" in ranges or "power_w" in ranges:
        found[POWER] = [box(*ends("power_w", *of.powered.reach), *ends("slower_pct", -1e4, 1e4, of.powered.scale))]
    if "row" in ranges or "column" in ranges:
        (left, right), (top, bottom) = ends("column", 0, of.grid.columns), ends("row", 0, of.grid.rows)
        found[MAP] = [box(left - 0.5, right + 0.5, top - 0.5, bottom + 0.5)]
    return found


def trend_figure(reading: Reading, of: View, state: State) -> Figure:
    """The fleet over its campaigns, with the chosen GPUs or the worst."""
    found = trend_of(reading, of.asked.cluster.cluster, of.asked.workload)
    if found is None:
        return _nothing("No run with a time says when it began.")
    shown = [of.rows["gpu"][row] for row in of.picked(state)[:LINES]] or list(of.verdicts)[:_ODD]
    names = of.rows.filter(pl.col("gpu").is_in(shown)).select("gpu", "label")
    return over_campaigns(found, shown, dict(names.iter_rows()))


def _nothing(why: str) -> Figure:
    return figure_of([], layout(160, xaxis={"visible": False}, yaxis={"visible": False}, annotations=[nothing(why)]))


# -- the table ----------------------------------------------------------------------------------------------------


def table_rows(of: View, state: State) -> pl.DataFrame:
    """The GPUs that the brush holds, as the table shows them."""
    held = of.held(state)
    picked = pl.Series(of.picked(state), dtype=pl.Int64).implode()
    rows = of.rows.with_row_index("number").with_columns(
        pl.when(pl.col("number").cast(pl.Int64).is_in(picked)).then(pl.lit("☑")).otherwise(pl.lit("☐")).alias("chosen"),
        pl.lit(of.asked.cluster.cluster).alias("cluster"),
    )
    return rows if held is None else rows.filter(held)
