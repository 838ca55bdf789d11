"""What a figure shows of a brush and of the GPUs that are chosen, the same in every figure that can be brushed.

Such a figure has all GPUs in its trace 0, in the order of the frame, and the chosen ones in a trace of their own. A
change of the brush then sends a few numbers, and not the figure.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..style import BLUE, GREY, PINK
from .drawing import Scatter
from .looks import plain

NAMED = 12
"""Chosen GPUs whose names are written beside them."""
_FAINT, _FULL = "rgba(61,143,209,0.07)", "rgba(61,143,209,0.8)"


def points(held: NDArray[np.bool_] | None, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The marker of all GPUs: those that a brush holds, in full colour; all as `usual` where there is no brush."""
    if held is None:
        return {"color": BLUE, **usual}
    colours = {"colorscale": [[0, _FAINT], [1, _FULL]], "cmin": 0, "cmax": 1, "showscale": False}
    return {**usual, "opacity": 1, "color": typed(held.astype(np.uint8)), **colours}


def typed(values: NDArray[Any]) -> dict[str, Any]:
    """An array as Plotly takes it in the fewest bytes, where the figure is not made by Plotly's own library."""
    kind = f"{values.dtype.kind}{values.dtype.itemsize}"
    shape = {"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {}
    return {"dtype": kind, "bdata": b64encode(values.tobytes()).decode(), **shape}


def chosen(x: Sequence[float], y: Sequence[float], names: Sequence[str]) -> Any:
    """Rings around the chosen GPUs, with their names where there are few."""
    few = len(names) <= NAMED
    return Scatter(
        x=list(x),
        y=list(y),
        mode="markers+text" if few else "markers",
        text=[plain(name) for name in names] if few else None,
        textposition="top center",
        textfont={"size": 11},
        marker={"symbol": "circle-open", "color": PINK, "size": 15, "line": {"width": 2.5}},
        name="chosen",
        showlegend=bool(names),
        hoverinfo="skip",
        cliponaxis=False,
    )


def box(x0: float, x1: float, y0: float, y1: float) -> dict[str, Any]:
    """The edge of a brush."""
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line, "fillcolor": "rgba(138,143,152,0.08)"}
