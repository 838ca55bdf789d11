"""What was booked as frames: pieces, and what was metered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ....store.instants import times_of_ns
from ..idle import IDLE_SOURCES, IdleSource
from ..meter import Meters
from ..pieces import SCHEMA, Kind
from ..series import Floats, Times
from .claims import Claims, Key, column
from .shreds import (
    ABOVE,
    BELOW,
    COUNTER,
    ENERGY,
    IDLE_HIGH,
    IDLE_J,
    IDLE_LOW,
    MEASURED,
    SENSED,
    VARIANCE,
    Shreds,
)

_KINDS = (Kind.JOB.value, Kind.IDLE.value, Kind.UNATTRIBUTED.value)
_UNKNOWN = IDLE_SOURCES.index(IdleSource.UNKNOWN)
_FIGURES = {
    "energy_j": ENERGY, "idle_j": IDLE_J, "below_j": BELOW, "above_j": ABOVE, "variance_j2": VARIANCE,
    "sensed_j": SENSED, "measured_s": MEASURED, "idle_low_j": IDLE_LOW, "idle_high_j": IDLE_HIGH,
}  # fmt: skip
METERED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "first": pl.Datetime("us"),
    "last": pl.Datetime("us"),
    "metered_j": pl.Float64(),
    "idle_w": pl.Float64(),
    "idle_low_w": pl.Float64(),
    "idle_high_w": pl.Float64(),
    "limit_w": pl.Float64(),
    "idle_source": pl.String(),
    "power_source": pl.String(),
}
"""The columns of `Books.metered`: a row for each GPU with readings, with its energy from the first to the last one."""


@dataclass(frozen=True)
class MeteredGpus:
    """Of some GPUs, what the columns of `METERED` need; arrays (g,)."""

    meters: Meters
    nodes: Sequence[str | None]
    ends: tuple[Times, Times]
    figures: tuple[Floats, ...]
    """In the order of `METERED`."""


@dataclass(frozen=True)
class Made:
    """Pieces of some GPUs that are in no frame yet."""

    keys: Sequence[Key]
    nodes: Sequence[str | None]
    shreds: Shreds
    idle_source: NDArray[np.int64] | int = _UNKNOWN
    """By GPU, the number in `IDLE_SOURCES`."""


def pieces_frame(made: Sequence[Made], claims: Claims) -> pl.DataFrame:
    """Pieces: columns of `pieces.SCHEMA`."""
    before = np.cumsum([0, *(len(one.keys) for one in made)])
    of = np.concatenate([one.shreds.gpu + first for one, first in zip(made, before[:-1], strict=True)])
    sources = np.concatenate([np.broadcast_to(one.idle_source, len(one.keys)) for one in made])
    names = pl.DataFrame(
        [(*key, node) for one in made for key, node in zip(one.keys, one.nodes, strict=True)],
        schema={name: SCHEMA[name] for name in ("cluster", "gpu", "node")},
        orient="row",
    )

    def whole(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(one.shreds, name) for one in made], axis=-1)

    claim, figures = whole("claim").astype(np.int64), whole("figures").astype(np.float64)
    frame = names[of].with_columns(
        times_of_ns(pl.Series("began", whole("began"), pl.Int64)),
        times_of_ns(pl.Series("ended", whole("ended"), pl.Int64)),
        pl.Series("kind", list(_KINDS))[whole("kind").astype(np.int64)].alias("kind"),
        column(claims.frame, "allocation", claim).alias("allocation"),
        pl.Series("share", whole("share")),
        *(pl.Series(name, figures[row]).fill_nan(None) for name, row in _FIGURES.items()),
        pl.Series("counter_s", figures[COUNTER]),
        pl.Series("reason", whole("reason").astype(np.str_), pl.String),
        pl.Series("idle_source", sources[of], pl.Int8),
    )
    honest = pl.col("reason") == ""
    method = pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s")).then(pl.lit("counter"))
    return frame.with_columns(
        pl.when(pl.col("measured_s") > 0).then(method.otherwise(pl.lit("power"))).alias("method"),
        pl.when(~honest).then("reason").alias("reason"),
        pl.col("measured_s").alias("sensed_s"),
    ).select(list(SCHEMA))


def metered_frame(metered: Sequence[MeteredGpus]) -> pl.DataFrame:
    """What each GPU's meter has, by cluster and GPU: columns of `METERED`."""
    frames = []
    for some in metered:
        gpus, ends = some.meters.gpus, [end // 1000 for end in some.ends]  # us
        columns = [
            [cluster for cluster, _ in gpus], [gpu for _, gpu in gpus], some.nodes, *ends, *some.figures,
            [IDLE_SOURCES[number] for number in some.meters.idle_source.tolist()], some.meters.power_source,
        ]  # fmt: skip
        frames.append(
            pl.DataFrame(
                [
                    pl.Series(name, values).cast(kind)
                    for (name, kind), values in zip(METERED.items(), columns, strict=True)
                ]
            )
        )
    rows = pl.concat([pl.DataFrame(schema=METERED), *frames])
    return rows.with_columns(pl.col(pl.Float64).fill_nan(None)).sort("cluster", "gpu")
