"""A verdict: a named finding about a GPU, a node or a batch, with its evidence and its error rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..runs.probing import names_of

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "whorl.verdicts/1"
TIME = "time"


class Level(StrEnum):
    """What a verdict is about."""

    GPU = "gpu"
    NODE = "node"
    BATCH = "batch"
    """GPUs on two nodes or more that share something: a firmware, a driver, a cabinet, or nothing that is recorded."""


class State(StrEnum):
    """How sure a verdict is."""

    SUSPECTED = "suspected"
    """Seen in one sitting."""
    CONFIRMED = "confirmed"
    """Seen in two sittings or more that are at least 6 hours apart."""


class Kind(StrEnum):
    """What a verdict says."""

    LOST = "lost"
    WRONG = "wrong results"
    FAILED = "failed"
    SLOW = "slow"
    HOT = "hot"
    BRAKED = "power brake"
    SLOWED = "hardware slowdown"
    LIMITED = "lower power limit"
    UNDER_CAP = "under its cap"
    """Its clock is held, and nobody recorded why."""
    PINNED = "pinned clock"
    POWER_HUNGRY = "power-hungry"
    UNSTABLE = "unstable"
    SLOWER = "slower than before"
    """Its level changed at a date."""
    DRIFTING = "drifting"
    """It becomes slower week by week."""
    STARVED = "starved"
    SENSOR = "sensor suspect"
    MEMORY_ERRORS = "memory errors"
    """The driver told of errors of its memory, or of pages retired or rows remapped for them."""
    FAST = "fast"


NO_FINDING = "none"
HELD = frozenset({Kind.BRAKED, Kind.SLOWED, Kind.LIMITED, Kind.UNDER_CAP, Kind.PINNED})
"""The kinds that say why a clock is held, heat apart."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of an effect, in per cent of the time; the parts of a verdict add up to its effect."""

    what: str
    pct: float
    low_pct: float | None
    high_pct: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding. Effects are in % of the level of the peers; slower, hotter and more power are positive."""

    level: Level
    name: str
    """Of the GPU (`node/slot` where known), the node, or what the batch shares."""
    gpus: tuple[str, ...]
    """Names of the GPUs that it covers."""
    cluster: str
    model: str | None
    workloads: tuple[str, ...]
    """In which it shows, the largest effect first; empty for what was seen and not measured."""
    kind: Kind
    state: State
    effect_pct: float | None
    """In the first of `workloads`; None for what was seen and not measured, and so for the next five."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of the level in another sitting."""
    p: float | None
    q: float | None
    """The share of false findings among those that are at least as clear."""
    n: int | None
    """GPUs, or nodes where nodes are compared, that it was compared with, itself included; `reference` says which."""
    causes: tuple[Cause, ...]
    looks: str
    """The finding in a sentence."""
    first_seen: datetime | None
    last_seen: datetime | None
    runs: tuple[str, ...]
    """Ids of the runs that show it."""
    action: str
    """What to do, in a sentence."""
    reference: str = ""
    """What it was compared with, in words."""
    figure: str = TIME
    """What the effect is of: "time", or the name of a channel (`channels.CHANNELS`). Of "throttled runs" it is the
    difference of two shares of runs, in percentage points. "" of what was seen and not measured."""

    @property
    def timed(self) -> bool:
        """Whether its effect is one of times, and not of a temperature, a power or a clock."""
        of_times = self.kind in (Kind.SLOW, Kind.FAST, Kind.SLOWER, Kind.DRIFTING)
        return bool(self.workloads) and (bool(self.causes) or self.level is not Level.GPU or of_times)

    def as_dict(self) -> dict[str, Any]:
        """The row of `whorl.verdicts/1`."""
        return _dated(asdict(self), "first_seen", "last_seen")


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Something that could not be judged, and why, in a sentence."""

    cluster: str
    subject: str
    """A workload, a GPU's name, or the whole cluster."""
    why: str


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest effect that could have been named in one workload alone, against the peers: about that."""

    workload: str
    model: str | None
    pct: float | None
    """In % of the time, of a GPU at the clock of its peers; None where none could have been."""
    any_clock_pct: float | None
    """The same where its clock is lower too; None where none could have been."""
    gpus: int
    sittings: int
    """Of a GPU, in the median."""
    why: str | None
    """Why none could have been, in words."""


@dataclass(frozen=True, slots=True)
class Change:
    """A date at which the level of a GPU changed, for better or worse: of its own past, beside which no peers stand."""

    gpu: str
    """As in `gpus`."""
    workload: str
    effect_pct: float
    """After against before; slower is positive."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of the level in another sitting against the level before."""
    q: float
    n: int
    """Its sittings."""
    since: datetime | None
    at: datetime | None
    """The last sitting before the change and the first one after it: it happened between the two."""
    state: State
    together: int
    """GPUs that changed then; 1: it alone."""
    joined_with: tuple[str, ...]
    """What else changed then, in words."""


@dataclass(frozen=True)
class Judgement:
    """All that was concluded about a cluster."""

    cluster: str
    rows: tuple[Verdict, ...]
    """The worst first."""
    not_judged: tuple[NotJudged, ...]
    gpus: int
    """How many GPUs were judged."""
    looks: int
    """How many comparisons were made; the error rate is over all of them."""
    watch: tuple[Verdict, ...] = ()
    """GPUs whose newest sitting is slower than their earlier ones, but not surely enough for a finding: to be measured
    again. At most 2 of 1,000 sittings of healthy GPUs are among them."""

    smallest: tuple[Smallest, ...] = ()
    """By workload and model."""

    changes: tuple[Change, ...] = ()
    """Of GPUs that changed alone or with a few others. What most GPUs did together is in `rows`, where it is worse."""
    runs: int | None = None
    """How many runs the cluster had."""

    def by_key(self, gpus: pl.DataFrame, *, batches: bool = False) -> dict[str, tuple[Verdict, ...]]:
        """The verdicts of each GPU and of its node, by the GPU's key, the worst first; those of `batches` if asked for.

        `gpus`: of `Probed`.
        """
        keys: dict[str, list[str]] = {}
        for gpu, name in names_of(gpus).items():
            keys.setdefault(name, []).append(gpu)
        found: dict[str, tuple[Verdict, ...]] = {}
        for one in self.rows:
            for name in one.gpus if batches or one.level is not Level.BATCH else ():
                for key in keys.get(name, ()):
                    found[key] = (*found.get(key, ()), one)
        return found

    def worst(self, gpus: pl.DataFrame) -> pl.Series:
        """The worst finding about each GPU or its node, as `hot, confirmed`; NO_FINDING without one, null where no GPU
        could be judged. `gpus`: of `Probed`, or with the columns `gpu` and `name`."""
        import polars as pl

        named = {gpu: f"{own[0].kind}, {own[0].state}" for gpu, own in self.by_key(gpus).items()}
        without = NO_FINDING if self.gpus else None
        return pl.Series("finding", [named.get(gpu, without) for gpu in gpus["gpu"].to_list()], dtype=pl.String)

    def as_dict(self) -> dict[str, Any]:
        """The document of `whorl.verdicts/1`."""
        return {
            "schema": SCHEMA,
            "rows": [one.as_dict() for one in self.rows],
            "not_judged": [asdict(one) for one in self.not_judged],
            "watch": [one.as_dict() for one in self.watch],
            "smallest": [asdict(one) for one in self.smallest],
            "changes": [_dated(asdict(one), "since", "at") for one in self.changes],
        }


def _dated(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """A row with these times as text, UTC."""
    at: dict[str, datetime | None] = {name: row[name] for name in names}
    return row | {name: None if one is None else f"{one.isoformat()}Z" for name, one in at.items()}
