"""Which GPUs there are, and what they are called, through a CuPy that needs none."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from whorl.errors import DeviceError, InputError
from whorl.kernels import cuda
from whorl.kernels.cublas import library
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.device import Device
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime, LibraryInStream
from whorl.tests.nvml_library import NvmlLibrary

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


def test_no_cupy_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"CuPy is not installed.*whorl\[cuda13\].*whorl\[cuda12\]"):
        cupy_devices()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ImportError('\\n=====\\nlibcudart.so.99: cannot open')", "CuPy cannot be loaded: ====="),
        ("import fastrlock_absent", "CuPy cannot be loaded: No module named 'fastrlock_absent'"),
        (
            "raise PermissionError(13, 'Permission denied', '/home/me/.cupy')",  # CuPy 14 looks for it at once
            "CuPy cannot keep in /home/me/.cupy what it compiles: Permission denied (set CUPY_CACHE_DIR",
        ),
        ("raise OSError('libcuda.so.1: wrong ELF class')", "CuPy cannot be loaded: libcuda.so.1: wrong ELF class"),
    ],
)
def test_a_broken_cupy_is_a_sentence(code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    (tmp_path / "cupy.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as caught:
        cupy_devices()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long(short=3)
@pytest.mark.parametrize(
    ("built", "driver", "status", "visible", "says"),
    [
        (12090, 0, 35, None, "no NVIDIA driver is loaded on this machine"),
        (
            12090,  # no extra of whorl is for a CUDA before 12
            11040,
            35,
            None,
            r"CuPy is built for CUDA 12.9, but the driver supports CUDA 11.4 at most: install a newer driver "
            "that supports at least CUDA 12$",
        ),
        (
            13020,
            12040,
            35,
            None,
            r"for CUDA 13.2, but the driver supports CUDA 12.4 at most: pip install 'whorl\[cuda12\]', or install a",
        ),
        (12090, 12040, 100, None, "CUDA shows no GPU$"),
        (12090, 12040, 100, "", r"CUDA shows no GPU \(CUDA_VISIBLE_DEVICES is ''\)"),
        (12090, 12040, 802, None, "CUDA cannot start: cudaError802"),
    ],
)
def test_no_gpu_is_a_sentence(
    built: int,
    driver: int,
    status: int,
    visible: str | None,
    says: str,
    blas: LibraryInStream,
    runtime: FakeRuntime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    runtime.built, runtime.driver = built, driver
    runtime.fail["getDeviceCount"] = status
    with pytest.raises(InputError, match=says):
        cupy_devices()


def test_a_number_that_there_is_not(blas: LibraryInStream) -> None:
    with pytest.raises(InputError, match="there is no GPU 2: CUDA shows 2"):
        cupy_devices([0, 2])


def test_a_device_is_known_by_what_the_driver_says(device: CupyDevice, nvml: NvmlLibrary) -> None:
    same: Device = device  # it satisfies the protocol
    facts = same.facts
    assert facts.gpu.startswith("GPU-")
    assert (facts.model, facts.capability, facts.sms, facts.index) == ("Fake H100", (9, 0), 4, 0)
    assert facts.bandwidth_gb_s == pytest.approx(3352.3, abs=0.1)  # 5120 bits at 2 x 2619 MHz: an H100
    assert facts.max_clock_mhz == 1980
    assert (facts.peers, device.peer) == (1, 1)
    assert not same.simulated
    assert abs(same.now_ns() - time.time_ns()) < 1e9
    assert {"cupy", "cuda_runtime", "cuda_driver", "driver", "nvrtc"} <= set(same.versions)
    assert "cublas" not in same.versions


def test_the_uuid_is_whole_where_it_holds_zero_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compiling.c_library("cuda.c")
    monkeypatch.setattr(cuda, "driver_library", lambda: library)
    assert str(cuda.cuda_uuid(0)) == "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    assert str(cuda.cuda_uuid(1)) == "00a1a200-a4a5-00a7-a800-aaab00adae00"
    assert cuda.cuda_uuid(2) is None
    assert cuda.cuda_uuid(3) is None
    monkeypatch.setattr(cuda, "driver_library", lambda: None)
    assert cuda.cuda_uuid(0) is None


def test_events_are_recorded_and_asked_for_by_the_driver_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    library, runtime = compiling.c_library("cuda.c"), FakeRuntime()
    monkeypatch.setattr(cuda, "driver_library", lambda: library)
    query, record = cuda.event_calls(runtime)
    event, done, failed = ctypes.c_int(600), ctypes.c_int(0), ctypes.c_int(700)
    assert query(ctypes.addressof(event)) == 600
    record(ctypes.addressof(event), ctypes.addressof(done))
    assert query(ctypes.addressof(event)) == 0
    with pytest.raises(RuntimeError, match="700"):
        record(ctypes.addressof(event), ctypes.addressof(failed))
    monkeypatch.setattr(cuda, "driver_library", lambda: None)
    assert cuda.event_calls(runtime) == (runtime.eventQuery, runtime.eventRecord)


def test_others_are_named_and_we_are_not(device: CupyDevice, nvml: NvmlLibrary) -> None:
    assert device.others() == []
    nvml.add(f"gpu 0 process {os.getpid()}", f"gpu 0 process {os.getppid()}")
    users = device.others()
    assert len(users) == 1
    assert users[0].startswith(f"pid {os.getppid()} (")


def test_in_a_container_the_one_that_came_is_us(blas: LibraryInStream, nvml: NvmlLibrary) -> None:
    """There NVML names processes by the host's numbers, which mean nothing here."""
    nvml.add("gpu 0 process 4194001")
    device = cupy_devices([0])[0]
    nvml.add("gpu 0 process 4194002")
    assert device.others() == ["pid 4194001 (of another container or user)"]
    nvml.add("gpu 0 process 4194003")
    assert len(device.others()) == 3, "who of two is us cannot be told"


@pytest.mark.parametrize("place", ["wheel", "toolkit"])
def test_a_library_is_found_in_a_wheel_and_in_a_toolkit(
    place: str, tmp_path: Path, cublas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("nvidia/cublas/lib" if place == "wheel" else "lib64")
    folder.mkdir(parents=True)
    shutil.copy(cublas, folder / "libwhorltest.so.12")
    with pytest.raises(DeviceError, match=r"libwhorltest.so.12 is not found: load the CUDA toolkit 12 or install it"):
        library("whorltest", 12)
    if place == "wheel":
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert library("whorltest", 12).cublasCreate_v2 is not None


def test_a_library_of_another_cuda_is_not_taken(tmp_path: Path, cublas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's finder takes what there is, whatever CUDA it is of."""
    library_file = SimpleNamespace(abs_path=None)
    finder = SimpleNamespace(load_nvidia_dynamic_lib=lambda name: library_file)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=finder))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    for version in ("13", "13.1.2"):
        library_file.abs_path = shutil.copy(cublas, tmp_path / f"libwhorltest.so.{version}")
        with pytest.raises(DeviceError, match=r"libwhorltest.so.12 is not found.*'cupy-cuda12x\[ctk\]>=14'"):
            library("whorltest", 12)
    library_file.abs_path = shutil.copy(cublas, tmp_path / "libwhorltest.so.12")
    assert library("whorltest", 12).cublasCreate_v2 is not None
