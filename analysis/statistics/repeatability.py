"""Whether differences between GPUs repeat (the intraclass correlation), and the shares of the variance by place.

ICC(1), one-way random effects with unbalanced groups, by analysis of variance (P. E. Shrout and J. L. Fleiss,
Psychological Bulletin 86, 1979, case 1; the formulas stand in docs/how-we-know/statistics.md). A negative estimate of
the variance between groups is taken as zero.

Shares: nested random effects, x = mean + cabinet + node + GPU + run, with unequal numbers at every level. Components by
the analysis of variance with exact expected sums of squares (C. R. Henderson, Biometrics 9, 1953, method 1;
S. R. Searle, G. Casella and C. E. McCulloch, Variance Components, 1992, chapter 5): for the uncorrected sum of
squares T_a of the totals of level a,

    E[T_a] = N mean² + sum over levels b of c_ab var_b + k_a var_run

where k_a is the number of groups of level a, and c_ab = N if b is a or coarser, else the sum over the groups B
of level b of n_B² / n_A(B). The system is triangular. Estimates below zero become zero, the others are rescaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

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
        fields: dict[str, Any] = {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "trimmed": self.trimmed,
            "by": self.by,
            "sd_between_pct": self.sd_between_pct,
            "sd_within_pct": self.sd_within_pct,
            "groups": self.groups,
        }
        return fields if self.reason is None else {**fields, "reason": self.reason}


def sums(moments: Moments, unit: Ints | None = None) -> Floats:
    """What `components` needs of each unit (of each group, where None), one row a unit: the sums over its groups of
    1, size, size * mean, size * mean² (about `moments.centre`), squares, and size²."""
    size, m = moments.size, moments.mean - moments.centre
    columns = np.column_stack([np.ones_like(size), size, size * m, size * m * m, moments.squares, size * size])
    if unit is None:
        return columns
    by_unit = np.zeros((int(unit.max()) + 1, columns.shape[1]))
    np.add.at(by_unit, unit, columns)
    return by_unit


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


LEVELS = ("cabinet", "node", "gpu", "run")
_LEVEL_NAMES = {level: level.replace("gpu", "GPU") for level in LEVELS}


@dataclass(frozen=True)
class Shares:
    """The share of the variance at each level, 0 to 1, over the `n` runs of `gpus` GPUs whose place is known.

    A level that cannot be computed is None, with its reason in `reasons`; the others then sum to 1.
    """

    share: dict[str, float | None]
    n: int
    gpus: int
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON: cabinet, node, gpu, run, n, gpus, and reasons where a share is null."""
        fields: dict[str, Any] = {**self.share, "n": self.n, "gpus": self.gpus}
        return {**fields, "reasons": self.reasons} if self.reasons else fields


def shares(moments: Moments, cabinet: Ints | None, node: Ints | None) -> Shares:
    """The shares of variance. `moments`: one entry a GPU; `cabinet`, `node`: each GPU's place as a number, or
    None where the data have no such level. A node's number belongs to one cabinet only.
    """
    size, gpus = moments.size, len(moments.size)
    n = int(size.sum())
    reasons: dict[str, str] = {}
    levels: list[tuple[str, Ints]] = []  # finest first
    finer, finer_count = "run", n
    for name, group in (("gpu", np.arange(gpus)), ("node", node), ("cabinet", cabinet)):
        if group is None:
            reasons[name] = f"no {_LEVEL_NAMES[name]} is known"
            continue
        count = len(np.unique(group))
        if count < 2:
            reasons[name] = f"there is one {_LEVEL_NAMES[name]}" if count else f"no {_LEVEL_NAMES[name]} is known"
        elif count == finer_count:
            reasons[name] = f"each {_LEVEL_NAMES[name]} has one {_LEVEL_NAMES[finer]}, so the two cannot be separated"
        else:
            levels.append((name, group))
            finer, finer_count = name, count
    share: dict[str, float | None] = dict.fromkeys(LEVELS)
    if n < 2 or not levels:
        reasons["run"] = "there is no level above the run"
        return Shares(share, n, gpus, reasons)
    variances = _components(moments, [group for _, group in levels])
    positive = np.maximum(variances, 0.0)
    if not positive.sum() > 1e-24 * float(np.average(moments.mean, weights=size)) ** 2:
        return Shares(share, n, gpus, {**reasons, **dict.fromkeys(LEVELS, "every value is the same")})
    share.update(zip(("run", *(name for name, _ in levels)), (positive / positive.sum()).tolist(), strict=True))
    return Shares(share, n, gpus, reasons)


def _components(moments: Moments, groups: list[Ints]) -> Floats:
    """The variance of the run and of each level (finest first; the first may be coarser than the GPU)."""
    size = moments.size
    n = float(size.sum())
    centre = float(np.average(moments.mean, weights=size))
    total = size * (moments.mean - centre)  # of each GPU
    labels: list[npt.NDArray[np.intp]] = [np.unique(group, return_inverse=True)[1] for group in groups]
    labels.append(np.zeros(len(size), dtype=np.intp))  # the whole, coarsest
    sizes = [np.bincount(label, weights=size) for label in labels]
    sums = [float((np.bincount(label, weights=total) ** 2 / s).sum()) for label, s in zip(labels, sizes, strict=True)]
    # Levels are numbered 1.. from the finest, run is 0; row a of `c` holds E[T_a] without N mean².
    count = len(labels)
    c = np.full((count + 1, count), n)
    for a in range(1, count + 1):
        c[a, 0] = len(sizes[a - 1])
        for b in range(1, a):
            parent = np.zeros(len(sizes[b - 1]), dtype=np.intp)
            parent[labels[b - 1]] = labels[a - 1]
            c[a, b] = float((sizes[b - 1] ** 2 / sizes[a - 1][parent]).sum())
    within = float(moments.squares.sum() + (total * total / size).sum())
    t = np.array([within, *sums])
    return np.linalg.solve(c[:-1] - c[1:], t[:-1] - t[1:])
