"""GPUs that jobs held and did not use: for how long, how well that is known, and what it cost.

A GPU is idle from one reading to another where each of them has a utilisation of 0 and draws little: at most its power
without work (`meter.Meters.idle_w`) and `POWER_SHARE` of the way from there to its power limit. The second condition
tells work that falls between the readings of utilisation. A stretch counts from `least_s` on: shorter pauses belong to
work that reads files or waits for other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from ...store.catalog import quoted
from ...store.instants import date_of_ns, in_sql, nanoseconds, times_of_ns
from ...store.vocabulary import Code
from .attribute import PIECES, Kind, cut_apart
from .billing import cuts as changes
from .billing import priced, rates_between
from .boards import board_errors
from .books import COSTS, add_up, lacking_code
from .meter import Energies, Meters
from .readings import covered, metered_readings
from .sensor import Readings
from .settings import EnergySettings, find_settings

if TYPE_CHECKING:
    from ...store import Store

SCHEMA = "whorl.jobs_idle/1"
POWER_SHARE = 0.2
"""How far above its power without work a GPU may draw and still be idle: this part of the way to its power limit. A
process that holds the GPU and waits keeps its clocks up, which takes 5 to 15 % of that way."""
LEAST_S = 600.0
_OF_LIMIT = 0.3
"""The bound as a part of the power limit, for a GPU of which nobody knows what it draws without work."""
_LONGEST_NS = 300 * 10**9
"""A reading tells of the time to the next one if that is at most so far away, and at most `_USUAL` usual distances."""
_USUAL = 3

Times = NDArray[np.int64]


class IdleReason(Code):
    """Why it is not known how long a GPU that a job held was idle."""

    NO_TELEMETRY = "no telemetry", "nobody read the GPU while the job had it"
    NO_UTILIZATION = "no utilisation", "its readings have no utilisation"
    MIG = "MIG", "it is a MIG instance, of which the driver tells neither utilisation nor power"


@dataclass(frozen=True)
class IdleOptions:
    """Which jobs of which time; times are UTC, without zone."""

    cluster: str | None = None
    """Only this one; None: all."""
    since: datetime | None = None
    """None: a day before `until`."""
    until: datetime | None = None
    """None: the last reading of the store."""
    users: Sequence[str] | None = None
    """Only jobs of these users, as the table `jobs` names them; None: of all."""
    running: bool = False
    """Only jobs that have not ended."""
    least_s: float = LEAST_S
    """How long a stretch must last to count."""
    price: float | None = None
    """Of an hour of a GPU, in the currency of the settings."""
    settings: EnergySettings | str | Path | None = None
    """None: `energy.toml` in the store's folder, if it is there."""


@dataclass(frozen=True)
class HeldIdle:
    """What jobs held and did not use from `since` to `until` (UTC).

    `gpus` has a row for each GPU of each allocation, `jobs` one for each job, those with most idle GPU time first;
    `total` is all jobs. All three have: held_s (GPU time), read_s (of it, with readings of utilisation), readings (how
    many), idle_s with the bounds idle_low_s to idle_high_s that the distance of the readings leaves, idle_share (of
    read_s), idle_gpu_s (idle_s by the share of the GPU that the job had), energy_j with the 95 % interval low_j to
    high_j (what the GPUs drew meanwhile), co2e_g and cost (of that energy), gpu_hour_cost (of idle_gpu_s). What is not
    known is NULL, and a sum is without it.
    """

    jobs: pl.DataFrame
    """Also: cluster, job_id, user, account, state, node, began, ended, gpus, gpus_known (how many of them have an
    idle_s), gpus_idle_now (idle at the last reading of the job), allocations, shared."""
    gpus: pl.DataFrame
    """Also: cluster, gpu, name, node, model, allocation, job_id, user, account, state, began, ended, share, shared (the
    job had a part, or others had the GPU as well: it was idle for all of them in idle_s, and for this job perhaps
    longer), idle_since (NULL unless it is idle at the last reading of the job), reason (a code of `IdleReason`)."""
    total: Mapping[str, Any]
    gpus_not_known: int
    """GPUs of jobs of which nobody knows which they are."""
    since: datetime
    until: datetime
    options: IdleOptions
    currency: str | None
    carbon_reason: str | None
    """A code of `NoFigure`: why idle time has no grams; None where all of it has."""
    cost_reason: str | None


_OF_GPU = (
    "cluster", "gpu", "name", "node", "model", "allocation", "job_id", "user", "account", "state", "began", "ended",
    "share", "shared", "idle_since",
)  # fmt: skip
_COLUMNS = ", ".join(name for name in _OF_GPU if name not in ("shared", "idle_since"))
_IDLE = ("idle_s", "idle_low_s", "idle_high_s", "idle_gpu_s")
_ENERGY = ("energy_j", "low_j", "high_j", "co2e_g", "cost")
_KEYS = ["cluster", "gpu"]
_USE = {
    "held": pl.UInt32, "read_s": pl.Float64, "readings": pl.Int64, "idle_s": pl.Float64, "idle_low_s": pl.Float64,
    "idle_high_s": pl.Float64, "idle_since": pl.Int64, "has_readings": pl.Boolean,
}  # fmt: skip
_PIECE = PIECES | {"held": pl.UInt32(), "job_id": pl.String(), "all": pl.String()}


def held_idle(
    store: Store, options: IdleOptions | None = None, *, progress: Callable[[str], None] | None = None
) -> HeldIdle:
    """How long the GPUs that jobs held were idle, and what that cost.

    Raises InputError where the store has no telemetry, for a time that ends before it begins, and for settings that
    cannot be used; StoreError where the store cannot be read.
    """
    options = options or IdleOptions()
    if not options.least_s > 0:
        raise InputError(f"a stretch that counts as idle lasts longer than 0 s, not {options.least_s:g}")
    since_ns, until_ns = _window(store, options)
    held, not_known = _held(store, options, since_ns, until_ns)
    settings = find_settings(store.root, options.settings)
    errors = board_errors(store, settings.sensor)
    rates = rates_between(settings, since_ns, until_ns, held["cluster"].unique().sort().to_list())
    whole_gpus = held.filter(~pl.col("instance"))
    claims = {(str(cluster), str(gpu)): part for (cluster, gpu), part in whole_gpus.group_by(_KEYS)}
    around = since_ns - _LONGEST_NS, until_ns + _LONGEST_NS
    uses, stretches = [pl.DataFrame(schema=_USE)], [pl.DataFrame(schema=_PIECE)]
    read = metered_readings(store, gpus=claims, since_ns=around[0], until_ns=around[1]) if claims else ()
    for readings, meters in chain.from_iterable(read):
        if progress is not None:
            progress(f"metering GPUs: {len(uses):,} of {len(claims):,}")
        calibrated = meters.calibrated(errors.calibrated)
        for gpu, (key, most_w) in enumerate(zip(meters.gpus, _most_idle_w(meters).tolist(), strict=True)):
            use, row, began, ended = _use(claims[key], readings.each(itemgetter(gpu)), most_w, options.least_s)
            uses.append(use)
            part, began, ended = cut_apart(began, ended, changes(rates))
            energies = calibrated.over(np.full(len(part), gpu), began, ended)
            stretches.append(_pieces(energies, claims[key][row[part]], began, ended))
    pieces = priced(pl.concat(stretches), rates, settings)
    gpus = _with_reasons(held.join(pl.concat(uses), on="held", how="left", maintain_order="left"))

    def added(keys: Sequence[str]) -> pl.DataFrame:
        sums = add_up(pieces, keys, errors=errors, also=COSTS).select(*keys, *_ENERGY)
        return _times(gpus, keys).join(sums, on=keys, how="left", nulls_equal=True, maintain_order="left")

    of_gpus = added(["held"]).join(gpus.select("held", *_OF_GPU, "reason"), on="held", maintain_order="left")
    total = added(["all"]).select(pl.exclude("all", "user", "account", "state", "node"))
    return HeldIdle(
        jobs=_priced(added(["cluster", "job_id"]), options.price),
        gpus=_priced(of_gpus, options.price).select(*_OF_GPU, "held_s", "read_s", "readings", *_IDLE, "idle_share",
                                                 *_ENERGY, "gpu_hour_cost", "reason"),
        total=next(iter(_priced(total, options.price).to_dicts()), {}),
        gpus_not_known=not_known, since=date_of_ns(since_ns), until=date_of_ns(until_ns), options=options,
        currency=settings.currency, carbon_reason=lacking_code(pieces, "carbon_reason"),
        cost_reason=lacking_code(pieces, "cost_reason"),
    )  # fmt: skip


def _window(store: Store, options: IdleOptions) -> tuple[int, int]:
    """From when to when, ns."""
    if options.until is None:
        times = covered(store, cluster=options.cluster)
        if times.is_empty():
            of_cluster = "" if options.cluster is None else f" of cluster {options.cluster}"
            raise InputError(f"{store.root} has no telemetry{of_cluster}: `whorl collect` or `whorl import` adds some")
        until_ns = int(times["last"].dt.epoch("ns").max())  # type: ignore[arg-type]
    else:
        until_ns = nanoseconds(options.until)
    since_ns = nanoseconds(date_of_ns(until_ns) - timedelta(days=1) if options.since is None else options.since)
    if since_ns >= until_ns:
        raise InputError(
            f"the time from {date_of_ns(since_ns):%Y-%m-%d %H:%M} to {date_of_ns(until_ns):%Y-%m-%d %H:%M} UTC is "
            f"empty{'' if options.until else ': the last reading is older than that'}; choose an earlier --since"
        )
    return since_ns, until_ns


def _held(store: Store, options: IdleOptions, since_ns: int, until_ns: int) -> tuple[pl.DataFrame, int]:
    """A row for each GPU of each allocation, with from_ns and to_ns (within the time), `shared` and `instance`; and how
    many GPUs jobs had of which nobody knows which."""
    within = f"began < {in_sql(until_ns)} AND (ended IS NULL OR ended > {in_sql(since_ns)})"
    if options.cluster is not None:
        within += f" AND cluster = {quoted(options.cluster)}"
    rows = store.sql(
        f"SELECT j.*, g.parent IS NOT NULL AS instance FROM (SELECT {_COLUMNS} FROM jobs_on_gpu WHERE {within}) j "
        "LEFT JOIN gpus_now g ON g.gpu = j.gpu AND g.cluster IS NOT DISTINCT FROM j.cluster"
    ).polars()
    chosen = "ended IS NULL" if options.running else "true"
    if options.users is not None:
        chosen += f" AND user IN ({', '.join(map(quoted, options.users)) or 'NULL'})"
    unknown = f"SELECT sum(coalesce(node_gpus, 1)) FROM jobs_now WHERE gpu IS NULL AND {within} AND {chosen}"
    on_gpu = ["cluster", "gpu"]
    rows = rows.sort("cluster", "gpu", "began", "allocation").with_columns(
        pl.max_horizontal(pl.col("began").dt.epoch("ns"), pl.lit(since_ns)).alias("from_ns"),
        pl.min_horizontal(pl.col("ended").dt.epoch("ns").fill_null(until_ns), pl.lit(until_ns)).alias("to_ns"),
        pl.col("share").cast(pl.Float64),
    )
    before = pl.col("to_ns").cum_max().shift(1).over(on_gpu) > pl.col("from_ns")
    after = pl.col("from_ns").shift(-1).over(on_gpu) < pl.col("to_ns")
    shared = before.fill_null(False) | after.fill_null(False) | (pl.col("share") < 1).fill_null(False)
    rows = rows.with_columns(shared.alias("shared"))
    rows = rows.with_columns(
        pl.when(~pl.col("shared") & pl.col("share").is_null()).then(1.0).otherwise("share").alias("share")
    )
    if options.users is not None:
        rows = rows.filter(pl.col("user").is_in(list(options.users)))
    if options.running:
        rows = rows.filter(pl.col("ended").is_null())
    rows = rows.filter(pl.col("to_ns") > pl.col("from_ns")).with_row_index("held")
    return rows, int(store.sql(unknown).polars().item(0, 0) or 0)


# -- readings -------------------------------------------------------------------------------------------------


def _most_idle_w(meters: Meters) -> NDArray[np.float64]:
    """What each GPU draws at most without work, W; NaN where neither that nor its power limit is known."""
    idle_w, limit_w = meters["idle_w"], meters["limit_w"]
    above_w = np.maximum(np.nan_to_num(limit_w - idle_w), 0.0)
    return np.where(np.isnan(idle_w), _OF_LIMIT * limit_w, idle_w + POWER_SHARE * above_w)


def _use(
    claims: pl.DataFrame, readings: Readings, most_w: float, least_s: float
) -> tuple[pl.DataFrame, NDArray[np.int64], Times, Times]:
    """How the claims of a GPU used it: columns `_USE`; and the stretches without use: the claim, from when, to when.

    `most_w`: up to which power it is idle (NaN: at any).
    """
    useful, instant_w = ~np.isnan(readings.utilization), readings.instant_w
    ts_ns = readings.ts_ns[useful]
    watts = readings.power_w if instant_w is None else np.where(np.isnan(instant_w), readings.power_w, instant_w)
    idle = (readings.utilization[useful] == 0) & ~(watts[useful] > most_w)
    steps = np.diff(ts_ns)
    longest_ns = np.clip(_USUAL * np.median(steps), 10**9, _LONGEST_NS) if len(steps) else 0
    told_ns = np.where(steps <= longest_ns, steps, 0)  # how much time the readings at its ends tell of
    read_ns, beside_ns = np.append(0, np.cumsum(told_ns))[: len(ts_ns)], np.concatenate([[0], told_ns, [0]])
    joined = np.concatenate([[False], idle[1:] & idle[:-1] & (told_ns > 0), [False]])[: len(ts_ns) + 1]
    first, last = np.flatnonzero(idle & ~joined[:-1]), np.flatnonzero(idle & ~joined[1:])
    from_ns, to_ns = (claims[name].to_numpy() for name in ("from_ns", "to_ns"))

    def clipped(part: float) -> tuple[Times, Times]:
        """(claims, stretches) with this part of the time to the readings beside a stretch, which may be idle too."""
        began = ts_ns[first] - (part * beside_ns[first]).astype(np.int64)
        ended = ts_ns[last] + (part * beside_ns[last + 1]).astype(np.int64)
        low, high = from_ns[:, None], to_ns[:, None]
        return np.clip(began, low, high), np.clip(ended, low, high)

    began, ended = clipped(0.5)
    upto = np.searchsorted(ts_ns, to_ns, "right")
    number = upto - np.searchsorted(ts_ns, from_ns)
    reads = np.diff(np.interp([from_ns, to_ns], ts_ns, read_ns), axis=0)[0] / 1e9 if len(steps) else 0.0 * number
    counts = (ended > began) & (ended - began >= least_s * 1e9) & (reads > 0)[:, None]
    held, stretch = np.nonzero(counts)
    latest = np.where(number > 0, ts_ns[np.maximum(upto, 1) - 1] if len(ts_ns) else to_ns, to_ns)
    since, until = (np.where(counts, end, -1).max(axis=1, initial=-1) for end in (began, ended))
    seconds = {
        name: np.where(reads > 0, ((ends[1] - ends[0]) * counts).sum(axis=1) / 1e9, np.nan)
        for name, ends in (("idle_s", (began, ended)), ("idle_low_s", clipped(0.0)), ("idle_high_s", clipped(1.0)))
    }
    use = claims.select("held").with_columns(
        pl.Series("read_s", reads), pl.Series("readings", number),
        *(pl.Series(name, values).fill_nan(None) for name, values in seconds.items()),
        pl.Series("idle_since", np.where(until >= latest, since, -1)).replace(-1, None),
        pl.Series("has_readings", np.diff(np.searchsorted(readings.ts_ns, [from_ns, to_ns + 1]), axis=0)[0] > 0),
    )  # fmt: skip
    return use, held, began[held, stretch], ended[held, stretch]


# -- what it cost ---------------------------------------------------------------------------------------------


def _pieces(energies: Energies, claims: pl.DataFrame, began_ns: Times, ended_ns: Times) -> pl.DataFrame:
    """The energy of stretches of a GPU, of claims with a share: columns of `_PIECE`."""
    figures = {
        "energy_j": energies.energy_j, "below_j": energies.below_j, "above_j": energies.above_j,
        "variance_j2": energies.variance_j2, "sensed_j": energies.measured_j, "sensed_s": energies.measured_s,
        "measured_s": energies.measured_s,
    }  # fmt: skip
    return (
        claims.with_columns(
            times_of_ns(pl.Series("began", began_ns)).alias("began"),
            times_of_ns(pl.Series("ended", ended_ns)).alias("ended"),
            pl.lit(Kind.JOB.value).alias("kind"),
            *(pl.Series(name, values) * pl.col("share") for name, values in figures.items()),
            pl.Series("method", np.where(energies.counter_s * 2 >= energies.measured_s, "counter", "power")),
            pl.Series("reason", energies.reason.astype(np.str_), pl.String).replace({"": None}),
            *(pl.lit(None).alias(name) for name in PIECES if name.startswith("idle_")),
            pl.lit("all").alias("all"),
        )
        .filter(pl.col("share").is_not_null())
        .select(pl.col(name).cast(kind) for name, kind in _PIECE.items())
    )


def _with_reasons(gpus: pl.DataFrame) -> pl.DataFrame:
    """The GPUs of allocations with held_s, idle_gpu_s, reason, and a column `all` to add all of them up."""
    reason = (
        pl.when("instance")
        .then(pl.lit(IdleReason.MIG.value))
        .when(pl.col("idle_s").is_null() & pl.col("has_readings").fill_null(False))
        .then(pl.lit(IdleReason.NO_UTILIZATION.value))
        .when(pl.col("idle_s").is_null())
        .then(pl.lit(IdleReason.NO_TELEMETRY.value))
    )
    return gpus.with_columns(
        ((pl.col("to_ns") - pl.col("from_ns")) / 1e9).alias("held_s"),
        pl.col("read_s").fill_null(0.0),
        pl.col("readings").fill_null(0),
        (pl.col("idle_s") * pl.col("share")).alias("idle_gpu_s"),
        times_of_ns(pl.col("idle_since")).alias("idle_since"),
        reason.alias("reason"),
        pl.lit("all").alias("all"),
    )


def _times(gpus: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The times of GPUs added up by these columns."""
    return gpus.group_by(keys, maintain_order=True).agg(
        *(pl.col(name).drop_nulls().last() for name in ("user", "account", "state", "node") if name not in keys),
        pl.col("began").min(),
        pl.when(pl.col("ended").null_count() == 0).then(pl.col("ended").max()).alias("ended"),
        pl.col("gpu").n_unique().alias("gpus"),
        pl.col("gpu").filter(pl.col("idle_s").is_not_null()).n_unique().alias("gpus_known"),
        pl.col("gpu").filter(pl.col("idle_since").is_not_null()).n_unique().alias("gpus_idle_now"),
        pl.col("allocation").n_unique().alias("allocations"),
        pl.col("shared").any(),
        *(pl.col(name).sum() for name in ("held_s", "read_s", "readings")),
        *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in _IDLE),
    )


def _priced(rows: pl.DataFrame, price: float | None) -> pl.DataFrame:
    """Rows with idle_share and gpu_hour_cost, those with most idle GPU time first."""
    rows = rows.with_columns(
        pl.when(pl.col("read_s") > 0).then(pl.col("idle_s") / pl.col("read_s")).alias("idle_share"),
        (pl.col("idle_gpu_s") / 3600 * pl.lit(price, pl.Float64)).alias("gpu_hour_cost"),
    )
    names = [name for name in ("job_id", "gpu") if name in rows.columns]
    order = ["idle_gpu_s", "idle_s", "held_s", *names]
    return rows.sort(order, descending=[True, True, True, *(False for _ in names)], nulls_last=True)
