"""The rows of `whorl energy quote`: a job of a store, and what it would have taken elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ....errors import InputError
from ....store.instants import nanoseconds
from ....store.power_sensors import SensorError
from ...power_classes import curve_of_runs, own_runs
from ..answers import Answer, energy
from ..attribute import Kind
from ..books import Booked, add_up
from ..settings import EnergySettings
from .busy import busy
from .excess import add, excess, use_of
from .ground import Ground, ground
from .placed import job_allocations
from .places import places
from .quoting import CAPS, Quote, Ran, as_it_ran, caps, other_models, starts, usual_gpu, with_pareto

if TYPE_CHECKING:
    from ....store import Store

DEADLINE_S = 86_400.0
_SUMS = ("co2e_g", "cost", "host_j")


@dataclass(frozen=True)
class Quoted:
    """A job or a workload, and its quotes."""

    job: str | None
    """None of a workload."""
    ran: Ran
    quotes: Sequence[Quote]
    settings: EnergySettings
    """What a kWh costs and emits."""
    notes: Sequence[str]
    ends: tuple[datetime | None, datetime | None] = (None, None)
    """From when to when its energy was read, UTC."""
    lost: Mapping[str, Any] | None = None
    """What its GPUs cost beyond the median GPUs of their models, a row of `excess.add`; None where it had none."""
    places: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Where each of its GPUs stands: `places.places`."""


def quote(
    store: Store | str | Path,
    job: str,
    *,
    cluster: str | None = None,
    deadline_s: float = DEADLINE_S,
    shares: Sequence[float] = CAPS,
    now: datetime | None = None,
    answer: Answer | None = None,
    grounds: Callable[[str, SensorError], Ground] | None = None,
    progress: Callable[[str], None] | None = None,
    **more: Any,
) -> Quoted:
    """What a job took, and would have taken on other GPUs, under power caps, and at another hour.

    `deadline_s`: how long from `now` (UTC) its end may be away, for the hour. `shares` are power caps, as shares of the
    job's limit. `answer`: what `answers.energy` said of the job, where it was asked before; else `more` is what that
    takes. `grounds` gives the ground of a cluster, for callers that keep it.
    Raises InputError as that does.
    """
    from ....store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    say = progress or (lambda _: None)
    found = answer or energy(opened, job=job, cluster=cluster, progress=progress, **more)
    mine = found.rows.filter(pl.col("kind") == Kind.JOB).select("cluster", "job_id")
    if mine.is_empty():
        raise InputError(f"no GPU of job {job} is known in this time: leave --since and --until out")
    where = str(mine["cluster"][0])
    of_jobs = job_allocations(opened, mine["job_id"]).join(mine, on=["cluster", "job_id"], how="semi", nulls_equal=True)
    pieces = found.booked.pieces.filter(pl.col("kind") == Kind.JOB)
    pieces = pieces.join(of_jobs, on=["cluster", "allocation"], how="semi", nulls_equal=True)
    say("comparing the GPUs")
    sensor = found.booked.sensor
    base = ground(opened, where, sensor) if grounds is None else grounds(where, sensor)
    used = busy(opened, pieces)
    ran = _ran(pieces, used, base.named, where, found.booked)
    own = pl.col("gpu").is_in(pieces["gpu"].drop_nulls().unique().implode())
    rows = excess(pieces, base.levels.filter(own), used, sensor=sensor, compared=base.compared)
    of_all = add(rows, ["cluster"]).to_dicts()
    quotes = [as_it_ran(ran)]
    if of_all:
        quotes.append(usual_gpu(ran, of_all[0]))
    quotes += other_models(ran, base.models, sensor)
    itself = None
    if ran.workload is not None and len(ran.models) == 1:
        of_work = own_runs(opened, cluster=where, workload=ran.workload)
        itself = curve_of_runs(of_work.filter(pl.col("model") == ran.models[0]))
    quotes += caps(ran, base.caps, itself, shares=shares)
    at_ns = nanoseconds(datetime.now(UTC) if now is None else now)
    quotes += starts(ran, found.booked.settings, at_ns, at_ns + round(deadline_s * 1e9))
    lost = of_all[0] if of_all else None
    ends = found.booked.since, found.booked.until
    stands = places(rows, base.stands.filter(own))
    return Quoted(job, ran, with_pareto(quotes), found.booked.settings, base.notes, ends, lost, stands)


def _ran(pieces: pl.DataFrame, used: pl.DataFrame, named: pl.DataFrame, cluster: str, booked: Booked) -> Ran:
    """What is known of the job; nothing of its energy where it has no pieces."""
    totals = add_up(pieces, ["cluster"], errors=booked.errors, also=_SUMS).to_dicts()
    total = totals[0] if totals else dict.fromkeys(("energy_j", "low_j", "high_j", "idle_j", "method", *_SUMS))
    read_w = booked.metered.select(
        "cluster", "gpu", pl.col("limit_w").alias("read_w")
    )  # as streams of nvidia-smi say it
    of = named.filter(pl.col("gpu").is_in(pieces["gpu"].unique().implode())).join(
        read_w, on=["cluster", "gpu"], how="left", maintain_order="left"
    )
    of = of.with_columns(pl.coalesce("limit_w", "read_w").alias("limit_w"))
    # Rows stay in order here and below: a sum in another order ends in other digits.
    seconds = pieces.group_by("cluster", "gpu", "allocation", maintain_order=True).agg(
        (pl.col("share") * (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9).sum().alias("gpu_s")
    )
    read = seconds.join(used, on=["cluster", "gpu", "allocation"], how="left", maintain_order="left")
    known = read.height > 0 and read["busy"].null_count() == 0
    share = _mean(read, "busy") if known else None
    memory = _mean(read, "memory") if known and read["memory"].null_count() == 0 else None
    workloads = read["workload"].unique().to_list()
    limits = of["limit_w"].drop_nulls()
    return Ran(
        cluster, tuple(sorted(of["model"].drop_nulls().unique())), pieces["gpu"].drop_nulls().n_unique(),
        float(total.get("duration_s") or 0.0), float(seconds["gpu_s"].sum()), total["energy_j"], total["low_j"],
        total["high_j"], total["idle_j"], share, use_of(share, memory),
        workloads[0] if len(workloads) == 1 else None,
        float(limits.mean()) if len(limits) == of.height and of.height else None,  # type: ignore[arg-type]
        total["co2e_g"], total["cost"], total["method"], total["host_j"] or 0.0,
    )  # fmt: skip


def _mean(read: pl.DataFrame, name: str) -> float:
    return float(read.select((pl.col(name) * pl.col("gpu_s")).sum() / pl.col("gpu_s").sum()).item())
