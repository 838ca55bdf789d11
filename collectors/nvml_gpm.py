"""Profiling metrics of one device through NVML (GPM): what it did between two looks. Hopper and newer, without root.

Every look gives the means since the look before, so that no time is left out: in the slow tier, means over the time
between slow ticks. Two looks are at least 100 ms apart, as what the driver gives for less is not valid.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
import weakref
from typing import Any

from ..store.metrics import METRICS, Gpm
from .nvml_driver import NOT_SUPPORTED, NOT_YET, SUCCESS, library_function

PROFILED = tuple(row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm))
_IDS = tuple(metric.nvml.id for metric in METRICS if isinstance(metric.nvml, Gpm))
_SCALES = tuple(METRICS[row].scale for row in PROFILED)
_APART_NS = 100_000_000
_UNKNOWN = 999  # a return code
# Of nvmlGpmMetricsGet_t: 24 bytes, then of each metric number, return code, value, and three names.
_means = struct.Struct("<24x" + "4xId24x" * len(PROFILED)).unpack_from
_FUNCTIONS = ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet")


class Profiling:
    """Looks at a GPU, or at its MIG instance with the number `instance`.

    `refused` is the return code with which the driver refuses this GPU for good, 0 if it does not. Then there are no
    looks.
    """

    def __init__(self, gpu: Any, *, instance: int | None = None) -> None:
        self._arguments = (gpu,) if instance is None else (gpu, ctypes.c_uint(instance))
        self._looked_ns: int | None = None
        self.refused = self._begin(gpu, mig=instance is not None)

    def _begin(self, gpu: Any, *, mig: bool) -> int:
        import pynvml as nv

        query = library_function("nvmlGpmQueryDeviceSupport")
        allocate, free, get, get_mig, self._metrics = (library_function(f"nvmlGpm{name}") for name in _FUNCTIONS)
        self._get = get_mig if mig else get
        if not (query and allocate and free and self._get and self._metrics):
            return NOT_SUPPORTED
        support = nv.c_nvmlGpmSupport_t(version=nv.NVML_GPM_SUPPORT_VERSION)
        if code := int(query(gpu, ctypes.byref(support))):
            return code
        if not support.isSupportedDevice:
            return NOT_SUPPORTED
        self._before, self._now = nv.c_nvmlGpmSample_t(), nv.c_nvmlGpmSample_t()
        for sample in (self._before, self._now):
            if code := int(allocate(ctypes.byref(sample))):
                return code
            # Not sooner: a thread that hangs in a look still holds this object. At exit the process gives all back.
            weakref.finalize(self, free, sample).atexit = False
        self._request = nv.c_nvmlGpmMetricsGet_t(version=nv.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(PROFILED))
        for at, number in enumerate(_IDS):
            self._request.metrics[at].metricId = number
        _, codes = self.look()
        return max(codes[0], SUCCESS)

    def look(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The means since the look before, and their return codes, in the order of `PROFILED`."""
        now = time.monotonic_ns()
        if self._looked_ns is not None and now - self._looked_ns < _APART_NS:
            return _no_means(NOT_YET)
        code = int(self._get(*self._arguments, self._now))
        if code:
            self._looked_ns = None
            return _no_means(code)
        first = self._looked_ns is None
        self._looked_ns, self._before, self._now = now, self._now, self._before
        if first:
            return _no_means(NOT_YET)
        self._request.sample1, self._request.sample2 = self._now, self._before
        code = int(self._metrics(ctypes.byref(self._request)))
        codes_and_values = _means(self._request)
        scaled = [value * scale for value, scale in zip(codes_and_values[1::2], _SCALES, strict=True)]
        fit = [math.isfinite(value) and abs(value) < 2.0**62 for value in scaled]
        return (
            tuple([round(value) if good else 0 for value, good in zip(scaled, fit, strict=True)]),
            tuple([code or c or (0 if good else _UNKNOWN) for c, good in zip(codes_and_values[::2], fit, strict=True)]),
        )


def _no_means(code: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (0,) * len(PROFILED), (code,) * len(PROFILED)
