"""The power profile of a workload: its spike vector and use of the GPU, from telemetry collected while it ran; and
classes of workloads with similar spike vectors.

Minos (arXiv 2604.03591) describes the power of a workload by a spike vector: readings from the first busy one on,
smoothed, as ratios to the limit; the ratios from 0.5 to 2 in 30 bins; the bins add up to 1. Classes are by average
linkage on cosine distance, which is valid on any distance. (Minos has Ward's linkage, which is defined for Euclidean
distances only.) The number of classes is the one with the largest mean silhouette (P. J. Rousseeuw, Journal of
Computational and Applied Mathematics 20, 1987). If even that is small, all are one class. A silhouette has no scale, so
workloads that are nearly the same are never parted, whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.metrics import board_power_mw
from ..engines import HERE, Engine, PartFailure
from ..runs.measurements import measurements
from ..runs.windows import READINGS, TRUSTED, Progress, WindowPart, arrow_of, up_to_end
from ..statistics.ordering import Floats

if TYPE_CHECKING:
    from ...store import Store

RUNS = 50
"""Of a workload with more runs, this many are read."""
_READINGS = 30  # of a workload, at least
_UNREADABLE = "its telemetry cannot be read"
_USED = ("utilization", "memory_utilization")
_LIMITS = ("limit_w", "board_w")
LITTLE, MUCH = 30.0, 60.0
"""% of the time with memory traffic: up to the first a workload uses compute, from the second on memory."""
_WAITING = 50.0  # % of the time with a kernel
LOW, HIGH, BINS = 0.5, 2.0, 30
SMOOTHING = 0.5
"""The weight of a new reading: y = 0.5 y' + 0.5 x."""
LIGHT = 0
"""The class of workloads whose power never reaches half of the limit: they have no spike vector."""
MOST_CLASSES = 6
CLEAR = 0.5
"""Below this mean silhouette nothing shows that there is more than one class."""
APART = 0.1
"""The least mean cosine distance between two classes."""
COLUMNS = {
    "cluster": pl.String,
    "workload": pl.String,
    "power_class": pl.Int64,
    "silhouette": pl.Float64,
    "use": pl.String,
    "mean_ratio": pl.Float64,
    "p99_ratio": pl.Float64,
    "above_limit": pl.Float64,
    "runs": pl.Int64,
    "gpus": pl.Int64,
    "readings": pl.Int64,
    "reason": pl.String,
}


class Use(StrEnum):
    """What a workload uses most, from how long kernels ran and memory was busy: coarse, as these are shares of time."""

    COMPUTE = "compute"
    MEMORY = "memory"
    BOTH = "both"
    WAITING = "waiting"
    """No kernel ran half of the time: it waits for its input, the host or other GPUs."""


@dataclass(frozen=True)
class Profile:
    """How a workload loads the power of its GPUs; ratios are to the power limit."""

    cluster: str
    workload: str
    runs: int = 0
    gpus: int = 0
    readings: int = 0
    vector: Floats | None = None
    """(30,) the spike vector; None with a `reason`, or where the power never reaches half of the limit."""
    mean_ratio: float | None = None
    p99_ratio: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    reason: str | None = None

    @property
    def use(self) -> Use | None:
        """What it uses most; None where the utilisation is not known."""
        if self.utilization is None or self.memory_utilization is None:
            return None
        if self.utilization < _WAITING:
            return Use.WAITING
        if self.memory_utilization >= MUCH:
            return Use.MEMORY
        return Use.COMPUTE if self.memory_utilization <= LITTLE else Use.BOTH

    def as_row(self) -> dict[str, Any]:
        """The figures of the row of `power_classes`. `above_limit`: share of the spike vector above the limit."""
        above = None if self.vector is None else float(self.vector[10:].sum())
        names = ("cluster", "workload", "mean_ratio", "p99_ratio", "runs", "gpus", "readings", "reason")
        return {name: getattr(self, name) for name in names} | {"use": self.use, "above_limit": above}


@dataclass(frozen=True)
class WorkloadPart:
    """Workloads, each with the runs that are read."""

    root: str
    runs: pl.DataFrame
    """run_id, cluster, workload, gpu, began, ended, and what is known of the power limit: `limit_w` of the run,
    `board_w` of its GPU. A workload without any to read has one without times."""

    @property
    def name(self) -> str:
        """For people."""
        names = self.runs["workload"].unique(maintain_order=True)
        return f"workload {names[0]}" if len(names) == 1 else f"workloads {names[0]} to {names[-1]}"


def power_profiles(
    store: Store, *, cluster: str | None = None, engine: Engine = HERE, progress: Progress | None = None
) -> list[Profile]:
    """The profile of each workload of a store (of one cluster) from the telemetry in the windows of its runs.

    Telemetry is read in parts of some workloads each. A run with a damaged file is left out; a workload of which too
    little is left has a `reason`.
    """
    runs = measurements(store, clusters=[cluster] if cluster else [], run_ids=True, untimed=True)
    runs = runs.select("run_id", pl.col("cluster", "workload", "gpu").cast(pl.String))
    counts = {names: (of_all["run_id"].n_unique(), of_all["gpu"].n_unique()) for names, of_all in _by_workload(runs)}
    parts = _parts(store, runs.join(_windows(store), on="run_id", how="left", maintain_order="left"))
    engine.require(store)
    profiles = list[Profile]()
    for part, result in zip(
        parts, engine.map(_profiles, parts, name=lambda part: part.name, progress=progress), strict=True
    ):
        if isinstance(result, PartFailure):
            reason = f"{_UNREADABLE}: {result.reason}"
            result = [Profile(*names, reason=reason) for names, _ in _by_workload(part.runs)]
        profiles += result
    for place, profile in enumerate(profiles):
        if profile.reason is not None:
            n, gpus = counts[profile.cluster, profile.workload]
            profiles[place] = replace(profile, runs=n, gpus=gpus)
    return sorted(profiles, key=lambda profile: (profile.cluster, profile.workload))


def nearest(profile: Profile, others: Sequence[Profile]) -> list[tuple[Profile, float]]:
    """The other workloads with a spike vector and their cosine distance, the nearest first."""
    candidates = [other for other in others if other.vector is not None and other.workload != profile.workload]
    if profile.vector is None or not candidates:
        return []
    from scipy.spatial.distance import cdist

    apart = cdist([profile.vector], [other.vector for other in candidates], "cosine")[0]
    return [(candidates[i], float(apart[i])) for i in np.argsort(apart, kind="stable")]


def power_classes(profiles: Sequence[Profile]) -> pl.DataFrame:
    """The class of each workload, columns as `COLUMNS`.

    `power_class`: `LIGHT`, or from 1 on by rising power; null with a `reason`. `silhouette`: how much nearer a workload
    is to its own class than to the next, -1 to 1; null where there is one class, or the workload is alone in its class.
    """
    vectors = np.array([profile.vector for profile in profiles if profile.vector is not None]).reshape(-1, BINS)
    labels, silhouettes = _grouped(vectors)
    centres = LOW + (HIGH - LOW) * (np.arange(BINS) + 0.5) / BINS
    power = {int(label): float((vectors[labels == label] @ centres).mean()) for label in np.unique(labels)}
    ranked = sorted(power, key=power.__getitem__)
    classes = iter(zip(labels.tolist(), silhouettes, strict=True))
    rows = []
    for profile in profiles:
        of_class: int | None = None if profile.reason else LIGHT
        silhouette = None
        if profile.vector is not None:
            label, silhouette = next(classes)
            of_class = 1 + ranked.index(label)
        rows.append(profile.as_row() | {"power_class": of_class, "silhouette": silhouette})
    return pl.DataFrame(rows, schema=COLUMNS)


def _grouped(vectors: Floats) -> tuple[NDArray[np.intp], list[float | None]]:
    """The class of each vector and its silhouette."""
    from scipy.cluster.hierarchy import fcluster, linkage  # these take a second that no other answer needs
    from scipy.spatial.distance import pdist, squareform
    from sklearn.metrics import silhouette_samples

    n = len(vectors)
    labels, silhouettes, clearest = np.zeros(n, np.intp), list[float | None]([None] * n), CLEAR
    apart = pdist(vectors, "cosine")
    tree = linkage(apart, "average") if n > 2 else np.zeros((0, 4))
    for classes in range(min(MOST_CLASSES, n - 1), 1, -1):
        cut = fcluster(tree, classes, "maxclust")
        if tree[n - classes, 2] < APART or len(set(cut)) < 2:  # how far its two nearest classes are apart
            continue
        values = silhouette_samples(squareform(apart), cut, metric="precomputed")
        if values.mean() > clearest:
            alone = np.bincount(cut)[cut] == 1
            labels, clearest = cut, float(values.mean())
            silhouettes = [
                None if single else round(float(value), 4) for single, value in zip(alone, values, strict=True)
            ]
    return labels, silhouettes


def _windows(store: Store) -> pl.DataFrame:
    """The time of some runs of each workload, and what is known of their limit: run_id, began, ended, limit_w of the
    run, board_w of its GPU."""
    query = f"""
        with numbered as (
            select run_id, cluster, gpu, began, ended, conditions.power_limit_w as limit_w,
                row_number() over (partition by cluster, workload order by hash(run_id)) as number from runs
            where began is not null and ended is not null
        )
        select r.run_id, r.began, r.ended, r.limit_w,
            coalesce(g.power_limit_mw, g.power_limit_default_mw) / 1e3 as board_w
        from numbered r left join gpus_now g on g.cluster = r.cluster and g.gpu = r.gpu where r.number <= {RUNS}
    """
    return store.sql(query).polars().with_columns(pl.col("run_id").cast(pl.String), pl.col(_LIMITS).cast(pl.Float64))


def _parts(store: Store, runs: pl.DataFrame) -> list[WorkloadPart]:
    """Parts of workloads, each whole, of about as many readings as are read at once."""
    root, parts, waiting, seconds = str(store.root.absolute()), [], list[pl.DataFrame](), 0.0
    is_first = pl.int_range(pl.len()).over("cluster", "workload") == 0
    for _, of_workload in _by_workload(runs.filter(pl.col("began").is_not_null() | is_first)):
        lasts = float((of_workload["ended"] - of_workload["began"]).dt.total_microseconds().sum()) / 1e6
        if waiting and seconds + lasts > READINGS / 3:  # mostly one a second, and all are in memory
            parts.append(WorkloadPart(root, pl.concat(waiting)))
            waiting, seconds = [], 0.0
        waiting, seconds = [*waiting, of_workload], seconds + lasts
    return [*parts, WorkloadPart(root, pl.concat(waiting))] if waiting else parts


def _profiles(part: WorkloadPart) -> list[Profile]:
    """The profiles of the workloads of a part."""
    timed = pl.all_horizontal(pl.col("cluster", "gpu", "began", "ended").is_not_null())
    chosen = part.runs.filter(timed & (pl.col("ended") >= pl.col("began")))
    windows = chosen.select("cluster", "gpu", "began", "ended", up_to_end())
    watts, read_w = board_power_mw() / 1e3, pl.col("power_limit_mw") / 1e3
    columns = {"ts": pl.col("ts"), "watts": watts, "read_w": read_w, **{name: pl.col(name) for name in _USED}}
    of_part = WindowPart(part.root, arrow_of(windows)).readings(columns, watts.is_not_null() & TRUSTED)
    rows = of_part.rows.sort("window", "ts")
    limit_w = pl.coalesce("limit_w", "read_w", "board_w").alias("limit_w")
    read = rows.hstack(chosen.select("run_id", *_LIMITS)[rows["window"]]).select(
        "run_id", "watts", limit_w, pl.col(_USED).cast(pl.Float64)
    )
    joined = part.runs.drop("began", "ended", *_LIMITS).join(read, on="run_id", how="left", maintain_order="left_right")
    profiles = [_profile(*names, of_workload) for names, of_workload in _by_workload(joined)]
    if of_part.left_out is None:
        return profiles
    reason = f"{_UNREADABLE}: {of_part.left_out}"
    return [profile if profile.reason is None else replace(profile, reason=reason) for profile in profiles]


def _by_workload(runs: pl.DataFrame) -> Iterator[tuple[tuple[str, str], pl.DataFrame]]:
    """The rows of each workload of a cluster, with the names of both."""
    for (on, workload), of_workload in runs.group_by("cluster", "workload", maintain_order=True):
        yield (str(on), str(workload)), of_workload


def _profile(cluster: str, workload: str, readings: pl.DataFrame) -> Profile:
    """The profile of a workload, of rows of its runs with their readings."""
    read = readings.drop_nulls("watts")
    if read.height < _READINGS:
        return Profile(cluster, workload, reason=f"fewer than {_READINGS} readings of power in the windows of its runs")
    if read["limit_w"].null_count() == read.height:
        return Profile(cluster, workload, reason="no power limit of its GPUs is known")
    busy = (pl.col("utilization").fill_null(1) > 0).cum_max().over("run_id")
    read = read.filter(busy).drop_nulls("limit_w").with_columns(ratio=pl.col("watts") / pl.col("limit_w"))
    if read.height < _READINGS:
        return Profile(cluster, workload, reason="its GPUs were idle while it ran")
    smooth = read.select(pl.col("ratio").ewm_mean(alpha=SMOOTHING, adjust=False).over("run_id"))["ratio"].to_numpy()

    def mean(name: str) -> float | None:
        average = read[name].mean()
        return None if average is None else float(average)  # type: ignore[arg-type]

    return Profile(
        cluster,
        workload,
        read["run_id"].n_unique(),
        read["gpu"].n_unique(),
        read.height,
        _spike_vector(smooth),
        mean("ratio"),
        float(np.quantile(read["ratio"].to_numpy(), 0.99)),
        mean("utilization"),
        mean("memory_utilization"),
    )


def _spike_vector(ratios: Floats) -> Floats | None:
    """The shares of the smoothed `ratios` (power over limit) in the bins; None if none reaches half of the limit."""
    counts, _ = np.histogram(ratios, bins=BINS, range=(LOW, HIGH))
    return counts / counts.sum() if counts.any() else None
