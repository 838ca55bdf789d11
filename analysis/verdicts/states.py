"""In what state each GPU ran each workload, beside its peers; and what is measured of it besides its times.

States: logarithms of times (ms), clocks (MHz) and powers (W); temperatures in degC; shares of the time of a run. A
figure that nobody recorded is null. A cause is told from means, as a clock that was held for a part of a run changes
the mean and not the median; how slow a GPU is, the levels of the judge say (`levels.levels`).

Channels: figures that tell the kinds of verdicts, and the fingerprint of a GPU. `channels` has rows for each GPU and
sitting (and workload, where a figure is of one). Values are on the scale on which GPUs of one model are compared:
logarithms where `Channel.log`. A figure that nobody recorded has no row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...store.vocabulary import POWER as POWER_REASONS
from ...store.vocabulary import THERMAL, reasons_of, stated
from ..runs.measurements import codes
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, Probed
from ..runs.sittings import Floats, Ints, days, in_order, numbered
from .verdict import Kind

PEER_KEYS = ("model", "workload")
"""GPUs that are alike in these are peers."""
MOVING = ("time", "clock", "power", "temperature")
"""What differs from run to run."""
SHARES = ("heat", "brake", "slowed", "capped")
"""Of the time of a run in which the clock was held by heat, by the power brake, by the hardware for any reason, and by
the power limit."""
FIGURES = (*MOVING, "memory_clock", "limit", "energy", *SHARES)

HELD = 0.01
"""Share of the time from which a reason for a lower clock counts."""
CLOCK_STEP = 0.006
"""Of ln clock: clocks come in steps of half a per cent."""
_FEWEST = 8  # GPUs for a slope, and of a slot to centre it on itself
_FLOOR = {"time": 5e-4, "clock": 2e-3, "power": 3e-3, "temperature": 0.5}
"""No figure of a sitting is known better (standard deviation)."""
_FLEET_SITTINGS = 4.0  # for so many the fleet's variance of a sitting counts beside a GPU's own
_PEERS_AT_CAP = math.log(0.93)  # power over limit
_POWER_PER_KELVIN = 0.03  # of ln power: leakage is less


def of_sittings(campaign: Probed, still: Collection[str] = ()) -> pl.DataFrame:
    """One row a GPU, workload and sitting, by GPU (`gpu_no`: its place in `campaign.gpus`), time and workload.

    A figure is the mean of its runs (of `MOVING`, without the lowest and the highest run of three or more); `top` the
    highest clock; `throttled` the share of its runs in which heat, a brake or the hardware held the clock. Power and
    energy of GPUs in `still` are null.
    """
    runs = campaign.trusted
    power_moves = ~pl.col("gpu").is_in(list(still))
    limit_known = runs["power_limit_w"].null_count() == 0
    capped_known = limit_known and 2 * runs["power_w"].null_count() < runs.height
    shares = _shares(without=("capped",) if capped_known else ())
    throttled = pl.max_horizontal(*(shares[name] for name in ("heat", "brake", "slowed"))) >= HELD
    figures = {
        "time": _log("value"),
        "clock": _log("sm_clock_mhz"),
        "memory_clock": _log("mem_clock_mhz"),
        "power": pl.when(power_moves).then(_log("power_w")),
        "energy": pl.when(power_moves).then(_log("energy")),
        "limit": (
            pl.col("power_limit_w") if limit_known else pl.coalesce("power_limit_w", stated("power_limit_w"))
        ).log(),
        "temperature": pl.when(pl.col("temperature_c").is_finite()).then("temperature_c"),
        **shares,
        "throttled": throttled,
    }
    gpu_no = codes(runs["gpu"], campaign.gpus["gpu"].to_list())
    groups = _RunGroups.of(gpu_no, codes(runs["workload"]), runs.select(days()).to_series().to_numpy())
    sitting = pl.Series(groups.sitting).set_sorted()  # then rows are grouped by it in little memory
    means: dict[str, object] = {"gpu_no": gpu_no[groups.first], "sitting": sitting, "runs": groups.runs}
    for name, figure in figures.items():  # one by one: together they would be as large as all runs
        of_runs = runs.select(figure.cast(pl.Float64)).to_series()
        if of_runs.null_count() == len(of_runs):
            means[name] = pl.repeat(None, len(groups.starts), dtype=pl.Float64, eager=True)
            continue
        values = of_runs.fill_null(np.nan).to_numpy()[groups.order]
        means[name] = groups.means(values, trimmed=name in MOVING)
        if name == "clock":
            means["top"] = groups.highest(values)
    means.setdefault("top", means["clock"])
    identity = runs.select(*PEER_KEYS, "gpu", "node", "slot", "stresses", "began")[groups.first]
    measured = pl.DataFrame(means).with_columns(pl.col(pl.Float64).fill_nan(None), pl.col("runs").cast(pl.UInt32))
    return identity.hstack(measured)


@dataclass(frozen=True)
class _RunGroups:
    """Runs in groups of one GPU, workload and sitting."""

    order: Ints
    """(runs,) places of the runs, group by group, by GPU and sitting."""
    starts: Ints
    """(groups,) where each group begins in `order`."""
    first: Ints
    """(groups,) the place of the earliest run of each."""
    sitting: Ints
    """(groups,) a number that rises by GPU and time; runs of a GPU at unknown times are its first sitting."""
    runs: Ints

    @classmethod
    def of(cls, gpu: Ints, workload: Ints, at: Floats) -> _RunGroups:
        sitting = numbered(gpu, at)
        order = in_order(sitting * (int(workload.max(initial=0)) + 1) + workload, at)
        starts = np.flatnonzero(np.diff(sitting[order], prepend=-1) | np.diff(workload[order], prepend=-1))
        return cls(order, starts, order[starts], sitting[order][starts], np.diff(starts, append=len(order)))

    def means(self, values: Floats, *, trimmed: bool) -> Floats:
        """The mean of each group; `trimmed`: without the lowest and the highest of three or more."""
        if not len(values):
            return values
        finite = np.isfinite(values)
        n = self.runs if finite.all() else np.add.reduceat(finite, self.starts, dtype=np.int64)
        total = np.add.reduceat(values if n is self.runs else np.where(finite, values, 0.0), self.starts)
        with np.errstate(invalid="ignore", divide="ignore"):
            if not trimmed or not (n > 2).any():
                return np.asarray(total / n)
            ends = np.fmin.reduceat(values, self.starts) + np.fmax.reduceat(values, self.starts)
            return np.where(n > 2, (total - ends) / (n - 2), total / n)

    def highest(self, values: Floats) -> Floats:
        """The highest value of each group."""
        return np.fmax.reduceat(values, self.starts) if len(values) else values


def _log(name: str) -> pl.Expr:
    value = pl.col(name).cast(pl.Float64)
    return pl.when(value.is_finite() & (value > 0)).then(value.log())


def _shares(without: Collection[str]) -> dict[str, pl.Expr]:
    """Of the time of a run that a reason held the clock; null where no reasons were recorded, and of those `without`.

    Where power and limit are known, these tell of the power limit.
    """
    reasons = {
        "heat": reasons_of(THERMAL),
        "brake": ("power_brake",),
        "slowed": ("hw_slowdown",),
        "capped": reasons_of(POWER_REASONS),
    }
    window = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    events = pl.col("clock_events")
    shares: dict[str, pl.Expr] = {}
    for share, names in reasons.items():
        seconds = [events.struct.field(name) for name in names]
        held = pl.when(window > 0).then(pl.max_horizontal(pl.lit(0.0), *seconds) / window).clip(0.0, 1.0)
        shares[share] = pl.lit(None, pl.Float64) if share in without else pl.when(events.is_not_null()).then(held)
    return shares


def of_gpus(by_sitting: pl.DataFrame) -> pl.DataFrame:
    """One row a GPU and workload, sorted by them: the median of its sittings with `sd_` of a sitting about it, and
    `peers_`, the median of the `n` GPUs of its model in that workload (itself included), with their robust `spread_`.

    The standard deviation of a sitting is pooled over the fleet, and a GPU's own counts as much as its sittings allow.
    """
    # Most fleets have no run with most of the reasons: then a mean says the same as a median.
    held = [name for name in SHARES if (by_sitting[name].max() or 0.0) > 0.0]  # type: ignore[operator]
    never_held = [name for name in SHARES if name not in held]
    of_gpu = by_sitting.group_by([*PEER_KEYS, "gpu"]).agg(
        pl.col("node", "slot", "stresses").last(),
        pl.col("runs").sum(),
        pl.len().alias("sittings"),
        pl.col(*MOVING, *held).median(),
        pl.col("memory_clock", "limit", "energy", "throttled", *never_held).mean(),
        pl.col("top").max(),
        *(pl.col(name).var().alias(f"var_{name}") for name in MOVING),
    )
    several = pl.col("sittings") > 1
    peers = of_gpu.group_by(PEER_KEYS).agg(
        pl.len().alias("n"),
        *(pl.col(name).median().alias(f"peers_{name}") for name in (*FIGURES, "throttled", "top")),
        *(
            (1.4826 * (pl.col(name) - pl.col(name).median()).abs().median()).alias(f"spread_{name}")
            for name in (*MOVING, "top")
        ),
        # Of two sittings the median variance is less than half of the mean one.
        *((pl.col(f"var_{name}").filter(several).median() * 1.5).alias(f"all_{name}") for name in MOVING),
    )
    free = (pl.col("sittings") - 1).clip(lower_bound=0).cast(pl.Float64)
    fleet = {name: pl.max_horizontal(pl.col(f"all_{name}").fill_null(0.0), _FLOOR[name] ** 2) for name in MOVING}
    squares = {name: _FLEET_SITTINGS * fleet[name] + free * pl.col(f"var_{name}").fill_null(0.0) for name in MOVING}
    beside = of_gpu.join(peers, on=PEER_KEYS, how="left", nulls_equal=True).with_columns(
        (squares[name] / (_FLEET_SITTINGS + free)).sqrt().alias(f"sd_{name}") for name in MOVING
    )
    return beside.drop(*(f"{kind}_{name}" for name in MOVING for kind in ("var", "all"))).sort("gpu", "workload")


# -- what the GPUs of one model show in one workload ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope of the fleet with its standard error."""

    value: float
    se: float
    measured: bool
    """Whether the fleet showed it; if not, it is what such workloads are like."""


_NOT_MEASURED = {
    COMPUTE: Slope(0.95, 0.06, measured=False),
    CACHE: Slope(0.95, 0.1, measured=False),
    MEMORY: Slope(0.05, 0.04, measured=False),
    LINK: Slope(0.0, 0.02, measured=False),
}


@dataclass(frozen=True, slots=True)
class Peers:
    """What the GPUs of one model show in one workload."""

    kappa: Slope | None
    """By how much ln time falls with ln clock; where their clocks do not differ enough to tell, what such a workload is
    like; None where that is not known."""
    clock_per_kelvin: Slope
    """By how much ln clock changes with a kelvin: hotter silicon leaks more."""
    power_per_kelvin: float
    """By how much ln power grows with a kelvin; 0 where they do not show it."""
    at_cap: bool
    """Whether their power limit holds their clocks."""
    same_clock: bool
    """Whether they all reach one clock, which no cap holds."""

    @property
    def follows_clock(self) -> bool:
        """Whether they show that at least half of the time goes with the clock."""
        return self.kappa is not None and self.kappa.measured and self.kappa.value >= 0.5

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Peers:
        """Of rows of `of_gpus`: those of one model in one workload."""
        first = rows.row(0, named=True)
        power, limit, capped = (first[f"peers_{name}"] for name in ("power", "limit", "capped"))
        if power is not None and limit is not None:
            at_cap = power - limit >= _PEERS_AT_CAP
        else:  # alike in power and not in clock
            narrow, wide = first["spread_power"], first["spread_clock"]
            at_cap = None not in (narrow, wide) and narrow <= CLOCK_STEP and wide >= max(CLOCK_STEP, 2 * narrow)
        at_cap = at_cap or (capped is not None and capped >= 0.5)
        clock = rows["clock"].drop_nulls().to_numpy()
        same_clock = len(clock) >= _FEWEST and spread(clock) <= CLOCK_STEP / 2 and not at_cap
        power_line = _line(rows, "temperature", "power", least_x=1.5)
        leakage = power_line[0] if power_line is not None and 0 < power_line[0] < _POWER_PER_KELVIN else 0.0
        return cls(_kappa(rows, str(first["stresses"])), _clock_per_kelvin(rows), leakage, bool(at_cap), same_clock)


def _kappa(rows: pl.DataFrame, stresses: str) -> Slope | None:
    slope = _line(rows, "clock", "time", least_x=0.003)
    if slope is None or slope[1] > 0.12:
        return _NOT_MEASURED.get(stresses)
    return Slope(float(np.clip(-slope[0], 0.0, 1.1)), slope[1], measured=True)


def _clock_per_kelvin(rows: pl.DataFrame) -> Slope:
    slope = _line(rows, "temperature", "clock", least_x=1.5, least_y=0.002)
    if slope is None or slope[1] > 0.002:
        return Slope(-0.0013, 0.0006, measured=False)
    return Slope(min(slope[0], 0.0), slope[1], measured=True)


def _line(
    rows: pl.DataFrame, x_name: str, y_name: str, *, least_x: float, least_y: float = 0.0
) -> tuple[float, float] | None:
    """The line of one figure on another over GPUs; None for few GPUs, or where they differ too little in a figure."""
    points = rows.select(x_name, y_name).drop_nulls()
    x, y = points[x_name].to_numpy(), points[y_name].to_numpy()
    if len(x) < _FEWEST or spread(x) < least_x or (least_y and spread(y) < least_y):
        return None
    return line(x, y)


def spread(values: Floats) -> float:
    """The standard deviation that the inner 80 % of the values show."""
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low) / 2.56


def line(x: Floats, y: Floats) -> tuple[float, float] | None:
    """The slope of a line through points, most of which lie on it, and its standard error (Huber's weights).

    Points whose x is far from that of the others do not count: they are those to be explained.
    """
    near = np.abs(x - np.median(x)) <= 5 * spread(x)
    x, y = x[near], y[near]
    if len(x) < _FEWEST:
        return None
    weight = np.ones(len(x))
    slope = se = 0.0
    for _ in range(12):
        total = weight.sum()
        dx, dy = x - (weight * x).sum() / total, y - (weight * y).sum() / total
        weighted = weight * dx
        squares = float((weighted * dx).sum())
        if not squares > 0:
            return None
        slope = float((weighted * dy).sum()) / squares
        residual = np.abs(dy - slope * dx)
        scale = 1.4826 * float(np.median(residual))
        if scale < 1e-6:  # most are the same: the rest is no line
            return None
        se = scale * float(np.sqrt(weight.sum() / max(len(x) - 2, 1) / squares))
        weight = np.minimum(1.0, 1.345 * scale / np.maximum(residual, 1e-12))
    return slope, se


PeersOf = Mapping[tuple[str | None, str], Peers]
"""By model and workload."""


_COLUMNS = ("model", "workload", "gpu", "gpu_no", "sitting", "began", "runs", "value")
_FINITE = pl.col("value").is_finite()
_RANGE = 0.3  # of the fleet's: a GPU whose power moves less shows no temperature rise
_FULL = 0.01  # of ln clock: as high as that of the peers
_HOT_C, _HOTTER_K = 70, 8  # and so much hotter than its peers: heat may hold its clock


@dataclass(frozen=True, slots=True)
class Channel:
    """One figure: what it is, of which kind a GPU is that differs in it, and from when on that matters."""

    name: str
    unit: str
    kind: Kind | None
    """None: it belongs to the fingerprint and is no finding."""
    sign: int
    """1 where a higher value is worse, -1 where a lower one is."""
    relevant: float
    """The least difference from the peers that matters, on the scale of the values."""
    floor: float
    """No value is known better, on that scale (standard deviation): clocks come in steps, temperatures in degrees."""
    log: bool = True
    column: str | None = None
    """Of a figure of runs, its column of `Probed.runs`; None for one of sittings, which `channels` has."""


RISE = Channel("temperature rise", "K/W", Kind.HOT, 1, math.log(1.15), 0.02)
WARM = Channel("temperature", "degC", Kind.HOT, 1, 8.0, 0.5, log=False)
HUNGRY = Channel("power at fixed clock", "W", Kind.POWER_HUNGRY, 1, math.log(1.08), 0.003)
TOP = Channel("highest clock", "MHz", Kind.PINNED, -1, 0.01, 0.0025)
UNDER = Channel("power under the cap", "W", Kind.UNDER_CAP, -1, math.log(1.02), 0.002)
IDLING = Channel("power at full clock", "W", Kind.STARVED, -1, math.log(1.06), 0.003)
THROTTLED = Channel("throttled runs", "share", Kind.UNSTABLE, 1, 0.05, 0.01, log=False)
LEAKAGE = Channel("idle power", "W", None, 1, math.log(1.1), 0.003)
WORK = Channel("work per joule", "1/J", None, -1, math.log(1.03), 0.003)
CLOCK = Channel("sm_clock", "MHz", None, -1, 0.01, 0.0025, column="sm_clock_mhz")
POWER = Channel("power", "W", None, 1, 0.02, 0.002, column="power_w")
TEMPERATURE = Channel("temperature of runs", "degC", None, 1, 8.0, 0.5, log=False, column="temperature_c")

CHANNELS = (RISE, WARM, HUNGRY, TOP, UNDER, IDLING, THROTTLED, LEAKAGE, WORK)
FINGERPRINT = (CLOCK, POWER, RISE, HUNGRY, TOP, THROTTLED, LEAKAGE, WORK)
"""Those that describe a GPU whether they differ or not."""


def channels(by_sitting: pl.DataFrame, by_gpu: pl.DataFrame, peers: PeersOf) -> dict[Channel, pl.LazyFrame]:
    """The rows of each channel, by GPU and time: model, workload ("" over all), gpu, gpu_no (its place in `gpus`),
    sitting, began, runs, value; made when they are collected.

    Temperatures are centred on the GPUs of the same slot, as those further back in the air stream are warmer. The power
    at a fixed clock and without work is that at the peers' temperature.
    """
    rows = _beside_peers(by_sitting, by_gpu, peers)
    return {channel: of_channel.select(_COLUMNS).filter(_FINITE) for channel, of_channel in _channels(rows)}


def _channels(rows: pl.LazyFrame) -> Iterator[tuple[Channel, pl.LazyFrame]]:
    rise = _rises(rows).select(_COLUMNS).collect().lazy()  # the next channel asks for it, too
    yield RISE, rise
    # A slope needs probes of different power; where most GPUs have none, the work that takes most power tells.
    with_rise = rise.group_by("model").agg(pl.col("gpu_no").n_unique().alias("rises"))
    without_rise = rows.join(with_rise, on="model", how="left", nulls_equal=True).filter(
        pl.col("rises").fill_null(0) < pl.col("gpu_no").n_unique().over("model") / 2
    )
    yield WARM, _centred(_hungriest(without_rise.drop_nulls("temperature")).with_columns(value="temperature"))
    unheld = pl.col("throttled").fill_null(0.0) == 0.0
    same_clock = pl.col("over_clock").abs() <= _FULL
    free = rows.filter(~pl.col("at_cap") & same_clock & pl.col("time").is_not_null() & pl.col("power").is_not_null())
    yield HUNGRY, _hungriest(free).with_columns(value=_at_peers_heat())
    hot = (pl.col("temperature") >= _HOT_C) & (pl.col("over_temperature") >= _HOTTER_K)
    yield TOP, _over_workloads(rows.filter(pl.col("same_clock") & ~hot.fill_null(value=False) & unheld), "top")
    under = rows.filter(pl.col("at_cap") & (pl.col("over_clock") <= _FULL))
    yield UNDER, _over_workloads(under, "power")
    busy = (pl.col("stresses") == COMPUTE) | pl.col("follows_clock")
    full = pl.when(pl.col("at_cap")).then(pl.col("over_clock") > _FULL).otherwise(pl.col("over_clock") >= -_FULL)
    yield IDLING, _over_workloads(rows.filter(busy & full & unheld), "power")
    share = (pl.col("throttled") * pl.col("runs")).sum() / pl.col("runs").sum()
    yield THROTTLED, _by_sitting(rows.drop_nulls("throttled"), share)
    yield LEAKAGE, rows.filter(pl.col("peers_time").is_null()).with_columns(value=_at_peers_heat())
    yield WORK, rows.with_columns(value=-pl.coalesce("energy", pl.col("time") + pl.col("power") - math.log(1000)))


def _beside_peers(by_sitting: pl.DataFrame, by_gpu: pl.DataFrame, peers: PeersOf) -> pl.LazyFrame:
    """The rows of `of_sittings` with what the peers show, and how far they are over it (`over_`)."""
    compared = ("clock", "top", "power", "temperature")
    told = {"at_cap": pl.Boolean, "same_clock": pl.Boolean, "follows_clock": pl.Boolean, "power_per_kelvin": pl.Float64}
    medians = by_gpu.unique(PEER_KEYS).select(*PEER_KEYS, *(f"peers_{name}" for name in (*compared, "time")))
    of_peers = [peers[key] for key in medians.select(PEER_KEYS).iter_rows()]
    beside = medians.with_columns(
        pl.Series(name, [getattr(of_key, name) for of_key in of_peers], kind) for name, kind in told.items()
    )
    keys = by_sitting.select(PEER_KEYS).join(
        medians.select(PEER_KEYS).with_row_index("row"), on=PEER_KEYS, nulls_equal=True, maintain_order="left"
    )
    rows = by_sitting.with_columns(beside.drop(PEER_KEYS)[keys["row"]].get_columns())
    # Of each channel only the columns that it needs are copied.
    return rows.lazy().with_columns((pl.col(name) - pl.col(f"peers_{name}")).alias(f"over_{name}") for name in compared)


def _by_sitting(rows: pl.LazyFrame, *values: pl.Expr) -> pl.LazyFrame:
    """One row a sitting over its workloads, with `values`, the first of them as `value`."""
    first, *others = values
    return rows.group_by("sitting", maintain_order=True).agg(
        pl.col("model", "gpu", "gpu_no", "slot").first(),
        pl.col("began").min(),
        pl.col("runs").sum(),
        pl.lit("").alias("workload"),
        first.alias("value"),
        *others,
    )


def _over_workloads(rows: pl.LazyFrame, figure: str) -> pl.LazyFrame:
    """The median over workloads of how far it is from its peers, about the median of the fleet."""
    usual = pl.col(f"peers_{figure}").median().over("model")
    rows = rows.drop_nulls([figure, f"peers_{figure}"]).with_columns(usual.alias("usual"))
    return _by_sitting(rows, pl.col(f"over_{figure}").median() + pl.col("usual").first())


def _rises(rows: pl.LazyFrame) -> pl.LazyFrame:
    """ln of the slope of a line through (power, temperature) of a sitting's probes: it does not depend on the inlet."""
    watts, heat = pl.col("watts"), pl.col("temperature")
    slope = (watts.mean() * heat.mean() - (watts * heat).mean()) / (watts.mean() ** 2 - (watts**2).mean())
    reach, probes = (watts.max() - watts.min()).alias("reach"), pl.len().alias("probes")
    measured = rows.drop_nulls(["power", "temperature"]).with_columns(watts=pl.col("power").exp())
    slopes = _by_sitting(measured, slope, reach, probes)
    # The slope of probes of seconds depends on which probes: only those that ran as many as most are compared.
    usual_reach, usual_probes = (pl.col(name).median().over("model") for name in ("reach", "probes"))
    comparable = (
        (pl.col("probes") >= 3) & (pl.col("probes") == usual_probes) & (pl.col("reach") >= _RANGE * usual_reach)
    )
    rising = (pl.col("value") > 0) & (pl.col("reach") > 0)
    return _centred(slopes.filter(comparable).filter(rising).with_columns(value=pl.col("value").log()))


def _hungriest(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of the workload of each sitting that takes most power."""
    return rows.filter(pl.col("peers_power") == pl.col("peers_power").max().over("sitting"))


def _at_peers_heat() -> pl.Expr:
    """ln power as it would be at the temperature of the peers."""
    return pl.col("power") - pl.col("power_per_kelvin") * pl.col("over_temperature").fill_null(0.0)


def _centred(rows: pl.LazyFrame) -> pl.LazyFrame:
    """`value` centred on the GPUs of the same slot, where there are enough."""
    of_slot = [*PEER_KEYS, "slot"]
    enough = (pl.col("gpu_no").n_unique().over(of_slot) >= _FEWEST) & pl.col("slot").is_not_null()
    apart = pl.col("value").median().over(of_slot) - pl.col("value").median().over(PEER_KEYS)
    return rows.with_columns(value=pl.col("value") - pl.when(enough).then(apart).otherwise(0.0))
