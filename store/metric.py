"""What a metric is, and how each interface names it and gives it. The metrics themselves are in `metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Field:
    """Field values of NVML, read with all others of a GPU in one driver call. Several are added up.

    `scopes` are tried in turn until one is answered: some parts know a metric only for the whole module. `call` gives
    the same value if the driver does not know the field.
    """

    ids: tuple[int, ...]
    scopes: tuple[int, ...] = (0,)
    call: Call | None = None

    def __str__(self) -> str:
        return f"field{'s' * (len(self.ids) > 1)} {' + '.join(map(str, self.ids))}"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of NVML that fills a structure: `function(device, *arguments, &structure)`.

    The value lies at byte `offset` as `type` (numpy's name). `preset` is written into the structure's first words
    before every call: the version by which NVML tells its structures apart. `older` is asked where a driver or GPU does
    not support this one. MIG instances are asked only where `instances` says so.

    A structure has at most `size` bytes. A function that fills several numbers of their own instead has as many
    `outputs`, each in 8 bytes. If `only_if`, the structure's first word says whether the GPU has the value at all.
    """

    function: str
    arguments: tuple[int, ...] = ()
    type: Literal["u4", "i4", "u8"] = "u4"
    offset: int = 0
    preset: tuple[int, ...] = ()
    older: Call | None = None
    instances: bool = False
    size: int = 64
    outputs: int = 1
    only_if: bool = False

    def __str__(self) -> str:
        return self.function


@dataclass(frozen=True, slots=True)
class Gpm:
    """A profiling metric of NVML, by number: a mean between two looks (GPM: Hopper and newer)."""

    id: int

    def __str__(self) -> str:
        return f"GPM {self.id}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The age of the field value `id`, by the driver's own time stamp, in us."""

    id: int

    def __str__(self) -> str:
        return f"time stamp of field {self.id}"


@dataclass(frozen=True, slots=True)
class Part:
    """A constant of the GPU that the driver does not give; it follows from the GPU's architecture."""

    name: Literal["power_window"]

    def __str__(self) -> str:
        return "by the GPU's architecture"


@dataclass(frozen=True, slots=True)
class Dcgm:
    """A field of DCGM, by number: numbers are stable over DCGM's versions, names are not.

    What DCGM gives, times `scale`, is the metric in its unit. dcgm-exporter prints the same numbers.
    """

    id: int
    scale: int = 1

    def __str__(self) -> str:
        return f"{self.id}" if self.scale == 1 else f"{self.id} x {self.scale}"

    @property
    def profiling(self) -> bool:
        """Whether it is a profiling field: those are watched apart, not everybody may, and no faster than 100 ms."""
        return 1000 < self.id < 1100


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of `telemetry` that a GPU's driver gives: its name, width, unit ("" for none) and meaning.

    A reading is a whole number of so many `bits`, signed; a driver's number that has more is no reading.

    gauge: a momentary value; a minute keeps minimum, mean and maximum. counter: it grows, and a fall means that it
    began anew; a minute keeps the first and the last. mask: bits; a minute keeps every bit that was set. The fast tier
    is read at every tick, the slow one every few seconds. What NVML gives is multiplied by `scale` to give `unit`.
    """

    name: str
    bits: Literal[32, 64]
    unit: str
    kind: Literal["gauge", "counter", "mask"]
    tier: Literal["fast", "slow"]
    description: str
    nvml: Field | Call | Gpm | Stamp | Part | None
    dcgm: Dcgm | None = None
    prometheus: tuple[str, ...] = ()  # dcgm-exporter's names, the newest first; dashboards know the last
    smi: tuple[str, ...] = ()  # as nvidia-smi names its columns, in lower case
    scale: int = 1
    wraps: bool = False  # a counter that may begin anew by itself
    absent: int | None = None  # the driver's number for "unknown"
