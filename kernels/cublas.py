"""Matrix products through the vendor's library, by its C interface.

By C and not through a binding, so that a product can be part of a CUDA graph and the workspace is ours: a library that
allocates its own in the middle of a measurement shows in the times. Row-major matrices are given as the transposed
column-major ones that they are in memory. The numbers are those of cublas_api.h and library_types.h.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from pathlib import Path

import numpy as np

from ..errors import DeviceError
from .work import Gemm

WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper, more than enough before it; also for products of 8 bits."""

DATA_TYPES = {"float64": 1, "float32": 0, "float16": 2, "uint16": 14, "uint8": 28}
"""cudaDataType by a buffer's dtype: bf16 lies in uint16, fp8 (E4M3) in uint8."""

_COMPUTE = {"fp64": 70, "fp32": 68, "tf32": 77, "fp16": 68, "bf16": 68}
_N, _T = 0, 1
_NO_REDUCED_PRECISION_REDUCTION = 16
_DEFAULT_ALGORITHM = -1
_STATUS = {
    1: "it could not start",
    3: "it could not get memory",
    7: "a size or type is not possible",
    8: "this GPU is too old for the precision",
    11: "memory could not be mapped",
    13: "it failed on the GPU",
    14: "an internal error",
    15: "this product is not supported on this GPU",
    16: "a licence error",
}


def library(name: str, major: int) -> ctypes.CDLL:
    """A library of the CUDA toolkit: from where the loader looks, from NVIDIA's wheels, or below CUDA_PATH.

    `name` as 'cublas', `major` of the CUDA version that CuPy is built for. DeviceError where it is nowhere.
    """
    file = f"lib{name}.so.{major}"
    tried = [file]
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        place = str(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
        tried += [place] if Path(place).name.startswith(file) else []  # it takes those of any CUDA
    except Exception:  # noqa: S110 - absent, or it finds none: the next place, then our own sentence
        pass
    tried += [str(place) for folder in _wheels() for place in sorted(folder.glob(f"*/lib/{file}"))]
    roots = [*filter(None, map(os.environ.get, ("CUDA_PATH", "CUDA_HOME"))), "/usr/local/cuda"]
    tried += [str(Path(root) / "lib64" / file) for root in roots]
    for place in tried:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise DeviceError(f"{file} is not found: load the CUDA toolkit {major} or {install(major)}")


def install(major: int) -> str:
    """How the libraries of the CUDA toolkit come as wheels. An older CuPy has no such extra."""
    return f"install it with pip install 'cupy-cuda{major}x[ctk]>=14'"


def _wheels() -> list[Path]:
    """The folders that NVIDIA's wheels install into, which a CuPy without cuda.pathfinder does not look at."""
    spec = importlib.util.find_spec("nvidia")
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def check_status(status: int, doing: str) -> None:
    """DeviceError for a status of cuBLAS or cuBLASLt that is not success."""
    if status:
        raise DeviceError(f"cuBLAS, {doing}: {_STATUS.get(status, 'an unknown error')} (status {status})")


class Cublas:
    """A handle of cuBLAS for one GPU and stream. To be made, used and closed with that GPU as the current one."""

    def __init__(self, cublas: ctypes.CDLL, stream: int, workspace: int) -> None:
        """`workspace` is the address of WORKSPACE_BYTES on the GPU that live as long as this. DeviceError."""
        self._library = cublas
        self._handle = c_void_p()
        check_status(cublas.cublasCreate_v2(byref(self._handle)), "opening")
        try:
            check_status(cublas.cublasSetStream_v2(self._handle, c_void_p(stream)), "setting its stream")
            check_status(
                cublas.cublasSetWorkspace_v2(self._handle, c_void_p(workspace), c_size_t(WORKSPACE_BYTES)),
                "setting its workspace",
            )
            check_status(
                cublas.cublasSetMathMode(self._handle, c_int(_NO_REDUCED_PRECISION_REDUCTION)), "setting its mode"
            )
        except DeviceError:
            self.close()
            raise

    @property
    def version(self) -> str:
        number = c_int()
        check_status(self._library.cublasGetVersion_v2(self._handle, byref(number)), "asking its version")
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def gemm(self, step: Gemm, addresses: tuple[int, int, int], types: list[str]) -> None:
        """Enqueue a product; `addresses` are those of A, B and C, `types` their dtypes. DeviceError where refused."""
        m, n, k = step.m, step.n, step.k
        a, b, c = (c_void_p(address) for address in addresses)
        of_a, of_b, of_c = (c_int(DATA_TYPES[np.dtype(dtype).name]) for dtype in types)
        factor = (ctypes.c_double if step.precision == "fp64" else ctypes.c_float)(step.alpha)
        zero = ctypes.c_double(0)
        (turned_b, row_b), (turned_a, row_a) = (_N, n) if step.plain else (_T, k), (_T, m) if step.across else (_N, k)
        head = (self._handle, c_int(turned_b), c_int(turned_a), c_int(n), c_int(m), c_int(k), byref(factor))
        tail = (c_int(_COMPUTE[step.precision]), c_int(_DEFAULT_ALGORITHM))
        if step.batch == 1:
            status = self._library.cublasGemmEx(
                *head, b, of_b, c_int(row_b), a, of_a, c_int(row_a), byref(zero), c, of_c, c_int(n), *tail
            )
        else:
            step_a, step_b, step_c = c_longlong(m * k), c_longlong(n * k), c_longlong(m * n)
            status = self._library.cublasGemmStridedBatchedEx(
                *head,
                *(b, of_b, c_int(row_b), step_b, a, of_a, c_int(row_a), step_a),
                *(byref(zero), c, of_c, c_int(n), step_c, c_int(step.batch)),
                *tail,
            )
        check_status(status, f"{step.precision} product of {m} x {n} x {k}")

    def close(self) -> None:
        """Give the handle back. Safe to call twice."""
        if self._handle:
            self._library.cublasDestroy_v2(self._handle)
            self._handle = c_void_p()
