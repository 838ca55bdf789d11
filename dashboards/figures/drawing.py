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

Bar = partial(dict[str, Any], type="bar")
Box = partial(dict[str, Any], type="box")
Heatmap = partial(dict[str, Any], type="heatmap")
Scatter = partial(dict[str, Any], type="scatter")
Scattergl = partial(dict[str, Any], type="scattergl")

checked = False
"""Whether Plotly checks each figure: tests set it."""


def figure_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Figure:
    """A figure of traces that the names above make. What is None in a trace is left out.

    Its data are lists and arrays of numpy, no series of Polars; `base` of a bar is a list. Raises ValueError, where it
    is checked, for what Plotly does not know.
    """
    from plotly.graph_objects import Figure

    told = [{name: value for name, value in one.items() if value is not None} for one in traces]
    return Figure(told, dict(layout), _validate=checked)
