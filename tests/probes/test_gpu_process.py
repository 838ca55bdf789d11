"""A process for each GPU: what befalls one of them costs that GPU alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from whorl.errors import DeviceError
from whorl.kernels.device import finish
from whorl.probes import gpu_process
from whorl.probes.campaign import Campaign, Plan, Report
from whorl.probes.catalogue import Kind, Probe
from whorl.probes.conditions import Asked, Setting
from whorl.probes.gpu_process import GpuProcess, bind, ranges
from whorl.probes.meeting import Meeting
from whorl.probes.node import run_gpus, shuffled
from whorl.probes.recording import Recorder, past_of
from whorl.probes.watch import Recent
from whorl.store import Store
from whorl.tests.checks import not_none, until
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.apart import process
from whorl.tests.probes.changing import uuids
from whorl.tests.probes.hand_device import FACTS, QUICK, HandDevice, a_probe, find

TWO = (a_probe("one"), a_probe("two"))


def run(
    store: Store, processes: list[GpuProcess], *, neighbours: str = "busy", probes: tuple[Probe, ...] = TWO
) -> Report:
    plan = Plan(probes, Asked(QUICK), "c", neighbours)
    gpus = [process.facts.gpu for process in processes]
    past_runs = past_of(store, "k", gpus).runs_of("c")
    campaign = Campaign(plan, Recorder(store, cluster="k", campaign="c"), find, past_runs, len(gpus))
    watch = Recent(gpus, seconds=60.0, interval_s=0.1)
    return run_gpus(campaign, processes, watch, {gpu: Setting(neighbours) for gpu in gpus})


def outcomes(store: Store) -> dict[str, Counter[str]]:
    """How often the runs of each GPU came out in which way."""
    counts: dict[str, Counter[str]] = {}
    for row in store.sql("select gpu, status from runs").to_pylist():
        counts.setdefault(row["gpu"], Counter())[row["status"]] += 1
    return counts


def test_an_error_in_a_process_ends_the_campaign_and_is_raised_here(store: Store) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug") as raised:
        run(store, [process(0, "broken"), process(1)], neighbours="idle")
    assert "meet(self.fate)" in raised.value.__notes__[0]
    assert outcomes(store) == {}


def test_a_gpu_that_cannot_be_opened_is_one_sentence() -> None:
    apart = GpuProcess(FACTS, (_refuse, ("it is busy",)))
    for _ in range(2):
        with pytest.raises(DeviceError, match="it is busy"):
            apart.ask(_sleep, 0.0)
    apart.close()


def test_one_that_hangs_is_ended_soon_after_somebody_wants_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_process, "ENDING_S", 0.5)
    apart = process(0)
    with pytest.raises(DeviceError, match="was silent for 0 s and was ended") as raised:
        apart.ask(_sleep, 100.0, answers={"ended": lambda: True})
    assert (raised.value.gone, raised.value.outcome) == (True, "hung")
    apart.close()


def test_the_processes_of_the_other_gpus_are_not_others() -> None:
    first, second = process(0), process(1)
    try:
        first.ask(_use, ("pid 7 (python)", f"pid {second.ask(_number)} (python)"))
        assert first.others() == ["pid 7 (python)"]
        assert first.versions == {"driver": "1"}
    finally:
        first.close()
        second.close()
    assert first.others() == ["not known: GPU-0: its process was ended"]
    assert first.versions == {"driver": "1"}


def _refuse(sentence: str) -> None:
    raise DeviceError(sentence)


def _sleep(_: object, __: object, seconds: float) -> None:
    time.sleep(seconds)


def _number(_: object, __: object) -> int:
    return os.getpid()


def _use(device: HandDevice, _: object, names: tuple[str, ...]) -> None:
    device.busy_with = names


# -- binding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masks", "bound"), [([0b1011, 1], "0-1,3,64"), ([1 << 63], "63"), ([0b10000], None), (None, None)]
)
def test_it_is_bound_to_the_cpus_near_the_gpu_that_it_may_use(
    nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch, masks: list[int] | None, bound: str | None
) -> None:
    nvml.write("gpus 1", "model H100")
    (gpu,) = uuids()
    chosen: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3, 5, 63, 64})
    monkeypatch.setattr(os, "sched_setaffinity", chosen.__setitem__)
    if masks is not None:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda _, words: [*masks, 0, 0][:words])
    assert bind(gpu) == bound
    assert {ranges(cpus) for cpus in chosen.values()} == ({bound} if bound else set())
    assert bool(chosen) == (os.getpid() in chosen)
    assert bind("GPU-none") is None


# -- meetings ---------------------------------------------------------------------------------------------------------


def test_one_that_hangs_is_waited_for_once_and_again_when_it_is_back() -> None:
    first, second = HandDevice(facts=replace(FACTS, gpu="a")), HandDevice(facts=replace(FACTS, gpu="b"))
    meeting = Meeting(["a", "b"], longest_s=5.0)
    finish(meeting.arrive(first, 0, lambda: False))
    assert first.clock_ns == pytest.approx(5.2e9)
    finish(meeting.arrive(first, 1, lambda: False))
    assert first.clock_ns == pytest.approx(5.2e9), "it is not waited for"
    assert not meeting.complete(second, 0) or meeting.complete(second, 1)
    assert not meeting.complete(first, 2), "it came back"
    assert meeting.complete(second, 2)
    meeting.leave("b")
    assert meeting.complete(first, 3)


def test_the_order_of_visits_follows_from_the_campaign() -> None:
    probes = (*(a_probe(name) for name in "abcdefgh"), a_probe("rest", kind=Kind.IDLE))
    orders = {campaign: [probe.name for probe in shuffled(probes, campaign)] for campaign in ("one", "two", "three")}
    assert all(order[0] == "rest" for order in orders.values())
    assert all(sorted(order) == sorted(probe.name for probe in probes) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 3
    assert [probe.name for probe in shuffled(probes[::-1], "one")] == orders["one"]


# -- the end of the parent --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_interrupt_ends_the_processes_and_keeps_what_is_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [process(0), process(1)]
    measured = threading.Semaphore(0)
    measure = GpuProcess.measure

    def measure_and_tell(*arguments: Any, **options: Any) -> Any:
        measured.release()
        return measure(*arguments, **options)

    def interrupt() -> None:  # not before the campaign runs, however long that takes on a busy machine
        for _ in range(6):
            measured.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(gpu_process, "_LEAVE_S", 60.0)
    monkeypatch.setattr(GpuProcess, "measure", measure_and_tell)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(store, processes, probes=tuple(a_probe(f"probe-{number}") for number in range(100)))
    for apart in processes:
        assert not_none(apart._process).returncode == 0, "it ended by itself"
    assert all(set(counts) == {"ok"} for counts in outcomes(store).values())


@pytest.mark.long
def test_without_its_parent_a_process_ends() -> None:
    program = (
        "from whorl.tests.probes.apart import process\n"
        "from whorl.tests.probes.test_gpu_process import _number\n"
        "apart = process(0); print(apart.ask(_number), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(not_none(parent.stdout).readline())
        parent.kill()
    until(lambda: not Path(f"/proc/{child}").exists())
