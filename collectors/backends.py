"""Sources of readings (backends), and the table of them.

There are two sorts. A `Backend` is asked device by device, at the pace of the sampler. A `Stream` has a clock of its
own, as an engine or an exporter has: it gives what it has measured since it was last asked.

A source is one class that satisfies one of the two, and one row of `BACKENDS`; it is imported when it is asked for.
One that cannot work says so when it is opened, with a sentence for `whorl doctor` and for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from ..store.metrics import FAST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..store.events import Event


class Status(IntEnum):
    """What became of one reading."""

    OK = 0
    UNREAD = 1  # not asked for at this tick: the slow tier, or a GPU that is passed over
    UNSUPPORTED = 2  # this GPU or driver does not have it
    DENIED = 3  # this user may not read it
    LOST = 4  # the GPU does not answer any more
    DRIVER = 5  # the driver was unloaded or replaced under us
    FAILED = 6  # anything else; the next reading may work


@dataclass(frozen=True)
class Device:
    """A GPU or MIG instance: its key (UUID), and its row of the table `gpus`, by column.

    `parent` is the position of the physical GPU among the devices for a MIG instance, None for a whole GPU.
    """

    gpu: str
    row: dict[str, Any] = field(default_factory=dict)
    parent: int | None = None


class Sweep:
    """The readings of one tick: arrays of shape (metrics, devices), metrics in the order of `METRICS`.

    A value counts only where its status is OK. Both arrays belong to the backend and change at its next sweep. Nearly
    every tick needs plain numbers only, which a backend may give without arrays.
    """

    def __init__(self, values: NDArray[np.int64], status: NDArray[np.uint8]) -> None:
        self._values, self._status = values, status

    @property
    def values(self) -> NDArray[np.int64]:
        return self._values

    @property
    def status(self) -> NDArray[np.uint8]:
        return self._status

    def statuses(self) -> tuple[bytes, ...]:
        """By device: the status of each metric."""
        return tuple([column.tobytes() for column in self.status.T])

    def numbers(self, *, slow: bool) -> Sequence[Sequence[int]]:
        """By metric, then by device: the values, those of the fast tier (`FAST`), or if `slow` of all."""
        values: list[list[int]] = (self.values if slow else self.values[FAST, :]).tolist()
        return values


Commit = Callable[[], AbstractContextManager[None]]


class Backend(Protocol):
    """A source of readings. One thread at a time calls it, device by device, so that a hanging call can be detected.

    All of its methods may block for as long as the driver does; none changes a setting of a GPU.
    """

    name: str
    period_ms: int | None  # how often the power sensor has a new value; None where unknown

    def open(self) -> None:
        """Reach the driver. Raises InputError with the reason where that cannot work."""
        ...

    def devices(self) -> Sequence[Device]:
        """The devices, in the order in which the sweeps have them. Grows at its end; nothing is removed."""
        ...

    def read(self, device: int, *, slow: bool) -> None:
        """Read the fast metrics of one device, and the slow ones if asked to. Its failures are in the sweep."""
        ...

    def sweep(self, stamps: list[int]) -> Sweep:
        """What the calls of `read` since the last sweep gave; `stamps` are their wall times in ns, by device."""
        ...

    def happened(self) -> list[Event]:
        """What the driver announced since the last call, without waiting."""
        ...

    def look_again(self, passed_over: frozenset[int], commit: Commit) -> list[Event]:
        """Look for devices that came, returned or changed, but not at those `passed_over`; says what was found.

        The backend's state changes only within `with commit():`, which raises where this thread was given up on.
        """
        ...

    def lose(self, device: int) -> None:
        """Stop reading a device whose status was LOST, until `look_again` finds it."""
        ...

    def close(self) -> None:
        """Leave the driver."""
        ...


@dataclass
class Readings:
    """What a stream has measured: any number of rows, each of one device at one time; metrics as in `METRICS`.

    A value counts only where its status is OK. What the stream does not have at all is UNREAD: only what a device
    should have, and does not give, is UNSUPPORTED, DENIED or FAILED, and told as an event.
    """

    device: NDArray[np.intp]  # (rows,): position among `devices()`
    ts: NDArray[np.int64]  # (rows,): UTC ns; of one device growing
    values: NDArray[np.int64]  # (metrics, rows)
    status: NDArray[np.uint8]  # (metrics, rows): `Status`


class Stream(Protocol):
    """A source with a clock of its own. One thread at a time calls it; every call may hang, and is then given up.

    An object in which a call hangs is not used again: a fresh one is made, with the same arguments, and opened.
    One whose `poll` has failed is closed and opened again until that works.
    """

    name: str
    period_ms: int | None  # how often the power sensor has a new value; None where unknown
    poll_s: float  # how often `poll` is to be called
    keeps: bool  # whether a late `poll` still gets all that was measured meanwhile

    def open(self) -> None:
        """Reach the source. Raises InputError with the reason and what to do, also where it shows no GPU."""
        ...

    def devices(self) -> Sequence[Device]:
        """The devices. They may change at `open` and at `poll`: the positions of readings are those after the call."""
        ...

    def poll(self) -> tuple[Readings, list[Event]]:
        """What is new since the last poll; it may block. Raises InputError where the source as a whole is gone.

        A row of the same device and time as one that was given before is stored once, so polls may overlap.
        """
        ...

    def end(self) -> list[Event]:
        """What is to be told at the end, after the last poll; it may block."""
        ...

    def close(self) -> None:
        """Leave the source. It may be gone already, and may be opened again."""
        ...


@dataclass(frozen=True)
class Source:
    """Where the class of a source stands, and what it is made with."""

    module: str
    attribute: str
    streams: bool = False  # a Stream, else a Backend
    options: tuple[str, ...] = ()  # its own options of `whorl collect` ...
    needs: tuple[str, ...] = ()  # ... and those that must be given
    plan: tuple[str, ...] = ()  # what it takes over from the collector's plan


# fmt: off
BACKENDS: dict[str, Source] = {
    "nvml": Source(".nvml", "Nvml"),
    "simulated": Source(".simulated", "Simulated", options=("gpus", "model", "seed"), plan=("node",)),
    "dcgm": Source(".dcgm.dcgm", "Dcgm", streams=True, options=("host", "socket", "job"),
                   plan=("interval_s", "slow_s")),
    "prometheus": Source(".prometheus.prometheus", "Prometheus", streams=True, options=("url",), needs=("url",),
                         plan=("interval_s",)),
}
# fmt: on


def find_source(name: str) -> Source:
    """The row of the source called `name`. Raises InputError where there is none."""
    if name not in BACKENDS:
        raise InputError(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def find_backend(name: str) -> Callable[..., Backend]:
    """The class of the backend called `name`. Raises InputError where there is none or it cannot be imported."""
    if find_source(name).streams:
        raise InputError(f"backend {name} has a clock of its own: only `whorl collect` reads it")
    return _imported(name)  # type: ignore[no-any-return]


def find_stream(name: str) -> Callable[..., Stream]:
    """The class of the stream called `name`. Raises InputError where there is none or it cannot be imported."""
    if not find_source(name).streams:
        raise InputError(f"backend {name} is no stream")
    return _imported(name)  # type: ignore[no-any-return]


def _imported(name: str) -> Any:
    source = BACKENDS[name]
    try:
        return getattr(import_module(source.module, __package__), source.attribute)
    except ImportError as error:
        raise InputError(f"backend {name} cannot be used: {error}") from error
