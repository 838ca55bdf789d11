"""Asking the NVIDIA driver through nvidia-ml-py, and what its return codes mean."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ..errors import DeviceError, InputError
from .backend import Status

SUCCESS, NOT_SUPPORTED = 0, 3  # return codes of NVML
NOT_YET = -1  # in place of a return code: nothing was asked

_MEANINGS = {
    SUCCESS: Status.OK,
    NOT_YET: Status.UNREAD,
    **dict.fromkeys(
        (2, NOT_SUPPORTED, 13, 25, 26), Status.UNSUPPORTED
    ),  # invalid argument, no such function or version
    4: Status.DENIED,
    **dict.fromkeys((15, 28), Status.LOST),  # lost, not found
    16: Status.NEEDS_RESET,
    **dict.fromkeys((1, 9, 18), Status.DRIVER),  # uninitialised, not loaded, library and driver of two versions
}


def open_library() -> Any:
    """The module `pynvml`, with the driver reached. InputError where either is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError as error:
        raise InputError("the NVML bindings are not installed: pip install nvidia-ml-py") from error
    except pynvml.NVMLError as error:
        raise InputError(f"NVML: {error} (is an NVIDIA driver installed and loaded?)") from error
    return pynvml


def meaning(code: int) -> Status:
    """What a return code of NVML means."""
    return _MEANINGS.get(code, Status.FAILED)


def library_function(name: str) -> Any:
    """The C function of NVML called `name`, or None where this driver has none. The driver must have been reached."""
    return getattr(ctypes.cdll["libnvidia-ml.so.1"], name, None)


def text(value: Any) -> str | None:
    """A string of the driver, None for an empty one."""
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip() or None


def decoded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers. The binding decodes texts, and some boards have names that are no UTF-8."""
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers, or None where this GPU or driver does not."""
    import pynvml

    try:
        return decoded(function, *arguments)
    except pynvml.NVMLError:
        return None


def status_of(function: Callable[..., Any], *arguments: Any) -> Status:
    """What became of a call of the binding."""
    import pynvml

    try:
        decoded(function, *arguments)
    except pynvml.NVMLError as error:
        return meaning(error.value)
    return Status.OK


def whole_gpu(gpu: str) -> Any:
    """The driver's handle of the GPU with a UUID; of a MIG instance, that of the whole GPU.

    The driver must have been reached. DeviceError where it does not show the GPU.
    """
    import pynvml as nv

    try:
        handle = nv.nvmlDeviceGetHandleByUUID(gpu)
    except nv.NVMLError as error:
        raise DeviceError(f"{gpu}: the driver does not show it: {error}") from error
    if answer_of(nv.nvmlDeviceIsMigDeviceHandle, handle):
        handle = answer_of(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    return handle


def driver_version() -> str | None:
    """The version of the loaded driver, None where it does not tell."""
    import pynvml

    version = answer_of(pynvml.nvmlSystemGetDriverVersion)
    return text(version) if version else None
