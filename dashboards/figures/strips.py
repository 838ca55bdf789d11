"""Every GPU in one figure, in strips side by side: a strip is a cabinet or a node, the slowest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ...analysis.fleet.side_by_side import by_place
from ..style import GREY, layout, nothing
from .brushed import chosen, points
from .drawing import Box, Figure, Scatter, Scattergl, figure_of
from .looks import FEW, MANY, Look, ending, mark, plain
from .scale import Scale
from .words import Words

MOST = 300
"""Strips that are drawn; of more, half are the slowest and half the fastest."""
DRAWN_AS_IMAGE = 3_000
"""Points from which a figure is drawn by the graphics card."""
UNIT = 100
"""From a strip to the next, on the axis: whole numbers of 16 bits are half as large as others."""
_ROUNDED = 1e-4
_NAME = 14  # letters of a place
_WIDE = 70  # of a strip
_LABELS = 44  # that fit below the strips


@dataclass(frozen=True)
class Strips:
    """Where each GPU of a frame is drawn."""

    words: Words
    places: tuple[str, ...]
    """From left to right."""
    left_out: int
    """Places that are not drawn."""
    scale: Scale
    x: np.ndarray[Any, np.dtype[np.int16]]
    """(GPUs,)"""
    y: np.ndarray[Any, np.dtype[np.float32]]
    """(GPUs,) NaN for a GPU that is not drawn."""
    boxes: pl.DataFrame
    """Of `analysis.fleet.by_place`."""

    @classmethod
    def of(cls, rows: pl.DataFrame, words: Words, level: str) -> Strips:
        """`rows`: of `analysis.beside`, with the columns of `words`; `level`: a column."""
        value = words.apart
        named = rows.select(
            pl.lit("").alias("workload"),
            pl.col(level).fill_null("unknown").alias("place"),
            pl.col(value).cast(pl.Float64),
        ).with_row_index("index")
        known = named.drop_nulls(value)
        boxes = by_place(known, "place", (value,))
        cut = boxes if boxes.height <= MOST else pl.concat([boxes.head(MOST // 2), boxes.tail(MOST // 2)])
        number = pl.DataFrame(
            {"place": cut["place"], "number": np.arange(cut.height)}, schema_overrides={"number": pl.Int64}
        )
        placed = known.join(number, on="place", how="inner", maintain_order="left")
        within = (pl.int_range(pl.len()).over("place") + 0.5) / pl.len().over("place") - 0.5
        placed = placed.with_columns((UNIT * pl.col("number") + _WIDE * within).round().alias("x"))
        scale = Scale.of(known[value].to_numpy())
        x, y = np.zeros(rows.height, dtype=np.int16), np.full(rows.height, np.nan, dtype=np.float32)
        at = placed["index"].to_numpy()
        x[at], y[at] = placed["x"].to_numpy(), scale.bend(placed[value].to_numpy())
        return cls(words, tuple(cut["place"]), boxes.height - cut.height, scale, x, y, cut)

    def medians(self, places: Sequence[str]) -> tuple[float, float]:
        """The lowest and the highest median of places, a little wider: an address does not hold all their digits."""
        known = dict(self.boxes.select("place", pl.col(self.words.apart).list.get(2)).iter_rows())
        values = [known[place] for place in places]
        room = _ROUNDED * max(map(abs, values))
        return min(values) - room, max(values) + room

    @property
    def usual(self) -> dict[str, float]:
        """How its points are drawn."""
        return MANY if len(self.y) > DRAWN_AS_IMAGE else FEW

    def places_between(self, low: float, high: float) -> tuple[str, ...] | None:
        """The places of a part of the axis; None where it holds all."""
        middles = UNIT * np.arange(len(self.places))
        some = np.flatnonzero((middles >= low - _WIDE / 2) & (middles <= high + _WIDE / 2))
        return None if len(some) == len(self.places) else tuple(self.places[one] for one in some)


def strips(
    at: Strips, names: Sequence[str], drawn: Mapping[int, Look], picked: Sequence[int] = (), live: bool = True
) -> Figure:
    """The figure. `names`: of the GPUs of the frame; `drawn`, `picked`: rows with a finding, and chosen ones.

    `live`: for a page that says itself what the pointer is on; otherwise the points do.
    """
    words = at.words
    kind: Any = Scattergl if len(at.y) > DRAWN_AS_IMAGE else Scatter
    text = None if live else [f"{plain(name)}" for name in names]
    traces: list[Any] = [
        kind(
            x=at.x,
            y=at.scale.sent(at.y),
            mode="markers",
            marker=points(None, at.usual),
            showlegend=False,
            text=text,
            hoverinfo="none" if live else "text",
        ),
        ring(at, names, picked),
    ]
    low, first, middle, third, high = (
        at.scale.bend(at.boxes[words.apart].list.get(place).to_numpy()) for place in range(5)
    )
    traces.append(
        Box(
            x=UNIT * np.arange(len(at.places)),
            lowerfence=low,
            q1=first,
            median=middle,
            q3=third,
            upperfence=high,
            width=0.86 * UNIT,
            line={"color": GREY, "width": 1},
            fillcolor="rgba(138,143,152,0.12)",
            showlegend=False,
            hoverinfo="skip",
        )
    )
    for look in dict.fromkeys(drawn.values()):
        own = [row for row, its in drawn.items() if its == look and np.isfinite(at.y[row])]
        traces.append(
            Scatter(
                x=at.x[own].tolist(),
                y=at.y[own].tolist(),
                mode="markers",
                name=look.name,
                marker=mark(look),
                customdata=own,
                text=None if live else [f"{plain(names[row])}<br>{look.name}" for row in own],
                hoverinfo="none" if live else "text",
            )
        )
    step = max(1, -(-len(at.places) // _LABELS))
    return figure_of(
        traces,
        layout(
            430,
            margin={"l": 64, "r": 12, "t": 44, "b": 40},
            boxmode="overlay",
            showlegend=bool(drawn) or bool(picked),
            xaxis={
                "tickvals": [UNIT * place for place in range(0, len(at.places), step)],
                "ticktext": [plain(ending(place, _NAME)) for place in at.places[::step]],
                "automargin": True,
                "autotickangles": [0, 90],  # Plotly leaves out a slanted name that ends beyond the figure: the last
                "range": [-0.7 * UNIT, UNIT * (len(at.places) - 0.3)],
                "showgrid": False,
                "zeroline": False,
            },
            yaxis=at.scale.axis(at.scale.values(at.y), words.axis) | {"visible": bool(at.places)},
            annotations=[] if at.places else [nothing("n/a: no run has this figure")],
        ),
    )


def ring(at: Strips, names: Sequence[str], picked: Sequence[int]) -> Any:
    """Around the chosen GPUs."""
    there = [row for row in picked if np.isfinite(at.y[row])]
    return chosen(at.x[there].tolist(), at.y[there].tolist(), [names[row] for row in there])
