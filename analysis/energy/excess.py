"""What the place of jobs cost: energy and time beyond what the median GPU of the model would have needed.

A GPU that takes e^t times as long for the same work, and e^x times the energy, spent 1 - e^-t of its busy time and
1 - e^-x of its busy energy in excess. What it draws while it waits is compared with that of GPUs without work. Times
that the GPU waited for something else are not in excess: another GPU would have waited too.

Figures are signed: a good GPU has a negative excess, so that chance alone adds up to about 0. A GPU is *shown* to
cost only if its lower end stays above 0 for the largest of so many GPUs.

`fleet_excess` answers for a store: `busy` reads how busy the GPUs of jobs were, `excess` has a row for each job and
GPU, `add_excess` adds rows up, and `waiting` says what slow GPUs cost the others of their jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.instants import in_sql
from ...store.power_sensors import NORMAL_95
from ...store.vocabulary import Code
from ..engines import HERE, Engine
from ..power_classes import Use
from ..power_classes.profiles import LITTLE, MUCH
from ..statistics.ordering import Floats, quantile
from .answers import allocations
from .attribute import Kind
from .boards import POPULATION, BoardErrors
from .books import ALL_ENERGY, Booked, EnergyQuestion, add_up, booked
from .levels import ANY, LEAST, SITTINGS_FREEDOM, STANDS, Measure, fingerprints, identities, levels

if TYPE_CHECKING:
    from ...store import Store

YEAR_S = 365.25 * 86_400
LEAST_FOR_A_YEAR_S = 86_400.0
"""Of less time nobody should say what a year is."""
FALSE = 0.05
"""The chance that any of a fleet's GPUs is shown to cost and does not."""
BUSY = {
    "cluster": pl.String,
    "gpu": pl.String,
    "allocation": pl.String,
    "busy": pl.Float64,  # share of the time with a kernel; NULL where unknown
    "memory": pl.Float64,  # share of the time with memory traffic
    "workload": pl.String,  # what the job ran, where its runs say so; its plain name
}
_GPU = ["cluster", "gpu"]
_GPU_OF_JOB = ["cluster", "gpu", "allocation"]
_AT_ONCE = 256  # GPUs of which telemetry is read together
_FEW = 100  # allocations that are named in a query
_READINGS = 5  # in the time of a job, at least
_COSTS = ("co2e_g", "cost")
_FIGURES = ("energy_j", "low_j", "high_j", "idle_j", "duration_s", "method", "reason", *_COSTS)
_EXCESS = ("excess_j", "excess_s")
_ENDS = ("low", "high", "least", "common")
_SHOWN = (
    "excess_j", "excess_low_j", "excess_high_j", "excess_j_shown", "excess_j_reason", "excess_j_of_s", "excess_s",
    "excess_low_s", "excess_high_s", "excess_s_shown", "excess_s_reason", "excess_s_of_s", "excess_co2e_g",
    "excess_cost", "year_kwh", "year_low_kwh", "year_high_kwh", "year_gpu_h", "year_cost", "year_co2e_g", "jobs",
    "gpus", "runs", "sittings", "compared", "gpu_s", "measured_s",
)  # fmt: skip


class Unknown(Code):
    """Why there is no excess."""

    NO_LEVEL = "no fingerprint", "the GPU was not compared with others of its model: measure it (`whorl campaign`)"
    NO_USE = "no utilisation", "nobody knows how long the GPU was busy: collect `utilization`"
    NO_ENERGY = "no energy", "there is no honest figure of the energy"


class Of(StrEnum):
    """What the rows are of."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"

    @classmethod
    def _missing_(cls, value: object) -> Of:
        raise InputError(f"the excess has no rows by {value!r}; there are those by {', '.join(cls)}")


@dataclass(frozen=True)
class FleetExcess:
    """What the place cost, those that cost most first. `totals` has a row for each cluster."""

    by: Of
    rows: pl.DataFrame
    totals: pl.DataFrame
    booked: Booked
    notes: Sequence[str]


def fleet_excess(
    store: Store,
    by: str = Of.GPU,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    progress: Callable[[str], None] | None = None,
    engine: Engine = HERE,
) -> FleetExcess:
    """What the place of the jobs of a store cost, by GPU, node or job. `engine`: where the parts of the books are made.

    Raises InputError where no GPU was compared with others, and as `booked`.
    """
    say = progress or (lambda _: None)
    say("comparing the GPUs")
    figures, notes = fingerprints(store, question.cluster)
    books = booked(store, question, progress=progress, engine=engine)
    gpus = identities(store)
    standing = levels(figures, gpus, sensor=books.sensor)
    if standing.is_empty():
        raise InputError(
            f"no GPU of {store.root} can be compared: {LEAST} GPUs of one model must be measured in the same work, so "
            "often that it is known what repeats (8 GPUs on two days, or 4 on three): run `whorl campaign`, or import "
            "results, and then again"
        )
    if standing["model"].null_count():
        unnamed = standing.filter(pl.col("model").is_null())["gpu"].n_unique()
        notes.append(
            f"the store does not name the model of {unnamed:,} GPUs: they are compared as if they were of one model "
            "(`whorl import --map COLUMN=model` adds the models)"
        )
    say("reading how busy the GPUs were")
    used = books.lit.filter(pl.col("kind") != Kind.UNATTRIBUTED)
    rows = excess(used, standing, busy(store, used), errors=books.errors)
    by, jobs = Of(by), allocations(store).select("cluster", "allocation", "job_id", "user", "account")
    if by is Of.JOB:
        rows, used = (
            frame.filter(pl.col("kind") == Kind.JOB).join(
                jobs, on=["cluster", "allocation"], how="left", maintain_order="left"
            )
            for frame in (rows, used)
        )
    keys = ["cluster", {Of.GPU: "gpu", Of.NODE: "node", Of.JOB: "job_id"}[by]]
    totals, answer = (_rows(rows, used, columns, books) for columns in (["cluster"], keys))
    beside: list[pl.DataFrame] = []
    before, after = [], []
    if by is Of.JOB:
        beside, before = [jobs.group_by(keys).agg(pl.col("user", "account").drop_nulls().last())], ["user", "account"]
    elif by is Of.GPU:
        held = waiting(rows, answer.filter(pl.col("excess_s_shown")), jobs, used)
        beside, before, after = (
            [held, gpus, verdicts(store)], ["name", "node", "model"], ["held_s", "held_j", "verdicts"]
        )  # fmt: skip
    for frame in beside:
        answer = answer.join(frame, on=keys, how="left", nulls_equal=True)
    return FleetExcess(by, answer.select(*keys, *before, *_FIGURES, *_SHOWN, *after), totals, books, notes)


def _rows(rows: pl.DataFrame, used: pl.DataFrame, keys: list[str], books: Booked) -> pl.DataFrame:
    """The energy and the excess by `keys`, and the excess of a year at the pace of the time that was read."""
    energy = add_up(used, keys, errors=books.errors, also=_COSTS).select(*keys, *_FIGURES, "gpu_s", "measured_s")
    answer = energy.join(add_excess(rows, keys).drop("energy_j", "gpu_s"), on=keys, how="left", nulls_equal=True)
    first, last = books.metered["first"].min(), books.metered["last"].max()
    read_s = (last - first).total_seconds() if isinstance(first, datetime) and isinstance(last, datetime) else 0.0
    years = YEAR_S / read_s if read_s >= LEAST_FOR_A_YEAR_S else None
    yearly = {"year_kwh": ("excess_j", 3.6e6), "year_low_kwh": ("excess_low_j", 3.6e6),
              "year_high_kwh": ("excess_high_j", 3.6e6), "year_gpu_h": ("excess_s", 3600.0),
              "year_cost": ("excess_cost", 1.0), "year_co2e_g": ("excess_co2e_g", 1.0)}  # fmt: skip
    answer = answer.with_columns(
        (pl.col(name) * pl.lit(years, pl.Float64) / unit).alias(column) for column, (name, unit) in yearly.items()
    )
    sure = pl.any_horizontal(pl.col("excess_j_shown", "excess_s_shown").fill_null(value=False))
    return answer.sort(sure, "excess_j", descending=True, nulls_last=True, maintain_order=True)


def verdicts(store: Store) -> pl.DataFrame:
    """What the judge says of each GPU: cluster, gpu, verdicts (kinds of findings, the worst first)."""
    query = "select cluster, unnest(gpus).gpu as gpu, kind, place from verdicts_now where level = 'gpu'"
    rows = store.sql(query).polars().sort("place").group_by(_GPU)
    return rows.agg(pl.col("kind").unique(maintain_order=True).str.join(", ").alias("verdicts"))


# -- how busy -----------------------------------------------------------------------------------------------------


def busy(store: Store, pieces: pl.DataFrame) -> pl.DataFrame:
    """Of each job and GPU of `pieces`: how busy the GPU was, and what ran; columns as `BUSY`."""
    jobs = pieces.filter(pl.col("kind") == Kind.JOB, pl.col("gpu").is_not_null()).select(*_GPU_OF_JOB, "began", "ended")
    jobs = jobs.with_columns(pl.col("began", "ended").dt.timestamp("ns"))
    shares = [pl.DataFrame(schema={**dict.fromkeys(_GPU_OF_JOB, pl.String), "busy": pl.Float64, "memory": pl.Float64})]
    for (cluster,), part in jobs.group_by("cluster", maintain_order=True):
        gpus = part["gpu"].unique().sort().to_list()
        for first in range(0, len(gpus), _AT_ONCE):
            chunk = gpus[first : first + _AT_ONCE]
            shares.append(_shares_of_gpus(store, str(cluster), part.filter(pl.col("gpu").is_in(chunk))))
    ran = _workloads(store, jobs["allocation"].unique())
    return pl.concat(shares).join(ran, on=_GPU_OF_JOB, how="left").select(
        pl.col(name).cast(kind) for name, kind in BUSY.items()
    )  # fmt: skip


def _shares_of_gpus(store: Store, cluster: str, jobs: pl.DataFrame) -> pl.DataFrame:
    """The shares of the time of some GPUs of a cluster: the mean over the readings while the job had the GPU; not of
    jobs with fewer than `_READINGS`."""
    names = ", ".join(map(quoted, jobs["gpu"].unique().sort().to_list()))
    since, until = jobs.select(pl.col("began").min(), pl.col("ended").max()).row(0)
    query = f"""
        select gpu, epoch_ns(ts) as at_ns, n, utilization_mean as busy, memory_utilization_mean as memory from history
        where cluster = {quoted(cluster)} and gpu in ({names}) and utilization_mean is not null
            and ts between {in_sql(since)} and {in_sql(until)}
        order by at_ns
    """
    n, memory = pl.col("n").cast(pl.Float64), pl.col("memory").cast(pl.Float64)
    weights = {"n": n, "used": n * pl.col("busy").cast(pl.Float64), "known": n * memory.is_not_null(),
               "traffic": n * memory.fill_null(0.0)}  # fmt: skip
    upto = {name: of_row.cum_sum().over("gpu") for name, of_row in weights.items()}
    read = store.sql(query).polars().select(pl.col("gpu").cast(pl.String), "at_ns", **upto)
    sums = [  # of the readings before an end
        jobs.with_row_index().sort(end).join_asof(
            read, left_on=end, right_on="at_ns", by="gpu", allow_exact_matches=False, check_sortedness=False
        ).sort("index").select(pl.col(*weights).fill_null(0.0))
        for end in ("began", "ended")
    ]  # fmt: skip
    while_held = jobs.select(_GPU_OF_JOB).with_columns(sums[1][name] - sums[0][name] for name in weights)
    total = while_held.group_by(_GPU_OF_JOB, maintain_order=True).agg(pl.col(*weights).sum())
    return total.filter(pl.col("n") >= _READINGS).select(
        *_GPU_OF_JOB, (pl.col("used") / pl.col("n") / 100).clip(0, 1).alias("busy"),
        pl.when(pl.col("known") >= _READINGS).then(pl.col("traffic") / pl.col("known") / 100).alias("memory"),
    )  # fmt: skip


def _workloads(store: Store, allocations: pl.Series) -> pl.DataFrame:
    """The workload of each job and GPU whose runs are all of one: cluster, gpu, allocation, workload. Where few
    allocations are asked for, only of these."""
    few = allocations.to_list() if len(allocations) <= _FEW else []
    chosen = f"where j.allocation in ({', '.join(map(quoted, few))})" if few else ""
    query = f"""
        select j.cluster, j.gpu, j.allocation, any_value(r.workload) as workload
        from jobs_now j join runs r on r.cluster is not distinct from j.cluster and r.gpu = j.gpu
            and (r.job_id = j.raw_id or r.job_id = j.job_id)
        {chosen} group by all having count(distinct r.workload) = 1
    """
    return store.sql(query).polars().with_columns(pl.all().cast(pl.String))


def use_of(busy_share: float | None, memory_share: float | None) -> str:
    """What a job uses that has kernels and memory traffic for these shares of the time."""
    shares = pl.select(busy=pl.lit(busy_share, pl.Float64), memory=pl.lit(memory_share, pl.Float64))
    return str(shares.select(_USE).item())


_TRAFFIC = 100 * pl.col("memory") / pl.col("busy")  # while the GPU is busy
_USE = (
    pl.when(_TRAFFIC.is_null() | ~_TRAFFIC.is_finite()).then(pl.lit(ANY))
    .when(_TRAFFIC >= MUCH).then(pl.lit(Use.MEMORY.value))
    .when(_TRAFFIC <= LITTLE).then(pl.lit(Use.COMPUTE.value))
    .otherwise(pl.lit(Use.BOTH.value))
)  # fmt: skip


# -- the excess ---------------------------------------------------------------------------------------------------


def excess(
    pieces: pl.DataFrame,
    standing: pl.DataFrame,
    shares: pl.DataFrame,
    *,
    errors: BoardErrors = POPULATION,
    compared: int | None = None,
) -> pl.DataFrame:
    """A row for each allocation and GPU, and for each GPU without a job; `add_excess` adds them up.

    `pieces`: as `attribute.SCHEMA`, with cost, co2e_g and host_j where known. `standing`: of `levels.levels`. `shares`:
    as `BUSY`. `compared`: how many GPUs have levels, where `standing` has only some of them.
    Columns: those of `add_up` by cluster, gpu, node, kind and allocation, and for `excess_j` and `excess_s` (of GPU
    time) the best figure, `_low`, `_high` (95 %), `_least`, `_common`, `_reason`; `basis` (what the level is from).
    """
    costs, hosts = ([name for name in names if name in pieces.columns] for names in (_COSTS, ("host_j",)))
    used = pieces.filter(pl.col("kind") != Kind.UNATTRIBUTED)
    rows = add_up(used, ["cluster", "gpu", "node", "kind", "allocation"], errors=errors, also=[*costs, *hosts])
    rows = rows.join(shares, on=_GPU_OF_JOB, how="left", maintain_order="left").with_columns(_USE.alias("use"))
    gpus = max(1, compared or standing.select(_GPU).unique().height)
    time, energy, idle = (_level(rows, standing, measure) for measure in Measure)
    is_job = (rows["kind"] == Kind.JOB).to_numpy()
    seconds, joules, resting = (rows[name].cast(pl.Float64).to_numpy() for name in ("gpu_s", "energy_j", "idle_j"))
    share = rows["busy"].to_numpy()
    busy_s = np.where(is_job, seconds * share, np.nan)
    # Energy of the busy time: without the power at rest or the share of the time, between two ends.
    has_idle, known_share = np.isfinite(resting), np.nan_to_num(share)
    least = np.where(has_idle, np.clip(joules - resting * (1 - known_share), 0.0, None), joules * known_share)
    most = np.where(has_idle & np.isfinite(share), least, joules)
    waiting_j = np.where(is_job, joules - (least + most) / 2, joules)
    of_waiting = _excess(waiting_j, waiting_j, idle, gpus)
    of_energy = np.where(is_job, _excess(least, most, energy, gpus) + np.nan_to_num(of_waiting), of_waiting)
    # The error of the energy itself widens the interval.
    best, low, high = of_energy[:3]
    width = np.nan_to_num((rows["high_j"] - rows["low_j"]).to_numpy() / 2 / np.where(joules > 0, joules, np.nan))
    away = np.hypot(best - low, best * width), np.hypot(high - best, best * width)
    of_energy[1:3] = best - away[0], best + away[1]
    parts = {"excess_j": of_energy, "excess_s": _excess(busy_s, busy_s, time, gpus)}
    rows = rows.with_columns(
        pl.Series(f"{name}{end}", values, pl.Float64).fill_nan(None)
        for name, ends in parts.items()
        for end, values in zip(("", *(f"_{end}" for end in _ENDS)), ends, strict=True)
    )
    of_job, no_use = pl.col("kind") == Kind.JOB, pl.lit(Unknown.NO_USE.value)
    level = pl.when(of_job).then(energy["x"]).otherwise(idle["x"])
    reason_j = (
        pl.when(pl.col("energy_j").is_null()).then(pl.coalesce("reason", pl.lit(Unknown.NO_ENERGY.value)))
        .when(pl.col("excess_j").is_null() & level.is_null()).then(pl.lit(Unknown.NO_LEVEL.value))
        .when(pl.col("excess_j").is_null()).then(no_use)
    )  # fmt: skip
    reason_s = (
        pl.when(~of_job).then(None).when(pl.col("busy").is_null()).then(no_use)
        .when(pl.col("excess_s").is_null()).then(pl.lit(Unknown.NO_LEVEL.value))
    )  # fmt: skip
    basis = pl.when(of_job).then(pl.coalesce(time["basis"], energy["basis"])).otherwise(pl.lit("idle power"))
    rows = rows.with_columns(
        reason_j.alias("excess_j_reason"), reason_s.alias("excess_s_reason"), basis.alias("basis"),
        *(pl.coalesce(time[name], energy[name], idle[name]).alias(name) for name in ("runs", "sittings")),
        pl.coalesce(time["gpus"], energy["gpus"], idle["gpus"]).alias("compared"),
        time["x"].exp().alias("time_ratio"), energy["x"].exp().alias("energy_ratio"),
    )  # fmt: skip
    models = standing.select(*_GPU, "model").unique(_GPU, keep="any")
    rows = rows.join(models, on=_GPU, how="left", maintain_order="left")
    # Grams and money are of the rest of the node too, which the excess of a GPU is not.
    part = pl.col("excess_j") / pl.sum_horizontal("energy_j", *hosts)
    return rows.with_columns((pl.col(name) * part).alias(f"excess_{name}") for name in costs)


def _level(rows: pl.DataFrame, standing: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """Of each row the level of its GPU in its workload, else in its use, else in any use; a row each, NULL without."""
    columns = ("x", "sd", "reference", "sensor_sd", "freedom", "runs", "sittings", "gpus", "basis")
    levels_of = standing.filter(pl.col("measure") == measure).with_columns(
        pl.coalesce("workload", "use").alias("basis")
    )
    if measure is Measure.IDLE:
        levels_of = levels_of.unique(_GPU, keep="first").with_columns(pl.lit(ANY).alias("use"))
    matched = rows.select(*_GPU, "workload", "use", pl.lit(ANY).alias("any"))
    for name, keyed in (("workload", "workload"), ("use", "use"), ("any", "use")):
        keys = [*_GPU, name]
        of_key = levels_of.drop_nulls(keyed).with_columns(pl.col(keyed).alias(name), pl.struct(columns).alias("level"))
        of_key = of_key.unique(keys, keep="first").select(*keys, pl.col("level").alias(f"of_{name}"))
        matched = matched.join(of_key, on=keys, how="left", maintain_order="left")
    return matched.select(pl.coalesce("of_workload", "of_use", "of_any").alias("level")).unnest("level")


def _excess(least: Floats, most: Floats, level: pl.DataFrame, gpus: int) -> Floats:
    """The excess of an amount between `least` and `most` at a level, (5, rows), NaN where unknown: the best figure, the
    ends of its interval, the lower end for the largest of all GPUs, and of the half width what all GPUs of a model
    share (where the median GPU is)."""
    x, sd, sensor, common = (level[name].to_numpy() for name in ("x", "sd", "sensor_sd", "reference"))
    freedom = np.maximum(level["freedom"].cast(pl.Float64).fill_null(1.0).to_numpy(), 1.0)
    kinds, kind = np.unique(freedom, return_inverse=True)  # of few kinds, and a quantile of each row takes long

    def reach(tail: float) -> Floats:
        return np.asarray(np.hypot(quantile(tail, SITTINGS_FREEDOM) * sd, quantile(tail, kinds)[kind] * sensor))

    def end(x: Floats, pick: np.ufunc) -> Floats:
        return np.asarray(pick(least * -np.expm1(-x), most * -np.expm1(-x)))

    middle, usual = (least + most) / 2, reach(0.025)
    return np.array(
        [
            middle * -np.expm1(-x), end(x - usual, np.minimum), end(x + usual, np.maximum),
            end(x - reach(FALSE / gpus), np.minimum), middle * np.exp(-x) * NORMAL_95 * common,
        ]
    )  # fmt: skip


# -- added up -----------------------------------------------------------------------------------------------------


def add_excess(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The excess added up by the columns `by`, which begin with cluster: `gpus`, `jobs`, `gpu_s`, `energy_j` of the
    rows with an excess, and of `excess_j` and `excess_s` the figure, its 95 % interval (`excess_low_j` to
    `excess_high_j`), and `_of_s` (GPU time that the figure is from).

    The errors of a GPU's jobs are one error; GPUs err apart, but for the median that all are compared with. `shown`:
    only where one GPU is a row.
    """
    by = list(by)
    costs = [f"excess_{name}" for name in _COSTS if f"excess_{name}" in rows.columns]
    ends = [f"{name}_{end}" for name in _EXCESS for end in _ENDS]
    reasons = [f"{name}_reason" for name in _EXCESS]
    boards = rows.group_by([*by, *(name for name in ("gpu", "model") if name not in by)], maintain_order=True).agg(
        *map(_known_sum, (*_EXCESS, *ends, *costs)),
        *(pl.col("gpu_s").filter(pl.col(name).is_not_null()).sum().alias(f"{name}_of_s") for name in _EXCESS),
        pl.col("energy_j").filter(pl.col("excess_j").is_not_null()).sum(), pl.col("gpu_s").sum(),
        pl.col("runs", "sittings", "compared").max(), pl.col(reasons).drop_nulls().mode().sort().first(),
    )  # fmt: skip
    boards = boards.with_columns(
        ((pl.col(f"{name}_{end}") - pl.col(name)) ** 2 - pl.col(f"{name}_common") ** 2).clip(0.0).alias(f"{name}_{end}")
        for name in _EXCESS for end in ("low", "high")
    )  # fmt: skip
    sums = [f"{name}_{end}" for name in _EXCESS for end in ("low", "high", "of_s")] + ["energy_j", "gpu_s"]
    firsts = [*(f"{name}_least" for name in _EXCESS), "runs", "sittings", "compared"]

    def summed(frame: pl.DataFrame, keys: list[str], *extra: pl.Expr) -> pl.DataFrame:
        figures = map(_known_sum, (*_EXCESS, *costs))
        return frame.group_by(keys, maintain_order=True).agg(
            *figures, pl.col(sums).sum(), *extra, pl.col(firsts).first(), pl.col(reasons).drop_nulls().first()
        )

    common = [f"{name}_common" for name in _EXCESS]
    models = summed(
        boards, list(dict.fromkeys([*by, "model"])), pl.col("gpu").count().alias("gpus"), pl.col(common).sum() ** 2
    )
    total = summed(models, by, pl.col("gpus").sum().replace({0: None}), pl.col(common).sum())
    total = total.with_columns(
        *((pl.col(name) + sign * (pl.col(f"{name}_{end}") + pl.col(f"{name}_common")).sqrt()).alias(f"{name}_{end}")
          for name in _EXCESS for end, sign in (("low", -1), ("high", 1))),
        *(pl.when(pl.col("gpus") == 1).then(pl.col(f"{name}_least") > 0).alias(f"{name}_shown") for name in _EXCESS),
        *(pl.when(pl.col(name).is_null()).then(f"{name}_reason").alias(f"{name}_reason") for name in _EXCESS),
    )  # fmt: skip
    jobs = rows.group_by(by).agg(pl.col("allocation").drop_nulls().n_unique().alias("jobs"))
    total = total.join(jobs, on=by, how="left", nulls_equal=True).drop(*common, *firsts[:2])
    return total.rename({f"{name}_{end}": f"excess_{end}_{name[-1]}" for name in _EXCESS for end in ("low", "high")})


def _known_sum(name: str) -> pl.Expr:
    """The sum of what is known; NULL where nothing is."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def waiting(rows: pl.DataFrame, slow: pl.DataFrame, jobs: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """At most how much GPU time and energy of others each slow GPU cost: cluster, gpu, held_s, held_j.

    Nobody knows which jobs work in step, so these are bounds, not best figures: as if all of them did, at the power of
    work while they wait. `rows`: of `excess`. `slow`: cluster, gpu of the GPUs that are surely slow. `jobs`: cluster,
    allocation, job_id. `pieces`: those that `rows` are from.
    """
    times = pieces.filter(pl.col("kind") == Kind.JOB).group_by(_GPU_OF_JOB).agg(
        pl.col("began").min(), pl.col("ended").max()
    )  # fmt: skip
    numbers = jobs.select("cluster", "allocation", "job_id").drop_nulls("job_id")
    parts_of_jobs = rows.filter(pl.col("kind") == Kind.JOB).drop_nulls(["time_ratio", "busy"])
    parts_of_jobs = (
        parts_of_jobs.select(*_GPU_OF_JOB, "time_ratio", "busy", "gpu_s", "energy_j")
        .join(times, on=_GPU_OF_JOB, maintain_order="left")
        .join(numbers, on=["cluster", "allocation"], maintain_order="left")
    )
    culprits = parts_of_jobs.join(slow, on=_GPU, how="semi").sort("time_ratio", descending=True, maintain_order=True)
    culprits = culprits.select("cluster", "job_id", "gpu", "time_ratio", "began", "ended")
    pairs = parts_of_jobs.join(culprits, on=["cluster", "job_id"], suffix="_slow", maintain_order="left_right").filter(
        (pl.col("gpu") != pl.col("gpu_slow")) & (pl.col("time_ratio_slow") > pl.col("time_ratio"))
    )
    ns = (pl.min_horizontal("ended", "ended_slow") - pl.max_horizontal("began", "began_slow")).dt.total_nanoseconds()
    whole_ns = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds()
    slower = 1 - pl.max_horizontal("time_ratio", 1.0) / pl.col("time_ratio_slow")
    part = ns.clip(lower_bound=0) / whole_ns * slower.clip(lower_bound=0)
    # A GPU waits for the slowest GPU of its job only.
    worst = pairs.with_columns(part.alias("part")).sort("part", descending=True, maintain_order=True)
    worst = worst.unique(_GPU_OF_JOB, keep="first", maintain_order=True)
    return worst.group_by("cluster", pl.col("gpu_slow").alias("gpu")).agg(
        (pl.col("part") * pl.col("busy") * pl.col("gpu_s")).sum().alias("held_s"),
        (pl.col("part") * pl.col("energy_j").fill_null(0.0)).sum().alias("held_j"),
    )  # fmt: skip


def job_places(rows: pl.DataFrame, standing: pl.DataFrame) -> pl.DataFrame:
    """A row for each GPU of the jobs in `rows` (of `excess`): `levels.STANDS`, NULL for a GPU that was not compared,
    and its excess with the 95 % interval. `standing`: of `levels.stands`."""
    jobs = rows.filter(pl.col("kind") == Kind.JOB.value, pl.col("gpu").is_not_null())
    places = jobs.select(*_GPU, "basis").unique(_GPU, keep="first", maintain_order=True)
    places = places.join(standing, on=[*_GPU, "basis"], how="left", nulls_equal=True, maintain_order="left")
    figures = [f"excess_{name}" for unit in "sj" for name in (unit, f"low_{unit}", f"high_{unit}", f"{unit}_reason")]
    lost = add_excess(jobs, _GPU).select(*_GPU, *figures)
    return places.select(*STANDS).join(lost, on=_GPU, how="left", nulls_equal=True, maintain_order="left")
