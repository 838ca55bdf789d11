"""The Gaussian process over scaled settings: beside scikit-learn's, and where there is little to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.tuning.search import LENGTHS, Process


def surface(points: np.ndarray) -> np.ndarray:
    """Quick along the first axis, slow along the second, the same along the third."""
    return np.asarray(np.sin(9 * points[:, 0]) + 0.3 * points[:, 1])


def test_predictions_are_those_of_scikit_learn_with_the_same_kernel() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    random = np.random.default_rng(1)
    points, elsewhere = random.random((14, 3)), random.random((200, 3))
    values = surface(points) + 0.05 * random.standard_normal(14)
    process = Process(noise=0.05).fit(points, values)
    mean, sd = process.predict(elsewhere)
    assert set(process.lengths.tolist()) <= set(LENGTHS)

    kernel = Matern(process.lengths, nu=2.5)
    alternative = GaussianProcessRegressor(kernel, alpha=(0.05 / values.std()) ** 2, optimizer=None)
    alternative.fit(points, (values - values.mean()) / values.std())
    other_mean, other_sd = alternative.predict(elsewhere, return_std=True)
    np.testing.assert_allclose(mean, values.mean() + values.std() * other_mean, atol=1e-8)
    amplitudes = sd / other_sd
    np.testing.assert_allclose(amplitudes, amplitudes[0], rtol=1e-6)


def test_it_learns_which_axis_matters_and_how_sure_it_is() -> None:
    random = np.random.default_rng(2)
    points, elsewhere = random.random((40, 3)), random.random((500, 3))
    process = Process(noise=0.01).fit(points, surface(points) + 0.01 * random.standard_normal(40))
    assert process.lengths[0] < process.lengths[2]
    mean, sd = process.predict(elsewhere)
    errors = np.abs(mean - surface(elsewhere))
    assert np.median(errors) < 0.1  # of values with a standard deviation of 0.7
    assert np.mean(errors < 2 * sd) > 0.9


def test_a_noisy_value_counts_less() -> None:
    points = np.array([[0.0], [0.5], [0.5], [1.0]])
    values = np.array([0.0, 0.2, 1.0, 0.0])
    process = Process().fit(points, values, np.array([0.01, 0.01, 1.0, 0.01]))
    assert process.predict(np.array([[0.5]]))[0][0] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("points", "values"),
    [
        (np.array([[0.3, 0.7]]), np.array([2.0])),
        (np.tile([[0.3, 0.7]], (4, 1)), np.array([2.0, 2.01, 1.99, 2.0])),
        (np.random.default_rng(3).random((5, 2)), np.full(5, 2.0)),
        (np.random.default_rng(3).random((5, 9)), np.full(5, 2.0)),
    ],
    ids=["one point", "one point repeated", "equal values", "many axes"],
)
def test_little_to_learn_from(points: np.ndarray, values: np.ndarray) -> None:
    mean, sd = Process(noise=0.01).fit(points, values).predict(np.ones((3, points.shape[1])))
    np.testing.assert_allclose(mean, 2.0, atol=0.02)
    assert (sd > 0).all()
    assert np.isfinite(sd).all()
