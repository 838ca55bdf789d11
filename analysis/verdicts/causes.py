"""Why a GPU is slow, in parts that add up to how slow it is.

    evidence = Evidence.of(probed(store, every=True), store)
    explanation = evidence.slow("GPU-8757...", {"sgemm": 0.1846})
    explanation.causes        # heat 16.9, unexplained 3.4

The time that the clock takes is ln(clock / peers' clock) times the workload's kappa (`states.Peers`). What holds the
clock is told by counters where there are any, then by power limit, temperature and power. A brake is named only where
a counter or bit says so; memory, link and host only where another probe shows that the GPU itself is well. A power cap
is what remains: the luck of its silicon. It is not named where a GPU is slow at its clock, too.

Everything is drawn several hundred times, as its parts are uncertain: the slopes of the fleet, the GPU's level in
another sitting, how deep a brake goes. The first draw is the value itself.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.vocabulary import stated
from ..engines import HERE, Coverage, Engine
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, OF_MEMORY, OTHER, Probed
from ..runs.sittings import Floats
from ..runs.windows import Progress
from . import states
from .facts import Fact, Still, facts, still_power
from .states import CLOCK_STEP, HELD, PEER_KEYS, Peers
from .verdict import Action, Cause, Kind, Measured, Part, Quantity, action_of, kind_of

if TYPE_CHECKING:
    from ...store import Store

State = Mapping[str, Any]
"""A row of `states.of_gpus`."""

_DRAWS = 400
_SMALLEST = 0.02
"""Parts below this share of the effect belong to what is not explained."""
_MAIN = 1 / 3  # of the effect: a smaller part does not say what a GPU is
_FEW = 2e-3  # of ln time: less is no contrast
_LOWER = 0.01  # of ln power limit or ln memory clock
_ALIKE = 0.01  # of ln clock
_RARE = 3.0  # robust standard deviations
_NEAR_K, _FAR_K = 3.0, 8.0
"""Kelvin below the highest temperature: there heat holds the clock; and where a hot spot may, of a GPU far above its
peers whose power is below its cap."""
_COOL_K = 20.0  # below the highest temperature: there no heat shows
_WARM_C = 75.0
"""Where no limit is known: no data-centre GPU is known to slow down for heat below this."""
_AT_CAP = math.log(0.97)  # power over limit
_CLOCK_PER_POWER = (0.4, 0.07)
"""Change of ln clock with ln power limit, and its standard deviation: of a V100 under SGEMM; assumed of others."""
_LEAKAGE_PER_K = (0.03, 0.01)
"""Growth of the leakage with temperature, and how far it is known: far from its peers a GPU loses more a kelvin."""
_DEPTH = (0.5, 0.12)
"""By how much the hardware lowers a clock that it holds (it halves it, or worse), and how far that is known."""
_REASONS = {
    "heat": (Part.HEAT, Quantity.HELD_BY_HEAT),
    "brake": (Part.BRAKE, Quantity.HELD_BY_BRAKE),
    "slowed": (Part.SLOWDOWN, Quantity.HELD_BY_HARDWARE),
}
_CLASS = {COMPUTE: COMPUTE, CACHE: COMPUTE, MEMORY: MEMORY, LINK: LINK}
_SHOWN = 0.005  # of ln clock and ln power: less is not told
_WARMER_K = 5.0  # so much warmer than its peers is told, whatever holds its clock

_UNSTABLE_RUNS = 8  # of one GPU, to say what its slower ones have in common
_MOST = 0.5  # of the variance of its times, to name what goes with it
_SAME = 1e-12  # of log times, squared: they are all the same
_OF_SLOWER_RUNS = {
    "sm_clock_mhz": (Quantity.CLOCK_OF_SLOWER_RUNS, "MHz"),
    "power_w": (Quantity.POWER_OF_SLOWER_RUNS, "W"),
}

MAX_OPERATING_C = (
    (("V100", "SXM2"), 83),
    (("A100", "PCI"), 85),
    (("H100", "SXM"), 87),
    (("H100", "HBM3"), 87),
    (("H200",), 87),
)
"""Highest operating temperature of models whose driver's output was seen, by words of their names: for files that name
the model alone."""


def hottest_c(gpus: pl.DataFrame) -> dict[str, float]:
    """By GPU, the lower of its highest operating temperature and its slowdown temperature, where one is known.

    `gpus`: of `probing.Probed`. What the driver says counts more than what is known of the model.
    """
    names = ("temperature_max_operating_c", "temperature_slowdown_c")
    missing = [pl.lit(None).alias(name) for name in names if name not in gpus.columns]
    of_model = {
        model: float(limit)
        for model in gpus["model"].drop_nulls().unique()
        for words, limit in MAX_OPERATING_C[::-1]
        if all(word in model.upper() for word in words)
    }
    known_model = pl.col("model").replace_strict(of_model, default=None, return_dtype=pl.Float64)
    operating, slowdown = (pl.when(pl.col(name) > 0).then(name).cast(pl.Float64) for name in names)
    limit = pl.min_horizontal(pl.coalesce(operating, known_model), slowdown)
    return dict(gpus.with_columns(missing).select("gpu", limit.alias("limit")).drop_nulls().iter_rows())


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a GPU is slow, or unstable."""

    workload: str
    """In which it is slowest; the causes are those of this one."""
    causes: tuple[Cause, ...]
    """The largest first, what is not explained last; they add up to the effect, in % of the peers' time."""
    main: str
    """The largest part that has a cause, if it is a third of the effect or more (a power cap: the half); else
    `Part.UNEXPLAINED`."""
    kind: Kind
    measured: tuple[Measured, ...]
    """The figures that tell it."""
    action: Action
    at_clock: bool = False
    """Whether the effect is that at its clock: what is slow is not its clock."""


@dataclass
class Evidence:
    """The states of all GPUs of a cluster beside their peers, worked out once."""

    by_sitting: pl.DataFrame
    """`states.of_sittings`."""
    by_gpu: pl.DataFrame
    """`states.of_gpus`."""
    limits: Mapping[str, float]
    """By GPU, from what temperature on heat holds its clock, degC, where that is known."""
    campaign: Probed
    still: Still
    """GPUs whose power reading stood still, with what shows it."""
    coverage: Coverage = field(default_factory=Coverage)
    """Of the telemetry in which that was looked for."""
    unread: tuple[str, ...] = ()
    """GPUs of which not all of that could be read."""

    @classmethod
    def of(
        cls, campaign: Probed, store: Store | None = None, *, engine: Engine = HERE, progress: Progress | None = None
    ) -> Evidence:
        """With its `store`, power readings that stood still are looked for in the telemetry too."""
        sensors = still_power(campaign, store, engine=engine, progress=progress)
        by_sitting, hottest = states.of_sittings(campaign, sensors.still), hottest_c(campaign.gpus)
        state_of_gpus = states.of_gpus(by_sitting)
        return cls(by_sitting, state_of_gpus, hottest, campaign, sensors.still, sensors.coverage, sensors.unread)

    def facts(self) -> tuple[Fact, ...]:
        """What was seen of GPUs and needs no test: lost, wrong results, failed, a power reading that stood still."""
        return facts(self.campaign, self.still)

    def slow(
        self, gpus: str | Collection[str], effects: Mapping[str, float], at_clock: Mapping[str, float] | None = None
    ) -> Explanation:
        """Why a GPU is slow, or GPUs that are slow alike, as those of a node.

        `effects`: ln(time / time of the peers) by workload, of those in which it is slow. `at_clock`: the same at its
        clock, of those in which it surely is slow at the clock that it has. Where its clock is lower for no reason but
        the power cap, it is this that is explained, unless so low a clock is rare and costs far more.
        """
        together = [gpus] if isinstance(gpus, str) else sorted(gpus)
        at_clock = {name: effect for name, effect in (at_clock or {}).items() if math.isfinite(effect)}
        slow = {name: effect for name, effect in effects.items() if math.isfinite(effect)}
        rows = self._states(together)
        if not slow and not at_clock:
            return Explanation("", (), Part.UNEXPLAINED, Kind.SLOW, (), action_of(Kind.SLOW))
        if slow:
            explanation = self._explained(together, rows, rows, slow)
            little = max(at_clock.values(), default=-math.inf) < _MAIN * slow[explanation.workload]
            if explanation.causes[0].what != Part.CAP or not at_clock:
                return explanation
            if little and _is_rare(rows[explanation.workload], "clock"):
                return explanation
        # Its clock is lower by luck: what remains is the time at its clock, and that where its clock is no lower.
        levelled = {name: _at_clock(row) if name in at_clock else row for name, row in rows.items()}
        clocks = {name: apart(row, "clock") or 0.0 for name, row in rows.items()}
        slow = {name: effect for name, effect in slow.items() if clocks.get(name, 0.0) >= -CLOCK_STEP} | at_clock
        explanation = self._explained(together, rows, levelled, slow)
        return replace(explanation, at_clock=explanation.workload in at_clock)

    def moves(self, gpu: str, workload: str, effect_pct: float) -> Explanation | None:
        """Whether heat makes a GPU unstable in a workload: see `by_heat`."""
        row = self._states([gpu]).get(workload)
        if row is None:
            return None
        random = _random(gpu, workload)
        clock = HeldClock(row, self._peers_of(row), math.log1p(effect_pct / 100), self.limits.get(gpu), random)
        if not clock.heat_holds:
            return None
        runs = self.campaign.sound.filter((pl.col("gpu") == gpu) & (pl.col("workload") == workload))
        columns = ("sm_clock_mhz",) if gpu in self.still else ("sm_clock_mhz", "power_w")
        return by_heat(row, runs.select("value", *columns), effect_pct, random)

    @cached_property
    def channels(self) -> dict[states.Channel, pl.LazyFrame]:
        """The rows of each channel: `states.channels`."""
        return states.channels(self.by_sitting, self.by_gpu, self.peers)

    # -- the state of a GPU -------------------------------------------------------------------------------

    @cached_property
    def peers(self) -> states.PeersOf:
        """By model and workload."""
        groups = self.by_gpu.partition_by(PEER_KEYS, maintain_order=True)
        return {(rows["model"][0], rows["workload"][0]): Peers.of(rows) for rows in groups}

    def _peers_of(self, row: State) -> Peers:
        return self.peers[row["model"], row["workload"]]

    @cached_property
    def _gpus(self) -> list[str]:
        """Of the row of `by_gpu`, which are sorted by them."""
        return self.by_gpu["gpu"].to_list()

    def _states(self, gpus: Sequence[str]) -> dict[str, State]:
        """By workload, the row of `by_gpu` of a GPU, or the medians of several."""
        by_workload: dict[str, list[State]] = {}
        for gpu in gpus:
            begin, end = bisect_left(self._gpus, gpu), bisect_right(self._gpus, gpu)
            for row in self.by_gpu[begin:end].iter_rows(named=True):
                by_workload.setdefault(row["workload"], []).append(row)
        return {name: _middle(rows) for name, rows in sorted(by_workload.items())}

    @cached_property
    def _tops(self) -> dict[str, tuple[float, ...]]:
        """By GPU: its highest clock, the median of its peers and their spread (ln), and in how many probes."""
        of_gpu = self.by_gpu.drop_nulls("top").group_by("model", "gpu").agg(pl.col("top").max(), pl.len().alias("n"))
        usual = pl.col("top").median().over("model")
        spread = 1.4826 * (pl.col("top") - usual).abs().median().over("model")
        rows = of_gpu.select("gpu", "top", usual.alias("peers"), spread.alias("spread"), "n").iter_rows()
        return {gpu: tuple(figures) for gpu, *figures in rows}

    def _pinned(self, gpus: Sequence[str], row: State) -> bool:
        """Whether its clock stands in this workload at a ceiling that is below that of its peers."""
        tops = [self._tops[gpu] for gpu in gpus if gpu in self._tops]
        if not tops or row["clock"] is None:
            return False
        top, peers, spread, probes = (float(value) for value in np.median(np.array(tops, dtype=np.float64), axis=0))
        at_top = float(row["clock"]) >= top - CLOCK_STEP
        return probes >= 2 and spread <= CLOCK_STEP and top < peers - max(0.01, 4 * spread) and at_top

    @cached_property
    def _memory_xids(self) -> dict[str, list[int]]:
        """By GPU, its XIDs that tell of errors of the memory."""
        errors = self.campaign.events.filter(pl.col("code").is_in(list(OF_MEMORY))).drop_nulls("gpu")
        pairs = errors.select("gpu", "code").unique().sort("gpu", "code")
        return dict(pairs.group_by("gpu", maintain_order=True).agg("code").iter_rows())

    @cached_property
    def _paths(self) -> dict[str, str | None]:
        """By workload, the path of its bytes."""
        first = self.campaign.runs.group_by("workload").agg(stated("path").drop_nulls().first())
        return dict(first.iter_rows())

    # -- parts --------------------------------------------------------------------------------------------

    def _explained(
        self, gpus: Sequence[str], rows: Mapping[str, State], levelled: Mapping[str, State], slow: Mapping[str, float]
    ) -> Explanation:
        """`rows`: the states; `levelled`: the same, some at the clock of the peers; `slow`: effects by workload."""
        worst = max(slow, key=lambda name: slow[name])
        effect, row = slow[worst], rows.get(worst)
        effect_pct = 100 * math.expm1(effect)
        limit_c = min((self.limits[gpu] for gpu in gpus if gpu in self.limits), default=None)
        causes: tuple[Cause, ...] = (Cause(Part.UNEXPLAINED, effect_pct, None, None),)
        if effect > 0 and row is not None:
            causes = _in_per_cent(self._parts(gpus, levelled, worst, slow, limit_c=limit_c), effect)
        first, last = causes[0], causes[-1]
        least = max(last.pct, _MAIN * effect_pct) if first.what == Part.CAP and len(causes) > 1 else _MAIN * effect_pct
        main = first.what if first.pct >= least else Part.UNEXPLAINED
        kind = Kind.FAST if effect < 0 else kind_of(main)
        measured = () if row is None else tuple(_figures(row, {cause.what for cause in causes}, limit_c))
        if any(cause.what in (Part.MEMORY, Part.UNEXPLAINED) for cause in causes):
            xids = sorted({xid for gpu in gpus for xid in self._memory_xids.get(gpu, ())})
            measured += tuple(Measured(Quantity.XID, xid) for xid in xids)
        celsius = None if row is None else row["temperature"]
        cool = celsius is not None and limit_c is not None and celsius < limit_c - _COOL_K
        action = action_of(kind, main, of_node=len(gpus) > 1, cool=cool)
        return Explanation(worst, causes, main, kind, measured, action)

    def _parts(
        self,
        gpus: Sequence[str],
        rows: Mapping[str, State],
        workload: str,
        slow: Mapping[str, float],
        *,
        limit_c: float | None,
    ) -> dict[str, Floats]:
        """The parts of ln time in draws of what is uncertain; the first one is the value itself."""
        row = rows[workload]
        clock = HeldClock(row, self._peers_of(row), slow[workload], limit_c, _random(gpus, workload))
        parts = clock.parts(pinned=self._pinned(gpus, row))
        unexplained = clock.effect - sum(parts.values(), np.zeros(_DRAWS + 1))
        for part, most in self._beside_the_clock(rows, workload, slow, clock).items():
            time = np.minimum(np.maximum(unexplained, 0.0), most)
            parts[part] = parts.get(part, np.zeros(_DRAWS + 1)) + time
            unexplained = unexplained - time
        main = max(parts, key=lambda part: float(parts[part][0]), default=Part.CAP)
        if main != Part.CAP:  # its silicon is its luck
            luck = clock.luck()
            parts[main], unexplained = parts[main] + luck, unexplained - luck
        return parts | {Part.UNEXPLAINED: unexplained}

    def _beside_the_clock(
        self, rows: Mapping[str, State], workload: str, slow: Mapping[str, float], clock: HeldClock
    ) -> dict[str, float]:
        """What else slows it, and by how much at most; nothing where no other probe is there to compare with."""
        stresses = str(rows[workload]["stresses"])
        residuals = {name: self._residual(row, slow.get(name)) for name, row in rows.items()}
        residual = residuals.pop(workload) or 0.0
        by_class: dict[str, list[float]] = {}
        for name, value in residuals.items():
            if value is not None:
                by_class.setdefault(_CLASS.get(str(rows[name]["stresses"]), OTHER), []).append(value)
        middle = {stressed: float(np.median(values)) for stressed, values in by_class.items()}
        own_class = _CLASS.get(stresses, OTHER)
        beside = [value for stressed, value in middle.items() if stressed != own_class]
        # Cores, memory and link share nothing but what is outside the GPU.
        middle_of_all = {**middle, own_class: residual}
        slow_alike = [middle_of_all.get(stressed, -math.inf) >= 0.5 * residual for stressed in (COMPUTE, MEMORY, LINK)]
        if all(slow_alike):
            return {Part.STARVED: math.inf}
        well = any(value < max(0.5 * residual, _FEW) for value in beside)
        memory_clock = apart(rows[workload], "memory_clock")
        if memory_clock is not None and memory_clock < -_LOWER and stresses != LINK:
            return {Part.MEMORY_CLOCK: math.inf if stresses == MEMORY else -memory_clock}
        if stresses == LINK:
            return {Part.PEER if self._paths.get(workload) == "peer" else Part.LINK: math.inf} if well else {}
        if stresses == MEMORY:
            return {Part.MEMORY: math.inf} if well else {}
        of_memory = middle.get(MEMORY, 0.0)
        if of_memory > max(5 * _FEW, 1.5 * residual):
            return {Part.MEMORY: of_memory}
        return {Part.STARVED: math.inf} if clock.starved else {}

    def _residual(self, row: State, effect: float | None) -> float | None:
        """ln time over the peers', without what the clock takes; None where it has no time."""
        if effect is None:
            effect = apart(row, "time")
        if effect is None:
            return None
        kappa, clock = self._peers_of(row).kappa, apart(row, "clock")
        return effect if kappa is None or clock is None else effect + kappa.value * clock


class HeldClock:
    """The part of an effect that the clock takes, by what holds the clock: draws, the first one the value itself."""

    def __init__(
        self, row: State, peers: Peers, effect: float, limit_c: float | None, random: np.random.Generator
    ) -> None:
        self._row, self._peers, self._limit_c, self._random = row, peers, limit_c, random
        self._clock, self._power, self._warmer = (apart(row, name) for name in ("clock", "power", "temperature"))
        usual = 3 * float(row["spread_power"] or 0.0)
        self._under_cap = peers.at_cap and self._power is not None and self._power < -max(0.005, min(usual, 0.05))
        self.effect = np.maximum(self._drawn(effect, self._error("time")), 0.0)
        """How much slower it is, in ln time."""
        self._recorded = row["brake"] is not None
        """Whether reasons were recorded."""
        beyond = {reason: max(apart(row, reason) or 0.0, 0.0) for reason in _REASONS}
        # The hardware's bit is set with those of the brake and of heat: only alone it is a reason of its own.
        if max(beyond["brake"], beyond["heat"]) >= HELD:
            beyond["slowed"] = 0.0
        self._reasons = {reason: share for reason, share in beyond.items() if share >= HELD}

    def luck(self) -> Floats:
        """By how much it may differ from its peers without any cause."""
        return self._drawn(0.0, float(self._row["spread_time"] or 0.0))

    @property
    def starved(self) -> bool:
        """At the clock of its peers or above and with less power: it waits for something outside the GPU."""
        if self._clock is None or self._power is None or self._reasons or self._power > math.log(0.96):
            return False
        if self.heat_holds or not (self._row["stresses"] == COMPUTE or self._peers.follows_clock):
            return False
        # Under a cap, less power means a higher clock, unless something holds it that was not recorded.
        return self._clock >= (-_ALIKE if self._recorded or not self._peers.at_cap else _ALIKE)

    @property
    def heat_holds(self) -> bool:
        """Whether its temperature is where heat holds a clock."""
        celsius = self._row["temperature"]
        if celsius is None or self._warmer is None:
            return False
        spread = float(self._row["spread_temperature"] or 0.0)
        far = self._warmer >= max(_FAR_K, 2 * spread) and (self._under_cap or not self._peers.at_cap)
        if self._limit_c is None:
            return far and celsius >= _WARM_C
        near = celsius >= self._limit_c - _NEAR_K and self._warmer > 0
        return near or (far and celsius >= self._limit_c - _FAR_K)

    def parts(self, *, pinned: bool) -> dict[str, Floats]:
        """The parts of ln time that the clock takes. `pinned`: whether it stands at a ceiling below its peers'."""
        visible, kappa = self._visible()
        parts: dict[str, Floats] = {}
        untaken = visible.copy()

        def take(part: str, most: Floats | float = math.inf) -> None:
            nonlocal untaken
            time = np.clip(most, 0.0, untaken)
            if np.any(time > 0):
                parts[part] = parts.get(part, np.zeros(_DRAWS + 1)) + time
            untaken = untaken - time

        at_own_cap = False
        limit = self._row["limit"]
        if limit is not None and self._row["power"] is not None:
            at_own_cap = self._row["power"] - limit >= _AT_CAP
            lower = apart(self._row, "limit") or 0.0
            if at_own_cap and lower < -_LOWER:
                take(Part.LIMIT, -lower * kappa * np.maximum(self._drawn(*_CLOCK_PER_POWER), 0.1))
        at_cap = at_own_cap or (self._peers.at_cap and self._power is not None and not self._under_cap)
        if pinned and not at_own_cap and not self._reasons:
            take(Part.PINNED)
        held = {reason: share for reason, share in self._reasons.items() if share >= 0.5 or not at_cap}
        for reason, share in held.items():
            take(_REASONS[reason][0], visible * (share / sum(held.values())) + 1e-12)
        if self.heat_holds and not at_own_cap and (self._under_cap or not self._peers.at_cap or self._power is None):
            take(Part.HEAT)
        if at_cap:
            if self._warmer is not None and self._warmer > 0:
                slope = self._peers.clock_per_kelvin
                growth = np.clip(self._drawn(*_LEAKAGE_PER_K), 0.005, 0.06)
                warmer = np.expm1(growth * np.clip(self._own("temperature"), 0.0, 60.0)) / growth
                take(Part.HEAT, -kappa * np.minimum(self._drawn(slope.value, slope.se), 0.0) * warmer)
            take(Part.CAP)
        take(Part.UNTOLD)
        for part, time in self._hidden(np.maximum(self.effect - visible, 0.0), kappa).items():
            parts[part] = parts.get(part, np.zeros(_DRAWS + 1)) + time
        return parts

    def _visible(self) -> tuple[Floats, Floats]:
        """What the mean clock takes, at most the effect; and kappa."""
        kappa = self._peers.kappa
        if kappa is None:  # anything between nothing and all of it
            drawn = self._random.uniform(0.0, 1.0, _DRAWS + 1)
            drawn[0] = 1.0
        else:
            drawn = np.clip(self._drawn(kappa.value, kappa.se), 0.0, 1.2)
        if self._clock is None:
            return np.zeros(_DRAWS + 1), drawn
        return np.clip(-drawn * self._own("clock"), 0.0, self.effect), drawn

    def _hidden(self, most: Floats, kappa: Floats) -> dict[str, Floats]:
        """What a clock takes that was held for part of the time only, which it does not show."""
        total = sum(self._reasons.values())
        if self._reasons:
            depth = np.clip(self._drawn(*_DEPTH), 0.1, 0.9)
            lost = np.minimum(-kappa * np.log1p(-depth * min(total, 1.0)), most)
            return {_REASONS[reason][0]: lost * (share / total) for reason, share in self._reasons.items()}
        if self._recorded or not self._under_cap or self.starved or self._clock is None:
            return {}
        # Below the cap at the clock of its peers or less: where nobody recorded why, its power says how long.
        lost = np.minimum(np.maximum(-self._own("power"), 0.0) * np.clip(self._drawn(1.0, 0.2), 0.3, 1.5), most)
        return {Part.HEAT if self.heat_holds else Part.UNTOLD: lost}

    def _drawn(self, value: float, sd: float) -> Floats:
        drawn = value + sd * self._random.standard_normal(_DRAWS + 1)
        drawn[0] = value
        return drawn

    def _own(self, name: str) -> Floats:
        """A figure less the peers', as the level of another day may be."""
        return self._drawn(apart(self._row, name) or 0.0, self._error(name))

    def _error(self, name: str) -> float:
        return float(self._row[f"sd_{name}"] or 0.0) / math.sqrt(max(float(self._row["sittings"]), 1.0))


def apart(row: State, name: str) -> float | None:
    """A figure of a GPU less that of its peers."""
    value, peers = row[name], row[f"peers_{name}"]
    return None if value is None or peers is None else float(value) - float(peers)


def _is_rare(row: State, name: str) -> bool:
    """Whether few healthy GPUs are so far below their peers in a figure."""
    return (apart(row, name) or 0.0) < -_RARE * float(row[f"spread_{name}"] or 0.0)


def _at_clock(row: State) -> State:
    """The state as if its clock were that of its peers, of which then nothing is left to explain."""
    return {**row, "clock": row["peers_clock"], "sd_clock": 0.0, "spread_time": 0.0}


def _middle(rows: Sequence[State]) -> State:
    """The medians of the numbers of several GPUs in one workload; texts are those of the first."""
    if len(rows) == 1:
        return rows[0]
    middle = dict(rows[0])
    for name, value in middle.items():
        if not isinstance(value, str):
            numbers = [row[name] for row in rows if row[name] is not None]
            middle[name] = float(np.median(numbers)) if numbers else None
    return middle


def _random(gpus: str | Sequence[str], workload: str) -> np.random.Generator:
    """The same evidence gives the same draws."""
    return np.random.default_rng(zlib.crc32(f"{gpus} {workload}".encode()))


def _in_per_cent(parts: Mapping[str, Floats], effect: float) -> tuple[Cause, ...]:
    """Parts of ln time as causes in % of the peers' time that add up to the effect; small ones are not named."""
    effect_pct = 100 * math.expm1(effect)
    large = {part for part, time in parts.items() if part != Part.UNEXPLAINED and time[0] >= _SMALLEST * effect}
    causes = [_cause(part, effect_pct * parts[part] / effect) for part in large]
    causes.sort(key=lambda cause: (-cause.pct, cause.what))
    small = sum((time for part, time in parts.items() if part not in large), np.zeros(_DRAWS + 1))
    rest_pct = effect_pct - sum(cause.pct for cause in causes)
    if causes and abs(rest_pct) <= 1e-9:
        return tuple(causes)
    return (*causes, replace(_cause(Part.UNEXPLAINED, effect_pct * small / effect), pct=rest_pct))


def _cause(part: str, drawn: Floats) -> Cause:
    low, high = np.quantile(drawn, (0.025, 0.975))
    value = float(drawn[0])
    return Cause(part, value, min(float(low), value), max(float(high), value))


def _figures(row: State, parts: Collection[str], limit_c: float | None) -> Iterator[Measured]:
    """Clock, power, temperature and counters of a GPU beside those of its peers, where they are known and differ.

    `parts`: of the effect.
    """
    for quantity, unit in ((Quantity.CLOCK, "MHz"), (Quantity.POWER, "W")):
        value, peers = row[quantity], row[f"peers_{quantity}"]
        if value is not None and peers is not None and abs(value - peers) >= _SHOWN:
            yield Measured(quantity, math.exp(value), math.exp(peers), unit)
    warmer = apart(row, "temperature")
    if warmer is not None and (Part.HEAT in parts or abs(warmer) >= _WARMER_K):
        limit = limit_c if Part.HEAT in parts else None
        yield Measured(Quantity.TEMPERATURE, row["temperature"], row["peers_temperature"], "degC", limit)
    for reason, (part, quantity) in _REASONS.items():
        if part in parts and row[reason]:
            yield Measured(quantity, row[reason], unit="share")


# -- unstable -----------------------------------------------------------------------------------------------------


def by_heat(row: State, runs: pl.DataFrame, effect_pct: float, random: np.random.Generator) -> Explanation | None:
    """Of a GPU whose temperature is where heat holds a clock: what makes it unstable, where its runs tell.

    `runs`: its times, and beside them clocks, powers or both. The part of heat is the share of the variance of its log
    times that goes with these, adjusted for their number; the interval is that of resampled runs. None where less than
    half of the variance does, or with fewer than 8 runs.
    """
    names = [name for name in _OF_SLOWER_RUNS if name in runs.columns and 2 * runs[name].null_count() < runs.height]
    figures = runs.select("value", *names).drop_nulls().cast(pl.Float64).to_numpy()
    figures = figures[np.all(np.isfinite(figures) & (figures > 0), axis=1)]
    if not names or len(figures) < _UNSTABLE_RUNS:
        return None
    y, x = np.log(figures[:, 0]), np.log(figures[:, 1:])
    share = goes_with(x, y)
    resampled = [goes_with(x[places], y[places]) for places in random.integers(0, len(y), (_DRAWS, len(y)))]
    low, high = (float(value) for value in np.quantile(resampled, (0.025, 0.975)))
    if share < _MOST or low <= 0:
        return None
    low, high = min(low, share), max(high, share)
    heat = Cause(Part.HEAT, effect_pct * share, effect_pct * low, effect_pct * high)
    unexplained = Cause(Part.UNEXPLAINED, effect_pct - heat.pct, effect_pct * (1 - high), effect_pct * (1 - low))
    slower = y > np.median(y)
    slow, fast = (np.exp(x[which].mean(axis=0)).tolist() for which in (slower, ~slower))
    measured = [Measured(Quantity.TEMPERATURE, row["temperature"], row["peers_temperature"], "degC")]
    for name, of_slow, of_fast in zip(names, slow, fast, strict=True):
        quantity, unit = _OF_SLOWER_RUNS[name]
        measured.append(Measured(quantity, of_slow, of_fast, unit))
    workload = str(row.get("workload", ""))
    return Explanation(workload, (heat, unexplained), Part.HEAT, Kind.UNSTABLE, tuple(measured), action_of(Kind.HOT))


def goes_with(x: Floats, y: Floats) -> float:
    """The share of the variance of log times `y` that goes with lower values of the columns of `x`, adjusted for their
    number; 0 where no column is lower in the slower runs."""
    dx, dy = x - x.mean(axis=0), y - y.mean()
    total, (n, columns) = float(dy @ dy), x.shape
    if total <= _SAME * n or n <= columns + 1 or not any(float(column @ dy) < 0 for column in dx.T):
        return 0.0
    residual = dy - dx @ np.linalg.lstsq(dx, dy, rcond=None)[0]
    return max(0.0, float(1 - (residual @ residual) / total * (n - 1) / (n - 1 - columns)))
