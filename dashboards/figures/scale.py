"""A scale that is linear where most GPUs are, and logarithmic beyond, so that one far out does not press them flat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..table import minus

Floats = npt.NDArray[np.float64]

_WHOLE = 1000.0  # so fine are whole numbers, of which 16 bits are enough
_NOWHERE = -32768
_MOST = 0.9  # of the values lie where it is linear
_LEAST = 0.1
_ROOM = 0.06  # of the axis, beyond the values
_APART = 0.085  # of the axis, between two ticks
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Scale:
    """Where values are drawn: as they are within about `near` of 0, by their logarithm beyond."""

    near: float = 1.0

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Scale:
        """The scale that suits values around 0; NaN counts for nothing."""
        known = np.abs(np.asarray(values, dtype=np.float64))
        known = known[np.isfinite(known)]
        usual = float(np.quantile(known, _MOST)) if len(known) else 0.0
        return cls(_nice(max(usual, _LEAST)))

    def bend(self, values: npt.ArrayLike) -> Floats:
        """Where values are drawn; NaN where they are not known."""
        return np.asarray(_WHOLE * np.arcsinh(np.asarray(values, dtype=np.float64) / self.near))

    @staticmethod
    def sent(drawn: npt.ArrayLike) -> npt.NDArray[np.int16]:
        """The same as whole numbers, half as long as others; what is not known lies beyond every axis."""
        found = np.nan_to_num(np.asarray(drawn, dtype=np.float64), nan=_NOWHERE)
        return np.clip(np.round(found), _NOWHERE, -_NOWHERE - 1).astype(np.int16)

    def unbend(self, at: float) -> float:
        """What is drawn there."""
        return self.near * math.sinh(at / _WHOLE)

    def values(self, drawn: npt.ArrayLike) -> Floats:
        """What is drawn at each of these places."""
        return np.asarray(self.near * np.sinh(np.asarray(drawn, dtype=np.float64) / _WHOLE))

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
        found = [0.0]
        for sign in (1.0, -1.0):
            at = 0.0
            for size in sizes:
                drawn = float(self.bend(size))
                if drawn - at >= _APART * (high - low) and low <= sign * drawn <= high:
                    found.append(sign * size)
                    at = drawn
        return sorted(found)


def _nice(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if step * power >= value), 10 * power)
