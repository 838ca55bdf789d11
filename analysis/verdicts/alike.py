"""Which GPUs are alike: those whose figures, beside their peers', differ least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from .states import codes

_NEAREST = 3
_NORMAL = 1.4826  # times the median absolute deviation: the standard deviation of a normal distribution


@dataclass(frozen=True)
class Neighbour:
    """A GPU whose fingerprint is like another one's."""

    gpu: str
    name: str
    distance: float
    """Root mean square of the differences, each in standard deviations of the peers."""
    figures: int
    """How many figures both have."""


@dataclass(frozen=True)
class Alike:
    """The figures of all GPUs of a cluster, as one array."""

    gpus: tuple[str, ...]
    place: Mapping[str, int]
    model: npt.NDArray[np.int64]
    """(gpus,) the number of its model; -1 where it is not known."""
    x: npt.NDArray[np.float32]
    """(gpus, figures) logarithms of the ratios to the peers; NaN where a GPU has none."""
    scale: Mapping[int, npt.NDArray[np.float64]]
    """By model, (figures,) the standard deviation of its GPUs, by medians; NaN where none has the figure."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Alike:
        """From rows of `fingerprints`: gpu, model, workload, figure and ratio."""
        compared = rows.filter(pl.col("workload").is_not_null() & (pl.col("ratio") > 0))
        first = compared.select("gpu", "model").unique("gpu", keep="first").sort("gpu")
        figure = compared.select(pl.format("{}\n{}", "workload", "figure").alias("figure"))["figure"]
        kinds = figure.unique().sort().to_list()
        x = np.full((first.height, len(kinds)), np.nan, dtype=np.float32)
        x[codes(compared["gpu"], first["gpu"].to_list()), codes(figure, kinds)] = compared["ratio"].log().to_numpy()
        gpus: tuple[str, ...] = tuple(first["gpu"])
        model = codes(first["model"], first["model"].drop_nulls().unique().sort().to_list())
        scale = {int(number): _scale(x[model == number]) for number in np.unique(model)}
        return cls(gpus, {gpu: at for at, gpu in enumerate(gpus)}, model, x, scale)

    def nearest(self, gpu: str, names: Mapping[str, str]) -> list[Neighbour]:
        """The GPUs of the same model that are most like `gpu`, of those that share half of its figures."""
        place = self.place.get(gpu)
        if place is None:
            return []
        rows = np.flatnonzero(self.model == self.model[place])
        finite, scale = np.isfinite(self.x[place]), self.scale[int(self.model[place])]
        use = np.flatnonzero(finite & (scale > 0))
        apart = (self.x[np.ix_(rows, use)] - self.x[place, use]) / scale[use]
        shared = np.isfinite(apart).sum(axis=1)
        enough = np.flatnonzero((2 * shared >= finite.sum()) & (shared > 0) & (rows != place))
        distance = np.sqrt(np.nansum(apart[enough] ** 2, axis=1) / shared[enough])
        if len(enough) > _NEAREST:  # only of those that are no farther than the last one told does the order matter
            near = distance <= np.partition(distance, _NEAREST - 1)[_NEAREST - 1]
            enough, distance = enough[near], distance[near]
        keys = [self.gpus[row] for row in rows[enough]]
        listed = sorted(zip(distance.tolist(), keys, shared[enough].tolist(), strict=True))
        return [Neighbour(key, names.get(key, key), far, int(n)) for far, key, n in listed[:_NEAREST]]


def _scale(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(figures,) from (gpus, figures)."""
    scale = np.full(x.shape[1], np.nan)
    for place, column in enumerate(x.T):
        finite = column[np.isfinite(column)].astype(np.float64)
        if len(finite):
            scale[place] = _NORMAL * float(np.median(np.abs(finite - np.median(finite))))
    return scale
