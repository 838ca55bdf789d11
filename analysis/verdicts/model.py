"""The model of a fleet: one pass over a cluster's runs, to every figure of every GPU beside its peers.

A figure is a time, a time at its clock (what is left of a time when the clock's part is taken out), or one of
`channels`. Each holds levels and, worked out once when it is asked for, the comparison of all GPUs in them. Verdicts,
fingerprints and explanations are views of one `Model`. `peer_levels` is what is stored with a judgement, so that one
GPU can be explained without judging all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.names import plain_workload
from ...store.schema import LEVELS
from ..runs.measurements import codes, coupled_jobs
from ..runs.probing import Probed, names_of, only, parted
from ..runs.sittings import UNKNOWN, Bools, Floats, Ints, days, groups_median, in_order, latest, step_of
from ..spread.repeats import JOBS_COUPLE, SOME
from ..statistics.ordering import PROBABILITIES, bounds
from ..statistics.repeatability import Moments, icc
from .causes import Evidence
from .compare import LEAST_GPUS, Compared, Fleet, compare, share_tails
from .levels import RELEVANT, Levels, levels
from .states import CHANNELS, WORK, Channel, line
from .verdict import TIME, Gap, NotJudged, PeerLevels

if TYPE_CHECKING:
    from ...store import Store


TIME_AT_CLOCK = "time at its clock"
_SPREAD = 1e-3  # of ln clock: with less there is nothing to take out
_KNOWN = 0.8  # share of the runs with a clock
_COLUMNS = (
    "run_id", "gpu", "model", "workload", "node", "job_id", "began", "value", "sm_clock_mhz", "power_w",
    "temperature_c", "versions", "probe_version",
)  # fmt: skip
"""Of a run, what is compared, and what history looks at."""


@dataclass(frozen=True)
class Figure:
    """One figure of one workload over all GPUs of a model: arrays of shape (gpus,), NaN for a GPU without it."""

    name: str
    """`TIME`, `TIME_AT_CLOCK`, or that of a channel or of another figure of runs."""
    workload: str
    """'' for a channel over all workloads."""
    model: str | None
    levels: Levels
    """On the scale of the comparison: logarithms of what is compared by ratio."""
    fleet: Fleet | None
    """None: all GPUs with the figure are peers, and no GPU is named for it."""
    channel: Channel | None = None
    """None for a time."""
    jobs_share: float | None = None
    """Of what differs between runs of one GPU, the share that the GPUs of a job have in common; None without jobs."""
    gap: NotJudged | None = None
    """Why no GPU, or none for this figure alone, can be named for it."""

    @classmethod
    def of(
        cls, rows: pl.DataFrame, gpus: int, *, fleet: Fleet | None, channel: Channel | None = None, stepped: bool
    ) -> Figure:
        """From the rows of one model and workload: model, workload, gpu_no, at or began, x (on the scale of the
        comparison) and, where a row is of several runs, runs. `stepped`: whether these are times, which may come in
        steps."""
        gpu, x = rows["gpu_no"].to_numpy(), rows["x"].to_numpy()
        at = rows["at"] if "at" in rows.columns else rows.select(days()).to_series()
        of_gpus = levels(gpu, at.to_numpy(), x, gpus, step_of(x) if stepped else 0.0)
        if "runs" in rows.columns:
            runs = np.bincount(gpu, rows["runs"].to_numpy(), minlength=gpus).astype(np.int64)
            of_gpus = replace(of_gpus, runs=runs)
        name, model = TIME if channel is None else channel.name, rows["model"][0]
        return cls(name, str(rows["workload"][0]), model, levels=of_gpus, fleet=fleet, channel=channel)

    @cached_property
    def compared(self) -> Compared | None:
        """The comparison of all GPUs; None with too few of them."""
        if self.fleet is None:
            return None
        if self.channel is None:
            return compare(self.levels, self.fleet)
        return compare(self.levels, self.fleet, self.channel.floor, worse=self.channel.sign)

    @property
    def timed(self) -> bool:
        """Whether it is a time."""
        return self.channel is None

    @property
    def names_gpus(self) -> bool:
        """Whether a GPU can be named for it."""
        return (self.gap is None or self.gap.why is Gap.RUN_ONCE) and self.compared is not None

    @property
    def relevant(self) -> float:
        """The least difference that matters, on the scale of the levels."""
        return RELEVANT if self.channel is None else self.channel.relevant

    @cached_property
    def matters(self) -> Bools:
        """(gpus,) whether the difference is large enough to matter, and of the kind's side."""
        with np.errstate(invalid="ignore"):
            effect = self.effect * (1 if self.channel is None else self.channel.sign)
            large: Bools = (np.abs(effect) if self.channel is None else effect) >= self.relevant
        return large

    @property
    def p(self) -> Floats:
        """(gpus,) the chance that a healthy GPU lies so far out; 1 where no GPU is named."""
        return np.ones(len(self.levels.level)) if self.compared is None else self.compared.p

    @property
    def effect(self) -> Floats:
        """(gpus,) from the level that each GPU is compared with."""
        return self.levels.level - self.centre if self.compared is None else self.compared.effect

    @cached_property
    def centre(self) -> Floats:
        """(gpus,) the level that each GPU is compared with."""
        if self.compared is not None:
            return self.compared.centre
        present = self.levels.known
        return np.where(present, np.median(self.levels.level[present]) if present.any() else np.nan, np.nan)

    @cached_property
    def half(self) -> Floats:
        """(gpus,) half of the 95 % interval of the level in another sitting."""
        return self.levels.half()

    @property
    def peers(self) -> Ints:
        """(gpus,) how many GPUs each was compared with, itself included."""
        if self.compared is not None:
            return self.compared.peers
        return np.where(self.levels.known, int(self.levels.known.sum()), 0)


class Model:
    """The GPUs of a cluster, what they share, and their figures, each worked out when it is first asked for."""

    def __init__(
        self, campaign: Probed, store: Store | None = None, *, evidence: Evidence | None = None,
        now: datetime | None = None,
    ) -> None:  # fmt: skip
        """`campaign`: from `probed`. `store`: telemetry is looked at too. `evidence`: of these runs, where known.

        `now`: runs after it (UTC; the present and an hour where None) are left out.
        """
        self.campaign = campaign
        self.gpus: list[str] = campaign.gpus["gpu"].cast(pl.String).to_list()
        """The keys, in the order of the arrays."""
        self.names: list[str] = list(names_of(campaign.gpus).values())
        self.models: list[str | None] = campaign.gpus["model"].to_list()
        self.place = {gpu: place for place, gpu in enumerate(self.gpus)}
        self.fleet, self.values = Fleet.of(campaign.gpus)
        """What GPUs share, as numbers; and the values that these stand for, by name: nodes are under "node"."""
        self.runs, self.left_out = usable(campaign, now)
        """Those that are compared, with `gpu_no` and `at` (days); and of which runs that is not so."""
        self._store, self._evidence = store, evidence
        self._by_channel: dict[Channel, tuple[Figure, ...]] = {}

    @cached_property
    def evidence(self) -> Evidence:
        """In what state each GPU ran, beside its peers."""
        return self._evidence or Evidence.of(self.campaign, self._store)

    @cached_property
    def times(self) -> tuple[Figure, ...]:
        """The times of each workload and model, whether GPUs can be named for them or not."""
        return tuple(self._time(runs) for runs in self._parts())

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """All figures for which GPUs can be named."""
        figures: list[Figure] = []
        for time, runs in zip(self.times, self._parts(), strict=True):
            if time.names_gpus:
                figures += [time, *self._at_clock(time, runs)]
        if figures:
            judged = (channel for channel in CHANNELS if channel.kind is not None)
            figures += [figure for channel in judged for figure in self.of_channel(channel) if figure.names_gpus]
        share_tails([figure.compared for figure in figures if figure.compared is not None])
        return tuple(figures)

    def of_channel(self, channel: Channel) -> tuple[Figure, ...]:
        """A channel of each workload and model, whether GPUs can be named for it or not."""
        if channel.kind is None:
            return tuple(self._levelled(channel))
        if channel not in self._by_channel:  # verdicts and fingerprints both ask
            self._by_channel[channel] = tuple(self._levelled(channel))
        return self._by_channel[channel]

    def _levelled(self, channel: Channel) -> list[Figure]:
        gpus = len(self.gpus)
        if channel.column is not None:
            return figures_of(self.runs, gpus, channel=channel)
        fleet = None if channel.kind is None else self.fleet
        rows = self.evidence.channels[channel].rename({"value": "x"}).collect()
        by_model = parted(rows, "model", "workload")
        stepped = channel is WORK  # times are in it
        return [Figure.of(rows, gpus, fleet=fleet, channel=channel, stepped=stepped) for _, rows in by_model]

    @property
    def not_judged(self) -> list[NotJudged]:
        """Of which runs and workloads nothing, or not all, can be concluded."""
        return [*self.left_out, *(figure.gap for figure in self.times if figure.gap is not None)]

    def runs_of(self, gpus: Iterable[str]) -> pl.DataFrame:
        """The runs of these GPUs: workload, began, run_id."""
        order, edges = self._runs_by_gpu
        places = [order[edges[place] : edges[place + 1]] for place in (self.place[gpu] for gpu in gpus)]
        return self.runs.select("workload", "began", "run_id")[np.concatenate(places)]

    @cached_property
    def _runs_by_gpu(self) -> tuple[Ints, Ints]:
        """The places of all runs, GPU by GPU, and where those of each GPU begin."""
        gpu, at = (self.runs[name].to_numpy() for name in ("gpu_no", "at"))
        return in_order(gpu, at), bounds(gpu, len(self.gpus))

    def _parts(self) -> Iterator[pl.DataFrame]:
        """The runs of each model and workload, one part at a time: all of a large fleet's are a copy of its runs."""
        unused = ("run_id", "value", "power_w", "temperature_c", "versions")
        return (runs for _, runs in parted(self.runs.drop(unused), "model", "workload"))

    def _time(self, runs: pl.DataFrame) -> Figure:
        time = Figure.of(runs, len(self.gpus), fleet=self.fleet, stepped=True)
        share = jobs_share(runs, time.levels)
        return replace(time, jobs_share=share, gap=self._gap(time, runs["x"].to_numpy(), share))

    def _gap(self, time: Figure, x: Floats, share: float | None) -> NotJudged | None:
        """Why no GPU can be named for these times, or none for them alone; None where one can. `x`: of the runs."""
        of_gpus, workload = time.levels, time.workload
        gap = NotJudged(self.campaign.cluster, workload, Gap.RUN_ONCE)
        gpus = int(of_gpus.known.sum())
        if gpus < LEAST_GPUS:
            several = workload == plain_workload(workload) and len(self.campaign.models) > 1
            of_model = time.model if several else None
            return replace(gap, why=Gap.FEW_GPUS, n=gpus, total=LEAST_GPUS, model=of_model)
        if share is not None and share >= JOBS_COUPLE:
            return replace(gap, why=Gap.JOBS, share=share)
        if of_gpus.repeats is None:
            return gap
        if np.ptp(x) == 0:
            return replace(gap, why=Gap.SAME_TIME, n=len(x))
        if of_gpus.repeats < SOME:
            return replace(gap, why=Gap.NOT_REPEATED, n=gpus, total=len(x), share=of_gpus.repeats)
        return None

    def _at_clock(self, time: Figure, runs: pl.DataFrame) -> Iterator[Figure]:
        """The times of a workload as they would be at the fleet's usual clock, where clocks differ."""
        clock = runs["sm_clock_mhz"].cast(pl.Float64).log().fill_nan(None)
        if clock.null_count() > (1 - _KNOWN) * runs.height:
            return
        on = clock.is_not_null().to_numpy()
        gpu, at, x = (runs[name].to_numpy()[on] for name in ("gpu_no", "at", "x"))
        free = _without_clock(gpu, x, clock.drop_nulls().to_numpy(), len(self.gpus))
        if free is not None:
            at_clock = levels(gpu, at, free, len(self.gpus), step_of(runs["x"].to_numpy()))
            figure = replace(time, name=TIME_AT_CLOCK, levels=at_clock)
            if figure.names_gpus:
                yield figure


def figures_of(
    runs: pl.DataFrame, gpus: int, *, fleet: Fleet | None = None, channel: Channel | None = None
) -> list[Figure]:
    """The times of runs, or a channel of runs, by model and workload: runs with model, workload, gpu_no, began and the
    column of the figure. `gpus`: how many there are. Without a `fleet` all GPUs of a model are peers."""
    needed = ("model", "workload", "gpu_no", "at", "began", column_of(channel))
    of_figure = runs.select(name for name in needed if name in runs.columns)
    parts = parted(scaled(of_figure, channel), "model", "workload")
    return [Figure.of(rows, gpus, fleet=fleet, channel=channel, stepped=channel is None) for _, rows in parts]


def column_of(channel: Channel | None) -> str:
    """The column of `Probed.runs` with a figure of runs; None: the times."""
    return "value" if channel is None or channel.column is None else channel.column


def scaled(runs: pl.DataFrame, channel: Channel | None = None) -> pl.DataFrame:
    """Runs with their times, or a channel of runs, as `x`, on the scale of the comparison; only where it is finite."""
    value = pl.col(column_of(channel)).cast(pl.Float64)
    x = pl.when(value > 0).then(value.log()) if channel is None or channel.log else value
    return only(runs.with_columns(x.alias("x")), pl.col("x").is_finite())


def usable(campaign: Probed, now: datetime | None = None) -> tuple[pl.DataFrame, list[NotJudged]]:
    """The runs that are compared, with the number of their GPU `gpu_no`, `at` (days) and `x` (ln time); and why others
    are left out."""
    until = now or latest()
    until = until.astimezone(UTC).replace(tzinfo=None) if until.tzinfo else until
    runs = campaign.sound.select(_COLUMNS).with_columns(
        pl.Series("gpu_no", codes(campaign.sound["gpu"], campaign.gpus["gpu"].to_list())),
        days().alias("at"),
        pl.col("value").cast(pl.Float64).log().alias("x"),
    )
    ahead = now is None and campaign.simulated  # a simulated clock runs faster: its dates are right
    late = pl.lit(value=False) if ahead else (pl.col("began") > until).fill_null(value=False)
    left_out: list[NotJudged] = []
    for why, bad in ((Gap.NO_TIME, ~pl.col("x").is_finite()), (Gap.FUTURE, late)):
        runs = without(runs, bad, why, cluster=campaign.cluster, left_out=left_out)
    return runs, left_out


def without(runs: pl.DataFrame, bad: pl.Expr, why: Gap, *, cluster: str, left_out: list[NotJudged]) -> pl.DataFrame:
    """`runs` without the bad ones; `left_out` gets how many each workload has of them."""
    if not runs.select(bad.any()).item():
        return runs
    counted = runs.filter(bad).group_by("workload").len().sort("workload")
    left_out += [NotJudged(cluster, str(workload), why, n=n) for workload, n in counted.iter_rows()]
    return runs.filter(~bad)


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
    return icc(Moments.of(jobs["off"].to_numpy(), bounds(number, int(number[-1]) + 1)), "job").value


def _without_clock(gpu: Ints, x: Floats, clock: Floats, gpus: int) -> Floats | None:
    """The log times of runs at the fleet's usual clock, by the robust line of times on clocks over the GPUs."""
    by_gpu = groups_median(clock, gpu, gpus)
    has_clock = np.isfinite(by_gpu)
    spread = 1.4826 * float(np.median(np.abs(by_gpu[has_clock] - np.median(by_gpu[has_clock]))))
    if spread < _SPREAD:
        return None
    fitted = line(by_gpu[has_clock], groups_median(x, gpu, gpus)[has_clock])
    if fitted is None or fitted[0] >= 0:
        return None
    return np.asarray(x - fitted[0] * (clock - float(np.median(by_gpu[has_clock]))))


_DAY_US = 86_400_000_000
_QUANTILES = {f"time_{100 * q:g}_ms": q for q in PROBABILITIES}
"""The columns of `day_levels` with quantiles of times, and which ones these are."""
_RATIOS = ("ratio", "ratio_low", "ratio_high")
_RANKS = ("rank", "rank_low", "rank_high")
_SCHEMA = (
    dict.fromkeys(("workload", "model", "gpu", "figure", "unit"), pl.String())
    | dict.fromkeys(("value", "low", "high", *_RATIOS, "moved", "within_pct"), pl.Float64())
    | dict.fromkeys((*_RANKS, "peers", "n", "sittings", "within_freedom"), pl.Int64())
)


def table(figures: Iterable[Figure], gpus: Sequence[str]) -> pl.DataFrame:
    """One row a figure and GPU that has it: workload, model, gpu, figure, unit, value, low, high, ratio, ratio_low,
    ratio_high (all null where unknown; of a difference, `ratio` is null), rank with rank_low and rank_high (of a rank
    in another sitting, among the peers), peers, n, sittings, moved (variance of its own sittings), and within_pct with
    within_freedom (standard deviation of its runs within sittings and its degrees of freedom)."""
    names = pl.Series(gpus, dtype=pl.String)
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *(_rows(figure, names) for figure in figures)])


def _rows(figure: Figure, gpus: pl.Series) -> pl.DataFrame:
    channel, levels = figure.channel, figure.levels
    ratio = channel is None or channel.log
    on = np.flatnonzero(levels.known)
    x, half, off = levels.level[on], figure.half[on], figure.effect[on]
    strayed = levels.sat.value - levels.level[levels.sat.series]
    moved = np.bincount(levels.sat.series, strayed**2, levels.sat.count) / np.maximum(levels.sittings - 1, 1)
    columns: dict[str, object] = {
        "workload": figure.workload,
        "model": figure.model,
        "gpu": gpus.gather(on),
        "figure": figure.name.replace(" ", "_"),
        "unit": "ms" if channel is None else channel.unit,
        "peers": figure.peers[on],
        "n": levels.runs[on],
        "sittings": levels.sittings[on],
        "moved": np.where(levels.sittings > 1, moved, np.nan)[on],
        "within_pct": 100 * levels.within[on],
        "within_freedom": levels.within_freedom[on],
    }
    for name, of_ratio, side in zip(("value", "low", "high"), _RATIOS, (0, -1, 1), strict=True):
        value, apart = (x + side * half, off + side * half) if side else (x, off)
        columns[name] = np.exp(value) if ratio else value
        columns[of_ratio] = np.exp(apart) if ratio else np.full(len(on), np.nan)
    columns |= zip(_RANKS, _ranks(x, half, figure.centre[on]), strict=True)
    rows = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    if channel is not None and channel.unit == "share":  # a normal interval can reach beyond what a share can be
        rows = rows.with_columns(pl.col("low", "high").clip(0.0, 1.0))
    return rows.select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items())


def _ranks(x: Floats, half: Floats, centre: Floats) -> Floats:
    """(3, gpus) ranks with their ends: a GPU stands behind those of its peers that are faster by more than the 95 %
    interval of such a difference, in which both may be off."""
    ranks = np.full((3, len(x)), np.nan)
    for level in np.unique(centre):
        peers = centre == level
        values, ranked = x[peers], np.sort(x[peers])
        ranks[0, peers] = np.searchsorted(ranked, values) + 1
        if np.isfinite(half[peers]).all():
            reach = np.hypot(half[peers], np.median(half[peers]))
            ranks[1, peers] = np.searchsorted(ranked, values - reach) + 1
            ranks[2, peers] = np.searchsorted(ranked, values + reach, side="right")
    return ranks


def with_peers(rows: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Rows of `table` whose ratios, and what else is named, are null where a GPU is alone: it is like no other one."""
    alone = pl.col("peers") < 2
    return rows.with_columns(pl.when(~alone).then(pl.col(name)).alias(name) for name in (*_RATIOS, *names))


def peer_levels(model: Model) -> PeerLevels:
    """The levels of all times, of workloads that could not be judged too: what is stored with a judgement."""
    rows = with_peers(table(model.times, model.gpus)).with_columns((100 * pl.col("moved").sqrt()).alias("between_pct"))
    rows = rows.rename({"value": "time_ms", "low": "low_ms", "high": "high_ms"}).select(LEVELS.names[3:])
    return PeerLevels(rows, _days(model.times))


def _days(figures: Iterable[Figure]) -> pl.DataFrame:
    """The quantiles of the sittings of each day."""
    kinds: dict[str, pl.DataType] = {"workload": pl.String(), "model": pl.String(), "day": pl.Datetime("us")}
    by_figure = [pl.DataFrame(schema={**kinds, "gpus": pl.Int64(), **dict.fromkeys(_QUANTILES, pl.Float64())})]
    for figure in figures:
        sat = figure.levels.sat
        sittings = pl.DataFrame({"day": np.floor(sat.at), "gpu": sat.series, "value": sat.value + figure.levels.steps})
        by_day = sittings.filter(pl.col("day") > UNKNOWN).group_by("day").agg(
            pl.col("gpu").n_unique().cast(pl.Int64).alias("gpus"),
            *(pl.col("value").quantile(q, "linear").exp().alias(name) for name, q in _QUANTILES.items()),
        )  # fmt: skip
        by_figure.append(
            by_day.select(
                pl.lit(figure.workload, pl.String).alias("workload"), pl.lit(figure.model, pl.String).alias("model"),
                (_DAY_US * pl.col("day").cast(pl.Int64)).cast(pl.Datetime("us")).alias("day"), "gpus", *_QUANTILES,
            )
        )  # fmt: skip
    return pl.concat(by_figure).sort("workload", "model", "day")
