"""Laws of chance against `scipy.stats`, which whorl does without, as it takes a second to import."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy
from scipy import stats

from whorl.analysis.statistics import bootstrap, ordering
from whorl.analysis.statistics.modes import dip, dip_p, modes_test, places, quantum
from whorl.analysis.statistics.ordering import correlate, spearman_interval
from whorl.tests.sizes import count


def test_the_laws_are_those_of_scipy() -> None:
    t, counts, means = np.array([-30.0, -1.0, 0.3, 2.0, 1e4]), np.arange(30), np.array([[1e-9], [0.3], [40.0]])
    for freedom in (1, 2.1, 7, 1400):
        assert ordering.upper_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-8)
        assert ordering.quantile([0.25, 0.005], freedom) == pytest.approx(stats.t.isf([0.25, 0.005], freedom))
        assert ordering.log_density(t, freedom) == pytest.approx(stats.t.logpdf(t, freedom))
    assert ordering.poisson(counts, means) == pytest.approx(stats.poisson.pmf(counts, means), rel=1e-9)
    assert ordering.poisson_at_least(counts, means) == pytest.approx(stats.poisson.sf(counts - 1, means), rel=1e-9)
    assert ordering.binomial(40, 0.125) == pytest.approx(stats.binom.pmf(np.arange(41), 40, 0.125), rel=1e-9)
    for successes, draws in ((0, 5), (5, 5), (1, 30), (7, 12)):
        exact = stats.binomtest(successes, draws).proportion_ci(method="exact")
        assert ordering.share_interval(successes, draws) == pytest.approx((exact.low, exact.high))
    p_values = np.array([0.2, 0.001, 0.03, 0.5])
    assert ordering.discoveries(p_values, 4) == pytest.approx(stats.false_discovery_control(p_values))


@pytest.mark.parametrize(("freedom", "kurtosis", "least"), [(1e9, 3.0, 0.93), (5.0, 9.0, 0.91)])
def test_the_interval_of_a_standard_deviation_holds_the_true_value(
    freedom: float, kurtosis: float, least: float
) -> None:
    """Of 12 values of a normal distribution, and of Student's t with 5 degrees, whose kurtosis is 9."""
    assert np.array(ordering.interval_of_sd(2.0, 9)) ** 2 == pytest.approx((36 / 19.0228, 36 / 2.70039), rel=1e-5)
    random, n, repeats = np.random.default_rng(3), 12, 1_000
    values, true = random.standard_t(freedom, (repeats, n)), float(np.sqrt(freedom / (freedom - 2)))
    ends = np.array([ordering.interval_of_sd(float(drawn.std(ddof=1)), n - 1, kurtosis) for drawn in values])
    assert np.mean((ends[:, 0] <= true) & (true <= ends[:, 1])) >= least


@pytest.mark.long
def test_the_interval_of_spearman_covers() -> None:
    rho, n, hits = 0.6, 60, 0
    true = 6 / np.pi * np.arcsin(rho / 2)
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=n)
        y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=n)
        spearman = correlate(x, y, "y").spearman
        assert spearman is not None
        interval = spearman_interval(spearman, n)
        assert interval is not None
        hits += interval[0] <= true <= interval[1]
    assert 920 <= hits <= 980  # 95 %, four standard errors and a little of the approximation


def test_the_interval_of_a_median_holds_it_95_times_of_100_and_needs_six_values() -> None:
    assert ordering.median_interval(np.arange(5.0)) == (None, None)
    for n in range(6, 400):
        low, high = ordering.median_interval(np.arange(float(n)))
        assert low is not None
        assert high == n - 1 - low
        # Of n values as many are below the median as heads fall in n throws.
        outside, nearer = 2 * scipy.special.bdtr([low, low + 1], n, 0.5)
        assert outside <= 0.05, n
        assert nearer > 0.048, f"{n}: it need not be so wide"


# -- modes -------------------------------------------------------------------------------------------------------------
# The dip against a linear programme, its p-values against fresh simulation, the modes against known mixtures.


def test_dip_of_plain_cases() -> None:
    assert dip(np.arange(50.0)) == pytest.approx(1 / 100)  # evenly spaced: as unimodal as can be
    assert dip(np.repeat([0.0, 1.0], 25)) == pytest.approx(0.25)  # two equal atoms: the largest there is
    x = np.sort(np.random.default_rng(0).normal(size=300))
    assert dip(7.0 + 3.0 * x) == pytest.approx(dip(x), rel=1e-9)
    assert dip(np.sort(-x)) == pytest.approx(dip(x), rel=1e-9)


@pytest.mark.parametrize("n", [4, 7, 13, 40, 150, 3000])
def test_p_values_of_uniform_samples_are_uniform(n: int) -> None:
    rng = np.random.default_rng([12, n])
    samples = count(200, short=60)
    p = np.array([dip_p(dip(np.sort(rng.random(n))), n) for _ in range(samples)])
    for level in (0.05, 0.1, 0.5):
        # Few values share the least possible dip: then p = 1 is common and the test only more careful.
        assert (p <= level).mean() <= level + 4 * np.sqrt(level * (1 - level) / samples)
        if n > 10:
            assert (p <= level).mean() >= level - 4 * np.sqrt(level * (1 - level) / samples)


@pytest.mark.parametrize("step", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("runs", [1, 4, 5])
def test_rounding_to_a_few_levels_is_no_mode(step: float, runs: int) -> None:
    alarms, samples = 0, count(40, short=10)
    for seed in range(samples):
        rng = np.random.default_rng([14, runs, seed])
        x = np.round((rng.normal(0, 1, (500, 1)) + rng.normal(0, 0.5, (500, runs))) / step) * step
        test = modes_test(np.sort(np.median(x, axis=1)), quantum(np.sort(x.ravel())))
        alarms += test.p is not None and test.p < 0.05
    assert alarms <= samples * 0.05 + 3 * np.sqrt(samples * 0.05 * 0.95)


@pytest.mark.parametrize("shares", [(0.12, 0.88), (0.5, 0.5), (0.2, 0.5, 0.3), (0.3, 0.1, 0.4, 0.2)])
def test_heaps_are_found_where_they_are(shares: tuple[float, ...]) -> None:
    for seed in range(count(20, short=5)):
        rng = np.random.default_rng([15, seed])
        sizes = np.round(400 * np.array(shares)).astype(int)
        x = np.sort(np.concatenate([rng.normal(100 + 10 * i, 1, size) for i, size in enumerate(sizes)]))
        test = modes_test(x, quantum(x))
        assert test.p is not None
        assert test.p < 0.05
        modes = places(x, test.splits)
        assert [mode["n"] for mode in modes] == sizes.tolist()
        assert [mode["median"] for mode in modes] == pytest.approx([100 + 10 * i for i in range(len(sizes))], abs=1.0)
        assert sum(mode["share"] for mode in modes) == pytest.approx(1.0)


def test_too_little_to_test() -> None:
    few = modes_test(np.array([1.0, 2.0, 3.0]), 1.0)
    assert (few.dip, few.p, few.reason) == (None, None, "fewer than 4 GPUs")
    same = modes_test(np.full(9, 2.0), 0.0)
    assert (same.p, same.reason) == (None, "every value is the same")


# -- bootstrap ---------------------------------------------------------------------------------------------------------
# The fast bootstrap against the laid-out resample, and its intervals against the truth.


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
                interval = bootstrap.icc_interval(once, replicates, fast.groups.moments, 100)
            assert interval is not None
            hits[name] += interval[0] <= true <= interval[1]
    for name, held in hits.items():
        assert 0.933 - noise <= held / fleets <= 0.952 + noise, (name, held / fleets)
