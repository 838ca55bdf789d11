"""The GPUs of a campaign beside each other: their names, and each probe's times against the median."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..by_number import by_number
from ..runs.probing import Probed, names_of
from ..runs.sittings import are_in_order, days, in_order, latest
from ..verdicts.channels import CLOCK, POWER, TEMPERATURE, Channel
from ..verdicts.model import Figure, column_of, figures_of
from ..verdicts.states import codes

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
    count = Counter(short.values())
    return {gpu: name if count[name] == 1 else gpu for gpu, name in short.items()}


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


@dataclass(frozen=True)
class Shown:
    """A figure of GPUs that is shown: columns of `side_by_side`. Each has `_low` and `_high` beside it: the 95 %
    interval of another sitting."""

    name: str
    """Of the value."""
    apart: str
    """Of how far it is from the median GPU of its model."""
    channel: Channel | None
    """None for times."""


MEASURED = (
    Shown("time", "slower_pct", None),
    Shown("power_w", "power_pct", POWER),
    Shown("sm_clock_mhz", "clock_pct", CLOCK),
    Shown("temperature_c", "hotter_c", TEMPERATURE),
)


def side_by_side(campaign: Probed) -> pl.DataFrame:
    """A row per workload and GPU, in the order of the workloads and of the places: its levels, as the judge has them.

    Columns: workload, gpu, node, cabinet, n (runs), sittings; then time (ms), power_w, sm_clock_mhz and temperature_c,
    and of each how far it is from the median of the GPUs of the same model in the same workload: slower_pct, power_pct,
    clock_pct (%) and hotter_c (K). Each of these eight with its 95 % interval in another sitting: `_low` and `_high`.
    Null where a figure is not known; without two runs of any GPU nobody knows an interval.
    """
    keys = campaign.gpus["gpu"].to_list()
    runs = dated(campaign)
    measured = {column_of(shown.channel) for shown in MEASURED}
    needed = {"workload", "model", "gpu", "gpu_no", "began", *measured}
    runs = with_gpu_numbers(runs.select(name for name in runs.columns if name in needed), keys)

    def stood(shown: Shown) -> list[Figure]:
        return figures_of(runs.drop(measured - {column_of(shown.channel)}), len(keys), channel=shown.channel)

    parts: dict[tuple[str, str | None], list[tuple[Shown, Figure]]] = {}
    with ThreadPoolExecutor(len(MEASURED)) as pool:  # of a large fleet each takes as long as reading all of them
        for shown, found in zip(MEASURED, pool.map(stood, MEASURED), strict=True):
            for one in found:
                parts.setdefault((one.workload, one.model), []).append((shown, one))
    frames = [_rows(workload, found, keys) for (workload, _), found in parts.items()]
    if not frames:
        frames = [_rows("", [], keys)]
    rows = pl.concat(frames).join(campaign.gpus.select("gpu", "node", "cabinet"), on="gpu", how="left")
    probes = {probe: place for place, probe in enumerate(campaign.probes)}
    places = {gpu: place for place, gpu in enumerate(keys)}
    return rows.sort(
        pl.col("workload").replace_strict(probes, return_dtype=pl.Int64),
        pl.col("gpu").replace_strict(places, return_dtype=pl.Int64),
    ).select("workload", "gpu", "node", "cabinet", pl.exclude("workload", "gpu", "node", "cabinet"))


def with_gpu_numbers(runs: pl.DataFrame, gpus: Sequence[str]) -> pl.DataFrame:
    """The runs with the number of their GPU, `gpu_no`, by GPU and time: of a large fleet that is sorted once."""
    if "gpu_no" not in runs.columns:
        runs = runs.with_columns(pl.Series("gpu_no", codes(runs["gpu"], gpus)))
    gpu, at = runs["gpu_no"].to_numpy(), runs.select(days()).to_series().to_numpy()
    runs = runs.with_columns(pl.col("workload", "model").cast(pl.Categorical))
    return runs if are_in_order(gpu, at) else runs[in_order(gpu, at)]


def dated(campaign: Probed) -> pl.DataFrame:
    """The runs that ended well, without those of a date in the future, as the judge compares them."""
    runs = campaign.trusted
    if campaign.simulated:  # a simulated clock runs faster: its dates are right
        return runs
    late = pl.col("began") > latest().replace(tzinfo=None)
    return runs.filter(~late.fill_null(value=False))


def _rows(workload: str, found: Sequence[tuple[Shown, Figure]], keys: Sequence[str]) -> pl.DataFrame:
    """The rows of one workload and model."""
    known = np.zeros(len(keys), dtype=bool)
    for _, one in found:
        known |= one.levels.known
    on = np.flatnonzero(known)
    columns: dict[str, object] = {"workload": [workload] * len(on), "gpu": [keys[gpu] for gpu in on.tolist()]}
    n = sittings = np.zeros(len(on), dtype=np.int64)
    for shown in MEASURED:
        of = next((one for its, one in found if its is shown), None)
        ratio = shown.channel is None or shown.channel.log
        if of is not None:
            n, sittings = np.maximum(n, of.levels.runs[on]), np.maximum(sittings, of.levels.sittings[on])
        for end, side in (("", 0), ("_low", -1), ("_high", 1)):
            value = apart = np.full(len(on), np.nan)
            if of is not None:
                beyond = side * of.half[on] if side else 0.0
                x, off = of.levels.level[on] + beyond, of.effect[on] + beyond
                value, apart = (np.exp(x), 100 * np.expm1(off)) if ratio else (x, off)
            columns[f"{shown.name}{end}"], columns[f"{shown.apart}{end}"] = value, apart
    columns |= {"n": n, "sittings": sittings}
    frame = pl.DataFrame(columns, schema_overrides={"workload": pl.String, "gpu": pl.String})
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


PLACED = ("slower_pct", "sm_clock_mhz", "power_w", "temperature_c")
"""Columns of `side_by_side` that are compared by place."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_CABINETS = 3  # of fewer, the nodes are compared


def level_of(beside: pl.DataFrame) -> str:
    """What groups of GPUs are compared: cabinets, or the nodes where there are few of these."""
    return "cabinet" if beside["cabinet"].drop_nulls().n_unique() >= _CABINETS else "node"


def by_place(beside: pl.DataFrame, level: str, columns: Sequence[str] = PLACED) -> pl.DataFrame:
    """A row per probe and cabinet or node that is known, the slowest (the highest in the first column) first.

    Columns: workload, place, n (GPUs), and of each of `columns` the list of its `QUANTILES`; null where it is not known
    of any of these GPUs.
    """
    known = beside.filter(pl.col(level).is_not_null()).with_columns(pl.col(level).alias("place"))
    order = known["workload"].unique(maintain_order=True)

    def quantiles(name: str) -> pl.Expr:
        some = pl.col(name).count() > 0
        each = pl.concat_list(pl.col(name).quantile(at, "linear") for at in QUANTILES)
        return pl.when(some).then(each).alias(name)

    rows = known.group_by("workload", "place").agg(pl.len().alias("n"), *(quantiles(name) for name in columns))
    ranks = {str(probe): rank for rank, probe in enumerate(order)}
    return rows.sort(
        pl.col("workload").replace_strict(ranks, return_dtype=pl.Int64),
        pl.col(columns[0]).list.get(2),
        *by_number("place"),
        descending=[False, True, False],
        nulls_last=True,
    )
