"""The books of a store with grams and money: its pieces of energy over a time, what they stand on, how they add up to
figures, and whether the books balance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.instants import date_of_ns, nanoseconds
from ...store.power_sensors import NORMAL_95, SensorError
from ..by_number import by_number
from .attribute import Booking, Kind
from .billing import cuts as rate_cuts
from .billing import factors_used, join_factors, priced, rates_between
from .calibration import POPULATION, BoardErrors, board_errors
from .carbon import NoFigure, changes
from .readings import covered, has_telemetry, meters_of_many, rows_since
from .series import Reason
from .settings import EnergySettings, find_settings, holding

if TYPE_CHECKING:
    from ...store import Store

PARTS = {Kind.JOB: "attributed_j", Kind.IDLE: "idle_time_j", Kind.UNATTRIBUTED: "unattributed_j"}
"""What the energy of each kind is called in rows of GPUs, nodes and days."""
REFUSED_FROM = 0.5
"""A figure is refused where its pieces with a reason have at least this part of its time."""

_SECONDS = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9


def add_up(
    pieces: pl.DataFrame, by: Sequence[str], *, errors: BoardErrors = POPULATION, also: Sequence[str] = ()
) -> pl.DataFrame:
    """The pieces added up by the columns `by`, in order of these.

    Columns: energy_j with the 95 % interval low_j to high_j; idle_j; duration_s (time with at least one piece; times
    that overlap count once); gpu_s (share x time, over all GPUs); measured_s (of it, with readings); method; reason;
    known_j (energy of the pieces that are no mere bounds); gpus (how many are known; NULL where none is); and the sums
    of the columns `also`, NULL where one is. If `energy_j` is NULL, so are low_j, high_j and idle_j, and `reason`
    says why in a code.
    """
    by = list(by)
    known = pl.col("reason").is_null() & pl.col("energy_j").is_not_null()
    boards = pieces.group_by(list(dict.fromkeys([*by, "cluster", "gpu"])), maintain_order=True).agg(
        *(pl.col(name).sum() for name in ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        _sum("energy_j", pl.col("energy_j").filter(known)).fill_null(0.0).alias("known_j"),
        (pl.col("share") * _SECONDS).sum().alias("gpu_s"),
        (pl.col("share") * _SECONDS).filter(~known).sum().alias("unknown_s"),
        pl.col("measured_s").filter(pl.col("method") == "counter").sum().alias("counter_s"),
        _most("reason", ~known).alias("reason"),
        (~known).any().alias("doubtful"),
    )
    keys: list[str | pl.Expr] = [*by] if by else [pl.lit(0).alias("_all")]
    sums = ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s", "known_j", "gpu_s", "unknown_s")
    total = boards.group_by(keys, maintain_order=True).agg(  # a sum in another order ends in other digits
        *(pl.col(name).sum() for name in (*sums, "counter_s")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        pl.col("reason").sort_by("unknown_s", descending=True).drop_nulls().first(),
        pl.struct("cluster", "gpu").filter(pl.col("gpu").is_not_null()).n_unique().replace({0: None}).alias("gpus"),
        pl.col("doubtful").any(),
    )
    total = _with_interval(_joined(total, errors.added(boards, by), by))
    total = _joined(total, _time_with_any(pieces, by), by)
    refused = pl.col("doubtful") & (pl.col("unknown_s") >= REFUSED_FROM * pl.col("gpu_s"))
    refused |= pl.col("energy_j").is_null()
    figures = ("energy_j", "low_j", "high_j", "idle_j")
    return (
        total.with_columns(
            *(pl.when(~refused).then(name).alias(name) for name in figures),
            pl.when(refused).then("reason").alias("reason"),
            pl.when(pl.col("measured_s") > 0)
            .then(
                pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s"))
                .then(pl.lit("counter"))
                .otherwise(pl.lit("power"))
            )
            .alias("method"),
        )
        .select(*by, *figures, "duration_s", "method", "reason", "gpu_s", "measured_s", "known_j", "gpus", *also)
        .sort(by, nulls_last=True)
    )


def _sum(name: str, values: pl.Expr | None = None) -> pl.Expr:
    """The sum of a column, NULL where a value is: a sum without it would be too small."""
    column = pl.col(name) if values is None else values
    return pl.when(column.null_count() == 0).then(column.sum()).alias(name)


def _most(name: str, of: pl.Expr) -> pl.Expr:
    """The value of a column that has most of the time, among the rows `of`."""
    return (
        pl.col(name).filter(of).sort_by((pl.col("share") * _SECONDS).filter(of), descending=True).drop_nulls().first()
    )


def _joined(total: pl.DataFrame, more: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """The columns of `more` beside those of `total`; without `by`, both are one row."""
    if not by:
        return pl.concat([total, more], how="horizontal")
    return total.join(more, on=by, how="left", nulls_equal=True, maintain_order="left")


def _with_interval(total: pl.DataFrame) -> pl.DataFrame:
    half = NORMAL_95 * (pl.col("board_j2") + pl.col("variance_j2")).sqrt()
    lower, upper = ((pl.col("error_j") + end) for end in (-half, half))
    return total.with_columns(
        (pl.col("energy_j") + lower.clip(upper_bound=0) - pl.col("below_j")).clip(lower_bound=0).alias("low_j"),
        (pl.col("energy_j") + upper.clip(lower_bound=0) + pl.col("above_j")).alias("high_j"),
    )


def _time_with_any(pieces: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """`duration_s` of each group: the length of the union of its pieces' times."""
    order = pieces.select(*by, "began", "ended").sort(*by, "began", "ended")
    before = pl.col("ended").cum_max().shift(1)
    latest = before.over(by) if by else before
    fresh = pl.col("ended") - pl.max_horizontal("began", latest)
    order = order.with_columns((fresh.dt.total_nanoseconds() / 1e9).clip(lower_bound=0).alias("duration_s"))
    return order.group_by(by).agg(pl.col("duration_s").sum()) if by else order.select(pl.col("duration_s").sum())


COSTS = ("co2e_g", "cost", "embodied_g", "host_j")
"""Sums beside the energy: grams of it, money, grams of making the boards, and energy of the rest of the nodes."""

_DAY_NS = 86_400_000_000_000
_KEYS = ["cluster", "gpu"]
_LAST_NS = 9_214_646_400 * 10**9  # 2262-01-01: a store can hold little more, and what is around must fit as well
AROUND, _AROUND_FEW_NS = timedelta(hours=1), _DAY_NS
"""So much before and after is read too, so that windows have no open ends and what a GPU draws without work is known.
More of it where only some GPUs are read."""


@dataclass(frozen=True)
class Facts:
    """What is said of all pieces of a time together."""

    dark_s: float
    has_jobs: bool
    carbon_reason: str | None
    """Code of `NoFigure`: what the settings lack for the grams of most pieces without grams; None where of none."""
    cost_reason: str | None
    zones_without_factor: Mapping[str, Collection[str]]
    """By cluster."""


@dataclass(frozen=True)
class Booked:
    """All pieces of a time, and what they stand on."""

    pieces: pl.DataFrame
    """Columns of `attribute.PIECES` and `billing.PRICED`."""
    metered: pl.DataFrame
    """A row for each GPU with readings: `attribute.METERED`."""
    problems: pl.DataFrame
    """What is wrong with readings and jobs: a row for each."""
    factors: pl.DataFrame
    """What the grams stand on: a row for each source, with its year."""
    settings: EnergySettings
    sensor: SensorError
    errors: BoardErrors
    since: datetime
    until: datetime
    told: Facts | None = None
    """`facts`, where the pieces are no longer there."""

    @property
    def dark(self) -> pl.DataFrame:
        """Times for which nobody had the GPU and nobody read it: nothing is said of them.

        A GPU that has no other times is not among them: its rows say why it has no energy.
        """
        other = self.pieces.filter(~_DARK).select(_KEYS).unique()
        return self.pieces.filter(_DARK).join(other, on=_KEYS, how="semi", nulls_equal=True)

    @property
    def lit(self) -> pl.DataFrame:
        """All other pieces."""
        other = self.pieces.filter(~_DARK)
        rest = self.pieces.filter(_DARK).join(other.select(_KEYS).unique(), on=_KEYS, how="anti", nulls_equal=True)
        return pl.concat([other, rest], rechunk=False)

    @cached_property
    def counted(self) -> pl.DataFrame:
        """Of `lit`, the pieces of GPUs that were read: what was metered."""
        return self.lit.join(self.metered.select(_KEYS), on=_KEYS, how="semi", nulls_equal=True)

    @cached_property
    def facts(self) -> Facts:
        """What is said of all pieces together."""
        if self.told is not None:
            return self.told
        lasted = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
        lacking = self.pieces.filter(pl.col("carbon_reason") == NoFigure.NO_FACTOR.value)
        zones = {}
        for (name,), rows in lacking.group_by("cluster"):
            began = rows["began"].dt.epoch("ns").to_numpy()
            starts = changes(self.settings, int(began.min()), int(began.max()) + 1)
            lacked = {starts[step] for step in np.searchsorted(starts, began, "right") - 1}
            places = (holding(self.settings.zones, str(name), start) for start in lacked)
            zones[str(name)] = {str(place.value) for place in places if place is not None}
        reasons = {}
        for what in ("carbon_reason", "cost_reason"):
            why = self.counted[what].drop_nulls().value_counts(sort=True)[what]
            reasons[what] = next((str(code) for code in why if code != NoFigure.NO_ENERGY), None)
        dark_s = float(self.dark.select((pl.col("share") * lasted).sum()).item() or 0.0)
        has_jobs = bool((self.pieces["kind"] == Kind.JOB.value).any())
        return Facts(dark_s, has_jobs, reasons["carbon_reason"], reasons["cost_reason"], zones)

    @property
    def without_pieces(self) -> Booked:
        """The same, small: with what was said of the pieces, and without them."""
        return replace(self, pieces=self.pieces.clear(), told=self.facts)

    def zones_without_factor(self, cluster: str | None = None) -> list[str]:
        """The zones that the settings name and of which nothing says what a kWh emits, of one cluster or of all."""
        of = self.facts.zones_without_factor
        return sorted({zone for name, zones in of.items() if cluster in (None, name) for zone in zones})

    @property
    def has_jobs(self) -> bool:
        """Whether any job is known in this time."""
        return self.facts.has_jobs

    @property
    def dark_s(self) -> float:
        """How much GPU time is `dark`."""
        return self.facts.dark_s


_NOT_READ = pl.col("reason").is_in([Reason.NO_TELEMETRY.value, Reason.GAPS.value]).fill_null(False)
_DARK = (pl.col("kind") != Kind.JOB.value) & _NOT_READ


def booked(
    store: Store,
    *,
    cluster: str | None = None,
    gpus: Collection[tuple[str, str]] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    settings: EnergySettings | str | Path | None = None,
    by_day: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Booked:
    """The pieces of the store's GPUs, or of some of them, from `since` to `until` (UTC, without zone).

    With `by_day` they are cut at midnight, UTC. `settings` is a file; None: `energy.toml` of the store, if it is there.
    Raises InputError where there is no telemetry in that time, and for settings that cannot be used.
    """
    (found,) = _booked(
        store, (by_day,), cluster=cluster, gpus=gpus, since=since, until=until, settings=settings, progress=progress
    )
    return found


def booked_both(
    store: Store,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    settings: EnergySettings | str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Booked, Booked]:
    """As `booked`, whole and by day, from one reading of the telemetry."""
    whole, by_day = _booked(
        store, (False, True), cluster=cluster, gpus=None, since=since, until=until, settings=settings, progress=progress
    )
    return whole, by_day


def _booked(
    store: Store,
    by_day: Sequence[bool],
    *,
    cluster: str | None,
    gpus: Collection[tuple[str, str]] | None,
    since: datetime | None,
    until: datetime | None,
    settings: EnergySettings | str | Path | None,
    progress: Callable[[str], None] | None,
) -> list[Booked]:
    """For each of `by_day`, the pieces cut so."""
    stated = find_settings(store.root, settings)
    first, last, clusters = _covered(store, cluster, since, until)
    rates = rates_between(stated, first, last, clusters)
    cuts = [rate_cuts(rates)]
    days = np.arange(first // _DAY_NS + 1, -(-last // _DAY_NS)) * _DAY_NS  # the midnights within
    models = _models(store) if stated.embodied else None
    errors = board_errors(store, stated.sensor)
    bills: dict[tuple[int, ...], _Bill] = {}
    every = [tuple(np.unique(np.concatenate([*cuts, *([days] if cut else [])])).tolist()) for cut in by_day]
    for own in dict.fromkeys(every):  # without a midnight in that time, both are the same
        booking = Booking(store, cuts=own, since_ns=first, until_ns=last, cluster=cluster, gpus=gpus)
        bills[own] = _Bill(booking, stated, rates, models, errors)
    around = AROUND // timedelta(microseconds=1) * 1000 if gpus is None else _AROUND_FEW_NS
    read = meters_of_many(
        store, cluster=cluster, gpus=gpus, since_ns=first - around, until_ns=last + around, progress=progress
    )
    for some in read:
        true = some.calibrated(errors.calibrated)
        for one in bills.values():
            one.take(one.booking.add(true))
    for one in bills.values():
        one.take(one.booking.rest())
    found = {
        own: one.booked(date_of_ns(first), date_of_ns(last)) for own, one in bills.items() if any(map(len, one.pieces))
    }
    if not found:
        if sum(rows_since(store, [date_of_ns(first)], date_of_ns(last + 1000), cluster=cluster)):
            raise InputError(
                f"{store.root} has one reading of each GPU from {date_of_ns(first):%Y-%m-%d %H:%M} to "
                f"{date_of_ns(last):%Y-%m-%d %H:%M} UTC: energy needs two, so read for longer, or choose a longer time"
            )
        raise InputError(
            f"{store.root} has neither telemetry nor jobs from {date_of_ns(first):%Y-%m-%d %H:%M} to "
            f"{date_of_ns(last):%Y-%m-%d %H:%M} UTC: choose another time with --since and --until, or leave these out"
        )
    return [found[own] for own in every]


class _Bill:
    """The pieces of a booking as they come, each with its grams and money."""

    def __init__(
        self,
        booking: Booking,
        stated: EnergySettings,
        rates: pl.DataFrame,
        models: pl.DataFrame | None,
        errors: BoardErrors,
    ) -> None:
        self.booking, self.pieces, self._errors = booking, list[pl.DataFrame](), errors
        self._stated, self._rates, self._models = stated, rates, models
        self._used: list[pl.DataFrame] = []

    def take(self, parts: Iterable[pl.DataFrame]) -> None:
        for part in parts:
            self.pieces.append(priced(part, self._rates, self._stated, self._models))
            self._used.append(factors_used(self.pieces[-1], self._rates))

    def booked(self, since: datetime, until: datetime) -> Booked:
        return Booked(
            pl.concat(self.pieces, rechunk=False), self.booking.metered, self.booking.problems,
            join_factors(self._used), self._stated, self._stated.sensor, self._errors, since, until,
        )  # fmt: skip


def _models(store: Store) -> pl.DataFrame:
    return store.sql("select cluster, gpu, model from gpus_now where model is not null").polars()


def _covered(
    store: Store, cluster: str | None, since: datetime | None, until: datetime | None
) -> tuple[int, int, Sequence[str]]:
    """The time that is looked at, ns: what was asked for, else what the telemetry covers; and the clusters."""
    if cluster and since is not None and until is not None and until > since and has_telemetry(store, cluster):
        return _counted(nanoseconds(since)), _counted(nanoseconds(until)), [cluster]
    found = covered(store, cluster=cluster)
    of = "" if cluster is None else f" of cluster {cluster}"
    if found.is_empty():
        clusters = [] if cluster is None else covered(store)["cluster"].drop_nulls().to_list()
        if clusters:
            raise InputError(f"{store.root} has no telemetry of cluster {cluster}; it has {', '.join(clusters)}")
        raise InputError(f"{store.root} has no telemetry{of}: `whorl collect` or `whorl import` adds some")
    first, last = int(found["first"].dt.epoch("ns").min()), int(found["last"].dt.epoch("ns").max())  # type: ignore[arg-type]
    began = _counted(first if since is None else nanoseconds(since))
    ended = _counted(last if until is None else nanoseconds(until))
    if ended <= began:
        raise InputError(
            f"{store.root} has no telemetry{of} in this time: it has some from {date_of_ns(first):%Y-%m-%d %H:%M} to "
            f"{date_of_ns(last):%Y-%m-%d %H:%M} UTC"
        )
    jobs = store.scan("jobs").select("cluster").unique() if cluster is None else None
    others = [] if jobs is None else store.collect(jobs)["cluster"].to_list()
    return began, ended, sorted({one for one in (*found["cluster"], *others) if one is not None})


def _counted(at_ns: int) -> int:
    """An instant, or the last that is counted: readings by a clock that is centuries ahead lie after it."""
    return min(at_ns, _LAST_NS)


CLOSE = 1e-9
"""The books balance if attributed + idle + unattributed is metered to within this part of it."""


@dataclass(frozen=True)
class Balance:
    """Of each GPU, where its metered energy went (`gpus`), and what is wrong (`problems`)."""

    gpus: pl.DataFrame
    """cluster, gpu, name, node, model, first, last; metered_j, attributed_j, idle_time_j, unattributed_j, difference_j
    (NULL with a reason where the GPU has no honest reading); gaps_j and gaps_s (of what was metered: without readings);
    not_read_j and not_read_s (beside it: neither readings nor a job; the energy is a guess); idle_w
    with its interval (idle_low_w, idle_high_w) and what it is known from (idle_source, a code of `IdleSource`);
    power_source (what gave the energy, a code of `PowerSource`); limit_w, problems (how many)."""
    problems: pl.DataFrame
    booked: Booked

    @property
    def balances(self) -> bool:
        """Whether the parts of every GPU add up to what was metered."""
        return bool((self.gpus["difference_j"].abs() <= CLOSE * self.gpus["metered_j"].abs() + CLOSE).all())


def held(store: Store, found: Booked) -> Balance:
    """What `reconcile` says, from books that are there."""
    lasted = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    dark = found.dark.group_by(_KEYS, maintain_order=True).agg(
        pl.col("energy_j").sum().alias("not_read_j"), (pl.col("share") * lasted).sum().alias("not_read_s")
    )
    parts = found.lit.group_by(_KEYS, maintain_order=True).agg(
        *(pl.col("energy_j").filter(pl.col("kind") == kind.value).sum().alias(name) for kind, name in PARTS.items()),
        pl.col("energy_j").sum().alias("sum_j"),
        (pl.col("energy_j") - pl.col("sensed_j")).sum().alias("gaps_j"),
        (pl.col("share") * lasted - pl.col("measured_s")).sum().clip(lower_bound=0).round(3).alias("gaps_s"),
        (pl.col("measured_s").sum() > 0).alias("measured"),
        pl.col("reason").drop_nulls().first(),
    )
    counted = found.problems.group_by(_KEYS, maintain_order=True).agg(pl.len().alias("problems"))
    named = store.sql("select cluster, gpu, name, model from gpus_now").polars()
    gpus = (
        found.metered.join(parts, on=_KEYS, how="left", nulls_equal=True)
        .join(dark, on=_KEYS, how="left", nulls_equal=True)
        .join(counted, on=_KEYS, how="left", nulls_equal=True)
        .join(named, on=_KEYS, how="left", nulls_equal=True)
        .with_columns(pl.col("problems", "not_read_j", "not_read_s", "sum_j", "gaps_j", "gaps_s").fill_null(0))
        .with_columns(pl.col("metered_j") - pl.col("not_read_j"))
        .with_columns((pl.col("metered_j") - pl.col("sum_j")).alias("difference_j"))
        .with_columns(
            pl.when("measured").then(pl.col("metered_j", *PARTS.values(), "difference_j", "gaps_j", "gaps_s")),
            pl.when(~pl.col("measured")).then("reason").alias("reason"),
        )
        .sort(*by_number("cluster", "node", "name"), "gpu", nulls_last=True)
    )
    places = gpus.select(*_KEYS).with_row_index("place")
    problems = found.problems.join(places, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    problems = problems.sort("place", nulls_last=True, maintain_order=True).drop("place")
    return Balance(
        gpus.select(
            *_KEYS, "name", "node", "model", "first", "last", "metered_j", *PARTS.values(), "difference_j", "reason",
            "gaps_j", "gaps_s", "not_read_j", "not_read_s", "idle_w", "idle_low_w",
            "idle_high_w", "idle_source", "power_source", "limit_w", "problems",
        ),
        pl.concat([problems, _no_figures(found)], how="diagonal"),
        found,
    )  # fmt: skip


def _no_figures(found: Booked) -> pl.DataFrame:
    """What the settings lack for grams or money, in the form of `Booked.problems`; nothing where there are none."""
    names = ("carbon_reason", "cost_reason") if found.settings.path is not None else ()
    rows = [
        found.counted.filter(pl.col(name).is_not_null() & (pl.col(name) != NoFigure.NO_ENERGY.value))
        .group_by("cluster", pl.col(name).alias("problem"))
        .agg(pl.col("began").min(), pl.col("ended").max(), pl.col("energy_j").sum().alias("joules"))
        .with_columns(pl.lit(1, pl.Int64).alias("n"))
        .sort("cluster", "problem")
        for name in names
    ]
    return pl.concat([found.problems.clear(), *rows], how="diagonal")
