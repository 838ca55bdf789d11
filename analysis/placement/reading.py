"""The runs of a store for scores: by physical GPU, with its node, slot and driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError, StoreError
from ...store.catalog import quoted
from ...store.names import plain_workload, spellings
from ...store.vocabulary import EventKind
from ..runs.kinds import told_apart
from ..runs.measurements import SOUND, identities, measurements
from ..spread.across_workloads import linked_names

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class Place:
    """The place of a GPU, and its board. Node and slot are None if they are not known or contradictory."""

    node: str | None = None
    slot: int | None = None
    drivers: tuple[tuple[datetime | None, str], ...] = ()
    """(first seen, driver version) in the order of time."""
    simulated: bool = False
    """Whether all its runs say that the GPU is simulated: then their times are simulated too."""
    model: str | None = None
    vbios: str | None = None
    """As seen last."""


@dataclass(frozen=True)
class Readings:
    """The runs of some workloads of one cluster, their GPUs by one name each."""

    cluster: str
    workloads: tuple[str, ...]
    runs: pl.DataFrame
    """As `measurements` gives them, with run_id; `gpu` is the name of the physical GPU."""
    places: dict[str, Place]
    notes: tuple[str, ...]
    left_out: dict[str, str]
    """Workloads whose times cannot be used, with the sentence that says so, where not asked for by name."""
    untimed: dict[str, str]
    """Workloads that have runs and no times, as the probe `idle`, with the sentence that says so."""


def available(store: Store, cluster: str | None = None) -> list[tuple[str, str]]:
    """The (cluster, workload) pairs that have times, sorted: a probe such as `idle` has none.

    A workload is as `measurements` names it: runs of several models or power limits are several.
    """
    keys = ["cluster", "workload"]
    times = store.scan("results").filter(pl.col("figure") == "time").select("run_id", *keys).drop_nulls(keys)
    if cluster is not None:
        times = times.filter(pl.col("cluster") == cluster)
    pairs = store.collect(times.select(keys).unique())
    runs = store.scan("runs").filter(SOUND).drop_nulls(keys).select("run_id", pl.col("gpu", *keys).cast(pl.Categorical))
    sound = store.collect(runs.join(times, on="run_id", how="semi"))
    kinds = sound.select(*keys, told_apart(store, sound)["workload"].alias("kind")).unique().cast(pl.String)
    named = pairs.join(kinds, on=keys, how="left").select("cluster", pl.coalesce("kind", "workload")).unique()
    return list(named.sort(named.columns).iter_rows())


def _untimed(store: Store, timed: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The other (cluster, workload) pairs that have runs, and why these have no times."""
    sound = SOUND.any()
    runs = store.scan("runs").drop_nulls(["cluster", "workload"]).group_by("cluster", "workload").agg(sound)
    found = {}
    with_times = {(cluster, name) for cluster, kind in timed for name in (kind, plain_workload(kind))}
    for cluster, workload, any_sound in store.collect(runs.sort("cluster", "workload")).iter_rows():
        if (cluster, workload) in with_times:
            continue
        what = f"{workload} on {cluster}"
        found[cluster, workload] = (
            f"the runs of {what} measure no time, so no GPU can be slow in it"
            if any_sound
            else f"all runs of {what} failed: measure it again"
        )
    return found


def read(
    store: Store,
    workloads: Sequence[str],
    cluster: str | None,
    nodes: Collection[str] | None,
    *,
    known: Sequence[tuple[str, str]],
) -> Readings:
    """The runs of `workloads` (all of the cluster, where empty) on `cluster` (the only one, where None).

    `nodes`: only those of GPUs that are there. `known`: what `available` says of the store.

    Raises `InputError`, which lists what there is, for an empty store, a cluster or workload that it does not have,
    and a cluster left open where several have the workloads; `StoreError` where its files cannot be read.
    """
    untimed = _untimed(store, known)
    _check_readable(store)
    for (on, workload), why in untimed.items():
        if workload in workloads and cluster in (None, on) and not any(w == workload for _, w in known):
            raise InputError(why)
    if not known:
        if untimed:
            raise InputError(f"{store.root} has no measured times: {next(iter(untimed.values()))}")
        raise InputError(
            f"{store.root} has no runs: add some with `whorl import --store {store.root} FILES` or `whorl probe run "
            f"--store {store.root} --suite quick`"
        )
    cluster, chosen = _chosen(known, workloads, cluster, str(store.root))
    frame = measurements(store, clusters=[cluster], workloads=chosen, run_ids=True)
    # A name without a kind stands for one of them here, and for all of them in `measurements`.
    frame = frame.filter(pl.col("gpu").is_not_null() & pl.col("workload").is_in(chosen))
    measured = set(frame["workload"].cast(pl.String).unique())
    left_out = {
        workload: f"the runs of {workload} on {cluster} have no usable time: measure it again"
        for workload in chosen
        if workload not in measured
    }
    if left_out and (workloads or not measured):
        raise InputError(next(iter(left_out.values())))
    names = linked_names(identities(store), cluster)
    notes: list[str] = []
    present = frame["gpu"].cast(pl.String).unique().sort()
    ambiguous = [name for name in present if name in names.ambiguous]
    if ambiguous:
        notes.append(f"{_some(ambiguous)} left out: each of these names fits several GPUs")
    single = {name: names.identity.get(name, name) for name in present if name not in names.ambiguous}
    frame = frame.with_columns(pl.col("gpu").cast(pl.String).replace_strict(single, default=None))
    frame = frame.filter(pl.col("gpu").is_not_null())
    places = _places(store, cluster, names.identity, frame, notes)
    if nodes is not None:
        places = {gpu: place for gpu, place in places.items() if place.node in nodes}
        frame = frame.filter(pl.col("gpu").is_in(list(places)))
    there = set(frame["workload"].cast(pl.String).unique()) if nodes is not None else measured
    kept = tuple(workload for workload in chosen if workload in there)
    no_times = {workload: why for (on, workload), why in untimed.items() if on == cluster}
    return Readings(cluster, kept, frame, places, tuple(notes), left_out, no_times)


def _check_readable(store: Store) -> None:
    """Raise StoreError for a table of which nothing can be read: without it the answer would be a wrong one."""
    for table in ("runs", "results", "gpus"):
        no_rows = store.collect(store.scan(table).select(pl.len())).item() == 0
        skipped = [path for path in store.skipped if path.relative_to(store.root).parts[0] == table]
        if no_rows and skipped:
            files = "1 file" if len(skipped) == 1 else f"{len(skipped):,} files"
            raise StoreError(
                f"{store.root} cannot be read: {files} of {table} could not be, for example {skipped[0]}: "
                f"{store.skipped[skipped[0]]}"
            )


def _simulated(store: Store, cluster: str, frame: pl.DataFrame) -> set[str]:
    """The GPUs of `frame` whose runs all say in their conditions that the GPU is simulated."""
    # By SQL: Polars would read all conditions of all runs.
    of_cluster = f"conditions.simulated and cluster = {quoted(cluster)}"
    rows = store.sql(f"select run_id, true as simulated from runs where {of_cluster}").polars()
    if rows.is_empty():
        return set()
    by_gpu = frame.select("run_id", "gpu").join(rows, on="run_id", how="left").group_by("gpu")
    every = by_gpu.agg(pl.col("simulated").fill_null(False).all())
    return set(every.filter("simulated")["gpu"])


def _chosen(
    known: Sequence[tuple[str, str]], workloads: Sequence[str], cluster: str | None, where: str
) -> tuple[str, list[str]]:
    having = "; ".join(f"{workload} on {one}" for one, workload in known)
    clusters = sorted({one for one, _ in known})
    if cluster is not None and cluster not in clusters:
        raise InputError(f"{where} has no cluster {cluster}; it has {having}")
    for workload in workloads:
        if not any(w == workload and cluster in (None, c) for c, w in known):
            on = "" if cluster is None else f" on {cluster}"
            raise InputError(f"{where} has no runs of workload {workload}{on}; it has {having}")
    if cluster is None:
        wanted = [c for c in clusters if all((c, w) in known for w in workloads)]
        if len(wanted) != 1:
            what = (
                f"{' and '.join(workloads) or 'runs'} on {_some(wanted)}"
                if wanted
                else f"{having}; no cluster has all of them"
            )
            raise InputError(f"{where} has {what}: name the cluster (--cluster)")
        cluster = wanted[0]
    return cluster, list(dict.fromkeys(workloads)) or [w for c, w in known if c == cluster]


def _places(
    store: Store, cluster: str, identity: dict[str, str], frame: pl.DataFrame, notes: list[str]
) -> dict[str, Place]:
    seen = store.scan("gpus").filter(pl.col("cluster") == cluster)
    columns = ["node", "slot", "driver", "model", "vbios"]
    seen = seen.select("gpu", "first_seen", *columns).unique()
    rows = store.collect(seen.sort("gpu", "first_seen", *columns, nulls_last=False))
    spelt = spellings(rows["node"].drop_nulls().to_list())
    newest: dict[str, datetime | None] = dict(frame.group_by("gpu").agg(pl.col("began").max()).iter_rows())
    spots: dict[str, set[tuple[str, int | None]]] = {}
    versions: dict[str, list[tuple[datetime | None, str]]] = {}
    boards: dict[str, dict[str, str]] = {}
    for gpu, first_seen, node, slot, driver, model, vbios in rows.iter_rows():
        name = identity.get(gpu, gpu)
        if name not in newest:
            continue
        if node is not None:
            spots.setdefault(name, set()).add((spelt[node], slot))
        if driver is not None:
            versions.setdefault(name, []).append((first_seen, driver))
        its = {"model": model, "vbios": vbios}
        boards.setdefault(name, {}).update((what, value) for what, value in its.items() if value is not None)
    moved = sorted(gpu for gpu, found in spots.items() if len({node for node, _ in found}) > 1)
    if moved:
        notes.append(f"{_some(moved)}: seen on more than one node, so treated as having no known node")
    at: dict[str, tuple[str, int | None]] = {}
    for gpu, found in spots.items():
        nodes = {node for node, _ in found}
        slots = {slot for _, slot in found if slot is not None}
        if len(nodes) == 1:
            at[gpu] = (nodes.pop(), slots.pop() if len(slots) == 1 else None)
    gone = _replaced(at, newest, notes)
    homeless = [gpu for gpu in newest if gpu not in at and gpu not in moved]
    if homeless:
        notes.append(f"{_some(sorted(homeless))}: the node is not known, so the advice about nodes does not use them")
    nowhere = (None, None)
    found_at = {gpu: nowhere if gpu in gone else at.get(gpu, nowhere) for gpu in newest}
    reloads, simulated = _reloads(store, cluster, spelt), _simulated(store, cluster, frame)
    return {
        gpu: Place(
            node,
            slot,
            _changes(versions.get(gpu, []) + reloads.get(at.get(gpu, nowhere)[0], [])),
            simulated=gpu in simulated,
            model=boards.get(gpu, {}).get("model"),
            vbios=boards.get(gpu, {}).get("vbios"),
        )
        for gpu, (node, slot) in found_at.items()
    }


def _reloads(
    store: Store, cluster: str, spelt: Mapping[str, str]
) -> dict[str | None, list[tuple[datetime | None, str]]]:
    """The driver version of each node after each time that the collector saw it reloaded."""
    events = store.scan("events").filter(
        pl.col("cluster") == cluster, pl.col("kind") == EventKind.DRIVER_RELOADED.value
    )
    rows = store.collect(events.select("node", "ts", "version").drop_nulls())
    found: dict[str | None, list[tuple[datetime | None, str]]] = {}
    for node, ts, driver in rows.iter_rows():
        found.setdefault(spelt.get(node, node), []).append((ts, driver))
    return found


def _changes(seen: list[tuple[datetime | None, str]]) -> tuple[tuple[datetime | None, str], ...]:
    """What was seen of a driver, in the order of time and only where it changed."""
    ordered = sorted(seen, key=lambda one: ("" if one[0] is None else one[0].isoformat(), one[1]))
    return tuple(one for number, one in enumerate(ordered) if number == 0 or ordered[number - 1][1] != one[1])


def _replaced(at: dict[str, tuple[str, int | None]], newest: dict[str, datetime | None], notes: list[str]) -> set[str]:
    """The GPUs whose slot has a GPU that was measured later or at the same time."""
    holders: dict[tuple[str, int], list[str]] = {}
    for gpu, (node, slot) in at.items():
        if slot is not None:
            holders.setdefault((node, slot), []).append(gpu)
    gone: set[str] = set()
    for (node, slot), gpus in sorted(holders.items()):
        if len(gpus) < 2:
            continue
        times = [newest[gpu] for gpu in gpus]
        known = [time for time in times if time is not None]
        last = [gpu for gpu, time in zip(gpus, times, strict=True) if known and time == max(known)]
        if len(known) == len(gpus) and len(last) == 1:
            gone |= set(gpus) - set(last)
            notes.append(
                f"slot {slot} of {node} had {len(gpus)} GPUs: {last[0]} was measured last and counts as being there"
            )
        else:
            gone |= set(gpus)
            notes.append(
                f"slot {slot} of {node} is given for {_some(sorted(gpus))}: none of them counts as being there"
            )
    return gone


def _some(names: Iterable[str]) -> str:
    """A list of names that stays readable."""
    listed = list(names)
    if len(listed) <= 3:
        return " and ".join(listed)
    return f"{listed[0]}, {listed[1]} and {len(listed) - 2:,} others"
