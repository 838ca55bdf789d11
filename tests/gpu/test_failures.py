"""What goes wrong on a real GPU is a sentence; what ruins a context is tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from whorl.errors import DeviceError
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.work import Buffer, Work

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
