"""The 95 % intervals of a workload's figures: what is resampled (cabinets, nodes or GPUs), and how many it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..runs.columns import numbers
from ..statistics import bootstrap
from ..statistics.ordering import Floats, Ints, tie_ranks

FEW = 20
"""Units below which every interval is too narrow."""
_WIDEST = 5.0
"""Times its lower end, the most that the upper end of the coefficient of variation may be: beyond it a few values
decide the figure, and no resampling says what others would do."""
LEAST_GROUPS = 6
"""Nodes or cabinets below which the data can hardly show that they differ: they count as different, unless they are
more alike than chance makes them."""
FEW_FOR_TAILS = 50
"""Units below which there is no interval for what rests on the outer twentieth of the values."""


@dataclass(frozen=True)
class Units:
    """What the bootstrap draws."""

    what: str
    """"GPU", "node" or "cabinet"."""
    count: int
    of: Ints | None = None
    """(gpus,) the unit of each GPU; None where each GPU is one."""

    @property
    def narrow(self) -> str | None:
        """Why the intervals may be too narrow; None if they are not."""
        return f"they come from fewer than {FEW} {self.what}s" if self.count < FEW else None

    def says(self, found: dict[str, bootstrap.Interval | None]) -> str:
        """What was resampled and what has no interval, a sentence."""
        text = f"from {self.count:,} {self.what}s that were resampled"
        if self.what != "GPU":
            text += f", because GPUs of a {self.what} are alike"
        why = {
            "whisk_pct": "its ends are two single values",
            "worst_over_median": "it is one value, and no resample has a larger one",
            "cov_pct": "a few values decide it",
        }
        if self.count < LEAST_GROUPS:
            why["fence_pct"] = f"fewer than {LEAST_GROUPS} {self.what}s"
        if self.count < FEW_FOR_TAILS:
            why["p95p5_pct"] = f"fewer than {FEW_FOR_TAILS} {self.what}s"
        none = [f"{name} ({why[name]})" for name in why if found[name] is None]
        return f"{text}; none for {', '.join(none)}"


def units(names: list[str], ordered: Floats, owners: Ints, where: pl.DataFrame | None) -> Units:
    """Cabinets, if several nodes are in one and those of a cabinet are more alike than others; else nodes, if that is
    so of the GPUs of a node; else GPUs.

    `ordered`: the medians of the GPUs, ascending; `owners`: whose they are; `where`: `gpu`, `node` and `cabinet`.
    """
    found = Units("GPU", len(names))
    if where is None:
        return found
    rank = np.empty(len(names))
    rank[owners] = tie_ranks(ordered)
    places = pl.DataFrame({"gpu": names}).join(where, on="gpu", how="left", maintain_order="left")
    unit = np.arange(len(names))
    for what in ("node", "cabinet"):
        if what not in places.columns:
            continue
        known = places[what].is_not_null().to_numpy()
        group, groups = numbers(places[what].drop_nulls())
        # Of what was found to be alike, the mean is one value.
        lower, first, of_lower = np.unique(unit[known], return_index=True, return_inverse=True)
        mean = np.bincount(of_lower, rank[known]) / np.bincount(of_lower)
        if not 1 < len(groups) < len(lower) or not _alike(mean, group[first], len(groups)):
            continue
        unit = np.full(len(names), -1)
        unit[known] = group
        unit[~known] = len(groups) + np.arange(int((~known).sum()))
        found = Units(what, len(groups) + int((~known).sum()), unit)
    return found


def _alike(value: Floats, group: Ints, groups: int) -> bool:
    """Whether values of a group are more alike than others: the mean square between groups over that within is 1, give
    or take its standard error, if groups do not matter."""
    size = np.bincount(group, minlength=groups)
    away = value - value.mean()
    between = float((np.bincount(group, away, groups) ** 2 / size).sum())
    within = float((away**2).sum()) - between
    freedom = groups - 1, len(value) - groups
    clear = 1.0 if groups < LEAST_GROUPS else 1.0 + np.sqrt(2.0 / freedom[0] + 2.0 / freedom[1])
    return bool(between / freedom[0] > clear * within / freedom[1])


def intervals(
    resampled: bootstrap.Resampled, replicated: dict[str, Floats], of: Units
) -> tuple[dict[str, bootstrap.Interval | None], bootstrap.Interval | None]:
    """The intervals of the headline figures, and that of the ICC."""
    once = resampled.figures(np.ones((1, of.count), dtype=np.int32))
    found = {
        name: bootstrap.percentile_interval(replicated[name], float(once[name][0]), of.count)
        for name in bootstrap.FIGURES
    }
    found["cov_pct"] = cov = bootstrap.cov_interval(once, replicated, of.count)
    if cov is not None and cov[1] > _WIDEST * cov[0]:
        found["cov_pct"] = None
    found["whisk_pct"] = found["worst_over_median"] = None
    if of.count < LEAST_GROUPS:  # the quartiles of its resamples are those of a few units, in few combinations
        found["fence_pct"] = None
    if of.count < FEW_FOR_TAILS:
        found["p95p5_pct"] = None
    return found, bootstrap.icc_interval(once, replicated, resampled.moments, of.count)
