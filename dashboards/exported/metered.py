"""The energy of each GPU since an exporter began, as whorl's meter counts it.

Only the time since the last look is metered: figures of windows side by side add up to that of the whole time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...analysis.energy.meter import Energies
from ...analysis.energy.readings import meters_of_many
from .series import SECONDS, UNITS, Point, Series, Who, series

if TYPE_CHECKING:
    from ...store import Store
    from ...store.newest import Gpu

_SETTLED_NS = 30 * 10**9  # newer rows may still come, from nodes whose clock or disk is slow


@dataclass(frozen=True, slots=True)
class Sum:
    """Of one GPU: its energy, how much less or more it could be, and the time with and without readings that count."""

    energy_j: float = 0.0
    below_j: float = 0.0
    above_j: float = 0.0
    measured_s: float = 0.0
    lacking_s: float = 0.0

    def plus(self, other: Sum) -> Sum:
        """The sum of both."""
        return Sum(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def _sums(used: Energies, seconds: float) -> list[Sum]:
    """The energy of each window, as a sum."""
    figures = np.stack([used.energy_j, used.below_j, used.above_j, used.measured_s]).T.tolist()
    return [
        Sum(lacking_s=seconds) if reason else Sum(energy, below, above, measured, max(0.0, seconds - measured))
        for reason, (energy, below, above, measured) in zip(used.reason.tolist(), figures, strict=True)
    ]


class Metered:
    """Sums up energy from `since_ns` on."""

    def __init__(self, store: Store, since_ns: int) -> None:
        self._store, self._to = store, since_ns
        self._sums: dict[Gpu, Sum] = {}

    def advance(self, now_ns: int, ended: Callable[[], bool] = lambda: False) -> None:
        """Add what was used since the last time. Raises StoreError; then, and where it is `ended`, nothing is added."""
        began, until = self._to, now_ns - _SETTLED_NS
        if until <= began:
            return
        sums = dict(self._sums)
        for meters in meters_of_many(self._store, since_ns=began, until_ns=until):
            if ended():
                return
            n = len(meters)
            used = meters.over(np.arange(n), np.full(n, began), np.full(n, until))
            for gpu, grown in zip(meters.gpus, _sums(used, (until - began) / 1e9), strict=True):
                sums[gpu] = sums.get(gpu, Sum()).plus(grown)
        self._sums, self._to = sums, until

    def series(self, who: Who) -> list[Series]:
        """The sums as they stood after the last look."""
        at, sums = self._to, self._sums

        def points(name: str) -> list[Point]:
            return [(who[gpu], getattr(one, name), at) for gpu, one in sums.items()]

        doubt = [
            (labels.also("side", side), value, at)
            for side in ("below", "above")
            for labels, value, at in points(f"{side}_j")
        ]
        return [
            series("gpu_metered_energy", UNITS["mJ"], "counter", "energy since the exporter began, by whorl's meter; "
                   "it grows in steps", points("energy_j")),
            series("gpu_metered_doubt", UNITS["mJ"], "counter", "how much less or more that could be, from gaps and "
                   "from what counter and power disagree by; the error of the sensor comes on top", doubt),
            series("gpu_metered", SECONDS, "counter", "time of it with readings", points("measured_s")),
            series("gpu_unmetered", SECONDS, "counter", "time since then without readings that count",
                   points("lacking_s")),
        ]  # fmt: skip
