"""Grams and money of pieces of energy, and where the figures come from.

    grams = (energy + energy of the host) x PUE x grams of a kWh at that time
    money = (energy + energy of the host) x PUE x price of a kWh at that time
    embodied grams = grams of making the board x share x time / the time that it is spread over

Where PUE is not given, it counts as 1 and `pue` is NULL: the figure is of the machines without the building.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.vocabulary import Code
from .carbon import FactorBasis, NoFigure, zones_between
from .grid import ask_for_hours, rates
from .settings import EnergySettings

_J_PER_KWH = 3.6e6
_YEAR_S = 365.25 * 86_400.0


class HostSource(Code):
    """Where the energy of the rest of a node comes from."""

    MEASURED = "measured", "the energy of the node was measured: what its GPUs did not use, split over them"
    STATED = "stated", "host_w of the settings"
    BOTH = "both", "measured for a part of the time or of the nodes, stated for the rest"


PRICED: dict[str, pl.DataType] = {
    "host_j": pl.Float64(),  # of the rest of the node, the share of the piece; NULL where nobody knows it
    "host_source": pl.String(),  # code of HostSource
    "co2e_g": pl.Float64(),  # NULL with carbon_reason
    "cost": pl.Float64(),  # in the settings' currency; NULL with cost_reason
    "embodied_g": pl.Float64(),  # of making the board, for this time; no part of co2e_g; NULL where not given
    "carbon_reason": pl.String(),  # code of NoFigure
    "cost_reason": pl.String(),
    "rate": pl.Int64(),  # the row of the rates that holds; NULL where none does
}
"""The columns that `priced` adds."""

FACTORS: dict[str, pl.DataType] = {
    "zone": pl.String(), "basis": pl.String(), "method": pl.String(), "source": pl.String(), "year": pl.Int64(),
    "pue": pl.Float64(), "low_g_per_kwh": pl.Float64(), "high_g_per_kwh": pl.Float64(), "energy_j": pl.Float64(),
    "co2e_g": pl.Float64(),
}  # fmt: skip
"""What grams stand on: a row for each source and PUE, with the least and the most grams of a kWh that were used. `year`
is NULL of hours, which have their own."""


def rates_between(
    settings: EnergySettings, since_ns: int, until_ns: int, clusters: Sequence[str | None]
) -> pl.DataFrame:
    """What `grid.rates` says, after a service that the settings name was asked for hours that no file has.

    Raises InputError for a file of hours that cannot be read, and what `services.ask_for_hours` raises.
    """
    ask_for_hours(settings, since_ns, until_ns, zones_between(settings, since_ns, until_ns, clusters))
    return rates(settings, since_ns, until_ns, clusters)


def cuts(steps: pl.DataFrame) -> NDArray[np.int64]:
    """The times (ns) at which rates change: pieces must be cut there before `priced`."""
    changed = steps.filter(pl.col("cluster").is_first_distinct().not_())
    return changed["from_ns"].unique().sort().to_numpy()


def priced(
    pieces: pl.DataFrame, steps: pl.DataFrame, settings: EnergySettings, models: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The pieces with the columns of `PRICED`.

    `pieces` have cluster, gpu, began, ended, share and energy_j. Where they have `measured_host_j` (J of the rest of
    the node, their share; NULL where nobody measured it), that counts before the host_w of the settings. `steps`: what
    `rates_between` says of a time that holds all pieces. `models` (cluster, gpu, model): for embodied grams.
    """
    if pieces.is_empty():
        return pieces.with_columns(pl.lit(None, kind).alias(name) for name, kind in PRICED.items())
    clusters = steps["cluster"].drop_nulls().unique().implode()
    cluster = pl.when(pl.col("cluster").is_in(clusters)).then("cluster").otherwise(pl.lit("")).alias("_cluster")
    rate = steps.with_row_index("rate").select(
        pl.col("cluster").fill_null("").alias("_cluster"), pl.col("from_ns").alias("_from_ns"),
        pl.col("rate").cast(pl.Int64),
        pl.col("from_ns").shift(-1).over("cluster").alias("_until_ns"), pl.col("reason").alias("_reason"),
        *(pl.col(name).alias(f"_{name}") for name in ("g_per_kwh", "pue", "price", "host_w")),
    )  # fmt: skip
    begins = pieces.select(cluster, pl.col("began").dt.epoch("ns").alias("_from_ns")).with_row_index("_row")
    begins = begins.sort("_from_ns").join_asof(
        rate.sort("_from_ns"), on="_from_ns", by="_cluster", check_sortedness=False
    ).sort("_row")  # fmt: skip
    rows = pieces.hstack(begins)
    if rows.select((pl.col("ended").dt.epoch("ns") > pl.col("_until_ns")).any()).item():
        raise ValueError("pieces are not cut where a rate changes: cut them at cuts(rates)")
    # Pieces of unknown GPUs take nothing of a host or a board: these GPUs have pieces of their own.
    lasted_s = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    gpu_s = pl.when(pl.col("gpu").is_null()).then(0.0).otherwise(pl.col("share") * lasted_s)
    measured = pl.col("measured_host_j") if "measured_host_j" in pieces.columns else pl.lit(None, pl.Float64)
    stated = pl.col("_host_w") * gpu_s
    rows = rows.with_columns(
        pl.coalesce(measured, stated).alias("host_j"),
        pl.when(measured.is_not_null()).then(pl.lit(HostSource.MEASURED.value))
        .when(stated.is_not_null()).then(pl.lit(HostSource.STATED.value)).alias("host_source"),
        (_embodied_g_per_s(rows, settings, models) * gpu_s).alias("embodied_g"),
    )  # fmt: skip
    kwh = (pl.col("energy_j") + pl.col("host_j").fill_null(0.0)) * pl.col("_pue").fill_null(1.0) / _J_PER_KWH
    no_energy = pl.when(pl.col("energy_j").is_null()).then(pl.lit(NoFigure.NO_ENERGY.value))
    return rows.with_columns(
        (kwh * pl.col("_g_per_kwh")).alias("co2e_g"),
        (kwh * pl.col("_price")).alias("cost"),
        no_energy.otherwise("_reason").alias("carbon_reason"),
        no_energy.when(pl.col("_price").is_null()).then(pl.lit(NoFigure.NO_PRICE.value)).alias("cost_reason"),
    ).select(*pieces.columns, *PRICED)


def _embodied_g_per_s(rows: pl.DataFrame, settings: EnergySettings, models: pl.DataFrame | None) -> pl.Expr:
    """Grams of making a board for each second of its life: of its model, else of all models; NULL where not given."""
    boards = {board.model: board.kg * 1000 / (board.years * _YEAR_S) for board in settings.embodied}
    usual = pl.lit(boards.pop(None, None), pl.Float64)
    if models is None or not boards:
        return usual
    keys = ["cluster", "gpu"]
    model = rows.select(keys).join(models, on=keys, how="left", nulls_equal=True, maintain_order="left")["model"]
    return pl.coalesce(model.replace_strict(boards, default=None, return_dtype=pl.Float64), usual)


def host_source(pieces: pl.Expr) -> pl.Expr:
    """The source of the host energy of some pieces together, from their column of it; NULL where none has any."""
    codes = pieces.drop_nulls()
    return pl.when(codes.n_unique() > 1).then(pl.lit(HostSource.BOTH.value)).otherwise(codes.first())


def factors_used(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """What the grams of priced pieces stand on, the sources of most energy first: columns of `FACTORS`.

    `steps` are the rates that they are priced by.
    """
    sums = pieces.filter(pl.col("co2e_g").is_not_null()).group_by("rate", maintain_order=True).agg(
        pl.col("energy_j", "co2e_g").sum()
    )  # fmt: skip
    rows = sums.join(steps.with_row_index("rate").cast({"rate": pl.Int64}), on="rate", maintain_order="left")
    grams = pl.col("g_per_kwh")
    sources = rows.group_by("zone", "basis", "method", "source", "year", "pue", maintain_order=True).agg(
        grams.min().alias("low_g_per_kwh"), grams.max().alias("high_g_per_kwh"), pl.col("energy_j", "co2e_g").sum()
    )
    order = ("energy_j", "zone", "source", "pue")
    return sources.select(*FACTORS).sort(order, descending=[True, False, False, False])


def hours_share(factors: pl.DataFrame) -> float | None:
    """Of the energy that has grams, the part whose grams are of its hour, not of a year or a contract; None without
    grams. `factors`: of `factors_used`."""
    energy_j = float(factors["energy_j"].sum())
    return (
        float(factors.filter(pl.col("basis") == FactorBasis.HOURS)["energy_j"].sum()) / energy_j
        if energy_j > 0
        else None
    )
