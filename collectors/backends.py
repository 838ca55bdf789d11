"""Sources of readings (backends), and the table of them.

A backend is one file with one class that satisfies `Backend`, and one row of `BACKENDS`; it is imported when it is
asked for. One that cannot work says so when it is opened, with a sentence for `whorl doctor` and for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError

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


@dataclass
class Sweep:
    """The readings of one tick: arrays of shape (metrics, devices), metrics in the order of `METRICS`.

    A value counts only where its status is OK. Both arrays belong to the backend and change at its next sweep.
    """

    values: NDArray[np.int64]
    status: NDArray[np.uint8]


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


# name -> where its class stands
BACKENDS: dict[str, tuple[str, str]] = {
    "nvml": (".nvml", "Nvml"),
    "simulated": (".simulated", "Simulated"),
}


def find_backend(name: str) -> Callable[..., Backend]:
    """The class of the backend called `name`. Raises InputError where there is none or it cannot be imported."""
    if name not in BACKENDS:
        raise InputError(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
    module, attribute = BACKENDS[name]
    try:
        return getattr(import_module(module, __package__), attribute)  # type: ignore[no-any-return]
    except ImportError as error:
        raise InputError(f"backend {name} cannot be used: {error}") from error
