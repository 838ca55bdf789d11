"""Facts: what was seen of GPUs and needs no peers and no test.

GPUs that were lost, computed wrong results or failed, errors that the driver told, and power readings that stood still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.metrics import board_power_mw
from ...store.vocabulary import EventKind, Outcome
from ..engines import HERE, Coverage, Engine
from ..runs.measurements import SOUND, codes
from ..runs.probing import OF_HARDWARE, OF_MEMORY, Probed, only
from ..runs.sittings import PAUSE
from ..runs.windows import GpuDays, PartRows, Progress, WindowPart, arrow_of, gpu_days, made
from .verdict import Kind, Measured, Quantity

if TYPE_CHECKING:
    from ...store import Store

_FELL_OFF = 79  # XID
_STILL, _STILL_S = 10, 10.0  # readings that are the same to the milliwatt, and for this many s ...
_UTILISATION = 30  # ... while the utilisation moves by this many points, as in `collectors.quality`
_STILL_RUNS = 4  # runs whose power is the same to the milliwatt ...
_MOVED = 1.2  # ... where that of the peers' runs differs by this factor
_COUNTERS = ("row_remap_failed", "ecc_uncorrected")
_STRETCH = {"gpu": pl.String, **dict.fromkeys(("power", "n", "first_us", "last_us", "least", "most", "part"), pl.Int64)}
_SIGN = {"gpu": pl.String(), "workload": pl.String(), "run_id": pl.String(), "at": pl.Datetime("us")}

Still = Mapping[str, tuple[Measured, ...]]
"""GPUs whose power reading stood still, with what shows it."""


@dataclass(frozen=True)
class StillSensors:
    """Power sensors that stood still, as far as telemetry could be read."""

    still: Still
    coverage: Coverage = field(default_factory=Coverage)
    unread: tuple[str, ...] = ()
    """GPUs of which not all telemetry could be read: nobody knows whether it stood still there."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What was seen of a GPU."""

    gpu: str
    kind: Kind
    measured: tuple[Measured, ...]
    workloads: tuple[str, ...]
    runs: tuple[str, ...]
    """Ids of the runs that show it."""
    first_seen: datetime | None
    last_seen: datetime | None
    sittings: int
    """In how many sittings at least 6 hours apart it was seen."""


def facts(campaign: Probed, still: Still) -> tuple[Fact, ...]:
    """All facts, the worst first. A GPU that was lost did not fail besides. `still`: of `still_power`."""
    counted = (pl.col("wrong_elements") > 0) & pl.col("wrong_elements").is_finite()
    wrong = counted.fill_null(value=False) | (pl.col("status") == Outcome.WRONG_RESULT.value)
    lost = ~SOUND & ~wrong & (pl.col("status") == Outcome.LOST.value)
    runs = campaign.runs.filter(~SOUND | wrong | pl.col("gpu").is_in(list(still))).sort("began", nulls_last=True)
    wrong_runs, lost_runs, failed_runs = (runs.filter(fit) for fit in (wrong, lost, ~SOUND & ~wrong & ~lost))
    events = campaign.events.drop_nulls("gpu")
    loss, reset = (pl.col("kind") == kind.value for kind in (EventKind.LOST, EventKind.NEEDS_RESET))
    fell_off = (pl.col("kind") == EventKind.XID.value) & (pl.col("code") == _FELL_OFF)
    losses, memory_errors = events.filter(loss | fell_off), events.filter(pl.col("code").is_in(list(OF_MEMORY)))
    hardware_errors = events.filter(reset | (pl.col("code").is_in(list(OF_HARDWARE)) & (pl.col("code") != _FELL_OFF)))
    failed_runs = _without(failed_runs, lost_runs, losses)
    hardware_errors = _without(hardware_errors, lost_runs, losses, failed_runs)

    once = (Measured(Quantity.LOSSES, 1),)
    of_losses: dict[str, tuple[Measured, ...]] = dict.fromkeys((*lost_runs["gpu"], *losses["gpu"]), once)
    for gpu, n in losses.filter(loss).group_by("gpu").len().iter_rows():
        of_losses[gpu] = (Measured(Quantity.LOSSES, n),)
    last_good = _last_good(campaign.sound, _without(losses, lost_runs))
    for gpu, began, workload in last_good.select("gpu", "began", "workload").iter_rows():
        of_losses[gpu] += (Measured(Quantity.LAST_GOOD_RUN, at=began, text=workload),)
    first_detail = pl.col("status_detail").drop_nulls().first()
    of_failures = {
        gpu: (Measured(Quantity.FAILED_RUNS, n, text=detail),)
        for gpu, n, detail in failed_runs.group_by("gpu").agg(pl.len(), first_detail).iter_rows()
    }
    of_errors = _xids(hardware_errors)
    for gpu in hardware_errors.filter(reset)["gpu"].unique():
        of_errors[gpu] = (*of_errors.get(gpu, ()), Measured(Quantity.NEEDS_RESET))
    of_memory, counted_memory = _xids(memory_errors), pl.DataFrame(schema={"gpu": pl.String, "ts": pl.Datetime("us")})
    if campaign.counters is not None:
        for gpu, failed, uncorrected in campaign.counters.select("gpu", *_COUNTERS).iter_rows():
            of_row = (Measured(Quantity.ROW_REMAP_FAILED),) if failed else ()
            of_errors_of_gpu = (Measured(Quantity.UNCORRECTED_ERRORS, uncorrected),) if uncorrected else ()
            of_memory[gpu] = (*of_memory.get(gpu, ()), *of_row, *of_errors_of_gpu)
        ends = [campaign.counters.select("gpu", pl.col(end).alias("ts")) for end in ("first", "last")]
        counted_memory = pl.concat(ends).unique(maintain_order=True)
    still_runs = runs.filter(pl.col("gpu").is_in(list(still))).drop_nulls("power_w")
    return (
        *_facts(Kind.LOST, of_losses, lost_runs, losses, last_good.select("gpu", "run_id")),
        *_facts(Kind.WRONG, _wrong_results(campaign.runs, wrong_runs), wrong_runs),
        *_facts(Kind.FAILED, of_failures | of_errors, failed_runs, hardware_errors),
        *_facts(Kind.SENSOR, still, _at_one_power(still_runs)),
        *_facts(Kind.MEMORY_ERRORS, of_memory, memory_errors, counted_memory),
    )


def _facts(kind: Kind, measured: Still, *signs: pl.DataFrame) -> Iterator[Fact]:
    """The facts of one kind, by GPU. `signs`: runs or events that show them, in time."""
    frames = [pl.DataFrame(schema=_SIGN)]
    for sign in signs:
        renamed = sign.rename({"began": "at", "ts": "at"}, strict=False)
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in _SIGN.items() if name not in renamed.columns]
        frames.append(renamed.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in _SIGN.items()))
    at = pl.col("at").drop_nulls()
    pauses = at.sort().diff() >= timedelta(days=PAUSE)
    by_gpu = pl.concat(frames).group_by("gpu").agg(
        pl.col("workload").drop_nulls().unique(maintain_order=True), pl.col("run_id").drop_nulls(),
        at.min().alias("first"), at.max().alias("last"), (1 + pauses.sum()).alias("sittings"),
    )  # fmt: skip
    rows = {gpu: figures for gpu, *figures in by_gpu.iter_rows()}
    for gpu in sorted(measured):
        workloads, run_ids, first, last, sittings = rows.get(gpu, ([], [], None, None, 1))
        yield Fact(gpu, kind, measured[gpu], tuple(workloads), tuple(run_ids), first, last, sittings)


def _without(rows: pl.DataFrame, *others: pl.DataFrame) -> pl.DataFrame:
    """The rows of GPUs that none of the others has."""
    return rows.filter(~pl.col("gpu").is_in(list({gpu for other in others for gpu in other["gpu"]})))


def _last_good(sound: pl.DataFrame, losses: pl.DataFrame) -> pl.DataFrame:
    """By GPU of these losses, the last run that ended well before the first of them; nulls where there is none."""
    first = losses.group_by("gpu").agg(pl.col("ts").min().alias("lost"))
    runs = sound.filter(pl.col("gpu").is_in(first["gpu"].implode()) & pl.col("began").is_not_null())
    runs = runs.select(pl.col("gpu", "workload").cast(pl.String), "run_id", "began").join(first, on="gpu")
    before = runs.filter(pl.col("lost").is_null() | (pl.col("began") < pl.col("lost"))).sort("began")
    return first.join(before.drop("lost").group_by("gpu").last(), on="gpu", how="left")


def _wrong_results(runs: pl.DataFrame, wrong_runs: pl.DataFrame) -> dict[str, tuple[Measured, ...]]:
    """By GPU, how many of its checked results were wrong, and the elements of the worst."""
    checked = dict(runs.filter(pl.col("checked_elements").is_not_null()).group_by("gpu").len().iter_rows())
    elements = pl.col("wrong_elements").filter(pl.col("wrong_elements").is_finite() & (pl.col("wrong_elements") > 0))
    return {
        gpu: (
            Measured(Quantity.WRONG_RESULTS, n, limit=max(checked.get(gpu, 0), n)),
            Measured(Quantity.WRONG_ELEMENTS, None if most is None else int(most)),
        )
        for gpu, n, most in wrong_runs.group_by("gpu").agg(pl.len(), elements.max()).iter_rows()
    }


def _at_one_power(runs: pl.DataFrame) -> pl.DataFrame:
    """Of each GPU, the runs at the power that occurs most often, if it occurs twice; else all."""
    same = pl.len().over("gpu", "power_w")
    return runs.filter(same == same.max().over("gpu"))


def _xids(events: pl.DataFrame) -> dict[str, tuple[Measured, ...]]:
    """By GPU, each XID with how often it came, the lowest number first."""
    of_gpus: dict[str, tuple[Measured, ...]] = {}
    for gpu, code, n in events.drop_nulls("code").group_by("gpu", "code").len().sort("gpu", "code").iter_rows():
        of_gpus[gpu] = (*of_gpus.get(gpu, ()), Measured(Quantity.XID, code, n=n))
    return of_gpus


# -- power readings that stand still ------------------------------------------------------------------------------


def still_power(
    campaign: Probed, store: Store | None, *, engine: Engine = HERE, progress: Progress | None = None
) -> StillSensors:
    """GPUs whose power reading is 0 W or stood still while their load moved, with what shows it: in the telemetry of
    the `store`, by an event of a collector, or because runs of different load have the same power to the milliwatt."""
    sensors = StillSensors({})
    if store is not None:
        sensors = still_readings(store, campaign, engine=engine, progress=progress)
    still = dict(sensors.still)
    kinds = [EventKind.STUCK_SENSOR.value, EventKind.ZERO_POWER.value]
    reported = campaign.events.filter(pl.col("kind").is_in(kinds)).drop_nulls("gpu")
    for gpu, detail in reported.select("gpu", "detail").iter_rows():
        still.setdefault(gpu, (Measured(Quantity.REPORTED, text=detail),))
    for gpu, measured in _still_runs(campaign.runs).items():
        still.setdefault(gpu, measured)
    return replace(sensors, still=still)


def _still_runs(runs: pl.DataFrame) -> dict[str, tuple[Measured, ...]]:
    """GPUs of which several runs have the same power where that of the peers moves."""
    has_power = pl.col("power_w").is_finite() & (pl.col("power_w") > 0)
    runs = only(runs.select("gpu", "model", "workload", "power_w"), has_power)
    gpu = codes(runs["gpu"])
    key = np.rint(np.clip(runs["power_w"].to_numpy(), 0, 1e5) * 1000)
    key += gpu * 1e9
    key.sort()
    repeated = np.unique(key[_STILL_RUNS - 1 :][key[_STILL_RUNS - 1 :] == key[: 1 - _STILL_RUNS]] // 1e9)
    if not len(repeated):
        return {}
    usual = runs.group_by("model", "workload").agg(pl.col("power_w").median().alias("usual"))
    same = (
        runs.filter(pl.Series(np.isin(gpu, repeated)))
        .join(usual, on=["model", "workload"], nulls_equal=True)
        .group_by("gpu", "power_w")
        .agg(pl.len().alias("n"), (pl.col("usual").max() / pl.col("usual").min()).alias("moved"))
        .filter((pl.col("n") >= _STILL_RUNS) & (pl.col("moved") >= _MOVED))
        .sort("gpu", "n")
        .unique("gpu", keep="first", maintain_order=True)
    )
    return {
        gpu: (Measured(Quantity.STILL_POWER, power, unit="W", n=n), Measured(Quantity.MOVED_POWER, moved))
        for gpu, power, n, moved in same.iter_rows()
    }


def still_readings(
    store: Store, campaign: Probed, *, engine: Engine = HERE, progress: Progress | None = None
) -> StillSensors:
    """GPUs whose power reading stood still while their load moved, with what shows it.

    The rule of `collectors.quality`, for a shorter time: ten readings or more over ten seconds or more that are the
    same to the milliwatt, while the utilisation moves by 30 points. Made in parts of GPUs and days: a stretch of equal
    readings that goes on in the next part is one.
    """
    began, ended = campaign.runs["began"].dt.epoch("us").min(), campaign.runs["ended"].dt.epoch("us").max()
    if not isinstance(began, int) or not isinstance(ended, int):
        return StillSensors({})
    gpus = campaign.gpus["gpu"].cast(pl.String).drop_nulls().unique().sort().to_list()
    parts = gpu_days(store, (began, ended + 1), cluster=campaign.cluster, gpus=gpus) if gpus else []
    results, coverage = made(store, engine, _stretches, parts, progress)
    pieces, unread = [pl.DataFrame(schema=_STRETCH)], set[str]()
    for part, result in zip(parts, results, strict=True):
        gpus_of_part = part.gpus or ()
        lacking = gpus_of_part if result is None else [gpus_of_part[window] for window in result.unread]
        unread.update(lacking)
        # A row of each of these GPUs, so that what lies before and after stays apart.
        rows = [pl.DataFrame({"gpu": lacking}, schema={"gpu": pl.String}), *([] if result is None else [result.rows])]
        pieces += [piece.with_columns(pl.lit(len(pieces), pl.Int64).alias("part")) for piece in rows]
    at_borders = pl.concat(pieces, how="diagonal").sort("gpu", maintain_order=True)
    same = (pl.col("gpu", "power") == pl.col("gpu", "power").shift()).name.prefix("same_")
    goes_on = pl.all_horizontal("same_gpu", "same_power", pl.col("part") != pl.col("part").shift())
    joined = at_borders.with_columns(same).with_columns(goes_on.fill_null(value=False).alias("goes_on"))
    stretches = joined.group_by("gpu", (~pl.col("goes_on")).cum_sum().alias("stretch"), maintain_order=True).agg(
        (pl.col("power").first() / 1000).alias("watts"),
        pl.col("n").sum(),
        ((pl.col("last_us").max() - pl.col("first_us").min()) / 1e6).alias("span_s"),
        (pl.col("most").max() - pl.col("least").min()).alias("moved"),
    )
    still = (pl.col("n") >= _STILL) & (pl.col("span_s") >= _STILL_S) & (pl.col("moved") >= _UTILISATION)
    longest = stretches.filter(still).sort("gpu", "n", "stretch").unique("gpu", keep="last", maintain_order=True)
    evidence = {
        gpu: (
            Measured(Quantity.STILL_POWER, watts, unit="W", n=n),
            Measured(Quantity.STILL_TIME, span_s, unit="s"),
            Measured(Quantity.MOVED_UTILISATION, moved, unit="%"),
        )
        for gpu, watts, n, span_s, moved in longest.drop("stretch").iter_rows()
    }
    return StillSensors(evidence, coverage, tuple(sorted(unread)))


def _stretches(part: GpuDays) -> PartRows:
    """The stretches of equal power in a part: the first and the last one of each GPU, and others that are long."""
    gpus = list(part.gpus or ())
    times = {"began": part.since_us, "ended": part.until_us, "until": part.until_us}
    ends = [pl.lit(time_us, pl.Datetime("us")).alias(name) for name, time_us in times.items()]
    windows = pl.DataFrame({"gpu": gpus}).with_columns(pl.lit(part.cluster).alias("cluster"), *ends)
    milliwatts, utilization = board_power_mw(), pl.col("utilization")
    columns = {"ts_us": pl.col("ts").dt.epoch("us"), "mw": milliwatts, "used": utilization.cast(pl.Int16)}
    windows_part = WindowPart(part.root, arrow_of(windows))
    read = windows_part.readings(columns, milliwatts.is_not_null() & utilization.is_not_null())
    if read.rows.is_empty():
        return replace(read, rows=pl.DataFrame(schema=_STRETCH).drop("part"))
    gpu, ts, power, used = (read.rows[name].to_numpy() for name in ("window", "ts_us", "mw", "used"))
    if not ((gpu[1:] > gpu[:-1]) | ((gpu[1:] == gpu[:-1]) & (ts[1:] >= ts[:-1]))).all():
        order = np.lexsort((ts, gpu))
        gpu, ts, power, used = (values[order] for values in (gpu, ts, power, used))
    begin = np.flatnonzero(np.append(True, (gpu[1:] != gpu[:-1]) | (power[1:] != power[:-1])))
    end = np.append(begin[1:], len(gpu))
    is_first = np.append(True, gpu[begin[1:]] != gpu[begin[:-1]])
    rows = np.flatnonzero(is_first | np.append(is_first[1:], True) | (end - begin >= _STILL))
    stretches = {
        "gpu": pl.Series(gpus).gather(gpu[begin[rows]]),
        "power": power[begin[rows]],
        "n": (end - begin)[rows],
        "first_us": ts[begin[rows]],
        "last_us": ts[end[rows] - 1],
        "least": np.minimum.reduceat(used, begin)[rows],
        "most": np.maximum.reduceat(used, begin)[rows],
    }
    kinds = dict.fromkeys(("power", "n", "least", "most"), pl.Int64)
    return replace(read, rows=pl.DataFrame(stretches, schema_overrides=kinds))
