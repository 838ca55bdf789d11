"""A GPU that copies to another one: what the other fails with is a sentence, and this one is used on."""

from __future__ import annotations

import pytest

from whorl.errors import DeviceError
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import CUDARuntimeError, FakeRuntime
from whorl.tests.kernels.works import load, run, twice

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


def refused(device: CupyDevice) -> str:
    """What it says of a work that needs the other GPU; afterwards this one must do its own."""
    with pytest.raises(DeviceError) as caught:
        load(device, twice(place="peer"))
    assert not caught.value.gone
    assert device.lost is None
    own = load(device, twice())
    run(own)
    assert finish(own.check()).wrong == 0
    return str(caught.value)


@pytest.mark.long
def test_a_failed_peer_is_told_of_when_it_is_reached(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.ruined[1] = 700
    assert refused(device) == (
        f"{device.facts.gpu}: the GPU that it copies to cannot be used: "
        "a kernel used memory that it does not own (illegal address) (CUDA error 700)"
    )


def test_a_peer_that_fails_later_is_told_of_when_memory_is_taken(device: CupyDevice, runtime: FakeRuntime) -> None:
    loaded = load(device, twice(place="peer"))
    run(loaded)
    loaded.unload()
    runtime.ruined[1] = 719
    assert "the GPU that it copies to cannot be used: a kernel failed while it ran" in refused(device)
    assert runtime.device == 0


def test_a_peer_of_another_process(device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = runtime.setDevice

    def set_device(number: int) -> None:
        if number == 1:
            raise CUDARuntimeError(46)
        usual(number)

    monkeypatch.setattr(runtime, "setDevice", set_device)
    assert "the GPU that it copies to cannot be used: it is in use or in a bad state" in refused(device)


def test_a_peer_that_cannot_be_reached_is_no_failed_one(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.fail["deviceEnablePeerAccess"] = 217
    message = refused(device)
    assert message == f"{device.facts.gpu}: loading twice: it cannot reach the memory of the other GPU (CUDA error 217)"


def test_too_little_memory_on_the_peer(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.memory_bytes = 1 << 24
    runtime.setDevice(1)
    most = runtime.malloc(runtime.memory_bytes - 1000)
    assert refused(device) == f"{device.facts.gpu}: out of memory: twice needs 2e-05 GB on the other GPU"
    runtime.setDevice(1)
    runtime.free(most)


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
