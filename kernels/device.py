"""What runs a work: a real or a simulated GPU.

The methods that take time are coroutines. On a GPU they block their thread and never suspend, so that `finish` runs
them to the end; on a simulated device they suspend until the simulated clock has come so far (`simulation.bench`).
What is written above them is the same code for both.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .work import Facts, Work

T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """What the check of the repetitions since the last check found."""

    elements: int
    """How many were compared: of the outputs, and inside kernels and audits."""
    wrong: int
    first: str | None = None
    """Where the first wrong one is, and what it is and should be; None where none is wrong."""
    worst: float = 0.0
    """Largest error as a share of its tolerance; infinity where a tolerance of 0 is missed."""
    repetitions: int = 0
    """How many of the repetitions that ran were checked."""
    by_sm: Mapping[int, int] = field(default_factory=dict)
    """Wrong elements by multiprocessor, where the kernel itself compares; only those with wrong ones."""

    def __add__(self, later: Verdict) -> Verdict:
        """The verdict of both; of two first wrong ones, that of this one."""
        return Verdict(
            elements=self.elements + later.elements,
            wrong=self.wrong + later.wrong,
            first=self.first if self.first is not None else later.first,
            worst=max(self.worst, later.worst),
            repetitions=self.repetitions + later.repetitions,
            by_sm={sm: self.by_sm.get(sm, 0) + later.by_sm.get(sm, 0) for sm in sorted({*self.by_sm, *later.by_sm})},
        )


@dataclass(frozen=True)
class Timed:
    """A batch of repetitions that has run."""

    began_ns: int
    ended_ns: int
    """UTC, on the device's clock (`Device.now_ns`)."""
    times_ms: NDArray[np.float64]
    """Of a repetition, in each of the repeats, by events on the device. Shape (repeats,)."""
    repetitions: int
    """That ran, with those that no time counts."""
    turns_ms: NDArray[np.float64] | None = None
    """Until the steps of the turn were done, in each repeat of one repetition of a work that has something beside its
    turns. Shape (repeats,)."""


class Loaded(Protocol):
    """A work on a device: compiled, its memory taken, its inputs in place."""

    @property
    def work(self) -> Work: ...

    async def run(self, repeats: int, *, each: int = 1, limit_s: float, apart: bool = False) -> Timed:
        """Run `repeats` times `each` repetitions, all back to back, with an event between the repeats.

        What a work has beside its turns runs at the same time as they, or, where `apart`, after each of them. Where
        the work has laps, audits run between repeats, outside the timed spans, and `each` is at most a lap.
        DeviceError where they do not end within `limit_s`, or the GPU fails.
        """
        ...

    async def read(self, buffer: str) -> NDArray[Any]:
        """A copy of a buffer of the work, as its kernels left it: what they wrote of their findings."""
        ...

    async def check(self) -> Verdict:
        """Compare every element of the outputs, as the last repetition left them, with what they must be, and take
        what kernels and audits have compared since the last check."""
        ...

    async def poison(self) -> None:
        """Fill the outputs with what no result can be, so that a stale one is not taken for right.

        Inputs are filled again, the counters of `faults` cleared, and repetitions counted from 0."""
        ...

    def unload(self) -> None:
        """Give the memory back. Never raises; safe to call twice."""
        ...


class Device(Protocol):
    """One GPU that work can be run on."""

    @property
    def facts(self) -> Facts: ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of driver, runtime and libraries, by name."""
        ...

    @property
    def simulated(self) -> bool: ...

    def now_ns(self) -> int:
        """UTC on this device's clock."""
        ...

    def free_bytes(self) -> int:
        """Memory that is not taken, by this process or others. DeviceError where the GPU fails."""
        ...

    async def load(self, work: Work, *, seed: int) -> Loaded:
        """Make a work ready. DeviceError where memory or the compiler fails; nothing stays behind then."""
        ...

    async def pause(self, seconds: float) -> None:
        """Leave the GPU alone for a time; its context stays."""
        ...

    def others(self) -> Sequence[str]:
        """Other processes with a context on this GPU now, as 'pid 123 (python)'; empty where there is none."""
        ...

    def close(self) -> None:
        """Leave the GPU. Never raises."""
        ...


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine over a GPU gives, in this thread. RuntimeError where it suspends: only simulated ones do."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a coroutine over a real device suspended")
