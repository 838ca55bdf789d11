"""CuPy itself: whether it is installed, stores what it compiles, fits the driver, and compiles.

Errors say what is missing. CuPy is not among whorl's dependencies: it is imported when GPUs are asked for.

The CUDA C sources of this folder, as one text each: local includes stand in place.

A compiler that gets one whole text needs no search path, and a cache keyed by that text sees a change in a header
(CuPy's does not look into included files).
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DeviceError, InputError
from .cublas import install, library
from .cuda import INSUFFICIENT_DRIVER, NO_DEVICE, sentence, status_of

FOLDER = Path(__file__).parent
_LOCAL = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([\w.]+)"[^\n]*$', re.MULTILINE)


def source(name: str, folder: Path = FOLDER) -> str:
    """The text of a source, as 'fma.cu', with each header of the folder put in where it is first included.

    `folder` is searched first, then this one. FileNotFoundError where a file is in neither.
    """
    included: set[str] = set()

    def text(file: str) -> str:
        place = folder / file
        return _LOCAL.sub(put, (place if place.exists() else FOLDER / file).read_text())

    def put(match: re.Match[str]) -> str:
        header = match[1]
        if header in included:
            return ""
        included.add(header)
        return text(header)

    return text(name)


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


_OPTIONS = ("-std=c++17",)


def compiled(cupy: Any, name: str, function: str, defines: tuple[str, ...]) -> Any:
    """A function of a source, as 'fma.cu', compiled for the current GPU; CuPy keeps what it compiled on disk.

    DeviceError where there is no compiler, or no place to keep what it makes. Errors of CUDA and of the source are
    raised as CuPy raises them.
    """
    major = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    _offer_compiler(cupy, major)
    options = (*_OPTIONS, *(f"-D{define}" for define in defines))
    try:
        return _function(cupy, source(name), function, options)
    except (ImportError, OSError, RuntimeError) as error:
        if status_of(error) is not None:
            raise
        why = no_cache(error) or f"{sentence(error)} (the CUDA toolkit is needed: load it, or {install(major)})"
        raise DeviceError(f"{name} cannot be compiled: {why}") from error


def _function(cupy: Any, text: str, function: str, options: tuple[str, ...]) -> Any:
    try:
        return cupy.RawModule(code=text, options=options, backend="nvrtc").get_function(function)
    except RuntimeError as error:
        if status_of(error) is not None:
            raise
        # RawModule asks for the headers of the CUDA toolkit, whether a source includes any or not. Ours do not, and
        # what RawModule calls next does not ask. It is no public name of CuPy, so it is the second choice.
        try:
            module = cupy.cuda.compiler._compile_module_with_cache(text, options, backend="nvrtc")
        except (AttributeError, TypeError):  # in a CuPy to come
            raise error from None
        return module.get_function(function)


def _offer_compiler(cupy: Any, major: int) -> None:
    """Load NVRTC where CuPy does not find it. CuPy 13 asks the loader alone, and not for NVIDIA's wheels or below
    CUDA_PATH; what is loaded, the loader finds."""
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception:  # whatever it is, compiling meets it again and tells it, if this does not help
        with suppress(DeviceError):  # CuPy's own words say what it looked for
            library("nvrtc", major)
