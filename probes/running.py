"""Campaigns over the GPUs of this node, in real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..kernels.catalogue import find_kernel
from ..kernels.device import Device, finish
from .campaign import Campaign, Plan, Progress, Report
from .conditions import Setting
from .effort import LEVELS
from .meeting import Meeting
from .probe import Kind
from .recording import Recorder, past_of
from .watch import Reading, Recent, Watch, Window

if TYPE_CHECKING:
    from ..kernels.work import Kernel
    from ..store import Store

INTERVAL_S = 0.1
"""Between two readings beside a probe."""
FAST_S = 0.02
"""The same while it is measured: an energy counter is renewed between two readings, no one knows when."""
_MOST_KEPT_S = 60.0

Find = Callable[[str], "Kernel"]


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
            self._campaign.give_up(self.device, f"a driver call has not returned for {silent_s:,.0f} s")
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
    known = past_of(store, cluster, [device.facts.gpu for device in devices]).runs_of(plan.campaign)
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
