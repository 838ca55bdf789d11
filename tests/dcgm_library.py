"""Our own libdcgm.so.4 and nv-hostengine: compiled from tests/native/dcgm_*.c, over our own libnvidia-ml.so.1.

In a test (fixtures `dcgm` and `engine` in tests/conftest.py):

    def test_of_an_engine(engine: DcgmEngine) -> None:
        pydcgm, agent, structs = engine.bindings()     # of the PyPI package triton-model-analyzer, over our library
        handle = pydcgm.DcgmHandle(ipAddress=engine.address, timeoutMs=2000)
        engine.nvml.add("gpu 2 lost")                  # what the GPUs do: the control file of the driver
        engine.write("profiling -29")                  # what the engine does wrong: see tests/native/dcgm_control.c
        engine.restart()                               # a new process: every handle is dead

`engine` is a process that listens on `engine.address`; `stopped_engine` is one that the test starts, also on a unix
socket (`start(unix=True)`, `engine.socket`). An engine in the test's process (`DcgmHandle(opMode=...)`) needs the
fixture `dcgm`.

Where NVIDIA's nv-hostengine is installed, tests with `engine` run a second time over that and over our driver, with
the marker `real_dcgm`.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from whorl.tests.nvml_library import SOURCES, NvmlLibrary, compile_shared

SONAME = "libdcgm.so.4"
ENGINE = "nv-hostengine"
SEEN_S = 0.004  # the engine looks at its control file at least this often


def compile_dcgm(folder: Path) -> None:
    """Compile the library and the engine into `folder`. Skips the test where there is no C compiler."""
    sources = sorted(SOURCES.glob("dcgm_*.c"))
    compile_shared(folder / SONAME, sources, f"-Wl,-soname,{SONAME}", "-lpthread", "-ldl")
    main = SOURCES / "hostengine_main.c"
    compile_shared(folder / ENGINE, [main], str(folder / SONAME), "-Wl,-rpath,$ORIGIN", shared=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class DcgmLibrary:
    """The compiled library, its control file, and the driver below it."""

    def __init__(self, folder: Path, nvml: NvmlLibrary, scratch: Path) -> None:
        self.folder = folder
        self.nvml = nvml
        self.control = scratch / "dcgm.control"
        self.write()

    def write(self, *statements: str) -> None:
        """Replace what the control file says."""
        fresh = self.control.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in statements))
        fresh.replace(self.control)
        time.sleep(SEEN_S)

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a process that shall find these libraries, as an engine or a client with its own."""
        folders = f"{self.folder}:{self.nvml.library.parent}"
        return (
            self.nvml.environment() | {"LD_LIBRARY_PATH": folders, "WHORL_DCGM_CONTROL": str(self.control)} | variables
        )

    def bindings(self) -> Bindings:
        """The real pydcgm, which has loaded this library."""
        pytest.importorskip("model_analyzer.monitor.dcgm", reason="the tests need the package triton-model-analyzer")
        from model_analyzer.monitor.dcgm import dcgm_agent, dcgm_structs, pydcgm

        dcgm_structs.dcgmLib = None  # it may have loaded another one for another test
        dcgm_structs._dcgmGetFunctionPointer_cache.clear()
        dcgm_structs._dcgmInit(str(self.folder))
        return Bindings(pydcgm, dcgm_agent, dcgm_structs)


class Bindings(NamedTuple):
    """Modules of pydcgm."""

    pydcgm: Any
    agent: Any
    structs: Any


class DcgmEngine(DcgmLibrary):
    """An engine in a process of its own."""

    def __init__(self, folder: Path, nvml: NvmlLibrary, scratch: Path) -> None:
        super().__init__(folder, nvml, scratch)
        self.binary = folder / ENGINE
        self.address = f"127.0.0.1:{free_port()}"
        self.socket = scratch / "dcgm.socket"
        self._process: subprocess.Popen[bytes] | None = None

    def use_real(self) -> None:
        """NVIDIA's engine and library instead of ours; the control file is for ours only."""
        library = real_engine()
        assert library is not None
        self.binary = library
        folders = [Path(f"/usr/lib/{platform.machine()}-linux-gnu"), Path("/usr/lib64")]
        self.folder = next(folder for folder in folders if (folder / SONAME).exists())

    def start(self, *, unix: bool = False) -> None:
        """Start the engine and wait until it listens: on `address`, or with `unix` on `socket`."""
        address = ["-d", str(self.socket)] if unix else ["-b", "127.0.0.1", "-p", self.address.partition(":")[2]]
        self._process = subprocess.Popen([self.binary, "-n", *address], env=self.environment())
        until = time.monotonic() + 20
        while not self._listens(unix=unix):
            assert self._process.poll() is None, "the engine ended"
            assert time.monotonic() < until, "the engine does not listen"
            time.sleep(0.005)

    def stop(self) -> None:
        """End the engine as a crash does: connections break at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The engine does not run, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _listens(self, *, unix: bool) -> bool:
        host, _, port = self.address.partition(":")
        with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as probe:
            return probe.connect_ex(str(self.socket) if unix else (host, int(port))) == 0


def real_engine() -> Path | None:
    """NVIDIA's own nv-hostengine, where it is installed."""
    path = shutil.which(ENGINE, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    return Path(path) if path else None
