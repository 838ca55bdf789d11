"""Every look at a fleet: each figure of each workload, with the comparison of all GPUs in it.

A look is a time, a time at its clock (what is left of a time when the clock's part is taken out), or one of `channels`.
What cannot be compared is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import polars as pl

from ...store.names import plain_workload
from ..runs.measurements import coupled_jobs
from ..runs.probing import Probed, parted
from ..runs.sittings import Bools, Floats, Ints, days, latest
from ..spread.findings import SOME
from ..spread.repeats import JOBS_COUPLE
from ..statistics.ordering import bounds
from ..statistics.repeatability import Moments, icc
from .causes import Evidence
from .channels import Channel, channels
from .compare import LEAST_GPUS, Compared, Fleet, compare, share_tails
from .levels import RELEVANT, WEEKS, Levels, levels
from .sittings import groups_median, step_of
from .states import codes, line
from .verdict import Gap, NotJudged

_SPREAD = 1e-3  # of ln clock: with less there is nothing to take out
_KNOWN = 0.8  # share of the runs with a clock
_COLUMNS = (
    "run_id", "gpu", "model", "workload", "node", "job_id", "began", "value", "sm_clock_mhz", "probe_version",
)  # fmt: skip
"""Of a run, what is looked at."""


@dataclass(frozen=True)
class Look:
    """One figure of one workload over all GPUs of a model."""

    what: str
    """"time", "time at its clock" or the name of a channel."""
    workload: str
    """'' for a channel over all workloads."""
    model: str | None
    channel: Channel | None
    levels: Levels
    compared: Compared

    @property
    def timed(self) -> bool:
        return self.channel is None

    @property
    def relevant(self) -> float:
        return RELEVANT if self.channel is None else self.channel.relevant

    @cached_property
    def matters(self) -> Bools:
        """(gpus,) whether the difference is large enough to matter, and of the kind's side."""
        with np.errstate(invalid="ignore"):
            effect = self.compared.effect * (1 if self.channel is None else self.channel.sign)
            large: Bools = (np.abs(effect) if self.channel is None else effect) >= self.relevant
        return large


@dataclass
class Looks:
    """All looks at a cluster."""

    campaign: Probed
    evidence: Evidence
    gpus: list[str]
    """The keys, in the order of the arrays."""
    fleet: Fleet
    values: dict[str, list[str]]
    """The values of what GPUs may share, by its name and number; nodes are under "node"."""
    runs: pl.DataFrame
    """Those that are compared, with `gpu_no` and `at` (days)."""
    of: list[Look]
    not_judged: list[NotJudged]


def looks(campaign: Probed, evidence: Evidence) -> Looks:
    """All looks at the GPUs of `campaign`."""
    gpus = [str(gpu) for gpu in campaign.gpus["gpu"]]
    fleet, values = Fleet.of(campaign.gpus)
    runs, said = usable(campaign)
    found = Looks(campaign, evidence, gpus, fleet, values, runs, [], said)
    for (model, workload), some in parted(runs.drop("run_id", "value"), "model", "workload"):
        found.of += _of_times(found, model, str(workload), some)
    if found.of:
        found.of += _of_channels(found)
    share_tails([look.compared for look in found.of])
    return found


def usable(
    campaign: Probed, now: datetime | None = None, columns: Sequence[str] = _COLUMNS
) -> tuple[pl.DataFrame, list[NotJudged]]:
    """The runs that are compared, with the number of their GPU `gpu_no`, `at` (days) and `x` (ln time); and why others
    are left out. `columns`: of the runs."""
    until = now or latest()
    until = until.astimezone(UTC).replace(tzinfo=None) if until.tzinfo else until
    runs = campaign.sound.select(columns).with_columns(
        pl.Series("gpu_no", codes(campaign.sound["gpu"], campaign.gpus["gpu"].to_list())),
        days().alias("at"),
        pl.col("value").cast(pl.Float64).log().alias("x"),
    )
    ahead = now is None and campaign.simulated  # a simulated clock runs faster: its dates are right
    late = pl.lit(value=False) if ahead else (pl.col("began") > until).fill_null(value=False)
    said: list[NotJudged] = []
    for why, bad in (
        (Gap.NO_TIME, ~pl.col("x").is_finite()),
        (Gap.FUTURE, late),
    ):
        runs = without(runs, bad, why, campaign.cluster, said)
    return runs, said


def without(runs: pl.DataFrame, bad: pl.Expr, why: Gap, cluster: str, said: list[NotJudged]) -> pl.DataFrame:
    """`runs` without the bad ones, of whose workloads `said` then says why."""
    if not runs.select(bad.any()).item():
        return runs
    for workload, n in runs.filter(bad).group_by("workload").len().sort("workload").iter_rows():
        said.append(NotJudged(cluster, str(workload), why, n=n))
    return runs.filter(~bad)


def _of_times(all_: Looks, model: str | None, workload: str, runs: pl.DataFrame) -> Iterator[Look]:
    """The looks at a workload's times."""
    gpu, at, x = (runs[name].to_numpy() for name in ("gpu_no", "at", "x"))
    several = workload == plain_workload(workload) and len(all_.campaign.models) > 1

    def no(why: Gap, n: int | None = None, total: int | None = None, *, share: float | None = None) -> None:
        of_model = model if several and why is Gap.FEW_GPUS else None
        all_.not_judged.append(
            NotJudged(all_.campaign.cluster, workload, why, n=n, total=total, share=share, model=of_model)
        )

    many = runs["gpu_no"].n_unique()
    if many < LEAST_GPUS:
        no(Gap.FEW_GPUS, many, LEAST_GPUS)
        return
    step = step_of(x)
    times = levels(gpu, at, x, len(all_.gpus), step)
    together = jobs_share(runs, times)
    if together is not None and together >= JOBS_COUPLE:
        no(Gap.JOBS, share=together)
        return
    if times.repeats is None:
        no(Gap.RUN_ONCE)
    elif np.ptp(x) == 0:
        no(Gap.SAME_TIME, runs.height)
        return
    elif times.repeats < SOME:
        no(Gap.NOT_REPEATED, many, runs.height, share=times.repeats)
        return
    compared = compare(times, all_.fleet, weeks=WEEKS)
    if compared is not None:
        yield Look("time", workload, model, None, times, compared)
    clock = runs["sm_clock_mhz"].cast(pl.Float64).log().fill_nan(None)
    if clock.null_count() > (1 - _KNOWN) * runs.height:
        return
    on = clock.is_not_null().to_numpy()
    free = _without_clock(gpu[on], x[on], clock.drop_nulls().to_numpy(), len(all_.gpus))
    if free is not None:
        at_clock = levels(gpu[on], at[on], free, len(all_.gpus), step)
        compared = compare(at_clock, all_.fleet, weeks=WEEKS)
        if compared is not None:
            yield Look("time at its clock", workload, model, None, at_clock, compared)


def jobs_share(runs: pl.DataFrame, times: Levels) -> float | None:
    """Of what differs between runs of one GPU, the share that the GPUs of a job have in common; None without jobs.

    `runs`: of one workload, as `usable` gives them.
    """
    if runs["job_id"].null_count() == runs.height:
        return None
    of_cluster = runs.with_columns(cluster=pl.lit(""), workload=pl.lit(""))
    jobs = coupled_jobs(of_cluster).with_columns(pl.Series("off", runs["x"].to_numpy() - times.level[runs["gpu_no"]]))
    jobs = jobs.drop_nulls("job_id").sort("job_id")
    if 2 * jobs.height < runs.height:
        return None
    number = jobs["job_id"].rank("dense").cast(pl.Int64).to_numpy() - 1
    found = icc(Moments.of(jobs["off"].to_numpy(), bounds(number, int(number[-1]) + 1)), "job")
    return found.value


def _without_clock(gpu: Ints, x: Floats, clock: Floats, gpus: int) -> Floats | None:
    """The log times of runs at the fleet's usual clock, by the robust line of times on clocks over the GPUs."""
    by_gpu = groups_median(clock, gpu, gpus)
    known = np.isfinite(by_gpu)
    spread = 1.4826 * float(np.median(np.abs(by_gpu[known] - np.median(by_gpu[known]))))
    if spread < _SPREAD:
        return None
    found = line(by_gpu[known], groups_median(x, gpu, gpus)[known])
    if found is None or found[0] >= 0:
        return None
    return np.asarray(x - found[0] * (clock - float(np.median(by_gpu[known]))))


def _of_channels(all_: Looks) -> Iterator[Look]:
    for channel, rows in channels(all_.evidence).items():
        if channel.kind is None:
            continue
        for (model, workload), some in parted(rows, "model", "workload"):
            if some["gpu_no"].n_unique() < LEAST_GPUS:
                continue
            gpu = some["gpu_no"].to_numpy()
            at = some.select(days()).to_series().to_numpy()
            of = levels(gpu, at, some["value"].to_numpy(), len(all_.gpus))
            runs = np.bincount(gpu, some["runs"].to_numpy(), minlength=len(all_.gpus)).astype(np.int64)
            of = replace(of, runs=runs)  # a channel has one figure a sitting
            compared = compare(of, all_.fleet, channel.floor, worse=channel.sign)
            if compared is not None:
                yield Look(channel.name, str(workload), model, channel, of, compared)
