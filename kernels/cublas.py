"""Matrix products through the vendor's library, by its C interface.

By C and not through a binding, so that a product can be part of a CUDA graph and the workspace is ours: a library that
allocates its own in the middle of a measurement shows in the times. Row-major matrices are given as the transposed
column-major ones that they are in memory. The numbers are those of cublas_api.h and library_types.h.

Matrix products of 8-bit floating point, which only cuBLASLt has: E4M3 times E4M3, summed in fp32, scale 1.

Without `CUBLASLT_MATMUL_DESC_FAST_ACCUM`, so that partial sums are carried to fp32 as often as the library can. The
numbers are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_longlong, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

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


_COMPUTE_32F = 68
_R_32F = 0
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_MAX_WORKSPACE = 1
_T, _N = 1, 0


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class LtProduct:
    """C (m x n) = alpha A (m x k) times B (n x k) transposed, all row-major, planned once and enqueued often."""

    def __init__(self, cublas_lt: ctypes.CDLL, shape: tuple[int, int, int], types: list[str]) -> None:
        """Plan it for the current GPU. `types` are the dtypes of A, B, C. DeviceError where it is not supported."""
        self._library = cublas_lt
        self._says = f"product of {types[0]} {' x '.join(map(str, shape))}"
        self._destroy: list[tuple[str, c_void_p]] = []
        try:
            self._plan(shape, types)
        except DeviceError:
            self.close()
            raise

    def _make(self, kind: str, *arguments: Any) -> c_void_p:
        address = c_void_p()
        check_status(
            getattr(self._library, f"cublasLt{kind}Create")(byref(address), *arguments), f"planning a {self._says}"
        )
        self._destroy.append((f"cublasLt{kind}Destroy", address))
        return address

    def _set(self, kind: str, target: c_void_p, attribute: int, value: Any) -> None:
        function = getattr(self._library, f"cublasLt{kind}SetAttribute")
        status = function(target, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))
        check_status(status, f"planning a {self._says}")

    def _layout(self, dtype: str, rows: int, columns: int) -> c_void_p:
        kind = c_int(DATA_TYPES[np.dtype(dtype).name])
        return self._make("MatrixLayout", kind, c_uint64(rows), c_uint64(columns), c_int64(rows))

    def _plan(self, shape: tuple[int, int, int], types: list[str]) -> None:
        m, n, k = shape
        self._handle = self._make("")
        self._operation = self._make("MatmulDesc", c_int(_COMPUTE_32F), c_int(_R_32F))
        self._set("MatmulDesc", self._operation, _TRANSPOSE_A, c_int32(_T))
        self._set("MatmulDesc", self._operation, _TRANSPOSE_B, c_int32(_N))
        self._b = self._layout(types[1], k, n)
        self._a = self._layout(types[0], k, m)
        self._c = self._layout(types[2], n, m)
        preference = self._make("MatmulPreference")
        self._set("MatmulPreference", preference, _MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        self._result, count = _Result(), c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            *(self._handle, self._operation, self._b, self._a, self._c, self._c, preference),
            *(c_int(1), byref(self._result), byref(count)),
        )
        check_status(status, f"choosing how to do a {self._says}")
        if count.value == 0:
            raise DeviceError(f"cuBLAS has no {self._says} for this GPU")

    def enqueue(self, addresses: tuple[int, int, int], workspace: int, stream: int, *, alpha: float = 1.0) -> None:
        """Enqueue alpha times the product of A and B at these addresses into C. DeviceError where it is refused."""
        a, b, c = (c_void_p(address) for address in addresses)
        factor, zero = c_float(alpha), c_float(0)
        status = self._library.cublasLtMatmul(
            *(self._handle, self._operation, byref(factor), b, self._b, a, self._a, byref(zero)),
            *(c, self._c, c, self._c, byref(self._result)),  # the algorithm is what a result begins with
            *(c_void_p(workspace), c_size_t(WORKSPACE_BYTES), c_void_p(stream)),
        )
        check_status(status, self._says)

    def close(self) -> None:
        """Give the plan back. Safe to call twice."""
        while self._destroy:
            function, address = self._destroy.pop()
            getattr(self._library, function)(address)
