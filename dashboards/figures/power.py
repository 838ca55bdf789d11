"""Performance against power: what GPUs draw, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..style import layout, nothing
from ..table import signed
from .brushed import chosen, points
from .drawing import Figure, Scatter, Scattergl, figure_of
from .looks import FEW, MANY, Look, mark, plain, thinned
from .scale import Scale
from .strips import DRAWN_AS_IMAGE

POINTS = 600
"""GPUs drawn; of more, evenly many over their order, and all that have findings."""


@dataclass(frozen=True)
class Powered:
    """Where each GPU of a frame is drawn."""

    scale: Scale
    x: NDArray[np.float32]
    """(GPUs,) W; NaN where power or time is not known."""
    y: NDArray[np.float32]

    @property
    def reach(self) -> tuple[float, float]:
        """Where the axis of power begins and ends."""
        known = self.x[np.isfinite(self.x)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        room = 0.05 * max(high - low, 1.0)
        return low - room, high + room

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Powered:
        """`rows`: with power_w and slower_pct."""
        both = pl.col("power_w").is_not_null() & pl.col("slower_pct").is_not_null()
        x, y = (
            rows.select(pl.when(both).then(pl.col(name).cast(pl.Float64)))[name].fill_null(float("nan")).to_numpy()
            for name in ("power_w", "slower_pct")
        )
        scale = Scale.of(y)
        return cls(scale, x.round(1).astype(np.float32), scale.bend(y.round(2)).astype(np.float32))


def against_power(
    at: Powered,
    names: Sequence[str],
    drawn: Mapping[int, Look],
    picked: Sequence[int] = (),
    *,
    live: bool = False,
) -> Figure:
    """One probe's GPUs, each a point: its power, and how much slower it is than the median.

    `names`: of the GPUs of the frame; `drawn`, `picked`: rows with a finding, and chosen ones. `live`: for a page that
    says itself what the pointer is on, with every GPU in trace 0; otherwise the points do, and of a large fleet
    `POINTS` are drawn. GPUs without a power are not drawn.
    """
    known = np.flatnonzero(np.isfinite(at.y))
    shown = np.arange(len(at.y))
    if not live:
        calm = known[~np.isin(known, list(drawn))]
        calm = calm[np.argsort(at.y[calm], kind="stable")]
        shown = calm[thinned(len(calm), POINTS)]
    slower = at.scale.values(at.y)

    def said(row: int, look: str = "") -> str:
        return f"{plain(names[row])}<br>{at.x[row]:,.0f} W, {signed(slower[row])} %{look and f'<br>{look}'}"

    large = len(shown) > DRAWN_AS_IMAGE
    kind: Any = Scattergl if large else Scatter
    traces: list[Any] = [
        kind(
            x=at.x[shown],
            y=at.scale.sent(at.y[shown]),
            mode="markers",
            showlegend=False,
            marker=points(None, MANY if large else FEW),
            text=None if live else [said(int(row)) for row in shown],
            hoverinfo="none" if live else "text",
        )
    ]
    if live:
        traces.append(ring(at, names, picked))
    for look in dict.fromkeys(drawn.values()):
        own = [row for row, its in drawn.items() if its == look and np.isfinite(at.y[row])]
        if own:
            traces.append(
                Scatter(
                    x=at.x[own].tolist(),
                    y=at.y[own].tolist(),
                    mode="markers",
                    name=look.name,
                    marker=mark(look),
                    customdata=own,
                    text=None if live else [said(row, look.name) for row in own],
                    hoverinfo="none" if live else "text",
                )
            )
    return figure_of(
        traces,
        layout(
            420,
            margin={"l": 64, "r": 16, "t": 44, "b": 52},
            showlegend=bool(drawn) or bool(picked),
            xaxis={
                "title": {"text": "power, W"},
                "zeroline": False,
                "range": list(at.reach),
                "visible": len(known) > 0,
            },
            yaxis=at.scale.axis(slower, "slower than the median GPU, %") | {"visible": len(known) > 0},
            annotations=[] if len(known) else [nothing("n/a: no run has both a time and a power")],
        ),
    )


def ring(at: Powered, names: Sequence[str], picked: Sequence[int]) -> Any:
    """Around the chosen GPUs."""
    there = [row for row in picked if np.isfinite(at.y[row])]
    return chosen(at.x[there].tolist(), at.y[there].tolist(), [names[row] for row in there])
