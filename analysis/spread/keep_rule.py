"""Which probes add a column of their own: whether it repeats, and what of it the probes before them do not say.

A probe stays if (1) its ICC over sittings is at least `LEAST_ICC`, and (2) a regression on the probes before it in the
list leaves more than `LEAST_UNEXPLAINED` of its variance between GPUs. docs/how-we-know/statistics.md states the
formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.names import SIMULATED
from ..runs.measurements import measurements
from ..runs.sittings import days, numbered
from ..statistics import bootstrap
from ..statistics.ordering import Floats
from ..statistics.repeatability import Moments, icc
from ..statistics.student import quantile

if TYPE_CHECKING:
    from ...store import Store

LEAST_ICC, LEAST_UNEXPLAINED = 0.5, 0.3
MORE_GPUS = 10
"""There must be so many GPUs more than columns in a regression."""
_PARTS = 20  # GPUs are left out of the regression in so many parts, for its interval
_REPLICATES, _SEED = 1000, 1


@dataclass(frozen=True)
class Column:
    """A probe on the GPUs of one model in a cluster. Shares from 0 to 1; None where there are too few data."""

    cluster: str
    workload: str
    """The probe, with the kind of its runs where there are several: `gemm-fp32 [A100]`."""
    simulated: bool
    gpus: int
    sittings: int
    """The most that a GPU has."""
    icc: float | None = None
    icc_low: float | None = None
    icc_high: float | None = None
    unexplained: float | None = None
    """What of the variance between GPUs the probes before it leave unexplained."""
    unexplained_low: float | None = None
    unexplained_high: float | None = None
    explained_by: int = 0
    """How many probes before it were measured on the same GPUs."""

    @property
    def stays(self) -> bool | None:
        """Whether the rule keeps it; None where that is not known yet."""
        repeats = None if self.icc is None else self.icc >= LEAST_ICC
        adds = None if self.unexplained is None else self.unexplained > LEAST_UNEXPLAINED
        return False if False in (repeats, adds) else None if None in (repeats, adds) else True

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON."""
        return {**asdict(self), "stays": self.stays}


def keep_rule(store: Store, probes: Sequence[str]) -> list[Column]:
    """A row for each probe that was measured, by cluster and model; `probes`: the list, in its order."""
    runs = measurements(store, workloads=probes).filter(pl.col("value") > 0)
    gpu_rows = store.arrow("gpus", columns=["cluster", "gpu", "driver"]).to_pylist()
    simulated = {(row["cluster"], row["gpu"]) for row in gpu_rows if row["driver"] == SIMULATED}
    runs = runs.with_columns(pl.col("cluster", "workload", "gpu").cast(pl.String), at=days())
    runs = runs.with_columns(
        value=pl.col("value").log(),
        probe=pl.col("workload").str.split(" [").list.first(),
        kind=pl.col("workload").str.extract(r"\[(.*)\]$").fill_null(""),
    )
    order = {name: place for place, name in enumerate(probes)}
    columns: list[Column] = []
    for (cluster, _), part in runs.group_by("cluster", "kind", maintain_order=True):
        of_probe = {str(name): rows for (name,), rows in part.group_by("probe", maintain_order=True)}
        names = sorted(of_probe, key=lambda name: order.get(name, len(order)))
        sittings = {name: _sittings(of_probe[name]) for name in names}
        for place, name in enumerate(names):
            workload, gpu = of_probe[name].row(0, named=True)["workload"], of_probe[name]["gpu"][0]
            before = [sittings[earlier] for earlier in names[:place]]
            columns.append(_column(str(cluster), workload, sittings[name], before, (cluster, gpu) in simulated))
    return columns


def _sittings(runs: pl.DataFrame) -> dict[str, Floats]:
    """By GPU: the median of each of its sittings, ln time."""
    gpu = runs["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    sitting = pl.Series("sitting", numbered(gpu, runs["at"].to_numpy()))
    medians = runs.with_columns(sitting).group_by("gpu", "sitting").agg(pl.col("value").median()).sort("gpu", "sitting")
    return {str(name): rows["value"].to_numpy() for (name,), rows in medians.group_by("gpu", maintain_order=True)}


def _column(
    cluster: str, workload: str, sittings: dict[str, Floats], before: list[dict[str, Floats]], simulated: bool
) -> Column:  # fmt: skip
    counts = np.array([len(values) for values in sittings.values()])
    values, starts = np.concatenate(list(sittings.values())), np.append(0, np.cumsum(counts))
    moments = Moments.of(values, starts)
    repeats = icc(moments, "gpu")
    interval = bootstrap.replicate_icc(moments, _SEED, _REPLICATES) if repeats.value is not None else None
    within = float(moments.squares.sum() / max(1, (counts - 1).sum())) if counts.max() > 1 else None
    usable = [predictor for predictor in before if sittings.keys() <= predictor.keys()]
    y = np.array([level.mean() for level in sittings.values()])
    x = np.array([[predictor[gpu].mean() for gpu in sittings] for predictor in usable]).reshape(len(usable), len(y)).T
    unexplained = unexplained_low = unexplained_high = None
    if within is not None and len(y) >= x.shape[1] + MORE_GPUS:
        noise = within * float((1 / counts).mean())
        unexplained = _unexplained(y, x, noise)
        if unexplained is not None:
            unexplained_low, unexplained_high = _interval(y, x, noise, unexplained)
    low, high = interval if interval is not None else (None, None)
    return Column(
        cluster, workload, simulated, len(y), int(counts.max()), icc=repeats.value, icc_low=low, icc_high=high,
        unexplained=unexplained, unexplained_low=unexplained_low, unexplained_high=unexplained_high,
        explained_by=len(usable),
    )  # fmt: skip


def _unexplained(y: Floats, x: Floats, noise: float) -> float | None:
    """(s_res^2 - noise) / (s_y^2 - noise), from 0 to 1; None where the GPUs do not differ by more than noise.

    s_res^2 is the residual variance of the regression of `y` (gpus,) on `x` (gpus, columns), s_y^2 the variance of
    `y`, each over its degrees of freedom; `noise` is the variance of the mean of a GPU's sittings about its level.
    """
    centred, design = y - y.mean(), x - x.mean(axis=0)
    total = float(centred @ centred) / (len(y) - 1) - noise
    if total <= 0:
        return None
    scale = np.linalg.norm(design, axis=0)
    solution, _, rank, _ = np.linalg.lstsq(design[:, scale > 0] / scale[scale > 0], centred, rcond=1e-10)
    residual = centred - design[:, scale > 0] / scale[scale > 0] @ solution
    residual_variance = float(residual @ residual) / (len(y) - 1 - int(rank)) - noise
    return float(np.clip(residual_variance / total, 0.0, 1.0))


def _interval(y: Floats, x: Floats, noise: float, share: float) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval, by leaving out GPUs a part at a time (the delete-a-group jackknife, Student's t)."""
    parts = min(_PARTS, len(y) // 2)
    part = np.random.default_rng(_SEED).permutation(np.arange(len(y)) % parts)
    left_out = [_unexplained(y[part != group], x[part != group], noise) for group in range(parts)]
    shares = np.array([value for value in left_out if value is not None])
    if len(shares) < parts:
        return None, None
    error = float(np.sqrt((parts - 1) / parts * ((shares - shares.mean()) ** 2).sum()))
    half = float(quantile(0.025, parts - 1)) * error
    return max(0.0, share - half), min(1.0, share + half)
