"""A device by hand in a process of its own, which a test lets work, fail, hang or be killed."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass, replace

from whorl.kernels import catalogue
from whorl.kernels.work import Facts
from whorl.probes.gpu_process import GpuProcess
from whorl.tests.probes.hand_device import FACTS, HandDevice, HandLoaded, find


@dataclass
class Apart(HandDevice):
    """`fate` comes in the fourth batch: 'killed', 'locked' (it hangs and holds Python's lock), 'broken' or none."""

    fate: str = ""

    async def load(self, work: object, *, seed: int) -> HandLoaded:
        loaded = await super().load(work, seed=seed)  # type: ignore[arg-type]
        plain_run = loaded.run

        async def run(repeats: int, *, each: int = 1, limit_s: float) -> object:
            time.sleep(0.05)  # the others go round while they wait for one that hangs
            if self.calls.count("run") == 3:
                meet(self.fate)
            return await plain_run(repeats, each=each, limit_s=limit_s)

        loaded.run = run  # type: ignore[assignment, method-assign]
        return loaded


def meet(fate: str) -> None:
    """What befalls this process."""
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "locked":
        ctypes.PyDLL(None).sleep(1000)  # a call that keeps Python's lock
    if fate == "broken":
        raise ZeroDivisionError("a bug")


def opened(index: int, fate: str) -> Apart:
    """The device, in its process."""
    catalogue.find_kernel = find
    return Apart(facts=facts(index), fate=fate)


def facts(index: int) -> Facts:
    return replace(FACTS, gpu=f"GPU-{index}", index=index)


def process(index: int, fate: str = "", *, silent_s: float = 600.0) -> GpuProcess:
    return GpuProcess(facts(index), (opened, (index, fate)), silent_s=silent_s)
