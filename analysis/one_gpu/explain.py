"""One GPU explained: where it stands among its peers, its past, what was found about it, and what happened.

Nothing is judged where a judgement of its cluster is stored: its rows are read, and the runs of this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ...store.names import by_number
from ..choosing import find, known_gpus
from ..runs.probing import is_simulated
from ..telemetry.extent import newest_readings
from ..verdicts.judgements import Newer, clusters, last_judgement
from ..verdicts.verdict import Level, NotJudged, Smallest, Verdict
from .found import Found
from .happened import Happened, events
from .past import Compared, Line, Place
from .runs import own_runs, timed

if TYPE_CHECKING:
    from ...store import Store

_SHARED = ("driver", "vbios", "power_limit_mw")
NEWEST = ("utilization", "power_mw", "temperature_c", "sm_clock_mhz", "memory_used")
"""The metrics of its newest reading."""
_NOT_IDENTITY = ("cluster", "gpu", "name", "names", "keys")


@dataclass(frozen=True)
class Explained:
    """All that a store says of one GPU beside its peers."""

    row: Mapping[str, Any]
    """Of `known_gpus`."""
    found: Found | None
    """None where its cluster has neither runs nor events that need none."""
    places: tuple[Place, ...]
    """The workload in which it is slowest first."""
    lines: tuple[Line, ...]
    """Its past, in the order of `places`."""
    shared: Mapping[str, tuple[int, int]]
    """By driver, vbios and power_limit_mw: how many GPUs of its model have the same, of how many it is known."""
    events: tuple[Happened, ...]
    """The newest first."""
    runs: pl.DataFrame = field(repr=False)
    """Of `own_runs`."""
    newest: pl.DataFrame = field(repr=False)
    """Its newest reading, of `newest_readings`: at most a row, with the metrics `NEWEST`."""

    @property
    def cluster(self) -> str:
        return str(self.row["cluster"])

    @property
    def gpu(self) -> str:
        """Its key in the tables."""
        return str(self.row["gpu"])

    @property
    def name(self) -> str:
        """`node/slot` where known."""
        return str(self.row["name"])

    @property
    def identity(self) -> Mapping[str, Any]:
        """node, slot, cabinet, model, uuid, serial, vbios, driver, power_limit_mw, and others; None where unknown."""
        return {column: value for column, value in self.row.items() if column not in _NOT_IDENTITY}

    @property
    def simulated(self) -> bool:
        return is_simulated(self.runs)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return () if self.found is None else self.found.verdicts

    @property
    def not_judged(self) -> tuple[NotJudged, ...]:
        return () if self.found is None else self.found.not_judged

    @property
    def smallest(self) -> tuple[Smallest, ...]:
        """In its workloads, the smallest effect that could have been named."""
        return () if self.found is None else self.found.smallest

    @property
    def judged(self) -> int:
        """How many GPUs of its cluster were judged."""
        return 0 if self.found is None else self.found.judged


def explain(store: Store, name: str, *, cluster: str | None = None, peers: bool = False) -> Explained:
    """Explain the GPU that `said` means, by the newest judgement of its cluster, which is made where none is stored.

    `peers`: with how its times repeat beside those of its peers. InputError where no GPU or several fit.
    """
    row = find(store, name, cluster)
    on_cluster, keys = str(row["cluster"]), list(row["keys"])
    judged = last_judgement(store, on_cluster)
    compared = Compared.read(store, judged, keys, peers=peers)
    workloads = set(compared.levels["workload"])
    runs = own_runs(store, on_cluster, keys, row["model"], workloads=workloads)
    return Explained(
        row,
        None if judged is None else Found.of(judged, row, workloads, judged.newer(store)),
        compared.places,
        compared.lines(timed(runs)),
        _shared(store, row),
        tuple(events(store, on_cluster, keys, row["node"])),
        runs,
        newest_reading(store, row),
    )


def newest_reading(store: Store, row: Mapping[str, Any]) -> pl.DataFrame:
    """Of `Explained.newest`. `row`: of `known_gpus`."""
    return newest_readings(store, [(row["cluster"], key) for key in row["keys"]], NEWEST, 1)


def _shared(store: Store, row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Of `Explained.shared`."""
    identities = store.scan("gpus").filter(pl.col("cluster") == row["cluster"]).sort("first_seen", nulls_last=False)
    now = identities.group_by("gpu").agg(pl.col("model", *_SHARED).drop_nulls().last())
    of_model = store.collect(now.filter(pl.col("model").eq_missing(pl.lit(row["model"]))))
    names = [name for name in _SHARED if row[name] is not None]
    return {name: (int((of_model[name] == row[name]).sum()), of_model[name].count()) for name in names}


@dataclass(frozen=True)
class SharedFinding:
    """What was found about a node or a batch, and which GPUs it is about."""

    cluster: str
    name: str
    """Of the node, or what the batch shares, as the findings have it."""
    gpus: tuple[str, ...]
    """Names of the GPUs that it covers."""
    verdicts: tuple[Verdict, ...]
    judged_at: datetime | None
    """UTC; None: it was judged just now."""
    newer: Newer
    """What is not in that judgement."""


def shared_finding(store: Store, name: str, cluster: str | None = None) -> SharedFinding | None:
    """What was found about the node or batch of this name, or about a GPU that the store knows by its place alone.

    None where no finding has the name, in upper or lower case.
    InputError where findings of several clusters have it.
    """
    searched = clusters(store) if cluster is None else [cluster]
    by_cluster = {
        on_cluster: judged for on_cluster in searched if (judged := last_judgement(store, on_cluster)) is not None
    }
    shared = [row for judged in by_cluster.values() for row in judged.judgement.rows]
    rows = [row for row in shared if row.name.lower() == name.strip().lower()]
    if any(row.level is Level.GPU for row in rows):  # a name of GPUs of several clusters means none of them
        known = set(known_gpus(store).select("cluster", "name").iter_rows())
        rows = [row for row in rows if row.level is not Level.GPU or (row.cluster, row.name) not in known]
    having = sorted({row.cluster for row in rows})
    if len(having) > 1:
        raise InputError(f"{name!r} has findings on {', '.join(having)}: choose one with --cluster")
    if not rows:
        return None
    gpus = dict.fromkeys(gpu for row in rows for gpu in row.gpus)
    judged = by_cluster[having[0]]
    return SharedFinding(
        having[0],
        rows[0].name,
        tuple(sorted(gpus, key=by_number)),
        tuple(rows),
        judged_at=judged.judged_at,
        newer=judged.newer(store),
    )


def stands_in(places: Sequence[Place], verdicts: Sequence[Verdict]) -> list[str]:
    """The workloads worth showing first: those of the findings, else those in which it is farthest from its peers."""
    with_findings = [workload for verdict in verdicts for workload in verdict.workloads]
    far = sorted(places, key=lambda place: -abs(place.effect_pct or 0.0))
    return list(dict.fromkeys([*with_findings, *(place.workload for place in far)]))
