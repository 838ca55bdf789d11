"""Campaigns over a simulated fleet, on its own clock: probes run on it, and runs and telemetry are stored.

    report = run_simulated(store, Fleet.draw(V100, 64, seed=1), plan)

What a campaign found is stored in chunks, with the time up to which it is complete. One that was interrupted is
simulated again from its beginning, which gives the same bits, and stored from where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import cache, wraps
from typing import Any

import pyarrow as pa

from .. import __version__
from ..collectors.claim import Claim, claim
from ..collectors.simulated import devices_of, node_power_of, telemetry_of
from ..errors import StoreError
from ..kernels.catalogue import find_kernel
from ..kernels.simulated_device import SimulatedDevice
from ..kernels.work import Facts, Kernel, Unfit, Work
from ..simulation.bench import Bench
from ..simulation.cluster import Identity
from ..simulation.fleet import Fleet
from ..simulation.models import PARAMETERS
from ..simulation.nodes import NodeReadings
from ..simulation.spread import USUAL
from ..simulation.stepping import Happening, Readings
from ..store import Store
from ..store.events import Event
from ..store.vocabulary import EventKind
from .campaign import Campaign, Plan, Progress, Report
from .conditions import Setting
from .meeting import Meeting
from .recording import MOST, Recorder, past_of
from .watch import INTERVAL_S, Recent, recent

TELEMETRY_ROWS = 200_000
"""Gathered before they are stored."""
_NODES_NS = 10_000_000_000  # between two readings of the nodes' meters


def run_simulated(
    store: Store,
    fleet: Fleet,
    plan: Plan,
    *,
    cluster: str | None = None,
    cap_w: float | None = None,
    lock_mhz: float | None = None,
    telemetry_s: float = 1.0,
    unnamed: bool = False,
    chosen: Sequence[int] | None = None,
    began_ns: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a plan over a simulated fleet, or on its GPUs at the positions `chosen`, and store what it finds, with
    telemetry every `telemetry_s`.

    It begins at `began_ns` (UTC), else on the fleet's next free day in the store, or goes on with an interrupted
    campaign of the same arguments. This must have the plan's name, unless whorl made up the name (`unnamed`). Faults
    that begin at some time begin while the plan runs. Nodes always run side by side, whether neighbours are idle or
    busy. InputError for a cap (W) or lock (MHz) that the model cannot hold, and if the store holds the same GPUs with
    other faults, or another campaign at that time. StoreError if the store cannot be written: what was stored stays.
    """
    lock_mhz = nearest_clock(fleet, cap_w, lock_mhz)  # before anything is stored
    each = len(fleet) if chosen is None else len(chosen)
    turns = min(fleet.per_node, each) if plan.neighbours == "idle" else 1
    asked: dict[str, Any] = asdict(plan.asked) | {
        "gpus": len(fleet),
        "faults": sorted(fleet.named.values()),
        "probes": {probe.name: probe.version for probe in plan.probes},
        "neighbours": plan.neighbours,
        "power_limit_w": cap_w,
        "clock_mhz": lock_mhz,
        "telemetry_s": telemetry_s,
        "parameters": PARAMETERS,
        "whorl": __version__,
    }
    if fleet.population != USUAL:
        asked["population"] = fleet.population
    if chosen is not None:
        asked["chosen"] = list(chosen)
    span_s = turns * plan.expected_s()
    claimed = claim(
        store,
        fleet,
        plan.campaign,
        asked,
        span_s=span_s,
        cluster=cluster,
        began_ns=began_ns,
        repeatable=True,
        unnamed=unnamed,
    )
    plan = replace(plan, campaign=claimed.campaign)
    bench = Bench(
        fleet, began_ns=claimed.began_ns, cap_w=cap_w, lock_mhz=lock_mhz, span_s=span_s, age_days=claimed.age_days
    )
    gpus = [identity.uuid for identity in claimed.who]
    keeping = Claimed(claimed, telemetry_s=telemetry_s)
    stored = past_of(claimed.store, claimed.cluster, gpus).runs_of(plan.campaign, before_ns=claimed.began_ns)
    chosen = range(len(gpus)) if chosen is None else chosen
    campaign = Campaign(plan, keeping.recorder, built_once(find_kernel), stored, len(chosen), progress=progress)
    campaign.report.planted = claimed.planted
    return run_on(bench, chosen, campaign, keeping)


def built_once(find_kernel: Callable[[str], Kernel]) -> Callable[[str], Kernel]:
    """Gives kernels by name, whose works are built once for devices that are alike."""

    @cache
    def find(name: str) -> Kernel:
        kernel = find_kernel(name)
        works: dict[object, Work | Unfit] = {}

        @wraps(kernel.build)
        def build(facts: Facts, **parameters: float | int | str) -> Work | Unfit:
            key = (replace(facts, gpu="", node="", index=0), *sorted(parameters.items()))
            if key not in works:
                works[key] = kernel.build(facts, **parameters)
            return works[key]

        return replace(kernel, build=build)

    return find


def nearest_clock(fleet: Fleet, cap_w: float | None, lock_mhz: float | None) -> float | None:
    """The clock that a lock sets, as on real GPUs: the nearest one that there is, which the conditions name.

    InputError for a cap or lock that the model cannot hold.
    """
    fleet.limits(cap_w, lock_mhz)
    if lock_mhz is None:
        return None
    return float(min(fleet.model.clocks_mhz.tolist(), key=lambda clock: abs(clock - lock_mhz)))


def run_on(bench: Bench, chosen: Sequence[int], campaign: Campaign, keeping: Keeping) -> Report:
    """Run a campaign on the GPUs at these positions of a bench."""
    plan, report, busy = campaign.plan, campaign.report, campaign.plan.neighbours == "busy"
    setting = _setting(bench, plan)

    def pace(fast: bool) -> None:
        bench.every_s = bench.sensor_period_s if fast else INTERVAL_S

    gpus = [identity.uuid for identity in keeping.who]
    watch = keeping.watch = recent(plan.probes, plan.asked, gpus, interval_s=INTERVAL_S, pace=pace)
    nodes: dict[str, list[int]] = {}
    for position in chosen:
        nodes.setdefault(bench.who[position].host, []).append(position)

    async def one_after_another(positions: Sequence[int], meeting: Meeting | None) -> None:
        for position in positions:
            with closing(SimulatedDevice(bench, position)) as device:
                await campaign.on(device, watch, setting, meeting)

    work = []
    for positions in nodes.values():
        meeting = Meeting([bench.who[position].uuid for position in positions]) if busy else None
        groups = [[position] for position in positions] if busy else [positions]
        work += [one_after_another(group, meeting) for group in groups]
    report.began_ns = bench.now_ns
    try:
        keeping.run(bench, work, every_s=INTERVAL_S)
    finally:
        report.ended_ns = bench.now_ns
        report.rows = keeping.recorder.rows
    return report


class Keeping:
    """Records simulated GPUs while their bench runs: keeps rows in memory for a while, then stores them.

    `telemetry_s` is the time between two stored readings; 0 for all of them. How it stores, a subclass says.
    """

    watch: Recent | None = None
    """Is fed with all readings."""

    def __init__(self, who: Sequence[Identity], began_ns: int, recorder: Recorder, *, telemetry_s: float) -> None:
        self.who, self.recorder = who, recorder
        self._every_ns = max(1, round(telemetry_s * 1e9))
        self._next_ns = self._next_nodes_ns = 0
        self._chunk: list[Readings] = []
        self._hosts = list(dict.fromkeys(identity.host for identity in who))
        self._read_nodes: Callable[[], NodeReadings] | None = None
        self._nodes_chunk: list[NodeReadings] = []
        self._ticked_ns = began_ns

    def run(self, bench: Bench, work: Sequence[Any], *, every_s: float) -> None:
        """Run coroutines on the bench, and store what they record. An exception of one of them is raised again.

        What is complete is stored in any case, unless the store cannot be written.
        """
        self._read_nodes = bench.node_readings
        try:
            _raise_first(bench.run(work, every_s=every_s, on_tick=self._tick))
        except StoreError:
            raise
        except BaseException:
            self._store(self._ticked_ns)
            raise
        self._store(max(bench.now_ns, self._ticked_ns), complete=True)

    def _tick(self, readings: Readings, happened: list[Happening]) -> None:
        if self.watch is not None:
            self.watch.feed_readings(readings)
        self._hear(happened)
        if readings.ts_ns >= self._next_ns:
            self._chunk.append(readings)
            # On a fixed grid, so that a tick between two points of it does not shift the others.
            self._next_ns = (readings.ts_ns // self._every_ns + 1) * self._every_ns
        if self._read_nodes is not None and readings.ts_ns >= self._next_nodes_ns:
            self._nodes_chunk.append(self._read_nodes())
            self._next_nodes_ns = (readings.ts_ns // _NODES_NS + 1) * _NODES_NS
        self._ticked_ns = readings.ts_ns

    @property
    def _enough(self) -> bool:
        """Whether so much was gathered that it should be stored."""
        return self.recorder.full or len(self._chunk) * len(self.who) >= TELEMETRY_ROWS

    def _take_nodes(self, to_ns: int) -> None:
        """Give the recorder what the nodes' meters showed up to a time."""
        chunk = [readings for readings in self._nodes_chunk if readings.ts_ns <= to_ns]
        self._nodes_chunk = self._nodes_chunk[len(chunk) :]
        if chunk:
            self.recorder.take("node_power", node_power_of(self.recorder.cluster, self._hosts, chunk))

    def _hear(self, happened: Sequence[Happening]) -> None:
        for happening in happened:
            gpu = self.who[happening.gpu]
            event = Event(happening.kind, gpu.uuid, happening.detail, happening.ts_ns, gpu.host, code=happening.code)
            self.recorder.event(event)
            if happening.kind is EventKind.RETURNED:  # as a collector would record it
                self.recorder.event(replace(event, kind=EventKind.COUNTER_RESET, detail="all counters fell to 0"))

    def _store(self, to_ns: int, *, complete: bool = False) -> None:
        """Store what was gathered up to the last tick; where the campaign is `complete`, up to its end."""
        raise NotImplementedError


class Unstored(Keeping):
    """Keeps nothing beyond the report of the campaign."""

    def _store(self, to_ns: int, *, complete: bool = False) -> None:  # noqa: ARG002
        self._chunk, self._nodes_chunk = [], []
        self.recorder.forget()


def run_unstored(
    fleet: Fleet, plan: Plan, *, began_ns: int, cap_w: float | None = None, lock_mhz: float | None = None
) -> Report:
    """Run a plan over a simulated fleet from a time (UTC ns) on, as `run_simulated`, and store nothing."""
    lock_mhz = nearest_clock(fleet, cap_w, lock_mhz)
    bench = Bench(fleet, began_ns=began_ns, cap_w=cap_w, lock_mhz=lock_mhz, span_s=plan.expected_s())
    recorder = Recorder(None, cluster="simulated", campaign=plan.campaign)
    keeping = Unstored(bench.who, began_ns, recorder, telemetry_s=60.0)
    campaign = Campaign(plan, recorder, built_once(find_kernel), {}, len(fleet))
    return run_on(bench, range(len(fleet)), campaign, keeping)


class Claimed(Keeping):
    """Records a fleet that has claimed a time in the store; what is stored already is dropped."""

    def __init__(
        self, claimed: Claim, *, telemetry_s: float = 0.0, progress: Callable[[float], None] | None = None
    ) -> None:
        """`progress` is called with the share of the campaign's time that is over."""
        super().__init__(claimed.who, claimed.began_ns, recorder_of(claimed), telemetry_s=telemetry_s)
        self._claimed, self._progress = claimed, progress
        self._devices = devices_of(claimed.fleet.model, claimed.who)
        self._gathered = 0, 0

    def _tick(self, readings: Readings, happened: list[Happening]) -> None:
        super()._tick(readings, happened)
        self._gathered = self.recorder.gathered
        claimed = self._claimed
        if self._enough or readings.ts_ns == claimed.stored_to_ns:
            self._store(readings.ts_ns)
            if self._progress:
                self._progress((readings.ts_ns - claimed.began_ns) / (claimed.ended_ns - claimed.began_ns))

    def _store(self, to_ns: int, *, complete: bool = False) -> None:
        claimed, recorder = self._claimed, self.recorder
        if not complete:  # rows after the last tick come again when the campaign goes on
            recorder.forget(self._gathered)
        chunk = [readings for readings in self._chunk if readings.ts_ns <= to_ns]
        self._chunk, self._gathered = [], (0, 0)
        self._take_nodes(to_ns)
        if to_ns <= claimed.stored_to_ns and not complete:
            recorder.forget()
            return
        if chunk:
            batch = telemetry_of(claimed.cluster, self._devices, chunk)
            recorder.take("telemetry", pa.Table.from_batches([batch]))
        recorder.take("campaigns", claimed.progress(to_ns, complete=complete))
        recorder.flush(claimed.file_name(to_ns, complete=complete))
        claimed.stored_to_ns = to_ns


def recorder_of(claimed: Claim) -> Recorder:
    """A recorder of a campaign, which holds a run of every GPU before it is full."""
    most = max(MOST, len(claimed.who))
    return Recorder(claimed.store, cluster=claimed.cluster, campaign=claimed.campaign, most=most)


def _raise_first(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


def _setting(bench: Bench, plan: Plan) -> Setting:
    locked = bench.lock_mhz
    clock = int(locked) if locked is not None and locked == int(locked) else locked
    limit_w = bench.fleet.model.power_limit_w if bench.cap_w is None else bench.cap_w
    return Setting(plan.neighbours, clock, bench.cap_w, {"power_limit_w": limit_w})
