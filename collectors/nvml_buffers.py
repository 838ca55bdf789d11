"""Memory that the driver fills: laid out once for all GPUs, gathered with numpy in one pass.

The stock wrapper builds its arrays anew at every call and takes values out one by one; that costs more than the rest
of a sweep. Here the field ids and the arguments are set once, a sweep is one C call per GPU for all field values and
one for each metric that is no field value, and the values of all GPUs are gathered by an index made beforehand.

All of it is one array of 32-bit words: the field values of each device, a slot for each of its calls, the return codes
of these calls, and constants.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import Status, Sweep
from .metrics import METRICS, Call, Field, Part, Stamp

# nvmlFieldValue_t
FIELD_VALUE = np.dtype(
    [
        ("id", "<u4"),
        ("scope", "<u4"),
        ("stamp", "<i8"),
        ("latency", "<i8"),
        ("type", "<u4"),
        ("ret", "<u4"),
        ("v", "<u8"),
    ]
)
_RET, _VALUE = 7, 8  # words of it
_DOUBLE, _UINT, _ULONGLONG, _INT = 0, 1, 3, 5  # value types
_SLOT = 16  # words for what one call fills; the largest, nvmlMemory_v2_t, has 10
_OTHER_CLOCK_US = 60_000_000  # a stamp so far away is of another clock

_FAST, _SLOW = 1, 2  # what was read of a device
_OWN = 2000  # return codes from here on are ours: _OWN + status
_NO_FUNCTION = 13
_FAST_ROWS = sum(metric.tier == "fast" for metric in METRICS)  # METRICS has these first


def _meanings() -> NDArray[np.uint8]:
    """Return codes -> Status; what lies beyond NVML's codes is ours."""
    table = np.full(_OWN + len(Status), Status.FAILED, np.uint8)
    table[0] = Status.OK
    table[[2, 3, 13, 25, 26]] = Status.UNSUPPORTED  # invalid argument, not supported, no such function or version
    table[4] = Status.DENIED
    table[[15, 16, 28]] = Status.LOST  # lost, requires a reset, not found
    table[[1, 9, 18]] = Status.DRIVER  # uninitialised, driver not loaded, library and driver of two versions
    for status in Status:
        table[_OWN + status] = status
    return table


MEANING = _meanings()


def meaning(code: int) -> Status:
    """What a return code of NVML means."""
    return Status(int(MEANING[code])) if 0 <= code < _OWN else Status.FAILED


class Buffers:
    """The kept memory of `number` devices. `function` gives the C function of a name, or None."""

    def __init__(self, number: int, function: Any) -> None:
        self.number = number
        self._fields = [  # (row of the metric, field id), the fast tier first, as METRICS
            (row, field) for row, m in enumerate(METRICS) if isinstance(m.nvml, Field) for field in m.nvml.ids
        ]
        self._fast_fields = sum(row < _FAST_ROWS for row, _ in self._fields)
        self._get_fields = function("nvmlDeviceGetFieldValues")
        self._find_calls(function)
        fields, calls = len(self._fields), len(self._calls)
        self._out = 10 * fields  # where a device's slots begin, in words of its line
        self._returned = self._out + _SLOT * calls  # where its return codes do
        self._width = (self._returned + calls + 1) // 2 * 2
        self._zeros = number * self._width  # after the lines: two words of 0, one a status, one a device
        self._windows_at = self._zeros + 2 + len(Status)
        self._words = np.zeros(self._windows_at + number, np.uint32)
        lines = self._words[: self._zeros].reshape(number, self._width)
        self._raw: NDArray[np.void] = np.ndarray((number, fields), FIELD_VALUE, self._words, 0, (4 * self._width, 40))
        self._codes = lines[:, self._returned : self._returned + calls]
        self._code_views = [memoryview(line) for line in self._codes]  # quicker to write single items to
        self._line = [self._words.ctypes.data + 4 * self._width * device for device in range(number)]
        self._targets = [ctypes.c_void_p(start) for start in self._line]
        self._words[self._zeros + 2 : self._windows_at] = [_OWN + status for status in Status]
        self._codes[:] = _NO_FUNCTION
        for place, (row, field) in enumerate(self._fields):
            spec = METRICS[row].nvml
            assert isinstance(spec, Field)
            self._raw["id"][:, place], self._raw["scope"][:, place] = field, spec.scopes[0]
        self._raw["type"] = _ULONGLONG
        self._values = np.zeros((len(METRICS), number), np.int64)
        self._value_words = self._values.view(np.uint32).reshape(len(METRICS), number, 2)
        self._taken = np.zeros((len(METRICS), number), np.uint32)
        self._status = np.full((len(METRICS), number), Status.UNREAD, np.uint8)
        self._value_index = np.full((len(METRICS), number, 2), self._zeros, np.intp)
        self._code_index = np.full((len(METRICS), number), self._constant(Status.UNREAD), np.intp)
        self._types, self._statuses = b"", b""
        self._signed = [
            (row, lines[:, self._out + call * _SLOT + spec.offset // 4].view(np.int32))
            for row, (call, spec) in self._call_of.items()
            if spec.type == "i4"
        ]
        self._stamped = [
            (row, next(place for place, (_, field) in enumerate(self._fields) if field == m.nvml.id))
            for row, m in enumerate(METRICS)
            if isinstance(m.nvml, Stamp)
        ]
        self._further = [
            (row, p) for p, (row, _) in enumerate(self._fields) if self._fields.index(self._first(row)) != p
        ]
        self._odd: list[tuple[int, int, int]] = []
        self._tier = [0] * number
        self._instance = [False] * number
        self.silent = [Status.UNREAD] * number  # of a device that is not read: what is said of all its metrics
        self._handles: list[Any] = [None] * number
        self._prepared: list[tuple[list[Any], list[Any]]] = [([], []) for _ in range(number)]

    def _find_calls(self, function: Any) -> None:
        calls: dict[tuple[str, tuple[int, ...]], tuple[Any, Call, bool]] = {}
        self._call_of: dict[int, tuple[int, Call]] = {}  # row -> the call that gives it
        for row, metric in enumerate(METRICS):
            if not isinstance(metric.nvml, Call):
                continue
            spec: Call = metric.nvml
            pointer = function(spec.function)
            if pointer is None and (older := spec.older) is not None:
                spec, pointer = older, function(older.function)
            key = (spec.function, spec.arguments)
            fast = metric.tier == "fast" or (key in calls and calls[key][2])
            calls[key] = (pointer, spec, fast)
            self._call_of[row] = (list(calls).index(key), spec)
        self._calls = list(calls.values())

    def _first(self, row: int) -> tuple[int, int]:
        return next(field for field in self._fields if field[0] == row)

    def _constant(self, status: Status) -> int:
        """The place of a word that stands for this status."""
        return self._zeros + 2 + int(status)

    # -- reading ------------------------------------------------------------------------------------------

    def prepare(self, device: int, handle: Any, *, instance: bool = False) -> list[int]:
        """Read a device once under this handle; returns the field ids that only a wider scope answers.

        Calls that the device does not support are not made again. It is read from `attach` on.
        """
        self._instance[device] = instance
        ready: tuple[list[Any], list[Any]] = ([], [])
        for call, (pointer, spec, fast) in enumerate(self._calls):
            if pointer is None or (instance and spec.function != "nvmlDeviceGetMemoryInfo_v2"):
                continue
            place = self._out + call * _SLOT
            start = device * self._width + place
            self._words[start : start + len(spec.preset)] = spec.preset
            target = ctypes.c_void_p(self._line[device] + 4 * place)
            arguments = (handle, *map(ctypes.c_uint, spec.arguments), target)
            code = pointer(*arguments)
            self._codes[device, call] = code
            if meaning(code) != Status.UNSUPPORTED:
                ready[1].append((call, pointer, arguments))
                if fast:
                    ready[0].append((call, pointer, arguments))
        self._prepared[device] = ready
        return [] if instance else self._settle_scopes(device, handle)

    def attach(self, device: int, handle: Any, window_ms: int | None) -> None:
        """From now on read the prepared device, whose reported power is a mean over `window_ms`."""
        self._handles[device] = handle
        self._words[self._windows_at + device] = window_ms or 0
        known = Status.OK if window_ms is not None else Status.UNSUPPORTED
        for row, metric in enumerate(METRICS):
            spec = metric.nvml
            if self._instance[device] and row not in self._call_of:
                code = self._constant(Status.UNREAD)
            elif isinstance(spec, Field):
                code = self._field(device, self._fields.index(self._first(row))) + _RET
            elif isinstance(spec, Call):
                code = device * self._width + self._returned + self._call_of[row][0]
            elif isinstance(spec, Stamp):
                place = next(p for r, p in self._stamped if r == row)
                code = self._field(device, place) + _RET
            else:
                code = self._constant(known if isinstance(spec, Part) else Status.UNSUPPORTED)
                self._value_index[row, device, 0] = self._windows_at + device
            self._code_index[row, device] = code
        for row, (call, spec) in self._call_of.items():
            low = device * self._width + self._out + call * _SLOT + spec.offset // 4
            self._value_index[row, device] = (low, low + 1 if spec.type == "u8" else self._zeros)
        self._types = b""

    def _field(self, device: int, place: int) -> int:
        return device * self._width + 10 * place

    def _settle_scopes(self, device: int, handle: Any) -> list[int]:
        """Try the scopes of each field until one is answered."""
        several = [
            (place, field, m.nvml.scopes)
            for place, (row, field) in enumerate(self._fields)
            if isinstance((m := METRICS[row]).nvml, Field) and len(m.nvml.scopes) > 1
        ]
        for place, _, scopes in several:
            self._raw["scope"][device, place] = scopes[0]
        self._read_fields(device, handle, len(self._fields))
        wider = []
        for place, field, scopes in several:
            for scope in scopes[1:]:
                if meaning(int(self._raw["ret"][device, place])) != Status.UNSUPPORTED:
                    break
                self._raw["scope"][device, place] = scope
                self._read_fields(device, handle, len(self._fields))
                if self._raw["ret"][device, place] == 0:
                    wider.append(field)
        return wider

    def detach(self, device: int, status: Status) -> None:
        """Read this device no more; what it would give has this status."""
        self._handles[device] = None
        self.silent[device] = status
        self._code_index[:, device] = self._constant(status)

    def attached(self, device: int) -> bool:
        """Whether the device is being read."""
        return self._handles[device] is not None

    def _read_fields(self, device: int, handle: Any, number: int) -> None:
        if self._get_fields is None:
            self._raw["ret"][device] = _NO_FUNCTION
            return
        code = self._get_fields(handle, number, self._targets[device])
        if code:  # the call as a whole failed: no field was looked at
            self._raw["ret"][device] = code

    def read(self, device: int, *, slow: bool) -> None:
        """Read one device; see `Backend.read`."""
        handle = self._handles[device]
        if handle is None:
            return
        if not self._instance[device]:
            self._read_fields(device, handle, len(self._fields) if slow else self._fast_fields)
        codes = self._code_views[device]
        for call, pointer, arguments in self._prepared[device][slow]:
            codes[call] = pointer(*arguments)
        self._tier[device] = _SLOW if slow else _FAST

    # -- gathering ----------------------------------------------------------------------------------------

    def sweep(self, stamps: list[int]) -> Sweep:
        """The values read since the last sweep, and what became of each; see `Backend.sweep`."""
        slow = _SLOW in self._tier
        rows = len(METRICS) if slow else _FAST_ROWS
        status = self._status
        np.take(self._words, self._code_index[:rows], out=self._taken[:rows], mode="clip")
        np.take(MEANING, self._taken[:rows], out=status[:rows], mode="clip")
        if slow or (now := status.tobytes()) != self._statuses:
            self._notice_types()
            now = status.tobytes()
        self._statuses = now
        np.take(self._words, self._value_index[:rows], out=self._value_words[:rows], mode="clip")
        for row, view in self._signed:
            self._values[row] = view
        self._date(stamps)
        for row, device, place in self._odd:
            self._values[row, device] = _odd(self._raw["type"][device, place], self._raw["v"][device, place])
        if slow:
            self._finish_slow()
        else:
            status[_FAST_ROWS:] = Status.UNREAD
        if 0 in self._tier:
            for device in range(self.number):
                if not self._tier[device] and self._handles[device] is not None:
                    status[:, device] = Status.UNREAD
        self._tier = [0] * self.number
        return Sweep(self._values, status)

    def _finish_slow(self) -> None:
        """What only metrics of the slow tier need: sums of fields, and other units."""
        for row, place in self._further:
            self._values[row] += self._raw["v"][:, place].astype(np.int64) & 0xFFFFFFFF
            np.maximum(self._status[row], MEANING[np.minimum(self._raw["ret"][:, place], 999)], out=self._status[row])
        for row, metric in enumerate(METRICS):
            if metric.scale != 1:
                self._values[row] *= metric.scale
        for device, tier in enumerate(self._tier):
            if tier != _SLOW and self._handles[device] is not None:
                self._status[_FAST_ROWS:, device] = Status.UNREAD

    def _date(self, stamps: list[int]) -> None:
        """The ages of the stamped fields, us."""
        for row, place in self._stamped:
            stamped = self._raw["stamp"][:, place].tolist()
            ages = [ts // 1000 - stamp for ts, stamp in zip(stamps, stamped, strict=True)]
            if max(ages) > _OTHER_CLOCK_US or min(ages) < -_OTHER_CLOCK_US:
                for device, age in enumerate(ages):
                    if abs(age) > _OTHER_CLOCK_US and self._status[row, device] == Status.OK:
                        self._status[row, device] = Status.UNSUPPORTED
            self._values[row] = [age if age > 0 else 0 for age in ages]

    def _notice_types(self) -> None:
        """Of a 32-bit value the upper half may be rubbish: look for it where the driver says that it is narrow."""
        types = self._raw["type"]
        if types.tobytes() == self._types:
            return
        self._types = types.tobytes()
        self._odd = []
        for place, (row, _) in enumerate(self._fields):
            if any(row == r and p == place for r, p in self._further):
                continue
            for device in range(self.number):
                low = self._field(device, place) + _VALUE
                kind = int(types[device, place])
                self._value_index[row, device] = (low, self._zeros if kind == _UINT else low + 1)
                if kind in (_DOUBLE, _INT):
                    self._odd.append((row, device, place))


def _odd(kind: int, value: np.uint64) -> int:
    """A field value that is a double or a signed int; 0 for what is no number."""
    if kind == _INT:
        return int(np.uint32(value & np.uint64(0xFFFFFFFF)).view(np.int32))
    number = float(value.view(np.float64))
    return round(number) if abs(number) < 2.0**62 else 0
