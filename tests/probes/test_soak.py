"""A soak: load and pulses for minutes, checked part by part; what was found stays whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from whorl.errors import DeviceError
from whorl.kernels.device import Verdict, finish
from whorl.probes.campaign import Campaign, Plan
from whorl.probes.catalogue import Kind, Probe
from whorl.probes.conditions import Asked, Setting
from whorl.probes.figures import detected
from whorl.probes.figures import find as figure
from whorl.probes.protocol import Measured, measure
from whorl.probes.recording import Recorder
from whorl.probes.steps import Task
from whorl.store import Store
from whorl.store.vocabulary import EndedBy, Outcome
from whorl.tests.probes.hand_device import QUICK, HandDevice, a_probe, find

SOAK: Probe = a_probe("soak", kind=Kind.SOAK, suite=None)
RIGHT, WRONG = Verdict(10, 0, repetitions=100), Verdict(10, 2, "c, row 1", repetitions=100)


def soaked(device: HandDevice, ended: Callable[[], bool] = lambda: False, **asked: float) -> Measured:
    conditions = Asked(QUICK, **{"time_limit_s": 35.0, **asked})  # type: ignore[arg-type]
    answer = finish(measure(device, device, Task(SOAK, conditions, first=False), find, ended=ended))
    assert isinstance(answer, Measured)
    return answer


def test_steady_load_and_pulses_take_turns_and_every_part_is_checked() -> None:
    device = HandDevice(verdicts=[RIGHT])
    result = soaked(device, period_s=0.5, duty=0.2)
    assert (result.status, result.ended_by) == (Outcome.OK, EndedBy.TIME_LIMIT)
    assert device.calls.count("check") == 1 + 4, "of the trial, and of 10, 10, 10 and 5 s"
    assert device.batches.count((500, 1)) == 20, "1 s without a rest, by repetitions of 2 ms"
    assert device.batches.count((50, 1)) == 30, "0.1 s in every 0.5 s"
    assert device.calls.count("pause") == 30
    assert figure(result.figures, "checked_repetitions") == 500
    assert figure(result.figures, "found_at_100") == pytest.approx(100 * (1 - 0.99**500))
    assert figure(result.figures, "time_median") == 2.0


def test_the_detection_curve() -> None:
    assert detected(1, 2) == pytest.approx(0.5)
    assert detected(230_000, 100_000) == pytest.approx(1 - (1 - 1e-5) ** 230_000)
    assert detected(1000, 10**8) == pytest.approx(1e-5, rel=1e-3), "no digit is lost where it is small"


def test_it_goes_on_after_a_wrong_result_unless_it_is_to_end() -> None:
    result = soaked(HandDevice(verdicts=[RIGHT, RIGHT, WRONG, RIGHT]))
    assert (result.ended_by, result.status) == (EndedBy.TIME_LIMIT, Outcome.WRONG_RESULT)
    result = soaked(HandDevice(verdicts=[RIGHT, RIGHT, WRONG, RIGHT]), until_wrong=True)
    assert (result.ended_by, result.status) == (EndedBy.WRONG, Outcome.WRONG_RESULT)
    assert figure(result.figures, "checked_repetitions") == 300


def test_somebody_who_stops_it_keeps_what_was_found() -> None:
    device = HandDevice(verdicts=[RIGHT])
    result = soaked(device, ended=lambda: device.clock_ns > 12e9)
    assert result.ended_by == EndedBy.STOPPED
    assert result.status == Outcome.OK
    assert figure(result.figures, "checked_repetitions") == 300, "the part that was stopped too"
    with pytest.raises(KeyboardInterrupt):
        soaked(device, ended=lambda: True)
    assert device.loaded == 0


def test_of_a_gpu_that_fails_the_figures_until_then_are_stored_with_its_error(tmp_path: Path) -> None:
    error = DeviceError("GPU-0 fell off the bus", gone=True, outcome=Outcome.LOST)
    device = HandDevice(verdicts=[RIGHT], breaks_at=18, error=error)
    store = Store.create(tmp_path / "S")
    recorder = Recorder(store, cluster="c", campaign="p")
    plan = Plan((SOAK, a_probe("tiny")), Asked(QUICK, time_limit_s=35.0), "p")
    texts: list[str] = []
    campaign = Campaign(plan, recorder, find, {}, 1, progress=lambda done, total, text: texts.append(text))
    finish(campaign.on(device, device, Setting("idle")))
    recorder.flush()
    (run,) = store.arrow("runs").to_pylist()
    assert (run["status"], run["ended_by"]) == ("lost", "failed")
    assert run["status_detail"] == "GPU-0 fell off the bus"
    figures = {row["figure"]: row["value"] for row in store.arrow("results").to_pylist()}
    assert figures["checked_repetitions"] == 200
    assert [gpu for gpu, *_ in campaign.report.unrun] == [device.facts.gpu], "the next probe"
    assert campaign.report.failures == {device.facts.gpu: "soak: GPU-0 fell off the bus"}
    assert any(text.startswith("soak on n1/0: 9 of 35 s") for text in texts)
    kinds = [row["kind"] for row in store.arrow("events").to_pylist()]
    assert sorted(kinds) == ["probe_failed", "probe_not_run"]


def test_a_soak_takes_as_long_as_is_asked_and_its_conditions_say_so() -> None:
    assert Plan((SOAK,), Asked(QUICK, time_limit_s=1200.0), "p").expected_s() >= 1200
    assert Plan((SOAK,), Asked(QUICK), "p").expected_s() >= QUICK.soak_s
    assert replace(Asked(QUICK), time_limit_s=1200.0).soak_s == 1200
