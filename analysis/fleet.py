"""The GPUs of a campaign beside each other: their names, and each probe's times against the median."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .probing import Probed, names_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Against:
    """One probe's GPUs against their median."""

    probe: str
    gpus: tuple[str, ...]
    labels: tuple[str, ...]
    """Short names of the same GPUs."""
    excess_pct: Floats
    """(gpus,) ascending; above 0 is slower."""
    typical_ms: float


def labels(gpus: pl.DataFrame) -> dict[str, str]:
    """Short names by GPU; of GPUs whose short names are the same, the whole ones."""
    named = names_of(gpus)
    # A long key is cut short.
    short = {gpu: name if name != gpu or len(gpu) <= 16 else gpu[:12] for gpu, name in named.items()}
    names = list(short.values())
    return {gpu: name if names.count(name) == 1 else gpu for gpu, name in short.items()} if len(names) < 5000 else short


def against(campaign: Probed, names: Mapping[str, str]) -> list[Against]:
    """Each probe that has times, in the order of the campaign. GPUs of several models: each against its own model."""
    typical = pl.col("value").median()
    found = []
    for probe in campaign.probes:
        runs = campaign.sound.filter((pl.col("workload") == probe) & (pl.col("value") > 0))
        if runs.is_empty():
            continue
        one = runs.group_by("gpu").agg(pl.col("value").median(), pl.col("model").first())
        one = one.with_columns((100 * (pl.col("value") / typical.over("model") - 1)).alias("excess")).sort(
            "excess", "gpu"
        )
        gpus = tuple(map(str, one["gpu"]))
        whole = float(np.median(one["value"].to_numpy()))
        found.append(Against(probe, gpus, tuple(names[gpu] for gpu in gpus), one["excess"].to_numpy(), whole))
    return found


def side_by_side(campaign: Probed) -> pl.DataFrame:
    """A row per probe and GPU, in the order of the probes and of the places: medians of the GPU's sound runs.

    Columns: workload, gpu, node, cabinet, time (ms), power_w, sm_clock_mhz, temperature_c; of each of the last three,
    and of time, also how far it is from the median of the GPUs of the same model in the same probe: slower_pct,
    power_pct, clock_pct, and hotter_c. Null where a figure is not known.
    """
    runs = campaign.sound.filter(pl.col("value") > 0)
    figures = [pl.col(name).cast(pl.Float64).median() for name in ("power_w", "sm_clock_mhz", "temperature_c")]
    rows = runs.group_by("workload", "gpu").agg(
        pl.col("model", "node", "cabinet").first(), pl.col("value").median().alias("time"), *figures
    )

    def middle(name: str) -> pl.Expr:
        return pl.col(name).median().over("workload", "model")

    def percent(name: str, called: str) -> pl.Expr:
        known = pl.when(middle(name) > 0).then(middle(name))
        return (100 * (pl.col(name) / known - 1)).alias(called)

    rows = rows.with_columns(
        percent("time", "slower_pct"),
        percent("power_w", "power_pct"),
        percent("sm_clock_mhz", "clock_pct"),
        (pl.col("temperature_c") - middle("temperature_c")).alias("hotter_c"),
    )
    probes = {probe: place for place, probe in enumerate(campaign.probes)}
    places = {str(gpu): place for place, gpu in enumerate(campaign.gpus["gpu"])}
    return rows.sort(
        pl.col("workload").replace_strict(probes, return_dtype=pl.Int64),
        pl.col("gpu").replace_strict(places, return_dtype=pl.Int64),
    ).drop("model")


PLACED = ("slower_pct", "sm_clock_mhz", "power_w", "temperature_c")
"""Columns of `side_by_side` that are compared by place."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_CABINETS = 3  # of fewer, the nodes are compared


def level_of(beside: pl.DataFrame) -> str:
    """What groups of GPUs are compared: cabinets, or the nodes where there are few of these."""
    return "cabinet" if beside["cabinet"].drop_nulls().n_unique() >= _CABINETS else "node"


def by_place(beside: pl.DataFrame, level: str) -> pl.DataFrame:
    """A row per probe and cabinet or node that is known, the slowest first.

    Columns: workload, place, n (GPUs), and of each column of `PLACED` the list of its `QUANTILES`; null where it is
    not known of any of these GPUs.
    """
    known = beside.filter(pl.col(level).is_not_null()).with_columns(pl.col(level).alias("place"))
    order = known["workload"].unique(maintain_order=True)

    def quantiles(name: str) -> pl.Expr:
        some = pl.col(name).count() > 0
        each = pl.concat_list(pl.col(name).quantile(at, "linear") for at in QUANTILES)
        return pl.when(some).then(each).alias(name)

    rows = known.group_by("workload", "place").agg(pl.len().alias("n"), *(quantiles(name) for name in PLACED))
    ranks = {str(probe): rank for rank, probe in enumerate(order)}
    return rows.sort(
        pl.col("workload").replace_strict(ranks, return_dtype=pl.Int64),
        pl.col("slower_pct").list.get(2),
        "place",
        descending=[False, True, False],
    )
