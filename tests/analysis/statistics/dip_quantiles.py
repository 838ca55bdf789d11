"""Makes `analysis/statistics/dip_quantiles.csv`: quantiles of sqrt(n) * dip for n uniform values, by simulation.

    python tests/analysis/statistics/dip_quantiles.py > new.csv && mv new.csv analysis/statistics/dip_quantiles.csv

About six minutes on one core. `cell` makes one row; `test_modes.py` makes one again.
"""

from __future__ import annotations

import math
import sys

import numpy as np

SIZES = (4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
PROBABILITIES = (
    (0.0, 0.01, 0.02, 0.05, *(round(0.1 * i, 1) for i in range(1, 10)), 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
)  # fmt: skip
SEED = 1985


def samples(n: int) -> int:
    """How many samples of size `n` are drawn."""
    return 100_000 if n <= 200 else 50_000 if n <= 2000 else 20_000


def cell(n: int, count: int, seed: int = SEED) -> list[float]:
    """The quantiles of sqrt(n) * dip over `count` uniform samples of size `n`, one for each of PROBABILITIES."""
    from whorl.analysis.statistics.modes import dip

    rng = np.random.default_rng([seed, n])
    dips = [math.sqrt(n) * dip(np.sort(rng.random(n))) for _ in range(count)]
    return [round(float(q), 4) for q in np.quantile(dips, PROBABILITIES)]


def main() -> None:
    """Print the table."""
    lines = [
        "# Quantiles of sqrt(n) * dip for n values of a uniform distribution: a row for each n, a column for each",
        "# probability. Simulated by tests/analysis/statistics/dip_quantiles.py",
        f"# (numpy {np.__version__}, seed {SEED}): 100,000 samples for each n to 200, 50,000 to 2,000, 20,000 above.",
        "# Do not edit: make it again.",
        ",".join(["n", *(f"{p:g}" for p in PROBABILITIES)]),
    ]
    lines += [",".join([str(n), *(f"{q:.4f}" for q in cell(n, samples(n)))]) for n in SIZES]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
