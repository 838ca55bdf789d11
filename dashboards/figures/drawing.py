"""What figures are made of: traces as plain dictionaries, marks of findings, names, and a scale that bends.

Plotly's own classes check each part where it is made, and again where it is put into a figure, and copy all of it where
it is sent: that takes most of the time of a figure. All our figures are checked in the tests (`checked`), and not again
for each reader.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ...analysis.runs.sittings import Floats
from ...analysis.verdicts import Kind, Verdict
from ..document import Figure as Figure
from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY
from ..words import minus

if TYPE_CHECKING:
    from plotly import graph_objects


def _trace(kind: str, trace: Mapping[str, Any] | None = None, /, **properties: Any) -> dict[str, Any]:
    """A trace; what is None is left out."""
    return {
        "type": kind,
        **{name: value for name, value in {**(trace or {}), **properties}.items() if value is not None},
    }


Bar = partial(_trace, "bar")
Box = partial(_trace, "box")
Heatmap = partial(_trace, "heatmap")
Scatter = partial(_trace, "scatter")
Scattergl = partial(_trace, "scattergl")

_KNOWN = frozenset(("i1", "i2", "i4", "u1", "u2", "u4", "f4", "f8"))
"""Types of numbers that Plotly's script takes as bytes."""

checked = False
"""Whether Plotly checks each figure: tests set it."""


def figure_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Figure:
    """A figure of traces that the names above make.

    Its data are lists and arrays of numpy, no series of Polars; `base` of a bar is a list. Raises ValueError, where it
    is checked, for what Plotly does not know.
    """
    drawn = _Plain(list(map(dict, traces)), dict(layout))
    return for_notebook(drawn) if checked else drawn


def error_bars(low: Any, high: Any, colour: str, *, width: float = 4, thickness: float = 1.5) -> dict[str, Any]:
    """Bars of intervals that reach so far below (`low`) and above (`high`) their points."""
    return {
        "type": "data", "symmetric": False, "array": high, "arrayminus": low,
        "color": colour, "thickness": thickness, "width": width,
    }  # fmt: skip


def axes_of(panel: int) -> dict[str, str]:
    """What a trace of a panel of `stacked` names; the highest panel is 1."""
    number = "" if panel == 1 else str(panel)
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def stacked(
    traces: Sequence[Mapping[str, Any]],
    upright: Sequence[Mapping[str, Any]],
    under: str,
    layout: Mapping[str, Any],
    *,
    apart: float = 0.045,
) -> Figure:
    """A figure with a panel for each axis of `upright`, the highest first, `apart` of the height between two of them.

    The axes below the panels move together; only the lowest has numbers, and the title `under`.
    """
    n = len(upright)
    height = (1 - apart * (n - 1)) / n
    axes: dict[str, Any] = {}
    for panel, own in enumerate(upright, start=1):
        names = axes_of(panel)
        low = (n - panel) * (height + apart)
        level: dict[str, Any] = {"anchor": names["yaxis"], "domain": [0, 1], "zeroline": False}
        level |= {"title": {"text": under}} if panel == n else {"matches": axes_of(n)["xaxis"], "showticklabels": False}
        axes[names["xaxis"].replace("x", "xaxis")] = level
        axes[names["yaxis"].replace("y", "yaxis")] = {"anchor": names["xaxis"], "domain": [low, low + height], **own}
    return figure_of(traces, {**layout, **axes})


def for_notebook(figure: Figure) -> graph_objects.Figure:
    """The figure as Plotly's own, which a notebook shows and a program changes, shows and writes."""
    from plotly import graph_objects

    return graph_objects.Figure(figure.data, figure.layout)


@dataclass(frozen=True)
class _Plain:
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def to_plotly_json(self) -> dict[str, Any]:
        return {"data": _sent(self.data), "layout": _sent(self.layout)}

    def to_json(self) -> str:
        from plotly.utils import PlotlyJSONEncoder

        return json.dumps(self, cls=PlotlyJSONEncoder)


def _sent(part: Any) -> Any:
    """A part of a figure with its arrays of numbers as Plotly's script takes them: base64, as short as they can be."""
    if isinstance(part, dict):
        return {name: _sent(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_sent(value) for value in part] if part and isinstance(part[0], dict) else part
    if not isinstance(part, np.ndarray) or not part.size:
        return part
    if part.dtype in (np.int64, np.uint64):
        part = _short(part)
    kind = f"{part.dtype.kind}{part.dtype.itemsize}"
    if kind not in _KNOWN:
        return part  # Dash sends a list
    shape = {"shape": ", ".join(map(str, part.shape))} if part.ndim > 1 else {}
    return {"dtype": kind, "bdata": base64.b64encode(part.tobytes()).decode("ascii"), **shape}


def _short(numbers: Any) -> Any:
    """Whole numbers in the shortest type that holds them."""
    low, high = int(numbers.min()), int(numbers.max())
    for size in (np.int8, np.int16, np.int32):
        if np.iinfo(size).min <= low and high <= np.iinfo(size).max:
            return numbers.astype(size)
    return numbers


FEW = {"size": 6, "opacity": 0.75}
MANY = {"size": 3.5, "opacity": 0.4}
"""How points are drawn of which there are few, or thousands."""
NAMED = 12
"""Chosen GPUs whose names are written beside them."""
_FAINT, _FULL = "rgba(61,143,209,0.07)", "rgba(61,143,209,0.8)"


# -- marks of findings and names ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """How the GPUs of one kind of verdict are drawn in every figure."""

    colour: str
    symbol: str
    name: str


_LOOKS = {  # a symbol stands for one kind only, so that nobody needs the colour
    Kind.LOST: (RED, "x"),
    Kind.WRONG: (PINK, "square"),
    Kind.FAILED: (GREY, "hourglass"),
    Kind.LOSES: (ORANGE, "octagon"),
    Kind.SLOW: (SKY, "pentagon"),
    Kind.HOT: (RED, "star"),
    Kind.BRAKED: (ORANGE, "triangle-down"),
    Kind.SLOWED: (RED, "triangle-left"),
    Kind.LIMITED: (SKY, "triangle-right"),
    Kind.UNDER_CAP: (OLIVE, "hexagon"),
    Kind.PINNED: (OLIVE, "cross"),
    Kind.POWER_HUNGRY: (ORANGE, "diamond"),
    Kind.UNSTABLE: (OLIVE, "bowtie"),
    Kind.SLOWER: (ORANGE, "circle"),
    Kind.DRIFTING: (GREEN, "diamond-wide"),
    Kind.STARVED: (GREEN, "diamond-tall"),
    Kind.SENSOR: (PINK, "star-diamond"),
    Kind.MEMORY_ERRORS: (SKY, "hexagram"),
    Kind.FAST: (BLUE, "triangle-up"),
}


def looks(verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Look]:
    """How each GPU that has verdicts is drawn: by the kind of the worst one. `verdicts`: of `Judgement.by_key`."""
    kinds = {gpu: rows[0].kind for gpu, rows in verdicts.items()}
    in_order = sorted(kinds, key=lambda gpu: list(Kind).index(kinds[gpu]))
    return {gpu: Look(*_LOOKS[kinds[gpu]], str(kinds[gpu])) for gpu in in_order}


def mark(look: Look, size: float = 9) -> dict[str, Any]:
    """The marker of a GPU with a verdict."""
    return {"color": look.colour, "symbol": look.symbol, "size": size, "line": {"width": 0.75, "color": "#ffffff"}}


def marks(
    x: Sequence[float], y: Sequence[float], look: Look, text: Sequence[str] | None, rows: Sequence[int] | None = None
) -> dict[str, Any]:
    """The trace of the GPUs of one kind. `text`: what the pointer says of each, None where the page says it; `rows`:
    their rows in the frame, for such a page."""
    return Scatter(
        x=list(x),
        y=list(y),
        mode="markers",
        name=look.name,
        marker=mark(look),
        customdata=None if rows is None else list(rows),
        text=None if text is None else list(text),
        hoverinfo="none" if text is None else "text",
    )


def _corners(
    n: int, *, turned: float = 0, inner: float = 1, wide: float = 1, high: float = 1
) -> list[tuple[float, float]]:
    """A polygon of n corners, the first at the top; with `inner` less than 1, a star of n points."""
    steps = n if inner == 1 else 2 * n
    turns = [math.tau * (step / steps + turned) for step in range(steps)]
    radii = [inner if step % 2 and inner != 1 else 1.0 for step in range(steps)]
    return [(wide * r * math.sin(turn), -high * r * math.cos(turn)) for r, turn in zip(radii, turns, strict=True)]


_ARM = 0.36
_CROSS = [(-_ARM, -1.0), (_ARM, -1.0), (_ARM, -_ARM), (1.0, -_ARM), (1.0, _ARM), (_ARM, _ARM), (_ARM, 1.0)]
_CROSS += [(-_ARM, 1.0), (-_ARM, _ARM), (-1.0, _ARM), (-1.0, -_ARM), (-_ARM, -_ARM)]
_GLASS = [(-0.8, -0.9), (0.8, -0.9), (-0.8, 0.9), (0.8, 0.9)]
_SHAPES = {
    "x": [((x - y) * 0.75, (x + y) * 0.75) for x, y in _CROSS],
    "square": _corners(4, turned=1 / 8),
    "hourglass": _GLASS,
    "octagon": _corners(8, turned=1 / 16),
    "pentagon": _corners(5),
    "star": _corners(5, inner=0.45),
    "triangle-up": _corners(3),
    "triangle-right": _corners(3, turned=1 / 4),
    "triangle-down": _corners(3, turned=1 / 2),
    "triangle-left": _corners(3, turned=3 / 4),
    "hexagon": _corners(6),
    "cross": _CROSS,
    "diamond": _corners(4),
    "bowtie": [(y, x) for x, y in _GLASS],
    "circle": _corners(24),
    "diamond-wide": _corners(4, high=0.6),
    "diamond-tall": _corners(4, wide=0.6),
    "star-diamond": _corners(4, inner=0.5),
    "hexagram": _corners(6, inner=0.58),
}
"""The symbols of Plotly, for pictures that are drawn without it: corners, 1 from the middle."""


def outline(look: Look, x: float, y: float, size: float) -> str:
    """The mark of a GPU with a verdict as a piece of SVG around a point."""
    corners = " ".join(f"{x + size * across:.1f},{y + size * down:.1f}" for across, down in _SHAPES[look.symbol])
    return f"<polygon points='{corners}' fill='{look.colour}' stroke='#fff' stroke-width='.75'/>"


def svg(inside: str, width: float, height: float) -> str:
    """A picture of these pieces."""
    box = f"viewBox='0 0 {width:g} {height:g}' width='{width:g}' height='{height:g}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {box}>{inside}</svg>"


def single(values: Floats) -> NDArray[np.float32]:
    """Single precision: enough for a screen, half the file."""
    return np.asarray(values, dtype=np.float32)


def thinned(n: int, most: int) -> NDArray[np.intp]:
    """At most this many positions out of `n`, evenly spread."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.intp))


def ending(name: str, most: int) -> str:
    """The last letters of a longer name, which tell it from its neighbours."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def plain(text: str, most: int | None = None) -> str:
    """A name as a figure shows it: Plotly reads HTML in texts. Longer ones than `most` letters are cut."""
    short = text if most is None or len(text) <= most else f"{text[: most - 1]}…"
    return escape(short, quote=False)


def names_axis(names: Sequence[str], places: Sequence[float] | None = None, **properties: Any) -> dict[str, Any]:
    """An upright axis of names, the first on top: it is at 0, and the next at 1, or they are at these places."""
    ticks, ends = (
        (range(len(names)), [len(names) - 0.5, -0.5]) if places is None else (places, [-0.6, len(names) - 0.4])
    )
    quiet = {"zeroline": False, "showgrid": False}
    return {"tickvals": list(ticks), "ticktext": list(names), "range": ends, **quiet, **properties}


def upright(at: Any, colour: str, layer: str = "below") -> dict[str, Any]:
    """A dotted line from the bottom of a figure to its top."""
    line = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": layer}


def stretch(began: Any, ended: Any, colour: str, opacity: float = 1.0) -> dict[str, Any]:
    """A band from the bottom of a figure to its top, behind what is drawn."""
    sides = {"x0": began, "x1": ended, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}}
    return {"type": "rect", **sides, "fillcolor": colour, "opacity": opacity, "layer": "below"}


# -- a brush and the chosen GPUs ----------------------------------------------------------------------------------


def points(held: NDArray[np.bool_] | None, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The marker of all GPUs: those that a brush holds, in full colour; all as `usual` where there is no brush."""
    if held is None:
        return {"color": BLUE, **usual}
    colours = {"colorscale": [[0, _FAINT], [1, _FULL]], "cmin": 0, "cmax": 1, "showscale": False}
    return {**usual, "opacity": 1, "color": held.astype(np.uint8), **colours}


def chosen(x: Sequence[float], y: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
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


# -- a scale that bends -------------------------------------------------------------------------------------------

_LINEAR_SHARE = 0.9  # of the values lie where it is linear
_LEAST = 0.1
_ROOM = 0.06  # of the axis, beyond the values
_APART = 0.085  # of the axis, between two ticks
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Scale:
    """A scale that is linear within about `near` of 0 and logarithmic beyond, so that one GPU far out does not press
    the others flat."""

    near: float = 1.0

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Scale:
        """The scale that suits values around 0; NaN counts for nothing."""
        known = np.abs(np.asarray(values, dtype=np.float64))
        known = known[np.isfinite(known)]
        usual = float(np.quantile(known, _LINEAR_SHARE)) if len(known) else 0.0
        return cls(_nice(max(usual, _LEAST)))

    def bend(self, values: npt.ArrayLike) -> Floats:
        """Where values are drawn; NaN where they are not known."""
        return np.asarray(np.arcsinh(np.asarray(values, dtype=np.float64) / self.near))

    def unbend(self, place: float) -> float:
        """The value that is drawn at a place."""
        return self.near * math.sinh(place)

    def values(self, places: npt.ArrayLike) -> Floats:
        """The values that are drawn at these places."""
        return np.asarray(self.near * np.sinh(np.asarray(places, dtype=np.float64)))

    def axis(self, values: npt.ArrayLike, title: str) -> dict[str, Any]:
        """An axis of Plotly that holds these values and 0."""
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        ends = self.bend(
            [min(float(known.min(initial=0.0)), -self.near), max(float(known.max(initial=0.0)), self.near)]
        )
        low, high = (float(end) for end in ends)
        room = _ROOM * (high - low)
        low, high = low - room, high + room
        ticks = self._ticks(low, high)
        return {
            "title": {"text": title},
            "tickvals": [float(self.bend(tick)) for tick in ticks],
            "ticktext": [minus(f"{tick:+g}") if tick else "0" for tick in ticks],
            "range": [low, high],
            "zeroline": True,
        }

    def _ticks(self, low: float, high: float) -> list[float]:
        first = math.floor(math.log10(self.near)) - 1
        last = math.ceil(math.log10(max(abs(self.unbend(low)), abs(self.unbend(high)), self.near)))
        sizes = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
        ticks = [0.0]
        for sign in (1.0, -1.0):
            last_place = 0.0
            for size in sizes:
                place = float(self.bend(size))
                if place - last_place >= _APART * (high - low) and low <= sign * place <= high:
                    ticks.append(sign * size)
                    last_place = place
        return sorted(ticks)


PERCENT = Scale(1.0)
"""The scale of per cent of figures that stand side by side: half a per cent and 45 % are both to be seen."""


def _nice(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if step * power >= value), 10 * power)
