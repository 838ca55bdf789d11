"""How figures look: one colour per policy everywhere, readable for colour-blind readers and on dark pages.

Colours of text, grid and paper are left out on purpose: the page sets them, since it knows whether it is dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

# Okabe and Ito's palette, which stays distinct for colour-blind readers, in shades that show on white and on black.
BLUE, ORANGE, GREEN, PINK = "#3d8fd1", "#e69f00", "#1f9e78", "#cc79a7"
RED, SKY, GREY, OLIVE = "#d55e00", "#56b4e9", "#8a8f98", "#a8a000"

LEGEND: dict[str, Any] = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "font": {"size": 12}}
"""Above a figure. Plotly gives it half of the height at most, and then lays it over the figure."""

SLOWNESS: list[list[Any]] = [[0.0, "#2f7fd0"], [0.5, "rgba(138,143,152,0.28)"], [1.0, "#d55e00"]]
"""A colour scale from fast to slow. Its middle lets the paper through: quiet on white and on black."""

_POLICIES: dict[str, tuple[str, str]] = {  # colour and dash; variants of one idea share the colour
    "packed": (GREY, "solid"),
    "packed-sticky": (GREY, "solid"),
    "packed-nonsticky": (GREY, "dot"),
    "drain-outliers": (ORANGE, "solid"),
    "advice-exclude": (ORANGE, "dash"),
    "weights": (GREEN, "solid"),
    "advice-weights": (GREEN, "dash"),
    "random": (PINK, "solid"),
    "random-sticky": (PINK, "solid"),
    "random-nonsticky": (PINK, "dot"),
    "pm-first": (RED, "solid"),
    "pm-first-sticky": (RED, "dash"),
    "pal": (BLUE, "solid"),
    "pal-sticky": (BLUE, "dash"),
    "shockwave": (SKY, "solid"),
    "ftf": (SKY, "dash"),
    "las": (OLIVE, "solid"),
    "srtf": (OLIVE, "dash"),
    "lrtf": (OLIVE, "dot"),
    "fifo": (GREY, "dash"),
    "eaco": (RED, "dot"),
    "clocks": (PINK, "dash"),
    "burst": (GREEN, "dot"),
    "spb": (BLUE, "dot"),
    "tiresias": (SKY, "dot"),
}
_FURTHER = ((ORANGE, "dot"), (GREEN, "dashdot"), (PINK, "dashdot"), (RED, "dashdot"))


def line_of(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and dash by policy; one that has none of its own is given one in the order of the names."""
    names = list(dict.fromkeys(policies))
    others = sorted(name for name in names if name not in _POLICIES)
    further = {name: _FURTHER[place % len(_FURTHER)] for place, name in enumerate(others)}
    return {name: _POLICIES.get(name) or further[name] for name in names}


def room(times: Sequence[datetime]) -> dict[str, Any]:
    """What an axis of time needs beside `type`: Plotly shows milliseconds around a single time, so half a day there."""
    if len(set(times)) != 1:
        return {}
    return {"range": [times[0] - timedelta(hours=12), times[0] + timedelta(hours=12)]}


def nothing(why: str) -> dict[str, Any]:
    """An annotation for a figure without points."""
    return {"text": why, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}


def layout(height: int, **properties: Any) -> dict[str, Any]:
    """The layout that all figures share; `height` in pixels."""
    return {
        "height": height,
        "margin": {"l": 64, "r": 16, "t": 60, "b": 52},
        "hovermode": "closest",
        "legend": LEGEND,
        "template": {},
        **properties,
    }
