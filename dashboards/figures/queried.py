"""The answer to somebody's query as a figure: lines, bars, points or a histogram of columns that they choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY, layout
from ..words import MISSING, many
from .drawing import plain

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
    numbers = pl.selectors.float()
    finite = frame.with_columns(pl.when(numbers.is_finite()).then(numbers)).drop_nulls(
        [name for name in chosen if name != colour]
    )
    drawn = finite.head(_MOST_BARS) if kind == "bar" else finite
    groups = _groups(drawn, colour)
    form = "scattergl" if kind == "scatter" and drawn.height > _MOST_SHAPES else kind
    traces = [_trace(form, group, x, y, name=name, tone=tone) for name, tone, group in groups]
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
    sentence = _sentence(frame.height, finite.height, drawn.height, kind)
    if kind == "bar" and any(group[x].is_duplicated().any() for _, _, group in groups):
        sentence += f" Several rows have the same {x}: a bar is their sum. Use GROUP BY to have one row of each."
    return figure, sentence


def _sentence(all_rows: int, finite_rows: int, drawn_rows: int, kind: str) -> str:
    sentences = [f"n = {drawn_rows:,}."]
    if finite_rows > drawn_rows:
        sentences.append(
            f"The first {drawn_rows:,} of {finite_rows:,} rows are drawn, as more bars cannot be told apart."
        )
    if all_rows > finite_rows:
        missing = many(all_rows - finite_rows, "row")
        sentences.append(f"{missing} left out, as a value in them is missing or endless.")
    if kind == "line":
        sentences.append("Points are joined in the order of the horizontal axis.")
    return " ".join(sentences)


def _groups(frame: pl.DataFrame, colour: str | None) -> list[tuple[str, str, pl.DataFrame]]:
    """The rows by the value of the column that gives the colour: the most frequent values, in order, and the rest."""
    if colour is None:
        return [("", BLUE, frame)]
    tags = frame[colour].cast(pl.String).fill_null(MISSING).rename("tag")
    sizes = tags.to_frame().group_by("tag", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    names = sorted(sizes["tag"].head(len(_COLOURS)).to_list())
    groups = [(name, tone, frame.filter(tags == name)) for name, tone in zip(names, _COLOURS, strict=False)]
    others = frame.filter(~tags.is_in(names))
    return groups if others.is_empty() else [(_OTHERS, GREY, others), *groups]


def _values(rows: pl.DataFrame, name: str | None) -> Any:
    if name is None:
        return None
    column = rows[name]
    if column.dtype.is_numeric():
        return column.to_numpy()
    if column.dtype == pl.String:
        return [plain(text) for text in column]
    return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_list()


def _trace(kind: str, rows: pl.DataFrame, x: str, y: str | None, *, name: str, tone: str) -> dict[str, Any]:
    """The rows of one colour as a trace."""
    rows = rows.sort(x, maintain_order=True) if kind == "line" else rows
    marker: dict[str, Any] = {"color": tone}
    label = f"<extra>{plain(name)}</extra>" if name else "<extra></extra>"
    trace = {"name": plain(name), "x": _values(rows, x), "marker": marker, "hovertemplate": "%{x}<br>%{y}" + label}
    if kind == "histogram":
        marker["line"] = {"width": 0}
        trace.pop("hovertemplate")
        return trace | {"type": "histogram", "nbinsx": _BINS, "bingroup": "all", "opacity": 0.75}
    trace["y"] = _values(rows, y)
    if kind == "bar":
        marker["line"] = {"width": 0}
        return trace | {"type": "bar"}
    if kind == "line":
        marker["size"] = 5
        mode = "lines+markers" if rows.height <= 100 else "lines"
        return trace | {"type": "scatter", "mode": mode, "line": {"color": tone, "width": 1.6}}
    marker |= {"size": 6 if kind == "scatter" else 4, "opacity": 0.7}
    return trace | {"type": kind, "mode": "markers"}
