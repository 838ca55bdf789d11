"""Grams and money of pieces of energy, and where the figures come from.

    grams = (energy + energy of the host) x PUE x grams of a kWh at that time
    money = (energy + energy of the host) x PUE x price of a kWh at that time
    embodied grams = grams of making the board x share x time / the time that it is spread over

Where PUE is not given, it counts as 1 and `pue` is NULL: the figure is of the machines without the building.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ....store.vocabulary import Code
from .dated import NONE as NO_CODE
from .dated import Steps, Times
from .factors import TABLE
from .fetching import fetch
from .grid import Grid, grid
from .settings import Method, Settings

_J_PER_KWH = 3.6e6
_YEAR_S = 365.25 * 86_400.0

COLUMNS: dict[str, pl.DataType] = {
    "co2e_g": pl.Float64(),  # NULL with carbon_reason
    "cost": pl.Float64(),  # in the settings' currency; NULL with cost_reason
    "embodied_g": pl.Float64(),  # of making the board, for this time; no part of co2e_g; NULL where not given
    "g_per_kwh": pl.Float64(),
    "pue": pl.Float64(),  # NULL where not given
    "price": pl.Float64(),
    "factor": pl.Int32(),  # position in `grid(settings).sources`
    "carbon_reason": pl.String(),  # code of NoFigure
    "cost_reason": pl.String(),
}
"""The columns that `co2_and_cost` adds."""


class NoFigure(Code):
    """Why there are no grams or no money; the meaning says what to give."""

    NO_ENERGY = "no energy", "there is no figure of the energy"
    NO_ZONE = "no zone", 'the settings name no zone for this cluster and time: write zone = "DE" in energy.toml'
    NO_FACTOR = (
        "no factor",
        "nothing says what a kWh of this zone emits: give a file with intensity, or a [[factor]], in energy.toml",
    )
    NO_CONTRACT = (
        "no contract",
        'no [[factor]] with method = "market" holds on this cluster at this time: give one in energy.toml',
    )
    NO_PRICE = "no price", "no price holds on this cluster at this time: write price = 0.20 in energy.toml"


def lacking(code: str, zones: Sequence[str] = ()) -> str:
    """What the settings lack, in words; `zones` are those without a factor."""
    meaning = NoFigure(code).meaning
    if code != NoFigure.NO_FACTOR or not zones:
        return meaning
    named = f"zone {zones[0]}" if len(zones) == 1 else f"the zones {', '.join(zones)}"
    return f"{meaning.replace('this zone', named)}. The zones of the shipped table are listed in {TABLE}"


def cuts(settings: Settings, since: int, until: int, clusters: Sequence[str]) -> Times:
    """The times (ns) between `since` and `until` at which a factor, PUE or price of these clusters changes.

    Pieces must be cut there before `co2_and_cost`. If the settings name a service, it is asked for hours that no file
    has. Raises InputError for a file of hours that cannot be read, and what `fetching.fetch` raises.
    """
    fetch(settings, since, until, clusters)
    made = grid(settings)
    found = [np.empty(0, np.int64)]
    for cluster in clusters:
        found += [steps.cuts(since, until) for steps in (made.carbon(cluster), made.pue(cluster), made.price(cluster))]
    return np.unique(np.concatenate(found))


def co2_and_cost(
    pieces: pl.DataFrame, settings: Settings, models: Mapping[tuple[str, str], str] | None = None
) -> pl.DataFrame:
    """The pieces with `COLUMNS`. `models`: the model of each (cluster, gpu), for embodied grams.

    Energy of the host is taken from a column `host_j` if there is one. Raises InputError as `cuts`.
    """
    made = grid(settings)
    if pieces.is_empty():
        return pieces.with_columns(pl.lit(None, kind).alias(name) for name, kind in COLUMNS.items())
    numbered = pieces.with_row_index("_row")
    parts = [_billed(part, str(name), made) for (name,), part in numbered.group_by("cluster")]
    whole = pl.concat(parts).sort("_row")
    return whole.with_columns(_embodied(settings, models or {})).select(*pieces.columns, *COLUMNS)


def factors_used(pieces: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """What the figures of billed pieces stand on: a row for each source and PUE.

    Columns: zone, basis, method, source, year (NULL for hours), pue, low_g_per_kwh and high_g_per_kwh (over the hours
    used), energy_j, co2e_g. Answers about many pieces are made in parts: add the rows of the parts with `join_used`.
    """
    sources = grid(settings).sources
    known = pl.DataFrame(
        {
            "factor": range(len(sources)),
            "zone": [one.zone for one in sources],
            "basis": [str(one.basis) for one in sources],
            "method": [str(one.method) for one in sources],
            "source": [one.source for one in sources],
            "year": [one.year for one in sources],
        },
        schema=_USED | {"factor": pl.Int32()},
    )
    rows = (
        pieces.filter(pl.col("co2e_g").is_not_null())
        .group_by("factor", "pue", maintain_order=True)
        .agg(
            pl.col("g_per_kwh").min().alias("low_g_per_kwh"),
            pl.col("g_per_kwh").max().alias("high_g_per_kwh"),
            pl.col("energy_j", "co2e_g").sum(),
        )
        .join(known, on="factor", maintain_order="left")
    )
    return join_used([rows])


_USED: dict[str, pl.DataType] = {
    "zone": pl.String(), "basis": pl.String(), "method": pl.String(), "source": pl.String(), "year": pl.Int64(),
}  # fmt: skip


def join_used(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of `factors_used` of several parts as those of the whole, those with most energy first."""
    rows = pl.concat(part.select(*_USED, "pue", *_SUMS) for part in parts)
    whole = rows.group_by(*_USED, "pue", maintain_order=True).agg(
        pl.col("low_g_per_kwh").min(), pl.col("high_g_per_kwh").max(), pl.col("energy_j", "co2e_g").sum()
    )
    return whole.sort("energy_j", "zone", "source", "pue", descending=[True, False, False, False])


_SUMS = ("low_g_per_kwh", "high_g_per_kwh", "energy_j", "co2e_g")


def _billed(part: pl.DataFrame, cluster: str, made: Grid) -> pl.DataFrame:
    """The pieces of one cluster with all but the embodied grams."""
    began, ended = (part[name].dt.epoch("ns").to_numpy() for name in ("began", "ended"))
    carbon, pue, price = made.carbon(cluster), made.pue(cluster), made.price(cluster)
    for steps in (carbon, pue, price):
        _check_cut(steps, began, ended)
    g, codes = carbon.at(began), carbon.code_at(began)
    energy = pl.col("energy_j") + (pl.col("host_j").fill_null(0) if "host_j" in part.columns else 0)
    kwh = energy * pl.col("pue").fill_null(1.0) / _J_PER_KWH
    known = pl.col("energy_j").is_not_null()
    return (
        part.with_columns(
            pl.Series("g_per_kwh", g).fill_nan(None),
            pl.Series("pue", pue.at(began)).fill_nan(None),
            pl.Series("price", price.at(began)).fill_nan(None),
            pl.Series("factor", codes, pl.Int32).replace({NO_CODE: None}),
            pl.Series("_why", _why(made, cluster, began, np.isnan(g)), pl.String),
        )
        .with_columns((kwh * pl.col("g_per_kwh")).alias("co2e_g"), (kwh * pl.col("price")).alias("cost"))
        .with_columns(
            pl.when(~known).then(pl.lit(NoFigure.NO_ENERGY.value)).otherwise("_why").alias("carbon_reason"),
            pl.when(~known)
            .then(pl.lit(NoFigure.NO_ENERGY.value))
            .when(pl.col("price").is_null())
            .then(pl.lit(NoFigure.NO_PRICE.value))
            .alias("cost_reason"),
        )
    )


def _check_cut(steps: Steps, began: Times, ended: Times) -> None:
    """A piece over a change would get the wrong figure: whoever cut the pieces forgot `cuts`."""
    across = [steps.cuts(int(began.min()), int(ended.max()))] if len(began) else []
    if across and len(across[0]):
        place = np.searchsorted(across[0], began, side="right")
        following = np.append(across[0], np.iinfo(np.int64).max)[place]
        if (following < ended).any():
            raise ValueError("pieces are not cut where a factor changes: cut them at cuts(settings, ...)")


def _why(made: Grid, cluster: str, began: Times, none: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[str | None]:
    """Why a piece has no grams, NULL where it has."""
    why: list[str | None] = [None] * len(began)
    missing = np.flatnonzero(none)
    if made.settings.method is Method.MARKET:
        for row in missing.tolist():
            why[row] = NoFigure.NO_CONTRACT.value
        return why
    for row, zone in zip(missing.tolist(), made.zone_at(cluster, began[missing]), strict=True):
        why[row] = (NoFigure.NO_ZONE if zone is None else NoFigure.NO_FACTOR).value
    return why


def _embodied(settings: Settings, models: Mapping[tuple[str, str], str]) -> pl.Expr:
    """Grams of making the boards, for the time and share of each piece; unknown GPUs have pieces of their own."""
    rate = {one.model: one.kg * 1000 / (one.years * _YEAR_S) for one in settings.embodied}
    usual = pl.lit(rate.get(None), pl.Float64)
    by_gpu = {f"{cluster}\x00{gpu}": rate[model] for (cluster, gpu), model in models.items() if model in rate}
    lasted = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    seconds = pl.when(pl.col("gpu").is_null()).then(0.0).otherwise(lasted)
    if not by_gpu:
        return (usual * pl.col("share") * seconds).alias("embodied_g")
    each = pl.concat_str("cluster", "gpu", separator="\x00").replace_strict(
        by_gpu, default=None, return_dtype=pl.Float64
    )
    return (pl.coalesce(each, usual) * pl.col("share") * seconds).alias("embodied_g")
