"""One GPU over a campaign, beside the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.fleet.timelines import Timelines
from ..style import GREY, RED, layout
from .looks import plain, single
from .panels import axes_of, stacked

if TYPE_CHECKING:
    from .drawing import Figure

_ROOM = 0.12  # above and below the values, of their range
_LETTERS = 24  # of a name
_LABEL_SHARE = 0.019  # of the width, between the names of two probes
_PANELS = (("power_w", "power, W"), ("sm_clock_mhz", "SM clock, MHz"), ("temperature_c", "temp., °C"))


def over_time(lines: Timelines, gpu: str, name: str) -> Figure:
    """What a GPU did over the campaign beside the fleet's median: power, clock, temperature; its probes as bands."""
    time = single(lines.time_s)
    name = plain(name, _LETTERS)
    alone = lines.measured == 1  # it is its own median
    traces: list[dict[str, Any]] = []
    for row, (metric, title) in enumerate(_PANELS, start=1):
        unit = title.rpartition(", ")[2]
        median = ("all GPUs in the same probe (median)", lines.fleet[gpu][metric], GREY, 1.5)
        for who, line, colour, width in (*([] if alone else [median]), (name, lines.gpus[gpu][metric], RED, 2)):
            traces.append(
                {
                    **axes_of(row),
                    "type": "scatter",
                    "x": time,
                    "y": single(np.round(line, 1)),
                    "name": who,
                    "legendgroup": who,
                    "showlegend": row == 1,
                    "mode": "lines",
                    "line": {"color": colour, "width": width},
                    "hovertemplate": f"{who}: %{{y:,.0f}} {unit}<extra></extra>",
                }
            )
    running = np.full(len(time), "", dtype=object)
    bands, words = [], []
    room, named_s = _LABEL_SHARE * float(lines.time_s[-1]), -np.inf
    for window in lines.windows[gpu]:
        running[(lines.time_s >= window.began_s) & (lines.time_s <= window.ended_s)] = (
            f"<br>measuring {plain(window.probe)}"
        )
        middle_s = (window.began_s + window.ended_s) / 2
        bands.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": window.began_s,
                "x1": window.ended_s,
                "y0": 0,
                "y1": 1,
                "fillcolor": GREY,
                "opacity": 0.10,
                "line": {"width": 0},
                "layer": "below",
            }
        )
        if middle_s - named_s < room:
            continue
        named_s = middle_s
        words.append(
            {
                "text": plain(window.probe, _LETTERS),
                "x": middle_s,
                "y": 1.0,
                "xref": "x",
                "yref": "paper",
                "showarrow": False,
                "textangle": -35,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"size": 11},
                "name": "wide",
            }
        )
    traces[0 if alone else 1] |= {
        "text": list(running), "hovertemplate": f"{name}: %{{y:,.0f}} W%{{text}}<extra></extra>",
    }  # fmt: skip
    return stacked(
        traces,
        [{"title": {"text": title}, "range": _range(lines, gpu, metric)} for metric, title in _PANELS],
        {"zeroline": False},
        layout(
            590,
            margin={"l": 64, "r": 40, "t": 120, "b": 82},
            hovermode="x",
            legend={"orientation": "h", "yanchor": "top", "y": -0.15, "x": 0},
            shapes=bands,
            annotations=words,
        ),
        apart=0.045,
        under="time since its first probe began, s",
    )


def _range(lines: Timelines, gpu: str, metric: str) -> list[float] | None:
    """Room for all values, so that no line lies on an edge; power, of which 0 means something, begins there."""
    values = np.concatenate([lines.gpus[gpu][metric], lines.fleet[gpu][metric]])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    room = _ROOM * max(high - low, 1.0)
    return [min(0.0, low) if metric == "power_w" else low - room, high + room]
