"""What is quick gives what the plain formula gives: the test that deals runs, likelihoods, the prior, quantiles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from whorl.analysis.placement import prior, repeatable
from whorl.analysis.placement.noise import Noise, Singles, noises
from whorl.analysis.placement.posterior import posterior
from whorl.analysis.placement.repeatable import permutation_test
from whorl.analysis.statistics.ordering import Floats, Ints
from whorl.tests.analysis.placement.test_posterior import _observed

SIZES = {"alike": np.full(300, 5), "unlike": np.arange(300) % 11 + 1, "two runs": np.full(300, 2)}


def _fleet(size: Ints, seed: int = 3) -> tuple[Floats, Ints]:
    """Log times by GPU of a fleet with slow GPUs, glitches and a GPU whose runs disagree."""
    rng = np.random.default_rng(seed)
    level = rng.normal(0.0, 0.01, len(size)) + np.where(rng.random(len(size)) < 0.03, 0.2, 0.0)
    x = np.repeat(level, size) + 0.004 * rng.standard_t(3, int(size.sum()))
    x += np.where(rng.random(len(x)) < 0.02, 0.3, 0.0)
    starts = np.concatenate(([0], np.cumsum(size)))
    x[starts[7] : starts[8]] += np.linspace(0.0, 1.0, int(size[7]))
    return x, starts


def _plain_test(x: Floats, starts: Ints, rng: np.random.Generator, deals: int) -> tuple[float, Singles, list[float]]:
    """Every deal in full: p, the ratio of each GPU, and the largest ratio of each deal."""
    rows = repeatable._rows(x)
    own = int(np.argmax(rows.sum(axis=0, dtype=np.float64)))

    def ratios(dealt: Ints) -> Singles:
        found = []
        for first, last in pairwise(starts):
            total = rows[dealt[first]].copy()
            for place in range(first + 1, last):
                total += rows[dealt[place]]
            found.append(total.max() - total[own])
        return np.array(found, dtype=np.float32)

    seen = ratios(np.arange(len(x)))
    dealt = [ratios(np.arange(len(x))[rng.permutation(len(x))]) for _ in range(deals)]
    total, most = seen.sum(dtype=np.float64), seen.max()
    above = 1 + sum(one.sum(dtype=np.float64) >= total for one in dealt), 1 + sum(one.max() >= most for one in dealt)
    return min(1.0, 2.0 * min(above) / (1 + deals)), seen, [float(one.max()) for one in dealt]


@pytest.mark.long
@pytest.mark.parametrize("which", ["unlike"])
@pytest.mark.parametrize("many", [100, 50_000])
def test_a_deal_that_is_not_looked_at_in_full_changes_nothing(
    which: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`many`: more runs than that make a large fleet, of which most deals are looked at in part."""
    monkeypatch.setattr(repeatable, "_MANY", many)
    x, starts = _fleet(np.maximum(SIZES[which], 2))
    looked = []
    largest = repeatable._Turns.largest
    monkeypatch.setattr(
        repeatable._Turns, "largest", lambda *given: looked.append(largest(*given)) or looked[-1]  # type: ignore[func-returns-value]
    )  # fmt: skip
    found = permutation_test(x, starts, np.full(len(x), -1), np.random.default_rng(5))
    p, seen, most = _plain_test(x, starts, np.random.default_rng(5), 99 if many == 100 else 199)
    assert found is not None
    assert found.p == p
    assert found.standing_out.any()
    assert np.array_equal(found.standing_out, seen > np.quantile(most, 1.0 - repeatable.STANDING_OUT))
    assert looked == (most[repeatable._SUMS :] if many == 100 else [])


@pytest.mark.parametrize("which", SIZES)
def test_likelihoods_are_sums_of_log_densities_to_the_last_bit(which: str) -> None:
    x, starts = _fleet(SIZES[which])
    on = prior.atoms(prior.centres(x, starts), 0.004)
    its = noises(x, starts, 0.004, float(np.ptp(x)) + 1.0)

    def looked_up(noise: Noise, deviation: Floats) -> Singles:
        at = np.rint(deviation * (1.0 / noise.step)).astype(np.int32) + len(noise.table) // 2
        return noise.table[np.clip(at, 0, len(noise.table) - 1)]

    log = np.array([np.add.reduceat(looked_up(one, x[:, None] - on.at[None, :]), starts[:-1], axis=0) for one in its])
    each = np.exp(log - log.max(axis=(0, 2))[None, :, None])
    fits = each.sum(axis=2, dtype=np.float64)
    usual = np.full(len(its), 1.0 / len(its))
    for _ in range(30):
        usual = (usual[:, None] * fits / (usual @ fits)).mean(axis=1)
    mixed = np.tensordot(usual.astype(np.float32), each, axes=1)
    assert np.array_equal(prior.likelihoods(x, starts, on.at, its), mixed / mixed.max(axis=1, keepdims=True))


def test_fits_that_take_their_steps_together_are_those_of_each_alone() -> None:
    """To the rounding of single precision: a sum in another order is another in its last bits."""
    x, starts = _fleet(SIZES["alike"])
    on = prior.atoms(prior.centres(x, starts), 0.004)
    likelihood = prior.likelihoods(x, starts, on.at, noises(x, starts, 0.004, float(np.ptp(x)) + 1.0))
    drawn = np.random.default_rng(2).exponential(size=(6, len(starts) - 1))
    start = np.full(len(on.at), 1.0 / len(on.at))
    found = prior._em(likelihood, start, drawn, 30)
    for own, counts in zip(found, drawn, strict=True):
        weights, share = start.copy(), counts / counts.sum()
        for _ in range(30):
            moved = weights * ((share / (likelihood @ weights)) @ likelihood)
            moved /= moved.sum()
            change, weights = np.abs(moved - weights).sum(), moved
            if change < prior._SETTLED:
                break
        assert own == pytest.approx(weights, abs=2e-6)


@pytest.mark.parametrize("width", [0.3, 30.0, 3000.0])
def test_quantiles_of_posteriors_are_found_row_by_row(width: float) -> None:
    """`width`, in atoms: of posteriors as narrow as they are, and so wide that the places must be searched."""
    rng = np.random.default_rng(4)
    at = 0.002 * np.arange(200.0)
    weights = np.exp(-0.5 * ((at / 0.002 - rng.uniform(0, 199, (300, 1))) / width) ** 2) * rng.random((300, 200))
    on = prior.Atoms(at, 0.002, 0.004)
    found = prior.quantiles(weights, on, prior.PROBABILITIES)
    for row, own in zip(found, weights, strict=True):
        reach = np.cumsum(own) / own.sum()
        place = np.minimum(np.searchsorted(reach, prior.PROBABILITIES), 199)
        before = np.where(place > 0, reach[np.maximum(place - 1, 0)], 0.0)
        inside = np.clip((prior.PROBABILITIES - before) / np.maximum(reach[place] - before, 1e-300), 0.0, 1.0)
        assert row == pytest.approx(at[place] + 0.002 * (inside - 0.5), abs=1e-12)


def test_each_gpu_has_the_quantiles_of_its_own_posterior() -> None:
    rng = np.random.default_rng(6)
    level = rng.normal(0.0, 0.03, (300, 1))
    seen = _observed(level + rng.normal(0.0, 0.003, (300, 4)))
    found = posterior(seen, np.random.default_rng(1), 3)
    assert found.repeatable
    assert np.corrcoef(found.belief, level[:, 0])[0, 1] > 0.99
    assert found.belief == pytest.approx(found.table[:, found.row].mean(axis=0) @ prior.MASS, abs=1e-12)
