"""What is measured of every GPU besides its times: figures that tell the kinds of verdicts, and its fingerprint.

`channels` has rows for each GPU and sitting (and workload, where a figure is of one). Values are on the scale on which
GPUs of one model are compared: logarithms where `Channel.log`. A figure that nobody recorded has no row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ..runs.probing import COMPUTE
from .causes import Evidence
from .states import PEER_KEYS
from .verdict import Kind

_COLUMNS = ("model", "workload", "gpu", "gpu_no", "sitting", "began", "runs", "value")
_FEWEST = 8  # GPUs of a slot to centre it on itself
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


def channels(evidence: Evidence) -> dict[Channel, pl.DataFrame]:
    """The rows of each channel, by GPU and time: model, workload ("" over all), gpu, gpu_no (its place in `gpus`),
    sitting, began, runs, value.

    Temperatures are centred on the GPUs of the same slot, as those further back in the air stream are warmer. The power
    at a fixed clock and without work is that at the peers' temperature.
    """
    finite = pl.col("value").is_finite()
    by_channel = {channel: rows.select(_COLUMNS).filter(finite) for channel, rows in _channels(evidence)}
    return {channel: by_channel[channel] for channel in CHANNELS}


def _channels(evidence: Evidence) -> Iterator[tuple[Channel, pl.DataFrame]]:
    rows = _beside_peers(evidence)
    rise = _rises(rows)
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


def _beside_peers(evidence: Evidence) -> pl.DataFrame:
    """The rows of `states.of_sittings` with what the peers show, and how far they are over it (`over_`)."""
    compared = ("clock", "top", "power", "temperature")
    medians = evidence.by_gpu.unique(PEER_KEYS).select(*PEER_KEYS, *(f"peers_{name}" for name in (*compared, "time")))
    of_peers = pl.DataFrame(
        [
            (*key, peers.at_cap, peers.same_clock, peers.follows_clock, peers.power_per_kelvin)
            for key, peers in evidence.peers.items()
        ],
        schema={
            "model": pl.String(), "workload": pl.String(), "at_cap": pl.Boolean(), "same_clock": pl.Boolean(),
            "follows_clock": pl.Boolean(), "power_per_kelvin": pl.Float64(),
        },
        orient="row",
    )  # fmt: skip
    beside = medians.join(of_peers, on=PEER_KEYS, nulls_equal=True)
    rows = evidence.by_sitting.join(beside, on=PEER_KEYS, how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns((pl.col(name) - pl.col(f"peers_{name}")).alias(f"over_{name}") for name in compared)


def _by_sitting(rows: pl.DataFrame, *values: pl.Expr) -> pl.DataFrame:
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


def _over_workloads(rows: pl.DataFrame, figure: str) -> pl.DataFrame:
    """The median over workloads of how far it is from its peers, about the median of the fleet."""
    usual = pl.col(f"peers_{figure}").median().over("model")
    rows = rows.drop_nulls([figure, f"peers_{figure}"]).with_columns(usual.alias("usual"))
    return _by_sitting(rows, pl.col(f"over_{figure}").median() + pl.col("usual").first())


def _rises(rows: pl.DataFrame) -> pl.DataFrame:
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


def _hungriest(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the workload of each sitting that takes most power."""
    return rows.filter(pl.col("peers_power") == pl.col("peers_power").max().over("sitting"))


def _at_peers_heat() -> pl.Expr:
    """ln power as it would be at the temperature of the peers."""
    return pl.col("power") - pl.col("power_per_kelvin") * pl.col("over_temperature").fill_null(0.0)


def _centred(rows: pl.DataFrame) -> pl.DataFrame:
    """`value` centred on the GPUs of the same slot, where there are enough."""
    of_slot = [*PEER_KEYS, "slot"]
    enough = (pl.col("gpu_no").n_unique().over(of_slot) >= _FEWEST) & pl.col("slot").is_not_null()
    apart = pl.col("value").median().over(of_slot) - pl.col("value").median().over(PEER_KEYS)
    return rows.with_columns(value=pl.col("value") - pl.when(enough).then(apart).otherwise(0.0))
