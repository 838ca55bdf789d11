"""The demo: a suite of probes on the GPUs here, or on a simulated fleet with planted faults, and with invented jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DeviceError, InputError

if TYPE_CHECKING:
    from ...analysis.verdicts.verdict import Fault
    from ...probes.campaign import Plan, Progress, Report
    from ...probes.node import Local
    from ...simulation.fleet import Fleet
    from ...store import Store

STORE = "store"
"""In the demo's folder."""
_HEALTHY = 16  # GPUs for each fault by default: among too few others no GPU stands out
_FAULTS = ("brake", "hot=250%", "pinned")
"""What a site wants found. A fleet has the first three kinds otherwise; a GPU that is hotter by the usual 60 % runs as
fast as its peers, and a small fleet cannot tell it from a warm healthy one (docs/verdicts.md)."""
_LARGE = 2000  # with more GPUs than this, telemetry is stored less often
_TWICE = 256  # up to so many GPUs, the quick suite is measured twice: that takes seconds
_FIRST_JOB = 1001
_USERS = (("alice", "physics"), ("bob", "chemistry"), ("carol", "physics"))


@dataclass(frozen=True)
class Demo:
    """A campaign of the demo, in its store. Of two, the last one."""

    store: Store
    report: Report
    sittings: int
    """How many times everything was measured. Advice needs two: one cannot show what repeats."""
    planted: Sequence[Fault] | None
    """None on real GPUs."""
    seed: int | None
    """Of the simulated fleet."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of `whorl demo`. Any of the simulated fleet's leaves real GPUs alone."""

    suite: str = "quick"
    backend: str | None = None
    """"cuda" or "simulated"; the GPUs here, else simulated ones, where it is "auto" or left out."""
    gpus: int | None = None
    model: str | None = None
    seed: int | None = None
    faults: int | None = None
    fault: Sequence[str] = ()
    """Kinds of faults to plant."""
    another_fleet: bool = False
    progress: Progress | None = None
    tell: Callable[[str], None] | None = None


def measure_demo(folder: Path, options: DemoOptions) -> Demo:
    """Run a suite on the GPUs here, or on a simulated fleet if there are none or an option of that fleet is given.

    The store is `folder/store`. Raises InputError if options do not go together, if the folder holds other things, or
    the measurements of another fleet and `another_fleet` is False; and DeviceError if `backend` is "cuda" and no GPU
    can be used.
    """
    from ...probes import node
    from ...probes.simulated import run_simulated
    from ...store.names import this_cluster

    names = ("gpus", "model", "seed", "faults", "fault")
    of_fleet = [name for name in names if getattr(options, name) not in (None, ())]
    if options.backend == "cuda" and of_fleet:
        raise InputError(f"--{of_fleet[0]} is for the simulated fleet, and --backend cuda for real GPUs")
    _refuse(folder)
    devices, why = (None, "") if of_fleet or options.backend == "simulated" else _devices(options.backend, options.tell)
    plan = _plan(options.suite)
    if devices:
        store = _opened(folder, this_cluster(), another_fleet=options.another_fleet)
        return Demo(store, node.run_plan(store, devices, plan, progress=options.progress), 1, None, None)
    fleet = _fleet(options)
    cluster = _cluster_of(fleet)
    store = _opened(folder, cluster, another_fleet=options.another_fleet)
    sittings = 2 if options.suite == "quick" and len(fleet) <= _TWICE else 1
    for number in range(sittings):
        plan = plan if number == 0 else _plan(options.suite)
        report = run_simulated(
            store,
            fleet,
            plan,
            cluster=cluster,
            telemetry_s=0.5 if len(fleet) <= _LARGE else 2.0,
            unnamed=True,
            progress=_part_of(options.progress, number, sittings),
        )
        record_jobs(store, report)
    if why:
        report.notes.insert(0, f"the fleet is simulated, because no GPU can be measured here: {why}")
    return Demo(store, report, sittings, report.planted, fleet.seed)


def _part_of(progress: Progress | None, number: int, sittings: int) -> Progress | None:
    """The progress of one sitting as that of all."""
    if progress is None:
        return None
    return lambda done, total, name: progress(number * total + done, sittings * total, name)


def _refuse(folder: Path) -> None:
    """Raises InputError for a folder that holds other things and no demo."""
    try:
        for path in (folder, *folder.parents):
            if path.exists():
                if not path.is_dir():
                    raise InputError(f"{path} is a file, but --out needs a folder: choose another path")
                break
            if path.is_symlink():
                raise InputError(f"{path} is a broken link: remove it, or choose another folder for --out")
        if folder.is_dir() and not (folder / STORE).is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} has other contents and no demo: choose an empty or a new folder for --out")
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror}): choose another folder for --out") from error


def _devices(backend: str | None, tell: Callable[[str], None] | None) -> tuple[Local | None, str]:
    """The GPUs of this node; if there is none and that is allowed, the reason."""
    from ...probes import node

    try:
        return node.local_devices(tell=tell), ""
    except (InputError, DeviceError) as error:
        if backend == "cuda":
            raise
        return None, no_driver() or str(error)


def no_driver() -> str:
    """Why NVML shows no GPU; '' if it shows one. Without a GPU, a missing CuPy is not the reason."""
    from ...collectors.collect import open_backend

    try:
        opened = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return str(error).removeprefix("NVML: ")
    if opened is not None:
        opened[0].close()
    return ""


def _fleet(options: DemoOptions) -> Fleet:
    from ...simulation.fleet import Fleet
    from ...simulation.models import find_model

    gpus, faults = 64 if options.gpus is None else options.gpus, options.faults
    if faults is None and not options.fault:
        faults = min(3, gpus // _HEALTHY)
    kinds = tuple(options.fault) or _FAULTS
    seed = 1 if options.seed is None else options.seed
    return Fleet.draw(find_model(options.model or "V100"), gpus, seed, faults=faults, kinds=kinds)


def _plan(suite: str) -> Plan:
    from ...probes import catalogue
    from ...probes.campaign import Plan
    from ...probes.conditions import Asked
    from ...probes.effort import EFFORTS

    name = f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    return Plan(catalogue.suite(suite), Asked(EFFORTS[suite]), name, "busy")


def _opened(folder: Path, cluster: str, *, another_fleet: bool) -> Store:
    """The store of the demo, made where there is none. InputError where it holds other clusters than this one."""
    from ...analysis.contents import clusters
    from ...store import Store

    store = Store.create(folder / STORE)
    others = [name for name in clusters(store) if name != cluster]
    if others and not another_fleet:
        raise InputError(
            f"{store.root} holds another fleet, {', '.join(others)}: choose a new folder with --out, or add "
            "--force to have both in one store"
        )
    return store


def _cluster_of(fleet: Fleet) -> str:
    # GPUs of one seed have one name, whatever is planted in them: each choice of faults is a cluster of its own.
    faults = "-".join(f"{kind}@{gpu}" for gpu, kind in sorted(fleet.named.items()))
    name = f"simulated-{fleet.model.name.split('-', maxsplit=1)[0]}-{len(fleet)}-{fleet.seed}"
    return name + (f"-{sha256(faults.encode()).hexdigest()[:6]}" if faults else "")


def record_jobs(store: Store, report: Report) -> None:
    """Store a row of `jobs` for each GPU that a campaign measured: from the first to the last run on its node.

    Each node was measured by one job of an invented user.
    """
    import polars as pl

    from ...store.importing.superseding import conformed
    from ...store.schema import JOBS
    from ...store.vocabulary import GpuFrom, JobSource

    assert report.began_ns is not None
    runs = store.collect(
        store.scan("runs")
        .filter((pl.col("campaign") == report.campaign) & (pl.col("cluster") == report.cluster))
        .group_by("gpu")
        .agg(pl.col("began").min(), pl.col("ended").max())
    )
    gpus = store.sql("select cluster, gpu, node, slot, model from gpus_now").polars()
    places = gpus.filter(pl.col("cluster") == report.cluster).drop("cluster")
    jobs = store.scan(JOBS.name).filter(pl.col("cluster") == report.cluster).select(pl.col("job_id").n_unique())
    first = _FIRST_JOB + int(store.collect(jobs).item())
    number = pl.col("node").rank("dense").cast(pl.Int64) - 1
    users = pl.DataFrame(_USERS, schema=["user", "account"], orient="row").with_row_index("who")
    rows = (
        runs.join(places, on="gpu")
        .with_columns(
            pl.lit(report.cluster).alias("cluster"),
            (first + number).cast(pl.String).alias("job_id"),
            (number % len(_USERS)).cast(pl.UInt32).alias("who"),
            pl.col("began").min().over("node"),
            pl.col("ended").max().over("node"),
            pl.lit("COMPLETED").alias("state"),
            pl.lit(GpuFrom.WHOLE_NODE.value).alias("gpu_from"),
            pl.col("model").alias("gpu_type"),
            pl.lit(1.0).alias("share"),
            pl.lit(1).alias("node_gpus"),
            pl.len().over("node").alias("job_gpus"),
            pl.lit(1).alias("job_nodes"),
            pl.lit(JobSource.SIMULATED.value).alias("source"),
        )
        .join(users, on="who", maintain_order="left")
        .with_columns(
            pl.col("job_id").alias("raw_id"), pl.col("job_id").alias("allocation"), pl.col("began").alias("submitted")
        )
    )
    records = conformed(rows.sort("node", "slot")).with_columns(
        pl.lit(datetime.now(UTC).replace(tzinfo=None)).alias("recorded")
    )
    store.append({JOBS.name: records.to_arrow()}, f"jobs-{report.campaign}")
