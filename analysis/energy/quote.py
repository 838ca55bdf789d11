"""Quotes: what work would take, in seconds, joules and grams, each with a 95 % interval.

Two kinds of work are quoted. A **workload** before it has run (`quote_workload`, `workload_options`): its runs in the
store say what a GPU draws with it at the default power limit; of a workload that nobody ran, those of its class do
("compute", "memory", "both"). The time is stated: as much work as takes `FutureJob.time_s` on the usual GPU at the
default limit. A **job that ran** (`quote_job`): the same job elsewhere; `one_job` has all that is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.instants import nanoseconds
from ...store.names import plain_workload
from ...store.power_sensors import NORMAL_95, SensorError
from ...store.views import OF_ALL_RUNS
from ..choosing import find
from ..engines import HERE, Engine
from ..power_classes import curve_of_runs, own_runs
from ..statistics.ordering import Floats, quantile, upper_tail
from ..tuning.curve import OwnCurve
from ..tuning.power_plan import Estimate
from .answers import EnergyAnswer, allocations, energy
from .attribute import Kind
from .billing import cuts, priced, rates_between
from .boards import BoardErrors
from .books import ALL_ENERGY, Booked, EnergyQuestion, add_up
from .carbon import number_at
from .excess import add_excess, busy, excess, job_places, use_of, verdicts
from .levels import ANY, CLASSES, SITTINGS_FREEDOM, Measure, identities, main_kinds
from .options import (
    CAPS,
    Ground,
    Option,
    Quote,
    QuotedWork,
    as_it_is,
    caps,
    ground,
    other_models,
    starts,
    usual_gpu,
    with_pareto,
)  # fmt: skip
from .settings import EnergySettings, find_settings

if TYPE_CHECKING:
    from ...store import Store

DEADLINE_S = 86_400.0
SPREAD, SPREAD_GPUS = 0.02, 4
"""How far GPUs of a model are taken to differ in power and in time (standard deviation, as a share), beside those that
were measured: counted as so many further GPUs. Healthy GPUs of a model usually differ by 1 to 3 %."""
REPEATS = 0.01
"""How far the mean power of one GPU in one workload is taken to move from sitting to sitting (standard deviation)."""
CLASS_SPREAD, CLASS_WORKLOADS = 0.3, 2
"""How far workloads of one class are taken to differ in power (standard deviation of ln), beside those that were
measured: counted as so many further workloads."""
_CLASSES = tuple(use for use in CLASSES if use != ANY)
_LONGEST_S, _MOST_GPUS = 30 * 365.25 * 86_400, 100_000
_SUMS = ("co2e_g", "cost", "host_j")


@dataclass(frozen=True)
class Quoted:
    """A job or a workload, and its quotes."""

    job: str | None
    """None of a workload."""
    work: QuotedWork
    quotes: Sequence[Quote]
    settings: EnergySettings
    """What a kWh costs and emits."""
    notes: Sequence[str]
    ends: tuple[datetime | None, datetime | None] = (None, None)
    """From when to when its energy was read, UTC."""
    lost: Mapping[str, Any] | None = None
    """What its GPUs cost beyond the median GPUs of their models, a row of `add_excess`; None where it had none."""
    places: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Where each of its GPUs stands: `excess.job_places`."""


# -- a job that ran -----------------------------------------------------------------------------------------------


def quote_job(
    store: Store,
    job: str,
    answer: EnergyAnswer,
    *,
    deadline_s: float = DEADLINE_S,
    shares: Sequence[float] = CAPS,
    grounds: Callable[[str, SensorError], Ground] | None = None,
) -> Quoted:
    """What a job took, and would have taken on other GPUs, under power caps, and at another hour.

    `answer`: what `answers.energy` says of the job. `deadline_s`: how long from now its end may be away, for the hour.
    `shares` are power caps, as shares of the job's limit. `grounds` gives the ground of a cluster, for callers that
    keep it. Raises InputError where none of its GPUs is known.
    """
    numbers = answer.rows.filter(pl.col("kind") == Kind.JOB).select("cluster", "job_id")
    if numbers.is_empty():
        raise InputError(f"no GPU of job {job} is known in this time: leave --since and --until out")
    place = str(numbers["cluster"][0])
    jobs = allocations(store, f" where job_id in ({', '.join(map(quoted, numbers['job_id'].unique().to_list()))})")
    jobs = jobs.join(numbers, on=["cluster", "job_id"], how="semi", nulls_equal=True)
    pieces = answer.booked.pieces.filter(pl.col("kind") == Kind.JOB)
    pieces = pieces.join(jobs, on=["cluster", "allocation"], how="semi", nulls_equal=True)
    booked = answer.booked
    base = ground(store, place, booked.sensor) if grounds is None else grounds(place, booked.sensor)
    used = busy(store, pieces)
    work = _work_of(pieces, used, base.gpus, place, booked)
    has_gpu = pl.col("gpu").is_in(pieces["gpu"].drop_nulls().unique().implode())
    compared = base.levels.select("cluster", "gpu").unique().height
    rows = excess(pieces, base.levels.filter(has_gpu), used, errors=booked.errors, compared=compared)
    lost = next(iter(add_excess(rows, ["cluster"]).to_dicts()), None)
    itself = None
    if work.workload is not None and len(work.models) == 1:
        runs = own_runs(store, cluster=place, workload=work.workload)
        itself = curve_of_runs(runs.filter(pl.col("model") == work.models[0]))
    at_ns = nanoseconds(datetime.now(UTC))
    quotes = [
        as_it_is(work), *([] if lost is None else [usual_gpu(work, lost)]),
        *other_models(work, base.models, booked.sensor), *caps(work, base, itself, shares=shares),
        *starts(work, booked.settings, at_ns, at_ns + round(deadline_s * 1e9)),
    ]  # fmt: skip
    ends = booked.since, booked.until
    places = job_places(rows, base.stands.filter(has_gpu))
    return Quoted(job, work, with_pareto(quotes), booked.settings, base.notes, ends, lost, places)


def _work_of(
    pieces: pl.DataFrame, used: pl.DataFrame, known_gpus: pl.DataFrame, cluster: str, booked: Booked
) -> QuotedWork:
    """What is known of a job; nothing of its energy where it has no pieces."""
    totals = add_up(pieces, ["cluster"], errors=booked.errors, also=_SUMS).to_dicts()
    total: Mapping[str, Any] = (
        totals[0] if totals else dict.fromkeys(("energy_j", "low_j", "high_j", "idle_j", "method", *_SUMS))
    )
    # Streams of nvidia-smi say the limit beside the power.
    read_w = booked.metered.select("cluster", "gpu", pl.col("limit_w").alias("read_w"))
    gpus = known_gpus.filter(pl.col("gpu").is_in(pieces["gpu"].unique().implode()))
    gpus = gpus.join(read_w, on=["cluster", "gpu"], how="left", maintain_order="left")
    limits = gpus.select(pl.coalesce("limit_w", "read_w")).to_series().drop_nulls()
    # Rows stay in order here and below: a sum in another order ends in other digits.
    seconds = pieces.group_by("cluster", "gpu", "allocation", maintain_order=True).agg(
        (pl.col("share") * (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9).sum().alias("gpu_s")
    )
    read = seconds.join(used, on=["cluster", "gpu", "allocation"], how="left", maintain_order="left")

    def mean(name: str) -> float | None:
        if not read.height or read[name].null_count():
            return None
        return float(read.select((pl.col(name) * pl.col("gpu_s")).sum() / pl.col("gpu_s").sum()).item())

    share, workloads = mean("busy"), read["workload"].unique().to_list()
    ran_s = float(total.get("duration_s") or 0.0)
    ends = [float(total[name]) for name in ("energy_j", "low_j", "high_j") if total[name] is not None]
    return QuotedWork(
        cluster, tuple(sorted(gpus["model"].drop_nulls().unique())), pieces["gpu"].drop_nulls().n_unique(),
        Estimate(ran_s, ran_s, ran_s), float(seconds["gpu_s"].sum()), Estimate(*ends) if len(ends) == 3 else None,
        total["idle_j"], share, use_of(share, None if share is None else mean("memory")),
        workloads[0] if len(workloads) == 1 else None,
        float(limits.mean()) if gpus.height and len(limits) == gpus.height else None,  # type: ignore[arg-type]
        total["co2e_g"], total["cost"], total["method"], total["host_j"] or 0.0,
    )  # fmt: skip


# -- a workload that has not run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FutureJob:
    """Work that has not run."""

    workload: str
    """A name of `runs.workload`; or a class, for work that nobody ran: "compute", "memory" or "both"."""
    gpus: int | Sequence[str] = 1
    """How many GPUs, or which ones: UUIDs, names or places. The work is split equally; the slowest one ends last."""
    cap: float | str | None = None
    """A power cap in W, or as "60%" of the default limit; None: the default limit."""
    hour: datetime | Literal["now", "greenest"] = "now"
    """When it starts: a time with its zone, or the hour before the deadline at which it emits least."""
    time_s: float = 3600.0
    """How long it takes on the usual GPU at the default power limit; it is busy all of that time."""
    model: str | None = None
    """A model of GPU, or a part of its name; not needed where the workload ran on one, or GPUs are named."""
    cluster: str | None = None
    deadline_s: float = DEADLINE_S
    """How long from now its end may be away, for the greenest hour."""


def quote_workload(
    store: Store, job: FutureJob, *, settings: EnergySettings | str | Path | None = None, now: datetime | None = None
) -> Quote:
    """What a workload takes before it has run, on some GPUs, under a cap, from some hour on.

    Raises InputError for a workload of which the store has neither runs at the default limit nor a class, where it is
    not clear on which model or cluster, and for a number of GPUs, a cap or an hour that cannot be.
    """
    stated = find_settings(store.root, settings)
    start_ns = now_ns = nanoseconds(datetime.now(UTC) if now is None else now)
    basis = _Basis.of(store, job, stated)
    if isinstance(job.hour, datetime):
        start_ns = _start_ns(job.hour, now_ns)
    elif job.hour not in ("now", "greenest"):
        raise InputError(f'a start is a time with its zone, "now" or "greenest", not {job.hour!r}')
    work = basis.work(start_ns)
    quote = basis.default(work)
    if job.cap is not None:
        assert work.limit_w
        share = cap_share(job.cap, work.limit_w, basis.least_w)
        [quote] = caps(work, basis.base, basis.itself, shares=(share,))
    if job.hour == "now":
        return replace(quote, start_ns=now_ns)
    assert quote.s is not None
    host_j = work.host_j * quote.s.value / work.s.value
    work = replace(work, s=quote.s, j=quote.j, host_j=host_j)
    # What the hours to come emit is forecast, as the greenest start is.
    lasts_s = job.deadline_s if job.hour == "greenest" else quote.s.value + 1
    best = starts(work, stated, start_ns, start_ns + round(lasts_s * 1e9))[-1]
    if best.g is None:
        return replace(quote, start_ns=start_ns, reason=best.reason if job.hour == "greenest" else None)
    return replace(quote, start_ns=best.start_ns, g=best.g)


def _start_ns(hour: datetime, now_ns: int) -> int:
    if hour.tzinfo is None:
        raise InputError(f"the start {hour:%Y-%m-%d %H:%M} has no time zone: give one, as with tzinfo=UTC")
    start_ns = nanoseconds(hour.astimezone(UTC).replace(tzinfo=None))
    if start_ns < now_ns - 60 * 10**9:
        raise InputError(f"the start {hour:%Y-%m-%d %H:%M %Z} is past: a quote is of work to come")
    return start_ns


def cap_share(cap: float | str, limit_w: float, least_w: float | None = None) -> float:
    """A power cap in W, or as "60%", as a share of the default limit. InputError for one that cannot be set."""
    text = str(cap).strip()
    try:
        watts = float(text[:-1]) / 100 * limit_w if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f'a power cap is in W, as 250, or a share of the limit, as "60%", not {text!r}') from None
    if not 0 < watts <= limit_w * 1.001:
        raise InputError(f"a power cap is above 0 and at most the default limit, {limit_w:.0f} W, not {text}")
    if least_w is not None and watts < least_w * 0.999:
        raise InputError(f"the lowest power limit of these GPUs is {least_w:.0f} W: a cap of {text} cannot be set")
    return watts / limit_w


def workload_options(
    store: Store,
    job: FutureJob,
    *,
    shares: Sequence[float] = CAPS,
    settings: EnergySettings | str | Path | None = None,
    now: datetime | None = None,
) -> Quoted:
    """A workload at the default limit, under the caps `shares`, and at the greenest hour, beside each other.

    Its `cap` and `hour` do not count. Grams and money are those of a start `now` (UTC). Raises as `quote_workload`.
    """
    stated = find_settings(store.root, settings)
    now_ns = nanoseconds(datetime.now(UTC) if now is None else now)
    basis = _Basis.of(store, job, stated)
    work = basis.work(now_ns)
    if len(shares) == 1:  # of many, those that cannot be set are left out
        cap_share(f"{100 * shares[0]:.9g}%", basis.limit_w, basis.least_w)
    shares = [share for share in shares if share * basis.limit_w >= 0.999 * (basis.least_w or 0.0)]
    quotes = [basis.default(work), *caps(work, basis.base, basis.itself, shares=shares)]
    quotes += starts(work, stated, now_ns, now_ns + round(job.deadline_s * 1e9))
    return Quoted(None, work, with_pareto(quotes), stated, basis.notes)


@dataclass(frozen=True)
class _PowerBasis:
    """What work draws at the default limit."""

    watts: Mapping[str, float]
    """By GPU that ran it; of a class alone, the usual power (one entry)."""
    log_sd: float
    """How far the power may be from that of the class (standard deviation of ln); 0 of a workload that ran."""
    source: str
    n: int

    @property
    def usual_w(self) -> float:
        """The mean over the GPUs."""
        return float(np.mean(list(self.watts.values())))

    @classmethod
    def by_runs(cls, defaults: pl.DataFrame, workload: str, errors: BoardErrors) -> _PowerBasis:
        """From runs of the workload at the default limit (`own_runs`), as calibrated boards read it."""
        by_gpu = defaults.group_by("cluster", "gpu").agg((pl.col("energy_j") / pl.col("time_s")).mean().alias("read_w"))
        by_gpu = by_gpu.join(errors.calibrated, on=["cluster", "gpu"], how="left").sort("gpu")
        true_w = pl.col("read_w") * (1 + pl.col("h").fill_null(0.0)) + pl.col("p").fill_null(0.0)
        watts = {str(gpu): power_w for gpu, power_w in by_gpu.select("gpu", true_w).iter_rows()}
        return cls(watts, 0.0, f"{workload} itself", len(watts))

    def sensor_error(self, errors: BoardErrors, cluster: str, gpus: Sequence[str]) -> tuple[float, float]:
        """How far the boards of some GPUs, or of all, read too little together, as a share; and its deviation."""
        watts = [self.watts[gpu] for gpu in gpus] or list(self.watts.values())
        read = pl.DataFrame({"gpu": gpus or list(self.watts), "sensed_j": watts}, schema_overrides={"gpu": pl.String})
        total = errors.added(read.with_columns(cluster=pl.lit(cluster), sensed_s=1.0), []).row(0, named=True)
        return total["error_j"] / sum(watts), math.sqrt(total["board_j2"]) / sum(watts)

    @classmethod
    def by_class(cls, rows: pl.DataFrame, use: str) -> _PowerBasis | None:
        """From the fingerprints of a model's GPUs in the workloads of a use; None where there are none."""
        power = (pl.col("figure") == "power") & pl.col("class").is_in(CLASSES[use])
        works = main_kinds(rows.filter(power)).group_by("plain").agg(pl.col("value").median().log())
        if works.is_empty():
            return None
        x, n = works["value"].to_numpy(), works.height
        squares = float(((x - x.mean()) ** 2).sum()) + CLASS_WORKLOADS * CLASS_SPREAD**2
        log_sd = math.sqrt(squares / (n - 1 + CLASS_WORKLOADS) * (1 + 1 / n))
        return cls({"": math.exp(x.mean())}, log_sd, ", ".join(sorted(works["plain"])), n)


@dataclass(frozen=True)
class _Basis:
    """What the quote of a workload stands on."""

    job: FutureJob
    settings: EnergySettings
    gpus: Sequence[str | None]
    """The key of each GPU; None: any GPU of the model."""
    cluster: str
    model: str
    limit_w: float
    least_w: float | None
    base: Ground
    workload: str | None
    """None of work of which only the class is known."""
    use: str
    drawn: _PowerBasis
    itself: OwnCurve | None
    notes: Sequence[str]

    @classmethod
    def of(cls, store: Store, job: FutureJob, settings: EnergySettings) -> _Basis:
        """Read it; InputError as `quote_workload` says."""
        if not 0 < job.time_s < _LONGEST_S:
            raise InputError(f"a job takes some time below 30 years, not {job.time_s:g} s")
        gpus, model, cluster = _chosen(store, job)
        workload = plain_workload(job.workload)
        runs = own_runs(store, cluster=cluster, workload=workload).filter(pl.col("workload") == workload)
        runs = _of_one_model(runs, model, f"{workload} ran")
        defaults, by_class = runs.filter("at_default"), False
        tuned = f"`whorl tune {workload} --store {store.root} --max-slowdown 5%` measures it"
        if defaults.is_empty() and (by_class := workload in _CLASSES):
            limited = identities(store).drop_nulls(["model", "limit_w"]).rename({"limit_w": "default_w"})
            limited = limited if cluster is None else limited.filter(pl.col("cluster") == cluster)
            defaults = _of_one_model(limited, model, "there are GPUs")
        if defaults.is_empty():
            on_model = f" on {model}" if model else ""
            raise InputError(
                f"{store.root} knows no GPU{on_model} with its model and power limit: run `whorl collect`, or "
                "`whorl campaign`"
                if by_class
                else f"{store.root} has no run of {workload} at the default power limit{on_model}: {tuned}. Of work "
                f"that nobody ran, name the class: {', '.join(_CLASSES)}"
            )
        cluster, model = (str(defaults[0, name]) for name in ("cluster", "model"))
        base, notes, use = ground(store, cluster, settings.sensor), [], workload
        if by_class:
            drawn = _PowerBasis.by_class(base.fingerprints.filter(pl.col("model") == model), use)
            if drawn is None:
                raise InputError(
                    f"{store.root} has no power of {use} work on {model}: run `whorl campaign`, or name a workload "
                    "that ran"
                )
            notes.append(f"the work itself never ran: its power is taken to be like that of {drawn.source} on {model}")
        else:
            drawn = _PowerBasis.by_runs(defaults, workload, base.errors)
            classes = dict(base.models.select("workload", "class").iter_rows())
            use = next((use for use, names in CLASSES.items() if classes.get(workload) in names), ANY)
            if drawn.n == 1:
                notes.append(
                    f"{workload} ran at the default limit on one GPU of {model}: others are taken to differ from it by "
                    f"{100 * SPREAD:.0f} %"
                )
        itself = curve_of_runs(runs)
        if itself is None and not by_class:
            notes.append(
                f"{workload} did not run under enough power limits on {model}, so its caps are from other workloads; "
                f"{tuned}"
            )
        least = "select max(power_limit_min_mw) / 1e3 as least_w from gpus_now where cluster = "
        least_w = store.sql(f"{least}{quoted(cluster)} and model = {quoted(model)}").to_pylist()[0]["least_w"]
        return cls(
            job, settings, gpus, cluster, model, float(defaults[0, "default_w"]), least_w, base,
            None if by_class else workload, use, drawn, itself, notes,
        )  # fmt: skip

    def default(self, work: QuotedWork) -> Quote:
        """The workload at the default limit."""
        quote = as_it_is(work, Option.DEFAULT)
        return replace(quote, choice=f"{self.limit_w:.0f} W", source=self.drawn.source, n=self.drawn.n)

    def work(self, at_ns: int) -> QuotedWork:
        """The workload at the default limit, with a start at a time.

        The interval of its time: how far GPUs differ. That of its energy: in time and power, and the errors of the
        sensors that were read; of a class, also how far its workloads differ.
        """
        n, drawn = len(self.gpus), self.drawn
        fleet = self.base.levels.filter(pl.col("model") == self.model, pl.col("measure") == Measure.TIME)
        fleet_x = self._alike(fleet)["x"].to_numpy()
        time_x, time_sd, power_x, power_sd = np.array([self._gpu(gpu) for gpu in self.gpus]).T
        s = _slowest(time_x, time_sd, fleet_x, self.job.time_s)
        power = np.array(list(drawn.watts.values())) / drawn.usual_w - 1
        spread = math.sqrt((float((power**2).sum()) + SPREAD_GPUS * SPREAD**2) / (len(power) - 1 + SPREAD_GPUS))
        time_spread = math.sqrt((float((fleet_x**2).sum()) + SPREAD_GPUS * SPREAD**2) / (len(fleet_x) + SPREAD_GPUS))
        seconds = self.job.time_s * np.exp(np.nan_to_num(time_x))
        joules = drawn.usual_w * np.exp(np.nan_to_num(power_x)) * seconds
        known_j = float(joules.sum())
        sd = np.hypot(*(np.where(np.isnan(of_gpu), usual, of_gpu)
                        for of_gpu, usual in ((power_sd, spread), (time_sd, time_spread))))  # fmt: skip
        others_j = float(joules[[gpu not in drawn.watts for gpu in self.gpus]].sum())
        variance = float(((joules * sd) ** 2).sum()) + (others_j * spread) ** 2 / len(power)
        half_j = float(quantile(0.025, len(power) - 1 + SPREAD_GPUS)) * math.sqrt(variance)
        off, off_sd = drawn.sensor_error(
            self.base.errors, self.cluster, [gpu for gpu in self.gpus if gpu and gpu in drawn.watts]
        )
        half_j = math.hypot(half_j, NORMAL_95 * off_sd * known_j)
        # GPUs that wait for the slowest draw something between their idle power and that of work.
        waits_s = max(0.0, n * s.value - float(seconds.sum()))
        idle = self.base.models.filter(pl.col("model") == self.model, pl.col("figure") == "idle_power")["value"]
        idle_w, of_class = (idle.to_list() or [0.0])[0], math.exp(NORMAL_95 * drawn.log_sd)
        energy_j = known_j + waits_s * idle_w
        # No work draws less than a GPU without any, or more than the limit.
        least_j = max((energy_j + off * known_j - half_j) / of_class, n * s.low * idle_w)
        most_j = (known_j * (1 + off) + half_j + waits_s * drawn.usual_w) * of_class
        j = Estimate(energy_j, min(energy_j, least_j), max(energy_j, min(most_j, n * s.high * self.limit_w)))
        host_j = (number_at(self.settings, "host_w", self.cluster, at_ns) or 0.0) * n * s.value
        grams, money = _bill(self.settings, self.cluster, at_ns, s.value, (energy_j, host_j))
        return QuotedWork(
            self.cluster, (self.model,), n, s, n * s.value, j, 0.0, 1.0, self.use, self.workload, self.limit_w, grams,
            money, host_j=host_j, load_half=NORMAL_95 * math.hypot(drawn.log_sd, spread / math.sqrt(n)),
        )  # fmt: skip

    def _alike(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of rows of levels those of this workload, else those of its use, else those of any."""
        for column, name in (("workload", self.workload or ""), ("use", self.use), ("use", ANY)):
            if (part := rows.filter(pl.col(column) == name)).height:
                return part
        return rows.clear()

    def _gpu(self, gpu: str | None) -> tuple[float, float, float, float]:
        """Of a GPU ln(time / usual time), its standard deviation, and the same of its power; NaN where unknown."""
        rows = self.base.levels.filter(pl.col("gpu") == (gpu or ""))
        time, joules = (
            self._alike(rows.filter(pl.col("measure") == measure)) for measure in (Measure.TIME, Measure.ENERGY)
        )
        x, sd = (float(time[0, name]) if time.height else math.nan for name in ("x", "sd"))
        if gpu is not None and gpu in self.drawn.watts:
            return x, sd, math.log(self.drawn.watts[gpu] / self.drawn.usual_w), REPEATS
        if not joules.height or math.isnan(x):
            return x, sd, math.nan, math.nan
        return x, sd, float(joules[0, "x"]) - x, math.hypot(float(joules[0, "sd"]), float(joules[0, "sensor_sd"]))


def _chosen(store: Store, job: FutureJob) -> tuple[Sequence[str | None], str | None, str | None]:
    """The keys of the GPUs of a job (None for any), their model or a part of its name, and their cluster."""
    if isinstance(job.gpus, int):
        if job.gpus < 1:
            raise InputError(f"a job has at least one GPU, not {job.gpus}")
        if job.gpus > _MOST_GPUS:
            raise InputError(f"a quote is of at most {_MOST_GPUS:,} GPUs, not {job.gpus:,}")
        return [None] * job.gpus, job.model, job.cluster
    rows = [find(store, name, job.cluster) for name in ([job.gpus] if isinstance(job.gpus, str) else job.gpus)]
    gpus = [str(row["gpu"]) for row in rows]
    models = {(row["model"], row["cluster"]) for row in rows}
    if not rows:
        raise InputError("a job has at least one GPU: give their number, or name them")
    if len(set(gpus)) < len(gpus):
        raise InputError("a GPU is named twice: each GPU of a job counts once")
    if len(models) > 1:
        raise InputError("the GPUs are of several models or clusters: a quote is of GPUs of one model")
    return gpus, *models.pop()


def _of_one_model(rows: pl.DataFrame, model: str | None, fact: str) -> pl.DataFrame:
    """The rows on a model, of that name or else with it in its name; InputError for several."""
    name, lower = (model or "").lower(), pl.col("model").str.to_lowercase()
    exact = rows.filter(lower == name)
    rows = rows.filter(lower.str.contains(name, literal=True)) if exact.is_empty() else exact
    pairs = sorted(rows.select("model", "cluster").unique().rows())
    if len(pairs) > 1:
        places = ", ".join(f"{of_model} in {cluster}" for of_model, cluster in pairs)
        raise InputError(f"{fact} on {places}: choose one with --set model=NAME and --cluster")
    return rows


def _slowest(time_x: Floats, time_sd: Floats, fleet_x: Floats, time_s: float) -> Estimate:
    """When the slowest GPU is ready. `time_x`, `time_sd`: ln of the time of each GPU over the usual one (gpus,), NaN
    for any GPU of the model: one of the fleet, whose levels are `fleet_x`, or of `SPREAD_GPUS` further ones."""
    x = np.linspace(-0.5, 1.5, 20_001)
    has_level = ~np.isnan(time_x)
    share = np.ones(len(x))  # of cases in which the slowest is no slower than that
    for middle, sd in zip(time_x[has_level], time_sd[has_level], strict=True):
        share *= 1 - upper_tail((x - middle) / sd, SITTINGS_FREEDOM)
    further = SPREAD_GPUS * (1 - upper_tail(x / SPREAD, SPREAD_GPUS))
    of_fleet = sum((1 - upper_tail((x - middle) / REPEATS, SITTINGS_FREEDOM) for middle in fleet_x), np.zeros(len(x)))
    share *= ((further + of_fleet) / (SPREAD_GPUS + len(fleet_x))) ** (~has_level).sum()
    value, low, high = time_s * np.exp(np.interp((0.5, 0.025, 0.975), share, x))
    if not has_level.all():  # the GPUs may be alike
        low = min(low, time_s)
    return Estimate(float(value), float(low), float(high))


def _bill(
    settings: EnergySettings, cluster: str, at_ns: int, lasts_s: float, joules: tuple[float, float]
) -> tuple[float | None, float | None]:
    """Grams and money of work with a start at a time: `joules` of its GPUs and of the rest of the nodes."""
    until = at_ns + round(lasts_s * 1e9)
    rates = rates_between(settings, at_ns, until, [cluster])
    bounds = np.array([at_ns, *cuts(rates), until], "datetime64[ns]")
    shares = np.diff(bounds).astype(np.float64) / (lasts_s * 1e9)
    hours = pl.DataFrame({"began": bounds[:-1], "ended": bounds[1:], "energy_j": joules[0] * shares,
                          "measured_host_j": joules[1] * shares})  # fmt: skip
    hours = hours.with_columns(cluster=pl.lit(cluster), gpu=pl.lit(None, pl.String), share=1.0)
    bill = priced(hours, rates, settings)
    grams, money = (None if bill[name].null_count() else float(bill[name].sum()) for name in ("co2e_g", "cost"))
    return grams, money


# -- all that is known of a job ---------------------------------------------------------------------------------------


NO_VERDICT = "none"


@dataclass(frozen=True)
class OneJob:
    """A job. All of its `booked` are without pieces."""

    answer: EnergyAnswer
    elsewhere: Quoted | None
    why_not: str | None
    """Why nothing is known of `elsewhere`, in a sentence."""
    gpus: pl.DataFrame
    """The rows of `answer.gpus`, with the columns of `excess.job_places`, and `verdicts` (kinds of findings; "none"
    where the GPU was judged, NULL where nobody judged it)."""

    @property
    def ends_ns(self) -> tuple[int, int]:
        """From when to when it was metered, ns since 1970."""
        return nanoseconds(self.answer.booked.since), nanoseconds(self.answer.booked.until)


def one_job(
    store: Store,
    job: str,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    progress: Callable[[str], None] | None = None,
    grounds: Callable[[str, SensorError], Ground] | None = None,
    engine: Engine = HERE,
) -> OneJob:
    """What is known of a job, or of all tasks of an array. `grounds`: as `quote` takes it; `engine`: where the parts of
    its energy are made.

    Raises InputError as `answers.energy`.
    """
    answer = energy(store, question=question, job=job, progress=progress, engine=engine)
    elsewhere, why_not = None, None
    try:
        elsewhere = quote_job(store, job, answer, grounds=grounds)
    except InputError as error:
        why_not = str(error)
    small = answer.booked.without_pieces
    gpus = pl.DataFrame() if answer.gpus is None else answer.gpus
    if elsewhere is not None:
        gpus = gpus.join(elsewhere.places, on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    gpus = gpus.join(verdicts(store), on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    clusters = store.sql(f"SELECT DISTINCT cluster FROM judgements WHERE {OF_ALL_RUNS}").polars()["cluster"]
    judged = clusters.cast(pl.String).to_list()
    calm = pl.col("gpu").is_not_null() & pl.col("verdicts").is_null() & pl.col("cluster").is_in(judged)
    gpus = gpus.with_columns(pl.when(calm).then(pl.lit(NO_VERDICT)).otherwise("verdicts").alias("verdicts"))
    return OneJob(replace(answer, booked=small), elsewhere, why_not, gpus)
