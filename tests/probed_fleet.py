"""A store that holds a campaign of probes over a simulated fleet at its steady state: made in a moment, no bench.

What is in it is computed here from the fleet and the faults, so that a test knows what an analysis should find.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whorl.collectors.recording import identity_table, short_hash
from whorl.collectors.simulated import devices_of
from whorl.simulation.cluster import identities
from whorl.simulation.faults import FAULTS
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import IDLE, PAGERANK, SGEMM, STREAM, Workload
from whorl.simulation.models import V100
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EndedBy, Outcome
from whorl.tests.stores import new_store

BEGAN_NS = 1_767_571_200_000_000_000  # 2026-01-05
CLUSTER = "made"
RUN_S = 5


@dataclass(frozen=True)
class Made:
    """A probe of the made campaign: what runs, how long a repetition takes at the highest clock, and its facts."""

    name: str
    workload: Workload
    time_ms: float | None
    flop: float = 0
    bytes: float = 0
    path: str = "none"


PROBES = (
    Made("gemm-fp32", SGEMM, 78.0, flop=1.1e12, bytes=8e8, path="dram"),
    Made("stream-triad", STREAM, 3.9, flop=5e8, bytes=3.2e9, path="dram"),
    Made("pagerank", PAGERANK, 33.0, flop=2e8, bytes=1e9, path="dram"),
    Made("copy-h2d", IDLE, 21.0, bytes=2.6e8, path="pcie"),
    Made("idle", IDLE, None),
)


def stored(
    path: Path,
    gpus: int = 64,
    seed: int = 1,
    *,
    kinds: tuple[str, ...] = (),
    slow_links: tuple[int, ...] = (),
    telemetry: bool = True,
    campaign: str = "made-1",
    began_ns: int = BEGAN_NS,
    into: Store | None = None,
) -> tuple[Store, Fleet]:
    """The store and its fleet: one GPU has each of `kinds`, and those at `slow_links` copy at half the speed.

    `into`: a store that is there, which gets one campaign more; `path` is not used then.
    """
    fleet = Fleet.draw(V100, gpus, seed, faults=len(kinds), kinds=kinds)
    boards = identities(seed, gpus, V100.name)
    random = np.random.default_rng([seed, began_ns - BEGAN_NS] if began_ns != BEGAN_NS else seed)
    store = into or new_store(path)
    names = [board.uuid for board in boards]
    faults = [fleet.fault_of(gpu) for gpu in range(gpus)]
    runs: dict[str, list[object]] = {}
    results: dict[str, list[object]] = {}
    readings: dict[str, list[object]] = {}
    events: dict[str, list[object]] = {"ts": [], "cluster": [], "gpu": [], "kind": [], "detail": []}

    def add(rows: dict[str, list[object]], **values: object) -> None:
        for key, value in values.items():
            rows.setdefault(key, []).append(value)

    for number, probe in enumerate(PROBES):
        began = began_ns + number * RUN_S * 1_000_000_000
        idle = probe.workload is IDLE
        steady = fleet.idle() if idle else fleet.steady(probe.workload, run=number)
        relative = np.exp(random.normal(0, 0.0015, gpus)) if idle else fleet.relative_time(probe.workload, steady)
        for gpu, name in enumerate(names):
            fault, stuck = faults[gpu], faults[gpu].sticks and number > 0
            if fault.falls and number == 2:
                add(events, ts=began, cluster=CLUSTER, gpu=name, kind="probe_failed", detail=f"{name} fell off the bus")
            power = 151.5 if stuck else float(steady.reported_power_w[gpu])
            lost = fault.falls and number >= 2
            run_id = short_hash([campaign, probe.name, name])
            wrong = 7 if fault.wrong_share and number in (0, 2) else 0
            status, detail = Outcome.OK, None
            if lost:
                status, detail = Outcome.LOST, "the GPU fell off the bus"
            elif wrong:
                status, detail = Outcome.WRONG_RESULT, f"{wrong} elements of the result are wrong"
            if lost and number > 2:
                continue
            clock = float(np.floor(steady.clock_mhz[gpu])) * (0.5 if fault.slowdown_share > 0.5 else 1)
            terms = {
                "suite": "quick", "kernel": probe.name, "path": probe.path, "flop": probe.flop, "bytes": probe.bytes,
                "seed": 1, "input": "uniform in [-1, 1)", "clock": "free", "power_limit_w": V100.power_limit_w,
                "neighbours": "busy", "warm_up_s": 2.0, "steady": True, "simulated": True, "other_processes": [],
            }  # fmt: skip
            add(
                runs, run_id=run_id, cluster=CLUSTER, campaign=campaign, workload=probe.name, gpu=name, began=began,
                ended=began + RUN_S * 1_000_000_000, sm_clock_mhz=None if lost else clock,
                mem_clock_mhz=None if lost else 877.0,
                temperature_c=None if lost else float(round(steady.temperature_c[gpu])),
                power_w=None if lost else power, conditions=terms, probe_version="1",
                versions={"driver": "simulated"},
                clock_events={"power_brake": 1.4} if fault.slowdown_share and not idle else {},
                ended_by=EndedBy.FAILED if lost else EndedBy.PRECISE, status=status, status_detail=detail,
            )  # fmt: skip
            figures: list[tuple[str, str, int, float]] = []
            if probe.time_ms is not None and not lost:
                slow = 2.0 if probe.path == "pcie" and gpu in slow_links else 1.0
                times = probe.time_ms * slow * relative[gpu] * np.exp(random.normal(0, 3e-4, 20))
                middle = float(np.median(times))
                figures += [("time", "ms", place, float(time)) for place, time in enumerate(times)]
                figures += [("time_median", "ms", 0, middle), ("time_low", "ms", 0, middle * 0.9998)]
                figures += [("time_high", "ms", 0, middle * 1.0002)]
                figures += [("energy", "J", 0, middle * power / 1000)]
                if probe.flop:
                    figures += [("rate", "GFLOP/s", 0, probe.flop / middle / 1e6)]
                if probe.bytes:
                    figures += [("bandwidth", "GB/s", 0, probe.bytes / middle / 1e6)]
                figures += [("wrong_elements", "", 0, wrong), ("checked_elements", "", 0, 1e6)]
            for figure, unit, repeat, value in figures:
                add(
                    results, run_id=run_id, cluster=CLUSTER, workload=probe.name, gpu=name, repeat=repeat,
                    figure=figure, unit=unit, value=float(value),
                )  # fmt: skip
            for second in range(RUN_S if telemetry else 0):
                add(
                    readings, ts=began + second * 1_000_000_000, cluster=CLUSTER, gpu=name,
                    power_mw=None if lost else round(1000 * (power + (0 if stuck else random.normal(0, 0.3)))),
                    sm_clock_mhz=None if lost else int(clock),
                    temperature_c=None if lost else round(steady.temperature_c[gpu]),
                    utilization=None if lost else 0 if idle else 100,
                )  # fmt: skip
    rows = {
        "gpus": identity_table(devices_of(V100, boards), CLUSTER, None, began_ns),
        "runs": arrow_rows("runs", runs),
        "results": arrow_rows("results", results),
        "events": arrow_rows("events", events),
    }
    if telemetry:
        rows["telemetry"] = arrow_rows("telemetry", readings)
    store.append(rows, campaign)
    return store, fleet


def uuids(fleet: Fleet) -> dict[str, str]:
    """The UUIDs of the faulty GPUs, with the kind of their fault."""
    boards = identities(fleet.seed, len(fleet), fleet.model.name)
    return {boards[gpu].uuid: FAULTS[fleet.fault[gpu]].kind for gpu in fleet.planted}
