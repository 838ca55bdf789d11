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
from collections.abc import Callable
from typing import Any

from ..store.metrics import METRICS, Gpm

ROWS = tuple(row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm))
NOT_YET = -1  # in place of a return code: there is no look before this one, or it was just now
_IDS = tuple(metric.nvml.id for metric in METRICS if isinstance(metric.nvml, Gpm))
_SCALES = tuple(METRICS[row].scale for row in ROWS)
_APART_NS = 100_000_000
_NOT_SUPPORTED, _UNKNOWN = 3, 999  # return codes of NVML
# Of nvmlGpmMetricsGet_t: 24 bytes, then of each metric number, return code, value, and three names.
_given = struct.Struct("<24x" + "4xId24x" * len(ROWS)).unpack_from
_FUNCTIONS = ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet")


class Profiling:
    """Looks at a GPU, or at its MIG instance with the number `instance`; `function(name)` is as for `Reader`.

    `refused` is the return code with which the driver refuses this GPU for good, 0 if it does not. Then there are no
    looks. `values` and `codes` are those of the last look, in the order of `ROWS`.
    """

    def __init__(self, gpu: Any, function: Callable[[str], Any], *, instance: int | None = None) -> None:
        self.values: tuple[int, ...] = (0,) * len(ROWS)
        self.codes: tuple[int, ...] = (NOT_YET,) * len(ROWS)
        self._arguments = (gpu,) if instance is None else (gpu, ctypes.c_uint(instance))
        self._looked_ns: int | None = None
        self.refused = self._begin(gpu, function, mig=instance is not None)

    def _begin(self, gpu: Any, function: Callable[[str], Any], *, mig: bool) -> int:
        import pynvml as nv

        query = function("nvmlGpmQueryDeviceSupport")
        allocate, free, get, get_mig, self._metrics = (function(f"nvmlGpm{name}") for name in _FUNCTIONS)
        self._get = get_mig if mig else get
        if not (query and allocate and free and self._get and self._metrics):
            return _NOT_SUPPORTED
        support = nv.c_nvmlGpmSupport_t(version=nv.NVML_GPM_SUPPORT_VERSION)
        if code := int(query(gpu, ctypes.byref(support))):
            return code
        if not support.isSupportedDevice:
            return _NOT_SUPPORTED
        self._before, self._now = nv.c_nvmlGpmSample_t(), nv.c_nvmlGpmSample_t()
        for sample in (self._before, self._now):
            if code := int(allocate(ctypes.byref(sample))):
                return code
            # Not sooner: a thread that hangs in a look still holds this object. At exit the process gives all back.
            weakref.finalize(self, free, sample).atexit = False
        self._request = nv.c_nvmlGpmMetricsGet_t(version=nv.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(ROWS))
        for at, number in enumerate(_IDS):
            self._request.metrics[at].metricId = number
        self.look()
        return max(self.codes[0], 0)

    def look(self) -> None:
        """Look at the device: `values` and `codes` are the means since the look before."""
        now = time.monotonic_ns()
        if self._looked_ns is not None and now - self._looked_ns < _APART_NS:
            self.codes = (NOT_YET,) * len(ROWS)
            return
        code = int(self._get(*self._arguments, self._now))
        if code:
            self._looked_ns, self.codes = None, (code,) * len(ROWS)
            return
        first = self._looked_ns is None
        self._looked_ns, self._before, self._now = now, self._now, self._before
        if first:
            self.codes = (NOT_YET,) * len(ROWS)
            return
        self._request.sample1, self._request.sample2 = self._now, self._before
        code = int(self._metrics(ctypes.byref(self._request)))
        given = _given(self._request)
        floats = [value * scale for value, scale in zip(given[1::2], _SCALES, strict=True)]
        fit = [math.isfinite(value) and abs(value) < 2.0**62 for value in floats]
        self.values = tuple(round(value) if good else 0 for value, good in zip(floats, fit, strict=True))
        self.codes = tuple(
            code or status or (0 if good else _UNKNOWN) for status, good in zip(given[::2], fit, strict=True)
        )
