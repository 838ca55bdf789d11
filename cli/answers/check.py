"""`whorl check`: which GPUs are on this node, what is known of them, and a short probe beside their own level.

It fails open: whatever keeps it from an answer (no store, a call that does not return, no GPU that is expected here) is
"unknown", and never an alarm. A GPU that is expected on this node and absent is one, also where the driver is gone.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from ...dashboards.answers.reply import Reply, RowList, opened
from ...dashboards.documents.check import CheckLimits, CheckStatus, GpuCheck, NodeCheck, ProbeTime
from ...errors import DeviceError, InputError, WhorlError
from ...store.instants import seconds_of
from ...store.names import this_node
from ...store.vocabulary import COMPARED, EventKind, Outcome

if TYPE_CHECKING:
    from ...analysis.verdicts.verdict import Verdict
    from ...analysis.verdicts.watch import Happened, Known
    from ...probes.campaign import Report
    from ...store import Store

PROBES = ("gemm-fp32", "stream-triad")
"""What is run: the cores and the memory; 15 s a GPU at most."""
THREAD_NAME = "whorl-check"
_PER_GPU_S, _LEAST_S = 30.0, 60.0
_EVENTS = {
    EventKind.LOST: "it was lost",
    EventKind.NEEDS_RESET: "it needs a reset",
    EventKind.WRONG_RESULT: "wrong results",
    EventKind.PROBE_FAILED: "a run failed",
}


class SimulatedOptions(TypedDict, total=False):
    """The simulated GPUs of a check, with `backend="simulated"`."""

    gpus: int
    """How many; 4 where it is left out."""
    model: str
    """V100 where it is left out."""
    seed: int
    """1 where it is left out."""
    fault: Sequence[str]
    """Faults to plant."""


def check(
    store: Store | str | Path,
    *,
    quick: bool = False,
    warning: float = CheckLimits.warning_pct,
    critical: float = CheckLimits.critical_pct,
    timeout: float | str | None = None,
    backend: str = "cuda",
    **simulated: Unpack[SimulatedOptions],
) -> Reply[NodeCheck]:
    """Check the GPUs of this node: what is known of them, and a short probe beside their own level, as `whorl check`.

    `status` is OK, WARNING, CRITICAL or UNKNOWN; no store, no driver and a hanging call are UNKNOWN, and no exception.
    `quick` runs no probe and stores nothing: it asks the driver which GPUs are there, and the store what is known of
    them. `warning` and `critical` are per cent that a probe takes longer than the GPU's own level. The reply comes
    after `timeout` (s, or as "1min") at the latest, by default 30 s a GPU and 60 s at least; no probe begins after
    that, and one that runs ends in its thread. `backend` is "cuda" or "auto" (the GPUs here; both are the same), or
    "simulated". `frame` has a row for each GPU. Raises InputError for a `timeout` that is no time.
    """
    limit_s = seconds_of(timeout)
    checking = _Checking(store, backend, simulated, limit_s, NodeCheck(this_node(), CheckLimits(warning, critical)))
    thread = threading.Thread(target=checking.run, args=(quick,), name=THREAD_NAME, daemon=True)
    thread.start()
    while thread.is_alive() and not checking.is_late():
        thread.join(0.05)
    result = checking.result
    if thread.is_alive():  # it may still write into its own result
        sentence = f"no answer within {checking.time_limit_s:g} s: a driver call may hang, or the store be slow"
        result = NodeCheck(result.node, result.limits, says=[sentence], failed=True)
    result.seconds = time.monotonic() - checking.began_s
    return Reply(result, NodeCheck.mapping, NodeCheck.document, rows=RowList("gpus", GpuCheck))


@dataclass
class _Checking:
    """The work of one check, in a thread of its own."""

    store: Store | str | Path
    backend: str
    simulated: SimulatedOptions
    timeout_s: float | None
    result: NodeCheck
    driver_gpus: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def time_limit_s(self) -> float:
        return max(_LEAST_S, _PER_GPU_S * self.driver_gpus) if self.timeout_s is None else self.timeout_s

    def is_late(self) -> bool:
        return time.monotonic() - self.began_s >= self.time_limit_s

    def run(self, quick: bool) -> None:
        try:
            store = opened(self.store)
            if self.backend == "simulated":
                report = None if quick else self._probe(store)
                judge(self.result, store, self._simulated_gpus(), report)
            else:
                self._check_node(store, quick)
        except Exception as error:  # whatever it is: a check that fails must not drain a node
            self.result.failed = True
            expected = isinstance(error, WhorlError)
            self.result.says.append(str(error) if expected else f"the check failed ({type(error).__name__}: {error})")
            if isinstance(error, DeviceError):  # a GPU that is shown and cannot be used is an alarm
                self._add_lost("", "GPU", str(error))

    def _check_node(self, store: Store, quick: bool) -> None:
        from ...collectors.node_memory import seen_on

        shown_gpus, obstacle = self._driver_gpus()
        self.driver_gpus = len(shown_gpus)
        expected = seen_on(store, self.result.node, time.time_ns())
        if not expected and not shown_gpus:
            self.result.says.append(
                "no GPU is expected here: no collector or campaign saw a real one on this node within 30 days"
            )
        if quick:
            self._add_absent(expected, shown_gpus, obstacle)
            judge(self.result, store, shown_gpus)
            for gpu in self.result.gpus:
                if gpu.gpu not in expected:
                    gpu.note(
                        CheckStatus.UNKNOWN,
                        "no collector or campaign saw it here within 30 days: run `whorl collect` or `whorl probe run`",
                    )
            if not shown_gpus:
                self.result.failed = True
                self.result.says.append(obstacle or "the driver shows no GPU")
            return
        try:
            usable = self._usable_gpus()
        except WhorlError:
            self._add_absent(expected, shown_gpus, obstacle)
            self.result.says += [] if obstacle is None else [obstacle]
            raise
        self.result.gpus += [GpuCheck(gpu, name) for gpu, name in usable.items()]
        self._add_absent(expected, shown_gpus | usable, None)
        judge(self.result, store, usable, self._probe(store))

    # -- which GPUs are here --------------------------------------------------------------------------------------

    def _simulated_gpus(self) -> dict[str, str]:
        """The GPUs of the simulated node: UUID -> name; one that is planted as lost is noted as such."""
        from ...probes.measurement import drawn_fleet
        from ...simulation.cluster import identities

        fleet = drawn_fleet(**self.simulated)
        names = {}
        for position, identity in enumerate(identities(fleet.seed, len(fleet), fleet.model.name)):
            if fleet.fault_of(position).falls:
                self._add_lost(identity.uuid, identity.name, "it has fallen off the bus: check its node")
            else:
                names[identity.uuid] = identity.name
        return names

    def _driver_gpus(self) -> tuple[dict[str, str], str | None]:
        """The whole GPUs that the driver shows, UUID -> name, and why it does not answer, None where it does.

        It needs no CUDA, and touches no GPU. Raises InputError where whorl cannot ask a driver at all.
        """
        from ...collectors.backend import find_backend

        if find_spec("pynvml") is None:
            raise InputError("the NVML bindings are not installed: pip install nvidia-ml-py")
        driver = find_backend("nvml")()
        try:
            devices = driver.devices()
        except InputError as error:
            return {}, str(error)
        finally:
            driver.close()
        names = {gpu.gpu: f"{self.result.node}/{gpu.row.get('nvml_index')}" for gpu in devices if gpu.parent is None}
        return names, None

    def _usable_gpus(self) -> dict[str, str]:
        """The GPUs that CUDA shows, UUID -> name; those that cannot be used are noted as lost."""
        from ...probes.node import local_devices

        devices = local_devices()
        for device in devices.unusable:
            self._add_lost(device.gpu or "", device.gpu or f"index {device.ordinal}", device.says)
        return {device.facts.gpu: f"{device.facts.node}/{device.facts.index}" for device in devices}

    def _add_absent(self, expected: Mapping[str, str], shown_gpus: Mapping[str, str], obstacle: str | None) -> None:
        """Note the expected GPUs that are not there. A job with CUDA_VISIBLE_DEVICES expects those that it names."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = [word.strip() for word in (visible or "").split(",")]
        noted = {gpu.gpu for gpu in self.result.gpus}
        for gpu, name in expected.items():
            # An index does not say which GPU it is; that the driver is gone is certain all the same.
            of_job = visible is None or any(word and gpu.startswith(word) for word in words)
            of_job |= obstacle is not None and any(word.isdecimal() for word in words)
            if of_job and gpu not in shown_gpus and gpu not in noted:
                hint = f"show it: check it, or `whorl store retire {gpu}` if it left" if obstacle is None else "answer"
                self._add_lost(gpu, name, f"expected on this node, and the driver does not {hint}")

    def _add_lost(self, gpu: str, name: str, sentence: str) -> None:
        self.result.gpus.append(GpuCheck(gpu, name, CheckStatus.CRITICAL, [sentence]))

    def _probe(self, store: Store) -> Report:
        """Run the probes; their runs are stored if this user may write to the store."""
        from ...probes.measurement import MeasureOptions, measure

        def stop_when_late(*_: object) -> None:
            if self.is_late():
                raise TimeoutError("the check has answered")

        stop_when_late()
        options = MeasureOptions(
            suite="quick",
            backend="simulated" if self.backend == "simulated" else "cuda",
            campaign=f"check-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}",
            progress=stop_when_late,
            **(self.simulated if self.backend == "simulated" else {}),
        )
        self.result.probed = True
        if store.writable():
            return measure(store, PROBES, options).report
        with tempfile.TemporaryDirectory(prefix="whorl-check-") as folder:
            self.result.says.append("the runs are not stored: this user may only read the store")
            return measure(f"{folder}/store", PROBES, options).report


# -- what is held against them ----------------------------------------------------------------------------------------


def judge(result: NodeCheck, store: Store, names: Mapping[str, str], report: Report | None = None) -> None:
    """Add to the result what the store knows of these GPUs (UUID -> name), and what the probes of a report show."""
    from ...analysis.verdicts.watch import known

    left_out = None if report is None else report.campaign
    levels = known(store, list(names), PROBES, leave_out=left_out, peers_too=report is not None)
    gpus = {gpu.gpu: gpu for gpu in result.gpus}
    for key, name in names.items():
        if key not in gpus:
            gpus[key] = GpuCheck(key, name)
            result.gpus.append(gpus[key])
        gpus[key].name = levels.names.get(key, name)
        for verdict in levels.verdicts.get(key, ()):
            _note_verdict(gpus[key], verdict, result.limits)
        for events in levels.happened.get(key, ()):
            _note_events(gpus[key], events)
        if report is not None:
            _note_runs(gpus[key], report, levels, result.limits)
    for row in store.sql("SELECT * FROM other_firmware ORDER BY part").to_pylist():  # it need not be a fault
        if row["gpu"] in gpus:
            others = row["gpus"] - row["alike"]
            sentence = f"{row['part']} {row['version']}; most of the {others} other GPUs have {row['usual_version']}"
            gpus[row["gpu"]].says.append(sentence)
    result.gpus.sort(key=lambda gpu: gpu.name)
    for key, sentence in ({} if report is None else report.failures).items():
        if key not in gpus:
            gpus[key] = GpuCheck(key, key)
            result.gpus.append(gpus[key])
        if gpus[key].status is not CheckStatus.CRITICAL:
            gpus[key].note(CheckStatus.CRITICAL, sentence)


def _note_verdict(gpu: GpuCheck, verdict: Verdict, limits: CheckLimits) -> None:
    """Add a finding of the newest judgement; that a GPU is faster than its peers is nothing against it."""
    from ...analysis.verdicts import TIME, Kind, State

    if verdict.kind is Kind.FAST:
        return
    of_figure = "" if verdict.figure == TIME else f" of its {verdict.figure}"
    effect = "" if verdict.effect_pct is None else f" {verdict.effect_pct:+.1f} %{of_figure}"
    sentence = f"judged {verdict.kind}{effect}, {verdict.state}"
    if verdict.kind is Kind.LOSES:
        sentence = f"its node loses GPUs, {verdict.state}"
    slower = verdict.figure == TIME and (verdict.effect_pct or 0.0) >= limits.critical_pct
    grave = slower or verdict.kind in (Kind.WRONG, Kind.LOST, Kind.FAILED)
    certain = verdict.state is State.CONFIRMED or verdict.kind is Kind.WRONG
    gpu.note(CheckStatus.CRITICAL if grave and certain else CheckStatus.WARNING, sentence)


def _note_events(gpu: GpuCheck, events: Happened) -> None:
    """Add what happened since the newest judgement."""
    sentence = _EVENTS.get(events.kind) or f"XID {events.code}"
    sentence += f" {events.n} times" if events.n > 1 else ""
    sentence += "" if events.last is None else f", last at {events.last:%Y-%m-%d %H:%M} UTC"
    wrong = events.kind is EventKind.WRONG_RESULT
    gpu.note(
        CheckStatus.CRITICAL if wrong else CheckStatus.WARNING,
        f"{sentence}, and nobody has judged that yet: whorl verdicts",
    )


def _note_runs(gpu: GpuCheck, report: Report, levels: Known, limits: CheckLimits) -> None:
    """Add what the probes show that were just run."""
    runs = [run for run in report.runs if run.gpu == gpu.gpu]
    if not runs and gpu.gpu not in report.failures:
        gpu.note(CheckStatus.UNKNOWN, "no probe ran on it")
    compared = False
    for run in runs:
        if run.status is Outcome.WRONG_RESULT or run.wrong:
            gpu.note(CheckStatus.CRITICAL, f"{run.probe}: wrong result: {run.status_detail or 'the check failed'}")
        elif run.status not in COMPARED:
            gpu.note(CheckStatus.CRITICAL, f"{run.probe}: {run.status_detail or run.status}")
        elif run.status is Outcome.HEALTH_CHANGED:
            gpu.note(CheckStatus.WARNING, f"{run.probe}: {run.status_detail}")
        if run.status not in COMPARED or run.median_ms is None:
            continue
        level = levels.levels.get(gpu.gpu, {}).get(run.probe) or levels.peers_of(gpu.gpu, run.probe, run.model)
        compared |= gpu.note_time(ProbeTime.beside(level, run.probe, run.median_ms), limits)
        if level is not None and report.began_ns is not None and not gpu.says:
            # A smaller change that lasts is noticed over several checks.
            alarm = level.left(run.median_ms, report.began_ns / 1e9)
            if alarm is not None and alarm.effect_pct > 0:
                since = datetime.fromtimestamp(alarm.since_s, UTC)
                sentence = f"{run.probe} {alarm.effect_pct:+.1f} % of its own level since {since:%Y-%m-%d}"
                gpu.note(CheckStatus.WARNING, f"{sentence}, in several sittings or runs")
    if runs and not compared and gpu.status is CheckStatus.OK:
        gpu.note(
            CheckStatus.UNKNOWN,
            "there is nothing to compare with: the store has no runs of it and too few of its model",
        )
