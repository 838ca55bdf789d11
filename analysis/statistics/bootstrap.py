"""The cluster bootstrap: units (GPUs, or nodes) are drawn with replacement, each with all its runs, and the figures
computed again.

A replicate is a weight for each unit: how often it was drawn. No resample is ever laid out. The values are sorted once,
and an order statistic of a replicate is found from the running total of the weights over that order: the linear
quantile of the expanded resample, exactly.

Percentile intervals for quantiles. Those of the coefficient of variation and of the ICC are studentised, on the
logarithm of the figure (of the ratio of mean squares): their percentile intervals are too narrow with heavy tails. The
bootstrap of a maximum can never pass the largest value seen, so its replicates give worst_over_median no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

from .ordering import PROBABILITIES, Floats, Ints, bounds
from .repeatability import Moments, components, icc_from, sums

Counts = npt.NDArray[np.int32]

FIGURES = ("median", "fence_pct", "whisk_pct", "p95p5_pct", "cov_pct", "worst_over_median")
"""The headline figures, which have an interval."""

Interval = tuple[float, float]


def weights(seed: int, groups: int, replicates: int, block: int = 125) -> Iterator[Counts]:
    """How often each of `groups` was drawn, (up to `block`, groups) at a time, `replicates` rows in all."""
    rng = np.random.default_rng(seed)
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        drawn = np.empty((rows, groups), dtype=np.int32)
        for row in drawn:
            row[:] = np.bincount(rng.integers(0, groups, size=groups), minlength=groups)
        yield drawn


@dataclass(frozen=True)
class GroupMoments:
    """Groups, of which any weighting can be asked how much they repeat, without their values."""

    moments: Moments
    unit: Ints | None = None
    """What is drawn with each group, by number; None: the group by itself."""

    @cached_property
    def sums(self) -> Floats:
        """(units, sums) of `repeatability.sums`."""
        return sums(self.moments, self.unit)

    @cached_property
    def products(self) -> Floats:
        """(units, pairs) the product of each two of those sums, one that differs twice."""
        first, second = _pairs(self.sums)
        return self.sums[:, first] * self.sums[:, second] * np.where(first == second, 1.0, 2.0)

    def figures(self, drawn: Counts | Floats) -> dict[str, Floats]:
        """`log_cov` and `log_f`, the logarithms of the coefficient of variation and of the ratio of the mean squares
        between and within groups, for each row of `drawn` (replicates, units), and their standard errors
        `log_cov_error` and `log_f_error`, by the influence of each unit."""
        weights, centre = np.asarray(drawn, dtype=np.float64), self.moments.centre
        first, second = _pairs(self.sums)
        products = weights @ self.products
        k, n, nm, nmm, within = (weights @ self.sums[:, :-1]).T
        nothing = np.zeros_like(n)
        with np.errstate(all="ignore"):
            shift = nm / n
            mean = shift + centre
            squares = nmm + within - n * shift**2
            of_cov = (
                nothing,
                shift**2 / (2 * squares) - 1 / (2 * n) + shift / (n * mean),
                -shift / squares - 1 / (n * mean),
                1 / (2 * squares),
                1 / (2 * squares),
            )
            between = nmm - n * shift**2
            of_f = (
                -1 / k - 1 / (n - k),
                shift**2 / between + 1 / (n - k),
                -2 * shift / between,
                1 / between,
                -1 / within,
            )
            units = weights.sum(axis=1)
            error = {
                name: np.sqrt(
                    np.einsum("rp,rp->r", products, np.array(slope)[first].T * np.array(slope)[second].T)
                    * units
                    / (units - 1)
                )
                for name, slope in (("log_cov_error", of_cov), ("log_f_error", of_f))
            }
            log_cov = 0.5 * np.log(squares / (n - 1)) - np.log(np.abs(mean))
            log_f = np.log(between / (k - 1)) - np.log(within / (n - k))
        return {"log_cov": log_cov, "log_f": log_f, **error}

    def interval(self, replicated: Mapping[str, Floats], units: int) -> Interval | None:
        """Of the ICC, from the replicates of `figures`."""
        return icc_interval(self.figures(np.ones((1, units), dtype=np.int32)), replicated, self.moments, units)


def _pairs(columns: Floats) -> tuple[Ints, Ints]:
    """Each two of the columns but the last."""
    return np.triu_indices(columns.shape[1] - 1)


class Resampled:
    """Sorted values that belong to groups, of which any weighting can be asked for its figures."""

    def __init__(self, ordered: Floats, gpus: Ints, count: int, unit: Ints | None = None) -> None:
        """`ordered`: ascending values; `gpus`: the GPU of each, 0 to `count` - 1, none without a value.

        `unit`: what is drawn with each GPU, by number; None: the GPU by itself.
        """
        self.ordered = ordered
        layout = np.argsort(gpus, kind="stable")
        self.groups = GroupMoments(Moments.of(ordered[layout], bounds(gpus, count)), unit)
        self.unit = gpus if unit is None else unit[gpus]

    def figures(self, drawn: Counts) -> dict[str, Floats]:
        """The figures of FIGURES and `icc` for each row of `drawn` (replicates, units), and those of `GroupMoments`.

        NaN where undefined.
        """
        p5, q1, median, q3, p95, low, high, worst = np.array([self._places(row) for row in drawn]).T
        groups, counts = self.groups, drawn.astype(np.float64)
        between, within, mean, sd = components(counts, groups.sums, groups.moments.centre)
        with np.errstate(all="ignore"):
            return {
                "median": median,
                "fence_pct": 400.0 * (q3 - q1) / median,
                "whisk_pct": 100.0 * (high - low) / median,
                "p95p5_pct": 100.0 * (p95 - p5) / median,
                "cov_pct": 100.0 * sd / mean,
                "worst_over_median": worst / median,
                "icc": between / (between + within),
                **groups.figures(counts),
            }

    def _places(self, drawn: npt.NDArray[np.int32]) -> list[float]:
        """P5, Q1, median, Q3, P95, the two whisker ends and the largest value of one replicate."""
        # How many values of the resample stand up to each of `ordered`.
        reach = np.cumsum(drawn.take(self.unit), dtype=drawn.dtype)
        last = int(reach[-1]) - 1

        def at(places: npt.ArrayLike) -> Floats:
            """The order statistics at these places, counted from 0."""
            # Places of another type than `reach` would have all of it converted.
            return self.ordered[np.searchsorted(reach, np.clip(places, 0, last).astype(reach.dtype), side="right")]

        place = np.array(PROBABILITIES) * last
        under = np.floor(place)
        lower = at(under)
        quantiles = lower + (place - under) * (at(under + 1) - lower)
        fence = 1.5 * (quantiles[3] - quantiles[1])
        first = np.searchsorted(self.ordered, quantiles[1] - fence, side="left")
        past = np.searchsorted(self.ordered, quantiles[3] + fence, side="right")
        before_first, before_past = (int(reach[place - 1]) if place else 0 for place in (first, past))
        return [*quantiles, *at([before_first, before_past - 1, last])]


def _wider(units: int) -> float:
    """How much wider an interval from so few units must be."""
    return float(special.stdtrit(units - 1, 0.975) / special.ndtri(0.975)) * math.sqrt(units / (units - 1))


def percentile_interval(replicated: Floats, figure: float = math.nan, units: int = 0) -> Interval | None:
    """The central 95 % of the replicates that are finite, or None when fewer than half are.

    `figure`, `units`: of few units the ends are moved away from the figure, as far as Student's t with `units` - 1
    degrees of freedom is wider than the normal law, and by the root of units / (units - 1), which replicates lack;
    and what the replicates lie below the figure is added twice. All in proportion.
    """
    finite = replicated[np.isfinite(replicated)]
    if len(finite) == 0 or 2 * len(finite) < len(replicated):
        return None
    low, high = (float(end) for end in np.quantile(finite, (0.025, 0.975)))
    middle = float(np.median(finite))
    if units > 1 and min(figure, middle) > 0:
        wider = _wider(units)
        # Resamples of few units vary less than the units do, which vary less than the population: twice the same bias.
        shift = figure / middle
        low, high = (figure * shift * (end * shift / figure) ** wider for end in (low, high))
    return low, high


def studentised_interval(
    once: Mapping[str, Floats], replicated: Mapping[str, Floats], name: str, units: int
) -> Interval | None:
    """The 95 % interval of the figure whose logarithm is `name`, from so many units: how far replicates lie from it, in
    standard errors of each."""
    figure, error = float(once[name][0]), float(once[f"{name}_error"][0])
    with np.errstate(all="ignore"):
        away = percentile_interval((replicated[name] - figure) / replicated[f"{name}_error"])
    if away is None or not math.isfinite(figure) or not math.isfinite(error):
        return None
    with np.errstate(all="ignore"):
        low, high = np.exp(figure - _wider(units) * error * np.array(away[::-1]))
    return (float(low), float(high)) if math.isfinite(high) else None


def cov_interval(once: Mapping[str, Floats], replicated: Mapping[str, Floats], units: int) -> Interval | None:
    """Of the coefficient of variation, in %."""
    ends = studentised_interval(once, replicated, "log_cov", units)
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def icc_interval(
    once: Mapping[str, Floats], replicated: Mapping[str, Floats], moments: Moments, units: int
) -> Interval | None:
    """Of the ICC of groups with these `moments`, of which so many `units` are drawn."""
    ends = studentised_interval(once, replicated, "log_f", units)
    return None if ends is None else (icc_from(ends[0], moments), icc_from(ends[1], moments))


def replicate(
    resampled: Mapping[str, Resampled | GroupMoments],
    seed: int,
    groups: int,
    replicates: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Floats]]:
    """The replicated figures of several sets of values under the same draws of the same groups."""
    blocks: dict[str, list[dict[str, Floats]]] = {name: [] for name in resampled}
    done = 0
    for drawn in weights(seed, groups, replicates):
        for name, values in resampled.items():
            blocks[name].append(values.figures(drawn))
        done += len(drawn)
        if progress is not None:
            progress(done, replicates)
    return {
        name: {figure: np.concatenate([part[figure] for part in parts]) for figure in parts[0]}
        for name, parts in blocks.items()
    }


def replicate_icc(moments: Moments, seed: int, replicates: int) -> Interval | None:
    """The interval of the ICC of groups that are drawn with replacement."""
    groups, count = GroupMoments(moments), len(moments.size)
    return groups.interval(replicate({"icc": groups}, seed, count, replicates)["icc"], count)
