"""Settings of simulated GPUs as other processes see them, and processes that change them and end in every way."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from whorl.tests.nvml_library import NvmlLibrary

PATIENCE_S = 20.0
BUSY = ("model H100", "root yes", "gpus 3", "load 10 1")  # always busy: a locked clock shows


def uuids() -> list[str]:
    """The GPUs that this process's library shows."""
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]


def limit_w(gpu: str) -> float:
    return float(pynvml.nvmlDeviceGetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByUUID(gpu))) / 1000


def clock_mhz(gpu: str) -> int:
    """The SM clock under load."""
    time.sleep(0.02)  # another process may have just changed it
    return int(pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByUUID(gpu), pynvml.NVML_CLOCK_SM))


def notes(folder: Path) -> list[Path]:
    """The restore files in a folder."""
    return sorted(folder.glob("restore-*.json"))


def assert_as_before(gpus: list[str], state: Path) -> None:
    """The settings of all GPUs are those of BUSY, and nothing is left to restore."""
    assert [limit_w(gpu) for gpu in gpus] == [700] * len(gpus)
    assert all(clock_mhz(gpu) > 1200 for gpu in gpus)
    assert not notes(state)


_PROGRAM = """
    import sys, time
    from whorl.errors import WhorlError
    from whorl.probes.settings import Settings
    try:
        with Settings({gpus!r}, lock_clock_mhz={mhz!r}, power_limit_w={watt!r}, tell=print):
            print("changed", flush=True)
            {body}
    except WhorlError as error:
        sys.exit(str(error))
"""


@contextmanager
def process_with_settings(
    nvml: NvmlLibrary, state: Path, gpus: list[str], *, watt: float | None = 500,
    body: str = "time.sleep(60)",
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A process that has changed settings and waits, or does what `body` says."""
    program = textwrap.dedent(_PROGRAM).format(gpus=gpus, mhz=1200, watt=watt, body=body)
    environment = nvml.environment(WHORL_STATE=str(state))
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "changed\n":
                break
        else:
            raise AssertionError(process.communicate()[1])
        yield process
    finally:
        process.kill()
        process.communicate()
