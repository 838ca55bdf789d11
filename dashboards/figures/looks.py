"""How a GPU with a verdict is drawn, the same in every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis.fleet.side_by_side import Floats
from ...analysis.verdicts import Kind, Verdict
from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY


@dataclass(frozen=True)
class Look:
    """How the GPUs of one kind of verdict are drawn everywhere."""

    colour: str
    symbol: str
    name: str


_DRAWN = {
    Kind.LOST: (RED, "x"),
    Kind.WRONG: (PINK, "square"),
    Kind.FAILED: (GREY, "x"),
    Kind.LOSES: (ORANGE, "x"),
    Kind.SLOW: (SKY, "square"),
    Kind.HOT: (RED, "star"),
    Kind.BRAKED: (ORANGE, "triangle-down"),
    Kind.SLOWED: (RED, "triangle-down"),
    Kind.LIMITED: (SKY, "triangle-down"),
    Kind.UNDER_CAP: (OLIVE, "triangle-down"),
    Kind.PINNED: (OLIVE, "cross"),
    Kind.POWER_HUNGRY: (ORANGE, "diamond"),
    Kind.UNSTABLE: (OLIVE, "square"),
    Kind.SLOWER: (ORANGE, "circle"),
    Kind.DRIFTING: (GREEN, "circle"),
    Kind.STARVED: (GREEN, "diamond"),
    Kind.SENSOR: (PINK, "diamond"),
    Kind.MEMORY_ERRORS: (SKY, "diamond"),
    Kind.FAST: (BLUE, "triangle-up"),
}


FEW = {"size": 6, "opacity": 0.75}
MANY = {"size": 3.5, "opacity": 0.4}
"""How points are drawn of which there are few, or thousands."""


def mark(look: Look) -> dict[str, Any]:
    """The marker of a GPU with a verdict."""
    return {"color": look.colour, "symbol": look.symbol, "size": 9, "line": {"width": 0.75, "color": "#ffffff"}}


def looks(verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Look]:
    """How each GPU that has verdicts is drawn: by the kind of the worst one. `verdicts`: of `Judgement.by_key`."""
    kinds = {gpu: own[0].kind for gpu, own in verdicts.items()}
    in_order = sorted(kinds, key=lambda gpu: list(Kind).index(kinds[gpu]))
    return {gpu: Look(*_DRAWN[kinds[gpu]], str(kinds[gpu])) for gpu in in_order}


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
