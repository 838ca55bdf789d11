"""What was booked as frames: pieces, and what was metered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..metering.readings import Floats, Times
from ..pieces import SCHEMA, Kind
from .claims import Claims, Key, column
from .shreds import ABOVE, BELOW, COUNTER, ENERGY, IDLE_J, MEASURED, SENSED, VARIANCE, Shreds

_KINDS = (Kind.JOB.value, Kind.IDLE.value, Kind.UNATTRIBUTED.value)
_FIGURES = {
    "energy_j": ENERGY, "idle_j": IDLE_J, "below_j": BELOW, "above_j": ABOVE, "variance_j2": VARIANCE,
    "sensed_j": SENSED, "measured_s": MEASURED,
}  # fmt: skip
METERED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "first": pl.Datetime("ns"),
    "last": pl.Datetime("ns"),
    "metered_j": pl.Float64(),
    "idle_w": pl.Float64(),
    "limit_w": pl.Float64(),
}
"""The columns of `Books.metered`: a row for each GPU with readings, with its energy from the first to the last one."""

Metered = tuple[Sequence[tuple[str, str]], Sequence[str | None], tuple[Times, Times], tuple[Floats, Floats, Floats]]
"""Of some GPUs, what the columns of `METERED` need."""


@dataclass(frozen=True)
class Made:
    """Pieces of some GPUs that are in no frame yet."""

    keys: Sequence[Key]
    nodes: Sequence[str | None]
    shreds: Shreds


def pieces_frame(made: Sequence[Made], claims: Claims) -> pl.DataFrame:
    """Pieces: columns of `pieces.SCHEMA`."""
    before = np.cumsum([0, *(len(one.keys) for one in made)])
    of = np.concatenate([one.shreds.gpu + first for one, first in zip(made, before[:-1], strict=True)])
    names = pl.DataFrame(
        [(*key, node) for one in made for key, node in zip(one.keys, one.nodes, strict=True)],
        schema={name: SCHEMA[name] for name in ("cluster", "gpu", "node")},
        orient="row",
    )

    def whole(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(one.shreds, name) for one in made], axis=-1)

    claim, figures = whole("claim").astype(np.int64), whole("figures").astype(np.float64)
    frame = names[of].with_columns(
        pl.Series("began", whole("began"), pl.Int64).cast(pl.Datetime("ns")),
        pl.Series("ended", whole("ended"), pl.Int64).cast(pl.Datetime("ns")),
        pl.Series("kind", list(_KINDS))[whole("kind").astype(np.int64)].alias("kind"),
        column(claims.frame, "allocation", claim).alias("allocation"),
        pl.Series("share", whole("share")),
        *(pl.Series(name, figures[row]).fill_nan(None) for name, row in _FIGURES.items()),
        pl.Series("counter_s", figures[COUNTER]),
        pl.Series("reason", whole("reason").astype(np.str_), pl.String),
    )
    honest = pl.col("reason") == ""
    method = pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s")).then(pl.lit("counter"))
    return frame.with_columns(
        pl.when(pl.col("measured_s") > 0).then(method.otherwise(pl.lit("power"))).alias("method"),
        pl.when(~honest).then("reason").alias("reason"),
        pl.col("measured_s").alias("sensed_s"),
    ).select(list(SCHEMA))


def metered_frame(metered: Sequence[Metered]) -> pl.DataFrame:
    """What each GPU's meter has, by cluster and GPU: columns of `METERED`."""
    names = [(*gpu, node) for gpus, nodes, _, _ in metered for gpu, node in zip(gpus, nodes, strict=True)]
    ends = np.concatenate([np.zeros((2, 0), np.int64), *(ends for _, _, ends, _ in metered)], axis=1)
    figures = np.concatenate([np.zeros((3, 0)), *(figures for _, _, _, figures in metered)], axis=1)
    texts, times, numbers = (list(METERED)[one] for one in (slice(3), slice(3, 5), slice(5, None)))
    rows = pl.DataFrame(names, schema={name: METERED[name] for name in texts}, orient="row").with_columns(
        *(pl.Series(name, values).cast(METERED[name]) for name, values in zip(times, ends, strict=True)),
        *(pl.Series(name, values).fill_nan(None) for name, values in zip(numbers, figures, strict=True)),
    )
    return rows.sort("cluster", "gpu")
