"""What an effect is made of: its parts in per cent of the time, one after another, up to the whole."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ...analysis.verdicts.verdict import Verdict
from ..style import BLUE, GREY, ORANGE, layout
from ..table import minus
from ..words import interval, percent
from .drawing import Bar, Figure, Scatter, figure_of
from .looks import plain

_ROW, _AROUND = 42, 84
_WHOLE = "rgba(138,143,152,0.4)"


def waterfall(one: Verdict) -> Figure:
    """The causes of a verdict, each with its 95 % interval, the largest first; they add up to the effect.

    Raises ValueError for a verdict without causes.
    """
    if not one.causes or one.effect_pct is None:
        raise ValueError(f"the verdict about {one.name} has no causes")
    parts = sorted(one.causes, key=lambda part: -abs(part.pct))
    ends = list(accumulate(part.pct for part in parts))
    starts = [0.0, *ends[:-1]]
    names = [*(plain(part.what, 34) for part in parts), "in all"]
    says = [f"{percent(part.pct)} % {interval(part.low_pct, part.high_pct)}" for part in parts]
    says.append(f"{percent(one.effect_pct)} % {interval(one.low_pct, one.high_pct)}")
    says = [minus(text) for text in says]
    rows = [(start, part.pct, part.low_pct, part.high_pct) for start, part in zip(starts, parts, strict=True)]
    rows.append((0.0, one.effect_pct, one.low_pct, one.high_pct))
    place = list(range(len(rows)))[::-1]
    tips = [start + size for start, size, _, _ in rows]
    up = [0.0 if high is None else max(high - size, 0.0) for _, size, _, high in rows]
    down = [0.0 if low is None else max(size - low, 0.0) for _, size, low, _ in rows]
    labels = [f"{name}<br>{text}" for name, text in zip(names, says, strict=True)]
    hovers = [f"{name}: {text}" for name, text in zip(names, says, strict=True)]
    colours = [*(ORANGE if part.pct >= 0 else BLUE for part in parts), _WHOLE]
    edges = [
        0.0,
        *tips,
        *(tip + more for tip, more in zip(tips, up, strict=True)),
        *(tip - less for tip, less in zip(tips, down, strict=True)),
    ]
    low, high = min(edges), max(edges)
    traces: list[Any] = [
        Bar(
            y=place, x=[size for _, size, _, _ in rows], base=[start for start, *_ in rows], orientation="h",
            width=0.56, marker={"color": colours}, hovertext=hovers,
            hovertemplate="%{hovertext}<extra></extra>", showlegend=False,
        ),
        Scatter(
            x=tips, y=place, mode="markers", marker={"size": 1, "color": GREY}, hoverinfo="skip", showlegend=False,
            error_x={
                "type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.6, "width": 5,
                "color": GREY,
            },
        ),
    ]  # fmt: skip
    steps = [
        {
            "type": "line", "x0": tip, "x1": tip, "y0": at - 0.28, "y1": at - 0.72,
            "line": {"width": 1, "color": GREY}, "layer": "below",
        }
        for tip, at in zip(tips[:-1], place, strict=False)
    ]  # fmt: skip
    return figure_of(
        traces,
        layout(
            _AROUND + _ROW * len(rows),
            margin={"l": 8, "r": 8, "t": 12, "b": 52},
            shapes=steps,
            xaxis={
                "title": {"text": "of the time of its peers, %"},
                "range": [low - 0.04 * (high - low), high + 0.04 * (high - low)],
                "zeroline": True,
            },
            yaxis={
                "tickvals": place, "ticktext": labels, "range": [-0.6, len(rows) - 0.4], "showgrid": False,
                "zeroline": False, "automargin": True, "ticklabelstandoff": 6,
            },
        ),
    )  # fmt: skip
