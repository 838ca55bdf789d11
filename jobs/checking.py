"""Check the GPUs of this node now: what is known of them, and a short probe beside their own level.

It fails open: whatever keeps it from an answer (no store, a call that does not return, no GPU that is expected here) is
"unknown", and never an alarm. A GPU that is expected on this node and absent is one, also where the driver is gone.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InputError, WhorlError
from ..store.names import this_node
from ..store.vocabulary import COMPARED, Outcome

if TYPE_CHECKING:
    from ..analysis.verdicts.reference import Known, Level
    from ..probes.campaign import Report
    from ..store import Store
    from ..store.events import Event

PROBES = ("gemm-fp32", "stream-triad")
"""What is run: the cores and the memory; 15 s a GPU at most."""
WARNING_PCT, CRITICAL_PCT = 3.0, 10.0
_PER_GPU_S, _LEAST_S = 30.0, 60.0


class Status(IntEnum):
    """As monitoring tools number them; also the exit status."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def weight(self) -> int:
        """What counts when several are put together: an alarm more than not knowing, that more than OK."""
        return (0, 2, 3, 1)[self]


_HAPPENED = {
    "lost": "it was lost",
    "needs_reset": "it needs a reset",
    "wrong_result": "wrong results",
    "probe_failed": "a run failed",
}
"""What `check` says of the kinds of events that tell a fault."""


@dataclass(frozen=True, slots=True)
class Now:
    """A probe, now, beside what is known of the GPU; slower is positive, None where it is unknown."""

    workload: str
    time_ms: float | None
    own_pct: float | None
    """Beside the GPU's own level."""
    own_low_pct: float | None
    own_high_pct: float | None
    """95 % interval of its own level in another sitting, beside its middle."""
    peers_pct: float | None
    """Beside the median of its peers."""
    peers: int | None


@dataclass
class OfGpu:
    """What the check came to for one GPU."""

    gpu: str
    name: str
    status: Status = Status.OK
    says: list[str] = field(default_factory=list)
    """Sentences without a full stop, what is wrong first."""
    now: list[Now] = field(default_factory=list)

    def found(self, status: Status, sentence: str) -> None:
        """Take note of something; the status is that of the worst."""
        if status.weight > self.status.weight:
            self.status = status
            self.says.insert(0, sentence)
        else:
            self.says.append(sentence)


@dataclass
class Answer:
    """What the check came to."""

    node: str
    gpus: list[OfGpu] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    """About the check itself."""
    probed: bool = False
    seconds: float = 0.0
    failed: bool = False
    """Whether the check itself could not be done."""

    @property
    def status(self) -> Status:
        """Of the worst GPU; unknown where the check could not be done and no GPU is known to be bad."""
        every = [one.status for one in self.gpus]
        if self.failed or not every:
            every.append(Status.UNKNOWN)
        return max(every, key=lambda one: one.weight)

    def as_dict(self) -> dict[str, Any]:
        """The document of `whorl.check/1`."""
        return {
            "schema": "whorl.check/1",
            "node": self.node,
            "status": self.status.name.lower(),
            "exit_status": int(self.status),
            "probed": self.probed,
            "seconds": round(self.seconds, 3),
            "says": self.says,
            "gpus": [asdict(one) | {"status": one.status.name.lower()} for one in self.gpus],
        }


def check(
    store: Store | str | Path,
    *,
    quick: bool = False,
    backend: str = "cuda",
    warning: float = WARNING_PCT,
    critical: float = CRITICAL_PCT,
    timeout: float | None = None,
    simulated: Mapping[str, Any] | None = None,
) -> Answer:
    """Check the GPUs of this node. It raises nothing but KeyboardInterrupt, and returns after `timeout` (s) at the
    latest, by default 30 s a GPU and 60 s at least. After that no probe begins; one that runs ends, in its thread.

    `quick`: run no probe and store nothing; ask the driver which GPUs are there, and the store what is known of them.
    `backend` is "cuda" or "auto" (the GPUs here; both are the same), or "simulated". `warning`, `critical`: per cent
    that a probe takes longer than the GPU's own level. `simulated`: arguments of `measure` for a simulated node (gpus,
    model, seed, fault).
    """
    began = time.monotonic()
    answer = Answer(this_node())
    limit = [_LEAST_S if timeout is None else timeout]

    def is_late() -> bool:
        return time.monotonic() - began >= limit[0]

    todo = _Check(store, answer, backend, warning, critical, dict(simulated or {}), is_late)

    def work() -> None:
        try:
            todo.run(
                quick=quick,
                gpus=lambda n: limit.__setitem__(0, max(limit[0], _PER_GPU_S * n)) if timeout is None else None,
            )
        except Exception as error:  # whatever it is: a check that fails must not drain a node
            todo.give_up(error)

    thread = threading.Thread(target=work, name="whorl-check", daemon=True)
    thread.start()
    while thread.is_alive() and not is_late():
        thread.join(0.05)
    if thread.is_alive():
        answer = Answer(answer.node, failed=True)
        answer.says.append(f"no answer within {limit[0]:g} s: a driver call may hang, or the store be slow")
    answer.seconds = time.monotonic() - began
    return answer


def retire(store: Store, gpu: str, cluster: str | None = None) -> Event:
    """Note that a GPU was taken out of its node: until it is seen again, a check does not miss it.

    `gpu` is one of its names, or a part that no other GPU has. Returns the event that is stored. Raises InputError for
    a GPU that the store does not know, StoreError where the store cannot be written.
    """
    import pyarrow as pa

    from ..analysis.choosing import find
    from ..store.events import Event, event_rows
    from ..store.vocabulary import EventKind

    row = find(store, gpu, cluster)
    says = f"{row['gpu']} was taken out of {row['node'] or 'its node'}"
    event = Event(EventKind.RETIRED, row["gpu"], says, ts_ns=time.time_ns(), node=row["node"])
    rows = pa.Table.from_batches([event_rows([event], cluster=row["cluster"])])
    store.append({"events": rows}, f"retired-{event.ts_ns}")
    return event


@dataclass
class _Check:
    """The work of one check, in a thread of its own."""

    store: Store | str | Path
    answer: Answer
    backend: str
    warning: float
    critical: float
    simulated: dict[str, Any]
    is_late: Callable[[], bool]

    def give_up(self, error: Exception) -> None:
        """The check could not be done: say why. A GPU that is shown and cannot be used is no reason for "unknown"."""
        self.answer.failed = True
        known = isinstance(error, WhorlError)
        self.answer.says.append(str(error) if known else f"the check failed ({type(error).__name__}: {error})")
        if isinstance(error, DeviceError):
            self._lost("", "GPU", str(error))

    def run(self, *, quick: bool, gpus: Callable[[int], None]) -> None:
        from ..collectors.node_memory import seen_on
        from ..store import Store

        opened = self.store if isinstance(self.store, Store) else Store.open(self.store)
        if self.backend == "simulated":
            if quick:
                self._judge(opened, None, self._simulated_gpus())
            else:
                report = self._probe(opened)
                self._judge(opened, report, {run.gpu: f"{run.node}/{run.index}" for run in report.runs})
            return
        driver, problem = self._driver_gpus()
        gpus(len(driver))
        expected = seen_on(opened, this_node(), time.time_ns())
        if not expected and not driver:
            self.answer.says.append(
                "no GPU is expected here: no collector or campaign saw a real one on this node within 30 days"
            )
        if quick:
            self._absent(expected, driver, problem)
            self._judge(opened, None, driver)
            for row in self.answer.gpus:
                if row.gpu not in expected:
                    row.found(
                        Status.UNKNOWN,
                        "no collector or campaign saw it here within 30 days: run `whorl collect` or `whorl probe run`",
                    )
            if problem is not None or not driver:
                self.answer.failed = True
                self.answer.says.append(problem or "the driver shows no GPU")
            return
        try:
            usable = self._usable_gpus()
        except WhorlError:
            self._absent(expected, driver, problem)
            self.answer.says += [] if problem is None else [problem]
            raise
        for gpu, name in usable.items():
            self.answer.gpus.append(OfGpu(gpu, name))
        self._absent(expected, driver | usable, None)
        self._judge(opened, self._probe(opened), usable)

    def _simulated_gpus(self) -> dict[str, str]:
        """The GPUs of the simulated node, by UUID; one that is planted as lost is noted as such."""
        from ..probes.measurement import drawn_fleet
        from ..simulation.identity import identities

        fleet = drawn_fleet(**self.simulated)
        shown = {}
        for position, identity in enumerate(identities(fleet.seed, len(fleet), fleet.model.name)):
            if fleet.fault_of(position).falls:
                self._lost(identity.uuid, identity.name, "it has fallen off the bus: check its node")
            else:
                shown[identity.uuid] = identity.name
        return shown

    def _driver_gpus(self) -> tuple[dict[str, str], str | None]:
        """The whole GPUs that the driver shows, by UUID, and why it does not answer, None where it does.

        It needs no CUDA, and touches no GPU. Raises InputError where whorl cannot ask a driver at all.
        """
        from ..collectors.backend import find_backend

        try:
            import pynvml  # noqa: F401  without it nothing is known of the driver
        except ImportError as error:
            raise InputError("the NVML bindings are not installed: pip install nvidia-ml-py") from error
        driver = find_backend("nvml")()
        try:
            whole = [device for device in driver.devices() if device.parent is None]
        except InputError as error:
            return {}, str(error)
        finally:
            driver.close()
        return {device.gpu: f"{self.answer.node}/{device.row.get('nvml_index')}" for device in whole}, None

    def _usable_gpus(self) -> dict[str, str]:
        """The GPUs that CUDA shows, by UUID; those that cannot be used are noted as lost."""
        from ..probes.node import local_devices

        devices = local_devices()
        for device in devices.unusable:
            self._lost(device.gpu or "", device.gpu or f"index {device.ordinal}", device.says)
        return {device.facts.gpu: f"{device.facts.node}/{device.facts.index}" for device in devices}

    def _absent(self, expected: Mapping[str, str], shown: Mapping[str, str], problem: str | None) -> None:
        """Note the expected GPUs that are not shown. A job with CUDA_VISIBLE_DEVICES expects those that it names."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = [word.strip() for word in (visible or "").split(",")]
        noted = {row.gpu for row in self.answer.gpus}
        for gpu, name in expected.items():
            # An index does not say which GPU it is; that the driver is gone is certain all the same.
            mine = visible is None or any(word and gpu.startswith(word) for word in words)
            mine |= problem is not None and any(word.isdecimal() for word in words)
            if mine and gpu not in shown and gpu not in noted:
                hint = f"show it: check it, or `whorl store retire {gpu}` if it left" if problem is None else "answer"
                self._lost(gpu, name, f"expected on this node, and the driver does not {hint}")

    def _lost(self, gpu: str, name: str, sentence: str) -> None:
        row = OfGpu(gpu, name)
        row.found(Status.CRITICAL, sentence)
        self.answer.gpus.append(row)

    def _probe(self, store: Store) -> Report:
        """Run the probes; their runs are stored if this user may write to the store."""
        from ..probes.measurement import MeasureOptions, measure

        def go_on(*_: object) -> None:
            if self.is_late():
                raise TimeoutError("the check has answered")

        go_on()
        name = f"check-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        simulated = self.backend == "simulated"
        options = MeasureOptions(
            suite="quick",
            backend="simulated" if simulated else "cuda",
            campaign=name,
            progress=go_on,
            **(self.simulated if simulated else {}),
        )
        self.answer.probed = True
        if store.writable():
            return measure(store, PROBES, options).report
        with tempfile.TemporaryDirectory(prefix="whorl-check-") as folder:
            self.answer.says.append("the runs are not stored: this user may only read the store")
            return measure(f"{folder}/store", PROBES, options).report

    # -- what it means ----------------------------------------------------------------------------------------

    def _judge(self, store: Store, report: Report | None, here: Mapping[str, str]) -> None:
        from ..analysis.verdicts.reference import known

        gpus = list(here)
        before = None if report is None else report.campaign
        levels = known(store, gpus, PROBES, leave_out=before, peers_too=report is not None)
        by_gpu = {one.gpu: one for one in self.answer.gpus}
        for gpu, name in here.items():
            one = by_gpu.get(gpu)
            if one is None:
                one = OfGpu(gpu, name)
                self.answer.gpus.append(one)
            one.name = levels.names.get(gpu, name)
            self._stored(one, levels)
            if report is not None:
                self._measured(one, report, levels)
        self._other_firmware(store)
        self.answer.gpus.sort(key=lambda one: one.name)
        for gpu, sentence in ({} if report is None else report.failures).items():
            lost = by_gpu.get(gpu) or next((one for one in self.answer.gpus if one.gpu == gpu), None)
            if lost is None:
                lost = OfGpu(gpu, gpu)
                self.answer.gpus.append(lost)
            if lost.status is not Status.CRITICAL:
                lost.found(Status.CRITICAL, sentence)

    def _other_firmware(self, store: Store) -> None:
        """Name the GPUs with a firmware or driver that most GPUs of their model do not have; a fault it need not be."""
        by_gpu = {one.gpu: one for one in self.answer.gpus}
        for row in store.sql("SELECT * FROM other_firmware ORDER BY part").to_pylist():
            if row["gpu"] in by_gpu:
                others = row["gpus"] - row["alike"]
                by_gpu[row["gpu"]].says.append(
                    f"{row['part']} {row['version']}; most of the {others} other GPUs have {row['usual_version']}"
                )

    def _stored(self, one: OfGpu, levels: Known) -> None:
        """What the newest judgement says of the GPU."""
        from ..analysis.verdicts import TIME, Kind, State
        from ..store.vocabulary import EventKind

        for verdict in levels.verdicts.get(one.gpu, ()):
            if verdict.kind is Kind.FAST:
                continue
            effect = verdict.effect_pct
            slower = (effect or 0.0) if verdict.figure == TIME else 0.0
            grave = verdict.kind in (Kind.WRONG, Kind.LOST, Kind.FAILED) or slower >= self.critical
            confirmed = verdict.state is State.CONFIRMED or verdict.kind is Kind.WRONG
            of = "" if verdict.figure == TIME else f" of its {verdict.figure}"
            by = "" if effect is None else f" {effect:+.1f} %{of}"
            sentence = f"judged {verdict.kind}{by}, {verdict.state}"
            if verdict.kind is Kind.LOSES:
                sentence = f"its node loses GPUs, {verdict.state}"
            one.found(Status.CRITICAL if grave and confirmed else Status.WARNING, sentence)
        for happened in levels.happened.get(one.gpu, ()):
            what = _HAPPENED.get(happened.kind.value) or f"XID {happened.code}"
            often = f" {happened.n} times" if happened.n > 1 else ""
            when = "" if happened.last is None else f", last at {happened.last:%Y-%m-%d %H:%M} UTC"
            status = Status.CRITICAL if happened.kind is EventKind.WRONG_RESULT else Status.WARNING
            one.found(status, f"{what}{often}{when}, and nobody has judged that yet: whorl verdicts")

    def _measured(self, one: OfGpu, report: Report, levels: Known) -> None:
        """What the probes say, now."""
        mine = [run for run in report.runs if run.gpu == one.gpu]
        if not mine and one.gpu not in report.failures:
            one.found(Status.UNKNOWN, "no probe ran on it")
        compared = 0
        for run in mine:
            if run.status is Outcome.WRONG_RESULT or run.wrong:
                one.found(Status.CRITICAL, f"{run.probe}: wrong result: {run.status_detail or 'the check failed'}")
            elif run.status not in COMPARED:
                one.found(Status.CRITICAL, f"{run.probe}: {run.status_detail or run.status}")
            elif run.status is Outcome.HEALTH_CHANGED:
                one.found(Status.WARNING, f"{run.probe}: {run.status_detail}")
            if run.status in COMPARED and run.median_ms is not None:
                level = levels.levels.get(one.gpu, {}).get(run.probe) or levels.peers_of(one.gpu, run.probe, run.model)
                now = _now(run.probe, run.median_ms, level)
                one.now.append(now)
                compared += self._compared(one, now)
                if level is not None and report.began_ns is not None and not one.says:
                    self._left(one, now, level, report.began_ns / 1e9)
        if mine and not compared and one.status is Status.OK:
            one.found(
                Status.UNKNOWN, "there is nothing to compare with: the store has no runs of it and too few of its model"
            )

    @staticmethod
    def _left(one: OfGpu, now: Now, level: Level, at_s: float) -> None:
        """A smaller change that lasts is noticed over several checks."""
        alarm = None if now.time_ms is None else level.left(now.time_ms, at_s)
        if alarm is not None and alarm.effect_pct > 0:
            since = datetime.fromtimestamp(alarm.since_s, UTC)
            by = f"{now.workload} {alarm.effect_pct:+.1f} % of its own level"
            one.found(Status.WARNING, f"{by} since {since:%Y-%m-%d}, in several sittings or runs")

    def _compared(self, one: OfGpu, now: Now) -> bool:
        """Whether there was something to compare with; notes a GPU that is slower than it may be."""
        excess, edge, what = now.own_pct, now.own_high_pct, "of its own level"
        if excess is None:
            excess, edge, what = now.peers_pct, None, "of its peers' median"
        if excess is None:
            return False
        beyond = edge is None or excess > edge
        limits = f"its sittings reach {edge:+.1f} %" if edge is not None else "how far its sittings reach is not known"
        if beyond and excess >= self.warning:
            status = Status.CRITICAL if excess >= self.critical else Status.WARNING
            one.found(status, f"{now.workload} {excess:+.1f} % {what} ({limits})")
        return True


def _now(workload: str, time_ms: float, level: Level | None) -> Now:
    def beside(value: float | None, reference: float | None) -> float | None:
        if value is None or reference is None or not reference > 0:
            return None
        return 100 * math.expm1(math.log(value / reference))

    if level is None:
        return Now(workload, time_ms, None, None, None, None, None)
    return Now(
        workload,
        time_ms,
        beside(time_ms, level.own_ms),
        beside(level.low_ms, level.own_ms),
        beside(level.high_ms, level.own_ms),
        beside(time_ms, level.peers_ms),
        level.peers,
    )
