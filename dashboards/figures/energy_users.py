"""Who used the energy: the largest users, jobs, GPUs or nodes, one bar each, and all others together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ...analysis.energy.answers import By
from ...analysis.energy.attribute import Kind
from ..energy_words import ENERGY, REASONS, name_of, unit_of, with_interval
from ..style import BLUE, layout
from ..table import MISSING, many
from .drawing import Bar, Figure, Scatter, figure_of
from .energy_books import PARTS, error_bars
from .looks import plain

_OTHERS = "rgba(61,143,209,0.55)"
_LONGEST = 28  # letters of a name beside its bar
_FAR = 2.5  # times the largest bar of one: longer ones are cut, and say how long they are


Row = Mapping[str, Any]


@dataclass(frozen=True)
class EnergyBar:
    """What a bar is of."""

    name: str
    row: Row
    colour: str


def largest(by: By, rows: pl.DataFrame, first: int, beyond: Row | None, *, several: bool = False) -> Figure:
    """The energy of the `first` rows as bars with their 95 % intervals, the largest on top, and of all others.

    `rows`: of `analysis.energy.answers.energy`, not by day; `beyond`: the row of those after the `first`, if there are
    any, as `answers.beyond` gives it. Of people, what nobody used stands below them. `several`: whether names say their
    cluster.
    """
    bars, single = _bars(by, rows, first, beyond, several=several)
    unit, joules = unit_of([bar.row["high_j"] for bar in bars])
    reach = _FAR * max((bar.row["high_j"] or 0.0 for bar in bars[:single]), default=0.0) / joules
    metered = [place for place, bar in enumerate(bars) if bar.row["energy_j"] is not None]
    none = [place for place, bar in enumerate(bars) if bar.row["energy_j"] is None]
    energy, low, high = ([bars[place].row[name] / joules for place in metered] for name in ENERGY)
    far = [0 < reach < value for value in energy]
    cuts = [(bars[place], cut) for place, cut in zip(metered, far, strict=True)]
    drawn = Bar(
        x=energy,
        y=metered,
        orientation="h",
        width=[0.96 if cut else 0.72 for cut in far],
        marker={"color": [_faded(bar.colour) if cut else bar.colour for bar, cut in cuts]},
        error_x=error_bars(energy, low, high),
        text=[_figure(bar.row, unit, joules, "<br>") if cut else "" for bar, cut in cuts],
        textfont={"size": 10},  # two lines fit, and on a phone the interval has room
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        hovertext=[_hover(bar, unit, joules) for bar, _ in cuts],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    missing = Scatter(
        x=[0.0] * len(none),
        y=none,
        mode="text",
        text=[f" {MISSING}"] * len(none),
        textposition="middle right",
        hovertext=[_hover(bars[place], unit, joules) for place in none],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    axis: dict[str, Any] = {"title": {"text": unit, "standoff": 6}, "zeroline": True, "rangemode": "tozero"}
    if any(far):
        axis["range"] = [0, 1.1 * max(end for end, cut in zip(high, far, strict=True) if not cut)]
    names = [bar.name if len(bar.name) <= _LONGEST else f"{bar.name[: _LONGEST - 1]}…" for bar in bars]
    labels = {"tickvals": list(range(len(bars))), "ticktext": [plain(name) for name in names]}
    return figure_of(
        [drawn, *([missing] if none else [])],
        layout(
            84 + 26 * max(3, len(bars)),
            margin={"l": 20 + 7 * max((len(name) for name in names), default=0), "r": 24, "t": 12, "b": 52},
            showlegend=False,
            xaxis=axis,
            yaxis=labels | {"range": [max(len(bars), 1) - 0.4, -0.6], "showgrid": False, "zeroline": False},
        ),
    )


def _bars(
    by: By, rows: pl.DataFrame, first: int, beyond: Row | None, *, several: bool
) -> tuple[Sequence[EnergyBar], int]:
    """What is drawn, from top to bottom, and how many of these are of a single row."""

    def label(row: Row) -> str:
        name = name_of(by, row)
        return f"{name} · {row['cluster']}" if several and row["cluster"] else name

    jobs = pl.col("kind") == Kind.JOB.value if by.of_people else pl.lit(value=True)
    bars = [EnergyBar(label(row), row, BLUE) for row in rows.filter(jobs).head(first).to_dicts()]
    single = len(bars)
    if beyond is not None:
        n, none = beyond["n"], beyond["no_figure"]
        more = f" ({none:,} more n/a)" if n and none else ""
        bars.append(EnergyBar(f"{n or none:,} others{more}", beyond, _OTHERS))
    bars += [EnergyBar(label(row), row, PARTS[row["kind"]][2]) for row in rows.filter(~jobs).to_dicts()]
    return bars, single


def _faded(colour: str) -> str:
    """A colour through which the page is seen, so that the words of the page can be read on it."""
    if not colour.startswith("#"):
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.4)"


def _hover(bar: EnergyBar, unit: str, joules: float) -> str:
    row = bar.row
    if row["energy_j"] is None:
        return f"{plain(bar.name)}<br>n/a: {plain(REASONS.get(row['reason'], str(row['reason'])))}"
    on = f"<br>{many(row['gpus'], 'GPU')}" if row["gpus"] else ""
    return f"{plain(bar.name)}<br>{_figure(row, unit, joules)}{on}"


def _figure(row: Row, unit: str, joules: float, between: str = " ") -> str:
    energy, ends = with_interval(row, joules)
    return f"{energy} {unit}{between}{ends}"
