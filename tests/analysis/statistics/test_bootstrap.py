"""The fast bootstrap against the laid-out resample, and its intervals against the truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from whorl.analysis.statistics import bootstrap

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def expanded(values: Floats, groups: Ints, drawn: npt.NDArray[np.int32]) -> dict[str, float]:
    """The figures of a resample that is really laid out, a group drawn twice as two groups."""
    parts = [values[groups == g] for g, times in enumerate(drawn) for _ in range(times)]
    x = np.sort(np.concatenate(parts))
    p5, q1, median, q3, p95 = np.quantile(x, [0.05, 0.25, 0.5, 0.75, 0.95])
    inside = x[(x >= q1 - 1.5 * (q3 - q1)) & (x <= q3 + 1.5 * (q3 - q1))]
    k, n, grand = len(parts), len(x), x.mean()
    figures_by_name = {
        "median": median,
        "fence_pct": 400 * (q3 - q1) / median,
        "whisk_pct": 100 * (inside.max() - inside.min()) / median,
        "p95p5_pct": 100 * (p95 - p5) / median,
        "cov_pct": 100 * x.std(ddof=1) / x.mean() if n > 1 else np.nan,
        "worst_over_median": x.max() / median,
        "icc": np.nan,
    }
    if 1 < k < n:
        msb = sum(len(p) * (p.mean() - grand) ** 2 for p in parts) / (k - 1)
        msw = sum(((p - p.mean()) ** 2).sum() for p in parts) / (n - k)
        n0 = (n - sum(len(p) ** 2 for p in parts) / n) / (k - 1)
        between = max(0.0, (msb - msw) / n0)
        figures_by_name["icc"] = between / (between + msw) if between + msw > 0 else np.nan
    return {name: float(figure) for name, figure in figures_by_name.items()}


@pytest.mark.parametrize("kind", ["continuous", "tied", "two values", "heavy tail"])
def test_every_replicate_equals_the_laid_out_resample(kind: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng([seed, len(kind)])
        gpus = int(rng.integers(2, 12))
        groups = np.repeat(np.arange(gpus), rng.integers(1, 60, gpus))
        n = len(groups)
        values = {
            "continuous": rng.normal(100, 1, n) + rng.normal(0, 2, gpus)[groups],
            "tied": rng.integers(95, 105, n).astype(float),
            "two values": rng.choice([64.0, 66.0], n),
            "heavy tail": 100 + rng.standard_cauchy(n) ** 2,
        }[kind]
        order = np.argsort(values)
        fast = bootstrap.Resampled(values[order], groups[order], gpus)
        drawn = next(bootstrap.weights(seed, gpus, 20))
        drawn_figures = fast.figures(drawn)
        for row in range(20):
            slow = expanded(values, groups, drawn[row])
            for name, figure in slow.items():
                if name == "icc" and slow["cov_pct"] < 1e-9:
                    continue  # nothing varies: rounding decides
                assert drawn_figures[name][row] == pytest.approx(figure, rel=1e-9, abs=1e-9, nan_ok=True), name


def simulated(seed: int, gpus: int, runs: int) -> tuple[Floats, Ints]:
    rng = np.random.default_rng([77, seed])
    gpu = np.repeat(np.arange(gpus), runs)
    return 100 + rng.normal(0, 2, gpus)[gpu] + rng.normal(0, 1, len(gpu)), gpu


@pytest.mark.long
def test_the_intervals_cover_the_truth() -> None:
    """Normal fleets of 100 GPUs: in how many of them the 95 % intervals hold the truth.

    A percentile interval is a little too narrow; the bounds allow that and the noise of so many fleets.
    """
    sd, z25, z05 = np.sqrt(5.0), 0.6744897501960817, 1.6448536269514722
    truth = {
        "median": 100.0,
        "fence_pct": 800 * z25 * sd / 100,
        "p95p5_pct": 200 * z05 * sd / 100,
        "cov_pct": sd,
        "icc": 0.8,
    }
    hits = dict.fromkeys(truth, 0)
    fleets = 150
    noise = 3 * np.sqrt(0.05 * 0.95 / fleets)
    for seed in range(fleets):
        values, gpu = simulated(seed, 100, 8)
        order = np.argsort(values)
        fast = bootstrap.Resampled(values[order], gpu[order], 100)
        replicates = bootstrap.replicate({"run": fast}, seed, 100, 200)["run"]
        once = fast.figures(np.ones((1, 100), dtype=np.int32))
        for name, true in truth.items():
            interval = bootstrap.percentile_interval(replicates[name])
            if name == "cov_pct":
                interval = bootstrap.cov_interval(once, replicates, 100)
            if name == "icc":
                interval = bootstrap.icc_interval(once, replicates, fast.moments, 100)
            assert interval is not None
            hits[name] += interval[0] <= true <= interval[1]
    for name, held in hits.items():
        assert 0.933 - noise <= held / fleets <= 0.952 + noise, (name, held / fleets)
