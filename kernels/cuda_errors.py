"""What CUDA's error codes mean: a sentence for people, and whether the GPU can still be used.

Codes are those of `cudaError_t` in CUDA's driver_types.h; the driver's `CUresult` has the same numbers for these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DeviceError, WhorlError
from ..store.vocabulary import Outcome

OUT_OF_MEMORY = 2
INSUFFICIENT_DRIVER = 35
NO_DEVICE = 100
NOT_READY = 600
PEER_ALREADY_ENABLED = 704

_LOST = "this process cannot use this GPU any more"
_SAYS = {
    OUT_OF_MEMORY: "out of memory",
    3: "CUDA could not start on it; nvidia-smi may say why",
    46: "it is in use or in a bad state: another process may hold it in exclusive mode, or it fell off the bus",
    98: "the compiled kernel does not fit it",
    101: "CUDA no longer knows this GPU",
    209: "no code was compiled for its architecture; try a newer CuPy or CUDA toolkit",
    214: "an uncorrectable ECC error happened in its memory",
    217: "it cannot reach the memory of the other GPU",
    220: "an uncorrectable NVLink error happened",
    222: "its driver is older than the compiler of the kernels: install a newer driver or an older CUDA toolkit",
    226: "an error on the GPU was contained to this process",
    304: "the operating system refused a call of the driver",
    700: "a kernel used memory that it does not own (illegal address)",
    701: "a kernel needs more registers or threads than there are",
    702: "the display's watchdog ended a kernel that ran too long",
    709: "its context was destroyed",
    710: "a kernel stopped at an assertion",
    714: "the hardware stack of a kernel failed",
    715: "a kernel ran an illegal instruction",
    716: "a kernel used a misaligned address",
    717: "a kernel used an address of the wrong space",
    718: "the program counter of a kernel was invalid",
    719: "a kernel failed while it ran: the GPU may have fallen off the bus, see the XIDs in the system's log",
    721: "a kernel left the memory of the tensor cores behind",
    800: "the operation is not permitted to this user",
    802: "the system is not ready: check that the fabric manager runs",
    803: "the parts of the driver have different versions: restart the machine",
    804: "CUDA's compatibility package does not support this GPU",
    805: "the MPS server cannot be reached",
    806: "the MPS server does not answer",
    807: "the MPS server is not ready",
    808: "the MPS server has no room for another process",
    809: "the MPS server has no room for another connection",
    810: "the MPS server ended this process's work",
    911: "a device outside of CUDA failed",
    999: "the driver reports an unknown error: the GPU may have fallen off the bus, see the system's log",
}
"""The meaning of each code. Codes that are not here keep CUDA's own text."""

_GONE = frozenset({3, 46, 101, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, *range(802, 811), 911, 999})
"""Codes after which the context, and with it every further call of this process, fails."""
_OFF_THE_BUS = frozenset({46, 719, 999})
"""Codes of a GPU that has fallen off the bus, or may have."""


def sentence(error: BaseException) -> str:
    """An error in one line: the first that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def status_of(error: BaseException) -> int | None:
    """CUDA's code for an error of the runtime or driver; None for others, whose codes (NVRTC's) are of another kind."""
    if type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError"):
        return None
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def explain(error: Exception, gpu: str, doing: str) -> DeviceError | None:
    """The DeviceError for an error of CUDA or its compiler; None for any other."""
    if type(error).__name__ == "CompileException":  # CuPy's; its text is the compiler's log
        log = [line.strip() for line in str(error).splitlines() if ": error" in line or ": catastrophic" in line]
        first = log[0] if log else sentence(error)
        if "--gpu-architecture" in first:
            first += " (the compiler is too old for this GPU, or no longer supports it)"
        return DeviceError(f"{gpu}: {doing}: the CUDA C does not compile: {first}")
    status = status_of(error)
    if status is None:
        return None
    says = _SAYS.get(status)
    text = f"{says} (CUDA error {status})" if says else sentence(error)
    gone, outcome = status in _GONE, Outcome.LOST if status in _OFF_THE_BUS else Outcome.FAILED
    return DeviceError(f"{gpu}: {doing}: {text}" + (f"; {_LOST}" if gone else ""), gone=gone, outcome=outcome)


@contextmanager
def on_another(gpu: str, other_gpu: str) -> Iterator[None]:
    """Turn what another GPU has failed with into a DeviceError of this one, which can be used on; `other` as 'the GPU
    that it copies to'. Around calls that only the other GPU can fail in this way. Other errors pass."""
    try:
        yield
    except RuntimeError as error:
        status = status_of(error)
        if status is None or status not in _GONE:
            raise
        says = _SAYS.get(status, sentence(error))
        raise DeviceError(f"{gpu}: {other_gpu} cannot be used: {says} (CUDA error {status})") from error


@contextmanager
def explained(gpu: str, doing: str) -> Iterator[None]:
    """Turn errors of CUDA and its compiler into DeviceError, each with what was being done to which GPU."""
    try:
        yield
    except WhorlError:
        raise
    except Exception as error:
        explained_as = explain(error, gpu, doing)
        if explained_as is None:
            raise
        raise explained_as from error
