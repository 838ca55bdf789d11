"""Whether differences between GPUs repeat: the intraclass correlation.

ICC(1), one-way random effects with unbalanced groups, by analysis of variance (P. E. Shrout and J. L. Fleiss,
Psychological Bulletin 86, 1979, case 1; the formulas stand in docs/how-we-know/statistics.md). A negative estimate of
the variance between groups is taken as zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ordering import Floats, Ints

_SPOKEN = {"gpu": "GPU", "job": "job"}


@dataclass(frozen=True)
class Moments:
    """What the analysis of variance needs of each group: its size, mean, and sum of squares about its mean."""

    size: Floats
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, values: Floats, starts: Ints) -> Moments:
        """The moments of groups laid out one after the other; `starts` from `ordering.bounds`, none empty."""
        size = np.diff(starts).astype(np.float64)
        # About a common centre first: the times of a fleet differ in their fourth digit.
        centre = float(values[0])
        deviation = values - centre
        mean = np.add.reduceat(deviation, starts[:-1]) / size
        deviation -= np.repeat(mean, np.diff(starts))
        squares = np.add.reduceat(deviation * deviation, starts[:-1])
        return cls(size, mean + centre, squares)

    @property
    def centre(self) -> float:
        """A value near all of them, about which sums keep their digits."""
        return float(self.mean.mean())


@dataclass(frozen=True)
class Repeatability:
    """An ICC(1) and the two standard deviations behind it, in % of the mean; None with the `reason`."""

    by: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    trimmed: float | None = None
    """The same on the rows inside the fences."""
    sd_between_pct: float | None = None
    sd_within_pct: float | None = None
    groups: int = 0
    reason: str | None = None
    alike: bool = False
    """Whether every value is the same."""

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON: value, low, high, trimmed, by, sd_between_pct, sd_within_pct, groups, and reason."""
        found: dict[str, Any] = {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "trimmed": self.trimmed,
            "by": self.by,
            "sd_between_pct": self.sd_between_pct,
            "sd_within_pct": self.sd_within_pct,
            "groups": self.groups,
        }
        return found if self.reason is None else {**found, "reason": self.reason}


def sums(moments: Moments, unit: Ints | None = None) -> Floats:
    """What `components` needs of each unit (of each group, where None), one row a unit: the sums over its groups of
    1, size, size * mean, size * mean² (about `moments.centre`), squares, and size²."""
    size, m = moments.size, moments.mean - moments.centre
    columns = np.column_stack([np.ones_like(size), size, size * m, size * m * m, moments.squares, size * size])
    if unit is None:
        return columns
    found = np.zeros((int(unit.max()) + 1, columns.shape[1]))
    np.add.at(found, unit, columns)
    return found


def components(weights: Floats, columns: Floats, centre: float) -> tuple[Floats, Floats, Floats, Floats]:
    """The variances between and within groups, the mean, and the standard deviation of all, for each row of `weights`.

    `weights`: (replicates, units), how often each unit was drawn; a group drawn twice is two groups. `columns`: from
    `sums`. Results have one entry a replicate; NaN where there are fewer than two groups or no group with two values.
    """
    k, n, nm, nmm, within, n2 = (weights @ columns).T
    with np.errstate(all="ignore"):
        grand = nm / n
        about = np.maximum(nmm - n * grand * grand, 0.0)
        msb = about / (k - 1)
        msw = within / (n - k)
        n0 = (n - n2 / n) / (k - 1)
        between = np.maximum(0.0, (msb - msw) / n0)
        sd = np.sqrt((about + within) / (n - 1))
    undefined = (k < 2) | (n <= k)
    return np.where(undefined, np.nan, between), np.where(undefined, np.nan, msw), grand + centre, sd


def icc_from(f: float, moments: Moments) -> float:
    """The ICC of groups of these sizes whose mean squares between and within have the ratio `f`."""
    n = float(moments.size.sum())
    usual = (n - float((moments.size**2).sum()) / n) / (len(moments.size) - 1)
    return max(0.0, f - 1.0) / (max(0.0, f - 1.0) + usual)


def icc(moments: Moments, by: str) -> Repeatability:
    """The ICC(1) of groups named `by` ("gpu" or "job"), without interval and trimmed value."""
    groups = len(moments.size)
    if groups < 2:
        return Repeatability(by, groups=groups, reason=f"fewer than two {_SPOKEN[by]}s")
    if bool((moments.size <= 1).all()):
        reason = f"each {_SPOKEN[by]} has only one run"
        return Repeatability(by, groups=groups, reason=reason)
    between, within, mean, _ = (
        float(part[0]) for part in components(np.ones((1, groups)), sums(moments), moments.centre)
    )
    total = between + within
    # Rounding leaves about 1e-16 of the mean squared where every value is the same.
    if not total > 1e-24 * mean * mean:
        return Repeatability(by, groups=groups, reason="every value is the same", alike=True)
    percent = 100.0 / abs(mean) if mean else math.nan
    sds = [sd if math.isfinite(sd) else None for sd in (percent * math.sqrt(between), percent * math.sqrt(within))]
    return Repeatability(by, between / total, groups=groups, sd_between_pct=sds[0], sd_within_pct=sds[1])


def mean_of(value: float, runs: float) -> float:
    """The repeatability of a mean of `runs` runs when one run has ICC `value` (Spearman and Brown, 1910)."""
    return runs * value / (1.0 + (runs - 1.0) * value)
