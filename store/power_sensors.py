"""Power sensors of GPUs: what they see, by kind of chip, and how wrong they are; for collectors, imports and energy.

Periods, windows and errors were measured by Yang, Adamek and Armour (SC24, doi 10.1109/SC41406.2024.00028). What the
driver calls the power draw is a mean of 1 s from Ampere on, but for GA100 (NVIDIA's text of nvidia-smi).

A sensor reads (1 + g) x true power + o. Gain and offset differ between boards of one model too, and nobody knows those
of a given board, so it is taken for one more board of `MEASURED_BOARDS`. Solved for the truth, energy is
(1 + h) x read energy + p x time with h = 1 / (1 + g) - 1 and p = -o / (1 + g): linear, so that it adds up.

Nodes use it too, without numpy as long as nothing is computed.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PowerSensor:
    """A kind of chip and its power sensor; times in ms, None where nobody has measured them."""

    chips: str
    architecture: int
    """NVML's number."""
    names: str
    """What the product names match, in capitals."""
    period_ms: int | None
    """How often there is a new value."""
    window_ms: int | None
    """Over how much time that value is averaged; the rest of the period is not seen."""
    draw_ms: int | None
    """The same of the power draw, which the driver may average once more."""
    of_module: bool = False
    """Whether the energy counter and the instantaneous reading are of the whole module, processor included."""


# The first row that a name matches counts. Maxwell and Kepler answer slowly, over some 200 ms, and average nothing.
POWER_SENSORS: tuple[PowerSensor, ...] = (
    PowerSensor("Grace Hopper", 9, r"\bGH200\b", 100, 20, 1000, of_module=True),
    PowerSensor("Hopper", 9, r"\bH(20|100|200|800)\b", 100, 25, 1000),
    PowerSensor("GA100", 7, r"\bA(30|100|800)X?\b", 100, 25, 25),
    PowerSensor("Blackwell", 10, r"\b(G?B[123]00|RTX PRO \d{4}|RTX 50\d0)\b", 100, None, 1000),
    PowerSensor("Ada", 8, r"\b(L(2|4|20|40S?)|RTX \d{4} ADA|RTX 40\d0)\b", 100, None, 1000),
    PowerSensor("Ampere", 7, r"\b(A(2|10[GM]?|16|40)|RTX A\d{3,4}|RTX 30\d0)\b", 100, 100, 1000),
    PowerSensor("Turing", 6, r"\b(T4G?|QUADRO RTX|TITAN RTX|RTX 20\d0|GTX 16\d0)\b", 100, 100, 100),
    PowerSensor("Volta", 5, r"\b(G?V100S?|TITAN V)\b", 20, 10, 10),
    PowerSensor("Pascal", 4, r"\b(G?P(4|6|40|100)|TITAN XP|TITAN X \(PASCAL|GTX 10\d0|QUADRO P\d+)\b", 20, 10, 10),
    PowerSensor("Maxwell", 3, r"\b(M(4|6|10|40|60)|GTX TITAN X|GTX 9\d0)\b", 20, None, None),
    PowerSensor("Kepler", 2, r"\bK(10|20|40|80)[CMSTX]?\b", 20, None, None),
)


@functools.lru_cache(1024)
def sensor_of_model(model: str | None) -> PowerSensor | None:
    """The power sensor of a GPU, by its product name; None where the name tells nothing."""
    name = (model or "").upper()
    name = re.sub(r"[-_/]+", " ", name)
    name = re.sub(r"\b(RTX|GTX)(?=[A0-9])", r"\1 ", name)
    return next((row for row in POWER_SENSORS if re.search(row.names, name)), None)


def sensor_of_chip(architecture: int, *, ga100: bool = False) -> PowerSensor | None:
    """The power sensor of a chip, by NVML's number of its architecture; the newest known one for a newer number."""
    rows = [row for row in POWER_SENSORS if row.chips != "Grace Hopper" and (row.chips == "GA100") <= ga100]
    older = [row for row in rows if row.architecture <= architecture]
    return max(older, key=lambda row: (row.architecture, row.chips == "GA100"), default=None)


NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""
_STUDENT_95 = 2.100922
"""97.5 % quantile of Student's t with 18 degrees of freedom, one less than there are boards."""

# The boards of the same study; figures from the data of its repository JimZeyuYang/GPU_Power_Benchmark, steady-state
# accuracy. Gain in %, offset in W.
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
        boards = len(gains_pct)
        gains = [gain_pct / 100 for gain_pct in gains_pct]
        solved = (
            [1 / (1 + gain) - 1 for gain in gains],
            [-offset_w / (1 + gain) for gain, offset_w in zip(gains, offsets_w, strict=True)],
        )
        h, p = (math.fsum(values) / boards for values in solved)
        from_mean = [value - h for value in solved[0]], [value - p for value in solved[1]]
        (a, b), (c, d) = (
            [math.fsum(map(operator.mul, row, column)) / (boards - 1) for column in from_mean] for row in from_mean
        )
        return cls((h, p), ((a, b), (c, d)), boards, quantile)

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
        import numpy as np

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
