"""Many tests at once: one p-value of several, and false discovery rates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt



def simes(p_values: Floats, counted: npt.NDArray[np.bool_] | None = None) -> Floats:
    """(columns,) one p-value for each column of (tests, columns), by Simes' rule (Biometrika 73, 1986).

    `counted`: (tests, columns), which of them were made; 1 where none was.
    """
    there = np.ones(p_values.shape, dtype=bool) if counted is None else counted
    ranked = np.sort(np.where(there, p_values, 2.0), axis=0)
    n, rank = there.sum(axis=0), np.arange(1, len(p_values) + 1)[:, None]
    return np.asarray(np.where(rank <= n, ranked * n / rank, 1.0).min(axis=0, initial=1.0))


def discoveries(p_values: Floats, tests: int) -> Floats:
    """(n,) the q-value of each p-value by Benjamini and Hochberg (J. R. Statist. Soc. B 57, 1995), of so many tests:
    those that are left out count as larger."""
    # scipy.stats has the same, and takes a second to import.
    order = np.argsort(p_values)
    ranked = p_values[order] * max(tests, len(p_values)) / np.arange(1, len(p_values) + 1)
    q_values = np.empty_like(p_values)
    q_values[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return q_values
