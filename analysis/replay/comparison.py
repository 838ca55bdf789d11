"""Policies against baselines, seed by seed: the mean of the paired differences, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ..statistics.student import quantile
from .study import Replayed

BASELINES = ("packed", "drain-outliers")
FIGURES = ("avg_jct_s", "p99_jct_s", "makespan_s")
CONFIDENCE = 0.9
LEAST_PCT = 0.05
"""What rounds to 0.0 % is no gain: seeds may agree to the last bit of their rounding errors."""


@dataclass(frozen=True)
class Gain:
    """By how much a policy shortens a time against a baseline, in % of the baseline's; negative: it lengthens it.

    The mean over the seeds is that of the ratios of the two times (geometric), and the interval is that mean's, by
    Student's t on their logarithms: it says what chance in the scores, the draws and the failures does to the mean,
    for this trace and this fleet, and nothing about other traces.
    """

    trace: str
    scheduler: str
    policy: str
    against: str
    figure: str
    n: int
    """Seeds, each a paired difference."""
    mean_pct: float
    lower_pct: float | None
    upper_pct: float | None
    """Of the 90 % interval; None for one seed."""
    measurable: bool
    """The interval is there and does not come as near to 0 as `LEAST_PCT`."""
    per_seed: tuple[tuple[int, float], ...]
    """(seed, gain in %)."""

    def as_text(self) -> str:
        """The mean with its interval, to a tenth of a percent."""
        mean, lower, upper = (
            None if x is None else round(x, 1) + 0.0 for x in (self.mean_pct, self.lower_pct, self.upper_pct)
        )
        if lower is None or upper is None:
            return f"{mean:+.1f} %"
        return f"{mean:+.1f} % [{lower:+.1f}, {upper:+.1f}]"

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["per_seed"] = [{"seed": seed, "gain_pct": gain} for seed, gain in self.per_seed]
        return found


def gains(
    results: Sequence[Replayed], against: Sequence[str] = BASELINES, figures: Sequence[str] = FIGURES
) -> list[Gain]:
    """Every policy against each other baseline that was replayed, by trace, scheduler and figure."""
    groups: dict[tuple[str, str, int], dict[str, dict[int, Replayed]]] = {}
    for result in results:
        case = result.case
        group = groups.setdefault((result.trace, case.scheduler, case.trace), {})
        group.setdefault(case.policy, {})[case.seed] = result
    found = []
    for (trace, scheduler, _), policies in groups.items():
        for baseline in against:
            for policy, own in policies.items():
                if policy == baseline or baseline not in policies:
                    continue
                for figure in figures:
                    pairs = tuple(
                        (seed, _gain(getattr(own[seed].metrics, figure), getattr(other.metrics, figure)))
                        for seed, other in sorted(policies[baseline].items())
                        if seed in own
                    )
                    found.append(summary(trace, scheduler, policy, baseline, figure, pairs, interval))
    return found


def _gain(own: float, other: float) -> float:
    return 100 * (1 - own / other)


Interval = Callable[[Sequence[float]], tuple[float | None, float | None]]


def summary(
    trace: str,
    scheduler: str,
    policy: str,
    against: str,
    figure: str,
    pairs: tuple[tuple[int, float], ...],
    limits: Interval,
) -> Gain:
    """The gain of (seed, gain in %), with an interval by `limits`."""
    # Averaged as ratios, for which twice as fast and half as fast cancel.
    logs = [math.log1p(-gain / 100) for _, gain in pairs]
    low, high = limits(logs)
    mean = _as_gain(fmean(logs))
    lower, upper = (None, None) if low is None or high is None else (_as_gain(high), _as_gain(low))
    measurable = lower is not None and upper is not None and (lower >= LEAST_PCT or upper <= -LEAST_PCT)
    return Gain(trace, scheduler, policy, against, figure, len(pairs), mean, lower, upper, measurable, pairs)


def _as_gain(log: float) -> float:
    return -100 * math.expm1(log) + 0.0  # no minus zero


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """The two-sided interval of the mean by Student's t; None, None for fewer than two values."""
    return _about_mean(values, confidence, 1 / max(1, len(values)))


def foretold(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """The two-sided interval in which one more value would lie; None, None for fewer than two.

    Where there are enough values (19 for 90 %), by their ranks: one more is as likely to be below the lowest as between
    any two that are neighbours, whatever their distribution. Else by Student's t. It grows no narrower with more
    values: they only tell better how far values lie apart.
    """
    tail = (1 - confidence) / 2
    if (len(values) + 1) * tail < 1 - 1e-9:
        return _about_mean(values, confidence, 1 + 1 / max(1, len(values)))
    low, high = np.quantile(values, (tail, 1 - tail), method="weibull").tolist()
    return low, high


def _about_mean(values: Sequence[float], confidence: float, share: float) -> tuple[float | None, float | None]:
    """The mean and about it what a variance of `share` times that of a value reaches."""
    n = len(values)
    if n < 2:
        return None, None
    mean = fmean(values)
    half = float(quantile((1 - confidence) / 2, n - 1)) * stdev(values) * math.sqrt(share)
    return mean - half, mean + half
