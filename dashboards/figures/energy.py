"""Where energy went: day by day, who used most of it, and where the GPUs of a job stand in the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ...analysis.energy.answers import By
from ...analysis.energy.attribute import Kind
from ...analysis.energy.one_job import NO_VERDICT
from ..style import BLUE, GREY, LEGEND, ORANGE, RED, layout
from ..words import MISSING, many, unit_of, with_interval, with_interval_in_unit
from .drawing import Bar, Figure, Scatter, figure_of
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
PLACES = 32
"""GPUs of a job that are drawn, the slowest first."""
WHISKER = {"color": "#59626e", "thickness": 1.5, "width": 4}
"""How a 95 % interval is drawn at the end of a bar; pages give it the colour of text."""
_ENERGY = ("energy_j", "low_j", "high_j")
_FEW = 4  # days: side by side they would be a few huge bars
_ROW_PX, _BETWEEN_PX, _TOP_PX, _BOTTOM_PX = 40, 56, 60, 52
_TITLE_PX = 26  # of the name of a cluster
_DAY_MS = 86_400_000
_OTHERS = "rgba(61,143,209,0.55)"
_LONGEST = 28  # letters of a name beside its bar
_FAR = 2.5  # times the largest bar of one row: longer ones are cut, and say how long they are

Row = Mapping[str, Any]


def error_bars(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The 95 % intervals of some values, as Plotly draws them."""
    above, below = ([abs(end - value) for end, value in zip(ends, values, strict=True)] for ends in (high, low))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **WHISKER}


# -- day by day ---------------------------------------------------------------------------------------------------


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
    panels = max(1, len(clusters))
    between = _BETWEEN_PX / (panel_px + _BETWEEN_PX) / panels if several else 0.0
    high = (1 - between * (panels - 1)) / panels
    above = _TITLE_PX if several else 0  # on a phone the legend takes the whole width: it stands above the first name
    inside = panels * panel_px + (panels - 1) * _BETWEEN_PX
    energy = {"rangemode": "tozero", "zeroline": False}
    categories = {
        "type": "category", "tickvals": [str(day) for day in days], "ticktext": [f"{day:%-d %b %Y}" for day in days],
        "categoryarray": [str(day) for day in days], "autorange": "reversed", "zeroline": False, "showgrid": False,
    }  # fmt: skip
    dated = {"type": "date", "tickformat": "%-d %b %Y", "hoverformat": "%Y-%m-%d", "zeroline": False, "showgrid": False}
    titles = [
        {
            "text": plain(str(cluster)), "x": 0.5, "y": 1 - row * (high + between), "xref": "paper", "yref": "paper",
            "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16},
        }
        for row, cluster in enumerate(clusters if several else ())
    ]  # fmt: skip
    return stacked(
        traces,
        [categories if lying else energy | {"title": {"text": unit}}] * panels,
        energy if lying else dated,
        layout(
            _TOP_PX + above + inside + _BOTTOM_PX,
            margin={"l": 96 if lying else 64, "r": 16, "t": _TOP_PX + above, "b": _BOTTOM_PX},
            barmode="stack",
            hovermode="closest" if lying else "x",
            legend=LEGEND | {"y": LEGEND["y"] + above / inside},
            annotations=titles,
        ),
        apart=between,
        under=unit if lying else None,
    )


def _panel(rows: pl.DataFrame, unit: str, joules: float, *, lying: bool, legend: bool) -> list[Any]:
    """The bars of a cluster. `lying`: whether energy is drawn from left to right."""
    day, energy = ("y", "x") if lying else ("x", "y")
    across = {"orientation": "h", "width": 0.7} if lying else {"width": 0.8 * _DAY_MS}

    def days(part: pl.DataFrame) -> list[Any]:
        return part["day"].cast(pl.String).to_list() if lying else part["day"].to_list()

    bars = [
        Bar(
            {day: days(rows), energy: (rows[name] / joules).to_list()},
            **across,
            name=label,
            legendgroup=label,
            showlegend=legend,
            marker={"color": colour},
            hovertemplate=f"{label}: %{{{energy}:,.4~g}} {unit}<extra></extra>",
        )
        for name, label, colour in PARTS.values()
    ]
    metered, unknown = (rows.filter(pl.col("energy_j").is_null() == missing) for missing in (False, True))
    values, low, high = ((metered[name] / joules).to_list() for name in _ENERGY)
    sums = Scatter(
        {day: days(metered), energy: values, f"error_{energy}": error_bars(values, low, high)},
        mode="markers",
        showlegend=False,
        marker={"size": 4, "opacity": 0},
        text=[f"metered: {_text(row)}, {many(row['gpus'] or 0, 'GPU')}" for row in metered.iter_rows(named=True)],
        hovertemplate="%{text}<extra></extra>",
    )
    missing = Scatter(
        {day: days(unknown), energy: [0.0] * unknown.height},
        mode="text",
        text=[MISSING] * unknown.height,
        textposition="middle right" if lying else "top center",
        showlegend=False,
        hovertemplate="no honest figure<extra></extra>",
    )
    return [*bars, sums, *([missing] if unknown.height else [])]


def _text(row: Row) -> str:
    return with_interval_in_unit(*(row[name] for name in _ENERGY))


# -- who used most ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnergyBar:
    """What a bar is of."""

    name: str
    row: Row
    colour: str


def largest(by: By, rows: pl.DataFrame, first: int, beyond: Row | None) -> Figure:
    """The energy of the `first` rows as bars with their 95 % intervals, the largest on top, and of all others.

    `rows`: of `analysis.energy.answers.energy`, not by day, with `what` (the name of a row) and `why` (in words, where
    it has no figure); `beyond`: the row of those after the `first`, if there are any, as `EnergySummary.beyond` has it.
    Of people, what nobody used stands below them.
    """
    bars, single = _bars(by, rows, first, beyond)
    unit, joules = unit_of([bar.row["high_j"] for bar in bars[: single or None]])
    reach = _FAR * max((bar.row["high_j"] or 0.0 for bar in bars[:single]), default=0.0) / joules
    metered = [place for place, bar in enumerate(bars) if bar.row["energy_j"] is not None]
    unknown = [place for place, bar in enumerate(bars) if bar.row["energy_j"] is None]
    energy, low, high = ([bars[place].row[name] / joules for place in metered] for name in _ENERGY)
    is_far = [0 < reach < value for value in energy]
    cuts = [(bars[place], is_cut) for place, is_cut in zip(metered, is_far, strict=True)]
    drawn = Bar(
        x=energy,
        y=metered,
        orientation="h",
        width=[0.96 if is_cut else 0.72 for is_cut in is_far],
        marker={"color": [_faded(bar.colour) if is_cut else bar.colour for bar, is_cut in cuts]},
        error_x=error_bars(energy, low, high),
        text=[_text(bar.row).replace(" [", "<br>[") if is_cut else "" for bar, is_cut in cuts],
        textfont={"size": 10},  # two lines fit, and on a phone the interval has room
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        hovertext=[_hover(bar) for bar, _ in cuts],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    missing = Scatter(
        x=[0.0] * len(unknown),
        y=unknown,
        mode="text",
        text=[f" {MISSING}"] * len(unknown),
        textposition="middle right",
        hovertext=[_hover(bars[place]) for place in unknown],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    axis: dict[str, Any] = {"title": {"text": unit, "standoff": 6}, "zeroline": True, "rangemode": "tozero"}
    if any(is_far):
        axis["range"] = [0, 1.1 * max(end for end, is_cut in zip(high, is_far, strict=True) if not is_cut)]
    names = [bar.name if len(bar.name) <= _LONGEST else f"{bar.name[: _LONGEST - 1]}…" for bar in bars]
    labels = {"tickvals": list(range(len(bars))), "ticktext": [plain(name) for name in names]}
    return figure_of(
        [drawn, *([missing] if unknown else [])],
        layout(
            84 + 26 * max(3, len(bars)),
            margin={"l": 20 + 7 * max((len(name) for name in names), default=0), "r": 24, "t": 12, "b": 52},
            showlegend=False,
            xaxis=axis,
            yaxis=labels | {"range": [max(len(bars), 1) - 0.4, -0.6], "showgrid": False, "zeroline": False},
        ),
    )


def _bars(by: By, rows: pl.DataFrame, first: int, beyond: Row | None) -> tuple[Sequence[EnergyBar], int]:
    """What is drawn, from top to bottom, and how many of these are of a single row."""
    jobs = pl.col("kind") == Kind.JOB.value if by.of_people else pl.lit(value=True)
    bars = [EnergyBar(row["what"], row, BLUE) for row in rows.filter(jobs).head(first).to_dicts()]
    single = len(bars)
    if beyond is not None:
        n, unknown = beyond["n"], beyond["no_figure"]
        unknown_too = f" ({unknown:,} more n/a)" if n and unknown else ""
        bars.append(EnergyBar(f"{n or unknown:,} others{unknown_too}", beyond, _OTHERS))
    bars += [EnergyBar(row["what"], row, PARTS[row["kind"]][2]) for row in rows.filter(~jobs).to_dicts()]
    return bars, single


def _faded(colour: str) -> str:
    """A colour through which the page is seen, so that the words of the page can be read on it."""
    if not colour.startswith("#"):
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.4)"


def _hover(bar: EnergyBar) -> str:
    row = bar.row
    if row["energy_j"] is None:
        return f"{plain(bar.name)}<br>n/a: {plain(str(row.get('why') or row['reason']))}"
    on = f"<br>{many(row['gpus'], 'GPU')}" if row["gpus"] else ""
    return f"{plain(bar.name)}<br>{_text(row)}{on}"


# -- where the GPUs of a job stand --------------------------------------------------------------------------------


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
        error_x=error_bars(slower, low, high),
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    ticks = {"tickvals": at, "ticktext": [plain(name) for name in names], "range": [len(at) - 0.4, -0.6]}
    return figure_of(
        [points],
        layout(
            96 + 24 * max(3, len(at)),
            margin={"l": 24 + 8 * max(len(name) for name in names), "r": 24, "t": 12, "b": 52},
            xaxis={"title": {"text": "slower than the median GPU, %", "standoff": 6}, "zeroline": True},
            yaxis=ticks | {"zeroline": False},
        ),
    )
