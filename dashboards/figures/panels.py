"""Panels below each other over one axis: a figure of plain dictionaries, which Plotly checks once, at the end.

A figure that is made a part at a time is checked at each part, which takes several times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .drawing import Figure, figure_of


def axes_of(panel: int) -> dict[str, str]:
    """What a trace of a panel names; the highest panel is 1."""
    number = "" if panel == 1 else str(panel)
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def stacked(
    traces: Sequence[Mapping[str, Any]],
    upright: Sequence[Mapping[str, Any]],
    level: Mapping[str, Any],
    layout: Mapping[str, Any],
    *,
    apart: float,
    under: str | None = None,
) -> Figure:
    """A figure with a panel for each axis of `upright`, the highest first, `apart` of the height between two of them.

    `level`: what all axes below the panels have in common; they move together, and only the lowest has numbers.
    `under`: its title.
    """
    n = len(upright)
    height = (1 - apart * (n - 1)) / n
    axes: dict[str, Any] = {}
    for panel, own in enumerate(upright, start=1):
        names = axes_of(panel)
        low = (n - panel) * (height + apart)
        lowest = panel == n
        shared: dict[str, Any] = {"matches": axes_of(n)["xaxis"], "showticklabels": False}
        if lowest:
            shared = {"title": {"text": under}} if under else {}
        axes[names["xaxis"].replace("x", "xaxis")] = {"anchor": names["yaxis"], "domain": [0, 1], **level, **shared}
        axes[names["yaxis"].replace("y", "yaxis")] = {"anchor": names["xaxis"], "domain": [low, low + height], **own}
    return figure_of(list(traces), {**layout, **axes})
