"""Where the GPUs of a job stand in the fleet: how much longer each takes than the median GPU of its model."""

from __future__ import annotations

import polars as pl

from ...analysis.energy.one_job import NO_VERDICT
from ..style import BLUE, RED, layout
from ..table import signed
from .drawing import Figure, Scatter, figure_of
from .energy_books import WHISKER
from .looks import plain

_CALM = (None, NO_VERDICT)
GPUS = 32
"""GPUs that are drawn, the slowest first."""


def places(rows: pl.DataFrame) -> Figure | None:
    """The GPUs of a job with their 95 % intervals, the slowest on top; None where no GPU was compared.

    `rows`: as `energy_table.of_gpus` has them. A GPU with a verdict is red, and its verdict stands where it is hovered.
    """
    known = rows.filter(pl.col("slower_pct").is_not_null()) if "slower_pct" in rows.columns else rows.clear()
    if known.is_empty():
        return None
    known = known.sort("slower_pct", descending=True).head(GPUS)
    at = list(range(known.height))
    points = Scatter(
        x=known["slower_pct"].to_list(),
        y=at,
        mode="markers",
        marker={
            "color": [BLUE if found in _CALM else RED for found in known["verdicts"]],
            "symbol": ["circle" if found in _CALM else "diamond" for found in known["verdicts"]],
            "size": 9,
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": (known["slower_high_pct"] - known["slower_pct"]).to_list(),
            "arrayminus": (known["slower_pct"] - known["slower_low_pct"]).to_list(),
            **WHISKER,
        },
        text=[
            f"{plain(row['what'])}<br>"
            f"{signed(row['slower_pct'])} % [{signed(row['slower_low_pct'])}, {signed(row['slower_high_pct'])}]<br>"
            f"rank {row['rank']:,} of {row['compared']:,}, {plain(row['basis'])}"
            + ("" if row["verdicts"] in _CALM else f"<br>{plain(row['verdicts'])}")
            for row in known.iter_rows(named=True)
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    names = known["what"].to_list()
    return figure_of(
        [points],
        layout(
            96 + 24 * max(3, len(at)),
            margin={"l": 24 + 8 * max(len(name) for name in names), "r": 24, "t": 12, "b": 52},
            xaxis={"title": {"text": "slower than the median GPU, %", "standoff": 6}, "zeroline": True},
            yaxis={
                "tickvals": at,
                "ticktext": [plain(name) for name in names],
                "range": [len(at) - 0.4, -0.6],
                "zeroline": False,
            },
        ),
    )
