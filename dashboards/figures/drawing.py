"""What figures are made of: traces as plain dictionaries.

Plotly's own classes check each part where it is made, and again where it is put into a figure: that takes most of the
time of a figure. All our figures are checked in the tests (`checked`), and not again for each reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def _trace(kind: str, given: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    """A trace; what is None is left out."""
    return {"type": kind, **{name: value for name, value in {**(given or {}), **more}.items() if value is not None}}


Bar = partial(_trace, "bar")
Box = partial(_trace, "box")
Heatmap = partial(_trace, "heatmap")
Scatter = partial(_trace, "scatter")
Scattergl = partial(_trace, "scattergl")

checked = False
"""Whether Plotly checks each figure: tests set it."""


def figure_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Figure:
    """A figure of traces that the names above make.

    Its data are lists and arrays of numpy, no series of Polars; `base` of a bar is a list. Raises ValueError, where it
    is checked, for what Plotly does not know.
    """
    from plotly.graph_objects import Figure

    return Figure([dict(one) for one in traces], dict(layout), _validate=checked)  # which changes what it is given
