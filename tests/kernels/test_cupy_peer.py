"""A GPU that copies to another one: what the other fails with is a sentence, and this one is used on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whorl.errors import DeviceError
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import CUDARuntimeError, FakeRuntime
from whorl.tests.kernels.works import load, run, twice

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


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
