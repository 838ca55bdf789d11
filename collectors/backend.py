"""Sources of readings (backends): what one is, and the table of them.

A backend is one class of two methods, `devices` and `read`, and one row of `BACKENDS`; it is imported when it is asked
for. The one loop that reads all of them is in `sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import InputError

if TYPE_CHECKING:
    from ..store.events import Event


class Status(IntEnum):
    """What became of one reading."""

    OK = 0
    UNREAD = 1  # not asked for at this tick: the slow tier, or what the source does not have at all
    UNSUPPORTED = 2  # this GPU or driver should have it, and does not
    DENIED = 3  # this user may not read it
    LOST = 4  # the GPU does not answer any more
    DRIVER = 5  # the driver was unloaded or replaced under us
    FAILED = 6  # anything else; the next reading may work
    NEEDS_RESET = 7  # the GPU is there, and gives nothing until it is reset


@dataclass(frozen=True)
class Device:
    """A GPU or MIG instance: its key (UUID), and its row of the table `gpus`, by column.

    `parent` is the key of the physical GPU for a MIG instance, None for a whole GPU.
    """

    gpu: str
    row: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None


@dataclass(slots=True)
class Reading:
    """What was read of one device at one time.

    `values` are in the order of `store.metrics.METRICS`, or of its rows `FAST` where only the fast metrics were read.
    `statuses` has one `Status` for each of METRICS as a byte; a value counts only where its status is OK.
    """

    gpu: str
    values: Sequence[int]
    statuses: bytes
    ts_ns: int | None = None
    """UTC, when a source with a clock of its own measured; None: the loop's time just before the device was read."""


class Backend:
    """A source of readings. One thread at a time calls `read`, and none calls `devices` while a `devices` hangs.

    Both methods may block for as long as the driver, the engine or the network does: the loop gives up a call that
    hangs. Neither changes a setting of a GPU.

    While the call of one device hangs in `read`, a fresh thread calls `read` for the others and `devices` as before, on
    the same object where `one_by_one`: such a device stays in the list, and the driver is not asked about it there. A
    hang after the last reading is one of the source's events: they are not asked for again until that call returned.
    """

    name: ClassVar[str]
    one_by_one: ClassVar[bool] = True
    """Whether a call reads one device, so that one that hangs costs only its GPU. Else it costs the connection: the
    loop makes another object with the same arguments."""
    period_ms: int | None = None
    """How often the power sensor has a new value; None where unknown."""

    def devices(self) -> list[Device]:
        """The devices that are there now, in a stable order; the first call reaches the driver or the engine.

        It is called again at the slow interval, and once a second while the source is gone. A whole GPU that is not
        in the list any more is lost. Raises InputError with the reason, and what to do, where the source as a whole
        cannot be reached, or shows no GPU at the first call.
        """
        raise NotImplementedError

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        """Read the devices with these keys, in this order: their fast metrics, and the slow ones too if `slow`.

        Gives at most one reading of each device, as soon as it is made, and at any place the events that the source
        announced. A device of which the source has nothing new, or an instance at a tick that reads nothing of it, has
        no reading; a GPU that does not answer has one, with the reason in its statuses, as long as it is listed. The
        loop tells `lost`, `returned`, `needs_reset`, `driver_gone` and `driver_reloaded` by the statuses and the list.
        Raises InputError where the source as a whole is gone.
        """
        raise NotImplementedError

    def close(self) -> list[Event]:
        """Leave the source, which may be gone already; gives what is to be told at the end."""
        return []


class Aside:
    """What is looked at besides the GPUs: at the start, every `interval_s` seconds, and at the end.

    Each has a thread of its own, so `look` may take long, or hang.
    """

    interval_s: float

    def look(self, devices: Sequence[Device]) -> list[Event]:
        """Look; `devices` are all that the driver ever showed in this run."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open."""


BACKENDS = {
    "nvml": ".nvml:Nvml",
    "simulated": ".simulated:Simulated",
    "dcgm": ".dcgm.dcgm:Dcgm",
    "prometheus": ".exporter.exporter:ExporterPages",
}
"""Module and class of each backend, by name. It is made with those options of `whorl collect`, and of `node`,
`interval_s` and `slow_s`, that its constructor has."""


def check_backend(name: str) -> None:
    """Raises InputError where there is no backend called `name`."""
    if name not in BACKENDS:
        raise InputError(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")


def find_backend(name: str) -> Callable[..., Backend]:
    """The class of the backend called `name`. Raises InputError where there is none or it cannot be imported."""
    check_backend(name)
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        return getattr(import_module(module, __package__), attribute)  # type: ignore[no-any-return]
    except ImportError as error:
        raise InputError(f"backend {name} cannot be used: {error}") from error


def options_of(name: str) -> dict[str, bool]:
    """What the constructor of the backend called `name` takes, and whether it must be given. InputError as above."""
    parameters = signature(find_backend(name)).parameters
    return {option: parameter.default is Parameter.empty for option, parameter in parameters.items()}
