"""What figures of GPUs are called and counted in, the same in every figure, table and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...analysis.fleet.side_by_side import MEASURED, Shown
from ..table import signed

if TYPE_CHECKING:
    from ...analysis.fleet.beside import Printed


@dataclass(frozen=True)
class Words:
    """A figure of GPUs: its columns in a frame of GPUs, and its words."""

    key: str
    """In addresses."""
    name: str
    """`time`"""
    value: str
    """Column of the value; `_low` and `_high` after it are the ends of its interval."""
    unit: str
    digits: int
    apart: str
    """Column of how far it is from the median GPU of its model; its interval as of `value`."""
    apart_says: str
    """`slower`"""
    apart_unit: str
    """Of it: per cent, or that of the value."""

    @property
    def axis(self) -> str:
        """For an axis: what it is counted from."""
        return f"{self.difference} (0: the median GPU)"

    @property
    def difference(self) -> str:
        """`slower, %`"""
        return f"{self.apart_says}, {self.apart_unit}".strip(", ")

    def shown(self, apart: float | None) -> str:
        """How far a GPU is from the median, for people."""
        return "n/a" if apart is None else f"{signed(apart)}\u202f{self.apart_unit}".strip()


def _measured(shown: Shown, key: str, name: str, unit: str, digits: int, says: str, apart_unit: str) -> Words:
    return Words(key, name, shown.name, unit, digits, shown.apart, says, apart_unit)


MEASURED_WORDS = tuple(
    _measured(shown, *words)
    for shown, words in zip(
        MEASURED,
        (
            ("time", "time", "ms", 3, "slower", "%"),
            ("power", "power", "W", 1, "more power", "%"),
            ("clock", "SM clock", "MHz", 0, "higher clock", "%"),
            ("temperature", "temperature", "°C", 1, "hotter", "°C"),
        ),
        strict=True,
    )
)
_PRINTED = {  # name, digits, what more of it is
    "temperature_rise": ("temperature rise", 4, "warms more a watt"),
    "power_at_fixed_clock": ("power at the peers' clock", 1, "more power at the same clock"),
    "highest_clock": ("highest clock", 0, "higher clock"),
    "throttled_runs": ("share of runs with a held clock", 3, "more of its runs"),
    "idle_power": ("power without work", 1, "more power"),
    "work_per_joule": ("work per joule", 4, "more work a joule"),
    "time_spread": ("spread of its own times", 2, "varies more"),
    "passive_power": ("power in ordinary jobs", 2, "more power"),
    "wrong_results": ("wrong results", 0, "more"),
    "failed_runs": ("failed runs", 0, "more"),
    "xids": ("errors of the driver (XID)", 0, "more"),
    "losses": ("times that it was lost", 0, "more"),
}


def printed_words(one: Printed, *, ratio: bool) -> Words:
    """Of a figure of the stored fingerprints. `ratio`: whether it is compared in per cent."""
    name, digits, more = _PRINTED.get(one.figure, (one.figure.replace("_", " "), 3, "more"))
    unit = one.unit.replace("degC", "°C").replace("share", "")
    apart_unit = "%" if ratio else unit
    of = "" if one.workload is None else f" in {one.workload}"
    return Words(one.figure, f"{name}{of}", one.figure, unit, digits, f"{one.figure}_apart", more, apart_unit)


def find(words: Sequence[Words], key: str | None) -> Words:
    """The one that an address names; the first where it names none of them."""
    return next((one for one in words if one.key == key), words[0])
