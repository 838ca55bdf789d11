"""Where the metered energy went, day by day: to jobs, to idle times, to somebody who is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from ..energy_words import ENERGY, unit_of, with_interval
from ..style import BLUE, GREY, LEGEND, ORANGE, layout
from ..table import MISSING, many
from .drawing import Bar, Figure, Scatter
from .looks import plain
from .panels import axes_of, stacked

PARTS = {
    "job": ("attributed_j", "of jobs", BLUE),
    "idle": ("idle_time_j", "idle", GREY),
    "unattributed": ("unattributed_j", "unattributed", ORANGE),
}
"""By kind: the column with the energy, how it is called, its colour."""
CLUSTERS = 6
"""Panels that are drawn; of more clusters the first."""
WHISKER = {"color": "#59626e", "thickness": 1.5, "width": 4}
"""How a 95 % interval is drawn at the end of a bar; pages give it the colour of text."""
_FEW = 4  # days: side by side they would be a few huge bars
_ROW_PX, _BETWEEN_PX = 40, 56
_TOP_PX, _BOTTOM_PX = 60, 52
_TITLE_PX = 26  # of the name of a cluster
_DAY_MS = 86_400_000


def error_bars(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The 95 % intervals of some values, as Plotly draws them."""
    above, below = ([abs(end - value) for end, value in zip(ends, values, strict=True)] for ends in (high, low))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **WHISKER}


def books(rows: pl.DataFrame) -> Figure:
    """The books of each day as stacked bars, with the 95 % interval of what was metered; a panel for each cluster.

    `rows`: of `analysis.energy.answers.energy`, by day. A day without an honest figure is marked n/a. Few days lie
    below each other, many beside each other.
    """
    clusters = rows["cluster"].unique().sort().to_list()[:CLUSTERS]
    several = len(clusters) > 1
    unit, joules = unit_of(rows.select(pl.coalesce("high_j", "known_j")).to_series())
    days = rows["day"].drop_nulls().unique().sort()
    lying = len(days) <= _FEW
    panel_px = _ROW_PX * max(1, len(days)) + 30 if lying else 210
    traces: list[dict[str, Any]] = []
    for row, cluster in enumerate(clusters, 1):
        of_cluster = rows.filter(pl.col("cluster").eq_missing(pl.lit(cluster, pl.String))).sort("day")
        traces += [trace | axes_of(row) for trace in _panel(of_cluster, unit, joules, lying=lying, legend=row == 1)]
    count = max(1, len(clusters))
    between = _BETWEEN_PX / (panel_px + _BETWEEN_PX) / count if several else 0.0
    high = (1 - between * (count - 1)) / count
    above = _TITLE_PX if several else 0  # on a phone the legend takes the whole width: it stands above the first name
    inside = count * panel_px + (count - 1) * _BETWEEN_PX
    energy = {"rangemode": "tozero", "zeroline": False}
    categories = {
        "type": "category", "tickvals": [str(day) for day in days], "ticktext": [f"{day:%-d %b %Y}" for day in days],
        "categoryarray": [str(day) for day in days], "autorange": "reversed", "zeroline": False, "showgrid": False,
    }  # fmt: skip
    dated = {"type": "date", "tickformat": "%-d %b %Y", "hoverformat": "%Y-%m-%d", "zeroline": False, "showgrid": False}
    return stacked(
        traces,
        [categories if lying else energy | {"title": {"text": unit}}] * count,
        energy if lying else dated,
        layout(
            _TOP_PX + above + inside + _BOTTOM_PX,
            margin={"l": 96 if lying else 64, "r": 16, "t": _TOP_PX + above, "b": _BOTTOM_PX},
            barmode="stack",
            hovermode="closest" if lying else "x",
            legend=LEGEND | {"y": LEGEND["y"] + above / inside},
            annotations=[
                {
                    "text": plain(str(cluster)), "x": 0.5, "y": 1 - row * (high + between), "xref": "paper",
                    "yref": "paper", "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16},
                }
                for row, cluster in enumerate(clusters if several else ())
            ],
        ),
        apart=between,
        under=unit if lying else None,
    )  # fmt: skip


def _panel(rows: pl.DataFrame, unit: str, joules: float, *, lying: bool, legend: bool) -> list[Any]:
    """The bars of a cluster. `lying`: whether energy is drawn from left to right."""
    day, energy = ("y", "x") if lying else ("x", "y")
    across = {"orientation": "h", "width": 0.7} if lying else {"width": 0.8 * _DAY_MS}
    bars = [
        Bar(
            {day: _at(rows, lying=lying), energy: (rows[name] / joules).to_list()},
            **across,
            name=label,
            legendgroup=label,
            showlegend=legend,
            marker={"color": colour},
            hovertemplate=f"{label}: %{{{energy}:,.4~g}} {unit}<extra></extra>",
        )
        for name, label, colour in PARTS.values()
    ]
    scaled = rows.with_columns(pl.col("energy_j", "low_j", "high_j") / joules)
    metered, none = (scaled.filter(pl.col("energy_j").is_null() == missing) for missing in (False, True))
    values, low, high = (metered[name].to_list() for name in ENERGY)
    sums = Scatter(
        {day: _at(metered, lying=lying), energy: values, f"error_{energy}": error_bars(values, low, high)},
        mode="markers",
        showlegend=False,
        marker={"size": 4, "opacity": 0},
        text=[
            f"metered: {' '.join(with_interval(row, 1.0))} {unit}, {many(row['gpus'] or 0, 'GPU')}"
            for row in metered.iter_rows(named=True)
        ],
        hovertemplate="%{text}<extra></extra>",
    )
    missing = Scatter(
        {day: _at(none, lying=lying), energy: [0.0] * none.height},
        mode="text",
        text=[MISSING] * none.height,
        textposition="middle right" if lying else "top center",
        showlegend=False,
        hovertemplate="no honest figure<extra></extra>",
    )
    return [*bars, sums, *([missing] if none.height else [])]


def _at(rows: pl.DataFrame, *, lying: bool) -> list[Any]:
    return rows["day"].cast(pl.String).to_list() if lying else rows["day"].to_list()
