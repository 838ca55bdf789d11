"""In what state each GPU ran each workload, beside its peers: time, clock, power, temperature, and what held the clock.

Logarithms of times (ms), clocks (MHz) and powers (W); temperatures in degC; shares of the time of a run. A figure that
nobody recorded is null. A cause is told from means, as a clock that was held for a part of a run changes the mean and
not the median; how slow a GPU is, the levels of the judge say (`levels`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...store.vocabulary import POWER, THERMAL, reasons_of, stated
from ..runs.probing import CACHE, COMPUTE, LINK, MEMORY, Probed
from ..runs.sittings import Floats, Ints, days, in_order, numbered

OF = ("model", "workload")
"""GPUs that are alike in these are peers."""
MOVING = ("time", "clock", "power", "temperature")
"""What differs from run to run."""
SHARES = ("heat", "brake", "slowed", "capped")
"""Of the time of a run in which the clock was held by heat, by the power brake, by the hardware for any reason, and by
the power limit."""
STEADY = ("memory_clock", "limit", "energy", *SHARES)
FIGURES = (*MOVING, *STEADY)

HELD = 0.01
"""Share of the time from which a reason for a lower clock counts."""
_FEWEST = 8  # GPUs for a slope
_FLOOR = {"time": 5e-4, "clock": 2e-3, "power": 3e-3, "temperature": 0.5}
"""No figure of a sitting is known better (standard deviation)."""


def sittings(campaign: Probed, frozen: Collection[str] = ()) -> pl.DataFrame:
    """One row a GPU, workload and sitting: the means of its runs (of `MOVING`, without the lowest and the highest run
    where there are three or more), and `throttled`, the share of its runs in which heat, a brake or the hardware held
    the clock. Power and energy of GPUs in `frozen` are null."""
    runs = campaign.trusted
    moves = ~pl.col("gpu").is_in(list(frozen))
    limit = stated("power_limit_w")
    known = runs["power_limit_w"].null_count() == 0
    figures = runs.select(
        time=_log("value"),
        clock=_log("sm_clock_mhz"),
        memory_clock=_log("mem_clock_mhz"),
        power=pl.when(moves).then(_log("power_w")),
        energy=pl.when(moves).then(_log("energy")),
        limit=(pl.col("power_limit_w") if known else pl.coalesce("power_limit_w", limit)).log(),
        temperature=pl.when(pl.col("temperature_c").is_finite()).then("temperature_c"),
        **_shares(capped=not (known and 2 * runs["power_w"].null_count() < runs.height)),
    ).with_columns((pl.max_horizontal("heat", "brake", "slowed") >= HELD).cast(pl.Float64).alias("throttled"))
    groups = _Groups.of(runs)
    rows: dict[str, Ints | Floats] = {"sitting": groups.sitting, "runs": groups.runs}
    for name in figures.columns:
        values = figures[name].cast(pl.Float64).fill_null(np.nan).to_numpy()[groups.order]
        rows[name] = groups.means(values, trimmed=name in MOVING)
        if name == "clock":
            rows["top"] = groups.highest(values)
    found = runs.select(*OF, "gpu", "node", "slot", "stresses", "began")[groups.first]
    measured = pl.DataFrame(rows).with_columns(pl.col(pl.Float64).fill_nan(None), pl.col("runs").cast(pl.UInt32))
    return found.hstack(measured)


def codes(texts: pl.Series, names: Sequence[str] | None = None) -> Ints:
    """A number for each text, the same for the same ones: its place in `names`, where these are given, and -1 for a
    text that is not one of them, and for null."""
    if names is None:
        found: Ints = texts.cast(pl.Categorical).to_physical().cast(pl.Int64).to_numpy()
        return found
    numbers = texts.cast(pl.Enum(names), strict=False).to_physical().cast(pl.Int64)
    return numbers.fill_null(-1).to_numpy().astype(np.int64)


@dataclass(frozen=True)
class _Groups:
    """Runs in groups of one GPU, workload and sitting."""

    order: Ints
    """(runs,) places of the runs, group by group, by GPU and sitting."""
    starts: Ints
    """(groups,) where each group begins in `order`."""
    first: Ints
    """(groups,) the place of the earliest run of each."""
    sitting: Ints
    """(groups,) a number that rises with the time of a GPU's sittings; runs at unknown times are the first one."""
    runs: Ints

    @classmethod
    def of(cls, runs: pl.DataFrame) -> _Groups:
        gpu, workload = (codes(runs[name]) for name in ("gpu", "workload"))
        at = runs.select(days()).to_series().to_numpy()
        sitting = numbered(gpu, at)
        order = in_order(sitting * (int(workload.max(initial=0)) + 1) + workload, at)
        starts = np.flatnonzero(np.diff(sitting[order], prepend=-1) | np.diff(workload[order], prepend=-1))
        n = np.diff(starts, append=len(order))
        return cls(order, starts, order[starts], sitting[order][starts], n)

    def means(self, values: Floats, *, trimmed: bool) -> Floats:
        """The mean of each group; `trimmed`: without the lowest and the highest of three or more."""
        if not len(values):
            return values
        known = np.isfinite(values)
        n = np.add.reduceat(known, self.starts, dtype=np.int64)
        total = np.add.reduceat(np.where(known, values, 0.0), self.starts)
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


def _shares(*, capped: bool) -> dict[str, pl.Expr]:
    """Of the time of a run that a reason held the clock; null where no reasons were recorded.

    Without `capped` the power limit is left out: where power and limit are known, these tell it.
    """
    reasons = {
        "heat": reasons_of(THERMAL),
        "brake": ("power_brake",),
        "slowed": ("hw_slowdown",),
        "capped": reasons_of(POWER),
    }
    window = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    events = pl.col("clock_events")
    found: dict[str, pl.Expr] = {}
    for share, ones in reasons.items():
        if share == "capped" and not capped:
            found[share] = pl.lit(None, pl.Float64)
            continue
        seconds = [events.struct.field(one) for one in ones]
        held = pl.when(window > 0).then(pl.max_horizontal(pl.lit(0.0), *seconds) / window).clip(0.0, 1.0)
        found[share] = pl.when(events.is_not_null()).then(held)
    return found


def levels(by_sitting: pl.DataFrame) -> pl.DataFrame:
    """One row a GPU and workload: the median of its sittings, `sd_` of a sitting about it, and `peers_`, the median of
    the GPUs of its model in that workload (itself included), with their robust `spread_`; `n` GPUs.

    The standard deviation of a sitting is pooled over the fleet, and a GPU's own counts as much as its sittings allow.
    """
    keys = [*OF, "gpu"]
    # Most fleets have no run with most of the reasons: then a mean says the same.
    some = {name: (by_sitting[name].max() or 0.0) > 0.0 for name in SHARES}  # type: ignore[operator]
    known = by_sitting.group_by(keys).agg(
        pl.col("node", "slot", "stresses").last(),
        pl.col("runs").sum(),
        pl.len().alias("sittings"),
        pl.col(*MOVING, *(name for name in SHARES if some[name])).median(),
        pl.col("memory_clock", "limit", "energy", "throttled", *(name for name in SHARES if not some[name])).mean(),
        pl.col("top").max(),
        *(pl.col(name).var().alias(f"var_{name}") for name in MOVING),
    )
    free = (pl.col("sittings") - 1).clip(lower_bound=0).cast(pl.Float64)
    several = pl.col("sittings") > 1
    peers = known.group_by(OF).agg(
        pl.len().alias("n"),
        *(pl.col(name).median().alias(f"peers_{name}") for name in (*FIGURES, "throttled", "top")),
        *(
            (1.4826 * (pl.col(name) - pl.col(name).median()).abs().median()).alias(f"spread_{name}")
            for name in (*MOVING, "top")
        ),
        # Of two sittings the median variance is less than half of the mean one.
        *((pl.col(f"var_{name}").filter(several).median() * 1.5).alias(f"all_{name}") for name in MOVING),
    )
    beside = known.join(peers, on=OF, how="left", nulls_equal=True)
    pooled = 4.0  # how many sittings the fleet's variance counts for
    sd = (
        (pooled * pl.max_horizontal(pl.col(f"all_{name}").fill_null(0.0), _FLOOR[name] ** 2))
        + free * pl.col(f"var_{name}").fill_null(0.0)
        for name in MOVING
    )
    beside = beside.with_columns(
        (one / (pooled + free)).sqrt().alias(f"sd_{name}") for name, one in zip(MOVING, sd, strict=True)
    )
    return beside.drop(*(f"{kind}_{name}" for name in MOVING for kind in ("var", "all"))).sort("gpu", "workload")


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope of the fleet with its standard error."""

    value: float
    se: float
    measured: bool
    """Whether the fleet showed it; if not, it is what such workloads are like."""


_NOT_MEASURED = {
    COMPUTE: Slope(0.95, 0.06, False),
    CACHE: Slope(0.95, 0.1, False),
    MEMORY: Slope(0.05, 0.04, False),
    LINK: Slope(0.0, 0.02, False),
}


def kappa(peers: pl.DataFrame, stresses: str) -> Slope | None:
    """By how much ln time falls with ln clock, over the GPUs of one model in one workload (rows of `levels`).

    Where their clocks do not differ enough to tell, what such a workload is like; None where that is not known.
    """
    clock, time = _known(peers, "clock", "time")
    found = line(clock, time) if len(clock) >= _FEWEST and spread(clock) >= 0.003 else None
    if found is None or found[1] > 0.12:
        return _NOT_MEASURED.get(stresses)
    return Slope(float(np.clip(-found[0], 0.0, 1.1)), found[1], True)


def clock_per_kelvin(peers: pl.DataFrame) -> Slope:
    """By how much ln clock changes with a kelvin, over GPUs of one model in one workload; hotter silicon leaks more."""
    temperature, clock = _known(peers, "temperature", "clock")
    enough = len(clock) >= _FEWEST and spread(temperature) >= 1.5 and spread(clock) >= 0.002
    found = line(temperature, clock) if enough else None
    if found is None or found[1] > 0.002:
        return Slope(-0.0013, 0.0006, False)
    return Slope(min(found[0], 0.0), found[1], True)


def _known(peers: pl.DataFrame, x: str, y: str) -> tuple[Floats, Floats]:
    some = peers.select(x, y).drop_nulls()
    return some[x].to_numpy(), some[y].to_numpy()


def spread(values: Floats) -> float:
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
        apart = np.abs(dy - slope * dx)
        scale = 1.4826 * float(np.median(apart))
        if scale < 1e-6:  # most are the same: the rest is no line
            return None
        se = scale * float(np.sqrt(weight.sum() / max(len(x) - 2, 1) / squares))
        weight = np.minimum(1.0, 1.345 * scale / np.maximum(apart, 1e-12))
    return slope, se
