"""What goes wrong on a GPU is a sentence; what was taken is given back, and the other GPUs go on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from whorl.errors import DeviceError
from whorl.kernels import cupy_device, cupy_library, cupy_loaded, cupy_waiting
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.device import finish
from whorl.kernels.work import Launch, Work
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import CUDARuntimeError, FakeCupy, FakeRuntime, LibraryInStream
from whorl.tests.kernels.works import counted, load, run, twice

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


@pytest.mark.long
def test_too_much_memory_says_how_much_and_leaves_nothing(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.memory_bytes = 1 << 24
    with pytest.raises(DeviceError) as caught:
        load(device, twice(count=1 << 22))
    assert str(caught.value) == (
        f"{device.facts.gpu}: out of memory: twice needs 0.0336 GB; 0.0168 GB of 0.0168 GB are free"
    )
    assert not caught.value.gone
    assert runtime.taken == 0
    run(load(device, twice()))


@pytest.mark.long
def test_a_source_that_does_not_compile_is_named(device: CupyDevice) -> None:
    work = twice()
    launch = work.steps[0]
    assert isinstance(launch, Launch)
    broken = Launch(launch.source, launch.function, launch.grid, launch.block, launch.args, ("FACTOR=;)",))
    with pytest.raises(DeviceError, match=r"GPU-.*: loading twice: the CUDA C does not compile: kern.cu\(7\): error"):
        load(device, Work("twice", "fp32", work.buffers, ((broken,),), 0, 0, ()))


class NVRTCError(RuntimeError):
    """As CuPy's: its codes are not those of CUDA's runtime, where 5 is another error."""

    status = 5


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Failure finding libnvrtc.so.12\nand more"),
        RuntimeError("Failure finding libnvrtc.so.12"),  # what CuPy 13.6 and 14.2 raise
        NVRTCError("Failure finding libnvrtc.so.12"),
    ],
)
def test_without_a_compiler_it_says_what_to_install(
    error: Exception, device: CupyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(device._cupy, "RawModule", absent)
    monkeypatch.setattr(device._cupy.cuda.compiler, "_compile_module_with_cache", absent)
    with pytest.raises(DeviceError, match=r"plain.cu cannot be compiled: Failure finding libnvrtc.so.12 \(the CUDA"):
        load(device, twice())
    assert device.lost is None


def test_a_compiler_that_cupy_13_does_not_find_is_loaded_for_it(
    device: CupyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy 13 asks the loader alone, which finds what was loaded before."""
    loaded: list[tuple[str, int]] = []

    def absent() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12")

    monkeypatch.setattr(cupy_library, "library", lambda name, major: loaded.append((name, major)))
    run(load(device, twice()))
    assert loaded == []
    device._functions.clear()
    monkeypatch.setattr(device._cupy.cuda.nvrtc, "getVersion", absent)
    load(device, twice())
    assert loaded == [("nvrtc", 12)]


def test_work_on_a_gpu_touches_no_other(blas: LibraryInStream, runtime: FakeRuntime, monkeypatch: Any) -> None:
    """A thread begins with the first GPU as its current one: to go back to that would open it."""
    usual = runtime.setDevice

    def set_device(device: int) -> None:
        if device == 0:
            raise CUDARuntimeError(46)  # it is another process's alone
        usual(device)

    monkeypatch.setattr(runtime, "setDevice", set_device)
    device = cupy_devices([1])[0]
    assert runtime.opened == set(), "to list GPUs opens none"

    def work() -> int:
        loaded = load(device, twice())
        run(loaded)
        wrong = finish(loaded.check()).wrong
        device.close()
        return wrong

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == 0
    assert device.lost is None
    assert runtime.opened == {1}


def test_a_context_is_opened_before_cupy_would_do_it_with_the_lock_held(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    usual = runtime.setDevice

    def set_device(number: int) -> None:
        calls.append(f"set {number}")
        usual(number)

    monkeypatch.setattr(cupy_device, "open_context", lambda ordinal: calls.append(f"open {ordinal}"))
    monkeypatch.setattr(runtime, "setDevice", set_device)
    load(device, twice())
    load(device, twice(place="peer"))
    assert calls == ["open 0", "set 0", "open 1", "set 1", "set 0"], "once a thread, and where another was"


def test_a_check_that_hangs_is_given_up(
    blas: LibraryInStream, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found is fetched when it is done: a copy to the host would wait for it without a limit."""
    monkeypatch.setattr(cupy_loaded, "CHECK_LIMIT_S", 0.1)
    device = cupy_devices([0])[0]
    loaded = load(device, twice())
    run(loaded)
    runtime.hang = True
    with pytest.raises(DeviceError, match=r"twice hangs: the check did not end within 0.1 s") as caught:
        finish(loaded.check())
    assert caught.value.gone
    device.close()


@pytest.mark.parametrize("call", ["malloc", "memcpyAsync", "eventRecord", "compile", "streamCreate"])
@pytest.mark.parametrize("status", [700, 214, 46, 1])
def test_an_error_while_loading_leaves_nothing_behind(
    call: str, status: int, device: CupyDevice, runtime: FakeRuntime
) -> None:
    runtime.fail[call] = status
    with pytest.raises(DeviceError, match=f"{device.facts.gpu}: loading twice: ") as caught:
        load(device, twice())
    assert runtime.taken == 0
    assert caught.value.gone == (status != 1)
    if status == 1:
        run(load(device, twice()))
    else:
        with pytest.raises(DeviceError, match="cannot use this GPU any more") as again:
            load(device, twice())
        assert again.value.gone


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (700, "a kernel used memory that it does not own"),
        (214, "an uncorrectable ECC error"),
        (719, "may have fallen off the bus"),
        (999, "may have fallen off the bus"),
        (721, "the memory of the tensor cores"),  # as for the next two, CUDA says that all further work fails
        (810, "the MPS server ended this process's work"),
        (911, "a device outside of CUDA failed"),
    ],
)
def test_a_gpu_that_fails_in_a_run_is_gone_and_the_other_goes_on(
    status: int, says: str, blas: LibraryInStream, runtime: FakeRuntime
) -> None:
    first, second = cupy_devices()
    loaded, second_loaded = load(first, twice()), load(second, twice())
    run(loaded)
    runtime.fail["eventQuery"] = status
    with pytest.raises(DeviceError, match=says) as caught:
        run(loaded)
    assert caught.value.gone
    assert str(caught.value).startswith(f"{first.facts.gpu}: twice: ")
    del runtime.fail["eventQuery"]
    for attempt in (lambda: run(loaded), lambda: finish(loaded.check()), lambda: load(first, twice())):
        with pytest.raises(DeviceError, match=says):
            attempt()
    run(second_loaded)
    assert finish(second_loaded.check()).wrong == 0
    first.close()
    second.close()


@pytest.mark.long
def test_a_kernel_that_hangs_is_given_up_and_the_other_gpu_goes_on(blas: LibraryInStream, runtime: FakeRuntime) -> None:
    first, second = cupy_devices()
    loaded = load(first, counted())
    run(loaded)
    runtime.hang = True
    with pytest.raises(DeviceError, match=r"GPU-.*: counted hangs: 3 repetitions did not end within 0.2 s") as caught:
        run(loaded, limit_s=0.2)
    assert caught.value.gone
    with pytest.raises(DeviceError, match="counted hangs"):
        finish(loaded.poison())
    first.close()  # the fake refuses to free while it hangs
    runtime.hang = False
    second_loaded = load(second, twice())
    run(second_loaded)
    assert finish(second_loaded.check()).wrong == 0
    second.close()


def test_slow_work_is_late_and_not_gone(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(device, twice())
    run(loaded)
    drained = cupy_waiting.Waiting.drained

    def ends_at_last(waiting: cupy_waiting.Waiting, within_s: float) -> bool:
        runtime.end()
        return drained(waiting, within_s)

    monkeypatch.setattr(cupy_waiting.Waiting, "drained", ends_at_last)
    for count, says in ((12, "12 repetitions"), (1, "1 repetition")):
        runtime.hang = True
        with pytest.raises(DeviceError, match=rf"twice: {says} did not end within 0.01 s$") as caught:
            run(loaded, count, limit_s=0.01)
        assert not caught.value.gone
    assert device.lost is None
    run(loaded)


@pytest.mark.parametrize("hangs", [True, False])
def test_the_stream_of_a_lost_gpu_is_never_taken_down(hangs: bool, blas: LibraryInStream, runtime: FakeRuntime) -> None:
    """CuPy destroys a stream when its object goes, which waits for the GPU."""
    device = cupy_devices([0])[0]
    loaded = load(device, twice())
    run(loaded)
    stream = weakref.ref(device._stream)
    if hangs:
        runtime.hang = True
        with pytest.raises(DeviceError, match="hangs"):
            run(loaded, limit_s=0.1)
    else:
        runtime.fail["eventQuery"] = 700
        with pytest.raises(DeviceError, match="does not own"):
            run(loaded)
    device.close()
    del device, loaded
    gc.collect()
    assert stream() is not None


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("headers", [True, False])
def test_no_module_is_ever_taken_down(headers: bool, closed: bool, blas: LibraryInStream, runtime: FakeRuntime) -> None:
    """That waits for the GPU, and complains where another is the current one, or none: as in the main thread at the
    end of the process, where CuPy drops the modules that it keeps."""
    device = cupy_devices([1])[0]
    cupy: FakeCupy = device._cupy
    cupy.headers = headers

    def work(device: CupyDevice) -> None:
        run(load(device, twice()))
        if closed:
            device.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work, device).result()
    del device
    runtime.setDevice(0)
    gc.collect()
    assert runtime.complaints == []
    cupy.end()
    assert len(cupy.compiled) == 1
    assert runtime.complaints == []


def test_an_interrupt_leaves_a_work_that_can_be_unloaded(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(device, twice())
    run(loaded)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loaded._waiting, "until", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(loaded)
    loaded.unload()
    assert device.lost is None
    assert runtime.taken == 0


# -- cupy peer ---------------------------------------------------------------------------------------------------------
# A GPU that copies to another one: what the other fails with is a sentence, and this one is used on.


Break = Callable[[FakeRuntime], None]
"""Lets something go wrong with the other GPU."""


def refused(device: CupyDevice) -> str:
    """What it says of a work that needs the other GPU; afterwards this one must do its own."""
    with pytest.raises(DeviceError) as caught:
        load(device, twice(place="peer"))
    assert not caught.value.gone
    assert device.lost is None
    loaded = load(device, twice())
    run(loaded)
    assert finish(loaded.check()).wrong == 0
    return str(caught.value)


def ruined(status: int) -> Break:
    return lambda runtime: runtime.ruined.__setitem__(1, status)


def used_by_another_process(runtime: FakeRuntime) -> None:
    usual = runtime.setDevice

    def set_device(number: int) -> None:
        if number == 1:
            raise CUDARuntimeError(46)
        usual(number)

    runtime.setDevice = set_device  # type: ignore[method-assign,assignment]


def unreachable(runtime: FakeRuntime) -> None:
    runtime.fail["deviceEnablePeerAccess"] = 217


def full(runtime: FakeRuntime) -> None:
    runtime.memory_bytes = 1 << 24
    usual = runtime.malloc

    def malloc(size: int) -> int:
        if runtime.device == 1:
            raise CUDARuntimeError(2)
        return usual(size)

    runtime.malloc = malloc  # type: ignore[method-assign]


@pytest.mark.parametrize("reached_before", [False, True])
@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (ruined(700), "{gpu}: the GPU that it copies to cannot be used: a kernel used memory that it does not own"),
        (used_by_another_process, "{gpu}: the GPU that it copies to cannot be used: it is in use or in a bad state"),
        (unreachable, "{gpu}: loading twice: it cannot reach the memory of the other GPU (CUDA error 217)"),
        (full, "{gpu}: out of memory: twice needs 2e-05 GB on the other GPU"),
    ],
)
def test_what_the_other_gpu_fails_with_is_a_sentence(
    broken: Break, sentence: str, reached_before: bool, device: CupyDevice, runtime: FakeRuntime
) -> None:
    if reached_before:
        loaded = load(device, twice(place="peer"))
        run(loaded)
        loaded.unload()
    broken(runtime)
    assert refused(device).startswith(sentence.format(gpu=device.facts.gpu))
    assert runtime.device == 0


def test_an_error_of_its_own_is_not_taken_for_the_peer_s(device: CupyDevice, runtime: FakeRuntime) -> None:
    """Where the first call that tells of it is the one that reaches the peer."""
    run(load(device, twice()))
    runtime.ruined[0] = 719
    with pytest.raises(DeviceError, match=f"{device.facts.gpu}: loading twice: a kernel failed while it ran") as caught:
        load(device, twice(place="peer"))
    assert caught.value.gone
    assert device.lost is not None


def test_memory_on_a_peer_that_failed_is_left(device: CupyDevice, runtime: FakeRuntime) -> None:
    loaded = load(device, twice(place="peer"))
    run(loaded)
    runtime.ruined[1] = 719
    loaded.unload()
    assert device.lost is None
    assert runtime.device == 0
    run(load(device, twice()))
    del runtime.ruined[1]
    for address, allocation in list(runtime.memory.allocations.items()):
        if allocation.device == 1:
            del runtime.memory.allocations[address]
