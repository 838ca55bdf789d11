"""What goes wrong on a real GPU is a sentence; what ruins a context is tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.work import Buffer, Launch, Work

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys, time
import numpy as np
from whorl.errors import DeviceError
from whorl.kernels import cupy_library, cupy_device, cupy_loaded
from whorl.kernels.device import finish
from whorl.kernels.work import Buffer, Launch, Work

TEXT = '''
extern "C" __global__ void bad(unsigned *flag, unsigned long long address)
{
    if (address) *(volatile unsigned *)address = 1u;
    else while (*(volatile unsigned *)flag != 1u) { }
}
'''
cupy_library.source = lambda name: TEXT
cupy_loaded.GRACE_S = 1.0
step = Launch("bad.cu", "bad", (1, 1, 1), (1, 1, 1), ("flag", np.uint64(int(sys.argv[1]))))
work = Work("bad", "int32", (Buffer("flag", "uint32", 1),), ((step,),), 0, 0, ())
device = cupy_device.cupy_devices([0])[0]
loaded = finish(device.load(work, seed=1))
finish(loaded.poison())
try:
    finish(loaded.run(2, limit_s=1.0))
except DeviceError as error:
    print(error.gone, error, flush=True)
try:
    finish(loaded.check())
    finish(loaded.poison())
    finish(device.load(work, seed=1))
except DeviceError as error:
    print("again", error.gone, flush=True)
device.close()
"""


@pytest.mark.parametrize(
    ("address", "says"),
    [(0, "bad hangs: 2 repetitions did not end within 1 s"), (64, "a kernel used memory that it does not own")],
)
def test_a_gpu_that_is_ruined_is_a_sentence_and_the_process_ends(
    address: int, says: str, devices: list[CupyDevice]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(address)], capture_output=True, text=True, check=False, timeout=120
    )
    first, again = done.stdout.splitlines()
    assert first.startswith(f"True {devices[0].facts.gpu}: ")
    assert says in first
    assert again == "again True"


def test_too_much_memory_says_how_much(device: CupyDevice) -> None:
    count = 2 * device.facts.memory_bytes
    work = Work("too much", "fp32", (Buffer("a", "uint8", count),), (), 0, 0, ())
    with pytest.raises(DeviceError, match=rf"{device.facts.gpu}: out of memory: too much needs .* GB; .* are free"):
        finish(device.load(work, seed=1))


def test_a_source_that_does_not_compile_names_the_error(device: CupyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.kernels.cupy_library.source", lambda name: f"this is no CUDA C {time.time_ns()};")
    step = Launch("bad.cu", "bad", (1, 1, 1), (1, 1, 1), ())
    with pytest.raises(DeviceError, match=rf"{device.facts.gpu}: loading bad: the CUDA C does not compile: .*error"):
        finish(device.load(Work("bad", "fp32", (), ((step,),), 0, 0, ()), seed=1))


def test_work_that_is_slower_than_its_limit_is_late_and_the_gpu_stays(device: CupyDevice) -> None:
    work = find_kernel("fma-fp64").build(device.facts)
    assert isinstance(work, Work)
    loaded = finish(device.load(work, seed=1))
    try:
        finish(loaded.run(1, limit_s=60.0))
        with pytest.raises(DeviceError, match=r"did not end within 0.05 s$") as caught:
            finish(loaded.run(10_000, limit_s=0.05))
        assert not caught.value.gone
        assert np.isfinite(finish(loaded.run(2, limit_s=60.0)).times_ms).all()
        assert finish(loaded.check()).wrong == 0
    finally:
        loaded.unload()
