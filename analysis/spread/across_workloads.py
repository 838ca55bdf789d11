"""Whether a GPU that is slow in one workload is slow in another: rank correlations over GPUs known in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from ..runs.columns import OTHERS, Runs, gpu_medians, workloads
from ..statistics.correlation import correlate, spearman_interval
from ..statistics.ordering import Floats, Ints

TIME = "time"


@dataclass(frozen=True)
class Across:
    """The Spearman correlation between a figure of one workload and a figure of another, over GPU medians.

    `n` GPUs are known in both; `low` and `high` are a 95 % interval (Bonett and Wright's, see
    `correlation.spearman_interval`, which takes the GPUs as independent). `ambiguous` counts the GPU names of
    the two workloads that could not be used as a link because they lead to several GPUs.
    """

    cluster: str
    workload_a: str
    workload_b: str
    figure_a: str
    figure_b: str
    n: int
    spearman: float | None
    low: float | None
    high: float | None
    ambiguous: int
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class Names:
    """What every name of a GPU in one cluster leads to; an ambiguous one leads to itself."""

    identity: dict[str, str]
    ambiguous: frozenset[str]


def across(runs: pl.DataFrame, *, identities: pl.DataFrame | None = None) -> list[Across]:
    """The rank correlations between each two workloads of each cluster, in sorted order.

    `runs`: as for `variability`. `identities`: where known, `cluster`, `gpu`, `uuid`, `place` (the last two may be
    null); a row with both says that they are one GPU, so that a GPU named by its place in one workload and by its
    UUID in another is found in both. A place with two UUIDs or a UUID with two places links nothing.

    First time against time; then each figure (time, sm_clock, power, temperature) of the one against each of the
    other, where both workloads have it. Raises `InputError` as `variability` does.
    """
    found: list[Across] = []
    clusters: dict[str, list[Runs]] = {}
    for one in workloads(runs):
        clusters.setdefault(one.cluster, []).append(one)
    for cluster, members in clusters.items():
        names = linked_names(identities, cluster)
        tables = [_medians(one, names) for one in members]
        for (a, table_a), (b, table_b) in combinations(zip(members, tables, strict=True), 2):
            ambiguous = len((set(a.names) | set(b.names)) & names.ambiguous)
            found += _pair(a, b, table_a, table_b, ambiguous)
    return found


def linked_names(identities: pl.DataFrame | None, cluster: str) -> Names:
    """What the names of a cluster's GPUs lead to: a UUID where one is known, else a place, else the name."""
    if identities is None:
        return Names({}, frozenset())
    known = identities.filter(pl.col("cluster").cast(pl.String) == cluster)
    rows = list(known.select(pl.col("gpu", "uuid", "place").cast(pl.String)).unique().iter_rows())
    both = {(place, uuid) for _, uuid, place in rows if uuid is not None and place is not None}
    places = _groups(both)
    uuids = _groups((uuid, place) for place, uuid in both)
    # Of a UUID seen at two places neither place is a link; the UUID itself still names one GPU.
    ambiguous = {place for place, uuid in both if len(places[place]) > 1 or len(uuids[uuid]) > 1}
    identity = {place: uuid for place, uuid in both if place not in ambiguous}
    # A GPU may go by a third name, such as an index on a host.
    aliases: dict[str, set[str]] = {}
    for gpu, uuid, place in rows:
        leads_to = uuid if uuid is not None else place if place is None else identity.get(place, place)
        if leads_to is not None and gpu not in places and gpu not in uuids:
            aliases.setdefault(gpu, set()).add(leads_to)
    for gpu, others in aliases.items():
        if len(others) > 1 or not others.isdisjoint(ambiguous):
            ambiguous.add(gpu)
        else:
            identity[gpu] = next(iter(others))
    return Names(identity, frozenset(ambiguous))


def _groups(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, value in pairs:
        found.setdefault(key, set()).add(value)
    return found


def _medians(runs: Runs, names: Names) -> tuple[list[str], dict[str, Floats]]:
    """The GPUs of a workload by identity, sorted, and for each figure the median of each."""
    identity = [names.identity.get(name, name) for name in runs.names]
    distinct = sorted(set(identity))
    number = {name: i for i, name in enumerate(distinct)}
    gpu: Ints = np.array([number[name] for name in identity], dtype=np.intp)[runs.gpu]
    figures = {TIME: gpu_medians(runs.value, gpu, len(distinct))}
    for name in OTHERS:
        values = runs.other(name)
        if values is not None and np.isfinite(values).any():
            figures[name] = gpu_medians(values, gpu, len(distinct))
    return distinct, figures


def _pair(
    a: Runs,
    b: Runs,
    table_a: tuple[list[str], dict[str, Floats]],
    table_b: tuple[list[str], dict[str, Floats]],
    ambiguous: int,
) -> list[Across]:
    """The rows of two workloads."""
    shared, in_a, in_b = np.intersect1d(
        np.array(table_a[0], dtype=object), np.array(table_b[0], dtype=object), return_indices=True
    )
    rows = []
    pairs = [(x, y) for x in (TIME, *OTHERS) for y in (TIME, *OTHERS) if x in table_a[1] and y in table_b[1]]
    for figure_a, figure_b in pairs:
        x, y = table_a[1][figure_a][in_a], table_b[1][figure_b][in_b]
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        result = correlate(x, y, f"{figure_b} of {b.workload}", time_is=f"{figure_a} of {a.workload}")
        interval = None if result.spearman is None else spearman_interval(result.spearman, result.n)
        rows.append(
            Across(
                cluster=a.cluster,
                workload_a=a.workload,
                workload_b=b.workload,
                figure_a=figure_a,
                figure_b=figure_b,
                n=result.n,
                spearman=result.spearman,
                low=interval[0] if interval else None,
                high=interval[1] if interval else None,
                ambiguous=ambiguous,
                reason=result.reason if len(shared) else "no GPU is known in both",
            )
        )
    return rows
