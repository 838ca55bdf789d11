"""A verdict: a named finding about a GPU, a node or a batch, with its evidence and its error rate.

It holds codes and numbers. The sentences that people read are made of them in `dashboards.verdict_words`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ..engines import Coverage
from ..runs.probing import names_of

if TYPE_CHECKING:
    import polars as pl

TIME = "time"


class Level(StrEnum):
    """What a verdict is about."""

    GPU = "gpu"
    RANK = "rank"
    """A rank of a training job whose GPU is not known."""
    NODE = "node"
    BATCH = "batch"
    """GPUs on two nodes or more that share something: a firmware, a driver, a cabinet, or nothing that is recorded."""
    SLOT = "slot"
    """The same place in all nodes or cabinets: a slot, a cage."""


ACROSS_NODES = frozenset({Level.BATCH, Level.SLOT})
"""The levels of findings that may be about half of a fleet, so they say little about each of its GPUs."""


class State(StrEnum):
    """How sure a verdict is."""

    SUSPECTED = "suspected"
    """Seen in one sitting."""
    CONFIRMED = "confirmed"
    """Seen in two sittings or more that are at least 6 hours apart."""


class Kind(StrEnum):
    """What a verdict says."""

    LOSES = "loses GPUs"
    """Cards fail in this place more often than elsewhere, whichever card is there."""
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


LOSSES = "losses"
"""The figure of the kind LOSES."""
NO_FINDING = "none"
HELD = frozenset({Kind.BRAKED, Kind.SLOWED, Kind.LIMITED, Kind.UNDER_CAP, Kind.PINNED})
"""The kinds that say why a clock is held, heat apart."""


class Part(StrEnum):
    """What a part of an effect comes from."""

    LIMIT = "lower power limit"
    CAP = "power cap"
    """Its silicon needs more power for a clock than that of its peers, so the same cap means a lower clock."""
    HEAT = "heat"
    BRAKE = "power brake"
    SLOWDOWN = "hardware slowdown"
    PINNED = "pinned clock"
    UNTOLD = "clock held, reason not recorded"
    MEMORY = "memory"
    MEMORY_CLOCK = "lower memory clock"
    LINK = "link to the host"
    PEER = "link to other GPUs"
    STARVED = "waiting for the host or its input"
    UNEXPLAINED = "unexplained"


class Action(StrEnum):
    """What to do about a finding."""

    SET_POWER_LIMIT = "set power limit"
    CHECK_POWER_SUPPLY = "check power supply"
    CHECK_POWER_THEN_COOLING = "check power then cooling"
    RECORD_CLOCK_REASONS = "record clock reasons"
    CLEAN_COOLING = "clean cooling"
    CHECK_HOT_SPOT = "check hot spot"
    RESET_CLOCK = "reset clock"
    RESET_MEMORY_CLOCK = "reset memory clock"
    CHECK_HOST = "check host"
    CHECK_HOST_OF_NODE = "check host of node"
    GIVE_LIGHTER_WORK = "give lighter work"
    CHECK_MEMORY = "check memory"
    CHECK_PCIE = "check pcie"
    CHECK_NVLINK = "check nvlink"
    RUN_FULL_SUITE = "run full suite"
    CHECK_LEAKAGE = "check leakage"
    PROBE_LONGER = "probe longer"
    FIND_CHANGE = "find change"
    FIND_COMMON_CHANGE = "find common change"
    COMPARE_BOARDS = "compare boards"
    PLAN_REPAIR = "plan repair"
    DISTRUST_SENSOR = "distrust sensor"
    READ_MEMORY_COUNTERS = "read memory counters"
    STOP_USING = "stop using"
    RESET_AND_PROBE = "reset and probe"
    REBOOT_NODE = "reboot node"
    CHECK_PLACE = "check place"
    COMPARE_PLACES = "compare places"
    PROBE_RANKS = "probe ranks"
    PROBE_TENSOR_GROUP = "probe tensor group"
    """Ranks of tensor parallelism wait for each other: any of them may be the slow one."""
    NOTHING = "nothing"


_KIND_OF_PART = {
    Part.LIMIT: Kind.LIMITED,
    Part.HEAT: Kind.HOT,
    Part.BRAKE: Kind.BRAKED,
    Part.SLOWDOWN: Kind.SLOWED,
    Part.PINNED: Kind.PINNED,
    Part.UNTOLD: Kind.UNDER_CAP,
    Part.STARVED: Kind.STARVED,
}
_ACTION_OF_KIND = {
    Kind.LOSES: Action.CHECK_PLACE,
    Kind.LOST: Action.REBOOT_NODE,
    Kind.WRONG: Action.STOP_USING,
    Kind.FAILED: Action.RESET_AND_PROBE,
    Kind.SLOW: Action.RUN_FULL_SUITE,
    Kind.HOT: Action.CLEAN_COOLING,
    Kind.BRAKED: Action.CHECK_POWER_SUPPLY,
    Kind.SLOWED: Action.CHECK_POWER_THEN_COOLING,
    Kind.LIMITED: Action.SET_POWER_LIMIT,
    Kind.UNDER_CAP: Action.RECORD_CLOCK_REASONS,
    Kind.PINNED: Action.RESET_CLOCK,
    Kind.POWER_HUNGRY: Action.CHECK_LEAKAGE,
    Kind.UNSTABLE: Action.PROBE_LONGER,
    Kind.SLOWER: Action.FIND_CHANGE,
    Kind.DRIFTING: Action.PLAN_REPAIR,
    Kind.STARVED: Action.CHECK_HOST,
    Kind.SENSOR: Action.DISTRUST_SENSOR,
    Kind.MEMORY_ERRORS: Action.READ_MEMORY_COUNTERS,
    Kind.FAST: Action.NOTHING,
}
_ACTION_OF_PART = {
    Part.CAP: Action.GIVE_LIGHTER_WORK,
    Part.MEMORY: Action.CHECK_MEMORY,
    Part.MEMORY_CLOCK: Action.RESET_MEMORY_CLOCK,
    Part.LINK: Action.CHECK_PCIE,
    Part.PEER: Action.CHECK_NVLINK,
}


def kind_of(main: str) -> Kind:
    """The kind of verdict whose largest part is this one."""
    return _KIND_OF_PART.get(Part(main), Kind.SLOW)


def action_of(kind: Kind, main: str = "", *, of_node: bool = False, cool: bool = False) -> Action:
    """What to do about a kind of verdict, and about its largest part; of one GPU or of those of a node.

    `cool`: its temperature is far below where heat holds a clock.
    """
    if cool and main == Part.HEAT:
        return Action.CHECK_HOT_SPOT
    if of_node and main in (Part.UNEXPLAINED, Part.LINK, Part.PEER, Part.STARVED):
        return Action.CHECK_HOST_OF_NODE
    of_part = _ACTION_OF_PART.get(Part(main)) if main and kind is Kind.SLOW else None
    return of_part or _ACTION_OF_KIND[kind]


class ComparedWith(StrEnum):
    """What a GPU, a node or a batch was compared with; its number is `Verdict.n`."""

    GPUS = "gpus"
    """Those of its model, or of its cluster where the model is not known."""
    NODES = "nodes"
    PAST = "past"
    """Its own earlier sittings."""
    RANKS = "ranks"
    """Ranks of a training job that do the same work."""
    PLACES = "places"
    """Slots, cages or cabinets."""


class Quantity(StrEnum):
    """What a `Measured` of a finding is; where a finding is of a channel, also the name of one of `CHANNELS`."""

    CLOCK = "clock"
    POWER = "power"
    TEMPERATURE = "temperature"
    HELD_BY_HEAT = "held by heat"
    """Share of the time, as the next two."""
    HELD_BY_BRAKE = "held by brake"
    HELD_BY_HARDWARE = "held by hardware"
    CLOCK_OF_SLOWER_RUNS = "clock of slower runs"
    POWER_OF_SLOWER_RUNS = "power of slower runs"
    XID = "xid"
    """`value` is its number, `n` how often it came."""
    NEEDS_RESET = "needs reset"
    LOSSES = "losses"
    LAST_GOOD_RUN = "last good run"
    """Of a GPU that was lost: `text` is the workload and `at` when it began; both None where there was none."""
    FAILED_RUNS = "failed runs"
    """`text` is what the first of them told."""
    WRONG_RESULTS = "wrong results"
    """Of `limit` checked ones."""
    WRONG_ELEMENTS = "wrong elements"
    """Of the worst result; None where nobody counted."""
    STILL_POWER = "still power"
    """A power that `n` readings, or `n` runs, have to the milliwatt."""
    STILL_TIME = "still time"
    MOVED_UTILISATION = "moved utilisation"
    """By how many points, while the power reading stood still."""
    MOVED_POWER = "moved power"
    """The factor by which the power of the peers differs where that of this GPU stands still."""
    REPORTED = "reported"
    """`text` is what a collector wrote of it."""
    LAST_BEFORE = "last before"
    """`at`: the last sitting at the level before."""
    SITTINGS = "sittings"
    UNTIL = "until"
    """`at`: when the level changed again, or, of many GPUs, None: it did not last."""
    SPAN = "span"
    """From the first sitting of a drift to the last."""
    SLOWER_RUNS = "slower runs"
    """Slower than the others of their sittings, of `limit` runs; `peers` is the share in the fleet."""
    FAR_SITTINGS = "far sittings"
    """Away from the GPU's level, of `limit` sittings; `peers` is the share in the fleet."""
    VBIOS = "vbios"
    """What GPUs share, or what changed: `text`, and `text_before`. So are the next seven."""
    DRIVER = "driver"
    CABINET = "cabinet"
    CUBLAS = "cublas"
    KERNEL = "kernel"
    PROBE_VERSION = "probe_version"
    NODE = "node"
    SLOT = "slot"
    NEIGHBOUR = "neighbour"
    """`text` is a GPU that came to its node."""
    NEIGHBOURS_TEMPERATURE = "temperature of neighbours"
    RATIO = "ratio to peers"
    """Of a rank: the factor by which it takes longer in the operation `text`, in `n` of `limit` steps."""
    RANKS = "ranks"
    """`text` are the ranks of a finding, and `value` the stage of the pipeline."""
    TRAINING_JOB = "training job"
    ROW_REMAP_FAILED = "row remap failed"
    UNCORRECTED_ERRORS = "uncorrected errors"
    """`value` of them since the driver was loaded, at most."""
    CARDS_LOST = "cards lost"
    """In a place; `peers` is the number in all others of its kind."""
    LOST_IN_TURN = "lost in turn"
    """`n` cards of a node were lost one after another in slot `text`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of a finding's evidence."""

    figure: str
    """A `Quantity`, or the name of a channel."""
    value: float | None = None
    peers: float | None = None
    """That of its peers; of what changed, that before."""
    unit: str = ""
    limit: float | None = None
    """The highest that it can be, or from which on it has an effect."""
    n: int | None = None
    at: datetime | None = None
    text: str | None = None
    """As others recorded it: a version, a workload, the message of a program."""
    text_before: str | None = None


class Gap(StrEnum):
    """Why something was not judged, or could not have been named."""

    NO_TIME = "no time"
    """`n` runs have no time above 0."""
    FUTURE = "future"
    """`n` runs have a date in the future."""
    NO_DATE = "no date"
    """`n` runs have no date."""
    FEW_GPUS = "few gpus"
    """`n` GPUs ran it without an error; `total` are needed."""
    JOBS = "jobs"
    """The GPUs of a job finish together: `share` of what differs from run to run is the job's."""
    RUN_ONCE = "run once"
    NOT_READ = "not read"
    """Not all of its telemetry can be read: what this tells of memory that failed, and of a power reading that stood
    still, is not known."""
    SAME_TIME = "same time"
    """All `n` runs took the same time."""
    NOT_REPEATED = "not repeated"
    """The differences between `n` GPUs do not repeat: `share` of the variance of `total` runs is theirs."""
    NO_RUNS = "no runs"
    NOT_SINCE = "not since"
    """No run began at `since` or later; the newest began at `at`."""
    PAST_OF_NODES = "past of nodes"
    """GPUs run together in jobs, so nodes were compared with their past."""
    PAST_ONE_SITTING = "past of one sitting"
    """`n` of `total` were measured in one sitting only."""
    PAST_TOO_FEW = "past of too few"
    """Too few have two sittings to know how much a healthy one moves."""
    NEWER = "newer"
    """The finding is of a newer whorl."""
    ALONE = "alone"
    """Most GPUs have one run, which names no GPU by itself."""
    NO_COMPUTING = "no computing"
    """No operation of a timeline is one that computes."""
    NO_STAGE = "no stage"
    """Nobody said the stage of these ranks."""
    FEW_STEPS = "few steps"
    """They have `n` steps with peers; `total` are needed."""
    LONE_RANK = "lone rank"
    """No other rank does this work; `total` are needed."""
    TWO_RANKS = "two ranks"
    """Rank `n` takes longer than the only other one with the same work, by `share`; `total` are needed."""
    SLOW_BY_DATA = "slow by data"
    """They are slower than their peers, and so are the other stages with the same data."""
    TIMELINES_UNDATED = "timelines undated"
    """Only runs since a time were asked for, and timelines have no dates."""
    EVENTS_NOWHERE = "events nowhere"
    """`n` events tell of GPUs whose node is not known, so they count for no place."""
    EVENTS_UNDATED = "events undated"
    """`n` events have no time, or one of the future."""
    EVENTS_TOGETHER = "events together"
    """`n` GPUs were lost at moments at which several nodes lost GPUs."""
    TOO_FEW_TO_NAME = "too few to name"
    """So few GPUs with so few sittings name no GPU for one workload."""


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
    effect_pct: float | None = None
    """In the first of `workloads`; None for what was seen and not measured, and so for the next five."""
    low_pct: float | None = None
    high_pct: float | None = None
    """95 % interval of the level in another sitting."""
    p: float | None = None
    q: float | None = None
    """The share of false findings among those that are at least as clear."""
    n: int | None = None
    """GPUs, or nodes where nodes are compared, that it was compared with, itself included; `reference` says which."""
    causes: tuple[Cause, ...] = ()
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    runs: tuple[str, ...] = ()
    """Ids of the runs that show it."""
    action: Action = Action.NOTHING
    measured: tuple[Measured, ...] = ()
    """The numbers that tell it: a clock, a temperature, XIDs, dates."""
    reference: ComparedWith | None = None
    """What `n` counts; None of what was seen and not compared."""
    at_clock: bool = False
    """Whether times were compared as they would be at the clock of the peers."""
    figure: str = TIME
    """What the effect is of: "time", or the name of a channel (`states.CHANNELS`). Of "throttled runs" it is the
    difference of two shares of runs, in percentage points. "" of what was seen and not measured."""

    @property
    def timed(self) -> bool:
        """Whether its effect is one of times, and not of a temperature, a power or a clock."""
        of_times = self.kind in (Kind.SLOW, Kind.FAST, Kind.SLOWER, Kind.DRIFTING)
        return bool(self.workloads) and (bool(self.causes) or self.level is not Level.GPU or of_times)


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Something that could not be judged, and why."""

    cluster: str
    subject: str
    """A workload, a GPU's name, or the whole cluster."""
    why: Gap
    n: int | None = None
    """What it counts, `why` says; so for the next four."""
    total: int | None = None
    share: float | None = None
    since: datetime | None = None
    at: datetime | None = None
    model: str | None = None
    """Of the GPUs, where the workload ran on several models."""
    level: Level = Level.GPU
    """What is counted: GPUs, nodes or ranks."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was concluded about a part of a cluster: its places, or the ranks of its training jobs."""

    rows: tuple[Verdict, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    looks: int = 0
    """How many comparisons were made."""
    ranks: int = 0
    """How many ranks were judged."""


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
    why: Gap | None
    """Why none could have been."""


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
    joined_with: tuple[Measured, ...]
    """What else changed then."""


@dataclass(frozen=True)
class PeerLevels:
    """The times of all GPUs of a cluster, and what was usual day by day: rows of the tables `levels` and `day_levels`
    without `judgement`, `cluster` and `judged_at`. `model.peer_levels` makes them."""

    levels: pl.DataFrame
    days: pl.DataFrame


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
    ranks: int = 0
    """How many ranks of training jobs were judged, by timelines."""

    facts: int | None = None
    """How many events that need no run, and operations of training jobs, there were; None where nobody counted."""

    peers: PeerLevels | None = field(default=None, repr=False, compare=False)
    """The levels of all GPUs; None where none was compared."""
    coverage: Coverage = field(default_factory=Coverage, compare=False)
    """Of the telemetry that was read for it."""

    def by_key(self, gpus: pl.DataFrame, *, batches: bool = False) -> dict[str, tuple[Verdict, ...]]:
        """The verdicts of each GPU and of its node, by the GPU's key, the worst first; those of `batches` if asked for.

        `gpus`: of `Probed`.
        """
        keys: dict[str, list[str]] = {}
        for gpu, name in names_of(gpus).items():
            keys.setdefault(name, []).append(gpu)
        of_keys: dict[str, tuple[Verdict, ...]] = {}
        for verdict in self.rows:
            for name in verdict.gpus if batches or verdict.level not in ACROSS_NODES else ():
                for key in keys.get(name, ()):
                    of_keys[key] = (*of_keys.get(key, ()), verdict)
        # That its node loses GPUs says less about a GPU than any other finding does.
        return {key: tuple(sorted(rows, key=lambda row: row.kind is Kind.LOSES)) for key, rows in of_keys.items()}

    def worst(self, gpus: pl.DataFrame) -> pl.Series:
        """The worst finding about each GPU or its node, as `hot, confirmed`; NO_FINDING without one, null where no GPU
        could be judged. `gpus`: of `Probed`, or with the columns `gpu` and `name`."""
        import polars as pl

        findings = {gpu: f"{verdicts[0].kind}, {verdicts[0].state}" for gpu, verdicts in self.by_key(gpus).items()}
        without = NO_FINDING if self.gpus else None
        return pl.Series("finding", [findings.get(gpu, without) for gpu in gpus["gpu"].to_list()], dtype=pl.String)


# -- faults that were put into simulated GPUs ----------------------------------------------------------------------

LOOKS_LIKE = {
    "brake": Kind.BRAKED,
    "hot": Kind.HOT,
    "pinned": Kind.PINNED,
    "slow_memory": Kind.SLOW,
    "stuck_sensor": Kind.SENSOR,
    "drift": Kind.HOT,
    "wrong_results": Kind.WRONG,
    "lost": Kind.LOST,
    "throttling": Kind.UNSTABLE,
    "slow_nvlink": Kind.SLOW,
    "retired_pages": Kind.MEMORY_ERRORS,
    "zero_power": Kind.SENSOR,
    "poor_overlap": Kind.SLOW,
}
"""The kind of verdict that each kind of fault should have."""


class Fault(Protocol):
    """The fault of a simulated GPU."""

    @property
    def uuid(self) -> str: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class Planted:
    """A fault of a simulated GPU, and the verdict that was found. It judges the analysis and is never its input."""

    gpu: str
    kind: str
    found: str
    """The kind of the verdict: that of the fault where there is one, else the worst; '' if the GPU has none."""


def planted_faults(faults: Iterable[Fault], judged: Judgement, gpus: pl.DataFrame) -> tuple[Planted, ...]:
    """Each fault with the verdict that was found. `gpus`: of `Probed`."""
    verdicts = judged.by_key(gpus)
    listed = []
    for fault in faults:
        kinds = [verdict.kind for verdict in verdicts.get(fault.uuid, ())]
        expected = LOOKS_LIKE[fault.kind]
        listed.append(Planted(fault.uuid, fault.kind, str(expected if expected in kinds else next(iter(kinds), ""))))
    return tuple(listed)


def falsely_named(planted: Iterable[Planted], judged: Judgement, gpus: pl.DataFrame) -> list[str]:
    """The healthy GPUs that a verdict covers, be it of the GPU, its node or a batch. `gpus`: of `Probed`."""
    faulty = {fault.gpu for fault in planted}
    return [gpu for gpu in judged.by_key(gpus, batches=True) if gpu not in faulty]
