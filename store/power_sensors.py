"""What the power sensors of GPUs see, by kind of chip: written once, for collectors, imports and energy.

Periods and windows were measured by Yang, Adamek and Armour (SC24, doi 10.1109/SC41406.2024.00028). What the driver
calls the power draw is a mean of 1 s from Ampere on, but for GA100 (NVIDIA's text of nvidia-smi).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


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
