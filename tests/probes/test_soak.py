"""A soak: load and pulses for minutes, checked part by part; what was found stays whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from whorl.errors import DeviceError
from whorl.kernels.device import Verdict, finish
from whorl.probes.campaign import Campaign, Plan
from whorl.probes.catalogue import Kind, Probe
from whorl.probes.conditions import Asked, Setting
from whorl.probes.figures import detected, interval_of, lag_one, rank
from whorl.probes.figures import find as figure
from whorl.probes.protocol import Measured, measure
from whorl.probes.recording import Recorder
from whorl.probes.steps import Task
from whorl.store import Store
from whorl.store.vocabulary import EndedBy, Outcome
from whorl.tests.checks import not_none
from whorl.tests.probes.hand_device import QUICK, HandDevice, a_probe, find

SOAK: Probe = a_probe("soak", kind=Kind.SOAK, suite=None)
RIGHT, WRONG = Verdict(10, 0, repetitions=100), Verdict(10, 2, "c, row 1", repetitions=100)


def soaked(device: HandDevice, ended: Callable[[], bool] = lambda: False, **limits: float) -> Measured:
    conditions = Asked(QUICK, **{"time_limit_s": 35.0, **limits})  # type: ignore[arg-type]
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


# -- interval ----------------------------------------------------------------------------------------------------------
# The interval of a median: exact for independent values, honest for those that hang together.


def wandering(random: np.random.Generator, n: int, correlation: float, *, skewed: bool = False) -> NDArray[np.float64]:
    """Values of a first-order autoregression around 100, with standard deviation 1; skewed ones are lognormal, and
    their median is 100 all the same."""
    noise = random.standard_normal(n + 100) * np.sqrt(1 - correlation**2)
    values = np.zeros(n + 100)
    for i in range(1, len(values)):
        values[i] = correlation * values[i - 1] + noise[i]
    return 100 * np.exp(0.8 * values[100:]) if skewed else 100 + values[100:]


def coverage(n: int, correlation: float, trials: int = 600, *, skewed: bool = False) -> tuple[float, float]:
    """How often the interval holds the median, of those that it calls settled, and how often it does so."""
    random = np.random.default_rng(n)
    intervals = [interval_of(wandering(random, n, correlation, skewed=skewed)) for _ in range(trials)]
    settled = [interval for interval in intervals if interval.settled]
    held = [
        interval.low is not None and interval.high is not None and interval.low <= 100 <= interval.high
        for interval in settled
    ]
    return float(np.mean(held)), len(settled) / trials


@pytest.mark.parametrize("n", [6, 7, 20, 51, 300, 1999, 2001, 5000])
def test_the_rank_is_the_binomials(n: int) -> None:
    k = rank(n)
    assert scipy.special.bdtr(k - 1, n, 0.5) <= 0.025
    if n <= 2000:  # beyond, a rank or two is given away
        assert scipy.special.bdtr(k, n, 0.5) > 0.025


@pytest.mark.parametrize("n", [20, 50, 200])
def test_the_interval_of_independent_values_holds_the_median_as_often_as_it_says(n: int) -> None:
    held, settled = coverage(n, 0.0)
    assert held >= 0.94  # 95 %, less twice the standard error of 600 trials and a little for what looks correlated
    assert settled > 0.9


@pytest.mark.long(short=1)
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("n", "correlation", "least"), [(60, 0.3, 0.92), (1000, 0.9, 0.93)])
def test_so_does_that_of_values_that_hang_together(n: int, correlation: float, least: float, skewed: bool) -> None:
    held, settled = coverage(n, correlation, trials=400, skewed=skewed)
    assert held >= least  # 95 %, less twice the standard error, and what a short series hides
    assert settled > 0.8


def test_values_that_hang_together_are_worth_fewer() -> None:
    random = np.random.default_rng(5)
    plain, joined = wandering(random, 1000, 0.0), wandering(random, 1000, 0.9)
    assert interval_of(plain).block == 1
    assert 10 < interval_of(joined).block < 40  # (1 + 0.9) / (1 - 0.9) = 19 for an autoregression
    narrow, wide = interval_of(plain).relative, interval_of(joined).relative
    assert not_none(wide) > 2 * not_none(narrow)


def test_a_drift_is_never_settled() -> None:
    assert not interval_of(np.linspace(1.0, 1.1, 60)).settled


def test_values_that_are_all_the_same_are_known_exactly() -> None:
    answer = interval_of(np.full(20, 3.0))
    assert answer.relative == 0
    assert answer.settled
    assert lag_one(np.full(20, 0.1) * 3) == 0
    mostly = interval_of(np.array([3.0, 3.0, 4.0, 3.0] * 5))
    assert (mostly.low, mostly.median) == (3.0, 3.0)
