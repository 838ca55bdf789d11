"""Probes on one node of a simulated cluster, as a job on it runs them: many jobs write into one store at once.

    report = run_node(store, read_fleet("tiny.toml").node("n01"), plan)

The simulated clock begins at the time of day, or where the last runs on these GPUs ended, if that is later: then it has
run ahead. It goes on as fast as it can. As on real GPUs, runs that the campaign has stored are not made again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import compute

from ..collectors.claim import DAY_NS, introduce, planted_in
from ..collectors.simulated import devices_of, telemetry_of
from ..kernels.catalogue import find_kernel
from ..simulation.bench import Bench
from ..simulation.cluster import SimulatedNode
from ..simulation.stepping import Happening, Readings
from ..store import Store
from .campaign import Campaign, Plan, Progress, Report
from .recording import Recorder, past_of
from .simulated import Keeping, built_once, nearest_clock, run_on

_SECOND_NS = 1_000_000_000


def run_node(
    store: Store,
    node: SimulatedNode,
    plan: Plan,
    *,
    chosen: Sequence[int] | None = None,
    cluster: str | None = None,
    cap_w: float | None = None,
    lock_mhz: float | None = None,
    telemetry_s: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """Run a plan on the GPUs of a simulated node, or on those at the positions `chosen`, and store what it finds.

    Faults that begin at some time begin while the plan runs. InputError for a cap (W) or lock (MHz) that the model
    cannot hold. StoreError if the store cannot be written: what was stored stays.
    """
    cluster = cluster or node.cluster.name
    chosen = range(len(node.who)) if chosen is None else sorted(chosen)
    chosen_gpus = [node.who[position].uuid for position in chosen]
    lock_mhz = nearest_clock(node.cluster.drawn, cap_w, lock_mhz)
    past = past_of(store, cluster, chosen_gpus)
    now_ns = -(-max(time.time_ns(), past.ended_ns or 0) // _SECOND_NS) * _SECOND_NS
    fleet = node.fleet(now_ns // DAY_NS)
    turns = len(chosen) if plan.neighbours == "idle" else 1
    span_s = turns * plan.expected_s()
    bench = Bench(
        fleet,
        began_ns=now_ns,
        cap_w=cap_w,
        lock_mhz=lock_mhz,
        span_s=span_s,
        age_days=0.0 if past.began_ns is None else (now_ns - past.began_ns) / DAY_NS,
        who=node.who,
    )
    recorder = Recorder(store, cluster=cluster, campaign=plan.campaign)
    campaign = Campaign(
        plan, recorder, built_once(find_kernel), past.runs_of(plan.campaign), len(chosen), progress=progress
    )
    planted = planted_in(fleet, node.who, now_ns, span_s)
    stored = introduce(store, cluster, node.fleet(), node.who, planted, node.cluster.drawn.seed)
    recorder.rows |= {name: rows for name, rows in stored.items() if rows}
    campaign.report.planted = tuple(fault for fault in planted if fault.uuid in chosen_gpus)
    pace = _Pace(node.cluster.seconds_per_job, now_ns, span_s)
    keeping = _OnNode(node, chosen_gpus, pace, recorder, telemetry_s=telemetry_s)
    return run_on(bench, chosen, campaign, keeping)


@dataclass(frozen=True)
class _Pace:
    """Holds a job back, so that it lasts at least so long, s of real time."""

    seconds: float
    began_ns: int
    span_s: float
    """How long the plan takes at most, simulated s."""
    since: float = field(default_factory=lambda: time.monotonic())

    def wait(self, now_ns: int | None = None) -> None:
        """Wait until as much of that time has passed as of the plan's; until all of it has, without `now_ns`."""
        share = 1.0 if now_ns is None else min(1.0, (now_ns - self.began_ns) / (1e9 * self.span_s))
        time.sleep(max(0.0, self.since + share * self.seconds - time.monotonic()))


class _OnNode(Keeping):
    """Records the GPUs of a node. Readings are stored up to the end of the last run, so that the next job, which begins
    there, stores no instant again."""

    def __init__(
        self,
        node: SimulatedNode,
        chosen_gpus: Sequence[str],
        pace: _Pace,
        recorder: Recorder,
        *,
        telemetry_s: float,
    ) -> None:
        super().__init__(node.who, pace.began_ns, recorder, telemetry_s=telemetry_s)
        self._devices = devices_of(node.cluster.drawn.model, node.who)
        self._chosen_gpus, self._pace = chosen_gpus, pace

    def run(self, bench: Bench, work: Sequence[Any], *, every_s: float) -> None:
        super().run(bench, work, every_s=every_s)
        if self.recorder.rows.get("runs"):
            self._pace.wait()

    def _tick(self, readings: Readings, happened: list[Happening]) -> None:
        super()._tick(
            readings, [happening for happening in happened if self.who[happening.gpu].uuid in self._chosen_gpus]
        )
        self._pace.wait(readings.ts_ns)
        if self._enough or self.recorder.due:
            self._store(readings.ts_ns)

    def _store(self, to_ns: int, *, complete: bool = False) -> None:  # noqa: ARG002 - what has ended is complete
        to_ns = min(to_ns, self.recorder.ended_ns)
        chunk = [readings for readings in self._chunk if readings.ts_ns <= to_ns]
        self._chunk = self._chunk[len(chunk) :]
        if chunk:
            rows = pa.Table.from_batches([telemetry_of(self.recorder.cluster, self._devices, chunk)])
            self.recorder.take("telemetry", rows.filter(compute.is_in(rows["gpu"], pa.array(self._chosen_gpus))))
        self._take_nodes(to_ns)
        self.recorder.flush()
