"""Cabinets or nodes beside each other: time, clock, power and temperature of their GPUs as boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from ...analysis.fleet.side_by_side import PLACED
from ..style import BLUE, layout
from .looks import Look, plain
from .panels import axes_of, stacked

if TYPE_CHECKING:
    from .drawing import Figure

PLACES = 48
"""Boxes that are drawn; of more places, half are the slowest and half the fastest."""
_MOST_BOXES = 0.1  # of the ends of the whiskers lie beyond the edge of a panel, less the room that it has beyond them
_WIDER = 0.35  # of this reach, on each side
_LEAST = 0.05  # of the values, so that GPUs that hardly differ look like that
_INSIDE = 0.06  # of a panel: how far from its edge the GPUs are drawn that are beyond it
_TITLES = {
    "slower_pct": ("slower, %", " %"),
    "sm_clock_mhz": ("clock, MHz", " MHz"),
    "power_w": ("power, W", " W"),
    "temperature_c": ("temp., °C", " °C"),
}


def places(
    quantiles: pl.DataFrame, rows: pl.DataFrame, level: str, names: Mapping[str, str], drawn: Mapping[str, Look]
) -> Figure:
    """One probe's GPUs by place, the slowest place first; a GPU with a finding has its symbol.

    `quantiles`: of `analysis.fleet.by_place`, `rows`: of `side_by_side`, both of one probe; `level`: of `level_of`.
    """
    half = PLACES // 2
    shown = quantiles if quantiles.height <= PLACES else pl.concat([quantiles.head(half), quantiles.tail(half)])
    panels = [name for name in PLACED if shown[name].is_not_null().any()]
    order = shown["place"].to_list()
    marked = rows.filter(pl.col("gpu").is_in(list(drawn)) & pl.col(level).is_in(order))
    traces: list[dict[str, Any]] = []
    upright: list[dict[str, Any]] = []
    for row, name in enumerate(panels, start=1):
        title, unit = _TITLES[name]
        edges = _edges(shown[name].drop_nulls())
        known = shown.drop_nulls(name)
        low, first, middle, third, high = (
            known.select(pl.col(name).list.get(at).round(2)).to_series().to_list() for at in range(5)
        )
        boxes = {
            "type": "box",
            "x": [plain(place) for place in known["place"]],
            "lowerfence": low,
            "q1": first,
            "median": middle,
            "q3": third,
            "upperfence": high,
            "width": 0.7,
            "line": {"color": BLUE, "width": 1.25},
            "fillcolor": "rgba(61,143,209,0.25)",
            "showlegend": False,
            "hoverinfo": "skip",
        }
        drawing = [boxes, _hovered(known, name, unit)]
        for look in dict.fromkeys(drawn.values()):
            own = marked.filter(pl.col("gpu").is_in([gpu for gpu in drawn if drawn[gpu] == look])).drop_nulls(name)
            drawing.append(_marks(own, name, unit, level, look, names, edges, legend=row == 1))
        traces += [axes_of(row) | one for one in drawing]
        upright.append({"title": {"text": title}, "range": edges, "zeroline": name == "slower_pct"})
    shown_as = [plain(place) for place in order]
    return stacked(
        traces,
        upright,
        {"type": "category", "categoryorder": "array", "categoryarray": shown_as, "showgrid": False},
        layout(
            110 + 130 * len(panels),
            margin={"l": 64, "r": 16, "t": 40, "b": 70},
            boxmode="overlay",
            showlegend=not marked.is_empty(),
        ),
        apart=0.04,
    )


def _edges(boxes: pl.Series) -> list[float]:
    """Where a panel ends: where most boxes do, so that one GPU far out does not press all others flat."""
    low = float(boxes.list.first().quantile(_MOST_BOXES, "linear") or 0.0)
    high = float(boxes.list.last().quantile(1 - _MOST_BOXES, "linear") or 0.0)
    wider = _WIDER * max(high - low, _LEAST * abs(high), 1.0)
    return [round(low - wider, 2), round(high + wider, 2)]


def _hovered(known: pl.DataFrame, name: str, unit: str) -> dict[str, Any]:
    """What is said of a box: a box itself cannot say how many GPUs it is of."""
    text = [
        f"{plain(place)}<br>median {each[2]:,.1f}{unit}, 5th to 95th percentile {each[0]:,.1f} to "
        f"{each[4]:,.1f}{unit}, n = {n}"
        for place, n, each in known.select("place", "n", name).iter_rows()
    ]
    return {
        "type": "scatter",
        "x": [plain(place) for place in known["place"]],
        "y": known.select(pl.col(name).list.get(2).round(2)).to_series().to_list(),
        "mode": "markers",
        "marker": {"color": BLUE, "size": 12, "opacity": 0},
        "text": text,
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


def _marks(
    own: pl.DataFrame,
    name: str,
    unit: str,
    level: str,
    look: Look,
    names: Mapping[str, str],
    edges: Sequence[float],
    *,
    legend: bool,
) -> dict[str, Any]:
    inside = _INSIDE * (edges[1] - edges[0])
    return {
        "type": "scatter",
        "x": [plain(place) for place in own[level]],
        "y": own[name].clip(edges[0] + inside, edges[1] - inside).round(2).to_list(),
        "mode": "markers",
        "name": look.name,
        "legendgroup": look.name,
        "showlegend": legend and not own.is_empty(),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 9, "line": {"width": 1}},
        "text": [
            f"{plain(names[gpu])}<br>{value:,.1f}{unit}<br>{look.name}"
            for gpu, value in own.select("gpu", name).iter_rows()
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }
