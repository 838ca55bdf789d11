"""A CuPy that needs no GPU (see fake_cupy.py), with two GPUs that the NVML of the tests shows as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.tests.conftest import BuiltOnce
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeCupy, FakeRuntime, LibraryInStream
from whorl.tests.kernels.stand_in import install
from whorl.tests.nvml_library import NvmlLibrary


@pytest.fixture(scope="session", autouse=True)
def compile_once(built_once: BuiltOnce) -> None:
    """Each source once for all workers."""
    compiling.once = built_once


@pytest.fixture
def cublas() -> Path:
    """The file of the cuBLAS of the tests."""
    return compiling.c_library_file("cublas.c")


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime(2)


@pytest.fixture
def blas(runtime: FakeRuntime, nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> Iterator[LibraryInStream]:
    """Makes `cupy_devices` find the GPUs of `runtime`, those that NVML shows; gives their cuBLAS."""
    nvml.write(f"gpus {runtime.count}", "model H100")
    pynvml.nvmlInit()
    names = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(runtime.count)]
    pynvml.nvmlShutdown()
    cupy = FakeCupy(runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    library = install(cupy, names, monkeypatch.setattr)
    before = library.handles
    yield library
    cupy.end()
    assert runtime.complaints == [], "it would be on standard error"
    assert library.handles == before, "a handle or plan of cuBLAS was not given back"


@pytest.fixture
def device(blas: LibraryInStream, runtime: FakeRuntime) -> Iterator[CupyDevice]:
    found = cupy_devices([0])[0]
    yield found
    found.close()
    if found.lost is None:
        assert runtime.taken == 0, "memory was not given back"
        assert runtime.alive == 0, "an event or graph was not given back"
