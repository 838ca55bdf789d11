"""The protocol on a device that does what the test says: what is dropped, when it ends, what it records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels.device import Verdict, finish
from whorl.kernels.work import Facts, Unfit, Work
from whorl.probes import figures
from whorl.probes.catalogue import Kind
from whorl.probes.conditions import Asked
from whorl.probes.figures import find as figure
from whorl.probes.protocol import Measured, Unrun, measure
from whorl.probes.steps import Task
from whorl.probes.watch import Window
from whorl.store.vocabulary import Outcome
from whorl.tests.probes.hand_device import FACTS, QUICK, TINY, HandDevice, a_probe, constant, find


def run(device: HandDevice, **changes: Any) -> Measured:
    answer = answered(device, **changes)
    assert isinstance(answer, Measured)
    return answer


def answered(device: HandDevice, conditions: Asked | None = None, **changes: Any) -> Measured | Unrun:
    probe = a_probe(**changes)
    return finish(measure(device, device, Task(probe, conditions or Asked(QUICK), first=False), find))


def median_interval(measured: Measured) -> list[float]:
    """The lower end of a median's interval, the median, and the upper end, ms."""
    values = {row.name: row.value for row in measured.figures}
    return [values[name] for name in ("time_low", "time_median", "time_high")]


def noisy(share: float, seed: int = 1) -> Iterator[float]:
    random = np.random.default_rng(seed)
    while True:
        yield 25.0 * (1 + share * random.standard_normal())


def test_a_steady_work_is_checked_warmed_up_measured_and_checked_again() -> None:
    device = HandDevice()
    result = run(device)
    order = [call for i, call in enumerate(device.calls) if i == 0 or device.calls[i - 1] != call]
    tried = ["load", "poison", "run", "check", "poison", "run"]
    assert order == [*tried, "hurry True", "run", "check", "hurry False", "unload"]
    assert result.status == "ok"
    assert result.ended_by == "precise"
    assert figure(result.figures, "time_median") == 2.0
    assert figure(result.figures, "rate") == pytest.approx(0.5)  # a million FLOP in 2 ms
    assert figure(result.figures, "bandwidth") == pytest.approx(1.0)
    assert figure(result.figures, "operation_rate") == pytest.approx(0.0005)
    assert figure(result.figures, "checked_elements") == 20
    assert figure(result.figures, "wrong_elements") == 0
    assert figure(result.figures, "repetitions") == sum(repeats * per_repeat for repeats, per_repeat in device.batches)
    assert result.conditions["each"] == 10  # repetitions of 2 ms, so that a repeat takes 20 ms
    assert result.conditions["steady"] is True


def test_the_first_and_the_last_repeat_are_not_counted() -> None:
    def times() -> Iterator[float]:
        yield from (5.0, 2.0)  # the first check, and a second try
        while True:
            yield from chain([9.0], repeat(2.0, count_of["repeats"] - 2), [7.0])

    count_of = {"repeats": 10}
    device = HandDevice(times_ms=times())
    plain = device.load

    async def watched(work: Any, *, seed: int) -> Any:
        loaded = await plain(work, seed=seed)
        run_plain = loaded.run

        async def counted(repeats: int, **options: Any) -> Any:
            count_of["repeats"] = repeats
            return await run_plain(repeats, **options)

        loaded.run = counted  # type: ignore[method-assign]
        return loaded

    device.load = watched  # type: ignore[method-assign]
    result = run(device)
    times_ms = [row.value for row in result.figures if row.name == "time"]
    assert set(times_ms) == {2.0}
    assert [row.repeat for row in result.figures if row.name == "time"] == list(range(len(times_ms)))
    assert result.conditions["repeats"] == len(times_ms) == device.batches[-1][0] - 2


def test_it_repeats_until_the_interval_is_as_narrow_as_asked() -> None:
    loose = run(HandDevice(times_ms=noisy(0.01)), name="loose")
    tight = answered(HandDevice(times_ms=noisy(0.01)), Asked(QUICK, precision=0.002, time_limit_s=60.0))
    assert isinstance(tight, Measured)
    assert loose.ended_by == tight.ended_by == "precise"
    loose_share, tight_share = (
        (high - low) / 2 / middle for low, middle, high in (median_interval(measured) for measured in (loose, tight))
    )
    assert tight_share <= 0.002 < loose_share <= 0.005
    assert int(str(tight.conditions["repeats"])) > 2 * int(str(loose.conditions["repeats"]))


def test_it_ends_at_the_time_limit_where_precision_is_out_of_reach() -> None:
    result = answered(HandDevice(times_ms=noisy(0.05)), Asked(QUICK, precision=1e-5, time_limit_s=3.0))
    assert isinstance(result, Measured)
    assert result.ended_by == "time limit"
    assert 2.0 <= (result.ended_ns - result.began_ns) / 1e9 <= 3.1


def test_even_the_slowest_work_is_repeated_three_times() -> None:
    result = run(HandDevice(times_ms=constant(4000.0)))
    assert result.ended_by == "time limit"
    assert result.conditions["repeats"] == 3
    assert figure(result.figures, "time_low") is None


def test_warming_up_lasts_until_times_are_steady() -> None:
    falling = chain((30.0 * 0.98 ** (i / 8) for i in range(160)), constant(20.0))
    device = HandDevice(times_ms=falling)
    result = answered(device, Asked(replace(QUICK, warm_up_s=30.0)))
    assert isinstance(result, Measured)
    assert result.conditions["steady"] is True
    assert isinstance(result.conditions["warm_up_s"], float)
    assert result.conditions["warm_up_s"] > 3.0
    assert figure(result.figures, "time_median") == 20.0
    short = answered(HandDevice(times_ms=(30.0 * 0.999**i for i in range(10_000))), Asked(QUICK))
    assert isinstance(short, Measured)
    assert short.conditions["steady"] is False


def test_warming_up_lasts_until_the_temperature_is_steady() -> None:
    warms = HandDevice(temperature_c=lambda s: 70 - 40 * float(np.exp(-s / 3)))
    result = answered(warms, Asked(replace(QUICK, warm_up_s=60.0)))
    assert isinstance(result, Measured)
    assert result.conditions["steady"] is True
    # 13 K/s at first; the mean slope over a second falls below 0.5 K/s after about ten.
    assert 8 < float(str(result.conditions["warm_up_s"])) < 14
    assert result.conditions["start_temperature_c"] == pytest.approx(30, abs=2)
    assert run(warms).conditions["steady"] is True


def test_it_cools_down_to_the_asked_temperature_or_as_long_as_it_may() -> None:
    cools = HandDevice(temperature_c=lambda s: 30 + 40 * float(np.exp(-s / 10)))
    result = answered(cools, Asked(QUICK, start_temperature_c=40.0))
    assert isinstance(result, Measured)
    assert 13 <= float(str(result.conditions["cool_down_s"])) <= 16
    assert float(str(result.conditions["start_temperature_c"])) <= 40
    never = answered(HandDevice(temperature_c=lambda s: 60.0), Asked(QUICK, start_temperature_c=40.0, cool_down_s=7.0))
    assert isinstance(never, Measured)
    assert never.conditions["cool_down_s"] == 7.0
    assert never.conditions["start_temperature_c"] == 60.0


def test_energy_is_the_counters() -> None:
    result = run(HandDevice(temperature_c=lambda s: 50.0))
    assert figure(result.figures, "energy") == pytest.approx(120 * 0.002)
    assert figure(result.figures, "efficiency") == pytest.approx(1e-3 / 0.24)
    assert result.conditions["energy_from"] == "counter"
    blind = run(HandDevice())
    assert figure(blind.figures, "energy") is None
    assert blind.conditions["energy_from"] is None


@pytest.mark.parametrize("place", [0, 1])
def test_a_wrong_result_is_found_before_and_after(place: int) -> None:
    verdicts = [Verdict(10, 0), Verdict(10, 0)]
    verdicts[place] = Verdict(10, 3, "c[4] is 2 and should be 1", 9.0)
    result = run(HandDevice(verdicts=verdicts))
    assert result.status is Outcome.WRONG_RESULT
    assert result.status_detail == "3 of 20 elements of the result are wrong; the first: c[4] is 2 and should be 1"
    assert figure(result.figures, "wrong_elements") == 3
    assert figure(result.figures, "time_median") == 2.0, "the figures are kept all the same"


def test_wrong_elements_are_told_by_multiprocessor_and_checks_add_up() -> None:
    verdicts = [Verdict(10, 1, "a", 1.0, 5, {7: 1}), Verdict(30, 4, "b", 2.0, 20, {7: 2, 3: 2})]
    result = run(HandDevice(verdicts=verdicts))
    says = "5 of 40 elements of the result are wrong; the first: a; by multiprocessor: 7: 3, 3: 2"
    assert result.status_detail == says
    assert result.conditions["wrong_by_sm"] == {"3": 2, "7": 3}
    assert figure(result.figures, "checked_repetitions") == 25


@pytest.mark.parametrize(("takes_ms", "size"), [(250.0, 0.024), (0.02, 300.0), (6.0, 1.0)])
def test_work_that_takes_much_longer_or_shorter_than_meant_is_built_again(takes_ms: float, size: float) -> None:
    """A device that tells wrong rates: sizes follow from what was measured, once."""

    def sized(facts: Facts) -> Work | Unfit:
        work = TINY.build(facts)
        return work if isinstance(work, Unfit) else replace(work, flop=round(1000 * facts.max_clock_mhz))

    device = HandDevice(times_ms=constant(takes_ms))
    kernel = replace(TINY, build=sized)
    finish(measure(device, device, Task(a_probe(), Asked(QUICK), first=False), lambda _: kernel))
    assert device.work is not None
    assert device.work.flop == pytest.approx(1_000_000 * size)
    assert device.calls.count("load") == (1 if size == 1 else 2)
    assert device.loaded == 0


@pytest.mark.parametrize("breaks_at", [0, 1, 3, 7])
def test_a_gpu_that_fails_leaves_nothing_loaded(breaks_at: int) -> None:
    device = HandDevice(breaks_at=breaks_at)
    with pytest.raises(DeviceError, match="fell off the bus"):
        run(device)
    assert device.loaded == 0


def test_a_work_that_does_not_fit_is_refused_before_it_is_loaded() -> None:
    from whorl.kernels.work import Buffer, Kernel, Work

    big = Work("big", "fp32", (Buffer("a", "float32", 1 << 30),), (), 1, 1, ())
    device = HandDevice(facts=FACTS)
    with pytest.raises(DeviceError, match=r"GPU-0.*big takes 4,294,967,296 B"):
        finish(
            measure(
                device,
                device,
                Task(a_probe(), Asked(QUICK), first=False),
                lambda name: Kernel("big", "1", "", lambda facts: big),
            )
        )


def test_somebody_who_wants_to_stop_waits_for_one_batch_at_most() -> None:
    device = HandDevice()

    def ended() -> bool:
        return len(device.batches) >= 5

    with pytest.raises(KeyboardInterrupt):
        finish(measure(device, device, Task(a_probe(), Asked(QUICK), first=False), find, ended=ended))
    assert len(device.batches) == 5
    assert device.loaded == 0


def test_a_scan_measures_each_value() -> None:
    result = run(HandDevice(), kind=Kind.SCAN, scan=("size", (0, 1, 2)), figure="latency_at_1")
    assert figure(result.figures, "latency_at_1") == pytest.approx(2000.0)
    assert figure(result.figures, "rate_at_2") == pytest.approx(1.0)
    assert figure(result.figures, "time_median_at_0") is None, "there is no work of size 0"
    assert figure(result.figures, "time") is None
    repeats = [row.repeat for row in result.figures if row.name == "time_at_1"]
    assert repeats == list(range(int(figure(result.figures, "repeats_at_1") or 0)))
    assert len(repeats) >= 3
    nothing = answered(HandDevice(), kind=Kind.SCAN, scan=("size", (0,)))
    assert nothing == Unrun("there is no work of size 0")


def test_a_wave_that_is_too_short_for_the_work_is_refused() -> None:
    answer = answered(HandDevice(times_ms=constant(150.0)), Asked(QUICK), kind=Kind.SQUARE)
    assert isinstance(answer, Unrun)
    assert "longer than the wave's load of 100 ms: choose a longer period or a larger duty" in answer.reason


def test_a_wave_keeps_its_period_and_duty() -> None:
    device = HandDevice()
    result = answered(device, Asked(QUICK, period_s=0.5, duty=0.2), kind=Kind.SQUARE)
    assert isinstance(result, Measured)
    assert figure(result.figures, "duty_found") == pytest.approx(20.0)
    assert (result.ended_ns - result.began_ns) / 1e9 == pytest.approx(5.0)  # ten periods; three came before
    assert device.batches[-13:] == [(50, 1)] * 13
    assert device.calls.count("hurry True") == device.calls.count("hurry False") == 1


def test_a_gpu_whose_clock_still_climbs_is_not_cut_off_on_the_way() -> None:
    """From its lowest clock a GPU climbs for longer than a quick warm-up lasts."""
    device = HandDevice()

    def climbing() -> Iterator[float]:
        while True:
            yield 30.0 - min(device.clock_ns / 1e9, 4.0) * 5

    device.times_ms = climbing()
    result = run(device)
    warm_s = float(str(result.conditions["warm_up_s"]))
    assert QUICK.warm_up_s < 4.0 < warm_s <= QUICK.first_warm_up_s
    assert figure(result.figures, "time_median") == 10.0
    endless = run(HandDevice(times_ms=(30.0 * 0.995**i for i in range(10_000))))
    assert float(str(endless.conditions["warm_up_s"])) <= QUICK.first_warm_up_s
    assert endless.conditions["steady"] is False


def test_ending_when_the_interval_is_narrow_does_not_spoil_it() -> None:
    """Looking at the interval after every batch makes it too narrow in principle: not by much."""
    held = []
    for seed in range(200):
        result = run(HandDevice(times_ms=noisy(0.01, seed)))
        low, _, high = median_interval(result)
        held.append(low <= 25.0 <= high)
    assert np.mean(held) >= 0.92  # 95 %, less twice the standard error of 200 runs


def test_repeats_that_hang_together_are_not_called_precise() -> None:
    """However narrow the interval looks: a clock that wanders slowly hides how little is known."""

    def wandering(seed: int) -> Iterator[float]:
        random, value = np.random.default_rng(seed), 0.0
        while True:
            value = 0.98 * value + 0.2 * random.standard_normal()
            yield 25.0 * (1 + 0.001 * value)

    result = [run(HandDevice(times_ms=wandering(seed))) for seed in range(30)]
    deceptive = [answer for answer in result if not answer.conditions["independent"]]
    assert len(deceptive) > 10
    assert {answer.ended_by for answer in deceptive} == {"time limit"}


def test_the_drift_is_that_of_the_second_half() -> None:
    assert figures.drift(np.array([2.0, 2.0, 2.1, 2.1])) == pytest.approx(0.05)
    assert figures.drift(np.array([2.0, 2.0, 2.0])) == 0
    assert figures.drift(np.array([2.0])) == 0
    assert run(HandDevice()).conditions["drift"] == 0


def test_as_many_repeats_as_are_kept_are_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.probes.steps._ENOUGH", 50)
    result = run(HandDevice(times_ms=noisy(0.5)), conditions=Asked(QUICK, precision=1e-9, time_limit_s=1e6))
    assert result.ended_by == "most repeats"
    assert result.conditions["repeats"] == 50


@pytest.mark.parametrize(("window_s", "period_s"), [(1.0, 0.1), (0.2, 0.02), (0.0, 0.1)])
def test_a_sensor_that_averages_shows_by_how_it_falls(window_s: float, period_s: float) -> None:
    """A mean of the last w seconds with a new value every T, read every 10 ms, after load of 300 W ended at 0."""
    at = np.arange(0.0, 2.0, 0.01)
    ticks = np.floor(at / period_s + 0.5) * period_s - period_s / 2  # half a period after the end comes the first one
    share = np.clip(ticks / window_s, 0, 1) if window_s else (ticks > 0).astype(np.float64)
    fall = Window(shown_w=np.array([300.0 - 250 * row for row in share.tolist()]), shown_s=at)
    turns = np.arange(0.0, 6.0, period_s)
    wave = Window(shown_w=np.array([100.0 + i % 2 for i in range(len(turns))]), shown_s=turns)
    result = {row.name: row.value for row in figures.of_sensor(wave, 300.0, 50.0, fall)}
    assert result["sensor_period"] == pytest.approx(1000 * period_s)
    assert result["sensor_window"] == pytest.approx(1000 * window_s, abs=1000 * period_s)
