"""Why a GPU is slow, in parts that add up to how slow it is, and what was seen of GPUs that needs no test.

    evidence = Evidence.of(probed(store, every=True), store)
    found = evidence.slow("GPU-8757...", {"sgemm": 0.1846})
    found.causes        # heat 16.9, unexplained 3.4

The time that the clock takes is ln(clock / peers' clock) times the workload's kappa (`states.kappa`). What holds the
clock is told by counters where there are any, then by power limit, temperature and power. A brake is named only where
a counter or bit says so; memory, link and host only where another probe shows that the GPU itself is well.

Everything is drawn several hundred times, as its parts are uncertain: the slopes of the fleet, the GPU's level in
another sitting, how deep a brake goes. The first draw is the value itself.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.vocabulary import stated
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, OF_MEMORY, OTHER, Probed
from ..runs.sittings import Floats
from . import states
from .facts import Seen, frozen_power, seen_things
from .states import HELD, Slope
from .verdict import Action, Cause, Kind, Measured, Part, Quantity, action_of, kind_of

if TYPE_CHECKING:
    from ...store import Store

_SMALLEST = 0.02
"""Parts below this share of the effect belong to what is not explained."""
_CLASS = {COMPUTE: COMPUTE, CACHE: COMPUTE, MEMORY: MEMORY, LINK: LINK}
_SHOWN = 0.005  # of ln clock and ln power: less is not told
_WARMER_K = 5.0  # as much warmer than its peers is told, whatever holds its clock
_COOL_K = 20.0  # below where heat holds a clock
_FEW = 2e-3  # of ln time: less is no contrast
_LOWER = 0.01  # of ln memory clock


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a GPU is slow."""

    workload: str
    """In which it is slowest; the causes are those of this one."""
    causes: tuple[Cause, ...]
    """The largest first, what is not explained last; they add up to the effect, in % of the peers' time."""
    main: str
    """The largest part that has a cause, if it is a third of the effect or more; else `Part.UNEXPLAINED`."""
    kind: Kind
    measured: tuple[Measured, ...]
    """The figures that tell it."""
    action: Action


@dataclass
class Evidence:
    """The states of all GPUs of a cluster beside their peers, worked out once."""

    by_sitting: pl.DataFrame
    """`states.sittings`."""
    levels: pl.DataFrame
    """`states.levels`."""
    limits: Mapping[str, float]
    """By GPU, from what temperature on heat holds its clock, degC, where that is known."""
    campaign: Probed
    frozen: Mapping[str, tuple[Measured, ...]]
    """GPUs whose power reading stood still, with what shows it."""
    channels: pl.DataFrame | None = None
    """`channels.channels`, once they were asked for."""
    _peers: dict[tuple[str | None, str], Peers] = field(default_factory=dict)
    _tops: dict[str, list[float]] | None = None
    _paths: dict[str, Any] | None = None
    _places: dict[str, tuple[int, int]] | None = None

    @classmethod
    def of(cls, campaign: Probed, store: Store | None = None, batches: Mapping[str, str] | None = None) -> Evidence:
        """With its `store`, power readings that stood still are looked for in the telemetry too.

        `batches`: a name by GPU; peers are then the GPUs of the same model with the same name.
        """
        frozen = frozen_power(campaign, store)
        by_sitting = states.sittings(campaign, frozen)
        if batches:
            batch = pl.col("gpu").replace_strict(dict(batches), default="", return_dtype=pl.String)
            model = pl.concat_str(pl.col("model").fill_null(""), pl.lit(" "), batch)
            by_sitting = by_sitting.with_columns(model.alias("model"))
        return cls(by_sitting, states.levels(by_sitting), hottest_c(campaign.gpus), campaign, frozen)

    def slow(self, gpus: str | Collection[str], effects: Mapping[str, float]) -> Explained:
        """Why a GPU is slow, or GPUs that are slow alike, as those of a node.

        `effects`: ln(time / time of the peers) by workload, of those in which it is slow.
        """
        together = [gpus] if isinstance(gpus, str) else sorted(gpus)
        own = self._rows(together)
        slow = {name: effect for name, effect in effects.items() if math.isfinite(effect)}
        if not slow:
            return Explained("", (), Part.UNEXPLAINED, Kind.SLOW, (), action_of(Kind.SLOW))
        worst = max(slow, key=lambda name: slow[name])
        effect = slow[worst]
        limit_c = min((self.limits[gpu] for gpu in together if gpu in self.limits), default=None)
        if effect > 0 and worst in own:
            causes = _in_per_cent(self._parts(together, own, worst, slow, limit_c), effect)
        else:
            causes = (Cause(Part.UNEXPLAINED, 100 * math.expm1(effect), None, None),)
        main = causes[0].what if causes[0].pct * 3 >= 100 * math.expm1(effect) else Part.UNEXPLAINED
        kind = Kind.FAST if effect < 0 else kind_of(main)
        measured = () if worst not in own else tuple(_figures(own[worst], {cause.what for cause in causes}, limit_c))
        if any(cause.what in (Part.MEMORY, Part.UNEXPLAINED) for cause in causes):
            measured += tuple(Measured(Quantity.XID, code) for code in self._memory_errors(together))
        at = own[worst]["temperature"] if worst in own else None
        cool = at is not None and limit_c is not None and at < limit_c - _COOL_K
        action = action_of(kind, main, of_node=len(together) > 1, cool=cool)
        return Explained(worst, causes, main, kind, measured, action)

    def _memory_errors(self, gpus: Sequence[str]) -> list[int]:
        """The XIDs of these GPUs that tell of errors of their memory."""
        told = pl.col("code").is_in(list(OF_MEMORY)) & pl.col("gpu").is_in(list(gpus))
        return self.campaign.events.filter(told)["code"].unique().sort().to_list()

    def _rows(self, gpus: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By workload, the row of `levels` of a GPU, or the medians of several."""
        if self._places is None:  # by GPU, where its rows are: `levels` is sorted by it
            first = self.levels.select("gpu").with_row_index("at").group_by("gpu").agg(pl.col("at").min(), pl.len())
            self._places = {gpu: (at, n) for gpu, at, n in first.iter_rows()}
        rows = pl.concat([self.levels.slice(*self._places.get(gpu, (0, 0))) for gpu in gpus])
        if len(gpus) > 1:
            texts = [name for name, kind in rows.schema.items() if not kind.is_numeric()]
            same = [pl.col(name).first() for name in texts if name != "workload"]
            numbers = [name for name in rows.columns if name not in texts]
            rows = rows.group_by("workload").agg(*same, pl.col(numbers).median())
        return {str(row["workload"]): row for row in rows.sort("workload").iter_rows(named=True)}

    def moves(self, gpu: str, workload: str, effect_pct: float) -> Moved | None:
        """Whether heat makes a GPU unstable in a workload: see `by_heat`."""
        row = self._rows([gpu]).get(workload)
        if row is None:
            return None
        random = np.random.default_rng(zlib.crc32(f"{gpu} {workload}".encode()))
        split = Split(row, self._of(row), math.log1p(effect_pct / 100), self.limits.get(gpu), False, random)
        own = self.campaign.sound.filter((pl.col("gpu") == gpu) & (pl.col("workload") == workload))
        names = ("sm_clock_mhz",) if gpu in self.frozen else ("sm_clock_mhz", "power_w")
        return by_heat(row, own.select("value", *names), effect_pct, random) if split.heat_holds else None

    def seen(self) -> tuple[Seen, ...]:
        """What was seen of GPUs and needs no test: lost, wrong results, failed, a power reading that stood still."""
        return seen_things(self.campaign, self.frozen)

    # -- parts --------------------------------------------------------------------------------------------

    def _of(self, row: Mapping[str, Any]) -> Peers:
        key = (row["model"], str(row["workload"]))
        if key not in self._peers:
            same = pl.col("model").eq_missing(pl.lit(key[0], pl.String)) & (pl.col("workload") == key[1])
            self._peers[key] = Peers.of(self.levels.filter(same))
        return self._peers[key]

    def _parts(
        self,
        gpus: Sequence[str],
        own: Mapping[str, dict[str, Any]],
        workload: str,
        slow: Mapping[str, float],
        limit_c: float | None,
    ) -> dict[str, Floats]:
        """The parts of ln time in draws of what is uncertain; the first one is the value itself."""
        row = own[workload]
        random = np.random.default_rng(zlib.crc32(f"{gpus} {workload}".encode()))
        split = Split(row, self._of(row), slow[workload], limit_c, self._pinned(gpus, row), random)
        parts = split.clock_parts()
        rest = split.effect - sum(parts.values(), np.zeros(DRAWS + 1))
        for what, most in self._beside_the_clock(own, workload, slow, split).items():
            part = np.minimum(np.maximum(rest, 0.0), most)
            parts[what] = parts.get(what, np.zeros(DRAWS + 1)) + part
            rest = rest - part
        main = max(parts, key=lambda what: float(parts[what][0]), default=Part.CAP)
        if main != Part.CAP:  # its silicon is its luck
            luck = split.luck()
            parts[main], rest = parts[main] + luck, rest - luck
        return parts | {Part.UNEXPLAINED: rest}

    def _beside_the_clock(
        self, own: Mapping[str, dict[str, Any]], workload: str, slow: Mapping[str, float], split: Split
    ) -> dict[str, float]:
        """What else slows it, and by how much at most; nothing where no other probe is there to compare with."""
        stresses = str(own[workload]["stresses"])
        found = {name: self._residual(one, slow.get(name)) for name, one in own.items()}
        left = found.pop(workload) or 0.0
        beside: dict[str, list[float]] = {}
        for name, other in found.items():
            if other is not None:
                beside.setdefault(_CLASS.get(str(own[name]["stresses"]), OTHER), []).append(other)
        middle = {of: float(np.median(others)) for of, others in beside.items()}
        mine = _CLASS.get(stresses, OTHER)
        others = [value for of, value in middle.items() if of != mine]
        # Cores, memory and link share nothing but what is outside the GPU.
        apart = {**middle, mine: left}
        if {COMPUTE, MEMORY, LINK} <= set(apart) and min(apart[of] for of in (COMPUTE, MEMORY, LINK)) >= 0.5 * left:
            return {Part.STARVED: math.inf}
        well = any(value < max(0.5 * left, _FEW) for value in others)
        memory_clock = split.apart("memory_clock")
        if memory_clock is not None and memory_clock < -_LOWER and stresses != LINK:
            return {Part.MEMORY_CLOCK: math.inf if stresses == MEMORY else -memory_clock}
        if stresses in (LINK, MEMORY):
            link = Part.PEER if self._between_gpus(workload) else Part.LINK
            return {link if stresses == LINK else Part.MEMORY: math.inf} if well else {}
        of_memory = middle.get(MEMORY, 0.0)
        if of_memory > max(5 * _FEW, 1.5 * left):
            return {Part.MEMORY: of_memory}
        return {Part.STARVED: math.inf} if split.starved else {}

    def _between_gpus(self, workload: str) -> bool:
        """Whether a probe copies from one GPU to another."""
        if self._paths is None:
            first = self.campaign.runs.group_by("workload").agg(stated("path").drop_nulls().first())
            self._paths = {str(name): path for name, path in first.iter_rows()}
        return self._paths.get(workload) == "peer"

    def _residual(self, row: dict[str, Any], effect: float | None) -> float | None:
        """ln time over the peers', without what the clock takes; None where it has no time."""
        if effect is None:
            effect = apart(row, "time")
        if effect is None:
            return None
        kappa, clock = self._of(row).kappa, apart(row, "clock")
        return effect if kappa is None or clock is None else effect + kappa.value * clock

    def _pinned(self, gpus: Sequence[str], row: Mapping[str, Any]) -> bool:
        """Whether its clock stands in this workload at a ceiling that is below that of its peers."""
        if self._tops is None:
            tops = self.levels.drop_nulls("top").group_by("model", "gpu")
            found = tops.agg(pl.col("top").max(), pl.len().alias("probes"))
            usual = pl.col("top").median().over("model")
            spread = 1.4826 * (pl.col("top") - usual).abs().median().over("model")
            rows = found.select("gpu", "top", usual.alias("peers"), spread.alias("spread"), "probes").iter_rows()
            self._tops = {gpu: figures for gpu, *figures in rows}
        mine = [self._tops[gpu] for gpu in gpus if gpu in self._tops]
        if not mine or row["clock"] is None:
            return False
        top, peers, scatter, probes = (float(value) for value in np.median(np.array(mine, dtype=np.float64), axis=0))
        at_top = float(row["clock"]) >= top - STEP
        return probes >= 2 and scatter <= STEP and top < peers - max(0.01, 4 * scatter) and at_top


def _figures(row: Mapping[str, Any], parts: set[str], limit_c: float | None) -> Iterator[Measured]:
    """Clock, power, temperature and counters of a row of `levels` beside those of the peers, where they are known and
    differ. `parts`: of the effect."""
    for quantity, unit in ((Quantity.CLOCK, "MHz"), (Quantity.POWER, "W")):
        own, peers = row[quantity], row[f"peers_{quantity}"]
        if own is not None and peers is not None and abs(own - peers) >= _SHOWN:
            yield Measured(quantity, math.exp(own), math.exp(peers), unit)
    own, peers = row["temperature"], row["peers_temperature"]
    if own is not None and peers is not None and (Part.HEAT in parts or abs(own - peers) >= _WARMER_K):
        yield Measured(Quantity.TEMPERATURE, own, peers, "degC", limit_c if Part.HEAT in parts else None)
    for name, part, quantity in (
        ("brake", Part.BRAKE, Quantity.HELD_BY_BRAKE),
        ("heat", Part.HEAT, Quantity.HELD_BY_HEAT),
        ("slowed", Part.SLOWDOWN, Quantity.HELD_BY_HARDWARE),
    ):
        if part in parts and row[name]:
            yield Measured(quantity, row[name], unit="share")


def _in_per_cent(parts: Mapping[str, Floats], effect: float) -> tuple[Cause, ...]:
    """Parts of ln time as causes in % of the peers' time that add up to the effect; small ones are not named."""
    whole = 100 * math.expm1(effect)
    large = {what for what, part in parts.items() if what != Part.UNEXPLAINED and part[0] >= _SMALLEST * effect}
    found = [_cause(what, whole * parts[what] / effect) for what in large]
    found.sort(key=lambda one: (-one.pct, one.what))
    small = sum((part for what, part in parts.items() if what not in large), np.zeros(DRAWS + 1))
    left = _cause(Part.UNEXPLAINED, whole * small / effect)
    left = replace(left, pct=whole - sum(one.pct for one in found))
    return (*found, left) if not found or abs(left.pct) > 1e-9 else tuple(found)


def _cause(what: str, drawn: Floats) -> Cause:
    low, high = np.quantile(drawn, (0.025, 0.975))
    value = float(drawn[0])
    return Cause(what, value, min(float(low), value), max(float(high), value))


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


_RUNS = 8  # of one GPU, to say what its slower ones have in common
_MOST = 0.5  # of the variance of its times, to name what goes with it
_SAME = 1e-12  # of log times, squared: they are all the same
_UNITS = {
    "sm_clock_mhz": (Quantity.CLOCK_OF_SLOWER_RUNS, "MHz"),
    "power_w": (Quantity.POWER_OF_SLOWER_RUNS, "W"),
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Why a GPU is unstable."""

    causes: tuple[Cause, ...]
    """They add up to the effect."""
    measured: tuple[Measured, ...]
    """Temperatures, and clock and power of its slower runs beside those of its faster ones."""
    action: Action


def by_heat(row: Mapping[str, Any], runs: pl.DataFrame, effect_pct: float, random: np.random.Generator) -> Moved | None:
    """Of a GPU whose temperature is where heat holds a clock: what makes it unstable, where its runs tell.

    `row`: of `states.levels`; `runs`: its times, and beside them clocks, powers or both. The part of heat is the share
    of the variance of its log times that goes with these, adjusted for their number; the interval is that of resampled
    runs. None where less than half of the variance does, or with fewer than 8 runs.
    """
    names = [name for name in _UNITS if name in runs.columns and 2 * runs[name].null_count() < runs.height]
    known = runs.select("value", *names).drop_nulls().cast(pl.Float64).to_numpy()
    known = known[np.all(np.isfinite(known) & (known > 0), axis=1)]
    if not names or len(known) < _RUNS:
        return None
    y, x = np.log(known[:, 0]), np.log(known[:, 1:])
    resampled = random.integers(0, len(y), (DRAWS, len(y)))
    share = goes_with(x, y)
    low, high = np.quantile([goes_with(x[some], y[some]) for some in resampled], (0.025, 0.975))
    if share < _MOST or low <= 0:
        return None
    low, high = min(float(low), share), max(float(high), share)
    heat = Cause(Part.HEAT, effect_pct * share, effect_pct * low, effect_pct * high)
    rest = Cause(Part.UNEXPLAINED, effect_pct - heat.pct, effect_pct * (1 - high), effect_pct * (1 - low))
    slower = y > np.median(y)
    slow, fast = (np.exp(x[which].mean(axis=0)) for which in (slower, ~slower))
    measured = [Measured(Quantity.TEMPERATURE, row["temperature"], row["peers_temperature"], "degC")]
    for column, name in enumerate(names):
        quantity, unit = _UNITS[name]
        measured.append(Measured(quantity, float(slow[column]), float(fast[column]), unit))
    return Moved((heat, rest), tuple(measured), Action.CLEAN_COOLING)


def goes_with(x: Floats, y: Floats) -> float:
    """The share of the variance of log times `y` that goes with lower values of the columns of `x`, adjusted for their
    number; 0 where no column is lower in the slower runs."""
    off, of_y = x - x.mean(axis=0), y - y.mean()
    total, (n, columns) = float(of_y @ of_y), x.shape
    if total <= _SAME * n or n <= columns + 1 or not any(float(one @ of_y) < 0 for one in off.T):
        return 0.0
    rest = of_y - off @ np.linalg.lstsq(off, of_y, rcond=None)[0]
    return max(0.0, float(1 - (rest @ rest) / total * (n - 1) / (n - 1 - columns)))


MAX_OPERATING_C = (
    (("V100", "SXM2"), 83),
    (("A100", "PCI"), 85),
    (("H100", "SXM"), 87),
    (("H100", "HBM3"), 87),
    (("H200",), 87),
)
"""Highest operating temperature of models whose driver's output was seen, by words of their names: for files that name
the model alone."""


def max_operating_c(model: str | None) -> int | None:
    """The highest operating temperature of a model, None where it is not known."""
    name = (model or "").upper()
    return next((limit for words, limit in MAX_OPERATING_C if all(word in name for word in words)), None)


def hottest_c(gpus: pl.DataFrame) -> dict[str, float]:
    """By GPU, the lower of its highest operating temperature and its slowdown temperature, where one is known.

    `gpus`: of `probing.Probed`. What the driver says counts more than what is known of the model.
    """
    found = {}
    names = ("gpu", "model", "temperature_slowdown_c", "temperature_max_operating_c")
    for gpu, model, slowdown, *told in gpus.select(name for name in names if name in gpus.columns).iter_rows():
        known = [limit for limit in ((told[0] if told else None) or max_operating_c(model), slowdown) if limit]
        if known:
            found[str(gpu)] = float(min(known))
    return found
