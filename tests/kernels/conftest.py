"""A CuPy that needs no GPU (see fake_cupy.py), with two GPUs that the NVML of the tests shows as well."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from whorl.kernels import cupy_device, cupy_library, cupy_loaded, cupy_waiting
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.tests.conftest import BuiltOnce
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeCupy, FakeRuntime, LibraryInStream, any_source
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
    """Makes `cupy_devices` find two GPUs, those that NVML shows; gives their cuBLAS."""
    nvml.write("gpus 2", "model H100")
    pynvml.nvmlInit()
    names = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(2)]
    pynvml.nvmlShutdown()
    cupy = FakeCupy(runtime)
    library = LibraryInStream(cupy)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cupy_library, "source", any_source)
    monkeypatch.setattr(cupy_device, "library", lambda name, major: library)
    monkeypatch.setattr(cupy_device, "cuda_uuid", lambda ordinal: uuid.UUID(names[ordinal].removeprefix("GPU-")))
    monkeypatch.setattr(cupy_device, "open_context", runtime.opened.add)
    monkeypatch.setattr(cupy_waiting, "event_calls", lambda _: (runtime.eventQuery, runtime.eventRecord))
    monkeypatch.setattr(cupy_loaded, "GRACE_S", 0.1)
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
