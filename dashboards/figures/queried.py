"""The answer to somebody's query as a figure: lines, bars, points or a histogram of columns that they choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY, layout
from ..table import MISSING, many
from .looks import plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

KINDS = ("line", "bar", "scatter", "histogram")
_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, OLIVE)
_OTHERS = "all others"
_MOST_BARS = 400
_MOST_SHAPES = 2_000  # of more points, a browser draws one picture
_BINS = 60


def queried(
    rows: pl.DataFrame, kind: str, *, x: str, y: str | None = None, colour: str | None = None
) -> tuple[Figure, str]:
    """The figure, and a sentence that says what of the rows is in it.

    `rows`: columns of numbers, times and texts. `kind`: one of `KINDS`; a histogram needs no `y`. `colour`: a column
    whose values are told apart: seven of them, and all others in grey. Rows in which a value is missing are left out.
    """
    from plotly.graph_objects import Figure  # it checks what it is given: these data may be anything

    chosen = [name for name in (x, None if kind == "histogram" else y, colour) if name is not None]
    frame = rows.select(list(dict.fromkeys(chosen)))
    finite = pl.selectors.float()
    known = frame.with_columns(pl.when(finite.is_finite()).then(finite)).drop_nulls(
        [name for name in chosen if name != colour]
    )
    shown = known.head(_MOST_BARS) if kind == "bar" else known
    groups = _groups(shown, colour)
    draw = {"line": _line, "bar": _bar, "scatter": _points, "histogram": _histogram}[kind]
    if kind == "scatter" and shown.height > _MOST_SHAPES:
        draw = _many_points
    traces = [draw(own, x, y, name, tone) for name, tone, own in groups]
    figure = Figure(
        traces,
        layout(
            460,
            margin={"l": 72, "r": 16, "t": 44 if colour else 20, "b": 60},
            showlegend=colour is not None,
            barmode="overlay" if kind == "histogram" else "group",
            xaxis={
                "title": {"text": plain(x)},
                "zeroline": False,
                "automargin": True,
                "type": "category" if frame[x].dtype == pl.String else None,  # texts such as 007 are no numbers
            },
            yaxis={
                "title": {"text": "rows" if kind == "histogram" else plain(y or "")},
                "zeroline": kind in ("bar", "histogram"),
                "automargin": True,
            },
        ),
    )
    said = _said(frame.height, known.height, shown.height, kind)
    if kind == "bar" and any(own[x].is_duplicated().any() for _, _, own in groups):
        said += f" Several rows have the same {x}: a bar is their sum. Use GROUP BY to have one row of each."
    return figure, said


def _said(all_rows: int, known: int, shown: int, kind: str) -> str:
    said = [f"n = {shown:,}."]
    if known > shown:
        said.append(f"The first {shown:,} of {known:,} rows are drawn, as more bars cannot be told apart.")
    if all_rows > known:
        said.append(f"{many(all_rows - known, 'row')} left out, as a value in them is missing or endless.")
    if kind == "line":
        said.append("Points are joined in the order of the horizontal axis.")
    return " ".join(said)


def _groups(frame: pl.DataFrame, colour: str | None) -> list[tuple[str, str, pl.DataFrame]]:
    """The rows by the value of the column that gives the colour: the most frequent values, in order, and the rest."""
    if colour is None:
        return [("", BLUE, frame)]
    tags = frame[colour].cast(pl.String).fill_null(MISSING).rename("tag")
    sizes = tags.to_frame().group_by("tag", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    own = sorted(sizes["tag"].head(len(_COLOURS)).to_list())
    groups = [(name, tone, frame.filter(tags == name)) for name, tone in zip(own, _COLOURS, strict=False)]
    rest = frame.filter(~tags.is_in(own))
    return groups if rest.is_empty() else [(_OTHERS, GREY, rest), *groups]


def _values(rows: pl.DataFrame, name: str | None) -> Any:
    if name is None:
        return None
    column = rows[name]
    if column.dtype.is_numeric():
        return column.to_numpy()
    if column.dtype == pl.String:
        return [plain(one) for one in column]
    return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_list()


def _common(name: str) -> dict[str, Any]:
    return {
        "name": plain(name),
        "hovertemplate": "%{x}<br>%{y}" + (f"<extra>{plain(name)}</extra>" if name else "<extra></extra>"),
    }


def _line(rows: pl.DataFrame, x: str, y: str | None, name: str, tone: str) -> Any:
    from plotly.graph_objects import Scatter

    own = rows.sort(x, maintain_order=True)
    return Scatter(
        x=_values(own, x), y=_values(own, y), mode="lines+markers" if own.height <= 100 else "lines",
        line={"color": tone, "width": 1.6}, marker={"color": tone, "size": 5}, **_common(name),
    )  # fmt: skip


def _points(rows: pl.DataFrame, x: str, y: str | None, name: str, tone: str) -> Any:
    from plotly.graph_objects import Scatter

    marker = {"color": tone, "size": 6, "opacity": 0.7}
    return Scatter(x=_values(rows, x), y=_values(rows, y), mode="markers", marker=marker, **_common(name))


def _many_points(rows: pl.DataFrame, x: str, y: str | None, name: str, tone: str) -> Any:
    from plotly.graph_objects import Scattergl

    marker = {"color": tone, "size": 4, "opacity": 0.7}
    return Scattergl(x=_values(rows, x), y=_values(rows, y), mode="markers", marker=marker, **_common(name))


def _bar(rows: pl.DataFrame, x: str, y: str | None, name: str, tone: str) -> Any:
    from plotly.graph_objects import Bar

    return Bar(x=_values(rows, x), y=_values(rows, y), marker={"color": tone, "line": {"width": 0}}, **_common(name))


def _histogram(rows: pl.DataFrame, x: str, _: str | None, name: str, tone: str) -> Any:
    from plotly.graph_objects import Histogram

    return Histogram(
        x=_values(rows, x),
        nbinsx=_BINS,
        bingroup="all",
        opacity=0.75,
        marker={"color": tone, "line": {"width": 0}},
        **_common(name),
    )
