"""The runs of a store as placement compares them: by physical GPU, with its node, slot and driver.

`read_runs` reads the runs of a cluster and where its GPUs are; `units` says, of one workload, what can be told apart.
The GPUs of a synchronous job finish together, so that the rows of a job are copies of its slowest GPU's time: then the
GPUs that shared jobs are one unit, and each job is one run of it. Runs of a GPU within hours may be alike as runs days
apart are not: where the data show it, the runs of a sitting count as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError, StoreError
from ...store.catalog import quoted
from ...store.names import plain_workload, spellings
from ...store.vocabulary import EventKind
from ..runs.measurements import SOUND, Runs, gpu_medians, identities, kinds_of_works, measurements, numbers
from ..runs.sittings import LONGEST, PAUSE, UNKNOWN, days, numbered
from ..spread.repeats import JOBS_COUPLE
from ..spread.variability import linked_names
from ..statistics.ordering import Floats, Ints, bounds
from ..statistics.repeatability import Moments, icc
from ..verdicts.levels import Levels, levels
from .notes import listed, many, note
from .posterior import LogTimes, Mask

if TYPE_CHECKING:
    from ...store import Store

_DriverVersions = list[tuple[datetime | None, str]]
"""When each version was first seen on a GPU or a node."""


@dataclass(frozen=True)
class GpuPlace:
    """The place of a GPU, and its board. Node and slot are None if they are not known or contradictory."""

    node: str | None = None
    slot: int | None = None
    drivers: tuple[tuple[datetime | None, str], ...] = ()  # (first seen, driver version) in the order of time
    simulated: bool = False  # whether all its runs say that the GPU is simulated: then their times are simulated too
    model: str | None = None
    vbios: str | None = None  # as seen last


@dataclass(frozen=True)
class FleetRuns:
    """The runs of some workloads of one cluster, their GPUs by one name each."""

    cluster: str
    workloads: tuple[str, ...]
    runs: pl.DataFrame  # as `measurements` gives them, with run_id; `gpu` is the name of the physical GPU
    places: dict[str, GpuPlace]
    notes: tuple[str, ...]
    unusable: dict[str, str]
    """Workloads whose times cannot be used, with the sentence that says so, where not asked for by name."""
    untimed: dict[str, str]
    """Workloads that have runs and no times, as the probe `idle`, with the sentence that says so."""


def available(store: Store, cluster: str | None = None) -> list[tuple[str, str]]:
    """The (cluster, workload) pairs that have times, sorted: a probe such as `idle` has none.

    A workload is as `measurements` names it: runs of several models or power limits are several.
    """
    keys = ["cluster", "workload"]
    times = store.scan("results").filter(pl.col("figure") == "time").drop_nulls(keys)
    if cluster is not None:
        times = times.filter(pl.col("cluster") == cluster)
    pairs = store.collect(times.select(keys).unique())
    of_pairs = pairs.join(kinds_of_works(store), on=keys, how="left")
    by_kind = of_pairs.select("cluster", pl.coalesce("kind", "workload")).unique()
    return list(by_kind.sort(by_kind.columns).iter_rows())


def read_runs(
    store: Store,
    workloads: Sequence[str],
    cluster: str | None,
    *,
    nodes: Collection[str] | None,
    timed: Sequence[tuple[str, str]],
) -> FleetRuns:
    """The runs of `workloads` (all of the cluster, where empty) on `cluster` (the only one, where None).

    `nodes`: only those of GPUs that are there. `timed`: what `available` says of the store.

    Raises `InputError`, which lists what there is, for an empty store, a cluster or workload that it does not have,
    and a cluster left open where several have the workloads; `StoreError` where its files cannot be read.
    """
    untimed = _untimed(store, timed)
    _check_readable(store)
    for (on, workload), why in untimed.items():
        if workload in workloads and cluster in (None, on) and not any(name == workload for _, name in timed):
            raise InputError(why)
    if not timed:
        if untimed:
            raise InputError(f"{store.root} has no measured times: {next(iter(untimed.values()))}")
        raise InputError(
            f"{store.root} has no runs: add some with `whorl import --store {store.root} FILES` or `whorl probe run "
            f"--store {store.root} --suite quick`"
        )
    cluster, chosen = _chosen(timed, workloads, cluster, str(store.root))
    frame = measurements(store, clusters=[cluster], workloads=chosen, run_ids=True)
    # A name without a kind stands for one of them here, and for all of them in `measurements`.
    frame = frame.filter(pl.col("gpu").is_not_null() & pl.col("workload").is_in(chosen))
    measured = _workloads_of(frame)
    unusable = {
        workload: f"the runs of {workload} on {cluster} have no usable time: measure it again"
        for workload in chosen
        if workload not in measured
    }
    if unusable and (workloads or not measured):
        raise InputError(next(iter(unusable.values())))
    names = linked_names(identities(store), cluster)
    present = frame["gpu"].cast(pl.String).unique().sort()
    ambiguous = [name for name in present if name in names.ambiguous]
    notes = [note("ambiguous", gpus=listed(ambiguous))] if ambiguous else []
    physical = {name: names.identity.get(name, name) for name in present if name not in names.ambiguous}
    frame = frame.with_columns(pl.col("gpu").cast(pl.String).replace_strict(physical, default=None))
    frame = frame.filter(pl.col("gpu").is_not_null())
    places = _places(store, cluster, names.identity, frame, notes)
    if nodes is not None:
        places = {gpu: place for gpu, place in places.items() if place.node in nodes}
        frame = frame.filter(pl.col("gpu").is_in(list(places)))
        measured = _workloads_of(frame)
    no_times = {workload: why for (on, workload), why in untimed.items() if on == cluster}
    present_workloads = tuple(workload for workload in chosen if workload in measured)
    return FleetRuns(cluster, present_workloads, frame, places, tuple(notes), unusable, no_times)


def _workloads_of(frame: pl.DataFrame) -> set[str]:
    return set(frame["workload"].cast(pl.String).unique())


def _untimed(store: Store, timed: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The other (cluster, workload) pairs that have runs, and why these have no times."""
    runs = store.scan("runs").drop_nulls(["cluster", "workload"]).group_by("cluster", "workload").agg(SOUND.any())
    with_times = {(cluster, name) for cluster, kind in timed for name in (kind, plain_workload(kind))}
    return {
        (cluster, workload): (
            f"the runs of {workload} on {cluster} measure no time, so no GPU can be slow in it"
            if any_sound
            else f"all runs of {workload} on {cluster} failed: measure it again"
        )
        for cluster, workload, any_sound in store.collect(runs.sort("cluster", "workload")).iter_rows()
        if (cluster, workload) not in with_times
    }


def _check_readable(store: Store) -> None:
    """Raise StoreError for a table of which nothing can be read: without it the answer would be a wrong one."""
    for table in ("runs", "results", "gpus"):
        no_rows = store.collect(store.scan(table).select(pl.len())).item() == 0
        skipped = [path for path in store.skipped if path.relative_to(store.root).parts[0] == table]
        if no_rows and skipped:
            raise StoreError(
                f"{store.root} cannot be read: {many(len(skipped), 'file', 'files')} of {table} could not be, for "
                f"example {skipped[0]}: {store.skipped[skipped[0]]}"
            )


def _chosen(
    timed: Sequence[tuple[str, str]], workloads: Sequence[str], cluster: str | None, root: str
) -> tuple[str, list[str]]:
    """The cluster and its workloads that are meant."""
    having = "; ".join(f"{workload} on {on}" for on, workload in timed)
    clusters = sorted({on for on, _ in timed})
    if cluster is not None and cluster not in clusters:
        raise InputError(f"{root} has no cluster {cluster}; it has {having}")
    for workload in workloads:
        if not any(name == workload and cluster in (None, on) for on, name in timed):
            on_cluster = "" if cluster is None else f" on {cluster}"
            raise InputError(f"{root} has no runs of workload {workload}{on_cluster}; it has {having}")
    if cluster is None:
        fitting = [on for on in clusters if all((on, workload) in timed for workload in workloads)]
        if not fitting:
            raise InputError(f"{root} has {having}; no cluster has all of them: name the cluster (--cluster)")
        if len(fitting) > 1:
            what = " and ".join(workloads) or "runs"
            raise InputError(f"{root} has {what} on {listed(fitting)}: name the cluster (--cluster)")
        cluster = fitting[0]
    return cluster, list(dict.fromkeys(workloads)) or [name for on, name in timed if on == cluster]


# -- where the GPUs are ----------------------------------------------------------------------------------------------


def _places(
    store: Store, cluster: str, identity: Mapping[str, str], frame: pl.DataFrame, notes: list[str]
) -> dict[str, GpuPlace]:
    """The place of each GPU of `frame`, by the name of the physical GPU. Nodes are written as is usual."""
    newest: dict[str, datetime | None] = dict(frame.group_by("gpu").agg(pl.col("began").max()).iter_rows())
    columns = ["node", "slot", "driver", "model", "vbios"]
    sightings = store.scan("gpus").filter(pl.col("cluster") == cluster).select("gpu", "first_seen", *columns).unique()
    rows = store.collect(sightings.sort("gpu", "first_seen", *columns, nulls_last=False))
    spelt = spellings(rows["node"].drop_nulls().to_list())
    rows = rows.with_columns(
        name=pl.col("gpu").cast(pl.String).replace(identity), node=pl.col("node").cast(pl.String).replace(spelt)
    )
    boards = (
        rows.filter(pl.col("name").is_in(list(newest)))
        .group_by("name", maintain_order=True)
        .agg(
            nodes=pl.col("node").drop_nulls().unique(),
            slots=pl.col("slot").filter(pl.col("node").is_not_null()).drop_nulls().unique(),
            seen=pl.col("first_seen").filter(pl.col("driver").is_not_null()),
            drivers=pl.col("driver").drop_nulls(),
            model=pl.col("model").drop_nulls().last(),
            vbios=pl.col("vbios").drop_nulls().last(),
        )
    )
    reloads, simulated = _reloads(store, cluster, spelt), _simulated(store, cluster, frame)
    about: dict[str, list[Any]] = {gpu: columns for gpu, *columns in boards.iter_rows()}
    places: dict[str, GpuPlace] = {}
    moved: list[str] = []
    homeless: list[str] = []
    for gpu in sorted(newest):
        nodes, slots, seen, drivers, model, vbios = about.get(gpu, [(), (), (), (), None, None])
        node = nodes[0] if len(nodes) == 1 else None
        slot = slots[0] if node is not None and len(slots) == 1 else None
        if node is None:
            (moved if nodes else homeless).append(gpu)
        versions = _changes([*zip(seen, drivers, strict=True), *reloads.get(node, [])])
        places[gpu] = GpuPlace(node, slot, versions, gpu in simulated, model, vbios)
    if moved:
        notes.append(note("moved", gpus=listed(moved)))
    for gpu in _replaced(places, newest, notes):
        places[gpu] = replace(places[gpu], node=None, slot=None)
    if homeless:
        notes.append(note("homeless", gpus=listed(homeless)))
    return places


def _replaced(places: Mapping[str, GpuPlace], newest: Mapping[str, datetime | None], notes: list[str]) -> set[str]:
    """The GPUs whose slot has a GPU that was measured later or at the same time."""
    holders: dict[tuple[str, int], list[str]] = {}
    for gpu, place in places.items():
        if place.node is not None and place.slot is not None:
            holders.setdefault((place.node, place.slot), []).append(gpu)
    gone: set[str] = set()
    for (node, slot), gpus in sorted((seat, gpus) for seat, gpus in holders.items() if len(gpus) > 1):
        gone.update(gpus)
        dated = sorted((time, gpu) for gpu in gpus if (time := newest[gpu]) is not None)
        if len(dated) == len(gpus) and dated[-2][0] < dated[-1][0]:
            gone.remove(last := dated[-1][1])
            notes.append(note("replaced", slot=slot, node=node, count=len(gpus), last=last))
        else:
            notes.append(note("crowded", slot=slot, node=node, gpus=listed(sorted(gpus))))
    return gone


def _reloads(store: Store, cluster: str, spelt: Mapping[str, str]) -> dict[str | None, _DriverVersions]:
    """The driver version of each node after each time that the collector saw it reloaded."""
    reloaded = pl.col("kind") == EventKind.DRIVER_RELOADED.value
    events = store.scan("events").filter(pl.col("cluster") == cluster, reloaded)
    versions: dict[str | None, _DriverVersions] = {}
    for node, ts, driver in store.collect(events.select("node", "ts", "version").drop_nulls()).iter_rows():
        versions.setdefault(spelt.get(node, node), []).append((ts, driver))
    return versions


def _changes(versions: _DriverVersions) -> tuple[tuple[datetime | None, str], ...]:
    """What was seen of a driver, in the order of time and only where it changed."""
    ordered = sorted(versions, key=lambda version: (version[0] is not None, *version))
    return tuple(next(same) for _, same in groupby(ordered, key=lambda version: version[1]))


def _simulated(store: Store, cluster: str, frame: pl.DataFrame) -> set[str]:
    """The GPUs of `frame` whose runs all say in their conditions that the GPU is simulated."""
    # By SQL: Polars would read all conditions of all runs.
    of_cluster = f"conditions.simulated and cluster = {quoted(cluster)}"
    rows = store.sql(f"select run_id, true as simulated from runs where {of_cluster}").polars()
    if rows.is_empty():
        return set()
    by_gpu = frame.select("run_id", "gpu").join(rows, on="run_id", how="left").group_by("gpu")
    all_simulated = by_gpu.agg(pl.col("simulated").fill_null(False).all())
    return set(all_simulated.filter("simulated")["gpu"])


# -- what can be told apart ------------------------------------------------------------------------------------------

_MOST = 60.0
"""Longest log time of a run, above the usual one: larger values change nothing and would overflow."""
_SITTINGS = (("day", PAUSE, LONGEST), ("hour", 1 / 24, np.inf))
"""What people call a sitting, the pause that ends it, and how long it lasts at most; in days."""
_CLEAR = 2.0
"""Standard errors by which the mean squares between and within sittings must differ: about one test in thirty errs, and
then on the safe side, as the median of a sitting tells nearly as much as its runs."""
_FAR = 6.0
"""Scales from which a run counts as no farther off: one broken run must not hide what the others show."""
_NOTHING = 1e-24
"""What rounding leaves of the variance of equal log times."""


@dataclass(frozen=True)
class ComparedUnits:
    """The units of a workload that can be told apart, with their runs."""

    runs: LogTimes
    unit: Ints  # (gpus,) the unit of each GPU; -1 where none of its runs counts
    coupled: bool  # whether jobs couple the GPUs, so that a unit is a set of GPUs and a run is a job
    crossing: int  # runs of jobs over several nodes, which say too little about one of them: left out
    sitting: str | None
    """"day" or "hour" where runs of such a sitting are more alike than others and count as one."""
    sitting_share: float  # of the variance between runs of one GPU, what those sittings take
    levels: Levels  # their levels, as the judge has them: the measured level, and how much another sitting may differ


def units(runs: Runs) -> ComparedUnits:
    """The units of one workload; `runs.value` positive."""
    log_time, job, gpus = np.log(runs.value), _jobs(runs), len(runs.names)
    rows = runs.frame["began"].arg_sort(nulls_last=True).to_numpy().astype(np.intp)
    began = runs.frame.select(days()).to_series().to_numpy()
    unit, crossing = np.arange(gpus, dtype=np.intp), 0
    coupled = _coupled(log_time, runs.gpu, job, gpus)
    if coupled:
        crosses = _crossing(runs, job)
        crossing, rows = int(crosses.sum()), rows[~crosses[rows]]
        unit = _coupled_sets(runs.gpu[rows], job[rows], gpus)
        single = np.where(job < 0, int(job.max(initial=0)) + 1 + np.arange(len(job)), job)
        x, first = _medians_by(log_time[rows], single[rows])
        rows, job = rows[first], np.full(len(job), -1, dtype=np.intp)
    else:
        x = log_time[rows]
    owner, job, began, count = unit[runs.gpu[rows]], job[rows], began[rows], int(unit.max()) + 1
    sitting, sitting_share, number = sittings_alike(x, owner, began)
    measured = levels(owner, began, x, count)
    if sitting is not None:
        x, first = _medians_by(x, number)
        owner, job = owner[first], job[first]
    x = np.clip(x - float(np.median(gpu_medians(x, owner, count))), -_MOST, _MOST)
    log_times = LogTimes.of(x, owner, count, job)
    return ComparedUnits(log_times, unit, coupled, crossing, sitting, sitting_share, measured)


def all_cross_nodes(runs: Runs) -> bool:
    """Whether every run is of a job that couples GPUs of several nodes: then nothing is known of any one node."""
    job = _jobs(runs)
    crossing = bool((job >= 0).all()) and bool(_crossing(runs, job).all())
    return crossing and _coupled(np.log(runs.value), runs.gpu, job, len(runs.names))


def _jobs(runs: Runs) -> Ints:
    """The number of each run's job; -1 if it used one GPU or is not known."""
    job = np.full(len(runs.value), -1, dtype=np.intp)
    if "job_id" in runs.frame.columns:
        shared = runs.frame["job_id"].is_not_null().to_numpy()
        job[shared] = numbers(runs.frame["job_id"].drop_nulls())[0]
    return job


def _coupled(x: Floats, gpu: Ints, job: Ints, gpus: int) -> bool:
    """Whether most runs shared a job and, set against their own GPU, went with it."""
    shared = job >= 0
    if 2 * shared.sum() < len(x):
        return False
    several = shared & (np.bincount(gpu, minlength=gpus) > 1)[gpu]
    if not several.any():
        return True  # nothing is known: to be on the safe side
    number = np.unique(job[several], return_inverse=True)[1]
    strayed = (x - gpu_medians(x, gpu, gpus)[gpu])[several]
    order = np.argsort(number, kind="stable")
    by_job = icc(Moments.of(strayed[order], bounds(number, int(number.max()) + 1)), "job").value
    return by_job is None or by_job >= JOBS_COUPLE


def _crossing(runs: Runs, job: Ints) -> Mask:
    """(runs,) whether the job of a run was on several nodes."""
    frame = pl.DataFrame({"job": job, "node": runs.frame["node"]})
    several = (pl.col("node").n_unique().over("job") > 1) & (pl.col("job") >= 0)
    crossing: Mask = frame.select(several).to_series().to_numpy()
    return crossing


def _coupled_sets(gpu: Ints, job: Ints, gpus: int) -> Ints:
    """The set of each GPU: GPUs that shared a job are in one; -1 for a GPU without a run."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    shared = job >= 0
    points = gpus + int(job.max(initial=-1)) + 1  # the GPUs, then the jobs
    links = coo_array((np.ones(shared.sum()), (gpu[shared], gpus + job[shared])), shape=(points, points))
    component = connected_components(links, directed=False)[1][:gpus]
    present = np.unique(gpu)
    sets = np.full(gpus, -1, dtype=np.intp)
    sets[present] = np.unique(component[present], return_inverse=True)[1]
    return sets


def _medians_by(x: Floats, key: Ints) -> tuple[Floats, Ints]:
    """One run for each `key`: the median of its rows, and its first row. In the order of the first rows."""
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return gpu_medians(x, number, len(first))[order], first[order]


def sittings_alike(x: Floats, owner: Ints, began: Floats) -> tuple[str | None, float, Ints]:
    """Whether runs of one sitting of an `owner` are more alike than others: "day", "hour" or None, the share of the
    variance that these sittings take, and each run's sitting (else its own number).

    Runs back to back share what the day brought: the room, the neighbours, the state of the node. Taken as so many
    independent runs they would make every interval too narrow and show differences that do not last.

    `x`: log times; `began`: in days. Runs at unknown times of an owner are one sitting, and no evidence.
    """
    dated = began > UNKNOWN
    for length, pause, longest in _SITTINGS:
        number = numbered(owner, began, pause, longest)
        share = _share_of_sittings(x[dated], owner[dated], number[dated])
        if share > 0.0:
            return length, share, number
    return None, 0.0, np.arange(len(x), dtype=np.intp)


def _share_of_sittings(x: Floats, owner: Ints, number: Ints) -> float:
    """The share of the variance between runs of one owner that its sittings take.

    By analysis of variance of sittings within owners; 0 where it is not clearly more than none.
    """
    first = np.unique(number, return_index=True)[1]
    several = (np.bincount(owner[first], minlength=int(owner.max(initial=0)) + 1) > 1)[owner]
    if not several.any():
        return 0.0
    x, owner, number = x[several], *(np.unique(labels[several], return_inverse=True)[1] for labels in (owner, number))
    owners, sittings, runs = int(owner.max()) + 1, int(number.max()) + 1, len(owner)
    if runs == sittings:
        return 0.0
    strayed = x - gpu_medians(x, owner, owners)[owner]
    scale = 1.4826 * float(np.median(np.abs(strayed)))
    if scale > 0:
        strayed = np.clip(strayed, -_FAR * scale, _FAR * scale)
    strayed -= (np.bincount(owner, strayed) / np.bincount(owner))[owner]
    size = np.bincount(number)
    mean = np.bincount(number, strayed) / size
    owner_of_sitting = owner[np.unique(number, return_index=True)[1]]
    within = float(((strayed - mean[number]) ** 2).sum()) / (runs - sittings)
    between = float((size * mean**2).sum()) / (sittings - owners)
    squares = np.bincount(owner_of_sitting, size**2) / np.bincount(owner)
    usual_size = (runs - float(squares.sum())) / (sittings - owners)
    error = np.sqrt(2.0 / (sittings - owners) + 2.0 / (runs - sittings))
    if between <= (1.0 + _CLEAR * error) * within or between <= _NOTHING:
        return 0.0
    variance = (between - within) / usual_size
    return variance / (variance + within)
