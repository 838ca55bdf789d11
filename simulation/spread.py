"""How much the healthy GPUs of a simulated fleet differ, and the populations that a fleet can be drawn from.

    Fleet.draw(V100, 256, seed=1, spread=find_population("t5-silicon"))

Source: docs/how-we-know/simulation.md. What is fitted, is fitted to one public cluster of V100s; the rest is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import stream


@dataclass(frozen=True)
class Spread:
    """How much the GPUs of a fleet differ; dimensionless unless the name has a unit. Fitted on V100.

    "sd" is a standard deviation from GPU to GPU, if nothing else is said. A speed's sd is that of its logarithm.
    """

    voltage: float = 0.0176
    """sd of the voltage a clock needs, as a fraction."""
    leakage: float = 0.085
    """sd of ln leakage."""
    voltage_leakage_correlation: float = -0.6
    """Fast silicon needs less voltage and leaks more."""
    capacitance: float = 0.0115
    """sd of ln switching power."""
    sensor: float = 0.0083
    """sd of the gain of the power sensor."""
    board: float = 0.045
    """sd of the board power, as a fraction."""
    resistance: float = 0.045
    """sd of ln thermal resistance."""
    inlet_k: float = 4.2
    """sd of the inlet temperature from node to node ..."""
    cabinet_k: float = 0.0
    """... and from cabinet to cabinet."""
    dust: float = 0.0
    """By how much dust raises the thermal resistance of a node's GPUs on average, as a fraction; exponential."""
    preheat_k: float = 3.0
    """How much warmer the rear positions' air is without load ..."""
    preheat_k_w: float = 0.020
    """... and per watt, for the thermal resistance of a V100; it scales with the resistance."""

    compute: float = 0.001
    """sd of the speed of the multiprocessors at one clock."""
    memory: float = 0.0008
    """sd of the speed of the memory, bandwidth and latency alike."""
    link: float = 0.003
    """sd of the speed of copies from and to the host ..."""
    link_node: float = 0.0
    """... and from node to node."""
    peer: float = 0.003
    """sd of the speed of copies to another GPU of the node."""
    launch: float = 0.004
    """sd of the speed of launches ..."""
    launch_node: float = 0.004
    """... and from node to node: the host."""

    overlap_node: float = 0.01
    """sd, from node to node, of the share of copies that hides behind a kernel ..."""
    host_node: float = 0.02
    """... and of the share of its link that a GPU has when all of its node copy."""

    silicon_tail: float | None = None
    """Degrees of freedom of the t that voltage, leakage, switching power, thermal resistance and sensor follow
    together, and each of the speeds above by itself; None: normal."""
    silicon_skew: float = 0.0
    """Skewness of voltage and switching power (gamma): more GPUs are much slower than are much faster."""

    revision_share: float = 0.0
    """Share of the GPUs that have another board revision ..."""
    revision_compute: float = 0.0
    """... which computes so much faster at one clock, as a fraction ..."""
    revision_memory: float = 0.0
    """... and has so much faster memory."""
    revision_recorded: bool = True
    """Whether the VBIOS tells the revisions apart."""

    room_k: float = 0.2
    """sd of the inlet temperature of all GPUs from day to day ..."""
    node_day_k: float = 0.25
    """... and of a node's from day to day."""
    day: float = 1.2
    """sd of a GPU's ln time from day to day, as a multiple of the run-to-run noise of its workload ..."""
    day_tail: float | None = None
    """... and the degrees of freedom of its t; None: normal."""
    run_tail: float | None = None
    """Degrees of freedom of the t of the run-to-run noise; None: normal."""
    glitch_share: float = 0.0
    """Share of the runs that something unknown slows down ..."""
    glitch: float = 0.06
    """... by so much on average, as a fraction; exponential."""

    sensor_offset: float = 0.0
    """sd of what the power sensor adds to the power, as a share of the power limit."""
    counter_share: float = 0.0
    """Which share of the sensor's gain and offset the energy counter has; with none it is exact."""

    def __post_init__(self) -> None:
        """InputError for a value that nothing can be drawn from."""
        for name in ("silicon_tail", "day_tail", "run_tail"):
            tail = getattr(self, name)
            if tail is not None and not tail > 2:
                raise InputError(f"{name} of a spread must be above 2 degrees of freedom, or None, not {tail:g}")
        for name in ("revision_share", "glitch_share", "counter_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} of a spread is a share from 0 to 1, not {getattr(self, name):g}")
        if not -1 <= self.voltage_leakage_correlation <= 1:
            raise InputError(f"a correlation lies between -1 and 1, not at {self.voltage_leakage_correlation:g}")
        signed = ("voltage_leakage_correlation", "revision_compute", "revision_memory")
        for name in (column.name for column in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int | float) and name not in signed and not 0 <= value < inf:
                raise InputError(f"{name} of a spread must be a number of at least 0, not {value:g}")


# What was fitted to the public cluster, heavy tails and two speeds of memory included.
LONGHORN = Spread(
    voltage=0.0150,
    resistance=0.12,
    inlet_k=2.7,
    cabinet_k=2.2,
    memory=0.0003,
    revision_share=0.16,
    revision_memory=0.03,
    revision_recorded=False,
    day=1.6,
    day_tail=2.2,
    run_tail=3.0,
)

_MIXED = Spread(revision_share=0.16, revision_compute=0.03, revision_memory=0.03)
# name, what it is, spread
_POPULATIONS = (
    ("normal", "every difference is normal; no tails, one revision", Spread()),
    ("longhorn", "as fitted to the public cluster: tails, cabinets, two memory speeds", LONGHORN),
    ("t4-noise", "run-to-run noise with heavy tails: t with 4 degrees of freedom", Spread(run_tail=4.0)),
    ("t5-silicon", "silicon with heavy tails: t with 5 degrees of freedom", Spread(silicon_tail=5.0)),
    ("gamma-silicon", "skewed silicon: a long tail of slow GPUs", Spread(silicon_skew=2.0)),
    ("node", "hosts and their links differ from node to node", Spread(link_node=0.01, launch_node=0.03)),
    ("cabinets", "cabinets differ in their inlet air", Spread(cabinet_k=5.0)),
    ("dust", "some nodes cool worse than others", Spread(dust=0.08)),
    ("mixed", "16 % are another board revision, 3 % faster; the VBIOS tells which", _MIXED),
    ("mixed-unrecorded", "the same, and nothing tells which", replace(_MIXED, revision_recorded=False)),
    (
        "sensors",
        "power sensors and energy counters have a gain (sd 5 %) and an offset (1 % of the limit)",
        Spread(sensor=0.05, sensor_offset=0.01, counter_share=1.0),
    ),
    ("glitches", "one run in a thousand is slower by 6 % on average", Spread(glitch_share=0.001)),
)
POPULATIONS = {name: spread for name, _, spread in _POPULATIONS}
"""The populations by name: healthy fleets that detectors must leave alone."""
POPULATION_SAYS = {name: says for name, says, _ in _POPULATIONS}
"""What each of them is, in a few words."""

USUAL = "normal"
"""The population of a fleet for which none is named."""


def find_population(name: str) -> Spread:
    """The population of a name; InputError when there is none."""
    try:
        return POPULATIONS[name.strip().lower()]
    except KeyError:
        raise InputError(f"no population {name!r}; there are {', '.join(POPULATIONS)}") from None


def population_of(spread: Spread) -> str:
    """The name of a spread; of one that is in no table `own` and its values that are not the default's."""
    for name, population in POPULATIONS.items():
        if population == spread:
            return name
    usual = POPULATIONS[USUAL]
    names = [column.name for column in fields(Spread)]
    changes = [f"{name}={getattr(spread, name)}" for name in names if getattr(spread, name) != getattr(usual, name)]
    return " ".join(["own", *changes])


def shaped(
    seed: int, subject: str, size: int, *numbers: int, tail: float | None = None, skew: float = 0.0
) -> NDArray[np.float64]:
    """Draws of a subject with mean 0 and standard deviation 1: normal, with the tail of a t, or skewed as a gamma.

    A tail divides the draws that the subject has without one, from a stream of its own. `tail` must be above 2.
    """
    random = stream(seed, subject, *numbers)
    draws: NDArray[np.float64] = random.standard_normal(size)
    if skew:
        shape = 4 / skew**2
        draws = (random.standard_gamma(shape, size) - shape) / np.sqrt(shape)
    if tail is not None:
        draws = draws * tail_of(seed, f"{subject}: tail", size, *numbers, tail=tail)
    return draws


def tail_of(seed: int, subject: str, size: int, *numbers: int, tail: float) -> NDArray[np.float64]:
    """Factors that give normal draws the tail of a t with so many degrees of freedom, and leave their variance."""
    return np.asarray(np.sqrt((tail - 2) / stream(seed, subject, *numbers).chisquare(tail, size)))
