"""The books of a store with grams and money: its pieces of energy over a time, what they stand on, how they add up to
figures, and whether they balance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError, StoreError
from ...store.instants import date_of_ns, nanoseconds
from ...store.power_sensors import NORMAL_95, SensorError
from ..by_number import by_number
from ..engines import HERE, Coverage, Engine, PartFailure, opened
from .attribute import UNREAD, Attribution, Kind, SplitEnergy
from .billing import cuts as rate_cuts
from .billing import factors_used, priced, rates_between
from .boards import POPULATION, BoardErrors, board_errors
from .carbon import NoFigure, changes
from .claims import ORDER, Claims, read_claims, with_activity
from .claims import of_store as problems_of_store
from .minutes import MeterPart, meter_parts
from .nodes import with_measured_hosts
from .readings import covered, rows_since
from .sensor import Reason, Times
from .settings import EnergySettings, find_settings, holding

if TYPE_CHECKING:
    from ...store import Store

COSTS = ("co2e_g", "cost", "embodied_g", "host_j")
"""Sums beside the energy: grams of it, money, grams of making the boards, and energy of the rest of the nodes."""
PARTS = {Kind.JOB: "attributed_j", Kind.IDLE: "idle_time_j", Kind.UNATTRIBUTED: "unattributed_j"}
"""What the energy of each kind is called in rows of GPUs, nodes and days."""
REFUSED_FROM = 0.5
"""A figure is refused where its pieces with a reason have at least this part of its time."""
CLOSE = 1e-9
"""The books balance if attributed + idle + unattributed is metered to within this part of it."""

_DAY_NS = 86_400_000_000_000
_KEYS = ["cluster", "gpu"]
_LAST_NS = 9_214_646_400 * 10**9
"""2262-01-01, the last instant that is counted: readings by a clock that is centuries ahead lie after it. A store can
hold little more, and what is around must fit as well."""
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
    # Numbers of groups are compared more quickly than the names of a million jobs.
    names = pieces.select(by or pl.repeat(0, pl.len()).alias("_all"))
    groups = names.unique(maintain_order=True).with_row_index("_group")
    number = names.join(groups, on=names.columns, how="left", nulls_equal=True, maintain_order="left")["_group"]
    pieces = pieces.with_columns(number)
    honest = pl.col("reason").is_null() & pl.col("energy_j").is_not_null()
    boards = pieces.group_by("_group", *_KEYS, maintain_order=True).agg(
        *(pl.col(name).sum() for name in ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        _sum("energy_j", pl.col("energy_j").filter(honest)).fill_null(0.0).alias("known_j"),
        (pl.col("share") * _SECONDS).sum().alias("gpu_s"),
        (pl.col("share") * _SECONDS).filter(~honest).sum().alias("unknown_s"),
        pl.col("measured_s").filter(pl.col("method") == "counter").sum().alias("counter_s"),
        (~honest).any().alias("doubtful"),
    )
    sums = ("below_j", "above_j", "variance_j2", "sensed_j", "sensed_s", "measured_s", "known_j", "gpu_s", "unknown_s")
    total = boards.group_by("_group", maintain_order=True).agg(  # a sum in another order ends in other digits
        *(pl.col(name).sum() for name in (*sums, "counter_s")),
        *(_sum(name) for name in ("energy_j", "idle_j", *also)),
        pl.col("gpu").count().replace({0: None}).alias("gpus"),
        pl.col("doubtful").any(),
    )
    for columns in (errors.added(boards, ["_group"]), _reasons(pieces.filter(~honest)), _time_with_any(pieces)):
        total = total.join(columns, on="_group", how="left", maintain_order="left")
    total = groups.join(_with_interval(total), on="_group", maintain_order="left")
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


def _reasons(pieces: pl.DataFrame) -> pl.DataFrame:
    """`reason` of each group of pieces without a figure: that of its longest piece on the GPU with most of the time."""
    time_s = pl.col("share") * _SECONDS
    boards = pieces.sort(time_s, descending=True, maintain_order=True).group_by("_group", *_KEYS, maintain_order=True)
    of_boards = boards.agg(pl.col("reason").drop_nulls().first(), time_s.sum().alias("unknown_s"))
    of_boards = of_boards.sort("unknown_s", descending=True, maintain_order=True)
    return of_boards.group_by("_group").agg(pl.col("reason").drop_nulls().first())


def _with_interval(total: pl.DataFrame) -> pl.DataFrame:
    half = NORMAL_95 * (pl.col("board_j2") + pl.col("variance_j2")).sqrt()
    lower, upper = ((pl.col("error_j") + end) for end in (-half, half))
    return total.with_columns(
        (pl.col("energy_j") + lower.clip(upper_bound=0) - pl.col("below_j")).clip(lower_bound=0).alias("low_j"),
        (pl.col("energy_j") + upper.clip(lower_bound=0) + pl.col("above_j")).alias("high_j"),
    )


def _time_with_any(pieces: pl.DataFrame) -> pl.DataFrame:
    """`duration_s` of each group: the length of the union of its pieces' times."""
    covered_until = pl.col("ended").cum_max().shift(1)
    more = pl.col("ended") - pl.max_horizontal("began", covered_until)
    times = pieces.select("_group", "began", "ended").sort("began").group_by("_group")
    return times.agg((more.dt.total_microseconds().clip(0).sum() / 1e6).alias("duration_s"))


@dataclass(frozen=True)
class EnergyQuestion:
    """Whose energy is asked for, of which time, and by which settings."""

    cluster: str | None = None
    """Only this one; None: all."""
    since: datetime | None = None
    """UTC, without zone; None: the first reading."""
    until: datetime | None = None
    """None: the last reading."""
    settings: EnergySettings | str | Path | None = None
    """Carbon, prices and more, or a file of them; None: `energy.toml` in the store's folder, if it is there."""
    gpus: Collection[tuple[str, str]] | None = None
    """Only these, by cluster and UUID; None: all."""


ALL_ENERGY = EnergyQuestion()


@dataclass(frozen=True)
class Booked:
    """All pieces of a time, and what they stand on."""

    pieces: pl.DataFrame
    """Columns of `attribute.PIECES` and `billing.PRICED`, and whether a piece is `dark` (nobody had the GPU and nobody
    read it meanwhile, so that nothing is said of it; a GPU that has no other times has no dark ones, so that its rows
    say why it has no energy), its GPU was `read` in this time, and some reading of it `counts`."""
    metered: pl.DataFrame
    """A row for each GPU with readings: `attribute.METERED`."""
    problems: pl.DataFrame
    """What is wrong with readings and jobs: `problems.PROBLEMS`."""
    factors: pl.DataFrame
    """What the grams stand on: a row for each source, with its year."""
    settings: EnergySettings
    errors: BoardErrors
    since: datetime
    until: datetime
    dark_s: float
    """How much GPU time is dark."""
    has_jobs: bool
    """Whether any job is known in this time."""
    carbon_reason: str | None
    """Code of `NoFigure`: what the settings lack for the grams of most pieces without grams; None where of none."""
    cost_reason: str | None
    zones_lacking: Mapping[str, Collection[str]]
    """By cluster, the zones that the settings name and of which nothing says what a kWh emits."""
    coverage: Coverage
    """Of how many parts the books are made. What a part lacks counts as not read: its GPUs in its time where it failed,
    or the rows of a file."""

    @property
    def sensor(self) -> SensorError:
        """What the settings say of sensors."""
        return self.settings.sensor

    @cached_property
    def lit(self) -> pl.DataFrame:
        """All pieces that are not dark."""
        return self.pieces.filter(~pl.col("dark"))

    @cached_property
    def counted(self) -> pl.DataFrame:
        """Of these, the pieces of GPUs that were read: what was metered."""
        return self.lit.filter("read")

    @property
    def without_pieces(self) -> Booked:
        """The same, small."""
        return replace(self, pieces=self.pieces.clear())

    def zones_without_factor(self, cluster: str | None = None) -> list[str]:
        """`zones_lacking` of one cluster or of all."""
        return sorted({zone for name, zones in self.zones_lacking.items() if cluster in (None, name) for zone in zones})


@dataclass(frozen=True)
class BookPart:
    """A part of the books: what is metered, and whose it was."""

    time: MeterPart
    claims: Claims
    """Those of its GPUs and its time."""
    cuts: Times
    """When every piece ends, ns."""
    asked_ns: tuple[int, int]
    """From when to when the energy of all parts is asked for."""
    calibrated: pl.DataFrame
    """`BoardErrors.calibrated`."""


def split_part(part: BookPart) -> SplitEnergy:
    """The pieces of a part of the books, and what they stand on. A file that turns out to be damaged is left out.
    Raises StoreError."""
    store = opened(part.time.root)
    try:
        split = _split_part(store, part)
    except StoreError:
        if not store.skipped:
            raise
        split = _split_part(store, part)
    left_out = part.time.left_out()
    return split if left_out is None else replace(split, left_out=left_out, unread=_lacking(store, part.time))


def _split_part(store: Store, part: BookPart) -> SplitEnergy:
    claims = with_activity(store, part.claims, *part.time.window)
    attribution = Attribution(claims, cuts=part.cuts, since_ns=part.asked_ns[0], until_ns=part.asked_ns[1])
    return attribution.split(meters.calibrated(part.calibrated) for meters in part.time.meters(claims))


def booked(
    store: Store,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    progress: Callable[[str], None] | None = None,
    engine: Engine = HERE,
) -> Booked:
    """The pieces of a store's GPUs, cut at midnight. `engine`: where its parts are made.

    Raises InputError where there is no telemetry in that time, and for settings that cannot be used.
    """
    cluster, gpus = question.cluster, question.gpus
    stated = find_settings(store.root, question.settings)
    first, last, clusters = time_covered(store, cluster, question.since, question.until)
    rates = rates_between(stated, first, last, clusters)
    days = np.arange(first // _DAY_NS + 1, -(-last // _DAY_NS)) * _DAY_NS  # the midnights within
    models = store.sql("select cluster, gpu, model from gpus_now where model is not null") if stated.embodied else None
    errors = board_errors(store, stated.sensor)
    claims = read_claims(store, since_ns=first, until_ns=last, cluster=cluster, gpus=gpus)
    cuts = np.array([*days, *rate_cuts(rates)], np.int64)
    split = Attribution(claims, cuts=cuts, since_ns=first, until_ns=last)
    of_names = functools.cache(claims.of_gpus)
    parts = [
        BookPart(
            time, of_names(time.names).touching(*time.window),
            cuts[(cuts > time.window[0]) & (cuts < time.window[1])], (first, last), errors.calibrated,
        )
        for time in meter_parts(store, cluster=cluster, gpus=gpus, since_ns=first, until_ns=last)
    ]  # fmt: skip
    failures: list[PartFailure] = []

    def splits() -> Iterator[SplitEnergy]:
        engine.require(store)
        say = None if progress is None else lambda done: progress(f"metering GPUs: {done}")
        results = engine.map(split_part, parts, name=lambda part: part.time.label, progress=say)
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, PartFailure):
                failures.append(result)
                result = SplitEnergy(unread=_lacking(store, part.time))
            elif result.left_out is not None:
                failures.append(PartFailure(part.time.label, result.left_out))
            yield result

    frames = list(split.pieces(splits()))
    if not frames:
        raise InputError(_nothing(store, cluster, first, last))
    pieces, of_nodes = with_measured_hosts(store, pl.concat(frames, rechunk=False), first, last, cluster=cluster)
    pieces = priced(pieces, rates, stated, None if models is None else models.polars())
    factors = factors_used(pieces, rates)
    metered = split.metered
    pieces = _flagged(pieces.drop("measured_host_j"), metered)
    of_store = problems_of_store(store, metered, cluster=cluster, since_ns=first, until_ns=last)
    problems = pl.concat([split.problems, of_store, of_nodes]).sort(*ORDER, nulls_last=True)
    counted = pieces.filter("read", ~pl.col("dark"))
    return Booked(
        pieces, metered, problems, factors, stated, errors, date_of_ns(first), date_of_ns(last),
        dark_s=float(pieces.filter("dark").select((pl.col("share") * _SECONDS).sum()).item() or 0.0),
        has_jobs=bool((pieces["kind"] == Kind.JOB.value).any()),
        carbon_reason=lacking_code(counted, "carbon_reason"), cost_reason=lacking_code(counted, "cost_reason"),
        zones_lacking=_zones_lacking(pieces, stated), coverage=Coverage(len(parts), tuple(failures)),
    )  # fmt: skip


def _lacking(store: Store, part: MeterPart) -> pl.DataFrame:
    """The time of a part that is not whole, of each of its GPUs that the store knows: columns of `attribute.UNREAD`."""
    limit_w = "coalesce(power_limit_max_mw, power_limit_default_mw, power_limit_mw) / 1e3 AS limit_w"
    boards = store.sql(f"SELECT cluster, gpu, node, {limit_w} FROM gpus_now WHERE parent IS NULL").polars()
    rows = [(*board, *part.window) for board in boards.sort("cluster", "gpu").rows() if part.has(board[:2])]
    return pl.DataFrame(rows, UNREAD, orient="row")


def _flagged(pieces: pl.DataFrame, metered: pl.DataFrame) -> pl.DataFrame:
    """The pieces with `dark`, `read` and `counts`."""
    unread = pl.col("reason").is_in([Reason.NO_TELEMETRY.value, Reason.GAPS.value]).fill_null(False)
    dark = (pl.col("kind") != Kind.JOB.value) & unread
    of_gpu = pieces.group_by(_KEYS).agg(
        (~dark).any().alias("_lit"), pl.col("measured_s").filter(~dark).sum().alias("_s")
    )
    read = metered.select(*_KEYS, pl.lit(True).alias("read"))
    for columns in (of_gpu, read):
        pieces = pieces.join(columns, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    read_at_all = pl.col("read").fill_null(False)
    counts = ~read_at_all | (pl.col("_s") > 0)
    return pieces.with_columns((dark & pl.col("_lit")).alias("dark"), read_at_all, counts.alias("counts")).drop(
        "_lit", "_s"
    )


def lacking_code(pieces: pl.DataFrame, name: str) -> str | None:
    """What the settings lack, by most of the pieces without grams or money."""
    codes = pieces[name].drop_nulls().value_counts(sort=True)[name]
    return next((str(code) for code in codes if code != NoFigure.NO_ENERGY), None)


def _zones_lacking(pieces: pl.DataFrame, settings: EnergySettings) -> dict[str, set[str]]:
    zones = {}
    for (name,), rows in pieces.filter(pl.col("carbon_reason") == NoFigure.NO_FACTOR.value).group_by("cluster"):
        began = rows["began"].dt.epoch("ns").to_numpy()
        starts = changes(settings, int(began.min()), int(began.max()) + 1)
        lacked = {starts[step] for step in np.searchsorted(starts, began, "right") - 1}
        places = (holding(settings.zones, str(name), start) for start in lacked)
        zones[str(name)] = {str(place.value) for place in places if place is not None}
    return zones


def _nothing(store: Store, cluster: str | None, first: int, last: int) -> str:
    """Why there is nothing to book in a time."""
    time = f"from {date_of_ns(first):%Y-%m-%d %H:%M} to {date_of_ns(last):%Y-%m-%d %H:%M} UTC"
    if sum(rows_since(store, [date_of_ns(first)], date_of_ns(last + 1000), cluster=cluster)):
        return (
            f"{store.root} has one reading of each GPU {time}: energy needs two, so read for longer, or choose a "
            "longer time"
        )
    return (
        f"{store.root} has neither telemetry nor jobs {time}: choose another time with --since and --until, or leave "
        "these out"
    )


def time_covered(
    store: Store, cluster: str | None, since: datetime | None, until: datetime | None
) -> tuple[int, int, Sequence[str]]:
    """The time that is looked at, ns: what was asked for, else what the telemetry covers; and the clusters. Raises
    InputError where there is no telemetry in that time."""
    times = covered(store, cluster=cluster)
    of_cluster = "" if cluster is None else f" of cluster {cluster}"
    if times.is_empty():
        clusters = [] if cluster is None else covered(store)["cluster"].drop_nulls().to_list()
        if clusters:
            raise InputError(f"{store.root} has no telemetry of cluster {cluster}; it has {', '.join(clusters)}")
        raise InputError(f"{store.root} has no telemetry{of_cluster}: `whorl collect` or `whorl import` adds some")
    first, last = int(times["first"].dt.epoch("ns").min()), int(times["last"].dt.epoch("ns").max())  # type: ignore[arg-type]
    began = min(first if since is None else nanoseconds(since), _LAST_NS)
    ended = min(last if until is None else nanoseconds(until), _LAST_NS)
    if ended <= began:
        raise InputError(
            f"{store.root} has no telemetry{of_cluster} in this time: it has some from "
            f"{date_of_ns(first):%Y-%m-%d %H:%M} to {date_of_ns(last):%Y-%m-%d %H:%M} UTC"
        )
    others = store.sql("SELECT DISTINCT cluster FROM jobs").polars()["cluster"] if cluster is None else ()
    return began, ended, sorted({name for name in (*times["cluster"], *others) if name is not None})


@dataclass(frozen=True)
class Balance:
    """Of each GPU, where its metered energy went (`gpus`), and what is wrong (`problems`)."""

    gpus: pl.DataFrame
    """cluster, gpu, name, node, model, first, last; metered_j, attributed_j, idle_time_j, unattributed_j, difference_j
    (NULL with a reason where the GPU has no honest reading); gpu_s (time that was counted), measured_s (of it, with
    readings), gaps_j and gaps_s (without readings);
    not_read_j and not_read_s (beside it: neither readings nor a job; the energy is a guess); idle_w
    with its interval (idle_low_w, idle_high_w) and what it is known from (idle_source, a code of `IdleSource`);
    power_source (what gave the energy, a code of `PowerSource`); limit_w, problems (how many)."""
    problems: pl.DataFrame
    booked: Booked

    @property
    def balances(self) -> bool:
        """Whether the parts of every GPU add up to what was metered."""
        return bool((self.gpus["difference_j"].abs() <= CLOSE * self.gpus["metered_j"].abs() + CLOSE).all())


def balance(store: Store, books: Booked) -> Balance:
    """Where the metered energy of each GPU went, by books that are there."""
    gpu_s = (pl.col("share") * _SECONDS).sum()
    dark = books.pieces.filter("dark").group_by(_KEYS, maintain_order=True).agg(
        pl.col("energy_j").sum().alias("not_read_j"), gpu_s.alias("not_read_s")
    )  # fmt: skip
    parts = books.lit.group_by(_KEYS, maintain_order=True).agg(
        *(pl.col("energy_j").filter(pl.col("kind") == kind.value).sum().alias(name) for kind, name in PARTS.items()),
        pl.col("energy_j").sum().alias("sum_j"),
        (pl.col("energy_j") - pl.col("sensed_j")).sum().alias("gaps_j"),
        gpu_s.alias("gpu_s"),
        pl.col("measured_s").sum(),
        (gpu_s - pl.col("measured_s").sum()).clip(lower_bound=0).round(3).alias("gaps_s"),
        pl.col("reason").drop_nulls().first(),
    )
    problems = books.problems.group_by(_KEYS, maintain_order=True).agg(pl.len().alias("problems"))
    gpus = books.metered
    for columns in (parts, dark, problems, store.sql("select cluster, gpu, name, model from gpus_now").polars()):
        gpus = gpus.join(columns, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    sums = ("sum_j", "gpu_s", "measured_s", "gaps_j", "gaps_s", "not_read_j", "not_read_s", "problems")
    measured = pl.col("measured_s") > 0
    gpus = (
        gpus.with_columns(pl.col(sums).fill_null(0))
        .with_columns(pl.col("metered_j") - pl.col("not_read_j"))
        .with_columns((pl.col("metered_j") - pl.col("sum_j")).alias("difference_j"))
        .with_columns(
            pl.when(measured).then(pl.col("metered_j", *PARTS.values(), "difference_j", "gaps_j", "gaps_s")),
            pl.when(~measured).then("reason").alias("reason"),
        )
        .sort(*by_number("cluster", "node", "name"), "gpu", nulls_last=True)
    )
    places = gpus.select(*_KEYS).with_row_index("place")
    problems = books.problems.join(places, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    problems = problems.sort("place", nulls_last=True, maintain_order=True).drop("place")
    return Balance(
        gpus.select(
            *_KEYS, "name", "node", "model", "first", "last", "metered_j", *PARTS.values(), "difference_j", "reason",
            "gpu_s", "measured_s", "gaps_j", "gaps_s", "not_read_j", "not_read_s", "idle_w", "idle_low_w",
            "idle_high_w", "idle_source", "power_source", "limit_w", "problems",
        ),
        pl.concat([problems, _no_figures(books)], how="diagonal"),
        books,
    )  # fmt: skip


def _no_figures(books: Booked) -> pl.DataFrame:
    """What the settings lack for grams or money, in the form of `Booked.problems`; nothing where there are none."""
    names = ("carbon_reason", "cost_reason") if books.settings.path is not None else ()
    rows = [
        books.counted.filter(pl.col(name).is_not_null() & (pl.col(name) != NoFigure.NO_ENERGY.value))
        .group_by("cluster", pl.col(name).alias("problem"))
        .agg(pl.col("began").min(), pl.col("ended").max(), pl.col("energy_j").sum().alias("joules"))
        .with_columns(pl.lit(1, pl.Int64).alias("n"))
        .sort("cluster", "problem")
        for name in names
    ]
    return pl.concat([books.problems.clear(), *rows], how="diagonal")
