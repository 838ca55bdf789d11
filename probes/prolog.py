"""Whether each GPU of this node is fit for a job: a look of a few seconds, for the prolog of a batch system.

    fitness = look(limit_s=5.0)

Of each GPU: what the driver says of its health, whether a context opens, a product, patterns over a part of its memory,
and patterns on each multiprocessor, all checked. Each GPU is looked at by a process of its own, which is killed when
the time is over: a call of the driver that hangs keeps nobody waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from ..errors import DeviceError, InputError, WhorlError
from ..kernels.catalogue import find_kernel
from ..kernels.device import Device, finish
from ..kernels.work import Unfit
from .health import DriverHealth, unfit_reasons

if TYPE_CHECKING:
    from ..simulation.fleet import Fleet

LIMIT_S = 5.0
_LONGEST = 100  # characters of a reason, which batch systems show in a column
_LEAVE_S = 0.5  # of the time: to end the processes and say what was found
_WORKS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("product", "gemm-fp32", {"n": 2048, "k": 2048}),
    ("memory", "memory", {"size": 1 << 30}),
    ("multiprocessors", "sm", {"rounds": 8}),
)
"""What is run and checked: its name in reasons, the kernel, and its size."""


@dataclass(frozen=True)
class Fitness:
    """Whether a GPU is fit. `fit` is None where the time did not suffice, or nothing could be asked."""

    gpu: str
    """UUID."""
    index: int
    fit: bool | None
    reason: str = ""
    """In a few words, for the reason of a drained node."""


def look(limit_s: float = LIMIT_S) -> list[Fitness]:
    """Look at every GPU that NVML lists here and this process may use, for at most `limit_s`.

    InputError where the driver cannot be reached, or does not list its GPUs in time.
    """
    end_s = time.monotonic() + limit_s - _LEAVE_S
    listed: list[dict[str, bool]] = []
    errors: list[WhorlError] = []

    def list_gpus() -> None:
        try:
            listed.append(_gpus())
        except WhorlError as error:
            errors.append(error)

    thread = threading.Thread(target=list_gpus, daemon=True)
    thread.start()
    thread.join(max(0.0, end_s - time.monotonic()))
    if errors:
        raise errors[0]
    if not listed:
        raise InputError(f"the driver did not list its GPUs within {limit_s:g} s")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in (visible or "").split(",")]
    chosen = {
        gpu: (index, mig)
        for index, (gpu, mig) in enumerate(listed[0].items())
        if visible is None or str(index) in names or any(name and gpu.startswith(name) for name in names)
    }
    with tempfile.TemporaryDirectory(prefix="whorl-prolog-") as folder:
        processes = {gpu: _begin(Path(folder) / gpu, gpu, mig=mig) for gpu, (_, mig) in chosen.items()}
        while any(process.poll() is None for process in processes.values()) and time.monotonic() < end_s:
            time.sleep(0.02)
        for process in processes.values():
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # one that the kernel does not let go is left behind
                process.wait(_LEAVE_S / (1 + len(processes)))
        return [_fitness(gpu, index, (Path(folder) / gpu).read_text(), limit_s) for gpu, (index, _) in chosen.items()]


def _gpus() -> dict[str, bool]:
    """By UUID of each GPU that NVML lists: whether it is in MIG mode."""
    from ..collectors.nvml_driver import answer_of, open_library

    nv = open_library()
    try:
        handles = [nv.nvmlDeviceGetHandleByIndex(index) for index in range(nv.nvmlDeviceGetCount())]
        modes = [answer_of(nv.nvmlDeviceGetMigMode, handle) or (0, 0) for handle in handles]
        return {nv.nvmlDeviceGetUUID(handle): mode[0] == 1 for handle, mode in zip(handles, modes, strict=True)}
    except nv.NVMLError as error:
        raise DeviceError(f"NVML: {error}") from error


def _begin(output: Path, gpu: str, *, mig: bool) -> subprocess.Popen[bytes]:
    """Begin to look at a GPU; what is found goes to a file, line by line. CUDA is to see this GPU alone."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, "-m", __name__, gpu, *(["--mig"] if mig else [])]
    with output.open("wb") as stream:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stream)  # noqa: S603


def _fitness(gpu: str, index: int, output: str, limit_s: float) -> Fitness:
    """What the lines of a process come to; of one that did not end, where it was."""
    steps = [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith("\n")]
    last = steps[-1] if steps else "start"
    if isinstance(last, list):
        return _judged(gpu, index, not last, last)
    reason = last["unknown"] if isinstance(last, dict) else f"{last} did not end within {limit_s:g} s"
    return _judged(gpu, index, None, [reason])


def _judged(gpu: str, index: int, fit: bool | None, reasons: Sequence[str]) -> Fitness:
    text = f"GPU {index}: {'; '.join(reasons)}" if reasons else ""
    return Fitness(gpu, index, fit, shorten(text, _LONGEST, placeholder="..."))


async def examine(device: Device, tell: Callable[[str], None]) -> list[str]:
    """Run short works on a device and check them; what is wrong, in a few words each. `tell` hears what comes next."""
    reasons = []
    try:
        for name, kernel, parameters in _WORKS:
            tell(name)
            work = find_kernel(kernel).build(device.facts, **parameters)
            if isinstance(work, Unfit):
                continue
            loaded = await device.load(work, seed=1)
            try:
                await loaded.poison()
                await loaded.run(len(work.turns), limit_s=LIMIT_S)
                verdict = await loaded.check()
            finally:
                loaded.unload()
            if verdict.wrong:
                reasons.append(f"{name}: {verdict.wrong:,} of {verdict.elements:,} values wrong")
    except DeviceError as error:
        reasons.append(str(error).removeprefix(f"{device.facts.gpu}: "))
    return reasons


def look_simulated(fleet: Fleet) -> list[Fitness]:
    """The same of a simulated fleet."""
    from ..kernels.simulated_device import SimulatedDevice
    from ..simulation.bench import Bench
    from ..simulation.stepping import Happening, Readings
    from .health import simulated_health

    bench = Bench(fleet, began_ns=0, span_s=60.0)
    last: list[Readings] = []

    def hear(readings: Readings, _: list[Happening]) -> None:
        last[:] = [readings]

    async def of_position(position: int) -> list[str]:
        if fleet.fault_of(position).falls:
            return ["it has fallen off the bus"]
        with closing(SimulatedDevice(bench, position)) as device:
            reasons = await examine(device, lambda _: None)
            await device.pause(0.2)  # until the driver has been read
        health = simulated_health(last[0], position)
        return reasons + (["it does not answer"] if health is None else unfit_reasons(health))

    answers = bench.run([of_position(position) for position in range(len(fleet))], on_tick=hear)
    all_reasons = [[str(answer)] if isinstance(answer, Exception) else answer for answer in answers]
    gpus = [identity.uuid for identity in bench.who]
    return [_judged(gpus[position], position, not reasons, reasons) for position, reasons in enumerate(all_reasons)]


def store_unfit(folder: str, unfit: Sequence[Fitness]) -> None:
    """Store an event of each GPU that is unfit. Raises StoreError where the store takes none."""
    import pyarrow as pa

    from ..store import Store
    from ..store.events import Event, event_rows
    from ..store.names import this_cluster, this_node
    from ..store.vocabulary import EventKind

    now_ns, node = time.time_ns(), this_node()
    events = [Event(EventKind.UNFIT, gpu.gpu, gpu.reason, now_ns, node) for gpu in unfit]
    rows = pa.Table.from_batches([event_rows(events, cluster=this_cluster())])
    Store.open(folder).append({"events": rows}, f"prolog-{node}-{now_ns}")


def main(gpu: str, *, mig: bool) -> None:
    """Look at one GPU, and print what comes next, as a text, and in the end what is wrong, as a list.

    Where that cannot be known, it is an object with the reason.
    """

    def tell(step: str | list[str] | dict[str, str]) -> None:
        sys.stdout.write(f"{json.dumps(step)}\n")
        sys.stdout.flush()

    tell("asking its driver")
    try:
        reasons = unfit_reasons(DriverHealth(gpu).read())
        if not reasons and not mig:  # of a GPU in MIG mode CUDA shows the parts alone
            tell("opening a context")
            from ..kernels.cupy_device import cupy_devices

            (device,) = cupy_devices()
            reasons = finish(examine(device, tell))
    except DeviceError as error:
        reasons = [str(error).removeprefix(f"{gpu}: ")]
    except InputError as error:
        tell({"unknown": str(error)})
        return
    tell(reasons)


if __name__ == "__main__":
    main(sys.argv[1], mig="--mig" in sys.argv[2:])
