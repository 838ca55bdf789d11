"""Performance against power: what GPUs draw, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ..style import BLUE, layout
from .looks import Look, thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

POINTS = 600
"""GPUs drawn; of more, evenly many over their order, and all that have findings."""


def against_power(rows: pl.DataFrame, names: Mapping[str, str], drawn: Mapping[str, Look]) -> Figure:
    """One probe's GPUs, each a point: its power, and how much slower it is than the median.

    `rows`: of `analysis.fleet.side_by_side`, of one probe; GPUs without a power are not drawn.
    """
    from plotly.graph_objects import Figure

    known = rows.drop_nulls(["power_w", "slower_pct"]).sort("slower_pct", "gpu")
    calm = known.filter(~pl.col("gpu").is_in(list(drawn)))
    calm = calm[thinned(calm.height, POINTS)]
    traces = [_points(calm, names, None)]
    for look in dict.fromkeys(drawn.values()):
        own = known.filter(pl.col("gpu").is_in([gpu for gpu in drawn if drawn[gpu] == look]))
        if not own.is_empty():
            traces.append(_points(own, names, look))
    return Figure(
        traces,
        layout(
            420,
            margin={"l": 64, "r": 16, "t": 44, "b": 52},
            showlegend=len(traces) > 1,
            xaxis={"title": {"text": "power, W"}, "zeroline": False},
            yaxis={"title": {"text": "slower than the median GPU, %"}, "zeroline": True},
        ),
    )


def _points(rows: pl.DataFrame, names: Mapping[str, str], look: Look | None) -> Any:
    from plotly.graph_objects import Scatter

    text = [
        f"{names[gpu]}<br>{watts:,.0f} W, {slower:+.2f} %" + ("" if look is None else f"<br>{look.name}")
        for gpu, watts, slower in rows.select("gpu", "power_w", "slower_pct").iter_rows()
    ]
    marker = (
        {"color": BLUE, "size": 6, "opacity": 0.75}
        if look is None
        else {"color": look.colour, "symbol": look.symbol, "size": 10, "line": {"width": 1}}
    )
    return Scatter(
        x=rows["power_w"].round(1).cast(pl.Float32).to_numpy(),
        y=rows["slower_pct"].round(2).cast(pl.Float32).to_numpy(),
        mode="markers",
        name="" if look is None else look.name,
        showlegend=look is not None,
        marker=marker,
        text=text,
        hovertemplate="%{text}<extra></extra>",
    )
