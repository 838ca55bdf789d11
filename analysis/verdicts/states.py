"""In what state each GPU ran each workload, beside its peers: time, clock, power, temperature, and what held the clock.

Logarithms of times (ms), clocks (MHz) and powers (W); temperatures in degC; shares of the time of a run. A figure that
nobody recorded is null. A cause is told from means, as a clock that was held for a part of a run changes the mean and
not the median; how slow a GPU is, the levels of the judge say (`levels.levels`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...store.vocabulary import POWER, THERMAL, reasons_of, stated
from ..runs.measurements import codes
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, Probed
from ..runs.sittings import Floats, Ints, days, in_order, numbered

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
_FEWEST = 8  # GPUs for a slope
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
    figures = runs.select(
        time=_log("value"),
        clock=_log("sm_clock_mhz"),
        memory_clock=_log("mem_clock_mhz"),
        power=pl.when(power_moves).then(_log("power_w")),
        energy=pl.when(power_moves).then(_log("energy")),
        limit=(pl.col("power_limit_w") if limit_known else pl.coalesce("power_limit_w", stated("power_limit_w"))).log(),
        temperature=pl.when(pl.col("temperature_c").is_finite()).then("temperature_c"),
        **_shares(without=("capped",) if capped_known else ()),
    ).with_columns((pl.max_horizontal("heat", "brake", "slowed") >= HELD).cast(pl.Float64).alias("throttled"))
    gpu_no = codes(runs["gpu"], campaign.gpus["gpu"].to_list())
    groups = _RunGroups.of(gpu_no, codes(runs["workload"]), runs.select(days()).to_series().to_numpy())
    means: dict[str, Ints | Floats] = {"gpu_no": gpu_no[groups.first], "sitting": groups.sitting, "runs": groups.runs}
    for name in figures.columns:
        if figures[name].null_count() == runs.height:
            values = np.full(runs.height, np.nan)
            means[name] = np.full(len(groups.starts), np.nan)
        else:
            values = figures[name].cast(pl.Float64).fill_null(np.nan).to_numpy()[groups.order]
            means[name] = groups.means(values, trimmed=name in MOVING)
        if name == "clock":
            means["top"] = groups.highest(values)
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
        "capped": reasons_of(POWER),
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
