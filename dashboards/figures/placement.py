"""The nodes of a fleet by how fast they are in a workload, and what the advice says about each."""

from __future__ import annotations

from html import escape
from typing import Any

import polars as pl

from ...analysis.placement.advice import AVOIDED, EXCLUDED, KEPT, PREFERRED, UNMARKED
from ..style import BLUE, GREY, ORANGE, RED, layout
from .drawing import Figure, Scatter, error_bars, figure_of, single

_FEW = 64  # nodes that are named on the axis, each with its own bar
_MARKS = {
    UNMARKED: (GREY, "circle", 5, "no advice"),
    PREFERRED: (BLUE, "triangle-up", 9, "prefer"),
    AVOIDED: (ORANGE, "triangle-down", 9, "avoid"),
    KEPT: (RED, "x-open", 9, "certainly slow, not excluded"),
    EXCLUDED: (RED, "x", 9, "exclude"),
}


def nodes_by_score(rows: pl.DataFrame, *, hard: float | None = None, soft: float | None = None) -> Figure:
    """Each node by its slowest GPU, fastest first: its score, and the 90 % interval of another sitting.

    `rows`: of `analysis.placement.node_rows`, of one kind of a workload. `hard`, `soft`: the lines from which a
    node is excluded or avoided, if its interval lies above.
    """
    scored = rows.drop_nulls("score").with_row_index("rank")
    few = scored.height <= _FEW
    traces: list[Any] = []
    ends = scored.drop_nulls(["low", "high"])
    if not few and not ends.is_empty():
        x = ends["rank"].to_numpy()
        edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        traces += [
            Scatter(x=single(x), y=single(ends["low"].to_numpy()), **edge),
            Scatter(
                x=single(x), y=single(ends["high"].to_numpy()), fill="tonexty", fillcolor="rgba(138,143,152,0.22)",
                **(edge | {"name": "90 % interval", "showlegend": True}),
            ),
        ]  # fmt: skip
    for mark, (colour, symbol, size, name) in _MARKS.items():
        marked = scored.filter(pl.col("mark") == mark)
        if not marked.is_empty():
            traces.append(_points(marked, colour, symbol, size, name, bars=few))
    names = [escape(name, quote=False) for name in scored["node"]]
    axis: dict[str, Any] = {"title": {"text": "nodes, fastest first"}, "zeroline": False, "automargin": True}
    if few:
        axis |= {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False}
        axis["autotickangles"] = [0, 90]  # Plotly leaves out a slanted name that ends beyond the figure: the slowest
    lines = [level for level in (1.0, soft, hard) if level is not None]
    return figure_of(
        traces,
        layout(
            400,
            margin={"l": 64, "r": 16, "t": 48, "b": 60},
            xaxis=axis,
            yaxis={"title": {"text": "time / that of the median GPU"}, "zeroline": False, "automargin": True},
            shapes=[
                {
                    "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "layer": "below",
                    "line": {"color": GREY, "width": 1, "dash": "dot"},
                }
                for level in lines if level == 1.0 or _reaches(scored, level)
            ],
        ),
    )  # fmt: skip


def _reaches(rows: pl.DataFrame, line: float) -> bool:
    """Whether some node comes near a line: else it would only push the others together."""
    top = rows["high"].max() if rows["high"].null_count() < rows.height else rows["score"].max()
    return isinstance(top, float) and top >= line


def _points(rows: pl.DataFrame, colour: str, symbol: str, size: int, name: str, *, bars: bool) -> Any:
    score = rows["score"].to_numpy()
    whiskers: dict[str, Any] = {}
    if bars:
        above = (rows["high"] - rows["score"]).round(5).to_list()
        below = (rows["score"] - rows["low"]).round(5).to_list()
        whiskers["error_y"] = error_bars(below, above, colour, width=3)
    return Scatter(
        x=single(rows["rank"].to_numpy()),
        y=single(score),
        mode="markers",
        name=name,
        marker={"color": colour, "symbol": symbol, "size": size},
        customdata=[
            [escape(node, quote=False), escape(worst, quote=False), _interval(low, high), runs]
            for node, worst, low, high, runs in rows.select("node", "worst", "low", "high", "runs").iter_rows()
        ],
        hovertemplate="%{customdata[0]}: %{y:.3f} %{customdata[2]}<br>slowest GPU %{customdata[1]}, "
        "n = %{customdata[3]}<extra></extra>",
        **whiskers,
    )


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
