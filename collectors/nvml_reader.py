"""Reads the metrics of one device through NVML: one call for all of its field values, and one for each other number.

`store.metrics` says how NVML has each metric. The constructor finds out what this device and its driver support; what
they refuse is not asked again. Functions are called with outputs that are made once, of the types of nvidia-ml-py: its
wrappers allocate an output at every call, which costs more than all the rest of a sweep.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import pynvml as nv

from ..store.metrics import FAST, METRICS, Call, Field, Gpm, Part, Stamp
from .backend import Status
from .nvml_driver import NOT_SUPPORTED, NOT_YET, SUCCESS, library_function, meaning

_FAST_TICK, _SLOW_TICK, _RARE_TICK = range(3)  # each reads what the one before does, and more
_RARE_NS = 600_000_000_000  # between two readings of what is costly
_MAX_LINKS = 36  # NVLinks of a GPU
_OTHER_CLOCK_US = 60_000_000  # a time stamp that is off by more than this comes from another clock
_SIGNED_UNIT = "degC"  # the only unit in which a value may be below 0
_MOST = 2**63 - 1
_NO_VALUE = 2**63  # in place of what is none
_ALL_BITS = 2**32 - 1

_OUTPUTS = {"u4": ctypes.c_uint, "i4": ctypes.c_int, "u8": ctypes.c_ulonglong}
# nvmlFieldValue_t: id, scope, time stamp, latency, type, return code, and the value in 8 bytes, by its type.
_ENTRY = struct.Struct("<IIqqIIQ")
_UNSIGNED_INT = 1
_UNPACK = {
    number: struct.Struct(layout).unpack
    for number, layout in {0: "<d", _UNSIGNED_INT: "<I4x", 4: "<q", 5: "<i4x", 6: "<H6x"}.items()
}  # all other types are whole numbers of 64 bits without sign
_pack_unsigned = struct.Struct("<Q").pack

PROFILED = tuple(row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm))
_PROFILED_IDS = tuple(metric.nvml.id for metric in METRICS if isinstance(metric.nvml, Gpm))
_LOOKS_APART_NS = 100_000_000
_UNKNOWN = 999  # a return code
_PROFILING_FUNCTIONS = ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet")

_WIDE = tuple(metric.bits == 64 for metric in METRICS)
_SCALES = tuple(metric.scale for metric in METRICS)
_WINDOW = next(row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Part))
_STAMPED = {metric.nvml.id: row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Stamp)}
_fast_of = itemgetter(*FAST)


class _FieldEntry(NamedTuple):
    """A field value to read for the metric in this row of METRICS."""

    row: int
    field: int
    scope: int


@dataclass
class _BoundCall:
    """A call with its arguments and the output that it fills, of which several metrics may be parts."""

    function: Callable[..., int]
    arguments: tuple[Any, ...]
    output: Any
    tick: int = _RARE_TICK  # the most frequent one at which it is made
    parts: list[tuple[int, Any, str, bool]] = field(default_factory=list)
    """Of each metric its row, what has its number and under which name, and whether that has 32 bits for 64."""

    def take(self, row: int, spec: Call) -> None:
        """Take a part of the output for the metric in this row."""
        *steps, name = spec.part.split(".") if spec.output not in _OUTPUTS else ["value"]
        holder = self.output
        for step in steps:
            holder = holder[int(step)] if step.isdigit() else getattr(holder, step)
        kind = dict(holder._fields_)[name] if spec.output not in _OUTPUTS else type(holder)
        self.parts.append((row, holder, name, _WIDE[row] and kind is ctypes.c_uint))
        metric_tick = _FAST_TICK if METRICS[row].tier == "fast" else _SLOW_TICK
        self.tick = min(self.tick, _RARE_TICK if spec.rare else metric_tick)


class _Plan(NamedTuple):
    """What a device is asked at a tick of some sort: the first `fields` of its buffer, calls, and profiling.

    `statuses` are those where the driver answers all of it.
    """

    fields: int
    filled: memoryview
    calls: list[_BoundCall]
    profiling: Profiling | None
    statuses: bytes


class Reader:
    """Reads one device by its handle; of a MIG instance (`instance`) what instances have.

    `window_ms` is the averaging time of its power readings, None where unknown. `profiling` gives the profiling
    metrics. `of_module` is true if its instantaneous power is that of the whole module.
    """

    def __init__(
        self, handle: Any, *, instance: bool = False, window_ms: int | None = None, profiling: Profiling | None = None
    ) -> None:
        self.of_module = False
        self._handle, self._instance = handle, instance
        self._get_fields: Any = None if instance else library_function("nvmlDeviceGetFieldValues")
        self._fields = [] if self._get_fields is None else self._supported_fields()
        self._buffer = _buffer_for(self._fields)
        self._calls = self._supported_calls(answered={entry.row for entry in self._fields})
        fixed = [Status.UNREAD if instance else Status.UNSUPPORTED] * len(METRICS)
        self._window_ms = 0 if instance or window_ms is None else window_ms
        if self._window_ms:
            fixed[_WINDOW] = Status.OK
        if profiling is not None and profiling.refused:
            for row in PROFILED:
                fixed[row] = meaning(profiling.refused)
            profiling = None
        self._plans = [self._plan(tick, profiling, fixed) for tick in (_FAST_TICK, _SLOW_TICK, _RARE_TICK)]
        self._rare_due_ns = 0

    def _plan(self, tick: int, profiling: Profiling | None, fixed: Sequence[Status]) -> _Plan:
        """The plan of ticks of some sort; `fixed` are the statuses of metrics that come of no answer."""
        rows = FAST if tick == _FAST_TICK else range(len(METRICS))
        fields = [entry for entry in self._fields if entry.row in rows]
        calls = [call for call in self._calls if call.tick <= tick]
        profiling = None if tick == _FAST_TICK else profiling
        rows_asked = {entry.row for entry in fields} | {
            _STAMPED[entry.field] for entry in fields if entry.field in _STAMPED
        }
        rows_asked |= {row for call in calls for row, *_ in call.parts} | set(PROFILED if profiling is not None else ())
        of_calls = {row for call in self._calls for row, *_ in call.parts}
        statuses = [
            Status.OK if row in rows_asked else Status.UNREAD if row not in rows or row in of_calls else status
            for row, status in enumerate(fixed)
        ]
        filled = memoryview(self._buffer)[: _ENTRY.size * len(fields)]
        return _Plan(len(fields), filled, calls, profiling, bytes(statuses))

    def read(self, *, slow: bool) -> tuple[Sequence[int], bytes]:
        """Read the fast metrics, and if `slow` the slow ones too.

        The values are in the order of FAST, or of METRICS if `slow`; the statuses are those of METRICS.
        """
        now_us, tick = time.time_ns() // 1000, _FAST_TICK
        if slow:
            steady_ns = time.monotonic_ns()
            tick = _RARE_TICK if steady_ns >= self._rare_due_ns else _SLOW_TICK
            if tick == _RARE_TICK:
                self._rare_due_ns = steady_ns + _RARE_NS
        plan = self._plans[tick]
        values, statuses = [0] * len(METRICS), bytearray(plan.statuses)
        values[_WINDOW] = self._window_ms
        failures: list[tuple[int, int]] = []  # rows and return codes
        if plan.fields:
            refused = self._get_fields(self._handle, plan.fields, self._buffer)
            entries = _ENTRY.iter_unpack(plan.filled)
            for (row, number, _), (_, _, stamp, _, kind, answer, raw) in zip(self._fields, entries, strict=False):
                code = refused or answer
                if code:
                    failures.append((row, code))
                else:
                    values[row] += _SCALES[row] * (_decoded(raw, kind, wide=_WIDE[row]) if kind in _UNPACK else raw)
                if number in _STAMPED:
                    age_us = now_us - stamp
                    code = code or (NOT_SUPPORTED if abs(age_us) > _OTHER_CLOCK_US else SUCCESS)
                    if code:
                        failures.append((_STAMPED[number], code))
                    else:
                        values[_STAMPED[number]] = max(age_us, 0)
        for call in plan.calls:
            code = call.function(*call.arguments)
            for row, holder, name, narrow in call.parts:
                number = getattr(holder, name)
                if code:
                    failures.append((row, code))
                else:
                    values[row] += _NO_VALUE if narrow and number == _ALL_BITS else _SCALES[row] * number
        for row, code, mean in plan.profiling.look() if plan.profiling is not None else ():
            values[row] = mean
            failures.append((row, code))
        for row, code in failures:
            statuses[row] = max(statuses[row], meaning(code))
        numbers = values if slow else _fast_of(values)
        if max(numbers) > _MOST or min(numbers) < 0:  # all bits set means no value: no counter gets so far
            for row, number in enumerate(values):
                if number > _MOST or (number < 0 and METRICS[row].unit != _SIGNED_UNIT):
                    values[row], statuses[row] = 0, statuses[row] or Status.FAILED
            numbers = values if slow else _fast_of(values)
        return numbers, bytes(statuses)

    # -- what the device supports -----------------------------------------------------------------------------

    def _supported_fields(self) -> list[_FieldEntry]:
        """The fields to read, in the scope in which the device answers for them; those of the fast tier first."""
        specs = {row: metric.nvml for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Field)}
        all_entries = [_FieldEntry(row, number, spec.scopes[0]) for row, spec in specs.items() for number in spec.ids]
        codes = dict(zip(all_entries, self._field_codes(all_entries), strict=True))
        unusable = {Status.UNSUPPORTED}
        if set(map(meaning, codes.values())) <= {Status.UNSUPPORTED, Status.FAILED}:
            # A driver may refuse the whole call because of one field.
            codes = {entry: self._field_codes([entry])[0] for entry in all_entries}
            unusable.add(Status.FAILED)
        supported = []
        for row in sorted(specs, key=lambda row: METRICS[row].tier):
            entries = [entry for entry in all_entries if entry.row == row]
            usable = not any(meaning(codes[entry]) in unusable for entry in entries)
            supported += entries if usable else self._otherwise(row, specs[row])
        return supported

    def _otherwise(self, row: int, spec: Field) -> list[_FieldEntry]:
        """How else a device answers for a metric: in another scope, or for each NVLink. Empty where it does not."""
        for scope in spec.scopes[1:]:
            entries = [_FieldEntry(row, number, scope) for number in spec.ids]
            if not any(self._field_codes(entries)):
                self.of_module = True
                return entries
        if spec.by_link is None:
            return []
        links = [_FieldEntry(row, spec.by_link, link) for link in range(_MAX_LINKS)]
        return [entry for entry, code in zip(links, self._field_codes(links), strict=True) if code == SUCCESS]

    def _field_codes(self, fields: Sequence[_FieldEntry]) -> list[int]:
        buffer = _buffer_for(fields)
        refused = int(self._get_fields(self._handle, len(fields), buffer))
        return [refused or code for _, _, _, _, _, code, _ in _ENTRY.iter_unpack(buffer)]

    def _supported_calls(self, answered: set[int]) -> list[_BoundCall]:
        """The calls for the metrics that a function gives, but for those that a field has `answered`."""
        calls: dict[tuple[str, tuple[int, ...], str], _BoundCall | None] = {}
        for row, metric in enumerate(METRICS):
            spec = metric.nvml
            if isinstance(spec, Field):
                spec = None if row in answered or self._instance else spec.call
            while isinstance(spec, Call) and (spec.instances or not self._instance):
                key = (spec.function, spec.arguments, spec.output)
                if key not in calls:
                    calls[key] = self._bind(spec)
                if (call := calls[key]) is not None:
                    call.take(row, spec)
                    break
                spec = spec.older
        return [call for call in calls.values() if call is not None]

    def _bind(self, spec: Call) -> _BoundCall | None:
        """The call of a function, None where this driver, its binding or this device does not support it."""
        function = library_function(spec.function)
        kind: Any = _OUTPUTS.get(spec.output) or getattr(nv, f"c_{spec.output}_t", None)
        if function is None or kind is None:
            return None
        output = kind()
        if hasattr(kind, "version"):
            output.version = getattr(nv, spec.output)
        if spec.bad_code is not None:
            function = _verdict(function, spec.bad_code, output)
        filled = [ctypes.byref(output), *(ctypes.byref(kind()) for _ in range(spec.outputs - 1))][: spec.outputs]
        arguments = (self._handle, *spec.arguments, *filled)
        code = int(function(*arguments))
        absent = code == SUCCESS and bool(spec.only_if) and not getattr(output, spec.only_if)
        return None if absent or meaning(code) == Status.UNSUPPORTED else _BoundCall(function, arguments, output)


def _buffer_for(fields: Sequence[_FieldEntry]) -> Any:
    """A buffer of nvmlFieldValue_t that asks for these fields."""
    buffer = ctypes.create_string_buffer(_ENTRY.size * len(fields))
    for at, entry in enumerate(fields):
        _ENTRY.pack_into(buffer, _ENTRY.size * at, entry.field, entry.scope, 0, 0, 0, 0, 0)
    return buffer


def _decoded(raw: int, kind: int, *, wide: bool) -> int:
    """The number of a field value; one of 32 bits with all of them set is none for a metric of 64 (`wide`)."""
    (number,) = _UNPACK[kind](_pack_unsigned(raw))
    if isinstance(number, float):
        return round(number) if abs(number) < _NO_VALUE else _NO_VALUE
    return _NO_VALUE if wide and kind == _UNSIGNED_INT and number == _ALL_BITS else number


def _verdict(function: Callable[..., int], bad_code: int, output: Any) -> Callable[..., int]:
    """A function without output as one that fills `output`: 1, or 0 where it returns `bad_code`."""

    def judged(*arguments: Any) -> int:
        code = function(*arguments)
        output.value = code == SUCCESS
        return SUCCESS if code == bad_code else code

    return judged


# -- profiling metrics ------------------------------------------------------------------------------------------------


class Profiling:
    """Profiling metrics of a GPU (GPM), or of its MIG instance with the number `instance`: what it did between two
    looks. Hopper and newer have them, without root.

    Every look gives the means since the look before, so that no time is left out. Two looks are at least 100 ms apart,
    as what the driver gives for less is not valid. `refused` is the return code with which the driver refuses this GPU
    for good, 0 if it does not. Then there are no looks.
    """

    def __init__(self, gpu: Any, *, instance: int | None = None) -> None:
        self._arguments = (gpu,) if instance is None else (gpu, ctypes.c_uint(instance))
        self._looked_ns: int | None = None
        self.refused = self._begin(gpu, mig=instance is not None)

    def _begin(self, gpu: Any, *, mig: bool) -> int:
        query = library_function("nvmlGpmQueryDeviceSupport")
        allocate, free, get, get_mig, self._metrics = (
            library_function(f"nvmlGpm{name}") for name in _PROFILING_FUNCTIONS
        )
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
        for at, number in enumerate(_PROFILED_IDS):
            self._request.metrics[at].metricId = number
        _, code, _ = self.look()[0]
        return max(code, SUCCESS)

    def look(self) -> list[tuple[int, int, int]]:
        """The means since the look before: of each its row of METRICS, its return code, and it in the metric's unit."""
        now = time.monotonic_ns()
        if self._looked_ns is not None and now - self._looked_ns < _LOOKS_APART_NS:
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
        means = []
        for row, metric in zip(PROFILED, self._request.metrics, strict=False):
            scaled = metric.value * _SCALES[row]
            fits = math.isfinite(scaled) and abs(scaled) < 2.0**62
            means.append(
                (row, code or metric.nvmlReturn or (SUCCESS if fits else _UNKNOWN), round(scaled) if fits else 0)
            )
        return means


def _no_means(code: int) -> list[tuple[int, int, int]]:
    return [(row, code, 0) for row in PROFILED]
