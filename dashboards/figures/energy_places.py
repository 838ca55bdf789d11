"""Where the GPUs of a job stand in the fleet: how much longer each takes than the median GPU of its model."""

from __future__ import annotations

import polars as pl

from ...analysis.energy.one_job import NO_VERDICT
from ..style import BLUE, RED, layout
from ..table import signed
from .drawing import Figure, Scatter, figure_of
from .energy_books import error_bars
from .looks import plain

_CALM = (None, NO_VERDICT)
GPUS = 32
"""GPUs that are drawn, the slowest first."""


def places(rows: pl.DataFrame) -> Figure | None:
    """The GPUs of a job with their 95 % intervals, the slowest on top; None where no GPU was compared.

    `rows`: as `energy_table.gpu_frame` has them. A GPU with a verdict is red, and its verdict stands where it is
    hovered.
    """
    compared = rows.filter(pl.col("slower_pct").is_not_null()) if "slower_pct" in rows.columns else rows.clear()
    if compared.is_empty():
        return None
    compared = compared.sort("slower_pct", descending=True).head(GPUS)
    names, places = compared["what"].to_list(), list(range(compared.height))
    calm = [verdicts in _CALM for verdicts in compared["verdicts"]]
    figures = ("slower_pct", "slower_low_pct", "slower_high_pct")
    slower, low, high = (compared[name].to_list() for name in figures)
    texts = []
    for row in compared.iter_rows(named=True):
        best, *ends = (signed(row[name]) for name in figures)
        rank = f"rank {row['rank']:,} of {row['compared']:,}, {plain(row['basis'])}"
        verdicts = "" if row["verdicts"] in _CALM else f"<br>{plain(row['verdicts'])}"
        texts.append(f"{plain(row['what'])}<br>{best} % [{', '.join(ends)}]<br>{rank}{verdicts}")
    points = Scatter(
        x=slower,
        y=places,
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
    ticks = {"tickvals": places, "ticktext": [plain(name) for name in names], "range": [len(places) - 0.4, -0.6]}
    return figure_of(
        [points],
        layout(
            96 + 24 * max(3, len(places)),
            margin={"l": 24 + 8 * max(len(name) for name in names), "r": 24, "t": 12, "b": 52},
            xaxis={"title": {"text": "slower than the median GPU, %", "standoff": 6}, "zeroline": True},
            yaxis=ticks | {"zeroline": False},
        ),
    )
