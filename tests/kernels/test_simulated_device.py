"""The simulated device: what its works take, what its checks find, and how it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.device import Device, Loaded
from whorl.kernels.simulated_device import SimulatedDevice, timing
from whorl.kernels.work import Array, Buffer, Expected, Gemm, Launch, Output, Unfit, Work
from whorl.simulation.bench import Bench
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import SGEMM
from whorl.simulation.models import A100, H100, H200, MODELS, V100, GpuModel
from whorl.simulation.rates import rates_of

LINES = 1 << 20


def expect(seed: int, repetitions: int) -> Expected:
    values = seed + np.arange(6, dtype=np.float64).reshape(2, 3)
    return Expected(columns=1000, values=values, tolerance=np.full((2, 3), 1e-6))


def exactly(seed: int, repetitions: int) -> Expected:
    return Expected(columns=10, values=np.zeros((1, 1)), tolerance=np.zeros((1, 1)))


def work(kernel: str = "triad", **changes: Any) -> Work:
    """A work on 16 MiB with two results."""
    step = Launch("none.cu", kernel, (1, 1, 1), (32, 1, 1), ())
    standard = Work(
        kernel,
        "fp64",
        (
            Buffer("x", "float64", LINES, Array("ones", lambda seed: np.ones(1))),
            Buffer("y", "float64", LINES),
            Buffer("n", "int32", 10),
        ),
        ((step,),),
        flop=0,
        bytes=0,
        outputs=(Output("y", expect), Output("n", exactly)),
        path="none",
    )
    return replace(standard, **changes)


def gemm(precision: str, n: int, kernel: str = "") -> Work:
    product = Gemm(precision, n, n, n, "x", "x", "y")
    return work(
        kernel or f"gemm-{precision}", precision=precision, turns=((product,),), flop=2 * n**3, bytes=12 * n * n,
        path="dram", activity=1.0,
    )  # fmt: skip


def devices(model: GpuModel = V100, gpus: int = 4, *kinds: str, **options: Any) -> list[SimulatedDevice]:
    fleet = Fleet.draw(model, gpus, 1, faults=len(kinds), kinds=kinds)
    bench = Bench(fleet, began_ns=0, **options)
    return [SimulatedDevice(bench, position) for position in range(gpus)]


def only(device: SimulatedDevice, task: Any) -> Any:
    (result,) = device.bench.run([task])
    if isinstance(result, Exception):
        raise result
    return result


async def loads_and_runs(device: Device, kernel_work: Work) -> float:
    """Through the protocols, as a probe sees them."""
    loaded: Loaded = await device.load(kernel_work, seed=1)
    timed = await loaded.run(20, each=1, limit_s=600)
    assert timed.times_ms.shape == (20,)
    assert timed.ended_ns - timed.began_ns == pytest.approx(timed.times_ms.sum() * 1e6, abs=2)
    assert (await loaded.check()).wrong == 0
    loaded.unload()
    return float(np.median(timed.times_ms))


# -- what it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_facts_are_those_of_the_model(model: GpuModel) -> None:
    rigs = devices(model, 6)
    facts = [device.facts for device in rigs]
    assert [each_gpu.gpu for each_gpu in facts] == [identity.uuid for identity in rigs[0].bench.who]
    assert [facts_of_gpu.index for facts_of_gpu in facts] == [0, 1, 2, 3, 0, 1]
    assert [facts_of_gpu.peers for facts_of_gpu in facts] == [3, 3, 3, 3, 1, 1]
    assert len({facts_of_gpu.node for facts_of_gpu in facts}) == 2
    assert facts[0].sms * (64 if model in (V100, A100) else 128) == model.lanes
    assert facts[0].memory_bytes == model.memory_gb << 30
    assert facts[0].capability == {V100: (7, 0), A100: (8, 0), H100: (9, 0), H200: (9, 0)}[model]
    assert rigs[0].simulated
    assert list(rigs[0].others()) == []


# -- time -------------------------------------------------------------------------------------------------------------


def test_gemm_fp32_is_the_fitted_sgemm() -> None:
    timed = timing(gemm("fp32", 25_536), V100)
    assert timed.unit_s == pytest.approx(2.187, rel=0.002)
    assert replace(timed.workload, name=SGEMM.name, memory_mib=SGEMM.memory_mib) == SGEMM
    kernel = find_kernel("gemm-fp32").build(devices()[0].facts)
    assert not isinstance(kernel, Unfit)
    timed = timing(kernel, V100)
    assert replace(timed.workload, name=SGEMM.name, memory_mib=SGEMM.memory_mib) == SGEMM


def test_parts_of_a_time_are_sizes_over_rates() -> None:
    rates, size = rates_of(V100), 10**9
    dram, l2, pcie, peer = (timing(work("any", bytes=size, path=path), V100) for path in ("dram", "l2", "pcie", "peer"))
    assert size / dram.unit_s == pytest.approx(0.92 * 900e9, rel=0.001)
    assert dram.workload.bandwidth_share == pytest.approx(0.92, rel=0.001)
    assert dram.workload.compute_share == pytest.approx(0.04, abs=0.001)
    assert size / l2.unit_s == pytest.approx(rates.l2_gb_s(V100) * 1e9, rel=0.001)
    assert l2.workload.bandwidth_share == 0
    assert l2.workload.compute_share == pytest.approx(1.0)
    assert size / pcie.unit_s == pytest.approx(rates.pcie_gb_s * 1e9, rel=0.001)
    assert size / peer.unit_s == pytest.approx(rates.peer_gb_s * 1e9, rel=0.001)
    for bus in (pcie, peer):
        assert bus.workload.fixed_share == pytest.approx(1.0, abs=0.001)
    fma = timing(work("fma", precision="fp32", flop=10**12), V100)
    assert 10**12 / fma.unit_s == pytest.approx(0.98 * 15.67e12, rel=0.001)
    assert fma.workload.compute_share == pytest.approx(1.0)
    tensor = timing(gemm("fp16", 8192), V100)
    assert 2 * 8192**3 / tensor.unit_s == pytest.approx(0.75 * 125.3e12, rel=0.001)
    empty = timing(work("launch", turns=((Launch("l.cu", "l", (1, 1, 1), (1, 1, 1), (), times=1000),),)), V100)
    assert empty.unit_s == pytest.approx(rates.launch_us / 1000)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_every_kernel_that_fits_runs_on_every_model(model: GpuModel) -> None:
    device = devices(model)[0]
    rates, ran = rates_of(model), 0
    for name in KERNELS:
        kernel_work = find_kernel(name).build(device.facts)
        if isinstance(kernel_work, Unfit):
            continue
        ran += 1
        milliseconds = only(device, loads_and_runs(device, kernel_work))
        assert 0.2 < milliseconds < 1000, name
        timed = timing(kernel_work, model)
        peaks = [rates.flop_per_s(model, p, tensor=True) or 0 for p in (*rates.vector, *rates.tensor)]
        assert kernel_work.flop / timed.unit_s <= max(peaks), name
        if kernel_work.path == "dram":
            assert kernel_work.bytes / timed.unit_s <= model.bandwidth_gb_s * 1e9, name
        shares = (timed.workload.compute_share, timed.workload.fixed_share, timed.workload.bandwidth_share)
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares), name
        assert timed.workload.compute_share + timed.workload.fixed_share <= 1 + 1e-9, name
    assert ran >= 20
    assert device.bench.readings().values["memory_used"][0] < 400 << 20


# -- checks -----------------------------------------------------------------------------------------------------------


def test_planted_wrong_results_are_found_in_two_runs_of_five() -> None:
    rigs = devices(V100, 2, "wrong_results")
    (faulty,) = rigs[0].bench.fleet.planted
    assert rigs[1 - faulty].bench is rigs[faulty].bench

    async def task(device: SimulatedDevice) -> list[int]:
        wrong_counts = []
        for _ in range(100):
            loaded = await device.load(work(), seed=3)
            await loaded.run(1, limit_s=1)
            first = await loaded.check()
            if first.wrong:
                assert first.first is not None
                assert first.first.startswith(("y[", "n["))
                assert " should be " in first.first
                assert first.worst > 1
                # The sentence names an element, and what the reference says of it.
                place, numbers = first.first.split("] is ")
                row, column = divmod(int(place.split("[")[1]), 1000)
                right = float(numbers.split(" should be ")[1])
                assert not place.startswith("y") or right == expect(3, 1).values[row % 2, column % 3]
            wrong_counts.append(first.wrong)
            loaded.unload()
        return wrong_counts

    wrong = np.array(only(rigs[faulty], task(rigs[faulty])))
    assert 25 <= np.count_nonzero(wrong) <= 55  # of a hundred, 40 expected; three standard deviations
    assert 5 < wrong[wrong > 0].mean() < 16
    assert not np.any(only(rigs[1 - faulty], task(rigs[1 - faulty])))


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_work_that_is_too_large_leaves_nothing_behind() -> None:
    device = devices()[0]
    large = work(buffers=(*work().buffers, Buffer("z", "float64", 15 << 27)))

    async def task() -> None:
        with pytest.raises(DeviceError, match="bytes of memory left") as caught:
            await device.load(replace(large, buffers=(*large.buffers, Buffer("w", "int8", 1 << 30))), seed=1)
        assert not caught.value.gone
        loaded = await device.load(large, seed=1)
        with pytest.raises(DeviceError, match="bytes of memory left"):
            await device.load(large, seed=1)
        loaded.unload()
        loaded.unload()
        await device.load(large, seed=1)

    only(device, task())


def test_a_lost_gpu_says_so_wherever_it_is_asked() -> None:
    rigs = devices(V100, 2, "lost", "lost", span_s=10.0)
    gone = int(np.flatnonzero(np.isinf(rigs[0].bench._simulation.onsets_s[1]))[0])
    device = rigs[gone]

    async def task() -> None:
        loaded = await device.load(work(), seed=1)
        await loaded.run(1, limit_s=1)
        await device.pause(8)
        for attempt in (loaded.run(1, limit_s=1), loaded.check(), device.load(work(), seed=1)):
            with pytest.raises(DeviceError, match="fallen off the bus") as caught:
                await attempt
            assert caught.value.gone
            assert device.facts.gpu in str(caught.value)
        loaded.unload()
        device.close()

    only(device, task())
