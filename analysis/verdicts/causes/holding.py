"""What holds a GPU's clock, and how much time that takes: counters first, then power limit, temperature and power.

Everything is drawn several hundred times, as its parts are uncertain: the slopes of the fleet, the GPU's level in
another sitting, how deep a brake goes. The first draw is the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ...runs.probing import COMPUTE
from ...runs.sittings import Floats
from ..saying import Part
from . import states
from .states import HELD, Slope

DRAWS = 400
STEP = 0.006
"""Of ln clock: clocks come in steps of half a per cent."""
_NEAR_K, _FAR_K = 3.0, 8.0
"""Kelvin below the highest temperature: there heat holds the clock; and where a hot spot may, of a GPU far above its
peers whose power is below its cap."""
_WARM_C = 75.0
"""Where no limit is known: no data-centre GPU is known to slow down for heat below this."""
_AT_CAP, _PEERS_AT_CAP = math.log(0.97), math.log(0.93)
_CLOCK_PER_POWER = (0.4, 0.07)
"""Change of ln clock with ln power limit, and its standard deviation: of a V100 under SGEMM; assumed of others."""
_LEAKAGE_PER_K = (0.03, 0.01)
"""Growth of the leakage with temperature, and how far it is known: far from its peers a GPU loses more a kelvin."""
_DEPTH = (0.5, 0.12)
"""By how much the hardware lowers a clock that it holds (it halves it, or worse), and how far that is known."""
_ALIKE = 0.01  # of ln clock
_LOWER = 0.01  # of ln power limit
_REASON = {"heat": Part.HEAT, "brake": Part.BRAKE, "slowed": Part.SLOWDOWN}


@dataclass(frozen=True)
class Peers:
    """What the GPUs of one model show in one workload."""

    kappa: Slope | None
    per_kelvin: Slope
    at_cap: bool
    """Whether their power limit holds their clocks."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Peers:
        first = rows.row(0, named=True)
        power, limit, capped = (first[f"peers_{name}"] for name in ("power", "limit", "capped"))
        if power is not None and limit is not None:
            at_cap = power - limit >= _PEERS_AT_CAP
        else:  # alike in power and not in clock
            narrow, wide = first["spread_power"], first["spread_clock"]
            at_cap = narrow is not None and wide is not None and narrow <= STEP and wide >= max(STEP, 2 * narrow)
        at_cap = at_cap or (capped is not None and capped >= 0.5)
        return cls(states.kappa(rows, str(first["stresses"])), states.clock_per_kelvin(rows), at_cap)


def apart(row: Mapping[str, Any], name: str) -> float | None:
    own, peers = row[name], row[f"peers_{name}"]
    return None if own is None or peers is None else float(own) - float(peers)


class Split:
    """The part of an effect that the clock takes, by what holds the clock: draws, the first one the value itself."""

    def __init__(
        self,
        row: Mapping[str, Any],
        peers: Peers,
        effect: float,
        limit_c: float | None,
        pinned: bool,
        random: np.random.Generator,
    ) -> None:
        self._row, self._peers, self._limit_c, self._pinned, self._random = row, peers, limit_c, pinned, random
        self.clock, self.power = self.apart("clock"), self.apart("power")
        self.warmer = self.apart("temperature")
        tight = 3 * float(row["spread_power"] or 0.0)
        self.under_cap = peers.at_cap and self.power is not None and self.power < -max(0.005, min(tight, 0.05))
        self.effect = np.maximum(self._drawn(effect, self._error("time")), 0.0)
        """How much slower it is, in ln time."""
        self.told = row["brake"] is not None
        """Whether reasons were recorded."""
        beyond = {name: max(self.apart(name) or 0.0, 0.0) for name in ("heat", "brake", "slowed")}
        # The hardware's bit is set with those of the brake and of heat: only alone it is a reason of its own.
        if max(beyond["brake"], beyond["heat"]) >= HELD:
            beyond["slowed"] = 0.0
        self.reasons = {name: share for name, share in beyond.items() if share >= HELD}

    def apart(self, name: str) -> float | None:
        """Its figure less that of its peers."""
        return apart(self._row, name)

    def luck(self) -> Floats:
        """By how much it may differ from its peers without any cause."""
        return self._drawn(0.0, float(self._row["spread_time"] or 0.0))

    def _drawn(self, value: float, sd: float) -> Floats:
        found = value + sd * self._random.standard_normal(DRAWS + 1)
        found[0] = value
        return found

    def _own(self, name: str) -> Floats:
        """A figure less the peers', as the level of another day may be."""
        return self._drawn(self.apart(name) or 0.0, self._error(name))

    def _error(self, name: str) -> float:
        return float(self._row[f"sd_{name}"] or 0.0) / math.sqrt(max(float(self._row["sittings"]), 1.0))

    @property
    def starved(self) -> bool:
        """At the clock of its peers or above and with less power: it waits for something outside the GPU."""
        if self.clock is None or self.power is None or self.reasons or self.power > math.log(0.96):
            return False
        kappa = self._peers.kappa
        busy = self._row["stresses"] == COMPUTE or (kappa is not None and kappa.measured and kappa.value >= 0.5)
        if not busy or self.heat_holds:
            return False
        # Under a cap, less power means a higher clock, unless something holds it that was not recorded.
        return self.clock >= (-_ALIKE if self.told or not self._peers.at_cap else _ALIKE)

    @property
    def heat_holds(self) -> bool:
        """Whether its temperature is where heat holds a clock."""
        at = self._row["temperature"]
        if at is None or self.warmer is None:
            return False
        spread = float(self._row["spread_temperature"] or 0.0)
        far = self.warmer >= max(_FAR_K, 2 * spread) and (self.under_cap or not self._peers.at_cap)
        if self._limit_c is None:
            return far and at >= _WARM_C
        return (at >= self._limit_c - _NEAR_K and self.warmer > 0) or (far and at >= self._limit_c - _FAR_K)

    def clock_parts(self) -> dict[str, Floats]:
        """The parts of ln time that the clock takes."""
        visible, kappa = self._visible()
        parts: dict[str, Floats] = {}
        left = visible.copy()

        def take(what: str, amount: Floats) -> None:
            nonlocal left
            part = np.clip(amount, 0.0, left)
            if np.any(part > 0):
                parts[what] = parts.get(what, np.zeros(DRAWS + 1)) + part
            left = left - part

        everything = np.full(DRAWS + 1, math.inf)
        at_own_cap = False
        limit = self._row["limit"]
        if limit is not None and self._row["power"] is not None:
            at_own_cap = self._row["power"] - limit >= _AT_CAP
            lower = self.apart("limit") or 0.0
            if at_own_cap and lower < -_LOWER:
                take(Part.LIMIT, -lower * kappa * np.maximum(self._drawn(*_CLOCK_PER_POWER), 0.1))
        if self._pinned and not at_own_cap and not self.reasons:
            take(Part.PINNED, everything)
        held = {name: share for name, share in self.reasons.items() if share >= 0.5 or not self._at_cap(at_own_cap)}
        for name, share in held.items():
            take(_REASON[name], visible * (share / sum(held.values())) + 1e-12)
        if self.heat_holds and not at_own_cap and (self.under_cap or not self._peers.at_cap or self.power is None):
            take(Part.HEAT, everything)
        if self._at_cap(at_own_cap):
            if self.warmer is not None and self.warmer > 0:
                slope = self._peers.per_kelvin
                growth = np.clip(self._drawn(*_LEAKAGE_PER_K), 0.005, 0.06)
                warmer = np.expm1(growth * np.clip(self._own("temperature"), 0.0, 60.0)) / growth
                take(Part.HEAT, -kappa * np.minimum(self._drawn(slope.value, slope.se), 0.0) * warmer)
            take(Part.CAP, everything)
        take(Part.UNTOLD, everything)
        for what, part in self._hidden(np.maximum(self.effect - visible, 0.0), kappa).items():
            parts[what] = parts.get(what, np.zeros(DRAWS + 1)) + part
        return parts

    def _at_cap(self, at_own_cap: bool) -> bool:
        return at_own_cap or (self._peers.at_cap and self.power is not None and not self.under_cap)

    def _visible(self) -> tuple[Floats, Floats]:
        """What the median clock takes, at most the effect; and kappa."""
        kappa = self._peers.kappa
        if kappa is None:  # anything between nothing and all of it
            share = self._random.uniform(0.0, 1.0, DRAWS + 1)
            share[0] = 1.0
        else:
            share = np.clip(self._drawn(kappa.value, kappa.se), 0.0, 1.2)
        if self.clock is None:
            return np.zeros(DRAWS + 1), share
        return np.clip(-share * self._own("clock"), 0.0, self.effect), share

    def _hidden(self, left: Floats, kappa: Floats) -> dict[str, Floats]:
        """What a clock takes that was held for part of the time only, which its median does not show."""
        total = sum(self.reasons.values())
        if self.reasons:
            depth = np.clip(self._drawn(*_DEPTH), 0.1, 0.9)
            lost = np.minimum(-kappa * np.log1p(-depth * min(total, 1.0)), left)
            return {_REASON[name]: lost * (share / total) for name, share in self.reasons.items()}
        if self.told or not self.under_cap or self.starved or self.clock is None or self.power is None:
            return {}
        # Below the cap at the clock of its peers or less: where nobody recorded why, its power says how long.
        lost = np.minimum(np.maximum(-self._own("power"), 0.0) * np.clip(self._drawn(1.0, 0.2), 0.3, 1.5), left)
        return {Part.HEAT if self.heat_holds else Part.UNTOLD: lost}
