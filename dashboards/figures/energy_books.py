"""Where the metered energy went, day by day: to jobs, to idle times, to somebody who is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ..energy_words import unit_of, with_interval
from ..style import BLUE, GREY, ORANGE, layout
from ..table import MISSING, many
from .drawing import Bar, Scatter
from .looks import plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

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
_TITLE_PX = 26  # of the name of a cluster
_DAY_MS = 86_400_000


def books(rows: pl.DataFrame) -> Figure:
    """The books of each day as stacked bars, with the 95 % interval of what was metered; a panel for each cluster.

    `rows`: of `analysis.energy.answers.energy`, by day. A day without an honest figure is marked n/a. Few days lie
    below each other, many beside each other.
    """
    from plotly.subplots import make_subplots

    clusters = rows["cluster"].unique().sort().to_list()[:CLUSTERS]
    several = len(clusters) > 1
    unit, joules = unit_of(rows.select(pl.coalesce("high_j", "known_j")).to_series())
    days = rows["day"].drop_nulls().unique().sort()
    lying = len(days) <= _FEW
    panel_px = _ROW_PX * max(1, len(days)) + 30 if lying else 210
    figure = make_subplots(
        rows=max(1, len(clusters)),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=_BETWEEN_PX / (panel_px + _BETWEEN_PX) / len(clusters) if several else 0.0,
        subplot_titles=[plain(str(one)) for one in clusters] if several else None,
    )
    for row, cluster in enumerate(clusters, 1):
        own = rows.filter(pl.col("cluster").eq_missing(pl.lit(cluster, pl.String))).sort("day")
        figure.add_traces(_panel(own, unit, joules, lying=lying, legend=row == 1), rows=row, cols=1)
    count = max(1, len(clusters))
    height = 110 + count * panel_px + (count - 1) * _BETWEEN_PX
    figure.update_layout(layout(height, barmode="stack", hovermode="closest" if lying else "x"))
    if several:  # on a phone the legend takes the whole width: it stands above the name of the first cluster
        top = figure.layout.margin.t
        inside = height - top - figure.layout.margin.b
        figure.update_layout(
            height=height + _TITLE_PX, margin={"t": top + _TITLE_PX}, legend={"y": 1 + _TITLE_PX / inside}
        )
    energy = {"rangemode": "tozero", "zeroline": False}
    if lying:
        named = [f"{day:%-d %b %Y}" for day in days]
        figure.update_xaxes(energy)
        figure.update_xaxes(title_text=unit, row=count, col=1)
        figure.update_yaxes(
            tickvals=[str(day) for day in days], ticktext=named, type="category", autorange="reversed", zeroline=False,
            showgrid=False, categoryarray=[str(day) for day in days],
        )  # fmt: skip
        figure.update_layout(margin={"l": 96})
    else:
        figure.update_yaxes(energy, title_text=unit)
        figure.update_xaxes(zeroline=False, showgrid=False, type="date", tickformat="%-d %b %Y", hoverformat="%Y-%m-%d")
    return figure


def _panel(rows: pl.DataFrame, unit: str, joules: float, *, lying: bool, legend: bool) -> list[Any]:
    """The bars of a cluster. `lying`: whether energy is drawn from left to right."""
    day, energy = ("y", "x") if lying else ("x", "y")
    across = {"orientation": "h", "width": 0.7} if lying else {"width": 0.8 * _DAY_MS}
    bars = [
        Bar(
            {day: _at(rows, lying=lying), energy: (rows[name] / joules).to_list()},
            **across,
            name=what,
            legendgroup=what,
            showlegend=legend,
            marker={"color": colour},
            hovertemplate=f"{what}: %{{{energy}:,.4~g}} {unit}<extra></extra>",
        )
        for name, what, colour in PARTS.values()
    ]
    whole = rows.with_columns(pl.col("energy_j", "low_j", "high_j") / joules)
    known = whole.filter(pl.col("energy_j").is_not_null())
    none = whole.filter(pl.col("energy_j").is_null())
    ends = {
        "type": "data",
        "symmetric": False,
        "array": (known["high_j"] - known["energy_j"]).to_list(),
        "arrayminus": (known["energy_j"] - known["low_j"]).to_list(),
        **WHISKER,
    }
    sums = Scatter(
        {day: _at(known, lying=lying), energy: known["energy_j"].to_list(), f"error_{energy}": ends},
        mode="markers",
        showlegend=False,
        marker={"size": 4, "opacity": 0},
        text=[
            f"metered: {' '.join(with_interval(row, 1.0))} {unit}, {many(row['gpus'] or 0, 'GPU')}"
            for row in known.iter_rows(named=True)
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
