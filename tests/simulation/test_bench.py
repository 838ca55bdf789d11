"""The bench: work by coroutines on a simulated clock, against the model's own power, speed and steady state."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError, InputError
from whorl.simulation.bench import Bench, Done
from whorl.simulation.control import STEP_NS, STEP_S
from whorl.simulation.draws import Floats
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import SGEMM, STREAM, Workload
from whorl.simulation.models import V100, GpuModel
from whorl.simulation.physics import voltage
from whorl.simulation.spread import Spread
from whorl.simulation.stepping import REASON_IDLE, REASON_POWER_CAP, Happening, Readings

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
UNIT_S = 0.009

QUIET = Workload("quiet", activity=1.0, compute_share=0.953, bandwidth_share=0.12, noise=0.0)


ALIKE = Spread(compute=0.0, memory=0.0, link=0.0)
"""GPUs that are equally fast at one clock."""


def bench(
    model: GpuModel = V100, gpus: int = 4, seed: int = 1, *kinds: str, spread: Spread | None = None, **options: Any
) -> Bench:
    return Bench(Fleet.draw(model, gpus, seed, spread, faults=len(kinds), kinds=kinds), began_ns=BEGAN, **options)


def finished(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def only(rig: Bench, task: Coroutine[Any, Any, Any], **options: Any) -> Any:
    return finished(rig.run([task], **options))[0]


async def measure(
    rig: Bench, gpu: int, workload: Workload, *, warm_s: float, repeats: int = 50, per_repeat: int = 2
) -> Done:
    """As a probe does it: warm up, then measured repeats."""
    rig.hold(gpu)
    ready = rig.prepare(gpu, workload, UNIT_S)
    until = rig.now_ns + round(warm_s * 1e9)
    while rig.now_ns < until:
        await rig.work(ready, 10, max(round(warm_s / UNIT_S / 100), 1))  # about a tenth of the time
    done = await rig.work(ready, repeats, per_repeat)
    rig.release(gpu)
    return done


# -- time -------------------------------------------------------------------------------------------------------------


def test_work_takes_what_the_speed_says() -> None:
    rig = bench(gpus=1, spread=ALIKE, lock_mhz=1005)

    async def task() -> tuple[Done, Done]:
        await measure(rig, 0, QUIET, warm_s=4)
        ready = rig.prepare(0, QUIET, UNIT_S)
        return await rig.work(ready, 1000), await rig.work(ready, 10, each=100)

    fine, coarse = only(rig, task())
    expected = UNIT_S * (0.953 * 1530 / 1005 + 0.047)
    assert fine.times_s == pytest.approx(expected, rel=0.003)  # five standard deviations of the repeats' noise
    assert fine.times_s.mean() == pytest.approx(expected, rel=1e-4)
    assert coarse.times_s.mean() == pytest.approx(expected, rel=1e-3)
    assert 0.0003 < fine.times_s.std() / expected < 0.0007
    for done, n in ((fine, 1000), (coarse, 1000)):
        assert done.ended_ns - done.began_ns == pytest.approx(done.times_s.mean() * n * 1e9, rel=1e-6)
    assert coarse.began_ns - fine.ended_ns < STEP_NS


def test_the_same_results_in_any_order_of_the_coroutines() -> None:
    def results(order: list[int]) -> tuple[list[Floats], list[int]]:
        rig = bench(V100, 12, 5, "brake", "lost", "hot", span_s=20.0)

        async def task(gpu: int) -> Floats:
            first = await measure(rig, gpu, SGEMM, warm_s=3)
            await rig.pause(0.1 * (gpu % 3))
            second = await measure(rig, gpu, STREAM if gpu % 2 else SGEMM, warm_s=1)
            return np.concatenate([first.times_s, second.times_s])

        by_gpu = dict(zip(order, rig.run([task(gpu) for gpu in order]), strict=True))
        times = [by_gpu[gpu] for gpu in range(12)]
        return [t for t in times if isinstance(t, np.ndarray)], rig.readings().values["energy_mj"].tolist()

    order = list(range(12))
    expected = results(order)
    random.Random(7).shuffle(order)
    for again in (order, order[::-1]):
        times, energy = results(again)
        assert energy == expected[1]
        assert len(times) == len(expected[0])
        assert all(np.array_equal(a, b) for a, b in zip(times, expected[0], strict=True))


# -- clocks and power -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_clock_of_a_held_gpu_is_up_without_work() -> None:
    rig = bench(gpus=2)
    rows: list[Any] = []

    async def task(gpu: int, held: bool) -> None:
        if held:
            rig.hold(gpu)
        await rig.pause(4.0)
        await rig.work(rig.prepare(gpu, SGEMM, UNIT_S), 500)
        await rig.pause(10.0)
        if held:
            rig.release(gpu)
        await rig.pause(10.0)

    def tick(readings: Readings, happened: list[Happening]) -> None:
        rows.append([readings.values[name].copy() for name in ("sm_clock_mhz", "power_mw", "clock_event_reasons")])

    finished(rig.run([task(0, True), task(1, False)], every_s=STEP_S, on_tick=tick))
    clock, watts, reasons = np.moveaxis(np.array(rows), 1, 0)
    began, ended = np.flatnonzero(watts[:, 0] > 150_000)[[0, -1]]
    assert np.all(clock[:began, 0] == 1530)
    # After the work it rises to the highest again, step by step from where the power cap held it.
    assert clock[ended, 0] < 1450
    assert np.all(np.diff(clock[ended + 2 : ended + 200, 0]) >= 0)
    assert clock[ended + 100, 0] == 1530
    # Awake without work: board and leakage at the voltage of the clock, nothing that switches.
    released = np.flatnonzero(clock[:, 0] > 135)[-1]
    assert np.all(clock[ended + 100 : released, 0] == 1530)
    awake, asleep = np.median(watts[released - 50 : released, 0]), np.median(watts[-50:, 0])
    silicon, volts = rig.fleet.silicon, voltage(V100, rig.fleet.silicon, np.full(2, 1530.0))[0]
    board = V100.board_w * silicon.board[0]
    growth = np.exp(V100.leakage_per_k * (rig.fleet.idle().temperature_c[0] - 60))
    leakage = V100.leakage_w * silicon.leakage[0] * (volts / V100.leakage_v) ** 3 * growth
    assert awake / 1000 == pytest.approx(silicon.sensor[0] * (board + leakage), rel=0.06)  # the die is warmer
    assert asleep + 5_000 < awake
    assert np.all(reasons[ended + 100 : released, 0] == REASON_IDLE)
    assert reasons[ended - 10, 0] == REASON_POWER_CAP
    # Nobody holds the other one: it is at the lowest clock but for its work.
    assert np.all(clock[:began, 1] == 135)
    assert clock[-1, 1] == clock[-1, 0] == 135


# -- what goes wrong --------------------------------------------------------------------------------------------------


def lost_bench() -> tuple[Bench, int, int]:
    """Two GPUs that fall off the bus, the first of which returns."""
    rig = bench(V100, 8, 4, "lost", "lost", span_s=30.0)
    gone, back = rig._simulation.onsets_s
    returning = int(np.flatnonzero(np.isfinite(back))[0])
    staying = int(np.flatnonzero(np.isfinite(gone) & np.isinf(back) & (gone > 0))[0])
    return rig, returning, staying


def test_a_gpu_that_is_lost_in_its_work_fails_alone() -> None:
    rig, returning, staying = lost_bench()
    happened: list[Happening] = []

    async def task(gpu: int) -> Floats:
        rig.hold(gpu)
        ready = rig.prepare(gpu, SGEMM, UNIT_S)
        return (await rig.work(ready, 2500)).times_s

    results = rig.run([task(gpu) for gpu in range(8)], on_tick=lambda r, h: happened.extend(h))
    for gpu, result in enumerate(results):
        if gpu in (returning, staying):
            assert isinstance(result, DeviceError)
            assert result.gone
            assert rig.who[gpu].uuid in str(result)
        else:
            assert isinstance(result, np.ndarray)
    assert {(change.gpu, change.kind) for change in happened} >= {
        (returning, "lost"),
        (staying, "lost"),
        (returning, "returned"),
    }
    assert np.flatnonzero(rig.readings().lost).tolist() == [staying]

    with pytest.raises(DeviceError, match="fallen off the bus"):
        rig.take(staying, 1)
    with pytest.raises(DeviceError, match="fallen off the bus"):
        rig.prepare(staying, SGEMM, UNIT_S)
    again = only(rig, task(returning))
    assert np.median(again[-500:]) == pytest.approx(np.median(results[0][-500:]), rel=0.1)  # type: ignore[index]


def test_work_that_does_not_end_in_time_fails_and_the_gpu_works_on() -> None:
    rig = bench(gpus=2)

    async def task(gpu: int) -> float:
        ready = rig.prepare(gpu, SGEMM, UNIT_S)
        began = rig.now_ns
        with pytest.raises(DeviceError, match=r"within 0\.5 s") as caught:
            await rig.work(ready, 1000, limit_s=0.5)
        assert not caught.value.gone
        assert rig.now_ns - began == S // 2
        return float((await rig.work(ready, 5, limit_s=10)).times_s[0])

    assert all(time > 0 for time in finished(rig.run([task(0), task(1)])))


def test_an_error_of_one_coroutine_does_not_stop_the_others() -> None:
    rig = bench()

    async def fails() -> None:
        await rig.pause(0.1)
        raise InputError("no such thing")

    async def foreign() -> None:
        await _Foreign()

    class _Foreign:
        def __await__(self) -> Any:
            yield "something of another scheduler"

    results = rig.run([fails(), measure(rig, 0, SGEMM, warm_s=1), foreign(), fails()])
    assert [type(result) for result in results] == [InputError, Done, RuntimeError, InputError]
    assert "not the bench's" in str(results[2])


@pytest.mark.parametrize("place", ["task", "tick"])
def test_an_interrupt_closes_every_coroutine_and_passes_through(place: str) -> None:
    rig, closed = bench(), []

    async def task(gpu: int) -> None:
        rig.hold(gpu)
        try:
            await rig.work(rig.prepare(gpu, SGEMM, UNIT_S), 100_000)
        finally:
            closed.append(gpu)
            rig.release(gpu)

    async def sleeps() -> None:
        try:
            await rig.pause(1e6)
        finally:
            closed.append(2)

    async def interrupted() -> None:
        try:
            await rig.pause(0.5)
            if place == "task":
                raise KeyboardInterrupt
            await rig.pause(1e6)
        finally:
            closed.append(3)

    def tick(readings: Readings, happened: list[Happening]) -> None:
        if place == "tick" and rig.now_ns > BEGAN + S:
            raise KeyboardInterrupt

    tasks = [task(0), task(1), sleeps(), interrupted()]
    with pytest.raises(KeyboardInterrupt):
        rig.run(tasks, on_tick=tick)
    assert sorted(closed) == [0, 1, 2, 3]
    assert all(getcoroutinestate(coroutine) == CORO_CLOSED for coroutine in tasks)
    # The bench is as it was, and its GPUs have nothing to do.
    assert rig.readings().values["utilization"].tolist() == [0, 0, 0, 0]
    assert isinstance(only(rig, measure(rig, 0, SGEMM, warm_s=1)), Done)


# -- ticks ------------------------------------------------------------------------------------------------------------


def test_ticks_lie_on_a_grid_that_a_coroutine_may_change() -> None:
    rig, at = bench(), []

    async def task() -> None:
        await rig.pause(1.0)
        rig.every_s = STEP_S
        await measure(rig, 0, SGEMM, warm_s=0.1, repeats=10)
        rig.every_s = 0.5
        await rig.pause(2.0)

    only(rig, task(), every_s=0.1, on_tick=lambda readings, happened: at.append((readings.ts_ns - BEGAN) / 1e9))
    gaps = np.round(np.diff(at), 6)
    assert gaps[:9] == pytest.approx(0.1)
    assert gaps[-3:] == pytest.approx(0.5)
    assert np.count_nonzero(gaps == STEP_S) > 10
    with pytest.raises(ValueError, match="are too often"):
        rig.run([], every_s=0.001)
    assert rig.run([]) == []
