"""Ranks and correlations by their definitions. scipy.stats has them too, and takes two seconds to import."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def ranks(values: Any) -> npt.NDArray[np.float64]:
    """The rank of each value, from 1; equal values share the mean of theirs."""
    x = np.asarray(values, dtype=np.float64)
    below = np.searchsorted(np.sort(x), x, side="left")
    upto = np.searchsorted(np.sort(x), x, side="right")
    return np.asarray((below + upto + 1) / 2)


def pearson(x: Any, y: Any) -> float:
    return float(np.corrcoef(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))[0, 1])


def spearman(x: Any, y: Any) -> float:
    return pearson(ranks(x), ranks(y))
