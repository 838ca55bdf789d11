"""Campaigns over a simulated fleet, on its own clock, and over the GPUs of this node, in real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..kernels.catalogue import find_kernel
from ..kernels.device import Device, finish
from ..kernels.simulated_device import SimulatedDevice
from .campaign import Campaign, Plan, Progress, Report
from .conditions import Setting
from .effort import LEVELS
from .meeting import Meeting
from .probe import Kind
from .recording import MOST, Recorder, stored_runs
from .watch import Reading, Recent, Watch, Window

if TYPE_CHECKING:
    from ..collectors.simulated_record import Record
    from ..kernels.work import Kernel
    from ..simulation.bench import Bench
    from ..simulation.stepping import Happening, Readings
    from ..store import Store

INTERVAL_S = 0.1
"""Between two readings beside a probe."""
FAST_S = 0.02
"""The same beside a square wave, where the pace can be changed or nothing else is run."""
_MOST_KEPT_S = 60.0
_TELEMETRY_ROWS = 200_000  # of a simulated fleet, gathered before they are stored

Find = Callable[[str], "Kernel"]


def interval_s(plan: Plan) -> float:
    """How often the GPUs of this node are read while a plan runs."""
    return FAST_S if all(probe.kind is Kind.SQUARE for probe in plan.probes) else INTERVAL_S


def recent(plan: Plan, gpus: Sequence[str], interval_s: float, pace: Callable[[bool], None] | None = None) -> Recent:
    """The memory of readings that the windows of a plan need, for these GPUs."""
    effort, asked = plan.asked.effort, plan.asked
    longest = max(asked.limit_s, effort.slope_s, effort.idle_s)
    if any(probe.kind in (Kind.STAIRCASE, Kind.SCAN) for probe in plan.probes):
        longest = max(longest, LEVELS * (effort.level_s + 2), max(map(effort.expected_s, plan.probes)))
    seconds = min(longest + 5, _MOST_KEPT_S)
    if any(probe.kind is Kind.SQUARE for probe in plan.probes):
        wave_s = max(effort.wave_s, 10 * asked.period_s) + 2
        seconds = max(seconds, wave_s * (interval_s / FAST_S if pace else 1.0))
    return Recent(gpus, seconds=seconds, interval_s=interval_s, pace=pace)


# -- a simulated fleet ----------------------------------------------------------------------------------------


def run_simulated(
    record: Record,
    bench: Bench,
    plan: Plan,
    *,
    telemetry_s: float = 1.0,
    progress: Progress | None = None,
    find: Find = find_kernel,
) -> Report:
    """Run a plan over a simulated fleet, and store what it finds, with telemetry every `telemetry_s`.

    `record` is the claim of the fleet's place in the store (`collectors.simulated_record.identify`). Nodes run side
    by side, whatever the neighbours are. StoreError where the store takes no more; what was stored stays.
    """
    gpus = [who.uuid for who in record.who]
    recorder = Recorder(record.store, cluster=record.cluster, campaign=plan.campaign, most=max(MOST, len(gpus)))
    known = stored_runs(record.store, record.cluster, plan.campaign)
    campaign = Campaign(plan, recorder, find, known, len(gpus), progress=progress)

    def pace(fast: bool) -> None:
        bench.every_s = bench.sensor_period_s if fast else INTERVAL_S

    kept = _Kept(record, recorder, recent(plan, gpus, INTERVAL_S, pace), telemetry_s)
    setting = _simulated_setting(bench, plan)
    nodes: dict[str, list[int]] = {}
    for position, who in enumerate(record.who):
        nodes.setdefault(who.host, []).append(position)

    async def one(position: int, meeting: Meeting | None) -> None:
        device = SimulatedDevice(bench, position)
        try:
            await campaign.on(device, kept.watch, setting, meeting)
        finally:
            device.close()

    async def one_after_another(positions: Sequence[int]) -> None:
        for position in positions:
            await one(position, None)

    if plan.neighbours == "busy":
        work = []
        for positions in nodes.values():
            meeting = Meeting([gpus[position] for position in positions])
            work += [one(position, meeting) for position in positions]
    else:
        work = [one_after_another(positions) for positions in nodes.values()]
    report = campaign.report
    report.began_ns = bench.now_ns
    try:
        answers = bench.run(work, every_s=INTERVAL_S, on_tick=kept.tick)
    finally:
        report.ended_ns = bench.now_ns
        kept.keep()
        recorder.flush()
        report.rows = recorder.rows
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return report


class _Kept:
    """What the drivers of a simulated fleet report: all of it in memory for a while, some of it for the store."""

    def __init__(self, record: Record, recorder: Recorder, watch: Recent, telemetry_s: float) -> None:
        self.watch = watch
        self._record, self._recorder = record, recorder
        self._every_ns = round(telemetry_s * 1e9)
        self._next_ns = 0
        self._chunk: list[Readings] = []
        self._happened: list[Happening] = []

    def tick(self, readings: Readings, happened: list[Happening]) -> None:
        self.watch.feed_readings(readings)
        self._happened += happened
        if readings.ts_ns >= self._next_ns:
            self._chunk.append(readings)
            # On a grid, so that a tick between two of its points shifts nothing.
            self._next_ns = (readings.ts_ns // self._every_ns + 1) * self._every_ns
        if self._recorder.due or len(self._chunk) * len(self._record.fleet) >= _TELEMETRY_ROWS:
            self.keep()
            self._recorder.flush()

    def keep(self) -> None:
        """Hand what was gathered to the recorder."""
        from ..collectors.simulated_rows import event_rows, telemetry_rows

        if self._chunk:
            self._recorder.take("telemetry", telemetry_rows(self._record, self._chunk))
        if self._happened:
            self._recorder.take("events", event_rows(self._record, self._happened))
        self._chunk, self._happened = [], []


def _simulated_setting(bench: Bench, plan: Plan) -> Setting:
    locked = bench.lock_mhz
    clock = int(locked) if locked is not None and locked == int(locked) else locked
    limit_w = bench.fleet.model.power_limit_w if bench.cap_w is None else bench.cap_w
    return Setting(plan.neighbours, clock, bench.cap_w, {"power_limit_w": limit_w})


# -- the GPUs of this node ------------------------------------------------------------------------------------

_LOOK_S = 0.2
STUCK_S = 600.0
"""A GPU of which nothing is heard for so long is waited for no more. Everything that whorl waits for itself has a
shorter limit, so that a call of the driver has not returned then."""


class _Worker(threading.Thread):
    """All probes on one GPU of this node, in a thread that may be given up."""

    def __init__(
        self, campaign: Campaign, device: Device, watch: Watch, setting: Setting, meeting: Meeting | None
    ) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.error: BaseException | None = None
        """What is to be raised in the main thread."""
        self._campaign, self._watch, self._setting, self._meeting = campaign, watch, setting, meeting
        self._heard = time.monotonic()
        self._given_up = False

    def start(self) -> None:
        self._heard = time.monotonic()
        super().start()

    def run(self) -> None:
        try:
            finish(self._campaign.on(self.device, self._watch, self._setting, self._meeting, ended=self._ended))
        except BaseException as error:
            if not self._given_up:
                self.error = error
                self._campaign.stop.set()
        finally:
            self.device.close()

    def _ended(self) -> bool:
        self._heard = time.monotonic()
        return self._given_up or self._campaign.stop.is_set()

    @property
    def working(self) -> bool:
        """Whether it is waited for."""
        return self.is_alive() and not self._given_up

    def look(self, stuck_s: float) -> None:
        """Give it up where nothing was heard of it for so long."""
        silent_s = time.monotonic() - self._heard
        if self.working and silent_s > stuck_s:
            self._given_up = True
            self._campaign.give_up(self.device, f"a call of its driver has not returned for {silent_s:,.0f} s")
            if self._meeting:
                self._meeting.leave(self.device.facts.gpu)


def run_here(
    store: Store,
    devices: Sequence[Device],
    watch: Watch,
    plan: Plan,
    *,
    cluster: str,
    settings: Mapping[str, Setting],
    progress: Progress | None = None,
    find: Find = find_kernel,
    recorder: Recorder | None = None,
    stuck_s: float = STUCK_S,
) -> Report:
    """Run a plan on the GPUs of this node, one after another or all at once, each in a thread of its own.

    `settings` are the conditions by GPU. A GPU of which nothing is heard for `stuck_s` is left out. StoreError where
    the store takes no more, KeyboardInterrupt where somebody wants to stop: the GPUs end what they are at, and what is
    complete is stored.
    """
    recorder = recorder or Recorder(store, cluster=cluster, campaign=plan.campaign)
    known = stored_runs(store, cluster, plan.campaign)
    campaign = Campaign(plan, recorder, find, known, len(devices), progress=progress)
    busy = plan.neighbours == "busy"
    meeting = Meeting([device.facts.gpu for device in devices]) if busy else None
    workers = [_Worker(campaign, device, watch, settings[device.facts.gpu], meeting) for device in devices]

    def wait(some: Sequence[_Worker]) -> None:
        while any(worker.working for worker in some):
            for worker in some:
                if worker.working:
                    worker.join(_LOOK_S)
                    worker.look(stuck_s)
            if recorder.due:
                recorder.flush()

    report = campaign.report
    report.began_ns = min(device.now_ns() for device in devices)
    try:
        for together in [workers] if busy else [[worker] for worker in workers]:
            if campaign.stop.is_set():
                break
            for worker in together:
                worker.start()
            wait(together)
    finally:
        campaign.stop.set()
        while any(worker.working for worker in workers):
            for worker in workers:
                if worker.working:
                    worker.join(_LOOK_S)
                    worker.look(stuck_s)
        for worker in workers:
            if worker.ident is None:  # it was not begun
                worker.device.close()
        report.ended_ns = max(device.now_ns() for device in devices)
        recorder.flush()
        report.rows = recorder.rows
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    return report


class Through:
    """A `Watch` over another one, that knows some GPUs by other names: a MIG instance by that of its whole GPU."""

    def __init__(self, watch: Watch, names: Mapping[str, str | None]) -> None:
        self._watch, self._names = watch, names

    def latest(self, gpu: str) -> Reading | None:
        name = self._names.get(gpu)
        return None if name is None else self._watch.latest(name)

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        name = self._names.get(gpu)
        return Window() if name is None else self._watch.window(name, began_ns, ended_ns)

    def hurry(self, gpu: str, *, on: bool) -> None:
        name = self._names.get(gpu)
        if name is not None:
            self._watch.hurry(name, on=on)
