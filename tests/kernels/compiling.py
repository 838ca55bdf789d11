"""NVRTC through ctypes: CUDA C to PTX, or to machine code with the assembler's report, on any machine."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

CUPYS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")
"""Options with which CuPy compiles."""


@cache
def library() -> ctypes.CDLL | None:
    """The wheel's library, or one that the loader finds; None where there is none."""
    places: list[str] = []
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        found = None
    if found is not None and found.submodule_search_locations:
        for folder in found.submodule_search_locations:
            places += sorted(str(file) for file in Path(folder, "lib").glob("libnvrtc.so.*"))
    for place in [*places, "libnvrtc.so.12", "libnvrtc.so.13"]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


class CompileError(Exception):
    """The compiler's words."""


def compiled(text: str, arch: str, defines: Sequence[str] = ()) -> tuple[str, str]:
    """PTX (arch 'compute_80') or nothing (arch 'sm_80', machine code), and the compiler's log."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    try:
        options = [*CUPYS, f"--gpu-architecture={arch}", *(f"-D{define}" for define in defines)]
        if arch.startswith("sm_"):
            options.append("--ptxas-options=-v")
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        log = _text(nvrtc, "ProgramLog", program)
        if status != 0:
            raise CompileError(log or f"status {status}")
        return (_text(nvrtc, "PTX", program) if arch.startswith("compute_") else ""), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    held = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, held) == 0
    return held.value.decode()
