"""Reads the metrics of one device through NVML: one call for all of its field values, and one for each other number.

`store.metrics` says how NVML has each metric. The constructor finds out what this device and its driver support; what
they refuse is not asked again. A device has one buffer, which all calls fill: first its field values, then the outputs
of the other calls, whose types are those of nvidia-ml-py. So one `struct.unpack` gives all numbers of a reading. Its
wrappers allocate an output at every call, and read it part by part, which costs more than all the rest of a sweep.
"""

from __future__ import annotations

import ctypes
import functools
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
_FORMATS = {ctypes.c_uint: "I", ctypes.c_int: "i", ctypes.c_ulonglong: "Q"}
_OUTPUT_BYTES = 4096  # for those of all calls; one that had no room would raise ValueError
# nvmlFieldValue_t: id, scope, time stamp, latency, type, return code, and the value in 8 bytes ...
_ENTRY = struct.Struct("<IIqqIIQ")
# ... of which a reading takes the stamp, then type and return code as one number, and the value by its type.
_HEAD_READ = "8xq8xQ"
_FIELD_WORDS = 3
_TYPE_BITS, _CODE_SHIFT = 2**32 - 1, 32
_DOUBLE, _UNSIGNED_INT = 0, 1
_VALUES_READ = {_DOUBLE: "d", _UNSIGNED_INT: "I4x", 4: "q", 5: "i4x", 6: "H6x"}  # all others have 64 bits without sign

PROFILED = tuple(row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm))
_PROFILED_IDS = tuple(metric.nvml.id for metric in METRICS if isinstance(metric.nvml, Gpm))
_PROFILED_SCALES = tuple(METRICS[row].scale for row in PROFILED)
_LOOKS_APART_NS = 100_000_000
_UNKNOWN = 999  # a return code
# Of nvmlGpmMetricsGet_t: 24 bytes, then of each metric number, return code, value, and three names.
_means = struct.Struct("<24x" + "4xId24x" * len(PROFILED)).unpack_from
_PROFILING_FUNCTIONS = ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet")


class _FieldEntry(NamedTuple):
    """A field value to read for the metric in this row of METRICS."""

    row: int
    field: int
    scope: int


class _Number(NamedTuple):
    """A number that a call gives for the metric in this row of METRICS, and where it is in the buffer."""

    row: int
    offset: int
    format: str


@dataclass
class _BoundCall:
    """A call with its arguments, and what it fills: an output of a type of ctypes, at an offset of the buffer."""

    function: Callable[..., int]
    arguments: tuple[Any, ...]
    kind: Any
    offset: int
    tick: int = _RARE_TICK  # the most frequent one at which it is made
    numbers: list[_Number] = field(default_factory=list)


class _Request(NamedTuple):
    """What a device is asked at a tick of some sort; devices that are alike are asked the same."""

    rows: tuple[int, ...]
    """The metrics of a reading."""
    fields: tuple[_FieldEntry, ...]
    calls: tuple[tuple[_Number, ...], ...]
    """The numbers of each call."""
    profiled: bool
    window_ms: int
    fixed: bytes
    """The statuses of metrics that come of no answer."""


Answers = tuple[list[int], tuple[int, ...], tuple[int, ...]]
"""Return codes of the calls, of which the first is for all fields if there are any; type and return code of each field;
return codes of profiling."""


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
        fields = [] if self._get_fields is None else self._supported_fields()
        self._outputs_end = _ENTRY.size * len(fields)
        self._buffer = _buffer_for(fields, room=_OUTPUT_BYTES)
        calls = self._supported_calls(answered={entry.row for entry in fields})
        fixed = [Status.UNREAD if instance else Status.UNSUPPORTED] * len(METRICS)
        for row, metric in enumerate(METRICS):
            if isinstance(metric.nvml, Part) and not instance and window_ms is not None:
                fixed[row] = Status.OK
            if isinstance(metric.nvml, Gpm) and profiling is not None and profiling.refused:
                fixed[row] = meaning(profiling.refused)
        self._profiling = profiling if profiling is not None and not profiling.refused else None
        self._ticks: list[tuple[_Request, list[tuple[Callable[..., int], tuple[Any, ...]]]]] = []
        self._layouts: list[_Layout] = []
        for tick in (_FAST_TICK, _SLOW_TICK, _RARE_TICK):
            self._plan(tick, fields, calls, window_ms or 0, fixed)
        self._rare_due_ns = 0

    def _plan(
        self, tick: int, fields: Sequence[_FieldEntry], calls: Sequence[_BoundCall], window_ms: int, fixed: list[Status]
    ) -> None:
        """What is asked at ticks of some sort, and which calls that takes: that for all fields first."""
        rows = FAST if tick == _FAST_TICK else tuple(range(len(METRICS)))
        tick_fields = tuple(entry for entry in fields if entry.row in rows)
        tick_calls = [call for call in calls if call.tick <= tick]
        later = {number.row for call in calls for number in call.numbers} | set(range(len(METRICS))).difference(rows)
        statuses = bytes(Status.UNREAD if row in later else status for row, status in enumerate(fixed))
        numbers = tuple(tuple(sorted(call.numbers, key=lambda number: number.offset)) for call in tick_calls)
        request = _Request(
            rows, tick_fields, numbers, self._profiling is not None and tick != _FAST_TICK, window_ms, statuses
        )
        all_fields = [(self._get_fields, (self._handle, len(tick_fields), self._buffer))] * bool(tick_fields)
        self._ticks.append((request, [*all_fields, *((call.function, call.arguments) for call in tick_calls)]))
        usual = (_UNSIGNED_INT,) * len(tick_fields), (SUCCESS,) * (len(PROFILED) if request.profiled else 0)
        self._layouts.append(_layout(request, (SUCCESS,) * len(self._ticks[-1][1]), *usual))

    def read(self, *, slow: bool) -> tuple[list[int], bytes]:
        """Read the fast metrics, and if `slow` the slow ones too.

        The values are in the order of FAST, or of METRICS if `slow`; the statuses are those of METRICS.
        """
        tick = _FAST_TICK
        profiled: tuple[int, ...] = ()
        profiling_codes: tuple[int, ...] = ()
        now_ns = time.time_ns()
        if slow:
            steady_ns = time.monotonic_ns()
            tick = _RARE_TICK if steady_ns >= self._rare_due_ns else _SLOW_TICK
            if tick == _RARE_TICK:
                self._rare_due_ns = steady_ns + _RARE_NS
        request, calls = self._ticks[tick]
        codes = [function(*arguments) for function, arguments in calls]
        if slow and self._profiling is not None:
            profiled, profiling_codes = self._profiling.look()
        layout = self._layouts[tick]
        numbers = layout.unpack(self._buffer)
        field_answers = numbers[layout.field_answers]
        if (codes, field_answers, profiling_codes) != layout.answers:
            layout = self._layouts[tick] = _layout(request, tuple(codes), field_answers, profiling_codes)
            numbers = layout.unpack(self._buffer)
        return layout.values(numbers + profiled, now_ns // 1000)

    # -- what the device supports -----------------------------------------------------------------------------

    def _supported_fields(self) -> list[_FieldEntry]:
        """The fields to read, in the scope in which the device answers for them; those of the fast tier first."""
        specs = {row: metric.nvml for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Field)}
        every = [_FieldEntry(row, number, spec.scopes[0]) for row, spec in specs.items() for number in spec.ids]
        codes = dict(zip(every, self._field_codes(every), strict=True))
        unusable = {Status.UNSUPPORTED}
        if set(map(meaning, codes.values())) <= {Status.UNSUPPORTED, Status.FAILED}:
            # A driver may refuse the whole call because of one field.
            codes = {entry: self._field_codes([entry])[0] for entry in every}
            unusable.add(Status.FAILED)
        supported = []
        for row in sorted(specs, key=lambda row: METRICS[row].tier):
            entries = [entry for entry in every if entry.row == row]
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
                    tick = _RARE_TICK if spec.rare else _FAST_TICK if metric.tier == "fast" else _SLOW_TICK
                    call.tick = min(call.tick, tick)
                    call.numbers.append(_Number(row, *_part_of(call, spec.part)))
                    break
                spec = spec.older
        return [call for call in calls.values() if call is not None]

    def _bind(self, spec: Call) -> _BoundCall | None:
        """The call of a function, None where this driver, its binding or this device does not support it."""
        function = library_function(spec.function)
        kind: Any = _OUTPUTS.get(spec.output) or getattr(nv, f"c_{spec.output}_t", None)
        if function is None or kind is None:
            return None
        offset = self._outputs_end
        output = kind.from_buffer(self._buffer, offset)
        if hasattr(kind, "version"):
            output.version = getattr(nv, spec.output)
        if spec.bad_code is not None:
            function = _verdict(function, spec.bad_code, output)
        filled = [ctypes.byref(self._buffer, offset + 8 * at) for at in range(spec.outputs)]
        arguments = (self._handle, *spec.arguments, *filled)
        code = int(function(*arguments))
        absent = code == SUCCESS and bool(spec.only_if) and not getattr(output, spec.only_if)
        if absent or meaning(code) == Status.UNSUPPORTED:
            return None
        self._outputs_end += max(-(-ctypes.sizeof(kind) // 8), spec.outputs) * 8
        return _BoundCall(function, arguments, kind, offset)


class _Layout:
    """Where the answers to a request stand in a buffer, and how they become values, for answers that have these
    types and return codes: it holds as long as the driver answers in the same way.

    A reading gives words: of each field its stamp, its answer (type and return code) and its number, then the numbers
    of the calls and of profiling, the power window and 0.
    """

    def __init__(
        self, request: _Request, codes: tuple[int, ...], fields: tuple[int, ...], profiling_codes: tuple[int, ...]
    ) -> None:
        self.answers: Answers = (list(codes), fields, profiling_codes)
        self.field_answers = slice(1, _FIELD_WORDS * len(fields), _FIELD_WORDS)
        self._rows = request.rows
        self._doubles: list[int] = []  # the words that are no whole numbers
        self._narrow: list[int] = []  # those of 32 bits of metrics that have 64: all bits set mean no value there too
        words: dict[int, list[int]] = {}  # by metric
        statuses = list(request.fixed)
        layout, word = "<", 0

        def add(row: int, word: int, code: int, *, narrow: bool) -> None:
            worst = statuses[row] if row in words else Status.OK  # a sum is as good as its worst part
            statuses[row] = max(worst, meaning(code))
            words.setdefault(row, []).append(word)
            if narrow and METRICS[row].bits == 64:
                self._narrow.append(word)

        for entry, answer in zip(request.fields, fields, strict=True):
            kind = answer & _TYPE_BITS
            layout += _HEAD_READ + _VALUES_READ.get(kind, "Q")
            add(entry.row, word + 2, codes[0] or answer >> _CODE_SHIFT, narrow=kind == _UNSIGNED_INT)
            self._doubles += [word + 2] * (kind == _DOUBLE)
            word += _FIELD_WORDS
        for numbers, code in zip(request.calls, codes[bool(fields) :], strict=True):
            for number in numbers:
                layout += f"{number.offset - struct.calcsize(layout)}x{number.format}"
                add(number.row, word, code, narrow=number.format == "I")
                word += 1
        for row, code in zip(PROFILED, profiling_codes, strict=False):
            add(row, word, code, narrow=False)
            word += 1
        self.unpack = struct.Struct(layout).unpack_from
        """Takes the words but for those of profiling out of a buffer."""
        stamped = {entry.field: (_FIELD_WORDS * at, entry.row) for at, entry in enumerate(request.fields)}
        self._ages = []  # position of a value, and the word of the stamp that it is the age of
        for position, row in enumerate(request.rows):
            spec = METRICS[row].nvml
            if isinstance(spec, Stamp) and spec.id in stamped:
                stamp, stamped_row = stamped[spec.id]
                self._ages.append((position, stamp))
                statuses[row] = statuses[stamped_row]
        self._statuses = bytes(statuses)
        self._constants = (request.window_ms, 0)
        parts = [words.get(row, [word + (not isinstance(METRICS[row].nvml, Part))]) for row in request.rows]
        self._pick = itemgetter(*(first for first, *_ in parts))
        self._sums = [(position, several) for position, several in enumerate(parts) if len(several) > 1]
        scales = [1 if isinstance(METRICS[row].nvml, Gpm) else METRICS[row].scale for row in request.rows]
        self._scales = [(position, scale) for position, scale in enumerate(scales) if scale != 1]

    def values(self, numbers: tuple[Any, ...], now_us: int) -> tuple[list[int], bytes]:
        """The values, in the order of the metrics that were asked for, and the statuses of all metrics.

        `numbers` are the words of the buffer and of profiling, read at `now_us` (UTC).
        """
        words = [*numbers, *self._constants]
        for word in self._doubles:
            words[word] = round(words[word]) if abs(words[word]) < _NO_VALUE else _NO_VALUE
        for word in self._narrow:
            if words[word] == _ALL_BITS:
                words[word] = _NO_VALUE
        values = list(self._pick(words))
        for position, several in self._sums:
            values[position] = sum([words[word] for word in several])
        for position, scale in self._scales:
            values[position] *= scale
        statuses = self._statuses
        for position, stamp in self._ages:
            age_us = now_us - words[stamp]
            values[position] = max(age_us, 0)
            if abs(age_us) > _OTHER_CLOCK_US:
                statuses = self._without(position, values, statuses, Status.UNSUPPORTED)
        if max(values) > _MOST or min(values) < 0:  # all bits set means no value: no counter gets so far
            for position, row in enumerate(self._rows):
                if values[position] > _MOST or (values[position] < 0 and METRICS[row].unit != _SIGNED_UNIT):
                    statuses = self._without(position, values, statuses, Status.FAILED)
        return values, statuses

    def _without(self, position: int, values: list[int], statuses: bytes, status: Status) -> bytes:
        """Take out a value that cannot be; returns the statuses that say so."""
        row = self._rows[position]
        values[position] = 0
        return statuses if statuses[row] else statuses[:row] + bytes([status]) + statuses[row + 1 :]


# Devices that are alike share theirs: what a sweep touches, the processor fetches anew at every tick.
_layout = functools.lru_cache(maxsize=256)(_Layout)


def _buffer_for(fields: Sequence[_FieldEntry], *, room: int = 0) -> Any:
    """A buffer of nvmlFieldValue_t that asks for these fields, with room for more after them."""
    buffer = ctypes.create_string_buffer(_ENTRY.size * len(fields) + room)
    for at, entry in enumerate(fields):
        _ENTRY.pack_into(buffer, _ENTRY.size * at, entry.field, entry.scope, 0, 0, 0, 0, 0)
    return buffer


def _part_of(call: _BoundCall, part: str) -> tuple[int, str]:
    """Where in the buffer a part of a call's output is, and its format."""
    offset, kind = call.offset, call.kind
    for step in part.split(".") if kind not in _FORMATS else ():
        if step.isdigit():
            kind = kind._type_
            offset += int(step) * ctypes.sizeof(kind)
        else:
            offset += getattr(kind, step).offset
            kind = dict(kind._fields_)[step]
    return offset, _FORMATS[kind]


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
        _, codes = self.look()
        return max(codes[0], SUCCESS)

    def look(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The means since the look before, and their return codes, in the order of `PROFILED`."""
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
        codes_and_values = _means(self._request)
        scaled = [value * scale for value, scale in zip(codes_and_values[1::2], _PROFILED_SCALES, strict=True)]
        fit = [math.isfinite(value) and abs(value) < 2.0**62 for value in scaled]
        return (
            tuple([round(value) if good else 0 for value, good in zip(scaled, fit, strict=True)]),
            tuple([code or c or (0 if good else _UNKNOWN) for c, good in zip(codes_and_values[::2], fit, strict=True)]),
        )


def _no_means(code: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (0,) * len(PROFILED), (code,) * len(PROFILED)
