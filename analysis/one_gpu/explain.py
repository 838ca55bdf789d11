"""One GPU explained: where it stands among its peers, its past, what was found about it, and what happened.

Nothing is judged where a judgement of its cluster is stored: its rows are read, and the runs of this GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.names import by_number
from ...store.vocabulary import clock_in_words
from ..choosing import find, known_gpus
from ..runs.measurements import SOUND, kind_of, limits, told_apart
from ..runs.probing import figures, is_simulated, probed
from ..runs.sittings import days
from ..verdicts.judgements import Newer, StoredJudgement, clusters, last_judgement
from ..verdicts.verdict import ACROSS_NODES, Change, Kind, Level, NotJudged, Smallest, Verdict
from . import happened, standing
from .happened import Happened, Reasons, events, reasons
from .standing import Compared, Line, Place

if TYPE_CHECKING:
    from ...store import Store
    from ..fleet.timelines import Timelines
    from ..verdicts.fingerprint import Neighbour


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
    """Its newest reading: at most a row, with `gpu` (its name), `at`, and the metrics `NEWEST` as they are stored."""

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
    gpus = [(row["cluster"], key) for key in row["keys"]]
    readings = pl.DataFrame(store.arrow("latest", ["cluster", "ts", *NEWEST], gpus))
    of_gpu = readings.filter(pl.col("cluster").eq_missing(pl.lit(row["cluster"]))).sort("ts").tail(1)
    return of_gpu.select(pl.lit(row["name"]).alias("gpu"), pl.col("ts").alias("at"), *NEWEST)


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


@dataclass(frozen=True)
class Found:
    """What a judgement says of a GPU."""

    judged_at: datetime | None
    """UTC; None: it was judged just now."""
    verdicts: tuple[Verdict, ...]
    """Those that cover it, the worst first."""
    not_judged: tuple[NotJudged, ...]
    """About it, its workloads, or its whole cluster."""
    watch: bool
    """Whether it should be measured again: its newest sitting is slower than its earlier ones."""
    changes: tuple[Change, ...]
    """Dates at which its level changed."""
    smallest: tuple[Smallest, ...]
    """In its workloads, the smallest effect that could have been named."""
    judged: int
    """How many GPUs of its cluster were judged."""
    newer: Newer
    """What of the cluster is not in the judgement."""

    @classmethod
    def of(cls, judged: StoredJudgement, row: Mapping[str, Any], workloads: Collection[str], newer: Newer) -> Found:
        """What a judgement says of the GPU of `row` (of `known_gpus`). `newer`: what is not in it."""
        judgement, keys = judged.judgement, set(row["keys"])
        subjects = {row["name"], row["gpu"], row["cluster"], *workloads}
        covering = zip(judgement.rows, judged.keys, strict=True)
        return cls(
            judged.judged_at,
            tuple(verdict for verdict, covered in covering if keys & covered),
            tuple(no for no in judgement.not_judged if no.subject in subjects),
            row["name"] in judged.watch,
            tuple(change for change in judgement.changes if change.gpu in keys),
            tuple(
                least
                for least in judgement.smallest
                if least.workload in workloads and least.model in (None, row["model"])
            ),
            judgement.gpus,
            newer,
        )


@dataclass(frozen=True, slots=True)
class Named:
    """A GPU that a finding is about, by itself or with others of its node."""

    cluster: str
    gpu: str
    name: str
    verdict: Verdict


def named(judgements: Iterable[StoredJudgement]) -> list[Named]:
    """The GPUs that these judgements name, each with its worst finding; the worst first. Those of batches, which may be
    half of a fleet, are left out."""
    by_gpu: dict[tuple[str, str], Named] = {}
    for judged in judgements:
        for verdict, keys in zip(judged.judgement.rows, judged.keys, strict=True):
            if verdict.level not in ACROSS_NODES and verdict.kind is not Kind.FAST:
                alone = len(verdict.gpus) == 1
                for gpu in sorted(keys):
                    name = verdict.gpus[0] if alone else gpu
                    by_gpu.setdefault((verdict.cluster, gpu), Named(verdict.cluster, gpu, name, verdict))
    return list(by_gpu.values())


_RUNS = (
    "run_id", "campaign", "workload", "gpu", "began", "ended", "sm_clock_mhz", "mem_clock_mhz", "temperature_c",
    "power_w", "conditions", "clock_events", "versions", "probe_version", "job_id", "status", "status_detail",
)  # fmt: skip


def own_runs(
    store: Store, cluster: str, keys: Sequence[str], model: str | None = None, *, workloads: Collection[str] = ()
) -> pl.DataFrame:
    """Every run of the GPU that has these keys, by time: columns of `runs`, `value` (its time, ms), `repeats`, `plain`
    (the name of the work), `limit` and `lock` (as `measurements.limits`).

    `workload` is its name in `workloads`, in which the GPU was compared, where one fits: the kinds of a workload depend
    on the runs of others. `model`: of the GPU.
    """
    # By SQL: of a large fleet, Polars would read the conditions of all runs.
    of_gpu = f"cluster = {quoted(cluster)} and gpu in ({', '.join(map(quoted, keys))})"
    runs = store.sql(f"select cluster, {', '.join(_RUNS)} from runs where {of_gpu}").polars()
    runs = runs.with_columns(pl.col("began", "ended").dt.cast_time_unit("us"))
    settings = limits(store, runs)
    with_settings = runs.with_columns(pl.col("workload").alias("plain")).hstack(settings)
    kinds = with_settings.select("plain", "limit", "lock").unique()
    names = [kind_of(*kind, model=model, names=workloads) for kind in kinds.iter_rows()]
    with_settings = with_settings.join(
        kinds.with_columns(pl.Series("kind", names, pl.String)), on=kinds.columns, how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    if None in names:
        alone = told_apart(store, runs)["workload"].cast(pl.String)
        with_settings = with_settings.with_columns(pl.coalesce("kind", alone).alias("kind"))
    runs = with_settings.with_columns(pl.col("kind").alias("workload")).drop("kind", "cluster")
    times = figures(store, runs["run_id"], gpus=keys, names=("time_median",))
    runs = runs.hstack(times.select(pl.coalesce("time_median", "time").alias("value"), "repeats"))
    return runs.sort("began", "workload", nulls_last=True)


def timed(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of `own_runs` whose times are compared, with `at` (days since 1970) and `x` (ln time)."""
    good = runs.filter(SOUND & (pl.col("value") > 0) & pl.col("value").is_finite())
    return good.with_columns(days().alias("at"), pl.col("value").log().alias("x"))


def listed(runs: pl.DataFrame, most: int) -> pl.DataFrame:
    """The newest runs of `own_runs` for a table, the newest first: began, workload, time_ms, repeats, sm_clock_mhz,
    power_w, temperature_c, clock, power_limit_w, neighbours, status, campaign."""
    newest = runs.sort("began", descending=True, nulls_last=True).head(most)
    conditions = [fields or {} for fields in newest["conditions"]]
    watts = [fields.get("asked_power_limit_w") or fields.get("power_limit_w") for fields in conditions]
    clocks = [clock_in_words(fields.get("clock"), fields.get("locked_clock_mhz")) for fields in conditions]
    neighbours = [fields.get("neighbours") for fields in conditions]
    return newest.select(
        "began",
        "workload",
        pl.col("value").alias("time_ms"),
        pl.col("repeats").cast(pl.Int64),
        "sm_clock_mhz",
        "power_w",
        "temperature_c",
        pl.Series("clock", clocks, pl.String),
        pl.Series("power_limit_w", watts, pl.Float64, strict=False),
        pl.Series("neighbours", neighbours, pl.String, strict=False),
        "status",
        "campaign",
    )


def around(runs: pl.DataFrame) -> tuple[int, int] | None:
    """When the newest run of `own_runs` was, with a minute on both sides: ns since 1970; None where none has a date."""
    dated = runs.drop_nulls("began").sort("began").tail(1)
    if dated.is_empty():
        return None
    began, ended = (dated[name].dt.epoch("ns").item() for name in ("began", "ended"))
    margin = 60 * 10**9
    return int(began) - margin, int(began if ended is None else ended) + margin


@dataclass(frozen=True)
class OneGpu(Explained):
    """All that is known of a GPU."""

    stands: tuple[standing.Standing, ...]
    """Its figures beside its peers, of the newest fingerprints."""
    figures: standing.Figures | None
    """Those fingerprints; None where its cluster has no runs."""
    alike: tuple[Neighbour, ...]
    marks: tuple[happened.Mark, ...]
    reasons: Reasons | None
    telemetry: Timelines | None
    """Of its last campaign."""


def whole(
    store: Store, name: str, cluster: str | None = None, *, progress: Callable[[str], None] | None = None
) -> OneGpu:
    """Everything about the GPU that `said` means. InputError where no GPU or several fit."""
    tell = progress or (lambda _: None)
    tell("reading its past and what was judged")
    explained = explain(store, name, cluster=cluster, peers=True)
    on_cluster, gpu, keys = explained.cluster, explained.gpu, list(explained.row["keys"])
    tell("reading the fingerprints")
    figures = standing.figures(store, on_cluster, float("inf"))
    stands, near = [], []
    if figures is not None:
        stands = standing.standings(store, figures, gpu)
        names = known_gpus(store).filter(pl.col("cluster") == on_cluster).select("gpu", "name")
        near = standing.alike(store, figures).nearest(gpu, dict(names.iter_rows()))
    return OneGpu(
        **vars(explained),
        stands=tuple(stands),
        figures=figures,
        alike=tuple(near),
        marks=tuple(happened.marks(store, on_cluster, keys, explained.row["node"])),
        reasons=reasons(store, on_cluster, keys),
        telemetry=_telemetry(store, on_cluster, explained.runs, gpu),
    )


def _telemetry(store: Store, cluster: str, runs: pl.DataFrame, gpu: str) -> Timelines | None:
    """Its telemetry over the last campaign that it was in; None where there is none."""
    from ..fleet.timelines import timelines

    last = runs.drop_nulls("campaign").sort("began", nulls_last=False).tail(1)
    if last.is_empty():
        return None
    lines = timelines(store, probed(store, str(last["campaign"].item()), cluster), [gpu])
    return lines if lines is not None and gpu in lines.gpus else None
