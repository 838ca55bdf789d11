"""Where the probes of a simulated fleet find their GPUs: its place in a store, and the bench on which it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..collectors.simulated_record import Record
    from ..collectors.simulated_rows import Planted
    from ..simulation.bench import Bench
    from ..simulation.fleet import Fleet
    from ..store import Store
    from .campaign import Plan, Progress, Report


def claim(
    store: Store,
    fleet: Fleet,
    plan: Plan,
    *,
    cluster: str | None = None,
    cap_w: float | None = None,
    lock_mhz: float | None = None,
) -> tuple[Record, Bench]:
    """Store who the GPUs are and what was planted in them, and take the fleet's next free day in the store.

    Faults that set in at some time do so while the plan runs. InputError for a cap or lock that the model cannot
    hold, and where the store holds the same GPUs with other faults.
    """
    from ..collectors.simulated_record import identify
    from ..simulation.bench import Bench
    from ..simulation.fleet import GPUS_PER_NODE
    from ..simulation.load import find_load

    fleet.limits(cap_w, lock_mhz)  # before anything is stored
    if lock_mhz is not None:  # as on real GPUs: the nearest clock that there is, and the conditions name that one
        lock_mhz = min(fleet.model.clocks_mhz.tolist(), key=lambda clock: abs(clock - lock_mhz))
    turns = min(GPUS_PER_NODE, len(fleet)) if plan.neighbours == "idle" else 1
    span_s = turns * plan.expected_s()
    # Each start of the command is a campaign of its own in the fleet's time, so that its name must be a new one.
    record = identify(store, fleet, find_load("idle"), cluster, None, span_s, {"probes": float(time.time_ns())})
    began_ns = record.began_ns
    bench = Bench(
        fleet,
        began_ns=began_ns,
        cap_w=cap_w,
        lock_mhz=lock_mhz,
        span_s=span_s,
        age_days=record.age_days(began_ns),
    )
    return record, bench


def run_fleet(
    store: Store,
    fleet: Fleet,
    plan: Plan,
    *,
    cluster: str | None = None,
    cap_w: float | None = None,
    lock_mhz: float | None = None,
    telemetry_s: float = 1.0,
    progress: Progress | None = None,
) -> tuple[Report, tuple[Planted, ...]]:
    """Claim a simulated fleet's place and run a plan on it: the report, and what was planted. Errors as both raise."""
    from .running import run_simulated

    record, bench = claim(store, fleet, plan, cluster=cluster, cap_w=cap_w, lock_mhz=lock_mhz)
    return run_simulated(record, bench, plan, telemetry_s=telemetry_s, progress=progress), record.planted
