"""How the GPUs of a fleet differ: in all probes, and in one of them closely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...analysis.fleet.side_by_side import Against
from ..style import BLUE, GREY, layout
from ..table import minus, signed
from .bent import bent, bent_axis
from .drawing import Bar, Box, Figure, Scatter, figure_of
from .looks import Look, plain, single, thinned

POINTS = 600
"""GPUs drawn of a probe; of more, evenly many over their order, and all that stand out."""
_LETTERS = 24  # of the name of a probe
_BINS = 48
_ROOM = 0.06  # beside a distribution, for the marks of those beyond it
_ROWS, _ROW = 8, 0.11  # names of those beyond, above the highest bar, where a phone has room for them
_REACH = 3.0  # how far a close view of a probe goes, in ranges of the middle half of its GPUs


def overview(probes: Sequence[Against], drawn: Mapping[str, Look]) -> Figure:
    """Every probe's GPUs in a row: how much slower or faster than the median, on a scale that is linear near 0 only."""
    random = np.random.default_rng(1)
    shown = list(reversed(probes))
    traces: list[Any] = []
    across, along, text = [], [], []
    for row, one in enumerate(shown):
        places = np.array([place for place, gpu in enumerate(one.gpus) if gpu not in drawn], dtype=np.intp)
        places = places[thinned(len(places), POINTS)]
        across.append(bent(one.excess_pct[places]))
        along.append(row + random.uniform(-0.26, 0.26, len(places)))
        text += [
            f"{plain(one.labels[place])}<br>{plain(one.probe)}: {signed(one.excess_pct[place])} %" for place in places
        ]
        quartiles = np.quantile(one.excess_pct, (0.05, 0.25, 0.5, 0.75, 0.95))
        low, first, middle, third, high = ([float(value)] for value in bent(quartiles))
        traces.append(
            Box(
                y=[row],
                lowerfence=low,
                q1=first,
                median=middle,
                q3=third,
                upperfence=high,
                orientation="h",
                width=0.66,
                line={"color": GREY, "width": 1.25},
                fillcolor="rgba(138,143,152,0.10)",
                showlegend=False,
                hoverinfo="skip",
            )
        )
    traces.append(
        Scatter(
            x=single(np.concatenate(across)),
            y=single(np.concatenate(along)),
            mode="markers",
            showlegend=False,
            marker={"color": BLUE, "size": 4.5, "opacity": 0.75},
            text=text,
            hovertemplate="%{text}<extra></extra>",
        )
    )
    marked: dict[Look, list[tuple[float, int, str]]] = {look: [] for look in drawn.values()}
    for row, one in enumerate(shown):
        for gpu, name, excess in zip(one.gpus, one.labels, one.excess_pct, strict=True):
            if (look := drawn.get(gpu)) is not None:
                says = f"{plain(name)}<br>{plain(one.probe)}: {signed(excess, 1)} %<br>{look.name}"
                marked[look].append((excess, row, says))
    for look, points in marked.items():
        traces.append(
            Scatter(
                x=single(bent(np.array([point[0] for point in points]))),
                y=[point[1] for point in points],
                mode="markers",
                name=look.name,
                marker={"color": look.colour, "symbol": look.symbol, "size": 10, "line": {"width": 1}},
                text=[point[2] for point in points],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    return figure_of(
        traces,
        layout(
            110 + 40 * len(shown),
            margin={"l": 100, "r": 16, "t": 50, "b": 52},
            boxmode="overlay",
            xaxis=_axis(shown),
            yaxis={
                "tickvals": list(range(len(shown))),
                "ticktext": [plain(one.probe, _LETTERS) for one in shown],
                "automargin": True,
                "range": [-0.6, len(shown) - 0.4],
                "zeroline": False,
                "showgrid": False,
            },
        ),
    )


def closely(one: Against, drawn: Mapping[str, Look]) -> Figure:
    """One probe's GPUs as a histogram; those that stand out beyond its edges are drawn at the edge, with their size."""
    excess = one.excess_pct
    first, third = (float(q) for q in np.quantile(excess, (0.25, 0.75)))
    reach = max(_REACH * (third - first), 0.1)
    inside = excess[np.abs(excess) <= reach]
    wider = 0.02 * reach
    left, right = float(inside[0]) - wider, float(inside[-1]) + wider
    counts, edges = np.histogram(inside, bins=min(_BINS, max(8, len(inside) // 4)), range=(left, right))
    wide = float(edges[1] - edges[0])
    traces: list[Any] = [
        Bar(
            x=single(edges[:-1] + wide / 2),
            y=counts.astype(np.int32),
            width=0.94 * wide,
            marker={"color": BLUE, "opacity": 0.75},
            showlegend=False,
            hovertext=[
                f"{signed(start)} to {signed(start + wide)} %: {many:,} GPU{'' if many == 1 else 's'}"
                for start, many in zip(edges, counts, strict=False)
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    ]
    top = max(1.0, float(counts.max()))
    beyond = {False: 0, True: 0}  # by whether they are on the right
    room = [_ROOM if any(far) else 0.03 for far in (excess < left, excess > right)]
    edge_left, edge_right = left - room[0] * (right - left), right + room[1] * (right - left)
    for gpu, label, value in zip(one.gpus, one.labels, excess, strict=True):
        look = drawn.get(gpu)
        outside = not left <= value <= right
        if look is None and not outside:
            continue
        name = plain(label)
        colour, symbol = (GREY, "circle") if look is None else (look.colour, look.symbol)
        where = min(max(float(value), edge_left), edge_right)
        height = top * (1.1 + _ROW * (beyond[value > 0] % _ROWS)) if outside else 0.05 * top
        beyond[value > 0] += outside
        traces.append(
            Scatter(
                x=[where],
                y=[height],
                mode="markers+text" if outside and beyond[value > 0] <= _ROWS else "markers",
                text=[f"{name}  {value:+.3g} %" if value > 0 else f"{minus(f'{value:+.3g}')} %  {name}"],
                textposition="middle left" if value > 0 else "middle right",
                textfont={"size": 11},
                marker={"color": colour, "symbol": symbol, "size": 10, "line": {"width": 1}},
                showlegend=False,
                hovertemplate=f"{name}<br>{signed(value)} %{'' if look is None else f'<br>{look.name}'}<extra></extra>",
            )
        )
    return figure_of(
        traces,
        layout(
            340,
            margin={"l": 64, "r": 16, "t": 20, "b": 52},
            bargap=0,
            xaxis={
                "title": {"text": f"slower than the median of {one.typical_ms:,.4g} ms, %"},
                "range": [edge_left - 0.02 * (right - left), edge_right + 0.02 * (right - left)],
                "zeroline": True,
            },
            yaxis={
                "title": {"text": "GPUs"},
                "range": [0, top * (1.06 + _ROW * min(max(beyond.values()), _ROWS))],
            },
        ),
    )


def _axis(probes: Sequence[Against]) -> dict[str, Any]:
    low, high = min(float(one.excess_pct[0]) for one in probes), max(float(one.excess_pct[-1]) for one in probes)
    return bent_axis(low, high, "slower than the median GPU, %")
