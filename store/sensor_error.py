"""How wrong power sensors are: gain and offset of boards that were held against an external meter.

A sensor reads (1 + g) x true power + o. Gain and offset differ between boards of one model too, and nobody knows those
of a given board, so it is taken for one more board of the population below. Solved for the truth, energy is
(1 + h) x read energy + p x time with h = 1 / (1 + g) - 1 and p = -o / (1 + g): linear, so that it adds up.

Only numpy is needed: nodes use it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""
_STUDENT_95 = 2.100922
"""97.5 % quantile of Student's t with 18 degrees of freedom, one less than there are boards."""

# The boards of Yang, Adamek, Armour, SC24, doi 10.1109/SC41406.2024.00028; figures from the data of their repository
# JimZeyuYang/GPU_Power_Benchmark, steady-state accuracy. Gain in %, offset in W.
MEASURED_BOARDS = (
    ("RTX 3090", -5.493, 3.4686), ("RTX 3090", -0.6464, -1.6615), ("RTX 3090", -1.772, 3.9206),
    ("RTX 3090", 1.4763, -5.0714), ("RTX 3090", 1.7246, -8.5276), ("RTX 4090", 4.4503, -12.354),
    ("RTX 3070 Ti", 0.3940, -4.8016), ("RTX 2080 Ti", -3.3428, -5.7953), ("RTX 2060 SUPER", -1.3034, 11.8485),
    ("TITAN X Pascal", -2.5911, 2.5377), ("GTX 1080 Ti", -0.1220, -0.3343), ("GTX 1080", 6.3630, -5.1553),
    ("TITAN X", 1.0577, 1.2307), ("RTX A5000", -9.4997, 8.764), ("A100 PCIe", -4.5826, -1.2103),
    ("P100", -0.7221, 0.8832), ("M40", -2.8742, 1.4497), ("K80", -3.6307, -6.2932), ("K40m", 2.4105, 0.8057),
)  # fmt: skip


@dataclass(frozen=True)
class SensorError:
    """What is known of the error of a board's sensor, before anybody measures this board.

    `mean` and `covariance` are of (h, p): h is a share, p in W. `boards` is how many were measured (None: the site
    states the error, so that the mean is exact); `quantile` makes a standard deviation the half of a 95 % interval.
    """

    mean: tuple[float, float]
    covariance: tuple[tuple[float, float], tuple[float, float]]
    boards: int | None
    quantile: float

    @classmethod
    def measured(cls, gains_pct: Sequence[float], offsets_w: Sequence[float], quantile: float) -> Self:
        """The error of one more board of a population. `quantile`: of Student's t, one degree less than boards."""
        gain = np.asarray(gains_pct, float) / 100
        solved = np.stack([1 / (1 + gain) - 1, -np.asarray(offsets_w, float) / (1 + gain)])
        (a, b), (c, d) = np.cov(solved).tolist()
        h, p = solved.mean(axis=1).tolist()
        return cls((h, p), ((a, b), (c, d)), len(gain), quantile)

    @classmethod
    def stated(cls, gain_pct: float, offset_w: float) -> Self:
        """The error that a site states: 95 % of its boards are within ±`gain_pct` % and, apart from it, ±`offset_w`."""
        gain, offset = gain_pct / 100 / NORMAL_95, offset_w / NORMAL_95
        return cls((0.0, 0.0), ((gain**2, 0.0), (0.0, offset**2)), None, NORMAL_95)

    def variance(self, energy_j: Floats, seconds: Floats) -> Floats:
        """The variance of one board's error, J^2; boards are independent, so it adds up over boards."""
        (hh, hp), (_, pp) = self.covariance
        return hh * energy_j**2 + 2 * hp * energy_j * seconds + pp * seconds**2

    def ends(
        self, energy_j: Floats, seconds: Floats, over_boards: Floats, variance_j2: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """What to add to read energy for the two ends of the 95 % interval of the sum over boards, J.

        `energy_j` and `seconds` are sums over boards; `over_boards` is the sum of each board's `variance`, and
        `variance_j2` that of what else is unsure, such as sampling. That the mean of the population is known from few
        boards only is an error that all boards share.
        """
        shared = 0.0 if self.boards is None else self.variance(energy_j, seconds) / self.boards
        board = self.quantile * np.sqrt(over_boards + shared)
        half = (NORMAL_95**2 * variance_j2 + board**2) ** 0.5
        middle = self.mean[0] * energy_j + self.mean[1] * seconds
        return middle - half, middle + half

    def describe(self) -> str:
        """It in words, for a person."""
        (hh, _), (_, pp) = self.covariance
        width = math.sqrt(1 + (1 / self.boards if self.boards else 0)) * self.quantile
        whose = f"as {self.boards} measured boards have it" if self.boards else "as the settings state it"
        gain, offset = 100 * width * math.sqrt(hh), width * math.sqrt(pp)
        return f"gain within ±{gain:.1f} % and offset within ±{offset:.0f} W, {whose}"


SENSOR_ERROR = SensorError.measured([b[1] for b in MEASURED_BOARDS], [b[2] for b in MEASURED_BOARDS], _STUDENT_95)
"""That of a board of which nothing is known."""
