"""Why a GPU is slow, in parts that add up to how slow it is, and what was seen of GPUs that needs no test.

    evidence = Evidence.of(probed(store, every=True), store)
    found = evidence.slow("GPU-8757...", {"sgemm": 0.1846})
    found.causes        # heat 16.9, unexplained 3.4

The time that the clock takes is ln(clock / peers' clock) times the workload's kappa (`states.kappa`). What holds the
clock is told by counters where there are any, then by power limit, temperature and power. A brake is named only where
a counter or bit says so; memory, link and host only where another probe shows that the GPU itself is well.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ....store.vocabulary import stated
from ...runs.probing import CACHE, COMPUTE, LINK, MEMORY, OF_MEMORY, OTHER, Probed
from ...runs.sittings import Floats
from ..saying import Part, action_of, kind_of, looks_of
from ..verdict import Cause, Kind
from . import states
from .heated import Moved, by_heat
from .holding import DRAWS, STEP, Peers, Split, apart
from .limits import hottest_c
from .seen import Seen, frozen_power, seen_things

if TYPE_CHECKING:
    from ....store import Store

_SMALLEST = 0.02
"""Parts below this share of the effect belong to what is not explained."""
_CLASS = {COMPUTE: COMPUTE, CACHE: COMPUTE, MEMORY: MEMORY, LINK: LINK}
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
    looks: str
    """In a sentence, without a full stop."""
    action: str


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
    frozen: Mapping[str, str]
    """GPUs whose power reading stood still, with a sentence."""
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
            return Explained("", (), Part.UNEXPLAINED, Kind.SLOW, "no time of it can be compared", action_of(Kind.SLOW))
        worst = max(slow, key=lambda name: slow[name])
        effect = slow[worst]
        limit_c = min((self.limits[gpu] for gpu in together if gpu in self.limits), default=None)
        if effect > 0 and worst in own:
            causes = _in_per_cent(self._parts(together, own, worst, slow, limit_c), effect)
        else:
            causes = (Cause(Part.UNEXPLAINED, 100 * math.expm1(effect), None, None),)
        main = causes[0].what if causes[0].pct * 3 >= 100 * math.expm1(effect) else Part.UNEXPLAINED
        kind = Kind.FAST if effect < 0 else kind_of(main)
        looks = looks_of(worst, causes, own.get(worst), limit_c, self._memory_errors(together))
        at = own[worst]["temperature"] if worst in own else None
        cool = at is not None and limit_c is not None and at < limit_c - _COOL_K
        action = action_of(kind, main, of_node=len(together) > 1, cool=cool)
        return Explained(worst, causes, main, kind, looks, action)

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
