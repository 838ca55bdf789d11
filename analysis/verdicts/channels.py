"""What is measured of every GPU besides its times: figures that tell the kinds of verdicts, and its fingerprint.

`channels` has a row for each GPU and sitting (and workload, where a figure is of one). Values are on the scale on which
GPUs of one model are compared: logarithms where `Channel.log`. A figure that nobody recorded has no row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ..runs.probing import COMPUTE
from .causes import STEP, Evidence, Peers
from .states import OF, line, spread
from .verdict import Kind

_COLUMNS = ("model", "workload", "gpu", "node", "slot", "sitting", "began", "runs", "value")
_OF_SITTING = ("model", "gpu", "sitting")
_FEWEST = 8  # GPUs of a slot to centre it on itself
_RANGE = 0.3  # of the fleet's: a GPU whose power moves less shows no temperature rise
_FULL = 0.01  # of ln clock: as high as that of the peers


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
    log: bool


RISE = Channel("temperature rise", "K/W", Kind.HOT, 1, math.log(1.15), 0.02, True)
WARM = Channel("temperature", "degC", Kind.HOT, 1, 8.0, 0.5, False)
HUNGRY = Channel("power at fixed clock", "W", Kind.POWER_HUNGRY, 1, math.log(1.08), 0.003, True)
TOP = Channel("highest clock", "MHz", Kind.PINNED, -1, 0.01, 0.0025, True)
UNDER = Channel("power under the cap", "W", Kind.UNDER_CAP, -1, math.log(1.02), 0.002, True)
IDLING = Channel("power at full clock", "W", Kind.STARVED, -1, math.log(1.06), 0.003, True)
THROTTLED = Channel("throttled runs", "share", Kind.UNSTABLE, 1, 0.05, 0.01, False)
LEAKAGE = Channel("idle power", "W", None, 1, math.log(1.1), 0.003, True)
WORK = Channel("work per joule", "1/J", None, -1, math.log(1.03), 0.003, True)

CHANNELS = (RISE, WARM, HUNGRY, TOP, UNDER, IDLING, THROTTLED, LEAKAGE, WORK)
FINGERPRINT = (RISE, HUNGRY, TOP, THROTTLED, LEAKAGE, WORK)
"""Those that describe a GPU whether they differ or not."""


def fingerprint_figures(evidence: Evidence) -> pl.DataFrame:
    """The channels of `FINGERPRINT`, as `channels` has them, with what the workload `stresses` (null over all)."""
    of = evidence.levels.select(*OF, "stresses").unique(OF, maintain_order=True)
    own = channels(evidence).filter(pl.col("channel").is_in([one.name for one in FINGERPRINT]))
    return own.join(of, on=OF, how="left", nulls_equal=True, maintain_order="left")


def channels(evidence: Evidence) -> pl.DataFrame:
    """channel, model, workload ('' over all), gpu, node, slot, sitting, began, runs, value; the channels in their
    order, the GPUs in one order.

    Temperatures are centred on the GPUs of the same slot, as those further back in the air stream are warmer. The power
    at a fixed clock and without work is that at the peers' temperature.
    """
    if evidence.channels is None:  # verdicts and fingerprints both read them
        parts = [
            frame.select(pl.lit(channel.name).alias("channel"), *_COLUMNS).filter(pl.col("value").is_finite())
            for channel, frame in _all(evidence)
        ]
        evidence.channels = pl.concat(parts) if parts else _nothing()
    return evidence.channels


def _nothing() -> pl.DataFrame:
    texts = ("channel", "model", "workload", "gpu", "node")
    return pl.DataFrame(
        schema=dict.fromkeys(texts, pl.String())
        | {"slot": pl.Int64(), "sitting": pl.Int64(), "began": pl.Datetime("us"), "runs": pl.UInt32()}
        | {"value": pl.Float64()}
    )


def _all(evidence: Evidence) -> Iterator[tuple[Channel, pl.DataFrame]]:
    about = _about(evidence)
    if about.is_empty():
        return
    beside = evidence.by_sitting.join(about, on=OF, how="left", nulls_equal=True).with_columns(
        *(
            (pl.col(name) - pl.col(f"peers_{name}")).alias(f"over_{name}")
            for name in ("clock", "top", "power", "temperature")
        )
    )
    rise = _rises(beside)
    yield RISE, rise
    # A slope needs probes of different power; where most GPUs have none, the work that takes most power tells.
    have = rise.group_by("model").agg(pl.col("gpu").n_unique().alias("rises"))
    without = beside.join(have, on="model", how="left", nulls_equal=True).filter(
        pl.col("rises").fill_null(0) < pl.col("gpu").n_unique().over("model") / 2
    )
    yield WARM, _centred(_hottest(without.drop_nulls("temperature")).with_columns(value=pl.col("temperature")))
    unheld = pl.col("throttled").fill_null(0.0) == 0.0
    same_clock = pl.col("over_clock").abs() <= _FULL
    free = beside.filter(~pl.col("at_cap") & same_clock & pl.col("time").is_not_null())
    yield HUNGRY, _hottest(free.drop_nulls("power")).with_columns(value=_at_peers_heat())
    hot = (pl.col("temperature") >= 70) & (pl.col("over_temperature") >= 8)
    yield TOP, _over_workloads(beside.filter(pl.col("tight") & ~hot.fill_null(value=False) & unheld), "top")
    under = beside.filter(pl.col("at_cap") & (pl.col("over_clock") <= _FULL))
    yield UNDER, _over_workloads(under, "power")
    busy = (pl.col("stresses") == COMPUTE) | (pl.col("kappa") >= 0.5)
    full = pl.when(pl.col("at_cap")).then(pl.col("over_clock") > _FULL).otherwise(pl.col("over_clock") >= -_FULL)
    yield IDLING, _over_workloads(beside.filter(busy & full & unheld), "power")
    told = beside.drop_nulls("throttled")
    share = (pl.col("throttled") * pl.col("runs")).sum() / pl.col("runs").sum()
    yield THROTTLED, _by_sitting(told, share)
    yield LEAKAGE, beside.filter(pl.col("no_time")).with_columns(value=_at_peers_heat())
    yield WORK, beside.with_columns(value=-pl.coalesce("energy", pl.col("time") + pl.col("power") - math.log(1000)))


def _about(evidence: Evidence) -> pl.DataFrame:
    """One row a model and workload: what its GPUs show, and their medians."""
    rows = []
    for _, some in evidence.levels.group_by(OF, maintain_order=True):
        first, peers = some.row(0, named=True), Peers.of(some)
        clocks, temperatures = some["clock"].drop_nulls().to_numpy(), some.select("temperature", "power").drop_nulls()
        slope = None
        if temperatures.height >= _FEWEST and spread(temperatures["temperature"].to_numpy()) >= 1.5:
            slope = line(temperatures["temperature"].to_numpy(), temperatures["power"].to_numpy())
        rows.append(
            {
                **{name: first[name] for name in OF},
                **{f"peers_{name}": first[f"peers_{name}"] for name in ("clock", "top", "power", "temperature")},
                "at_cap": peers.at_cap,
                "kappa": peers.kappa.value if peers.kappa is not None and peers.kappa.measured else None,
                "tight": bool(len(clocks) >= _FEWEST and spread(clocks) <= STEP / 2 and not peers.at_cap),
                "no_time": first["peers_time"] is None,
                "power_per_kelvin": slope[0] if slope is not None and 0 < slope[0] < 0.03 else 0.0,
            }
        )
    numbers = ("peers_clock", "peers_top", "peers_power", "peers_temperature", "kappa", "power_per_kelvin")
    kinds = dict.fromkeys(OF, pl.String()) | dict.fromkeys(numbers, pl.Float64())
    return pl.DataFrame(rows, schema_overrides=kinds)


def _by_sitting(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    return (
        rows.group_by(_OF_SITTING, maintain_order=True)
        .agg(pl.col("node", "slot").last(), pl.col("began").min(), value.alias("value"), pl.col("runs").sum())
        .with_columns(pl.lit("").alias("workload"))
    )


def _over_workloads(rows: pl.DataFrame, figure: str) -> pl.DataFrame:
    """The median over workloads of how far it is from its peers, about the median of the fleet."""
    usual = pl.col(f"peers_{figure}").median().over("model")
    rows = rows.drop_nulls([figure, f"peers_{figure}"]).with_columns(usual.alias("usual"))
    return _by_sitting(rows, pl.col(f"over_{figure}").median() + pl.col("usual").first())


def _rises(rows: pl.DataFrame) -> pl.DataFrame:
    """ln of the slope of a line through (power, temperature) of a sitting's probes: it does not depend on the inlet."""
    watts, heat = pl.col("power").exp(), pl.col("temperature")
    known = rows.drop_nulls(["power", "temperature"])
    together = (watts.mean() * heat.mean() - (watts * heat).mean()) / (watts.mean() ** 2 - (watts**2).mean())
    reach = ((watts.max() - watts.min()).alias("reach"), pl.len().alias("probes"))
    slopes = known.group_by(_OF_SITTING).agg(*reach, together.alias("slope"))
    usual = pl.col("reach").median().over("model")
    # The slope of probes of seconds depends on which probes: only those that ran as many as most are compared.
    most = pl.col("probes").median().over("model")
    good = slopes.filter((pl.col("probes") >= 3) & (pl.col("probes") == most) & (pl.col("reach") >= _RANGE * usual))
    good = good.filter((pl.col("slope") > 0) & (pl.col("reach") > 0))
    sat = _by_sitting(known, pl.lit(0.0).first()).drop("value")
    both = sat.join(good, on=list(_OF_SITTING), nulls_equal=True, maintain_order="left")
    return _centred(both.with_columns(value=pl.col("slope").log()))


def _hottest(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the workload of each sitting that takes most power."""
    return rows.filter(pl.col("peers_power").rank("dense", descending=True).over(_OF_SITTING) == 1)


def _at_peers_heat() -> pl.Expr:
    """ln power as it would be at the temperature of the peers."""
    return pl.col("power") - pl.col("power_per_kelvin") * pl.col("over_temperature").fill_null(0.0)


def _centred(rows: pl.DataFrame) -> pl.DataFrame:
    """`value` centred on the GPUs of the same slot, where there are enough."""
    keys = ["model", "workload"]
    enough = pl.col("gpu").n_unique().over(*keys, "slot") >= _FEWEST
    own = pl.col("value").median().over(*keys, "slot") - pl.col("value").median().over(keys)
    return rows.with_columns(
        value=pl.col("value") - pl.when(enough & pl.col("slot").is_not_null()).then(own).otherwise(0.0)
    )
