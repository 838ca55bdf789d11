"""Works on a CuPy that needs no GPU: times, graphs, copies and products; every result is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels import cupy_waiting
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.work import Array, Buffer, Expected, Gemm, Output, Work
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime
from whorl.tests.kernels.works import N, counted, load, memory, run, twice

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


@pytest.mark.long
def test_a_run_gives_times_and_a_window(device: CupyDevice) -> None:
    loaded = load(device, twice())
    before = time.time_ns() - 20_000_000
    timed = run(loaded, 50, each=4)
    after = time.time_ns()
    assert timed.times_ms.shape == (50,)
    assert (timed.times_ms >= 0).all()
    assert before <= timed.began_ns <= timed.ended_ns <= after + 20e6
    window_ms = (timed.ended_ns - timed.began_ns) / 1e6
    assert 4 * timed.times_ms.sum() == pytest.approx(window_ms, rel=1e-3, abs=1e-3)
    assert finish(loaded.check()).wrong == 0


def test_a_check_compares_all_and_finds_one_that_is_wrong(device: CupyDevice) -> None:
    loaded = load(device, twice(factor=2))
    run(loaded)
    assert finish(loaded.check()).elements == N
    memory(loaded, "out")[4321] += 1  # the fake's memory is the host's
    verdict = finish(loaded.check())
    assert (verdict.elements, verdict.wrong, verdict.worst) == (N, 1, float("inf"))
    assert verdict.first == "out, row 0, column 4321: 17, should be 16 within 0"


@pytest.mark.long
def test_a_poisoned_result_is_wrong_until_it_is_made_anew(device: CupyDevice) -> None:
    for work in (twice(), twice(place="host"), counted()):
        loaded = load(device, work)
        run(loaded)
        assert finish(loaded.check()).wrong == 0
        finish(loaded.poison())
        verdict = finish(loaded.check())
        assert verdict.wrong == verdict.elements
        run(loaded)
        assert finish(loaded.check()).wrong == 0
        loaded.unload()
        loaded.unload()


@pytest.mark.long
def test_one_launch_is_launched_and_several_are_a_graph(device: CupyDevice, runtime: FakeRuntime) -> None:
    run(load(device, twice()), 5)
    assert runtime.graph_launches == 0
    loaded = load(device, counted())
    run(loaded, 5, each=3)
    assert runtime.graph_launches == 15
    assert finish(loaded.check()).wrong == 0


@pytest.mark.long(short=1)
@pytest.mark.parametrize("step", ["streamBeginCapture", "launch", "streamEndCapture", "graphInstantiate"])
def test_where_no_graph_can_be_made_it_goes_without(
    step: str, device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(device, counted())
    begin = runtime.streamBeginCapture

    def then_fail(stream: int, mode: int) -> None:
        runtime.fail[step] = 900
        begin(stream, mode)

    monkeypatch.setattr(runtime, "streamBeginCapture", then_fail)
    timed = run(loaded, 5)
    assert timed.times_ms.shape == (5,)
    assert runtime.graph_launches == 0
    assert finish(loaded.check()).wrong == 0


def test_little_work_waits_where_launches_are_slow(device: CupyDevice, runtime: FakeRuntime) -> None:
    loaded = load(device, twice(count=40))
    runtime.launch_s, runtime.dry = 0.05, True
    run(loaded, 1)
    runtime.outstanding = 0
    run(loaded, 20)
    assert 2 <= runtime.outstanding <= cupy_waiting.AHEAD_S / 0.05 + 1


# -- copies and products


def gemm(precision: str, batch: int, types: tuple[str, str], *, plain: bool = False, across: bool = False) -> Work:
    m, n, k = 6, (16 if precision == "fp8" else 10), 32

    def whole(count: int) -> Callable[[int], Any]:
        def make(seed: int) -> Any:
            values = np.random.default_rng([seed, count]).integers(-3, 4, count).astype(np.float32)
            if types[0] == "uint16":
                return (values.view(np.uint32) >> 16).astype(np.uint16)
            if types[0] == "uint8":
                codes = np.array([0xC4, 0xC0, 0xB8, 0, 0x38, 0x40, 0x44], np.uint8)  # -3 to 3
                return codes[values.astype(int) + 3]
            return values.astype(types[0])

        return make

    def expect(seed: int, repetitions: int) -> Expected:
        draw = [
            np.random.default_rng([seed, c]).integers(-3, 4, c).astype(float) for c in (batch * m * k, batch * n * k)
        ]
        a, b = draw[0].reshape(batch, m, k), draw[1].reshape(batch, n, k).transpose(0, 2, 1)
        if plain:
            b = draw[1].reshape(batch, k, n)
        if across:
            a = -draw[0].reshape(batch, k, m).transpose(0, 2, 1)
        return Expected(n, (a @ b).reshape(batch * m, n), np.zeros((batch * m, n)))

    return Work(
        kernel=f"gemm-{precision}",
        precision=precision,
        buffers=(
            Buffer("a", types[0], batch * m * k, Array("-3 to 3", whole(batch * m * k))),
            Buffer("b", types[0], batch * n * k, Array("-3 to 3", whole(batch * n * k))),
            Buffer("c", types[1], batch * m * n),
        ),
        turns=((Gemm(precision, m, n, k, "a", "b", "c", batch, plain, across, alpha=-1.0 if across else 1.0),),),
        flop=2 * batch * m * n * k,
        bytes=0,
        outputs=(Output("c", expect),),
    )


TYPES = [
    ("fp64", ("float64", "float64")),
    ("fp32", ("float32", "float32")),
    ("tf32", ("float32", "float32")),
    ("fp16", ("float16", "float16")),
    ("fp16", ("float16", "float32")),
    ("bf16", ("uint16", "uint16")),
    ("fp8", ("uint8", "uint16")),
    ("fp8", ("uint8", "float32")),
]


@pytest.mark.long(short=1)
@pytest.mark.parametrize(("plain", "across"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("precision", "types"), TYPES)
def test_products_of_whole_numbers_are_exact(
    precision: str, types: tuple[str, str], batch: int, plain: bool, across: bool, device: CupyDevice
) -> None:
    if (plain or batch > 1) and precision == "fp8":
        return
    loaded = load(device, gemm(precision, batch, types, plain=plain, across=across))
    run(loaded)
    verdict = finish(loaded.check())
    assert ("cublas" in device.versions) == (precision != "fp8")
    # bf16 holds whole numbers to 256 only, fp16 to 2048; sums of 32 products of at most 9 are within 288.
    assert verdict.wrong <= (2 if types[1] == "uint16" else 0), verdict.first


@pytest.mark.parametrize(("precision", "types"), [("fp16", ("float64", "float64")), ("fp8", ("uint8", "float64"))])
def test_a_product_that_is_not_supported_is_a_sentence(
    precision: str, types: tuple[str, str], device: CupyDevice
) -> None:
    work = gemm(precision, 1, types)
    if precision == "fp16":
        with pytest.raises(DeviceError, match=r"GPU-.*: gemm-fp16: cuBLAS, fp16 product of 6 x 10 x 32: this product"):
            run(load(device, work))
    else:
        with pytest.raises(DeviceError, match=r"GPU-.*: loading gemm-fp8: cuBLAS.*not supported"):
            load(device, work)
