"""The runs of one workload on one cluster, out of a frame and into sorted columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import InputError
from ..statistics.ordering import Floats, Ints, ascending, bounds, by_group, medians

REQUIRED = ("cluster", "workload", "gpu", "value", "unit")
OTHERS = {"sm_clock": "sm_clock_mhz", "power": "power_w", "temperature": "temperature_c"}
"""The name of a figure in a result, and its column in a frame of runs."""
SPOKEN = {"sm_clock": "SM clock", "power": "power", "temperature": "temperature"}
"""The name that people see."""


@dataclass(frozen=True)
class Runs:
    """The runs of one workload on one cluster that have a GPU and a finite value, as columns of equal length."""

    cluster: str
    workload: str
    unit: str | None
    names: list[str]
    """The GPUs, sorted; a GPU's number is its place here."""
    gpu: Ints
    value: Floats
    frame: pl.DataFrame
    """The same rows with the optional columns."""
    left_out: int
    """Rows without a GPU or a finite value."""

    def other(self, name: str) -> Floats | None:
        """The column `name` of OTHERS with NaN where unknown, or None when the frame has no such column."""
        column = OTHERS[name]
        if column not in self.frame.columns:
            return None
        return self.frame[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()


def workloads(runs: pl.DataFrame) -> Iterator[Runs]:
    """The runs of each (cluster, workload), in sorted order.

    Raises `InputError` when a required column is missing, a row names no cluster or workload, or one workload of a
    cluster mixes units.
    """
    missing = [name for name in REQUIRED if name not in runs.columns]
    if missing:
        raise InputError(f"the runs have no column {', '.join(missing)}")
    for name in ("cluster", "workload"):
        if runs[name].null_count():
            raise InputError(f"{runs[name].null_count()} runs have no {name}")
    optional = ("job_id", "cabinet", "node", "began", "run_id", *OTHERS.values())
    runs = runs.select([*REQUIRED, *(name for name in optional if name in runs.columns)])
    keys = sorted((str(c), str(w)) for c, w in runs.select("cluster", "workload").unique().iter_rows())
    for cluster, workload in keys:
        one = runs if len(keys) == 1 else runs.filter(cluster=cluster, workload=workload)
        units = one["unit"].unique().to_list()
        if len(units) > 1:
            named = ", ".join(sorted(str(unit) for unit in units))
            raise InputError(
                f"the values of {workload} on {cluster} are in several units ({named}): convert them to one unit first"
            )
        found = _columns(cluster, workload, None if units[0] is None else str(units[0]), one)
        if len(found.value):
            yield found


def _columns(cluster: str, workload: str, unit: str | None, frame: pl.DataFrame) -> Runs:
    rows = frame.height
    usable = frame["gpu"].is_not_null() & frame["value"].cast(pl.Float64).is_finite().fill_null(value=False)
    if not usable.all():
        frame = frame.filter(usable)
    gpu, names = numbers(frame["gpu"])
    value = frame["value"].cast(pl.Float64).to_numpy()
    return Runs(cluster, workload, unit, names, gpu, value, frame, rows - frame.height)


def numbers(names: pl.Series) -> tuple[Ints, list[str]]:
    """Each name's number and the names in sorted order, so that the numbers do not depend on the rows' order."""
    if names.dtype not in (pl.Categorical, pl.Enum):
        names = names.cast(pl.String).cast(pl.Categorical)
    physical = names.to_physical().to_numpy()
    if len(physical) == 0:
        return np.empty(0, dtype=np.intp), []
    # A categorical's own numbers run over every name that the process has met.
    row = np.full(int(physical.max()) + 1, -1, dtype=np.intp)
    row[physical] = np.arange(len(physical))  # one row that has the name, whichever was written last
    present = np.flatnonzero(row >= 0)
    met = names.gather(row[present]).cast(pl.String)
    order = met.arg_sort().to_numpy()
    number = np.zeros(len(row), dtype=np.intp)
    number[present[order]] = np.arange(len(order))
    return number[physical], met.gather(order).to_list()


def gpu_medians(values: Floats, gpu: Ints, count: int) -> Floats:
    """Each GPU's median of a column with NaN where unknown; NaN for a GPU without a known value."""
    known = np.isfinite(values)
    if not known.all():
        values, gpu = values[known], gpu[known]
    layout = by_group(gpu, ascending(values), count)
    return medians(values[layout], bounds(gpu, count))
