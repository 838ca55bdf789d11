"""Matrix products of 8-bit floating point, which only cuBLASLt has: E4M3 times E4M3, summed in fp32, scale 1.

Without `CUBLASLT_MATMUL_DESC_FAST_ACCUM`, so that partial sums are carried to fp32 as often as the library can. The
numbers are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from ..errors import DeviceError
from .cublas import DATA_TYPES, WORKSPACE_BYTES, check_status

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
        """A column-major matrix."""
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
