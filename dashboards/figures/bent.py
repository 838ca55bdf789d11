"""An axis of per cent that is linear near 0 and logarithmic beyond: half a per cent and 45 % are both to be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...analysis.fleet.side_by_side import Floats
from ..table import minus

_TICKS = (-90, -50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200, 400, 1000, 4000)
_LEAST, _ROOM = 1.0, 1.2


def bent(pct: npt.ArrayLike) -> Floats:
    """Where a percentage is drawn: linear within about one, by its logarithm beyond."""
    found: Floats = np.arcsinh(np.asarray(pct, dtype=np.float64))
    return found


def bent_axis(low: float, high: float, title: str) -> dict[str, Any]:
    """The axis for values from `low` to `high` per cent, with ticks in per cent."""
    low, high = min(low, -_LEAST) * _ROOM, max(high, _LEAST) * _ROOM
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    return {
        "title": {"text": title},
        "tickvals": [float(bent(tick)) for tick in ticks],
        "ticktext": [minus(f"{tick:+,d}") if tick else "0" for tick in ticks],
        "range": [float(bent(low)), float(bent(high))],
        "zeroline": True,
    }
