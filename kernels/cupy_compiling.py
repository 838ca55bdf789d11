"""Compiles CUDA C to functions on a GPU, with CuPy and NVRTC, and says in a sentence what is missing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import DeviceError
from .cublas import install, library
from .cuda_errors import sentence, status_of
from .cupy_finding import no_cache
from .sources import source

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
