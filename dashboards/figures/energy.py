"""Where energy went: day by day, who used most of it, and where the GPUs of a job stand in the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any

import polars as pl

from ...analysis.energy.quote import NO_VERDICT
from ..style import BLUE, GREY, ORANGE, RED, layout
from ..words import MISSING, many, unit_of, with_interval, with_interval_in_unit
from .drawing import Bar, Figure, Scatter, error_bars, figure_of, names_axis, plain

PARTS = {
    "job": ("attributed_j", "of jobs", BLUE),
    "idle": ("idle_time_j", "idle", GREY),
    "unattributed": ("unattributed_j", "unattributed", ORANGE),
}
"""By kind: the column with the energy, how it is called, its colour."""
PLACES = 32
"""GPUs of a job that are drawn, the slowest first."""
_WHISKER = "#59626e"  # of a 95 % interval at the end of a bar; pages give it the colour of text
_ENERGY = ("energy_j", "low_j", "high_j")
_DAY_MS, _HALF_DAY, _DAYS = 86_400_000, timedelta(hours=12), 6
_LONGEST = 28  # letters of a name beside its bar

Row = Mapping[str, Any]


def _whiskers(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The 95 % intervals of some values, as Plotly draws them."""
    above, below = ([abs(end - value) for end, value in zip(ends, values, strict=True)] for ends in (high, low))
    return error_bars(below, above, _WHISKER)


def books(rows: pl.DataFrame) -> Figure:
    """The books of each day of a cluster as stacked bars, with the 95 % interval of what was metered.

    `rows`: of `analysis.energy.answers.energy`, by day. A day without an honest figure is marked n/a.
    """
    rows = rows.drop_nulls("day").sort("day")
    unit, joules = unit_of(rows.select(pl.coalesce("high_j", "known_j")).to_series())
    days = rows["day"].to_list()
    bars = [
        Bar(
            x=days,
            y=(rows[name] / joules).to_list(),
            width=0.8 * _DAY_MS,
            name=label,
            marker={"color": colour},
            hovertemplate=f"{label}: %{{y:,.4~g}} {unit}<extra></extra>",
        )
        for name, label, colour in PARTS.values()
    ]
    metered, unknown = (rows.filter(pl.col("energy_j").is_null() == missing) for missing in (False, True))
    values, low, high = ((metered[name] / joules).to_list() for name in _ENERGY)
    sums = Scatter(
        x=metered["day"].to_list(),
        y=values,
        error_y=_whiskers(values, low, high),
        mode="markers",
        showlegend=False,
        marker={"size": 4, "opacity": 0},
        text=[f"metered: {_text(row)}, {many(row['gpus'] or 0, 'GPU')}" for row in metered.iter_rows(named=True)],
        hovertemplate="%{text}<extra></extra>",
    )
    missing = Scatter(
        x=unknown["day"].to_list(),
        y=[0.0] * unknown.height,
        mode="text",
        text=[MISSING] * unknown.height,
        textposition="top center",
        showlegend=False,
        hovertemplate="no honest figure<extra></extra>",
    )
    dated: dict[str, Any] = {"type": "date", "tickformat": "%-d %b %Y", "hoverformat": "%Y-%m-%d", "showgrid": False}
    if days:  # a few days are a few bars, and not the width of the page
        first, last = (datetime.combine(day, time()) for day in (days[0], days[-1]))
        dated["range"] = [min(first, last - timedelta(days=_DAYS)) - _HALF_DAY, last + _HALF_DAY]
    return figure_of(
        [*bars, sums, *([missing] if unknown.height else [])],
        layout(
            320,
            margin={"l": 64, "r": 16, "t": 60, "b": 52},
            barmode="stack",
            hovermode="x",
            xaxis=dated,
            yaxis={"title": {"text": unit}, "rangemode": "tozero", "zeroline": False},
        ),
    )


def _text(row: Row) -> str:
    return with_interval_in_unit(*(row[name] for name in _ENERGY))


def largest(rows: pl.DataFrame) -> Figure:
    """The energy of some rows as bars with their 95 % intervals, the first on top.

    `rows`: of `analysis.energy.answers.energy`, with `what` (the name of a row) and `why` (in words, where it has no
    figure).
    """
    unit, joules = unit_of(rows["high_j"])
    bars, unknown = (
        rows.with_row_index("at").filter(pl.col("energy_j").is_null() == missing) for missing in (False, True)
    )
    energy, low, high = ((bars[name] / joules).to_list() for name in _ENERGY)
    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in rows["what"]]
    metered = Bar(
        x=energy,
        y=bars["at"].to_list(),
        orientation="h",
        width=0.72,
        marker={"color": BLUE},
        error_x=_whiskers(energy, low, high),
        hovertext=[
            f"{plain(row['what'])}<br>{_text(row)}" + (f"<br>{many(row['gpus'], 'GPU')}" if row["gpus"] else "")
            for row in bars.iter_rows(named=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    missing = Scatter(
        x=[0.0] * unknown.height,
        y=unknown["at"].to_list(),
        mode="text",
        text=[f" {MISSING}"] * unknown.height,
        textposition="middle right",
        hovertext=[f"{plain(row['what'])}<br>n/a: {plain(str(row['why']))}" for row in unknown.iter_rows(named=True)],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return figure_of(
        [metered, *([missing] if unknown.height else [])],
        layout(
            84 + 26 * max(3, rows.height),
            margin={"l": 20 + 7 * max(map(len, names), default=0), "r": 24, "t": 12, "b": 52},
            showlegend=False,
            xaxis={"title": {"text": unit, "standoff": 6}, "zeroline": True, "rangemode": "tozero"},
            yaxis=names_axis([plain(name) for name in names], range=[max(rows.height, 1) - 0.4, -0.6]),
        ),
    )


def places(rows: pl.DataFrame) -> Figure | None:
    """The GPUs of a job with their 95 % intervals, the slowest on top; None where no GPU was compared.

    `rows`: as `OneJob.gpus` has them, with `what` (the name of each). A GPU with a verdict is red, and its verdict
    stands where it is hovered.
    """
    compared = rows.filter(pl.col("slower_pct").is_not_null()) if "slower_pct" in rows.columns else rows.clear()
    if compared.is_empty():
        return None
    compared = compared.sort("slower_pct", descending=True).head(PLACES)
    names, at = compared["what"].to_list(), list(range(compared.height))
    calm = [verdicts in (None, NO_VERDICT) for verdicts in compared["verdicts"]]
    slower, low, high = (compared[name].to_list() for name in ("slower_pct", "slower_low_pct", "slower_high_pct"))
    texts = []
    for row, is_calm in zip(compared.iter_rows(named=True), calm, strict=True):
        effect = with_interval(row["slower_pct"], row["slower_low_pct"], row["slower_high_pct"], signed=True, unit="%")
        rank = f"rank {row['rank']:,} of {row['compared']:,}, {plain(row['basis'])}"
        verdicts = "" if is_calm else f"<br>{plain(row['verdicts'])}"
        texts.append(f"{plain(row['what'])}<br>{effect}<br>{rank}{verdicts}")
    points = Scatter(
        x=slower,
        y=at,
        mode="markers",
        marker={
            "color": [BLUE if is_calm else RED for is_calm in calm],
            "symbol": ["circle" if is_calm else "diamond" for is_calm in calm],
            "size": 9,
        },
        error_x=_whiskers(slower, low, high),
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    return figure_of(
        [points],
        layout(
            96 + 24 * max(3, len(at)),
            margin={"l": 24 + 8 * max(len(name) for name in names), "r": 24, "t": 12, "b": 52},
            xaxis={"title": {"text": "slower than the median GPU, %", "standoff": 6}, "zeroline": True},
            yaxis=names_axis([plain(name) for name in names], range=[len(at) - 0.4, -0.6], showgrid=True),
        ),
    )
