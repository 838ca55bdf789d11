"""What figures are made of: traces as plain dictionaries.

Plotly's own classes check each part where it is made, and again where it is put into a figure, and copy all of it where
it is sent: that takes most of the time of a figure. All our figures are checked in the tests (`checked`), and not again
for each reader.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from plotly import graph_objects


class Figure(Protocol):
    """A figure, plain or of Plotly's class: what pages and reports take."""

    @property
    def data(self) -> Any:
        """Its traces."""

    @property
    def layout(self) -> Any:
        """Its axes and all else."""

    def to_plotly_json(self) -> dict[str, Any]:
        """What a browser gets; Dash calls it."""

    def to_json(self) -> str | None:
        """The same as text."""


def _trace(kind: str, trace: Mapping[str, Any] | None = None, /, **properties: Any) -> dict[str, Any]:
    """A trace; what is None is left out."""
    return {
        "type": kind,
        **{name: value for name, value in {**(trace or {}), **properties}.items() if value is not None},
    }


Bar = partial(_trace, "bar")
Box = partial(_trace, "box")
Heatmap = partial(_trace, "heatmap")
Scatter = partial(_trace, "scatter")
Scattergl = partial(_trace, "scattergl")

_KNOWN = frozenset(("i1", "i2", "i4", "u1", "u2", "u4", "f4", "f8"))
"""Types of numbers that Plotly's script takes as bytes."""

checked = False
"""Whether Plotly checks each figure: tests set it."""


def figure_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Figure:
    """A figure of traces that the names above make.

    Its data are lists and arrays of numpy, no series of Polars; `base` of a bar is a list. Raises ValueError, where it
    is checked, for what Plotly does not know.
    """
    drawn = _Plain(list(map(dict, traces)), dict(layout))
    return for_notebook(drawn) if checked else drawn


def error_bars(low: Any, high: Any, colour: str, *, width: float = 4, thickness: float = 1.5) -> dict[str, Any]:
    """Bars of intervals that reach so far below (`low`) and above (`high`) their points."""
    return {
        "type": "data", "symmetric": False, "array": high, "arrayminus": low,
        "color": colour, "thickness": thickness, "width": width,
    }  # fmt: skip


def axes_of(panel: int) -> dict[str, str]:
    """What a trace of a panel of `stacked` names; the highest panel is 1."""
    number = "" if panel == 1 else str(panel)
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def stacked(
    traces: Sequence[Mapping[str, Any]],
    upright: Sequence[Mapping[str, Any]],
    under: str,
    layout: Mapping[str, Any],
    *,
    apart: float = 0.045,
) -> Figure:
    """A figure with a panel for each axis of `upright`, the highest first, `apart` of the height between two of them.

    The axes below the panels move together; only the lowest has numbers, and the title `under`.
    """
    n = len(upright)
    height = (1 - apart * (n - 1)) / n
    axes: dict[str, Any] = {}
    for panel, own in enumerate(upright, start=1):
        names = axes_of(panel)
        low = (n - panel) * (height + apart)
        level: dict[str, Any] = {"anchor": names["yaxis"], "domain": [0, 1], "zeroline": False}
        level |= {"title": {"text": under}} if panel == n else {"matches": axes_of(n)["xaxis"], "showticklabels": False}
        axes[names["xaxis"].replace("x", "xaxis")] = level
        axes[names["yaxis"].replace("y", "yaxis")] = {"anchor": names["xaxis"], "domain": [low, low + height], **own}
    return figure_of(traces, {**layout, **axes})


def for_notebook(figure: Figure) -> graph_objects.Figure:
    """The figure as Plotly's own, which a notebook shows and a program changes, shows and writes."""
    from plotly import graph_objects

    return graph_objects.Figure(figure.data, figure.layout)


@dataclass(frozen=True)
class _Plain:
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def to_plotly_json(self) -> dict[str, Any]:
        return {"data": _sent(self.data), "layout": _sent(self.layout)}

    def to_json(self) -> str:
        from plotly.utils import PlotlyJSONEncoder

        return json.dumps(self, cls=PlotlyJSONEncoder)


def _sent(part: Any) -> Any:
    """A part of a figure with its arrays of numbers as Plotly's script takes them: base64, as short as they can be."""
    if isinstance(part, dict):
        return {name: _sent(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_sent(value) for value in part] if part and isinstance(part[0], dict) else part
    if not isinstance(part, np.ndarray) or not part.size:
        return part
    if part.dtype in (np.int64, np.uint64):
        part = _short(part)
    return typed(part) if f"{part.dtype.kind}{part.dtype.itemsize}" in _KNOWN else part  # else Dash sends a list


def typed(values: NDArray[Any]) -> dict[str, Any]:
    """An array as Plotly takes it in the fewest bytes."""
    shape = {"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {}
    bytes_of = base64.b64encode(values.tobytes()).decode("ascii")
    return {"dtype": f"{values.dtype.kind}{values.dtype.itemsize}", "bdata": bytes_of, **shape}


def _short(numbers: Any) -> Any:
    """Whole numbers in the shortest type that holds them."""
    low, high = int(numbers.min()), int(numbers.max())
    for size in (np.int8, np.int16, np.int32):
        if np.iinfo(size).min <= low and high <= np.iinfo(size).max:
            return numbers.astype(size)
    return numbers
