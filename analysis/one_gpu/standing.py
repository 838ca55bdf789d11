"""Where one GPU stands: in each workload, sitting by sitting beside what was usual on the same days, and figure by
figure beside the quantiles of the GPUs of its model.

Places and pasts come from what is stored with a judgement (`levels`, `day_levels`) and from the GPU's own runs: no
other GPU's runs are read. Figures are rows of `fingerprints`: the newest that were stored. Where none were, they are
computed for a cluster of few runs; for one of many, that takes longer than a page may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from ..runs.probing import probed
from ..runs.sittings import UNKNOWN, Floats, Ints, date_of, numbered
from ..statistics.ordering import PROBABILITIES

if TYPE_CHECKING:
    from ...store import Store
    from ..verdicts.fingerprint import Alike
    from ..verdicts.judgements import StoredJudgement


FEWEST = 3  # GPUs of a day, before their median says what was usual on it
_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal values
_REACH = 1.96
_SAYS = 2  # degrees of freedom from which on a standard deviation has an interval
_OWN_FREEDOM = 5  # with so many degrees a GPU's own scatter is known, else that of its peers counts
_ILL = 4.0  # usual standard deviations of the peers
_READ = ("sm_clock_mhz", "power_w", "temperature_c")
_DAY_QUANTILES = tuple(f"time_{100 * q:g}_ms" for q in PROBABILITIES)
Five = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU stands in a workload. Slower is positive; None where it is unknown."""

    workload: str
    effect_pct: float | None
    """Of the median of the peers."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of its level in another sitting; None where no GPU has two runs."""
    rank: int
    """From the fastest, 1."""
    rank_low: int | None
    rank_high: int | None
    peers: int
    """GPUs compared, itself included."""
    n: int
    """Its runs."""
    sittings: int


@dataclass(frozen=True, slots=True)
class Sitting:
    """Its runs of one workload without a pause of 6 hours. Slower is positive; None where it is unknown."""

    began: datetime | None
    n: int
    off_pct: float
    """From the level of its peers over all time; where it has none, from its own median."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of the sitting's median, from the scatter of runs within sittings; None where no two runs are."""
    that_day_pct: float | None
    """From the median of all GPUs that were measured on the same day; None for fewer than three of them."""
    peers_pct: Five | None
    """Those GPUs: 5, 25, 50, 75 and 95 %, as `off_pct`."""
    peers: int
    """How many they are."""
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class Scatter:
    """A standard deviation in per cent of the time, beside those of the peers."""

    pct: float
    low_pct: float | None
    high_pct: float | None
    """95 % interval; None of one degree of freedom, which says next to nothing."""
    freedom: int
    """Degrees of freedom: values that are free to differ."""
    peers_pct: Five | None
    """Of the peers that have as many or more degrees of freedom, or at least 2: 5, 25, 50, 75 and 95 %."""
    peers: int


@dataclass(frozen=True)
class Line:
    """The past of a GPU in one workload."""

    workload: str
    sittings: tuple[Sitting, ...]
    """Those with a date, by time."""
    beside_peers: bool
    """Whether `off_pct` is from the peers; else the GPU has none."""
    runs: int
    undated: int
    """Runs without a time."""
    within: Scatter | None
    """Of runs within a sitting; None where no sitting has two, and where it was not judged."""
    between: Scatter | None
    """Of the medians of sittings, without what the day did to its peers too; None for fewer than two."""
    without_date: Sitting | None = None
    """The runs without a time as one sitting."""


@dataclass(frozen=True)
class Compared:
    """What a judgement has of a GPU and its peers, in the workloads in which the GPU was compared."""

    levels: pl.DataFrame
    """The rows of `levels` of the GPU, that in which it is slowest first."""
    days: pl.DataFrame
    """The rows of `day_levels` of its model in these workloads."""
    peers: pl.DataFrame | None
    """Of `levels`, those of the other GPUs of its model in these workloads; None where they were not read."""

    @classmethod
    def read(cls, store: Store, judged: StoredJudgement | None, keys: Sequence[str], *, peers: bool) -> Compared:
        """From the levels of a judgement. `keys`: of the GPU. `peers`: whether to read those of other GPUs, too."""
        if judged is None:
            levels, days = (store.scan(name).head(0).collect() for name in ("levels", "day_levels"))
            return cls(levels, days, None)
        is_own = pl.col("gpu").is_in(list(keys))
        levels = store.collect(judged.of_gpus(store).filter(is_own)).sort("ratio", descending=True, nulls_last=True)
        compared = levels.select("workload", "model").unique().lazy()

        def alike(rows: pl.LazyFrame) -> pl.DataFrame:
            return store.collect(rows.join(compared, on=["workload", "model"], how="semi", nulls_equal=True))

        others = alike(judged.of_gpus(store).filter(~is_own)) if peers else None
        return cls(levels, alike(judged.of_days(store)), others)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the GPU stands, that in which it is slowest first."""
        return tuple(
            Place(
                row["workload"], _pct(row["ratio"]), _pct(row["ratio_low"]), _pct(row["ratio_high"]),
                *(row[name] for name in ("rank", "rank_low", "rank_high", "peers", "n", "sittings")),
            )
            for row in self.levels.iter_rows(named=True)
        )  # fmt: skip

    def lines(self, runs: pl.DataFrame) -> tuple[Line, ...]:
        """The past in each workload, in the order of `places`, then of those that were not judged. `runs`: of
        `runs.timed`."""
        of_workload = {str(workload): part for (workload,), part in runs.partition_by("workload", as_dict=True).items()}
        by_workload = {row["workload"]: row for row in self.levels.iter_rows(named=True)}
        order = [*by_workload, *sorted(set(of_workload) - set(by_workload))]
        return tuple(
            self._line(name, of_workload[name], by_workload.get(name)) for name in order if name in of_workload
        )

    def _line(self, workload: str, runs: pl.DataFrame, level: Mapping[str, Any] | None) -> Line:
        runs = runs.sort("at", maintain_order=True)
        sitting = numbered(np.zeros(runs.height, np.int64), runs["at"].to_numpy())
        medians = (pl.col(name).cast(pl.Float64).fill_nan(None).median() for name in _READ)
        by_sitting = runs.with_columns(pl.Series("sitting", sitting)).group_by("sitting", maintain_order=True)
        rows = by_sitting.agg(pl.col("at").first(), pl.len().alias("n"), pl.col("x").median(), *medians)
        centre = None
        if level is not None and level["ratio"] is not None:
            centre = math.log(level["time_ms"] / level["ratio"])
        usual = float(rows["x"].median()) if centre is None else centre  # type: ignore[arg-type]
        days = {row["day"]: row for row in self.days.filter(pl.col("workload") == workload).iter_rows(named=True)}
        peers = None if self.peers is None else self.peers.filter(pl.col("workload") == workload)
        error = None if peers is None else _error(level, peers)
        listed = [_sitting(row, usual, error, days) for row in rows.iter_rows(named=True)]
        undated = runs.height - int((runs["at"] > UNKNOWN).sum())
        within = between = None
        if level is not None and peers is not None:
            within = _scatter(
                level["within_pct"], level["within_freedom"], peers["within_pct"], peers["within_freedom"]
            )
            between = _scatter(level["between_pct"], level["sittings"] - 1, peers["between_pct"], peers["sittings"] - 1)
        with_date = tuple(sitting for sitting in listed if sitting.began is not None)
        without_date = next((sitting for sitting in listed if sitting.began is None), None)
        return Line(workload, with_date, centre is not None, runs.height, undated, within, between, without_date)


def _sitting(
    row: Mapping[str, Any], usual: float, error: float | None, days: Mapping[Any, Mapping[str, Any]]
) -> Sitting:
    off, half = row["x"] - usual, None if error is None else _REACH * _MEDIAN * error / math.sqrt(row["n"])
    began = None if row["at"] <= UNKNOWN else date_of(row["at"])
    day = None if began is None else days.get(began.replace(hour=0, minute=0, second=0, microsecond=0))
    if day is not None and day["gpus"] < FEWEST:
        day = None
    peers = None if day is None else _five([_off_pct(math.log(day[name]) - usual) for name in _DAY_QUANTILES])
    return Sitting(
        began, row["n"], _off_pct(off),
        None if half is None else _off_pct(off - half),
        None if half is None else _off_pct(off + half),
        None if day is None else _off_pct(row["x"] - math.log(day["time_50_ms"])),
        peers, 0 if day is None else day["gpus"], *(row[name] for name in _READ),
    )  # fmt: skip


def _scatter(pct: float | None, freedom: int, peers_pct: pl.Series, peers_freedom: pl.Series) -> Scatter | None:
    from ..statistics.ordering import interval_of_sd

    if pct is None or freedom < 1:
        return None
    sd, degrees = peers_pct.fill_null(np.nan).to_numpy(), peers_freedom.to_numpy()
    low, high = (None, None) if freedom < _SAYS else interval_of_sd(pct, freedom, _kurtosis(sd, degrees))
    enough = sd[np.isfinite(sd) & (degrees >= min(2, freedom))]
    band = _five(np.quantile(enough, PROBABILITIES).tolist()) if len(enough) >= FEWEST else None
    return Scatter(pct, low, high, freedom, band, len(enough))


def _kurtosis(sd: Floats, freedom: Ints) -> float:
    """The kurtosis of the values behind the standard deviations of the peers, from how far these differ: the variance
    of s² is (k - 1) / (n - 1) sigma⁴ (see `interval_of_sd`). Those that scatter more by far are ill, and are left
    out."""
    sound = np.isfinite(sd) & (freedom > 0)
    sound[sound] = sd[sound] <= _ILL * np.median(sd[sound]) if sound.any() else False
    if not sound.any():
        return 3.0
    squares, degrees = sd[sound] ** 2, freedom[sound]
    usual = float((squares * degrees).sum() / degrees.sum())
    return 1 + float((degrees * (squares / usual - 1) ** 2).mean()) if usual > 0 else 3.0


def _error(level: Mapping[str, Any] | None, peers: pl.DataFrame) -> float | None:
    """Standard deviation of a run within a sitting: the GPU's own where it is known, else that of all."""
    pct, freedom = 0.0, 0
    if level is not None and level["within_pct"] is not None:
        pct, freedom = level["within_pct"], level["within_freedom"]
    if freedom >= _OWN_FREEDOM:
        return pct / 100
    with_runs = peers.drop_nulls("within_pct")
    squares = freedom * pct**2 + float((with_runs["within_freedom"] * with_runs["within_pct"] ** 2).sum())
    freedom += int(with_runs["within_freedom"].sum())
    return math.sqrt(squares / freedom) / 100 if freedom else None


def _off_pct(effect: float) -> float:
    return 100 * math.expm1(effect)


def _pct(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


COMPUTED_RUNS = 50_000
"""Up to so many runs of a cluster, a page that must come at once computes fingerprints that nobody stored."""
_OF = ("model", "class", "workload", "figure", "unit")
_ENDS = tuple(f"{column}_{100 * q:g}" for column in ("value", "ratio") for q in PROBABILITIES)


@dataclass(frozen=True, slots=True)
class Standing:
    """One figure of a GPU beside its peers. None where it is unknown."""

    of: str
    """The class: compute, memory, power, latency, path or other."""
    workload: str | None
    """None: the whole class, or the GPU."""
    figure: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    """95 % interval of the value in another sitting."""
    off_pct: float | None
    """From the level of its peers; None for what has no ratio, such as a count."""
    off_low_pct: float | None
    off_high_pct: float | None
    rank: int | None
    """From the lowest value, 1."""
    peers: int | None
    """GPUs compared, itself included."""
    n: int
    """Its runs."""
    sittings: int | None
    band: Five | None
    """The 5, 25, 50, 75 and 95 % quantiles of the values of all GPUs of its model; None where it is alone."""
    band_pct: Five | None
    """The same of `off_pct`."""
    gpus: int
    """How many GPUs these are of."""
    runs: tuple[str, ...]
    """Ids of the newest runs behind it."""


@dataclass(frozen=True)
class Figures:
    """The fingerprints of a cluster, as far as every GPU's page needs them."""

    cluster: str
    made_at: datetime | None
    """When they were stored, UTC; None: they were computed now."""
    bands: pl.DataFrame
    """By model, class, workload, figure and unit: gpus, and the quantiles of value and ratio."""
    rows: pl.DataFrame | None = field(repr=False, default=None)
    """Those of all GPUs, where they were computed now; else they are read when they are needed."""


def figures(store: Store, cluster: str, most_runs: float | None = None) -> Figures | None:
    """The fingerprints of a cluster; None where none are stored, and there are no runs, or more than `most_runs`
    (`COMPUTED_RUNS` where not given)."""
    of_cluster = store.scan("fingerprints").filter(pl.col("cluster") == cluster)
    made_at: datetime | None = store.collect(of_cluster.select(pl.col("made_at").max())).item()
    if made_at is not None:
        return Figures(cluster, made_at, store.collect(_bands(_made(store, cluster, made_at))))
    count = store.collect(store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())).item()
    if not 0 < count <= (COMPUTED_RUNS if most_runs is None else most_runs):
        return None

    from ..verdicts.fingerprint import computed

    rows, *_ = computed(store, probed(store, cluster=cluster, every=True))
    return Figures(cluster, None, _bands(rows.lazy()).collect(), rows)


def standings(store: Store, figures_of: Figures, gpu: str) -> list[Standing]:
    """Every figure of a GPU. By class, workload (the class itself first) and figure."""
    from ..verdicts.fingerprint import CLASSES

    of_gpu = store.collect(_rows(store, figures_of).filter(pl.col("gpu") == gpu))
    beside = of_gpu.join(figures_of.bands, on=list(_OF), how="left", nulls_equal=True)
    listed = [_standing(row) for row in beside.iter_rows(named=True)]
    order = {name: place for place, name in enumerate(CLASSES)}
    return sorted(
        listed, key=lambda standing: (order.get(standing.of, len(order)), standing.workload or "", standing.figure)
    )


def alike(store: Store, figures_of: Figures) -> Alike:
    """Which GPUs of a cluster are like which."""
    from ..verdicts.fingerprint import Alike

    return Alike.of(store.collect(_rows(store, figures_of).select("gpu", "model", "workload", "figure", "ratio")))


def times(stands: Iterable[Standing]) -> list[Standing]:
    """Those of times in a workload that have peers: the one in which the GPU is slowest first."""
    listed = [standing for standing in stands if standing.figure == "time" and standing.workload is not None]
    return sorted(listed, key=lambda standing: -(standing.off_pct if standing.off_pct is not None else float("-inf")))


def _rows(store: Store, figures_of: Figures) -> pl.LazyFrame:
    if figures_of.rows is not None:
        return figures_of.rows.lazy()
    assert figures_of.made_at is not None
    return _made(store, figures_of.cluster, figures_of.made_at)


def _made(store: Store, cluster: str, made_at: datetime) -> pl.LazyFrame:
    return store.scan("fingerprints").filter((pl.col("cluster") == cluster) & (pl.col("made_at") == made_at))


def _bands(rows: pl.LazyFrame) -> pl.LazyFrame:
    quantiles = (
        pl.col(column).filter(pl.col(column).is_finite()).quantile(q, "linear").alias(f"{column}_{100 * q:g}")
        for column in ("value", "ratio")
        for q in PROBABILITIES
    )
    return rows.group_by(_OF).agg(pl.len().alias("gpus"), *quantiles)


def _standing(row: Mapping[str, Any]) -> Standing:
    ratios = ("ratio", "ratio_low", "ratio_high")
    off = [None if row[name] is None else 100 * (row[name] - 1) for name in ratios]
    value = [row[name] for name in _ENDS[:5]]
    ratio = [None if row[name] is None else 100 * (row[name] - 1) for name in _ENDS[5:]]
    alone = (row["gpus"] or 0) < 2
    return Standing(
        row["class"], row["workload"], row["figure"], row["unit"] or "", row["value"], row["low"], row["high"],
        off[0], off[1], off[2], row["rank"], row["peers"], row["n"] or 0, row["sittings"],
        None if alone else _five(value), None if alone else _five(ratio), row["gpus"] or 0,
        tuple(row["evidence"] or ()),
    )  # fmt: skip


def _five(values: Sequence[float | None]) -> Five | None:
    """Five quantiles; None where one is not known."""
    return None if None in values else cast("Five", tuple(values))
