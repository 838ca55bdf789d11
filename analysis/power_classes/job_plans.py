"""What a store knows of the GPUs of a synchronous job, and the plan of their power limits."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store.hostlist import compress, expand
from ...store.vocabulary import stated
from ..tuning.power_plan import (
    FEWEST_GPUS,
    FULL_CLOCK,
    STEP_W,
    ClassRuns,
    PlanRefusal,
    PowerPlan,
    StepGains,
    SyncJob,
    braked,
    exchange_gains,
    plan_power,
)
from .sweeps import runs_with_limits

if TYPE_CHECKING:
    from ...store import Store

_CURVE_SHARES = (0.95, 0.9, 0.85, 0.8)
"""Of the present limit: the limits that are asked for where the class has no curve."""


@dataclass(frozen=True)
class PlanScope:
    """Which job is meant; the options of `whorl advise power-plan`."""

    hosts: str
    """A host list; the job has all GPUs of these nodes."""
    workload: str
    command: str | None
    """What measures the workload on a node, as warm as in the job; None where it is no probe of whorl."""
    cluster: str | None = None
    limit_w: float | None = None
    """The present limit; None: that of each GPU in the store."""
    budget_w: float | None = None
    """What the GPUs may report together."""


@dataclass(frozen=True)
class Exchange:
    """Braked GPUs, for which the others wait, and what random other GPUs of the class in their place do to a step."""

    slower: dict[str, float]
    """By GPU: how much longer it takes than the class's median GPU, as a share."""
    gains: StepGains
    beside: int
    """GPUs of the class that ran under that limit."""


@dataclass(frozen=True)
class SyncJobPlan:
    """The plan of a job, with what it is made from."""

    scope: PlanScope
    gpus: pl.DataFrame
    """A row for each GPU of the job: cluster, gpu, name, node, model, time_ms, power_w, limit_w, clock_share,
    cap_share, held, runs, plan_limit_w, plan_power_w (both null without a plan)."""
    runs: pl.DataFrame
    """The runs of these GPUs that count: gpu, began, driver, neighbours, steady, and more."""
    plan: PowerPlan
    exchange: Exchange | None = None
    curve: ClassRuns | None = None
    """None, as the class is not looked at, where the work is not at its limit."""


def job_plan(store: Store, scope: PlanScope) -> SyncJobPlan:
    """The plan for the job on the GPUs of some hosts, from the runs of a workload that the store has.

    Raises InputError for hosts without GPUs, GPUs of several models or clusters, and where runs are missing: the
    sentence names the nodes and says how to measure what is missing.
    """
    gpus = _job_gpus(store, scope)
    runs = _runs(store, scope, gpus)
    gpus, own = _present(scope, gpus, runs)
    runs = runs.filter(pl.col("neighbours").eq_missing(own["neighbours"][0]))
    job = SyncJob(*(gpus[name].to_numpy() for name in ("speed", "power_w", "limit_w", "held")))
    curve, exchange, plan = None, None, PowerPlan(PlanRefusal.NOT_HELD)
    if job.at_limit:
        beside = _beside(gpus, runs)
        curve = _class_runs(scope, gpus, runs.join(beside.filter("slow"), on="gpu", how="anti"))
        exchange = _exchange(job, gpus, beside, curve.noise())
        highest_w = float(gpus["highest_w"].fill_null(inf).to_numpy().min())
        plan = plan_power(job, curve, budget_w=scope.budget_w, highest_w=highest_w)
    none = [None] * len(gpus)
    planned = {"time_ms": 1 / job.speed, "plan_limit_w": plan.limit_w, "plan_power_w": plan.power_w}
    gpus = gpus.with_columns(
        pl.Series(name, none if watts is None else watts, pl.Float64) for name, watts in planned.items()
    )
    return SyncJobPlan(scope, gpus, own, plan, exchange, curve)


def _job_gpus(store: Store, scope: PlanScope) -> pl.DataFrame:
    """The GPUs of the hosts: cluster, gpu, name, node, model, limit_w (now), highest_w, highest_mhz."""
    known = store.sql(
        "select cluster, gpu, name, node, model, coalesce(power_limit_mw, power_limit_default_mw) / 1e3 as limit_w, "
        "power_limit_max_mw / 1e3 as highest_w, sm_clock_max_mhz::double as highest_mhz from gpus_now "
        "where parent is null and node is not null order by node, slot, gpu"
    ).polars()
    hosts = expand(scope.hosts)
    known = known.filter(pl.col("node").is_in(hosts), scope.cluster is None or pl.col("cluster") == scope.cluster)
    unknown = sorted(set(hosts) - set(known["node"]))
    if unknown or not hosts:
        raise InputError(f"the store knows no GPU of {compress(unknown) or scope.hosts!r}: see `whorl sql` on gpus_now")
    for column, option in (("cluster", "choose one with --cluster"), ("model", "plan for hosts of one known model")):
        several = sorted(str(name) for name in known[column].unique())
        if len(several) > 1 or (column == "model" and known["model"][0] is None):
            raise InputError(f"{scope.hosts} has GPUs of {column} {' and '.join(several)}: {option}")
    known = known.with_columns(pl.coalesce(pl.lit(scope.limit_w, pl.Float64), "limit_w").round(0).alias("limit_w"))
    if known["limit_w"].null_count():
        raise InputError(f"the present power limit of the GPUs of {scope.hosts} is not known: give it with --limit")
    return known


def _runs(store: Store, scope: PlanScope, gpus: pl.DataFrame) -> pl.DataFrame:
    """The runs of the workload on GPUs of the model with free clocks, by the driver of the job's newest run.

    Columns: gpu, speed, power_w, cap_w (the limit), sm_clock_mhz, cap_share, neighbours, steady, driver, began. A run's
    speed is from the mean of its repeats, not their median, which is that of one step of the clock.
    """
    capped = runs_with_limits(store, gpus["cluster"][0], [scope.workload])
    capped = capped.filter(pl.col("model") == gpus["model"][0], pl.col("set_mhz").is_null())
    times = store.scan("results").filter(pl.col("figure") == "time", pl.col("run_id").is_in(capped["run_id"].implode()))
    seconds = (pl.col("ended") - pl.col("began")).dt.total_microseconds() / 1e6
    conditions = store.scan("runs").select(
        "run_id", "began", "sm_clock_mhz",
        stated("neighbours").alias("neighbours"),
        stated("steady").fill_null(value=True).alias("steady"),
        pl.col("versions").struct.field("driver").alias("driver"),
        (pl.col("clock_events").struct.field("power_cap") / seconds).alias("cap_share"),
    )  # fmt: skip
    runs = capped.join(
        store.collect(times.group_by("run_id").agg((1 / pl.col("value").mean()).alias("speed"))), on="run_id"
    )
    runs = runs.join(store.collect(conditions), on="run_id")
    runs = runs.with_columns(pl.coalesce("set_w", "own_w").round(0).alias("cap_w"))
    runs = runs.filter(pl.all_horizontal(pl.col("speed", "power_w", "cap_w") > 0))
    newest = runs.filter(pl.col("gpu").is_in(gpus["gpu"].implode())).sort("began", nulls_last=False)["driver"]
    return runs.filter(pl.col("driver").eq_missing(newest[-1] if len(newest) else None))


def _present(scope: PlanScope, gpus: pl.DataFrame, runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The job's GPUs with the medians of their runs at the present limit, and these runs.

    Runs with busy and with idle neighbours differ: those count that most GPUs of the job have, busy ones if as many.
    """
    own = runs.join(gpus.select("gpu", "limit_w", "highest_mhz"), left_on=["gpu", "cap_w"], right_on=["gpu", "limit_w"])
    sorts = own.group_by("neighbours").agg(pl.col("gpu").n_unique())
    if len(sorts):
        most = sorts.sort("gpu", pl.col("neighbours").eq_missing("busy"))["neighbours"][-1]
        own = own.filter(pl.col("neighbours").eq_missing(most))
    medians = own.group_by("gpu").agg(
        pl.col("speed", "power_w", "cap_share").median(),
        (pl.col("sm_clock_mhz") / pl.col("highest_mhz")).median().alias("clock_share"),
        pl.len().alias("runs"),
    )
    gpus = gpus.join(medians, on="gpu", how="left", maintain_order="left")
    missing = gpus.filter(pl.col("speed").is_null())
    if len(missing):
        limits = " and ".join(f"{limit:g} W" for limit in missing["limit_w"].unique().sort())
        driver = f" by driver {runs['driver'][0]}" if len(runs) and runs["driver"][0] else ""
        raise InputError(
            f"{compress(missing['node'])}: {len(missing)} of the job's GPUs have no run of {scope.workload} with its "
            f"power at the present limit of {limits}{driver}; {_how(scope)}"
        )
    if gpus.filter(pl.coalesce("clock_share", "cap_share").is_not_null()).is_empty():
        raise InputError(
            f"the clock of the runs of {scope.workload} on {scope.hosts} is not known, so nothing tells whether they "
            f"were at their power limit; {_how(scope)}"
        )
    held = pl.any_horizontal(pl.col("clock_share") < FULL_CLOCK, pl.col("cap_share") > 0.5).fill_null(value=False)
    return gpus.with_columns(held.alias("held")), own


def _how(scope: PlanScope, lower_w: tuple[str, ...] = ()) -> str:
    """How the GPUs of a node get runs: at their present limit, and with limits under these too."""
    if scope.command is None:
        under = f"with each of {', '.join(lower_w)} W set by `nvidia-smi -pl` and without" if lower_w else "there"
        return (
            f"{scope.workload} is no probe of whorl: run it {under}, and import its times with columns for power, "
            "SM clock and power limit (docs/import.md)"
        )
    if not lower_w:
        return f"run `{scope.command}` there"
    return f"run `{scope.command} --power-limit {lower_w[0]}`, the same with {', '.join(lower_w[1:])}, and without"


def _class_runs(scope: PlanScope, gpus: pl.DataFrame, runs: pl.DataFrame) -> ClassRuns:
    """The medians of each GPU of the class under each limit, of those that ran under the job's limits and lower."""
    limits_w = gpus["limit_w"].to_numpy()
    lowest_w, highest_w = float(limits_w.min()), float(limits_w.max())
    cells = runs.group_by("gpu", "cap_w").agg(pl.col("speed", "power_w").median())
    lower = pl.col("cap_w").min().over("gpu") <= lowest_w - STEP_W
    enough = pl.len().over("cap_w") >= FEWEST_GPUS
    cells = cells.filter(enough).filter(lower, pl.col("cap_w").max().over("gpu") >= highest_w).filter(enough)
    limits_w = cells["cap_w"].unique().sort().to_numpy()
    if not len(limits_w) or limits_w[0] > lowest_w - STEP_W or limits_w[-1] < highest_w:
        lower_w = tuple(f"{round(share * lowest_w / STEP_W) * STEP_W:g}" for share in _CURVE_SHARES)
        raise InputError(
            f"{gpus['model'][0]}: no curve of {scope.workload} from {lower_w[-1]} to {highest_w:g} W, which needs "
            f"{FEWEST_GPUS} or more GPUs that ran under several limits; on a node of this model {_how(scope, lower_w)}"
        )
    speed, power_w = (
        cells.sort("cap_w").pivot("cap_w", index="gpu", values=name).sort("gpu").drop("gpu").to_numpy()
        for name in ("speed", "power_w")
    )
    return ClassRuns(limits_w, speed, power_w)


def _beside(gpus: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The GPUs of the class at the job's limits: gpu, speed and power_w over the medians there, slow (braked)."""
    cells = runs.filter(pl.col("cap_w").is_in(gpus["limit_w"].implode()))
    cells = cells.group_by("gpu", "cap_w").agg(pl.col("speed", "power_w").median())
    ratios = pl.col("speed", "power_w") / pl.col("speed", "power_w").median().over("cap_w")
    beside = cells.select("gpu", ratios).group_by("gpu").mean().sort("gpu")
    speed = beside["speed"].to_numpy()
    return beside.with_columns(pl.Series("slow", braked(speed)))


def _exchange(job: SyncJob, gpus: pl.DataFrame, beside: pl.DataFrame, noise: float) -> Exchange | None:
    """The braked GPUs of the job, and what exchanging them gains; None without any."""
    slow = gpus.select("gpu").join(beside.filter("slow"), on="gpu", how="left", maintain_order="left")
    if slow["slow"].null_count() == len(slow):
        return None
    usual = beside.filter(~pl.col("slow"))
    slow_ratio, usual_ratio = (part.select("speed", "power_w").to_numpy() for part in (slow, usual))
    gains = exchange_gains(job, slow_ratio, usual_ratio, noise)
    slower = {row["gpu"]: 1 / row["speed"] - 1 for row in slow.drop_nulls().iter_rows(named=True)}
    return Exchange(slower, gains, len(beside))
