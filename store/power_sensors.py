"""Power sensors of GPUs: what they see, by kind of chip, and how wrong they are; for collectors, imports and energy.

Periods, windows and errors were measured by Yang, Adamek and Armour (SC24, doi 10.1109/SC41406.2024.00028). What the
driver calls the power draw is a mean of 1 s from Ampere on, but for GA100 (NVIDIA's text of nvidia-smi).

A sensor reads (1 + g) x true power + o. Gain and offset differ between boards of one model too, and nobody knows those
of a given board, so it is taken for one more board of `MEASURED_BOARDS`, and of its model where that was measured.
Solved for the truth, energy is (1 + h) x read energy + p x time with h = 1 / (1 + g) - 1 and p = -o / (1 + g): linear,
so that it adds up. `analysis.energy.calibration` learns h and p of a board where the power of its node is known.

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

from .vocabulary import Code

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
BETWEEN_MODELS = 0.3
"""The share of the variance between boards that is between models. One-way analysis of variance of `MEASURED_BOARDS`,
of which five are of one model, gives 0.36 for h and 0.18 for p."""
BEND_W, LOAD_W = 9.0, 300.0
"""Lines of gain and offset are of boards under load. Without work two boards beside an external meter read 10 W (an RTX
4090: 21 W too little) and 8 W (an RTX A5000) less than theirs. So readings of no power may be off a line by `BEND_W`
(standard deviation), and those of `LOAD_W` by nothing; but not of models for data centres, whose measured boards are
within 7 W."""
_BENDS = re.compile(r"\b(GEFORCE|QUADRO|[RG]TX|TITAN)", re.IGNORECASE)

Pair = tuple[float, float]
Covariance = tuple[Pair, Pair]
_NONE: Covariance = ((0.0, 0.0), (0.0, 0.0))


class ErrorSource(Code):
    """What the error of a board's sensor is known from."""

    STATED = "stated", "the settings state it"
    CALIBRATED = "calibrated", "it was learnt from the power of the node (`whorl energy calibrate`)"
    MODEL = "model", "boards of this model were held against an external meter, and boards of other models"
    POPULATION = "population", "boards of other models were held against an external meter"


@dataclass(frozen=True)
class SensorError:
    """What is known of the error of a board's sensor, before anybody measures this board.

    `mean` and the covariances are of (h, p): h is a share, p in W. `covariance` is of what differs from board to board
    of a model, `shared` of what all of its boards have in common. `boards` is how many were measured (None: the site
    states the error, so that the mean is exact); `quantile` makes a standard deviation the half of a 95 % interval.
    """

    mean: Pair
    covariance: Covariance
    shared: Covariance
    boards: int | None
    quantile: float
    source: ErrorSource = ErrorSource.POPULATION

    @classmethod
    def of_model(
        cls,
        model: str | None,
        boards: Sequence[tuple[str, float, float]] = MEASURED_BOARDS,
        quantile: float = _STUDENT_95,
    ) -> Self:
        """The error of one more board of a model, by its product name (None: unknown), from measured boards: model,
        gain in %, offset in W. `quantile`: of Student's t, one degree less than there are boards.

        A board differs from the mean of its model, and that from the mean of all (a random effect of the model). Of a
        model with k boards, w = k r / (k r + 1 - r) of its distance from the mean of all is taken for its own; r is
        `BETWEEN_MODELS`.
        """
        solved = [(1 / (1 + gain / 100) - 1, -offset / (1 + gain / 100)) for _, gain, offset in boards]
        of_all = _mean(solved)
        sure = model is not None and sensor_of_model(model) is not None and not _BENDS.search(model)
        total = _covariance(solved, of_all, bend_w=0.0 if sure else BEND_W)
        of_model = [pair for pair, (name, _, _) in zip(solved, boards, strict=True) if _is_of(name, model)]
        weight = len(of_model) * BETWEEN_MODELS / (len(of_model) * BETWEEN_MODELS + 1 - BETWEEN_MODELS)
        near = _mean(of_model) if of_model else of_all
        mean = tuple(weight * near_value + (1 - weight) * far for near_value, far in zip(near, of_all, strict=True))
        unsure = BETWEEN_MODELS * (1 - weight) + (1 - weight) ** 2 / len(boards)
        return cls(
            (mean[0], mean[1]),
            _scaled(total, 1 - BETWEEN_MODELS),
            _scaled(total, unsure),
            len(boards),
            quantile,
            ErrorSource.MODEL if of_model else ErrorSource.POPULATION,
        )

    @classmethod
    def stated(cls, gain_pct: float, offset_w: float) -> Self:
        """The error that a site states: 95 % of its boards are within ±`gain_pct` % and, apart from it, ±`offset_w`."""
        gain, offset = gain_pct / 100 / NORMAL_95, offset_w / NORMAL_95
        covariance = ((gain**2, 0.0), (0.0, offset**2))
        return cls((0.0, 0.0), covariance, _NONE, None, NORMAL_95, ErrorSource.STATED)

    def of_board(self, model: str | None) -> SensorError:
        """This one where the site states it, else that of one more board of a model."""
        return self if self.boards is None else SensorError.of_model(model)

    def variance(self, energy_j: Floats, seconds: Floats) -> Floats:
        """The variance of one board's own error, J^2; boards are independent in it, so it adds up over boards."""
        return _quadratic(self.covariance, energy_j, seconds)

    def unknown(self, energy_j: Floats, seconds: Floats) -> Floats:
        """The variance of all of one board's error, J^2, with what boards of its model share."""
        return self.variance(energy_j, seconds) + _quadratic(self.shared, energy_j, seconds)

    def ends(
        self, energy_j: Floats, seconds: Floats, over_boards: Floats, variance_j2: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """What to add to read energy for the two ends of the 95 % interval of the sum over boards, J.

        `energy_j` and `seconds` are sums over boards; `over_boards` is the sum of each board's `variance`, and
        `variance_j2` that of what else is unsure, such as sampling.
        """
        import numpy as np

        board = self.quantile * np.sqrt(over_boards + _quadratic(self.shared, energy_j, seconds))
        half = (NORMAL_95**2 * variance_j2 + board**2) ** 0.5
        middle = self.mean[0] * energy_j + self.mean[1] * seconds
        return middle - half, middle + half


def _quadratic(covariance: Covariance, energy_j: Floats, seconds: Floats) -> Floats:
    (hh, hp), (_, pp) = covariance
    return hh * energy_j**2 + 2 * hp * energy_j * seconds + pp * seconds**2


def _mean(pairs: Sequence[Pair]) -> Pair:
    h, p = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return h, p


def _covariance(pairs: Sequence[Pair], mean: Pair, *, bend_w: float) -> Covariance:
    """The sample covariance, and that of a power which is off by so much at 0 W and right at `LOAD_W`."""
    apart = [(h - mean[0], p - mean[1]) for h, p in pairs]
    columns = list(zip(*apart, strict=True))
    (hh, hp), (_, pp) = (
        [math.fsum(map(operator.mul, left_column, right_column)) / (len(pairs) - 1) for right_column in columns]
        for left_column in columns
    )
    bent = bend_w / LOAD_W
    return (hh + bent**2, hp - bent * bend_w), (hp - bent * bend_w, pp + bend_w**2)


def _scaled(covariance: Covariance, factor: float) -> Covariance:
    (hh, hp), (_, pp) = covariance
    return (factor * hh, factor * hp), (factor * hp, factor * pp)


_NOT_THE_MODEL = re.compile(r"\b(NVIDIA|GEFORCE|TESLA|GTX|RTX|GRAPHICS|\d+GB)\b|[-_/()]")


def _is_of(name: str, model: str | None) -> bool:
    """Whether a product name is of the model that a measured board is called by."""
    words, measured = (_NOT_THE_MODEL.sub(" ", text.upper()).split() for text in (model or "", name))
    return words == measured or [word for word in words if word != "PCIE"] == measured


SENSOR_ERROR = SensorError.of_model(None)
"""That of a board of which nothing is known."""
