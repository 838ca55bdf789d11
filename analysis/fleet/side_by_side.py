"""The GPUs of a cluster beside each other in one workload: what can be compared, and their levels.

A page reads one workload of a large fleet in the time in which `probed` reads one column of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from ...store.catalog import quoted
from ...store.names import plain_workload
from ..by_number import by_number
from ..runs.measurements import APART, STATED, codes, told_apart
from ..runs.probing import Probed, figures, gpus_of, names_of, other_names, parted
from ..runs.sittings import are_in_order, days, in_order, latest
from ..verdicts.compare import LEAST_GPUS
from ..verdicts.model import Figure, column_of, figures_of
from ..verdicts.states import CLOCK, POWER, TEMPERATURE, Channel

if TYPE_CHECKING:
    from ...store import Store
    from ..runs.probing import Probed


_RUNS = (
    "run_id", "cluster", "workload", "gpu", "campaign", "began", "sm_clock_mhz", "temperature_c", "power_w", "status",
)  # fmt: skip
_KNOWN = "FROM runs WHERE cluster IS NOT NULL AND workload IS NOT NULL AND gpu IS NOT NULL"
_FIELDS = (*APART, "locked_clock_mhz", "simulated")
_ANY_FIELD = f"coalesce({', '.join(f'conditions.{name}::VARCHAR' for name in _FIELDS)}) IS NOT NULL"
_PACKED = ", ".join(f"{name} := conditions.{name}" for name in _FIELDS)
_CONDITIONS = f"CASE WHEN {_ANY_FIELD} THEN struct_pack({_PACKED}) END"
_WORKS = (  # the first and the last run of each: another card may stand in the place now
    f"SELECT cluster, workload, gpu, {STATED} AS conditions, "
    "unnest([arg_min(run_id, began), arg_max(run_id, began)]) AS run_id "
    f"{_KNOWN} GROUP BY cluster, workload, gpu, {STATED}"
)
_CAMPAIGNS = f"SELECT cluster, campaign, min(began) AS began {_KNOWN} GROUP BY ALL"


@dataclass(frozen=True)
class Work:
    """A workload of a cluster, and how many GPUs ran it."""

    name: str
    gpus: int


@dataclass(frozen=True)
class Campaign:
    """A campaign of a cluster; when it began (UTC) is None where no run says it."""

    name: str
    began: datetime | None


@dataclass(frozen=True)
class Comparable:
    """A cluster with runs."""

    cluster: str
    works: tuple[Work, ...]
    """By name."""
    campaigns: tuple[Campaign, ...]
    """The newest first."""


def comparable(store: Store) -> tuple[Comparable, ...]:
    """The clusters that have runs, the one with the newest campaign first."""
    first_and_last = told_apart(store, store.sql(_WORKS).polars()).with_columns(pl.col("workload").cast(pl.String))
    works = first_and_last.group_by("cluster", "workload").agg(pl.col("gpu").n_unique().alias("gpus"))
    campaigns = store.sql(_CAMPAIGNS).polars()
    clusters = campaigns.group_by("cluster").agg(pl.col("began").max())
    clusters = clusters.sort("began", "cluster", descending=[True, False], nulls_last=True)
    with_names = campaigns.drop_nulls("campaign").sort("began", "campaign", descending=True, nulls_last=True)
    return tuple(
        Comparable(
            cluster,
            tuple(Work(*row) for row in _of(works, cluster).sort("workload").iter_rows()),
            tuple(Campaign(*row) for row in _of(with_names, cluster).iter_rows()),
        )
        for cluster in clusters["cluster"]
    )


def _of(rows: pl.DataFrame, cluster: str) -> pl.DataFrame:
    return rows.filter(pl.col("cluster") == cluster).drop("cluster")


@dataclass(frozen=True)
class Known:
    """The GPUs of a cluster: `gpus` as in `Probed`, and the other names of some (see `probing.other_names`)."""

    gpus: pl.DataFrame
    names: dict[str, str]


def gpus_on(store: Store, cluster: str) -> Known:
    """All GPUs that the store knows on a cluster."""
    gpu_keys = store.collect(store.scan("gpus").filter(pl.col("cluster") == cluster).select(pl.col("gpu").unique()))[
        "gpu"
    ]
    names = other_names(store, cluster)
    return Known(gpus_of(store, cluster, gpu_keys, names), names)


def runs_of(
    store: Store,
    cluster: str,
    workload: str,
    *,
    campaign: str | None = None,
    known: Known | None = None,
    columns: Sequence[str] = (),
) -> Probed:
    """The runs of a workload on a cluster, of a campaign or all; without events, with the columns that are compared and
    `columns` of `runs`, and with `gpu_no`, the place of the GPU in `gpus`.

    `workload`: as `comparable` names it. The GPUs are all that the store knows on that cluster: `known`, or read anew.
    InputError where there are no such runs.
    """
    of_work = (pl.col("cluster") == cluster) & (pl.col("workload") == plain_workload(workload))
    condition = f"cluster = {quoted(cluster)} AND workload = {quoted(plain_workload(workload))} AND gpu IS NOT NULL"
    # By SQL: Polars would read all conditions of all runs.
    runs = store.sql(
        f"SELECT {', '.join([*_RUNS, *columns])}, {_CONDITIONS} AS conditions FROM runs WHERE {condition}"
    ).polars()
    times = figures(store, runs["run_id"], where=of_work, names=("time_median",))
    value = times.select(pl.coalesce("time_median", "time").alias("value")).to_series()
    runs = told_apart(store, runs.with_columns(value)).with_columns(pl.col("workload").cast(pl.String))
    of_kind = pl.col("workload") == workload
    if campaign is not None:
        of_kind &= pl.col("campaign") == campaign
    runs = runs.filter(of_kind).drop("cluster", "run_id")
    if runs.is_empty():
        of_campaign = "" if campaign is None else f" of campaign {campaign!r}"
        raise InputError(f"{store.root} holds no runs of {workload!r} on cluster {cluster!r}{of_campaign}")
    known = known or gpus_on(store, cluster)
    gpus, names = known.gpus, known.names if campaign is None else {}
    if names:
        runs = runs.with_columns(pl.col("gpu").replace(names))
    number = codes(runs["gpu"], gpus["gpu"].to_list())
    if (number < 0).any():  # runs of GPUs of which nothing else is known, or by a name that the campaign gave them
        gpu_keys = pl.concat([gpus["gpu"], runs["gpu"].unique(), pl.Series(known.names.keys(), dtype=pl.String)])
        gpus = gpus_of(store, cluster, gpu_keys.unique(), names)
        number = codes(runs["gpu"], gpus["gpu"].to_list())
    identity = gpus.select("model", "node", "cabinet")[number]
    runs = runs.with_columns(*identity, pl.Series("gpu_no", number))
    return Probed(cluster, campaign or "", gpus, runs, pl.DataFrame())


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
    display_names = names_of(gpus)
    # A long key is cut short.
    short = {gpu: name if name != gpu or len(gpu) <= 16 else gpu[:12] for gpu, name in display_names.items()}
    count = Counter(short.values())
    return {gpu: name if count[name] == 1 else gpu for gpu, name in short.items()}


def against(campaign: Probed, names: Mapping[str, str]) -> list[Against]:
    """Each probe that has times, in the order of the campaign. GPUs of several models: each against its own model."""
    typical = pl.col("value").median()
    sound = campaign.sound.select("workload", "gpu", "model", "value")
    probes = []
    for probe in campaign.probes:
        runs = sound.filter((pl.col("workload") == probe) & (pl.col("value") > 0))
        if runs.is_empty():
            continue
        by_gpu = runs.group_by("gpu").agg(pl.col("value").median(), pl.col("model").first())
        by_gpu = by_gpu.with_columns((100 * (pl.col("value") / typical.over("model") - 1)).alias("excess")).sort(
            "excess", "gpu"
        )
        gpus = tuple(by_gpu["gpu"].cast(pl.String).to_list())
        typical_ms = float(np.median(by_gpu["value"].to_numpy()))
        probes.append(Against(probe, gpus, tuple(names[gpu] for gpu in gpus), by_gpu["excess"].to_numpy(), typical_ms))
    return probes


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
    needed = {"workload", "model", "gpu", "gpu_no", "began", *(column_of(measure.channel) for measure in MEASURED)}
    runs = runs.select(name for name in runs.columns if name in needed)

    def stood(measure: Shown) -> list[Figure]:
        return figures_of(of_work, len(keys), channel=measure.channel)

    frames = []
    with ThreadPoolExecutor(len(MEASURED)) as pool:  # of a large fleet each takes as long as reading all of them
        for _, rows_of_work in parted(runs, "workload"):
            of_work = with_gpu_numbers(rows_of_work, keys)
            parts: dict[tuple[str, str | None], list[tuple[Shown, Figure]]] = {}
            for measure, of_models in zip(MEASURED, pool.map(stood, MEASURED), strict=True):
                for figure in of_models:
                    parts.setdefault((figure.workload, figure.model), []).append((measure, figure))
            frames += [_rows(workload, of_part, keys) for (workload, _), of_part in parts.items()]
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


def _rows(workload: str, figures: Sequence[tuple[Shown, Figure]], keys: Sequence[str]) -> pl.DataFrame:
    """The rows of one workload and model."""
    is_measured = np.zeros(len(keys), dtype=bool)
    for _, figure in figures:
        is_measured |= figure.levels.known
    on = np.flatnonzero(is_measured)
    columns: dict[str, object] = {"workload": [workload] * len(on), "gpu": [keys[gpu] for gpu in on.tolist()]}
    n = sittings = np.zeros(len(on), dtype=np.int64)
    for measure in MEASURED:
        figure_of = next((figure for column, figure in figures if column is measure), None)
        ratio = measure.channel is None or measure.channel.log
        if figure_of is not None:
            n, sittings = np.maximum(n, figure_of.levels.runs[on]), np.maximum(sittings, figure_of.levels.sittings[on])
        for end, side in (("", 0), ("_low", -1), ("_high", 1)):
            value = apart = np.full(len(on), np.nan)
            if figure_of is not None:
                beyond = side * figure_of.half[on] if side else 0.0
                x, off = figure_of.levels.level[on] + beyond, figure_of.effect[on] + beyond
                value, apart = (np.exp(x), 100 * np.expm1(off)) if ratio else (x, off)
            columns[f"{measure.name}{end}"], columns[f"{measure.apart}{end}"] = value, apart
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
    at_places = beside.filter(pl.col(level).is_not_null()).with_columns(pl.col(level).alias("place"))
    order = at_places["workload"].unique(maintain_order=True)

    def quantiles(name: str) -> pl.Expr:
        has_values = pl.col(name).count() > 0
        list_of_quantiles = pl.concat_list(pl.col(name).quantile(at, "linear") for at in QUANTILES)
        return pl.when(has_values).then(list_of_quantiles).alias(name)

    rows = at_places.group_by("workload", "place").agg(pl.len().alias("n"), *(quantiles(name) for name in columns))
    ranks = {str(probe): rank for rank, probe in enumerate(order)}
    return rows.sort(
        pl.col("workload").replace_strict(ranks, return_dtype=pl.Int64),
        pl.col(columns[0]).list.get(2),
        *by_number("place"),
        descending=[False, True, False],
        nulls_last=True,
    )


_IDENTITY = ("gpu", "name", "node", "cabinet", "slot", "model", "vbios", "driver")
_OF_TIMES = ("time", "sm_clock", "power")  # figures of a fingerprint that `MEASURED` has


@dataclass(frozen=True)
class Beside:
    """The GPUs of a cluster in one workload."""

    rows: pl.DataFrame
    """One row a GPU of the cluster, by cabinet, node and slot: gpu, name, label (a short name), node, cabinet, slot,
    model, vbios, driver, and the columns of `fleet.side_by_side`; null where the GPU did not run it."""
    runs: int
    began: datetime | None
    ended: datetime | None
    """When the first and the last run began."""
    notes: tuple[str, ...]
    """What these runs cannot say, in sentences."""

    @property
    def measured(self) -> int:
        """GPUs that ran it."""
        return int((self.rows["n"] > 0).sum())


def beside(runs: Probed) -> Beside:
    """The GPUs of a cluster in one workload, from its runs of one campaign or of all (`runs_of`)."""
    compared = side_by_side(runs).drop("workload", "node", "cabinet")
    gpus = runs.gpus.select(_IDENTITY).with_columns(
        pl.Series("label", list(labels(runs.gpus).values()), dtype=pl.String)
    )
    rows = gpus.join(compared, on="gpu", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(pl.Float64).cast(pl.Float32), pl.col("n", "sittings").fill_null(0).cast(pl.Int32))
    first, last = runs.runs.select(pl.col("began").min().alias("a"), pl.col("began").max().alias("b")).row(0)
    return Beside(rows, runs.trusted.height, first, last, tuple(_notes(rows)))


def _notes(rows: pl.DataFrame) -> Iterable[str]:
    ran = rows.filter(pl.col("n") > 0)
    if (unmeasured := rows.height - ran.height) > 0:
        yield f"{unmeasured:,} of {rows.height:,} GPUs have no sound run of it, and are shown as n/a."
    for model, n in ran.group_by("model").len().sort("model").iter_rows():
        if n < LEAST_GPUS:
            yield f"Only {n} GPU{'' if n == 1 else 's'} of {model or 'an unknown model'}: too few to tell who differs."
    if ran["time"].is_null().all():
        yield "These runs measure no time: look at power, clock or temperature."
    elif ran["n"].max() == 1:
        yield "Each GPU ran it once, so nobody knows how far a figure repeats: there are no intervals. Measure again."
    elif ran["time_low"].is_null().all():
        yield "Too few GPUs ran it twice to know how far a figure repeats: there are no intervals."


# -- figures of the fingerprint ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A figure of the stored fingerprints."""

    figure: str
    workload: str | None
    """None: it is of the GPU, whatever it runs."""
    unit: str
    is_ratio: bool
    """Whether `_apart` of `of_print` is in per cent."""


def printed(store: Store, cluster: str, workload: str) -> tuple[Printed, ...]:
    """The figures of the newest stored fingerprints, besides times, clocks and power: those of a workload, and those
    of a GPU. Of a figure that is known in other workloads only, the one that most GPUs have."""
    query = (
        "SELECT figure, workload, unit, count(value) AS n, bool_or(count(ratio) > 0) OVER (PARTITION BY figure) AS yes "
        f"FROM fingerprints_now WHERE cluster = {quoted(cluster)} AND figure NOT IN {_OF_TIMES} "
        "GROUP BY figure, workload, unit HAVING count(value) > 0"
    )
    figures = store.sql(query).polars()
    is_of_workload = (pl.col("workload") == workload).fill_null(value=False)
    first = figures.sort(
        "figure", is_of_workload, "n", "workload", descending=[False, True, True, False], nulls_last=True
    )
    chosen = first.unique("figure", keep="first", maintain_order=True)
    return tuple(Printed(*row) for row in chosen.select("figure", "workload", "unit", "yes").iter_rows())


def of_print(store: Store, cluster: str, figure: Printed) -> pl.DataFrame:
    """A figure of the stored fingerprints: gpu, and named after the figure its value, `_n` (runs), and `_apart`: how
    far it is from the median of the GPUs of the same model, in % where the figure has ratios, else in its unit. Value
    and `_apart` with `_low` and `_high`, the 95 % interval in another sitting; null where it is not known.
    """
    of_workload = "IS NULL" if figure.workload is None else f"= {quoted(figure.workload)}"
    rows = store.sql(
        "SELECT gpu, model, value, low AS value_low, high AS value_high, ratio, n FROM fingerprints_now "
        f"WHERE cluster = {quoted(cluster)} AND figure = {quoted(figure.figure)} AND workload {of_workload}"
    ).polars()
    middle = pl.col("value").median().over("model")
    ratio = pl.col("ratio").is_not_null().any() & (middle > 0)

    def apart(name: str) -> pl.Expr:
        return pl.when(ratio).then(100 * (pl.col(name) / middle - 1)).otherwise(pl.col(name) - middle)

    ends = ("", "_low", "_high")
    rows = rows.with_columns(apart(f"value{end}").alias(f"apart{end}") for end in ends)
    columns = rows.select(
        "gpu",
        *(pl.col(f"value{end}").alias(f"{figure.figure}{end}") for end in ends),
        *(pl.col(f"apart{end}").alias(f"{figure.figure}_apart{end}") for end in ends),
        pl.col("n").alias(f"{figure.figure}_n"),
    )
    return columns.with_columns(pl.col(pl.Float64).cast(pl.Float32))
