"""A device that does what a test says: its clock goes on by what it runs, and nothing takes real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whorl.errors import DeviceError
from whorl.kernels.device import Timed, Verdict
from whorl.kernels.work import Facts, Kernel, Unfit, Work
from whorl.probes.catalogue import Probe
from whorl.probes.effort import EFFORTS, Effort
from whorl.probes.watch import Reading, Window

FACTS = Facts(
    gpu="GPU-00000000-0000-0000-0000-000000000000",
    model="test",
    node="n1",
    index=0,
    capability=(8, 0),
    sms=100,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    max_clock_mhz=1000.0,
    bandwidth_gb_s=1000.0,
)
QUICK: Effort = EFFORTS["quick"]


def build(facts: Facts, *, size: int = 1, input: str = "ones") -> Work | Unfit:  # noqa: A002
    if size < 1:
        return Unfit("there is no work of size 0")
    return Work(
        kernel="tiny",
        precision="fp32",
        buffers=(),
        turns=((),),
        flop=1_000_000 * size,
        bytes=2_000_000 * size,
        outputs=(),
        parameters={"size": size, "input": input},
        operations=1000,
    )


TINY = Kernel("tiny", "3", "nothing of use", build)


def find(name: str) -> Kernel:
    return replace(TINY, name=name)


def a_probe(name: str = "tiny", **changes: Any) -> Probe:
    return replace(Probe(name, "1", "tests", "Nothing of use.", "rate", "tiny", "quick"), **changes)


def constant(time_ms: float) -> Iterator[float]:
    while True:
        yield time_ms


@dataclass
class HandDevice:
    """`times_ms` gives the time of each repetition, `verdicts` the answers of the checks, the last one for ever."""

    facts: Facts = FACTS
    times_ms: Iterator[float] = field(default_factory=lambda: constant(2.0))
    verdicts: list[Verdict] = field(default_factory=lambda: [Verdict(10, 0)])
    temperature_c: Callable[[float], float] | None = None
    """Of the seconds since the start."""
    breaks_at: int | None = None
    """The call of `run` that fails."""
    error: BaseException = field(default_factory=lambda: DeviceError("GPU-0 fell off the bus", gone=True))
    busy_with: Sequence[str] = ()
    simulated: bool = False
    versions: Mapping[str, str] = field(default_factory=lambda: {"driver": "1"})
    began_ns: int = 1_000_000_000_000_000_000
    calls: list[str] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    """Repeats and repetitions in each, of every call of `run`."""
    loaded: int = 0
    work: Work | None = None
    closed: bool = False
    clock_ns: int = 0

    def now_ns(self) -> int:
        return self.began_ns + self.clock_ns

    async def load(self, work: Work, *, seed: int) -> HandLoaded:
        self.calls.append("load")
        self.loaded += 1
        self.work = work
        return HandLoaded(self, work)

    def free_bytes(self) -> int:
        return self.facts.memory_bytes // 2

    async def pause(self, seconds: float) -> None:
        time.sleep(0.001)
        self.calls.append("pause")
        self.clock_ns += round(seconds * 1e9)

    def others(self) -> Sequence[str]:
        return self.busy_with

    def close(self) -> None:
        self.closed = True

    # As the watch of its own telemetry.

    def latest(self, gpu: str) -> Reading | None:
        if self.temperature_c is None:
            return None
        return Reading(self.now_ns(), self.temperature_c(self.clock_ns / 1e9))

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        if self.temperature_c is None:
            return Window()
        at = [(ns - self.began_ns) / 1e9 for ns in (began_ns, ended_ns)]
        slope = (self.temperature_c(at[1]) - self.temperature_c(at[0])) / max(at[1] - at[0], 1e-9)
        return Window(
            readings=2,
            sm_clock_mhz=1000.0,
            mem_clock_mhz=800.0,
            temperature_c=self.temperature_c(at[1]),
            power_w=100.0,
            temperature_slope_k_s=slope,
            sm_clock_change_mhz=0.0,
            counter_w=120.0,
            clock_events={},
            shown_w=np.full(2, 100.0),
        )

    def hurry(self, gpu: str, *, on: bool) -> None:
        self.calls.append(f"hurry {on}")


@dataclass
class HandLoaded:
    device: HandDevice
    work: Work

    async def run(self, repeats: int, *, each: int = 1, limit_s: float, apart: bool = False) -> Timed:
        device = self.device
        device.calls.append("run")
        device.batches.append((repeats, each))
        if device.breaks_at is not None and device.calls.count("run") > device.breaks_at:
            raise device.error
        times: NDArray[np.float64] = np.array([next(device.times_ms) for _ in range(repeats)])
        began_ns = device.now_ns()
        device.clock_ns += round(float(times.sum()) * each * 1e6)
        return Timed(began_ns, device.now_ns(), times, repeats * each)

    async def read(self, buffer: str) -> NDArray[Any]:
        return np.zeros(1)

    async def check(self) -> Verdict:
        verdicts = self.device.verdicts
        self.device.calls.append("check")
        return verdicts.pop(0) if len(verdicts) > 1 else verdicts[0]

    async def poison(self) -> None:
        self.device.calls.append("poison")

    def unload(self) -> None:
        self.device.calls.append("unload")
        self.device.loaded -= 1
