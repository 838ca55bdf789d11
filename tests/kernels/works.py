"""Small works whose results are plain, for the tests of what runs works."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whorl.kernels import cupy_loaded
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import Timed, finish
from whorl.kernels.work import Array, Buffer, Expected, Launch, Output, Work

N = 5000


def ramp(seed: int) -> np.ndarray:
    return np.arange(seed, seed + 40, dtype=np.float32)


def twice(*, factor: int = 2, count: int = N, times: int = 1, place: str = "device") -> Work:
    """out = 2 in, as many times in one repetition as asked."""
    launch = Launch("plain.cu", "twice", (2, 1, 1), (64, 1, 1), ("in", "out", np.uint64(count)), ("FACTOR=2",), times)
    values = factor * ramp(7)[None, :].astype(np.float64)
    content = Array("a ramp", ramp)
    return Work(
        kernel="twice",
        precision="fp32",
        buffers=(Buffer("in", "float32", count, content), Buffer("out", "float32", count, place=place)),
        turns=((launch,),),
        flop=count * times,
        bytes=8 * count * times,
        outputs=(Output("out", lambda *_: Expected(count, values, np.zeros((1, 40)))),),
    )


def counted() -> Work:
    """Counters cleared and increased three times: a repetition of four launches that any number of times gives 3."""

    def launch(function: str, times: int) -> Launch:
        return Launch("plain.cu", function, (1, 1, 1), (32, 1, 1), ("counters", np.uint64(96)), ("FACTOR=1",), times)

    return Work(
        kernel="counted",
        precision="int32",
        buffers=(Buffer("counters", "uint32", 96),),
        turns=((launch("cleared", 1), launch("increased", 3)),),
        outputs=(Output("counters", lambda *_: Expected(96, np.full((1, 1), 3.0), np.zeros((1, 1)))),),
    )


def memory(loaded: cupy_loaded.CupyLoaded, name: str) -> NDArray[Any]:
    """A buffer of a work on the stand-in, whose memory is the host's."""
    buffer = next(buffer for buffer in loaded.work.buffers if buffer.name == name)
    content = (ctypes.c_ubyte * buffer.bytes).from_address(loaded.address(name))
    return np.ndarray((buffer.count,), np.dtype(buffer.dtype), memoryview(content).cast("B"))


def load(device: CupyDevice, work: Work) -> cupy_loaded.CupyLoaded:
    return finish(device.load(work, seed=7))


def run(loaded: cupy_loaded.CupyLoaded, repeats: int = 3, **options: Any) -> Timed:
    return finish(loaded.run(repeats, **{"limit_s": 20.0, **options}))
