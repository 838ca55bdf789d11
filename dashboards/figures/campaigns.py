"""How a fleet moves from campaign to campaign, and single GPUs with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from ...analysis.fleet.trend import Trend
from ..style import BLUE, GREEN, OLIVE, ORANGE, PINK, RED, SKY, layout, room
from ..table import signed
from .drawing import Figure, Scatter, figure_of
from .looks import plain
from .scale import Scale

MOST = 8
"""Lines of single GPUs."""
_COLOURS = (RED, ORANGE, PINK, GREEN, OLIVE, SKY)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")


def over_campaigns(of: Trend, gpus: Sequence[str], names: Mapping[str, str]) -> Figure:
    """The median of the fleet with its 95 % interval, the middle half and nine tenths of it, and lines of `gpus`."""
    periods = of.periods
    lines = {gpu: rows for gpu in gpus[:MOST] if (rows := of.of(gpu)).height}
    values = [periods["p5"], periods["p95"], *(rows["slower_pct"] for rows in lines.values())]
    every = np.concatenate([one.cast(pl.Float64).drop_nulls().to_numpy() for one in values])
    scale = Scale.of(np.concatenate([periods[name].to_numpy() for name in ("p5", "p95")]))
    at = periods["began"].to_list()
    traces: list[Any] = []
    bands = (("p5", "p95", 0.13, "90 % of the GPUs"), ("p25", "p75", 0.24, "half of the GPUs"))
    for bottom, top, opacity, name in bands:
        edge = [*scale.bend(periods[top]).tolist(), *scale.bend(periods[bottom]).tolist()[::-1]]
        traces.append(
            Scatter(
                x=[*at, *at[::-1]],
                y=edge,
                fill="toself",
                mode="lines",
                line={"width": 0},
                fillcolor=f"rgba(61,143,209,{opacity})",
                name=name,
                hoverinfo="skip",
            )
        )
    text = [
        f"{plain(period)}: median {signed(median)} %{_interval(low, high)}<br>n = {many:,} GPUs, {runs:,} runs"
        for period, median, low, high, many, runs in periods.select(
            "period", "median", "low", "high", "gpus", "runs"
        ).iter_rows()
    ]
    traces.append(
        _line(at, periods["median"], periods["low"], periods["high"], scale, "median GPU", BLUE, "circle", text)
    )
    for place, (gpu, rows) in enumerate(lines.items()):
        name = plain(names.get(gpu, gpu))
        own = [
            f"{name}, {plain(period)}<br>{signed(slower)} %{_interval(low, high)}, n = {n} run{'' if n == 1 else 's'}"
            for period, slower, low, high, n in rows.select("period", "slower_pct", "low", "high", "n").iter_rows()
        ]
        colour, symbol = _COLOURS[place % len(_COLOURS)], _SYMBOLS[place % len(_SYMBOLS)]
        middle, low, high = rows["slower_pct"], rows["low"], rows["high"]
        traces.append(_line(rows["began"].to_list(), middle, low, high, scale, name, colour, symbol, own))
    return figure_of(
        traces,
        layout(
            400,
            margin={"l": 64, "r": 16, "t": 64, "b": 44},
            xaxis={"showgrid": False, "automargin": True, **room(at), **_ticks(of)},
            yaxis=scale.axis(every, "slower than the median GPU, %"),
        ),
    )


def _ticks(of: Trend) -> dict[str, Any]:
    """Names of campaigns where there is room; else dates."""
    names = of.periods["period"].to_list()
    if of.by != "campaign" or len(names) > 10 or max(map(len, names)) > 16:
        return {"title": {"text": "UTC"}}
    return {"tickvals": of.periods["began"].to_list(), "ticktext": [plain(name) for name in names]}


def _line(
    at: Sequence[Any],
    middle: pl.Series,
    low: pl.Series,
    high: pl.Series,
    scale: Scale,
    name: str,
    colour: str,
    symbol: str,
    text: Sequence[str],
) -> Any:
    y, below, above = (
        scale.bend(one.cast(pl.Float64).fill_null(float("nan")).to_numpy()) for one in (middle, low, high)
    )
    return Scatter(
        x=at,
        y=y.tolist(),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(above - y).tolist(),
            "arrayminus": np.nan_to_num(y - below).tolist(),
            "thickness": 1.5,
            "width": 4,
            "color": colour,
        },
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
        marker={"symbol": symbol, "size": 8, "color": colour},
        text=list(text),
        hovertemplate="%{text}<extra></extra>",
    )


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
