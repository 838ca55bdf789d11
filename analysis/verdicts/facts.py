"""What was seen of GPUs and needs no test: lost, wrong results, failed, a power reading that stood still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.metrics import board_power_mw
from ...store.vocabulary import EventKind, Outcome
from ..runs.measurements import SOUND
from ..runs.probing import OF_HARDWARE, OF_MEMORY, Probed
from ..runs.sittings import begins, days
from .states import codes
from .verdict import Action, Kind, Measured, Quantity, action_of

if TYPE_CHECKING:
    from ...store import Store

_FROZEN, _FROZEN_S = 10, 10.0  # readings that are the same to the milliwatt, and for this many s ...
_UTILISATION = 30  # ... while the utilisation moves by this many points, as in `collectors.quality`
_SAME = 4  # runs in a row whose power is the same to the milliwatt ...
_FELL_OFF = 79  # XID
_MOVED = 1.2  # ... where that of the peers' runs differs by this factor


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was seen of a GPU."""

    gpu: str
    kind: Kind
    measured: tuple[Measured, ...]
    action: Action
    workloads: tuple[str, ...]
    runs: tuple[str, ...]
    """Ids of the runs that show it."""
    first_seen: datetime | None
    last_seen: datetime | None
    sittings: int
    """In how many sittings at least 6 hours apart it was seen."""


def seen_things(campaign: Probed, frozen: Mapping[str, tuple[Measured, ...]]) -> tuple[Seen, ...]:
    """All of them, the worst first: a GPU that is lost did not fail besides. `frozen`: of `frozen_power`."""
    found: dict[tuple[str, Kind], Seen] = {}
    of_frozen = pl.col("gpu").is_in(list(frozen))
    counted = (pl.col("wrong_elements") > 0) & pl.col("wrong_elements").is_finite()
    wrong_result = counted.fill_null(value=False) | (pl.col("status") == Outcome.WRONG_RESULT.value)
    did_not_end = ~SOUND & ~wrong_result
    runs = campaign.runs.filter(of_frozen | wrong_result | did_not_end).sort("began", nulls_last=True)
    no_time = runs.filter(did_not_end)
    gone = no_time.filter(pl.col("status") == Outcome.LOST.value)
    fell = (pl.col("kind") == EventKind.XID.value) & (pl.col("code") == _FELL_OFF)
    events = campaign.events.filter((pl.col("kind") == EventKind.LOST.value) | fell).drop_nulls("gpu")
    for gpu in [*gone["gpu"].unique(maintain_order=True), *events["gpu"].unique(maintain_order=True)]:
        if (gpu, Kind.LOST) in found:
            continue
        own, told = gone.filter(pl.col("gpu") == gpu), events.filter(pl.col("gpu") == gpu)
        n = max(told.filter(~fell).height, 1)
        one = _seen(gpu, Kind.LOST, (Measured(Quantity.LOSSES, n),), own, told["ts"])
        found[gpu, Kind.LOST] = one if one.runs else _last_good(one, campaign.sound)
    for (gpu,), own in no_time.filter(pl.col("status") != Outcome.LOST.value).group_by(["gpu"], maintain_order=True):
        if (str(gpu), Kind.LOST) in found:
            continue
        detail = own["status_detail"].drop_nulls()
        failed = Measured(Quantity.FAILED_RUNS, own.height, text=detail[0] if len(detail) else None)
        found[str(gpu), Kind.FAILED] = _seen(str(gpu), Kind.FAILED, (failed,), own)
    wrong = runs.filter(wrong_result)
    checked = campaign.runs.filter(pl.col("checked_elements").is_not_null()).group_by("gpu").len()
    many = dict(checked.iter_rows())
    for (gpu,), own in wrong.group_by(["gpu"], maintain_order=True):
        most = own.filter(counted)["wrong_elements"].max()
        wrong_measured = (
            Measured(Quantity.WRONG_RESULTS, own.height, limit=max(int(many.get(gpu, 0)), own.height)),
            Measured(Quantity.WRONG_ELEMENTS, None if most is None else int(most)),  # type: ignore[arg-type]
        )
        found[str(gpu), Kind.WRONG] = _seen(str(gpu), Kind.WRONG, wrong_measured, own)
    for gpu, measured in frozen.items():
        own = runs.filter((pl.col("gpu") == gpu) & pl.col("power_w").is_not_null())
        # The runs at the power that occurs most often are those that show it.
        same = own.filter(pl.col("power_w") == pl.col("power_w").mode().first())
        found[gpu, Kind.SENSOR] = _seen(gpu, Kind.SENSOR, measured, same if same.height > 1 else own)
    found |= {(gpu, Kind.MEMORY_ERRORS): one for gpu, one in _memory_errors(campaign, runs.clear()).items()}
    for gpu, one in _hardware_errors(campaign, runs.clear()).items():
        if (gpu, Kind.LOST) not in found:
            found.setdefault((gpu, Kind.FAILED), one)
    order = list(Kind)
    return tuple(sorted(found.values(), key=lambda one: (order.index(one.kind), one.gpu)))


def _last_good(one: Seen, runs: pl.DataFrame) -> Seen:
    """A loss that no run shows, with the last run that ended well before it."""
    good = runs.filter(pl.col("gpu") == one.gpu).drop_nulls("began").sort("began")
    if one.first_seen is not None:
        good = good.filter(pl.col("began") < one.first_seen)
    if good.is_empty():
        return replace(one, measured=(*one.measured, Measured(Quantity.LAST_GOOD_RUN)))
    last = good.row(-1, named=True)
    good_run = Measured(Quantity.LAST_GOOD_RUN, at=last["began"], text=str(last["workload"]))
    return replace(one, measured=(*one.measured, good_run), runs=(str(last["run_id"]),))


def _memory_errors(campaign: Probed, none: pl.DataFrame) -> dict[str, Seen]:
    """GPUs of whose memory the driver told an error. `none`: runs without a row, as no run shows it."""
    told = campaign.events.filter(pl.col("code").is_in(list(OF_MEMORY))).drop_nulls("gpu")
    found = {}
    for (gpu,), own in told.group_by(["gpu"], maintain_order=True):
        found[str(gpu)] = _seen(str(gpu), Kind.MEMORY_ERRORS, _xids(own), none, own["ts"])
    return found


def _xids(events: pl.DataFrame) -> tuple[Measured, ...]:
    """Each XID of these events with how often it came, the lowest number first."""
    counted = events.group_by("code").len().sort("code").iter_rows()
    return tuple(Measured(Quantity.XID, code, n=n) for code, n in counted)


def _hardware_errors(campaign: Probed, none: pl.DataFrame) -> dict[str, Seen]:
    """GPUs of which the driver told an error of the hardware, or that they need a reset. `none`: as above."""
    reset = pl.col("kind") == EventKind.NEEDS_RESET.value
    codes_of = [code for code in OF_HARDWARE if code != _FELL_OFF]
    told = campaign.events.filter(reset | pl.col("code").is_in(codes_of)).drop_nulls("gpu")
    found = {}
    for (gpu,), own in told.group_by(["gpu"], maintain_order=True):
        needs_reset = (Measured(Quantity.NEEDS_RESET),) if own.select(reset.any()).item() else ()
        errors = (*_xids(own.filter(~reset)), *needs_reset)
        found[str(gpu)] = _seen(str(gpu), Kind.FAILED, errors, none, own["ts"])
    return found


def _seen(
    gpu: str, kind: Kind, measured: tuple[Measured, ...], runs: pl.DataFrame, events: pl.Series | None = None
) -> Seen:
    at = [*runs["began"].drop_nulls(), *([] if events is None else events.drop_nulls())]
    at.sort()
    when = pl.DataFrame({"began": at}).select(days()).to_series().to_numpy()
    sittings = begins(np.zeros(len(at), np.int64), when, longest=np.inf)  # they are to be 6 hours apart
    return Seen(
        gpu,
        kind,
        measured,
        action_of(kind),
        tuple(str(name) for name in runs["workload"].unique(maintain_order=True)),
        tuple(str(run) for run in runs["run_id"]),
        at[0] if at else None,
        at[-1] if at else None,
        max(1, int(sittings.sum())),
    )


def frozen_power(campaign: Probed, store: Store | None) -> dict[str, tuple[Measured, ...]]:
    """GPUs whose power reading is 0 W or stood still while their load moved, with what shows it: in the telemetry of
    the `store`, by an event of a collector, or because runs of different load have the same power to the milliwatt."""
    found = {} if store is None else frozen_readings(store, campaign)
    bad = [EventKind.STUCK_SENSOR.value, EventKind.ZERO_POWER.value]
    stuck = campaign.events.filter(pl.col("kind").is_in(bad)).drop_nulls("gpu")
    for gpu, detail in stuck.select("gpu", "detail").iter_rows():
        found.setdefault(gpu, (Measured(Quantity.REPORTED, text=detail),))
    known = campaign.runs.filter(pl.col("power_w").is_finite() & (pl.col("power_w") > 0))
    suspects = _repeated(known)
    if not suspects:
        return found
    by_load = pl.col("power_w").median().over("model", "workload")
    same = (
        known.with_columns(by_load.alias("usual"))
        .filter(pl.col("gpu").is_in(suspects))
        .group_by("gpu", "power_w")
        .agg(pl.len().alias("n"), (pl.col("usual").max() / pl.col("usual").min()).alias("moved"))
        .filter((pl.col("n") >= _SAME) & (pl.col("moved") >= _MOVED))
        .sort("gpu", "n")
    )
    for gpu, power, n, moved in same.iter_rows():
        found.setdefault(
            gpu,
            (
                Measured(Quantity.STILL_POWER, power, unit="W", n=n),
                Measured(Quantity.MOVED_POWER, moved),
            ),
        )
    return found


def _repeated(runs: pl.DataFrame) -> list[str]:
    """GPUs of which so many runs have the same power."""
    gpu, milliwatts = (
        pl.Series(codes(runs["gpu"])),
        (runs["power_w"].clip(0, 1e5) * 1000).round().cast(pl.Int64),
    )
    key = np.sort((gpu * 10**9 + milliwatts).to_numpy())
    same = key[_SAME - 1 :][key[_SAME - 1 :] == key[: len(key) - _SAME + 1]]
    return runs["gpu"].filter(gpu.is_in(np.unique(same // 10**9))).unique().to_list() if len(same) else []


def frozen_readings(store: Store, campaign: Probed) -> dict[str, tuple[Measured, ...]]:
    """GPUs whose power reading stood still while their load moved, with what shows it.

    The rule of `collectors.quality`, for a shorter time: ten readings or more over ten seconds or more that are the
    same to the milliwatt, while the utilisation moves by 30 points.
    """
    began, ended = campaign.runs["began"].min(), campaign.runs["ended"].max()
    if began is None or ended is None:
        return {}
    rows = (
        store.scan("telemetry")
        .filter(
            (pl.col("cluster") == campaign.cluster)
            & pl.col("gpu").is_in(campaign.gpus["gpu"].implode())
            & pl.col("ts").is_between(pl.lit(began), pl.lit(ended))
        )
        .select("gpu", "ts", "utilization", board_power_mw().alias("power"))
        .drop_nulls()
        .sort("gpu", "ts")
        .with_columns(pl.struct("gpu", "power").rle_id().alias("stretch"))
        .group_by("gpu", "stretch")
        .agg(
            pl.len().alias("n"),
            (pl.col("utilization").max() - pl.col("utilization").min()).alias("moved"),
            pl.col("power").first(),
            ((pl.col("ts").max() - pl.col("ts").min()).dt.total_nanoseconds() / 1e9).alias("span_s"),
        )
        .filter((pl.col("n") >= _FROZEN) & (pl.col("span_s") >= _FROZEN_S) & (pl.col("moved") >= _UTILISATION))
        .sort("gpu", "n")
        .group_by("gpu", maintain_order=True)
        .last()
    )
    return {
        row["gpu"]: (
            Measured(Quantity.STILL_POWER, row["power"] / 1000, unit="W", n=row["n"]),
            Measured(Quantity.STILL_TIME, row["span_s"], unit="s"),
            Measured(Quantity.MOVED_UTILISATION, row["moved"], unit="%"),
        )
        for row in store.collect(rows).iter_rows(named=True)
    }
