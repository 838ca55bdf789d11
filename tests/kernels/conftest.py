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
from whorl.tests.sizes import is_all, is_long

MANY = 9
"""Cases of one test, from which on the long run takes a third of them; all of them run with `--all`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs try a third of the kernels where a test has a case for each: the interpreter takes seconds for some."""
    if is_all() or not is_long():
        return
    cases: dict[str, list[pytest.Item]] = {}
    for test in items:
        if test.path.parent == Path(__file__).parent:
            cases.setdefault(test.nodeid.partition("[")[0], []).append(test)
    omitted = {
        test
        for same_test in cases.values()
        if len(same_test) >= MANY
        for at, test in enumerate(same_test)
        if at % 3 != 1
    }
    config.hook.pytest_deselected(items=[test for test in items if test in omitted])
    items[:] = [test for test in items if test not in omitted]


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
    opened = cupy_devices([0])[0]
    yield opened
    opened.close()
    if opened.lost is None:
        assert runtime.taken == 0, "memory was not given back"
        assert runtime.alive == 0, "an event or graph was not given back"
