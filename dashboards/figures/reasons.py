"""Why the clock of one GPU had its value over time: a row a reason, darker where it held the clock for longer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np

from ...analysis.one_gpu.reasons import Held, Reasons
from ..style import layout
from ..table import many
from .drawing import Figure, Heatmap, figure_of
from .looks import plain, single

_ROW, _AROUND = 34, 122
_COLOURS = [[0.0, "rgba(138,143,152,0.16)"], [0.02, "#f2d9a8"], [0.3, "#e69f00"], [1.0, "#a03c00"]]
_GAP = 3  # steps that a gap is wide
_TICKS = 6
_MINUTES = timedelta(minutes=12)  # times of a shorter figure have seconds
_NAMED_GAPS = 8
_NAMES = {
    "applications_clocks": "clock set by hand", "power_cap": "power limit", "hw_slowdown": "hardware slowdown",
    "sync_boost": "slower GPUs of its group", "thermal_software": "heat, by the driver",
    "thermal_hardware": "heat, by the hardware", "power_brake": "external power brake",
    "display_clocks": "clock of a display", "board_limit": "limit of the board", "reliability": "voltage",
}  # fmt: skip


def words(held: Held) -> str:
    """The name of a reason, for people."""
    return _NAMES.get(held.reason.name, held.reason.name.replace("_", " "))


def caption(found: Reasons) -> str:
    """How the shares are known, and what is left out, in sentences."""
    counted = [words(one) for one in found.held if one.counted]
    others = [words(one) for one in found.held if not one.counted]
    said = []
    if counted:
        said.append(f"Counted by the driver: {', '.join(counted)}.")
    if others:
        most = ", at most, as a minute of pruned readings counts whole" if found.minutes else ""
        said.append(f"From the readings{most}: {', '.join(others)}.")
    if found.cut:
        said.append("Earlier telemetry is left out, as it is too much at once.")
    return " ".join([*said, "Blank: nothing was read."])


def over_time(found: Reasons) -> Figure:
    """The share of each step in which each reason held the clock. Time in which nothing was read is left blank, and
    shown shorter than it was."""
    breaks = np.flatnonzero(np.diff(found.stretch))
    x = np.arange(len(found.stretch)) + _GAP * found.stretch
    wide = int(x[-1]) + 1
    shares = np.full((len(found.held), wide), np.nan, dtype=np.float32)
    text = [[""] * wide for _ in found.held]
    for row, one in enumerate(found.held):
        shares[row, x] = single(100 * one.share)
        for step, at in enumerate(x.tolist()):
            if np.isfinite(one.share[step]):
                text[row][at] = _says(found, one, step)
    shades: list[Any] = [
        {
            "type": "line", "yref": "paper", "x0": float(x[at]) + 0.5 + _GAP / 2, "x1": float(x[at]) + 0.5 + _GAP / 2,
            "y0": 0.5, "y1": 1, "line": {"width": 1, "dash": "dot", "color": "rgba(138,143,152,0.8)"},
        }
        for at in breaks.tolist()
    ]  # fmt: skip
    named = [
        {
            "text": _lasting((found.began[at + 1] - found.ended[at]).total_seconds()),
            "x": float(x[at]) + 0.5 + _GAP / 2,
            "y": 0, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": {"size": 10}, "textangle": -90,
        }
        for at in breaks[:_NAMED_GAPS].tolist()
        if len(breaks) <= _NAMED_GAPS
    ]  # fmt: skip
    at, names = _ticks(found, x)
    return figure_of(
        [
            Heatmap(
                z=shares, text=text, hovertemplate="%{text}<extra></extra>", hoverongaps=False, zmin=0, zmax=100,
                colorscale=_COLOURS, ygap=6,
                colorbar={
                    "title": {"text": "of the time, %", "side": "top", "font": {"size": 12}}, "orientation": "h",
                    "tickvals": [0, 25, 50, 75, 100], "thickness": 10, "len": 0.5, "x": 0, "xanchor": "left", "y": 1,
                    "yanchor": "bottom", "ypad": 14, "outlinewidth": 0,
                },
            )
        ],
        layout(
            _AROUND + _ROW * len(found.held),
            margin={"l": 8, "r": 12, "t": 60, "b": 48},
            shapes=shades,
            annotations=named,
            xaxis={
                "tickvals": at, "ticktext": names, "range": [-0.5, wide - 0.5], "showgrid": False, "zeroline": False,
                "tickangle": 0, "title": {"text": "UTC"},
            },
            yaxis={
                "tickvals": list(range(len(found.held))),
                "ticktext": [f"{words(one)}, {_pct(one.whole)}" for one in found.held],
                "range": [len(found.held) - 0.5, -0.5], "showgrid": False, "zeroline": False, "automargin": True,
                "ticklabelstandoff": 6,
            },
        ),
    )  # fmt: skip


def _says(found: Reasons, one: Held, step: int) -> str:
    how = "counted by the driver" if one.counted else f"in {many(int(found.n[step]), 'reading')}"
    most = "at most " if not one.counted and found.minutes else ""
    return (
        f"{_when(found.began[step])} to {_when(found.ended[step])} UTC<br>{plain(words(one))}: {most}"
        f"{_pct(float(one.share[step]))} of the time, {how}<br>{_pct(float(found.covered[step]))} of the time was read"
    )


def _lasting(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours / 24:.0f} d" if hours >= 48 else f"{hours:.0f} h" if hours >= 2 else f"{60 * hours:.0f} min"


def _pct(share: float | None) -> str:
    if share is None or not np.isfinite(share):
        return "n/a"
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.0095 else f"{100 * share:.1g} %"


def _ticks(found: Reasons, x: Any) -> tuple[list[float], list[str]]:
    """Where times stand: at the beginning of stretches, else evenly."""
    starts = [0, *(np.flatnonzero(np.diff(found.stretch)) + 1).tolist()]
    if len(starts) == 1:
        starts = np.unique(np.linspace(0, len(x) - 1, _TICKS).round().astype(int)).tolist()
    least = len(x) / _TICKS
    kept: list[int] = []
    for one in starts:
        if not kept or x[one] - x[kept[-1]] >= least:
            kept.append(one)
    lasted = found.ended[-1] - found.began[0]
    form = "%Y-%m-%d" if lasted.days > 2 else "%m-%d %H:%M" if lasted > _MINUTES else "%H:%M:%S"
    return [float(x[one]) for one in kept], [f"{found.began[one]:{form}}" for one in kept]


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
