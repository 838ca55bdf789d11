"""A campaign: probes in their order on every GPU. A GPU that failed is left out, and the others continue.

`node` runs it over the GPUs of this node, `simulated` over a simulated fleet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import DeviceError, InputError
from ..kernels.device import Device
from ..kernels.work import Facts, Kernel
from ..store.events import Event
from ..store.vocabulary import EndedBy, EventKind, Outcome
from .catalogue import Kind, Probe
from .conditions import Asked, Setting, asked_of, process_conditions
from .figures import Figure, find
from .gpu_process import GpuProcess
from .health import GpuHealth, changes_between
from .meeting import Meeting
from .protocol import Measured, Unrun, failed, measure
from .recording import Recorder, Run
from .steps import Task
from .watch import Recent, Watch

if TYPE_CHECKING:
    from ..collectors.claim import Planted

NEIGHBOURS = ("idle", "busy")


@dataclass(frozen=True)
class Plan:
    """What is run."""

    probes: tuple[Probe, ...]
    asked: Asked
    campaign: str
    neighbours: str = "idle"
    """'idle': the GPUs of a node one after another; 'busy': all of a node at once."""

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS:
            raise InputError(f"neighbours must be {' or '.join(NEIGHBOURS)}, not {self.neighbours!r}")
        if not self.probes:
            raise InputError("no probe was chosen: name a probe or a suite")

    def expected_s(self) -> float:
        """How long one GPU takes at most, by the probes' limits."""
        effort = self.asked.effort
        soaks = sum(self.asked.soak_s - effort.soak_s for probe in self.probes if probe.kind is Kind.SOAK)
        return effort.together_s(self.probes) + soaks


@dataclass(frozen=True)
class Summary:
    """A run as a table for people shows it; None where a figure is missing."""

    gpu: str
    node: str
    index: int
    model: str
    probe: str
    status: Outcome
    status_detail: str | None
    """The same in a sentence; None where it is OK."""
    ended_by: EndedBy
    headline: Figure | None
    median_ms: float | None
    low_ms: float | None
    high_ms: float | None
    n: int | None
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    steady: bool | None
    """Whether temperature, clock and times were steady when measuring began."""
    independent: bool | None
    """Whether the interval is wide enough: repeats that hang together make it too narrow."""
    drift: float | None
    """By what share the times changed from the first half of the repeats to the second."""
    wrong: bool
    clock_events: Mapping[str, float] | None
    levels: Mapping[str, Figure]
    """The figures of a probe with more than one, by name: of a wave, a staircase, a scan; without single repeats."""
    readings: int | None = None
    """Readings of telemetry while it was measured."""
    energy_j: float | None = None
    """Of a repetition, with its bounds where an energy counter tells them."""
    low_energy_j: float | None = None
    high_energy_j: float | None = None
    size: float | None = None
    """FLOP of a repetition; bytes where it has none, operations where it has neither."""


@dataclass
class Report:
    """What a campaign came to."""

    campaign: str
    cluster: str
    gpus: int = 0
    runs: list[Summary] = field(default_factory=list)
    """In the order in which they ended, failed ones included."""
    unrun: list[tuple[str, str, str]] = field(default_factory=list)
    """GPU, probe, and why it was not run."""
    skipped: int = 0
    """How many were in the store already."""
    failures: dict[str, str] = field(default_factory=dict)
    """By GPU: the first sentence that it failed with."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows stored, by table; of the real backend without telemetry."""
    notes: list[str] = field(default_factory=list)
    planted: tuple[Planted, ...] = ()
    """Of a simulated fleet: which GPUs were made faulty."""
    began_ns: int | None = None
    ended_ns: int | None = None

    @property
    def wrong(self) -> list[Summary]:
        """The runs whose results were wrong."""
        return [run for run in self.runs if run.wrong]

    @property
    def unhealthy(self) -> list[Summary]:
        """The runs with right results while which the health of the GPU changed."""
        return [run for run in self.runs if run.status is Outcome.HEALTH_CHANGED]


Gpu = Device | GpuProcess
"""In this process, as simulated ones are, or in one of its own."""

Progress = Callable[[int, int, str], None]
"""Is told how many of how many probes are done, and what has just ended."""


class Campaign:
    """Runs the probes of a plan on devices, and records what they find."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        find_kernel: Callable[[str], Kernel],
        stored: Mapping[tuple[str, str], Sequence[Mapping[str, object]]],
        gpus: int,
        *,
        progress: Progress | None = None,
    ) -> None:
        """`stored` are the campaign's runs that the store holds (`recording.Past.runs_of`)."""
        self.plan, self.recorder = plan, recorder
        self.report = Report(plan.campaign, recorder.cluster, gpus)
        self.stop = threading.Event()
        self.left_out: set[str] = set()
        """The GPUs that do not answer any more."""
        self._find = find_kernel
        self._stored, self._progress = stored, progress
        self._done = 0
        self._lock = threading.Lock()

    async def on(self, device: Gpu, watch: Watch, setting: Setting, meeting: Meeting | None = None) -> None:
        """All probes on one device. What the GPU cannot do is recorded. KeyboardInterrupt where `stop` is set."""
        try:
            await self._every(device, watch, setting, meeting)
        finally:
            if meeting:
                meeting.leave(device.facts.gpu)

    async def _every(self, device: Gpu, watch: Watch, setting: Setting, meeting: Meeting | None) -> None:
        ended = self.stop.is_set
        first, facts, asked = True, device.facts, self.plan.asked
        health: GpuHealth | None = None
        for stage, probe in enumerate(self.plan.probes):
            if probe.kind is Kind.EXCHANGE and isinstance(device, GpuProcess):
                return  # they come last, and all GPUs at once
            if self._is_stored(probe, facts, setting):
                self._tell(probe, facts, None)
                continue
            if meeting:
                await meeting.arrive(device, 2 * stage, ended)
            warm = lambda: True  # noqa: E731
            if meeting and not device.simulated:
                warm = partial(meeting.complete, device, 2 * stage + 1)
            task = Task(probe, asked, first)
            ends = self._telling(device, probe) if probe.kind is Kind.SOAK else ended
            health = health or _health(device, watch)
            try:
                if isinstance(device, GpuProcess):
                    answer = device.measure(watch, task, ended=ends, warm=warm)
                else:
                    answer = await measure(device, watch, task, self._find, ended=ends, warm=warm)
            except DeviceError as error:
                answer = failed(device.now_ns(), error)
            health = self._keep(device, watch, probe, setting, answer, health)
            if isinstance(answer, Unrun):
                continue
            first = first and (probe.kind is Kind.IDLE or answer.failure is not None)
            if answer.failure is not None and answer.failure.gone:
                self._leave_out(device, self.plan.probes[stage + 1 :])
                return

    def exchange(self, node: GpuProcess, gpus: Sequence[Facts], watch: Watch, settings: Mapping[str, Setting]) -> None:
        """The probes that all GPUs of a node run at once, in one process. One that failed before has no part in it."""
        probes = [probe for probe in self.plan.probes if probe.kind is Kind.EXCHANGE]
        health: dict[str, GpuHealth | None] = {}
        for number, probe in enumerate(probes, 1):
            missing = []
            for facts in gpus:
                if self._is_stored(probe, facts, settings[facts.gpu]):
                    self._tell(probe, facts, None)
                else:
                    missing.append(facts)
                    health[facts.gpu] = health.get(facts.gpu) or _health(node.standing_for(facts), watch)
            if not missing:
                continue
            gone = False
            try:
                answers = node.exchange(watch, probe, self.plan.asked, self.stop.is_set)
            except DeviceError as error:
                gone = error.gone
                # Where the error names one of the GPUs, the others could not run the probe without it.
                culprits = [facts.gpu for facts in missing if str(error).startswith(facts.gpu)]
                answers = {
                    facts.gpu: Unrun(str(error))
                    if culprits and facts.gpu not in culprits
                    else failed(node.now_ns(), error)
                    for facts in missing
                }
            for facts in missing:
                device, gpu = node.standing_for(facts), facts.gpu
                health[gpu] = self._keep(device, watch, probe, settings[gpu], answers[gpu], health[gpu])
            if gone:
                for facts in gpus:
                    self._leave_out(node.standing_for(facts), probes[number:])
                return

    def _telling(self, device: Gpu, probe: Probe) -> Callable[[], bool]:
        """Whether `stop` is set, asked after each batch; it says how far the probe is."""
        began_ns, place = device.now_ns(), f"{device.facts.node}/{device.facts.index}"

        def ended_and_told() -> bool:
            if self._progress:
                spent_s, total = (device.now_ns() - began_ns) / 1e9, self.report.gpus * len(self.plan.probes)
                text = f"{probe.name} on {place}: {spent_s:,.0f} of {self.plan.asked.soak_s:,.0f} s"
                self._progress(self._done, total, text)
            return self.stop.is_set()

        return ended_and_told

    def _is_stored(self, probe: Probe, facts: Facts, setting: Setting) -> bool:
        conditions = asked_of(probe, self.plan.asked, setting) | {"probe_version": probe.version}
        for stored in self._stored.get((facts.gpu, probe.name), ()):
            if all(stored.get(name) == value for name, value in conditions.items()):
                with self._lock:
                    self.report.skipped += 1
                return True
        return False

    # -- what is recorded ---------------------------------------------------------------------------------

    def _keep(
        self,
        device: Gpu,
        watch: Watch,
        probe: Probe,
        setting: Setting,
        measured: Measured | Unrun,
        before: GpuHealth | None,
    ) -> GpuHealth | None:
        """Record what a probe came to, and what changed of the GPU's health since `before`; the answer is its health.

        Each change is an event, and the first ones stand in the run's sentence.
        """
        if isinstance(measured, Unrun):
            self._not_run(device, probe, measured.reason)
            return before
        after = _health(device, watch)
        changes = changes_between(before, after)
        for change in changes:
            self._event(EventKind.HEALTH_CHANGED, device, probe, f"{probe.name}: {change.sentence}", **asdict(change))
        status = Outcome.HEALTH_CHANGED if changes and measured.status is Outcome.OK else measured.status
        sentences = [measured.status_detail] if measured.status_detail else []
        if changes:
            changed = "; ".join(change.sentence for change in changes[:_TOLD])
            sentences.append(f"the health of the GPU changed while it ran: {changed}")
        run = Run(
            gpu=device.facts.gpu,
            probe=probe.name,
            version=probe.version,
            began_ns=measured.began_ns,
            ended_ns=measured.ended_ns,
            window=measured.window,
            figures=measured.figures,
            conditions=self._conditions(device, probe, setting) | measured.conditions,
            versions=self._versions(device, probe),
            ended_by=measured.ended_by,
            status=status,
            status_detail="; ".join(sentences) or None,
        )
        self.recorder.run(run)
        if measured.verdict.wrong:
            detail = f"{probe.name}: {measured.status_detail}"
            self._event(EventKind.WRONG_RESULT, device, probe, detail, measured.ended_ns, n=measured.verdict.wrong)
        if measured.failure is not None:
            detail = f"{probe.name}: {measured.failure}"
            self._event(EventKind.PROBE_FAILED, device, probe, detail)
            with self._lock:
                self.report.failures.setdefault(device.facts.gpu, detail)
        if measured.note:
            with self._lock:
                facts = device.facts
                self.report.notes.append(f"{facts.node}/{facts.index}: {probe.name}: {measured.note}")
        self._tell(probe, device.facts, _summary(device.facts, run, probe, wrong=measured.verdict.wrong > 0))
        return after or before

    def _event(
        self, kind: EventKind, device: Gpu, probe: Probe, detail: str, ts_ns: int | None = None, **numbers: Any
    ) -> None:
        facts, ts_ns = device.facts, device.now_ns() if ts_ns is None else ts_ns
        self.recorder.event(Event(kind, facts.gpu, detail, ts_ns, facts.node, workload=probe.name, **numbers))

    def _not_run(self, device: Gpu, probe: Probe, reason: str) -> None:
        facts = device.facts
        self._event(EventKind.PROBE_NOT_RUN, device, probe, f"{probe.name}: {reason}")
        with self._lock:
            self.report.unrun.append((facts.gpu, probe.name, reason))
        self._tell(probe, facts, None)

    def _leave_out(self, device: Gpu, probes: Sequence[Probe]) -> None:
        self.left_out.add(device.facts.gpu)
        for probe in probes:
            self._not_run(device, probe, "the GPU does not answer any more")

    def _conditions(self, device: Gpu, probe: Probe, setting: Setting) -> dict[str, object]:
        state: dict[str, object] = {
            "simulated": device.simulated,
            "other_processes": list(device.others()),
            "cpus": device.cpus if isinstance(device, GpuProcess) else None,
        }
        process = {} if device.simulated else process_conditions()
        return dict(setting.more) | process | asked_of(probe, self.plan.asked, setting) | state

    def _versions(self, device: Gpu, probe: Probe) -> dict[str, str]:
        return dict(device.versions) | {"whorl": __version__, "kernel": self._find(probe.kernel).version}

    def _tell(self, probe: Probe, facts: Facts, summary: Summary | None) -> None:
        with self._lock:
            self._done += 1
            done = self._done
            if summary:
                self.report.runs.append(summary)
        if self._progress:
            self._progress(
                done, self.report.gpus * len(self.plan.probes), f"{probe.name} on {facts.node}/{facts.index}"
            )


_TOLD = 3  # changes of health in a sentence; the others are events


def _health(device: Gpu, watch: Watch) -> GpuHealth | None:
    """What the driver says of a GPU's health; None where nothing tells."""
    if isinstance(device, GpuProcess):
        return device.health()
    return watch.health(device.facts.gpu) if isinstance(watch, Recent) else None


def _summary(facts: Facts, run: Run, probe: Probe, *, wrong: bool) -> Summary:
    headline = next((figure for figure in run.figures if figure.name == probe.figure), None)
    repeats, steady, independent, drift, readings = (
        run.conditions.get(name) for name in ("repeats", "steady", "independent", "drift", "readings")
    )
    several = probe.kind in (Kind.SQUARE, Kind.STAIRCASE, Kind.SCAN, Kind.SOAK)
    return Summary(
        gpu=run.gpu,
        node=facts.node,
        index=facts.index,
        model=facts.model,
        probe=run.probe,
        status=run.status,
        status_detail=run.status_detail,
        ended_by=run.ended_by,
        headline=headline,
        median_ms=find(run.figures, "time_median"),
        low_ms=find(run.figures, "time_low"),
        high_ms=find(run.figures, "time_high"),
        n=repeats if isinstance(repeats, int) else None,
        sm_clock_mhz=run.window.sm_clock_mhz,
        power_w=run.window.power_w,
        temperature_c=run.window.temperature_c,
        steady=steady if isinstance(steady, bool) else None,
        independent=independent if isinstance(independent, bool) else None,
        drift=drift if isinstance(drift, float) else None,
        wrong=wrong,
        clock_events=run.window.clock_events,
        levels={figure.name: figure for figure in run.figures if not figure.name.startswith("time_at_")}
        if several
        else {},
        readings=readings if isinstance(readings, int) else None,
        energy_j=find(run.figures, "energy"),
        low_energy_j=find(run.figures, "energy_low"),
        high_energy_j=find(run.figures, "energy_high"),
        size=size_of(run.conditions),
    )


def size_of(amounts: Mapping[str, object]) -> float | None:
    """How much work `flop`, `bytes` and `operations` are: the first of them that is not 0; None where all are."""
    for name in ("flop", "bytes", "operations"):
        amount = amounts.get(name)
        if isinstance(amount, int | float) and amount > 0:
            return float(amount)
    return None
