"""What a store knows of the GPUs of a synchronous job, and the plan of their power limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.hostlist import compress, expand
from ...store.vocabulary import ClockSetting, stated
from ..runs.measurements import measurements
from ..tuning.power_plan import (
    COLDER_SD,
    FEWEST_GPUS,
    FULL_CLOCK,
    STEP_W,
    ClassRuns,
    Draws,
    PlanRefusal,
    PowerPlan,
    StepGains,
    SyncJob,
    braked,
    plan_power,
)

if TYPE_CHECKING:
    from ...store import Store

_SAME_W = 0.5
"""Limits that differ by less are one."""
_CURVE_SHARES = (0.95, 0.9, 0.85, 0.8)
"""Of the present limit: the limits that are asked for where the class has no curve."""
_LISTED = 8
"""GPUs that a sentence names."""
_ENOUGH_REPEATS = 5
"""Degrees of freedom from which repeated runs tell the noise."""


@dataclass(frozen=True)
class PlanScope:
    """Which job is meant; the options of `whorl advise power-plan`."""

    hosts: str
    """A host list; the job has all GPUs of these nodes."""
    workload: str
    cluster: str | None = None
    limit_w: float | None = None
    """The present limit; None: that of each GPU in the store."""
    budget_w: float | None = None
    """What the GPUs may report together."""
    seed: int = 0


@dataclass(frozen=True)
class RunNoise:
    """How far a speed of the plan may be off by noise alone."""

    sd: float | None
    """Standard deviation of ln time from run to run; None where nothing tells it."""
    repeated: bool
    """Whether it is from repeated runs under one limit; else it is from neighbouring limits, and an upper bound."""
    n: int
    """GPUs that it is from."""
    days: int
    """The fewest days on which a GPU of the job was measured: a speed is off by `sd` over the root of it."""


@dataclass(frozen=True)
class Exchange:
    """Braked GPUs, for which the others wait, and what other GPUs of the class in their place would do to a step."""

    slower: dict[str, float]
    """By GPU: how much longer it takes than the class's median GPU, as a share."""
    median: StepGains
    """The value with the class's median GPU in their place, the interval with random ones."""
    beside: int
    """GPUs of the class that ran under that limit."""


@dataclass(frozen=True)
class SyncJobPlan:
    """The plan of a job, with what it is made from."""

    cluster: str | None
    workload: str
    model: str
    gpus: pl.DataFrame
    """A row for each GPU of the job: gpu, name, node, time_ms, power_w, limit_w, clock_share, cap_share, held, runs,
    plan_limit_w, plan_power_w (both null without a plan)."""
    plan: PowerPlan
    alone: bool
    """Whether the other GPUs of a node were idle in these runs."""
    unsteady: int
    """Runs of the job's GPUs that began before temperature and clock were steady."""
    driver: str | None
    since: datetime | None
    """When the first and the last of the job's runs began."""
    until: datetime | None
    budget_w: float | None
    exchange: Exchange | None = None
    noise: RunNoise | None = None
    """None, as the class is not looked at, where the work is not at its limit."""
    class_gpus: int = 0
    """GPUs of the class under several limits."""
    class_limits_w: tuple[float, ...] = ()


def job_plan(store: Store, scope: PlanScope) -> SyncJobPlan:
    """The plan for the job on the GPUs of some hosts, from the runs of a workload that the store has.

    Raises InputError for hosts without GPUs, GPUs of several models or clusters, and where runs are missing: the
    sentence names the GPUs and the commands that measure what is missing.
    """
    gpus = _job_gpus(store, scope)
    cluster, model = gpus["cluster"][0], gpus["model"][0]
    runs = _runs(store, scope, cluster, model)
    newest = runs.filter(pl.col("gpu").is_in(gpus["gpu"].implode())).sort("began", nulls_last=False)["driver"].tail(1)
    driver = newest[0] if len(newest) else None
    runs = runs.filter(pl.col("driver").eq_missing(driver))
    gpus, own = _present(store, scope, gpus, runs)
    runs = runs.filter(pl.col("neighbours").eq_missing(own["neighbours"][0]))
    alone = own["neighbours"][0] == "idle" and bool(gpus["node"].is_duplicated().any())
    colder = COLDER_SD if alone or not own["steady"].all() else 0.0
    columns = {name: gpus[name].to_numpy() for name in ("speed", "power_w", "limit_w", "held")}
    job = SyncJob(**columns, colder=colder)
    answer = SyncJobPlan(
        cluster=cluster,
        workload=scope.workload,
        model=model,
        gpus=gpus.with_columns(
            (1 / pl.col("speed")).alias("time_ms"),
            *(pl.lit(None, pl.Float64).alias(name) for name in ("plan_limit_w", "plan_power_w")),
        ),
        plan=PowerPlan(PlanRefusal.NOT_HELD),
        alone=alone,
        unsteady=int((~own["steady"]).sum()),
        driver=driver,
        since=own["began"].min(),  # type: ignore[arg-type]
        until=own["began"].max(),  # type: ignore[arg-type]
        budget_w=scope.budget_w,
    )
    if not job.at_limit:
        return answer
    beside = _beside(gpus, runs)
    curve = _class_runs(store, scope, gpus, runs.join(beside.filter("slow"), on="gpu", how="anti"))
    noise = _noise(runs, own, curve)
    sd = float("nan") if noise.sd is None else noise.sd / sqrt(noise.days)
    highest_w = float(gpus["highest_w"].fill_null(inf).to_numpy().min())
    plan = plan_power(job, curve, sd, budget_w=scope.budget_w, highest_w=highest_w, seed=scope.seed)
    planned = {"plan_limit_w": plan.limit_w, "plan_power_w": plan.power_w}
    series = [pl.Series(name, values, pl.Float64) for name, values in planned.items() if values is not None]
    return replace(
        answer,
        gpus=answer.gpus.with_columns(series),
        plan=plan,
        exchange=_exchange(gpus, beside, Draws(job, curve, 0.0 if np.isnan(sd) else sd, scope.seed)),
        noise=noise,
        class_gpus=len(curve.speed_shapes),
        class_limits_w=tuple(curve.limits_w.tolist()),
    )


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
    for column, option in (("cluster", "choose one with --cluster"), ("model", "plan for the hosts of one model")):
        several = sorted(str(name) for name in known[column].unique())
        if len(several) > 1:
            raise InputError(f"{scope.hosts} has GPUs of {' and '.join(several)}: {option}")
    if known["model"][0] is None:
        raise InputError(f"the model of the GPUs of {scope.hosts} is not known: run `whorl collect` there once")
    if scope.limit_w is not None:
        known = known.with_columns(pl.lit(float(scope.limit_w)).alias("limit_w"))
    if known["limit_w"].null_count():
        raise InputError(f"the present power limit of the GPUs of {scope.hosts} is not known: give it with --limit")
    return known


def _runs(store: Store, scope: PlanScope, cluster: str | None, model: str) -> pl.DataFrame:
    """The runs of the workload on GPUs of the model, with free clocks: gpu, speed, power_w, cap_w, and more.

    A run's speed is from the mean of its repeats, not their median, which is that of one step of the clock.
    """
    timed = measurements(store, clusters=[cluster] if cluster else [], workloads=[scope.workload], run_ids=True)
    timed = timed.select("run_id", pl.col("gpu").cast(pl.String), "power_w", "sm_clock_mhz", "began")
    times = store.scan("results").filter(pl.col("figure") == "time", pl.col("run_id").is_in(timed["run_id"].implode()))
    timed = timed.join(store.collect(times.group_by("run_id").agg(pl.col("value").mean())), on="run_id")
    conditions = store.scan("runs").select(
        "run_id",
        pl.coalesce(stated("asked_power_limit_w"), stated("power_limit_w")).alias("cap_w"),
        stated("clock").alias("clock"),
        stated("neighbours").alias("neighbours"),
        stated("steady").fill_null(value=True).alias("steady"),
        pl.col("versions").struct.field("driver").alias("driver"),
        (
            pl.col("clock_events").struct.field("power_cap")
            / (pl.col("ended") - pl.col("began")).dt.total_microseconds()
            * 1e6
        ).alias("cap_share"),
    )
    class_gpus = store.sql(
        "select cluster, gpu, model, coalesce(power_limit_default_mw, power_limit_mw) / 1e3 as own_w from gpus_now"
    ).polars()
    class_gpus = class_gpus.filter(pl.col("model") == model, pl.col("cluster").eq_missing(cluster))
    runs = timed.join(store.collect(conditions), on="run_id").join(class_gpus.select("gpu", "own_w"), on="gpu")
    runs = runs.with_columns(pl.coalesce("cap_w", "own_w").alias("cap_w"), (1 / pl.col("value")).alias("speed"))
    return runs.filter(
        pl.col("clock").ne_missing(ClockSetting.LOCKED.value),
        *(pl.col(name) > 0 for name in ("value", "power_w", "cap_w")),
    )


def _present(
    store: Store, scope: PlanScope, gpus: pl.DataFrame, runs: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The job's GPUs with the medians of their runs at the present limit, and these runs.

    Runs with busy and with idle neighbours differ: those count that most GPUs of the job have, busy ones if as many.
    """
    job_runs = runs.join(gpus.select("gpu", "limit_w", "highest_mhz"), on="gpu")
    job_runs = job_runs.filter((pl.col("cap_w") - pl.col("limit_w")).abs() < _SAME_W)
    beside = job_runs.group_by("neighbours").agg(pl.col("gpu").n_unique().alias("gpus"))
    if not beside.is_empty():
        most = beside.sort("gpus", pl.col("neighbours").eq_missing("busy"), descending=True)["neighbours"][0]
        job_runs = job_runs.filter(pl.col("neighbours").eq_missing(most))
    medians = job_runs.group_by("gpu").agg(
        pl.col("speed", "power_w", "cap_share").median(),
        (pl.col("sm_clock_mhz") / pl.col("highest_mhz")).median().alias("clock_share"),
        pl.len().alias("runs"),
    )
    gpus = gpus.join(medians, on="gpu", how="left", maintain_order="left")
    missing = gpus.filter(pl.col("speed").is_null())
    if len(missing):
        limits = " and ".join(f"{limit:g} W" for limit in missing["limit_w"].unique().sort())
        driver = f" by driver {runs['driver'][0]}" if len(runs) and runs["driver"][0] else ""
        names, more = ", ".join(missing["name"][:_LISTED]), len(missing) - _LISTED
        listed = f"{names} and {more} more" if more > 0 else names
        raise InputError(
            f"{listed}: no run of {scope.workload} with its power at the present limit of {limits}{driver}; on "
            f"{compress(missing['node'])} run `{_command(store, scope)}`"
        )
    if gpus.filter(pl.coalesce("clock_share", "cap_share").is_not_null()).is_empty():
        raise InputError(
            f"the clock of the runs of {scope.workload} on {scope.hosts} is not known, so nothing tells whether they "
            f"were at their power limit: run `{_command(store, scope)}` there"
        )
    held = (pl.col("clock_share") < FULL_CLOCK).fill_null(value=False) | (pl.col("cap_share") > 0.5).fill_null(
        value=False
    )
    return gpus.with_columns(held.alias("held")), job_runs


def _class_runs(store: Store, scope: PlanScope, gpus: pl.DataFrame, runs: pl.DataFrame) -> ClassRuns:
    """The medians of each GPU of the class under each limit, of those that ran under two or more."""
    cells = runs.group_by("gpu", pl.col("cap_w").round(0)).agg(pl.col("speed", "power_w").median())
    cells = cells.filter(pl.len().over("gpu") > 1)
    cells = cells.filter(pl.len().over("cap_w") >= FEWEST_GPUS).sort("cap_w", "gpu")
    present_w = gpus["limit_w"].to_numpy()
    lowest_w, highest_w = float(present_w.min()), float(present_w.max())
    limits = cells["cap_w"].unique().sort().to_numpy()
    if not len(limits) or limits[0] > lowest_w - _SAME_W or limits[-1] < highest_w - _SAME_W:
        watts = [f"{round(share * lowest_w / STEP_W) * STEP_W:g}" for share in _CURVE_SHARES]
        command = f"{_command(store, scope)} --power-limit"
        raise InputError(
            f"{gpus['model'][0]}: no curve of {scope.workload} from {watts[-1]} to {highest_w:g} W, which needs "
            f"{FEWEST_GPUS} or more GPUs that ran under several limits; on a node of this model run "
            f"`{command} {watts[0]}`, and the same with {', '.join(watts[1:])}, and without a limit"
        )
    names = cells["gpu"].unique(maintain_order=True).to_list()
    speed, power_w = (np.full((len(names), len(limits)), np.nan) for _ in range(2))
    rows = cells["gpu"].replace_strict({name: row for row, name in enumerate(names)}).to_numpy()
    columns = np.searchsorted(limits, cells["cap_w"].to_numpy())
    speed[rows, columns], power_w[rows, columns] = cells["speed"], cells["power_w"]
    return ClassRuns(limits, speed, power_w)


def _command(store: Store, scope: PlanScope) -> str:
    """What measures the GPUs of a node as warm as in the job."""
    return f"whorl probe run {scope.workload} --store {store.root} --suite full --neighbours busy"


def _noise(runs: pl.DataFrame, own: pl.DataFrame, curve: ClassRuns) -> RunNoise:
    """The noise of a run from repeated runs of GPUs under one limit, or from the class's curve where those are few."""
    groups = runs.group_by("gpu", pl.col("cap_w").round(0)).agg(pl.col("speed").log().var(), pl.len())
    groups = groups.filter(pl.col("len") > 1).with_columns(pl.col("len") - 1)
    freedom = int(groups["len"].sum())
    days = own.group_by("gpu").agg(pl.col("began").dt.date().n_unique())["began"].min()
    fewest: int = days or 1  # type: ignore[assignment]
    if freedom >= _ENOUGH_REPEATS:
        pooled = sqrt(float((groups["speed"] * groups["len"]).sum()) / freedom)
        return RunNoise(pooled, True, groups["gpu"].n_unique(), fewest)
    sd = curve.noise()
    return RunNoise(None if np.isnan(sd) else sd, False, len(curve.speed_shapes), fewest)


def _beside(gpus: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The GPUs of the class at the job's limits: gpu, ratio (speed over the median under that limit), slow (braked)."""
    cells = runs.join(gpus.select(pl.col("limit_w").unique()), how="cross")
    cells = cells.filter((pl.col("cap_w") - pl.col("limit_w")).abs() < _SAME_W)
    cells = cells.group_by("gpu", "limit_w").agg(pl.col("speed").median())
    cells = cells.with_columns((pl.col("speed") / pl.col("speed").median().over("limit_w")).alias("ratio"))
    beside = cells.group_by("gpu").agg(pl.col("ratio").mean()).sort("gpu")
    ratio = beside["ratio"].to_numpy()
    return beside.with_columns(pl.Series("slow", braked(ratio, ratio)))


def _exchange(gpus: pl.DataFrame, beside: pl.DataFrame, draws: Draws) -> Exchange | None:
    """The braked GPUs of the job, and what exchanging them gains; None without any."""
    slow = gpus.join(beside.filter("slow"), on="gpu", how="left", maintain_order="left")["ratio"]
    if slow.null_count() == len(slow):
        return None
    flags = slow.is_not_null().to_numpy()
    usual = beside.filter(~pl.col("slow"))["ratio"].to_numpy()
    gains, median = (draws.gains(draws.exchanged(flags, ratio), draws.present) for ratio in (usual, np.ones(1)))
    return Exchange(
        {gpu: 1 / ratio - 1 for gpu, ratio in zip(gpus["gpu"], slow, strict=True) if ratio is not None},
        StepGains(replace(gains.saved, value=median.saved.value), replace(gains.slower, value=median.slower.value)),
        len(beside),
    )
