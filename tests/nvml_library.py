"""Our own libnvidia-ml.so.1: compiled from tests/native, and steered while clients run.

In a test (fixtures `nvml_library` and `nvml` in tests/conftest.py; the second is in this process):

    def test_a_lost_gpu(nvml_library: NvmlLibrary) -> None:
        nvml_library.write("gpus 4", "model H100", "load 10 1")        # replaces the control file
        process = subprocess.Popen([...], env=nvml_library.environment())   # LD_LIBRARY_PATH and the control file
        nvml_library.add(f"from {time.time()} gpu 2 lost")              # appended: seen by all within 10 ms
        nvml_library.add("gpu 1 hang")                                   # calls for GPU 1 do not return ...
        nvml_library.remove("gpu 1 hang")                                # ... until now
        assert not nvml_library.setters()                                # of any process: nothing was changed

    def test_in_process(nvml: NvmlLibrary) -> None:
        nvml.write("gpus 2", "gpu 1 deny 3 field:82 nvmlDeviceGetTemperatureV")
        pynvml.nvmlInit()                                                # finds ours: it is loaded already
        ...
        assert nvml.calls("nvmlDeviceGetPcieThroughput") == 0            # by this process, ever

`write`, `add` and `remove` return when every process has seen the change. The grammar stands in full at the top of
tests/native/nvml_control.c. In short, a line is `[from UNIX] [until UNIX] [gpu N,M] WORD ...`:

    gpus 8 | model V100|A100|H100|H200 | node 3 | now UNIX | root yes|no | gpu 1 mig 3g.40gb 1g.10gb
    load PERIOD DUTY | limit MILLIWATT | locked MHZ | slowdown thermal|brake|software     (with `from` while running)
    stuck | step MILLIWATT | every SECONDS | module | ecc C U [C U of its life] | remapped C U [FAILED [PENDING]]
    sram | recovery ACTION | inforom | links CRC REPLAYS RECOVERIES | pcie GENERATION WIDTH | fabric STATE STATUS
    vgpu LICENSED | process PID | deaf
    answer FIELD TYPE VALUE
    lost [stale] | deny STATUS [NAME|field:ID|with:ID ...] | latency US [FUNCTION] | hang [FUNCTION]
    from UNIX xid CODE | from UNIX reset | from UNIX reload [SECONDS [STATUS]]

The library can be loaded once in a process and stays: the process of a test that used `nvml` has simulated GPUs
from then on where WHORL_NVML_CONTROL is set, and no driver elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

SOURCES = Path(__file__).with_name("native")
SONAME = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC")
SEEN_S = 0.012  # every process looks at the control file at least this often
SETTERS = ("nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear")


def compile_shared(library: Path, sources: Sequence[Path], *options: str, shared: bool = True) -> Path:
    """Compile C sources into a shared library, or a program. Skips the test where there is no C compiler."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip(f"no C compiler (cc, gcc or clang) to build {library.name} with")
    kind = ["-shared"] if shared else []
    command = [compiler, *FLAGS, *kind, "-o", str(library), *map(str, sources), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def compile_library(folder: Path) -> Path:
    """Compile tests/native into `folder`; returns the library. Skips the test where there is no C compiler."""
    sources = sorted(SOURCES.glob("nvml_*.c"))
    return compile_shared(folder / SONAME, sources, f"-Wl,-soname,{SONAME}", "-lm", "-lpthread")


class NvmlLibrary:
    """A compiled library and the control file that says what its GPUs do."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.control = folder / "nvml.control"
        self._lines: list[str] = []
        self.write()

    def environment(self, base: Mapping[str, str] | None = None, /, **variables: str) -> dict[str, str]:
        """The environment of a process that shall find this library; of `base`, by default this process's."""
        result = dict(os.environ if base is None else base)
        result["LD_LIBRARY_PATH"] = str(self.library.parent)
        return result | {"WHORL_NVML_CONTROL": str(self.control)} | variables

    def write(self, *statements: str) -> None:
        """Replace what the control file says."""
        self._lines = list(statements)
        self._publish()

    def add(self, *statements: str) -> None:
        """Say more in the control file (and keep what clients set in it)."""
        self._lines = [*self._said(), *statements]
        self._publish()

    def remove(self, *statements: str) -> None:
        """Take statements back, spelled as they were given."""
        lines = self._said()
        for statement in statements:
            lines.remove(statement)
        self._lines = lines
        self._publish()

    def calls(self, function: str | None = None) -> int:
        """How often this process called a function of the library (None: any), since it was loaded."""
        count = ctypes.CDLL(str(self.library)).simulated_nvml_calls
        count.argtypes, count.restype = [ctypes.c_char_p], ctypes.c_ulonglong
        return int(count(function.encode() if function else None))

    def called(self) -> set[tuple[int, str]]:
        """Process id and name of every function that was called under this control file, by any process."""
        path = self.control.with_name(f"{self.control.name}.calls")
        lines = path.read_text().splitlines() if path.exists() else []
        return {(int(process), name) for process, name in (line.split() for line in lines)}

    def setters(self) -> set[tuple[int, str]]:
        """Those of `called` that would change something of a GPU, allowed or not."""
        return {(process, name) for process, name in self.called() if name.startswith(SETTERS)}

    def power_w(self, gpu: int, unix_s: float) -> float:
        """True power of a GPU at a Unix time, W; loads the library into this process."""
        return float(self._truth("simulated_nvml_power_w")(gpu, unix_s))

    def busy_s(self, gpu: int, unix_s: float) -> float:
        """Time up to a Unix time in which a GPU was busy, s; loads the library into this process."""
        return float(self._truth("simulated_nvml_busy_s")(gpu, unix_s))

    def energy_j(self, gpu: int, unix_s: float) -> float:
        """Integral of the true power up to a Unix time, J; loads the library into this process."""
        return float(self._truth("simulated_nvml_energy_j")(gpu, unix_s))

    @functools.cache  # noqa: B019 (a few names, and few libraries)
    def _truth(self, name: str) -> Callable[[int, float], float]:
        function = getattr(ctypes.CDLL(str(self.library)), name)
        function.argtypes, function.restype = [ctypes.c_uint, ctypes.c_double], ctypes.c_double
        return cast("Callable[[int, float], float]", function)

    def _said(self) -> list[str]:
        return [line for line in self.control.read_text().splitlines() if line]

    def _publish(self) -> None:
        fresh = self.control.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in self._lines))
        fresh.replace(self.control)
        time.sleep(SEEN_S)


def load_here(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the library into this process, for pynvml to find; skips where a real one was loaded before."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if SONAME in line}
    if loaded - {str(nvml.library)}:
        pytest.skip("another libnvidia-ml.so.1 is loaded in this process already")
    monkeypatch.setenv("WHORL_NVML_CONTROL", str(nvml.control))
    ctypes.CDLL(str(nvml.library))
    time.sleep(SEEN_S)


def unload_sessions() -> None:
    """End every NVML session of this process, as a test that failed may have left some."""
    import pynvml

    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return
