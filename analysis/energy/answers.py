"""What `whorl energy` says: the energy of a store by job, user, account, GPU, node or day, with intervals; whether the
books balance (`reconcile`); and all of it at a glance (`summary`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.instants import date_of_ns, nanoseconds, times_of_ns
from ...store.vocabulary import EventKind
from ..by_number import by_number
from ..engines import HERE, Engine
from .attribute import Kind
from .billing import host_source
from .books import ALL_ENERGY, COSTS, PARTS, REFUSED_FROM, Balance, Booked, EnergyQuestion, add_up, balance, booked
from .carbon import NoFigure
from .idle import IDLE_SOURCES
from .readings import covered, rows_since
from .settings import EnergySettings, find_settings

if TYPE_CHECKING:
    from ...store import Store

SCHEMA = "whorl.energy/1"
RECONCILE_SCHEMA = "whorl.energy.reconcile/1"
METERED = "metered"
"""`kind` of a row of a GPU, a node or a day: all of its energy, whoever used it."""
ROWS = 50_000
"""Rows of a grouping that a summary keeps, the largest first."""
READINGS = 12_000_000
"""Where a summary is asked for no time: no more readings than this, about."""
LENGTHS = {name: timedelta(minutes=minutes) for name, minutes in (
    ("10min", 10), ("1h", 60), ("6h", 360), ("1d", 1440), ("7d", 7 * 1440), ("30d", 30 * 1440)
)}  # fmt: skip
"""Times up to the last reading, by the name that `last` of `summary` has. Where no time is asked for, the longest of
them that has not too many readings."""
ALL = "all"

_MUCH_LESS = 0.8
_ALL_HOSTS = 0.99  # `node_j` is the energy of GPUs and hosts; that of hosts must be known for so much of the GPU time
_MOSTLY = 0.5  # `idle_share` is of GPUs that were seen idle; they must have so much of the energy
_FIGURES = ("energy_j", "low_j", "high_j", "idle_j", "duration_s", "method", "reason", "co2e_g", "cost")
_MORE = (
    "idle_share", "idle_share_low", "idle_share_high", "idle_source",
    "co2e_low_g", "co2e_high_g", "cost_low", "cost_high", "gpu_s", "measured_s", "known_j", "gpus",
    "host_j", "host_source", "host_of_s", "node_j", "node_low_j", "node_high_j",
    "embodied_g", "co2e_reason", "cost_reason", "gpus_no_figure",
)  # fmt: skip
_COVERAGE = ("jobs", "jobs_known")
_OF_JOB = ("user", "account", "state", "began", "ended", "allocations", "scheduler_j")
_ALLOCATIONS = (
    "select cluster, allocation, any_value(job_id) as job_id, any_value(raw_id) as raw_id, any_value(user) as user, "
    "any_value(account) as account, any_value(state) as state, min(began) as began, "
    "case when count(ended) = count(*) then max(ended) end as ended, max(job_energy_j) as scheduler_j "
    "from jobs_now"
)
_EACH = " group by cluster, allocation order by cluster, allocation"


class By(StrEnum):
    """What the rows are of."""

    JOB = "job"
    USER = "user"
    ACCOUNT = "account"
    GPU = "gpu"
    NODE = "node"
    DAY = "day"

    @classmethod
    def _missing_(cls, value: object) -> By:
        raise InputError(f"energy has no rows by {value!r}; there are those by {', '.join(cls)}")

    @property
    def of_people(self) -> bool:
        """Whether rows are of jobs, so that energy of nobody has rows of its own."""
        return self in (By.JOB, By.USER, By.ACCOUNT)

    @property
    def keys(self) -> list[str]:
        """The columns that tell rows apart."""
        name = "job_id" if self is By.JOB else self.value
        return ["cluster", "kind", name] if self.of_people else ["cluster", name]


@dataclass(frozen=True)
class EnergyAnswer:
    """Energy by one of the groupings. `rows` has a row for each, the largest first; `total` is one row of all."""

    by: By
    rows: pl.DataFrame
    total: dict[str, Any]
    booked: Booked
    parts: Mapping[str, dict[str, Any]]
    """By kind (job, idle, unattributed), the row of all energy of that kind, of those that there are."""
    gpus: pl.DataFrame | None = None
    """If one job was asked for: a row for each of its GPUs."""
    others: pl.DataFrame | None = None
    """If one job was asked for: a row for each other job that was on its nodes meanwhile: job_id, user, account, began,
    ended, gpus (of its own, on these nodes), shared (of them, GPUs of the job)."""

    @property
    def beside(self) -> int | None:
        """How many other jobs were on its nodes meanwhile. Schedulers count each node whole."""
        return None if self.others is None else self.others.height


def energy(
    store: Store | str | Path,
    by: str = By.JOB,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    job: str | None = None,
    progress: Callable[[str], None] | None = None,
    engine: Engine = HERE,
) -> EnergyAnswer:
    """The energy of a store's GPUs by job, user, account, GPU, node or day; or of one job, if `job` is given.
    `engine`: where its parts are made.

    Raises InputError for a job or cluster that the store does not know, and where it has no telemetry in that time.
    """
    from ...store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    by = By(by)
    if job is None:
        return answered(opened, by, booked(opened, question, progress=progress, engine=engine))
    jobs = _of_job(opened, job, question.cluster)
    on = jobs["cluster"][0]  # its number is of no other cluster
    if on is not None and not covered(opened, cluster=on).is_empty():
        question = replace(question, cluster=on)
    books = booked(opened, _of_these(opened, jobs, question), progress=progress, engine=engine)
    # A job that had a GPU of which no reading counts keeps it, with its bounds.
    pieces = _with_jobs(books, jobs).filter(pl.col("job_id").is_not_null()).with_columns(pl.lit(True).alias("counts"))
    answer = _answered(opened, by, books, jobs, pieces=pieces, parts=_parts(pieces, books))
    total = _row(pieces if by.of_people else pieces.filter("read"), books)
    return replace(answer, total=total, gpus=_of_gpus(opened, pieces, books), others=_beside(opened, jobs))


def answered(store: Store, by: By, books: Booked) -> EnergyAnswer:
    """What `energy` says of all jobs, from books that are there."""
    jobs = allocations(store)
    pieces = _with_jobs(books, jobs)
    return _answered(store, by, books, jobs, pieces=pieces, parts=_parts(pieces, books))


def _answered(
    store: Store, by: By, books: Booked, jobs: pl.DataFrame, *, pieces: pl.DataFrame, parts: dict[str, dict[str, Any]]
) -> EnergyAnswer:
    """What the books say, from their pieces with jobs."""
    metered = pieces.filter("read")  # a job on GPUs that nobody read is a row of its own, but nothing of it was metered
    rows = _of_people(pieces, by, jobs, books) if by.of_people else _of_things(store, metered, by, books)
    return EnergyAnswer(by, rows, _row(metered, books), books, parts)


def _parts(pieces: pl.DataFrame, books: Booked) -> dict[str, dict[str, Any]]:
    """`EnergyAnswer.parts`."""
    metered = pieces.filter("read", pl.col("counts") | ~pl.col("counts").any())
    return {str(row["kind"]): row for row in _figures(metered, ["kind"], books).iter_rows(named=True)}


def allocations(store: Store, condition: str = "") -> pl.DataFrame:
    """The allocations of a store (of which a `condition` of SQL holds), a row for each: cluster, allocation, job_id,
    raw_id, user, account, state, began, ended (NULL while it runs), scheduler_j."""
    return store.sql(_ALLOCATIONS + condition + _EACH).polars()


def reconcile(
    store: Store,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    progress: Callable[[str], None] | None = None,
    engine: Engine = HERE,
) -> Balance:
    """Hold what was metered against what was given to jobs, to nobody (idle) and to somebody unknown. `engine`: where
    the parts of the books are made.

    Raises InputError where there is no telemetry in that time.
    """
    return balance(store, booked(store, question, progress=progress, engine=engine))


# -- rows -----------------------------------------------------------------------------------------------------


def _with_jobs(books: Booked, jobs: pl.DataFrame) -> pl.DataFrame:
    """The pieces that are not dark, with the day, and the job, user and account of those of jobs."""
    people = jobs.select("cluster", "allocation", "job_id", "user", "account")
    pieces = books.lit.join(people, on=["cluster", "allocation"], how="left", nulls_equal=True, maintain_order="left")
    return pieces.with_columns(pl.col("began").dt.date().alias("day"))


def _row(pieces: pl.DataFrame, books: Booked) -> dict[str, Any]:
    """All pieces as one row; empty where there are none."""
    rows = _figures(pieces.with_columns(pl.lit(ALL).alias(ALL)), [ALL], books).drop(ALL)
    return next(rows.iter_rows(named=True), {})


def _figures(pieces: pl.DataFrame, by: Sequence[str], books: Booked, *, among: pl.Expr | None = None) -> pl.DataFrame:
    """The pieces added up: the columns of `add_up`, `_MORE` and `_COVERAGE`.

    Pieces (`among` these) of GPUs of which no reading counts are in no sum of others: `gpus_no_figure` counts such
    GPUs. No grams and no money of what is no figure, but why. They are as uncertain as the energy: their factors, and
    the energy of the host, are taken as given.
    """
    blind = ~pl.col("counts") & pl.col("counts").any().over(by) & (pl.lit(True) if among is None else among)
    lost = pieces.filter(blind).group_by(by).agg(pl.struct("cluster", "gpu").n_unique().alias("gpus_no_figure"))
    pieces = pieces.filter(~blind)
    gpu_s = pl.col("share") * (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    has_host = pl.col("host_j").is_not_null() | pl.col("gpu").is_null()
    idle_known = pl.col("idle_j").is_not_null() & pl.col("energy_j").is_not_null()
    pieces = pieces.with_columns(
        pl.col("idle_j").fill_null(0.0).alias("_idle_j"),
        pl.when(idle_known).then("energy_j").otherwise(0.0).alias("_seen_j"),
        pl.col("host_j", "host_doubt_j").fill_null(0.0),
        pl.when(has_host).then(gpu_s).otherwise(0.0).alias("host_of_s"),
    )
    bounds = ("idle_low_j", "idle_high_j")
    also = (*COSTS, "_idle_j", "_seen_j", "host_doubt_j", "host_of_s", *bounds)
    rows = add_up(pieces, by, errors=books.errors, also=also)
    codes = pieces.group_by(by).agg(
        *(
            pl.col(name).filter(pl.col(name) != NoFigure.NO_ENERGY.value).max()
            for name in ("carbon_reason", "cost_reason")
        ),
        pl.col("idle_source").max().replace_strict(dict(enumerate(IDLE_SOURCES)), return_dtype=pl.String),
        host_source(pl.col("host_source")).alias("host_source"),
    )
    for columns in (codes, lost, _jobs_known(pieces, by)):
        rows = rows.join(columns, on=by, how="left", nulls_equal=True, maintain_order="left")
    has_figure = pl.col("energy_j").is_not_null()
    mostly = has_figure & (pl.col("_seen_j") > 0) & (pl.col("_seen_j") >= _MOSTLY * pl.col("energy_j"))
    rows = rows.with_columns(
        pl.when(has_figure).then(pl.col("co2e_g", "cost")),
        pl.when(pl.col("gpus").is_not_null()).then(pl.col("embodied_g")),
        pl.when(pl.col("gpus").is_not_null() & (pl.col("host_of_s") > 0)).then(pl.col("host_j")),
        pl.when(mostly).then(pl.col("_idle_j") / pl.col("_seen_j")).alias("idle_share"),
        *(pl.when(has_figure & (pl.col("energy_j") > 0)).then(pl.col(name) / pl.col("energy_j")) for name in bounds),
        pl.col("gpus_no_figure", *_COVERAGE).fill_null(0).cast(pl.Int64),
    )
    host = pl.col("host_j").fill_null(0.0)
    with_host = pl.col("energy_j") + host
    figures = [
        # What was seen idle may be a part of the energy only: the interval, which is of all, holds its share too.
        pl.min_horizontal("idle_low_j", "idle_share").alias("idle_share_low"),
        pl.max_horizontal("idle_high_j", "idle_share").clip(upper_bound=1).alias("idle_share_high"),
    ]
    for end, node, sign in (("energy_j", "node_j", 0), ("low_j", "node_low_j", -1), ("high_j", "node_high_j", 1)):
        of_node = pl.col(end) + pl.col("host_j") + sign * pl.col("host_doubt_j")
        figures.append(pl.when(pl.col("host_of_s") >= _ALL_HOSTS * pl.col("gpu_s")).then(of_node).alias(node))
    for name, low, high, reason in (
        ("co2e_g", "co2e_low_g", "co2e_high_g", "carbon_reason"), ("cost", "cost_low", "cost_high", "cost_reason")
    ):  # fmt: skip
        ends = [
            pl.when(with_host > 0).then(pl.col(name) * (pl.col(end) + host) / with_host) for end in ("low_j", "high_j")
        ]
        figures += [pl.min_horizontal(ends).alias(low), pl.max_horizontal(ends).alias(high)]  # a price may be negative
        none = pl.when(~has_figure).then(pl.lit(NoFigure.NO_ENERGY.value)).otherwise(reason)
        figures.append(pl.when(pl.col(name).is_null()).then(none).alias(f"{name.removesuffix('_g')}_reason"))
    return rows.with_columns(figures).drop("_idle_j", "_seen_j", "host_doubt_j", *bounds, "carbon_reason")


def _jobs_known(pieces: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """How many jobs each group has, and of how many of them it has an honest figure."""
    time_s = pl.col("share") * (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    unknown = pl.col("reason").is_not_null() | pl.col("energy_j").is_null()
    refused = unknown.any() & (time_s.filter(unknown).sum() >= REFUSED_FROM * time_s.sum())
    jobs = pieces.filter(pl.col("job_id").is_not_null())
    jobs = jobs.group_by(list(dict.fromkeys((*by, "cluster", "job_id")))).agg(refused.alias("refused"))
    return jobs.group_by(by).agg(pl.len().alias("jobs"), (~pl.col("refused")).sum().alias("jobs_known"))


def _of_people(pieces: pl.DataFrame, by: By, jobs: pl.DataFrame, books: Booked) -> pl.DataFrame:
    """Rows of jobs, users or accounts; what nobody used stands in rows of its own."""
    rows = _figures(pieces, by.keys, books, among=pl.col("kind") != Kind.JOB.value)
    columns: tuple[str, ...] = _COVERAGE
    if by is By.JOB:
        of_job = _with_runs(jobs).group_by("cluster", "job_id").agg(
            pl.col("user", "account").drop_nulls().last(), pl.col("state").last(), pl.col("began").min(),
            pl.when(pl.col("ended").null_count() == 0).then(pl.col("ended").max()).alias("ended"),
            pl.col("new_run").sum().alias("allocations"),
            pl.when(pl.col("scheduler_j").null_count() == 0).then(pl.col("scheduler_j").sum()).alias("scheduler_j"),
        )  # fmt: skip
        rows = rows.join(of_job, on=["cluster", "job_id"], how="left", nulls_equal=True, maintain_order="left")
        columns = _OF_JOB
    order = pl.col("kind").replace_strict({Kind.JOB: 0, Kind.IDLE: 1, Kind.UNATTRIBUTED: 2}, default=3)
    rows = rows.sort(order, pl.col("known_j"), descending=[False, True], maintain_order=True)
    return rows.select("cluster", by.keys[-1], "kind", *_FIGURES, *_MORE, *columns)


def _with_runs(jobs: pl.DataFrame) -> pl.DataFrame:
    """The allocations in order of time, with whether a run begins: rows of several GPUs at one time are one run."""
    lasts = pl.max_horizontal("began", pl.col("ended").fill_null(times_of_ns(pl.lit(2**62))))
    jobs = jobs.sort("began", maintain_order=True).with_columns(lasts.alias("_until"))
    before = pl.col("_until").cum_max().shift(1).over("cluster", "job_id")
    at_once = (pl.col("began") == pl.col("began").shift(1).over("cluster", "job_id")).fill_null(False)
    return jobs.with_columns(((before.is_null() | (pl.col("began") >= before)) & ~at_once).alias("new_run"))


def _of_things(store: Store, pieces: pl.DataFrame, by: By, books: Booked) -> pl.DataFrame:
    """Rows of GPUs, nodes or days: all of their energy, and its parts."""
    parts = pieces.filter(pl.col("counts") | ~pl.col("counts").any().over(by.keys)).group_by(by.keys).agg(
        pl.col("energy_j").filter(pl.col("kind") == kind).sum().alias(name) for kind, name in PARTS.items()
    )  # fmt: skip
    rows = _figures(pieces, by.keys, books).join(parts, on=by.keys, how="left", nulls_equal=True, maintain_order="left")
    names: tuple[str, ...] = (by.value,)
    if by is By.GPU:
        rows = rows.join(_named(store), on=by.keys, how="left", nulls_equal=True, maintain_order="left")
        names = ("gpu", "name", "node", "model")
    has_figure = pl.col("energy_j").is_not_null()
    rows = rows.with_columns(pl.lit(METERED).alias("kind"), pl.when(has_figure).then(pl.col(*PARTS.values())))
    rows = rows.sort("day", "cluster") if by is By.DAY else rows.sort("known_j", descending=True, maintain_order=True)
    return rows.select("cluster", *names, "kind", *_FIGURES, *_MORE, *PARTS.values(), *_COVERAGE)


def _of_gpus(store: Store, pieces: pl.DataFrame, books: Booked) -> pl.DataFrame:
    """Rows of the GPUs of a job."""
    keys = ["cluster", "job_id", "gpu"]
    rows = _figures(pieces, keys, books)
    rows = rows.join(
        _named(store, rows["gpu"]), on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left"
    )
    share = (pl.col("gpu_s") / pl.col("duration_s")).alias("share")
    rows = rows.select(*keys, "name", "node", "model", share, *_FIGURES, *_MORE)
    return rows.sort("job_id", *by_number("node", "name"), "gpu", nulls_last=True)


def _named(store: Store, gpus: pl.Series | None = None) -> pl.DataFrame:
    """What the store knows of all GPUs, or of some of them."""
    these = "" if gpus is None else f" where gpu in ({', '.join(map(quoted, gpus.unique().to_list())) or 'NULL'})"
    return store.sql(f"select cluster, gpu, name, node, model from gpus_now{these}").polars()


def _of_job(store: Store, job: str, cluster: str | None) -> pl.DataFrame:
    """The allocations of a job: by its number, the number that the job itself sees, or all tasks of an array."""
    number = quoted(job)
    condition = f" where (job_id = {number} or raw_id = {number} or starts_with(job_id, {quoted(f'{job}_')}))"
    if cluster is not None:
        condition += f" and cluster = {quoted(cluster)}"
    jobs = allocations(store, condition)
    if jobs.is_empty():
        of_cluster = "" if cluster is None else f" of cluster {cluster}"
        events = store.scan("events").filter(pl.col("kind") == EventKind.JOB_REFUSED.value, pl.col("job_id") == job)
        refused = store.collect(events.select("detail"))["detail"].to_list()
        if refused:
            raise InputError(f"{store.root}: {refused[0]}")
        jobs = allocations(store)
        clusters = sorted(jobs["cluster"].drop_nulls().unique().to_list())
        if clusters and cluster not in (None, *clusters):
            raise InputError(f"{store.root} has no jobs of cluster {cluster}; it has {', '.join(clusters)}")
        numbers = sorted(jobs["job_id"].drop_nulls().unique().to_list())
        hint = (
            f"it knows {len(numbers):,} jobs, such as {', '.join(numbers[:3])}"
            if numbers
            else "its table jobs is empty: `whorl jobs import` or `whorl import` fills it"
        )
        raise InputError(f"{store.root} knows no job {job}{of_cluster}; {hint}")
    if len(clusters := sorted(jobs["cluster"].drop_nulls().unique())) > 1:
        raise InputError(f"clusters {' and '.join(clusters)} both have a job {job}: choose one with --cluster")
    return jobs


def _beside(store: Store, jobs: pl.DataFrame) -> pl.DataFrame:
    """The other jobs that were on the nodes of these allocations at the same time, as `EnergyAnswer.others`."""
    query = f"""
        select o.job_id, any_value(o.user) as user, any_value(o.account) as account, min(o.began) as began,
            case when count(o.ended) = count(*) then max(o.ended) end as ended, count(distinct o.gpu) as gpus,
            count(distinct o.gpu) filter (o.gpu = j.gpu) as shared
        from jobs_now j join jobs_now o on o.node = j.node and o.cluster is not distinct from j.cluster
            and o.job_id <> j.job_id and o.began < coalesce(j.ended, timestamp '2262-01-01')
            and coalesce(o.ended, timestamp '2262-01-01') > j.began
        where {_these(jobs)} group by o.job_id order by shared desc, began, o.job_id
    """
    return store.sql(query).polars()


def _these(jobs: pl.DataFrame) -> str:
    """SQL: whether a row `j` is of these allocations, all of one cluster."""
    listed = ", ".join(map(quoted, jobs["allocation"].unique().to_list()))
    return f"j.cluster is not distinct from {quoted(jobs['cluster'][0])} and j.allocation in ({listed})"


def _of_these(store: Store, jobs: pl.DataFrame, question: EnergyQuestion) -> EnergyQuestion:
    """The question of the physical GPUs of these allocations (of all, where not all are known) and of their time."""
    since, until = question.since, question.until
    rows = store.sql(
        "select j.cluster, j.gpu, g.parent from jobs_now j left join gpus_now g on g.gpu = j.gpu and g.cluster is not "
        f"distinct from j.cluster where {_these(jobs)}"
    ).polars()
    first, last = jobs["began"].min(), None if jobs["ended"].null_count() else jobs["ended"].max()
    assert first is None or isinstance(first, datetime)
    assert last is None or isinstance(last, datetime)
    if first is not None and last is not None and last <= first:  # it ends when it begins, or before
        first, last = last, first + timedelta(seconds=1)
    since = first if since is None or (first is not None and first > since) else since
    until = last if until is None or (last is not None and last < until) else until
    gpus = None if rows["gpu"].null_count() else rows.select("cluster", pl.coalesce("parent", "gpu")).unique().rows()
    return replace(question, gpus=gpus, since=since, until=until)


# -- at a glance ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnergySummary:
    """The energy of a time, from one reading of the telemetry; small: all of its `booked` are without pieces."""

    answers: Mapping[By, EnergyAnswer]
    """Of each grouping, with the largest `ROWS` rows."""
    n: Mapping[By, int]
    """How many rows there are."""
    balance: Balance
    booked: Booked
    cut: bool
    """Whether the time is shorter than the longest of `LENGTHS`, as that has so many readings."""

    @property
    def ends_ns(self) -> tuple[int, int]:
        """From when to when, ns since 1970."""
        return nanoseconds(self.booked.since), nanoseconds(self.booked.until)

    @property
    def total(self) -> dict[str, Any]:
        """The row of all that was metered; empty where nothing was."""
        return self.answers[By.USER].total

    @property
    def parts(self) -> Mapping[str, dict[str, Any]]:
        """By kind (job, idle, unattributed), the row of all energy of that kind."""
        return self.answers[By.USER].parts


def summary(
    store: Store,
    cluster: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    last: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> EnergySummary:
    """The energy of a store's GPUs from `since_ns` to `until_ns` (ns since 1970, UTC), or over the `last` part of the
    readings: a name of `LENGTHS`, or "all". Without any of these, over the usual time.

    It asks nothing of the network: of carbon, what files have. Raises InputError as `energy`.
    """
    say = progress or (lambda _: None)
    say("looking for telemetry")
    since, until, cut = _usual_time(store, cluster, since_ns, until_ns, last)
    books = booked(store, EnergyQuestion(cluster, since, until, offline(store)), progress=progress)
    say("adding up")
    jobs, small = allocations(store), books.without_pieces
    pieces = _with_jobs(books, jobs)
    parts = _parts(pieces, books)
    answers, n = {}, {}
    for by in By:
        answer = _answered(store, by, books, jobs, pieces=pieces, parts=parts)
        n[by] = answer.rows.height
        answers[by] = replace(answer, rows=_largest(answer), booked=small)
    return EnergySummary(answers, n, replace(balance(store, books), booked=small), small, cut)


def offline(store: Store) -> EnergySettings:
    """The settings of a store, with which no service is asked for hours. Raises InputError."""
    return replace(find_settings(store.root), offline=True)


def _largest(answer: EnergyAnswer) -> pl.DataFrame:
    """The largest rows; what nobody used is always among them."""
    ranked = pl.lit(not answer.by.of_people) | (pl.col("kind") == Kind.JOB.value)
    return pl.concat([answer.rows.filter(ranked).head(ROWS).clone(), answer.rows.filter(~ranked)])


def _usual_time(
    store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None, last: str | None
) -> tuple[datetime | None, datetime | None, bool]:
    """The time to look at (None: from the first reading, up to the last), and whether it is shorter than usual.

    Meters also read an hour before: a shorter time is only taken where it has much fewer readings with that hour.
    """
    until = None if until_ns is None else date_of_ns(until_ns)
    times = covered(store, cluster=cluster)
    if times.is_empty() or last == ALL:
        return None, until, False
    first, end = times["first"].min(), until or times["last"].max()
    assert isinstance(first, datetime)
    assert isinstance(end, datetime)
    if since_ns is not None:
        return max(first, date_of_ns(since_ns)), until, False
    if last is not None:
        if last not in LENGTHS:
            raise InputError(f"last={last} is no time: write last={ALL}, or one of {', '.join(LENGTHS)}")
        return max(first, end - LENGTHS[last]), until, False
    lengths = sorted(LENGTHS.values(), reverse=True)
    begins = [max(first, end - length) for length in lengths]
    counts = rows_since(store, [begin - timedelta(hours=1) for begin in begins], end, cluster=cluster)
    few = max(READINGS, counts[-1] / _MUCH_LESS)
    number = next(number for number, n in enumerate(counts) if n <= few)
    return begins[number], until, begins[number] > begins[0]
