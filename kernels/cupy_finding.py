"""Finds CuPy: whether it is installed, can store compiled code, and fits the driver; errors say what is missing.

CuPy is not among whorl's dependencies: it is imported when GPUs are asked for.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

from ..errors import InputError
from .cuda_errors import INSUFFICIENT_DRIVER, NO_DEVICE, sentence, status_of

INSTALL = "pip install 'whorl[cuda13]', or 'whorl[cuda12]' for a driver of CUDA 12"
_OLDEST, _NEWEST = 12, 13
"""Major versions of CUDA for which whorl has an extra."""


def find_cupy() -> Any:
    """The module `cupy`. InputError where it is missing or cannot be loaded, in a sentence."""
    try:
        with warnings.catch_warnings():  # it warns of a CUDA toolkit that is not where it looks; we say what is missing
            warnings.simplefilter("ignore")
            return importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            raise InputError(f"CuPy is not installed, but real GPUs need it: {INSTALL}") from error
        raise InputError(f"CuPy cannot be loaded: {sentence(error)}") from error
    except ImportError as error:
        raise InputError(
            f"CuPy cannot be loaded: {sentence(error)} (another build of it may fit: {INSTALL})"
        ) from error
    except OSError as error:
        raise InputError(no_cache(error) or f"CuPy cannot be loaded: {sentence(error)}") from error


def no_cache(error: BaseException) -> str | None:
    """That CuPy finds no place for what it compiles, where that is the error: CuPy 14 looks for one when it is
    imported, before it when it compiles. None for other errors."""
    if not isinstance(error, OSError) or error.errno is None:  # a library that is not found has no number
        return None
    place = "" if error.filename is None else f" in {error.filename}"
    return (
        f"CuPy cannot keep{place} what it compiles: {error.strerror} (set CUPY_CACHE_DIR, its folder for "
        "compiled kernels, or TMPDIR, the folder where it compiles)"
    )


def gpu_count(cupy: Any) -> int:
    """How many GPUs CUDA shows, 1 or more. InputError where it shows none, which says why."""
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except RuntimeError as error:
        raise InputError(_no_gpu(runtime, error)) from error
    if count == 0:
        raise InputError(_no_gpu(runtime, None))
    return count


def _no_gpu(runtime: Any, error: RuntimeError | None) -> str:
    """Why CUDA shows no GPU."""
    driver, built = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    status = NO_DEVICE if error is None else status_of(error)
    if driver == 0:
        return "no NVIDIA driver is loaded on this machine"
    if status == INSUFFICIENT_DRIVER:
        return (
            f"CuPy is built for CUDA {cuda_version(built)}, but the driver supports CUDA {cuda_version(driver)} at "
            f"most: {fitting(driver)}"
        )
    if status == NO_DEVICE:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "CUDA shows no GPU" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES is '{hidden}')")
    return f"CUDA cannot start: {sentence(error) if error else ''}"


def fitting(driver: int) -> str:
    """What to do where CuPy is for a newer CUDA than the driver supports; `driver` as CUDA numbers versions."""
    major = driver // 1000
    if major < _OLDEST:
        return f"install a newer driver that supports at least CUDA {_OLDEST}"
    return f"pip install 'whorl[cuda{min(major, _NEWEST)}]', or install a newer driver"


def cuda_version(number: int) -> str:
    """A version of CUDA as it is written: 12090 is 12.9."""
    return f"{number // 1000}.{number // 10 % 100}"
