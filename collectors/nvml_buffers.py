"""Memory that the driver fills: laid out once for all GPUs, gathered with numpy in one pass.

The stock wrapper builds its arrays anew at every call and takes values out one by one; that costs more than the rest
of a sweep. Here the field ids and the arguments are set once, a sweep is one C call per GPU for all field values and
one for each metric that is no field value, and the values of all GPUs are gathered by an index made beforehand.

All of it is one array of 32-bit words: the field values of each device, a slot for each of its calls, the return codes
of these calls, and constants.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..store.metrics import METRICS, Call, Field, Part, Stamp
from .backends import Status, Sweep

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
_DOUBLE, _UINT, _ULONGLONG, _INT, _SHORT = 0, 1, 3, 5, 6  # value types
_SLOT = 16  # words for what one call fills; the largest, nvmlMemory_v2_t, has 10
_OTHER_CLOCK_US = 60_000_000  # a stamp so far away is of another clock

_FAST, _SLOW = 1, 2  # what was read of a device
_OWN = 2000  # return codes from here on are ours: _OWN + status
_NO_FUNCTION = 13
_SLOW_ROWS = np.array([metric.tier == "slow" for metric in METRICS])


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


@dataclass
class _Slot:
    """Where one call puts what it gives. `ways` are the functions to try, the newest first.

    Of each: its pointer, what it is, and how many words further on it writes, for the value to lie where the newest
    puts it.
    """

    ways: list[tuple[Any, Call, int]]
    instances: bool
    fast: bool = False


class Buffers:
    """The kept memory of `number` devices. `function` gives the C function of a name, or None."""

    def __init__(self, number: int, function: Any) -> None:
        self.number = number
        fast_first = sorted(enumerate(METRICS), key=lambda one: one[1].tier)
        self._fields = [  # (row of the metric, field id), the fast tier first
            (row, field) for row, m in fast_first if isinstance(m.nvml, Field) for field in m.nvml.ids
        ]
        self._fast_fields = sum(METRICS[row].tier == "fast" for row, _ in self._fields)
        self._get_fields = function("nvmlDeviceGetFieldValues")
        self._find_calls(function)
        fields, calls = len(self._fields), len(self._slots)
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
        self._asked = [(0, 0)] * number  # how many fields, at a fast tick and at a slow one
        self._refused: list[set[int]] = [set() for _ in range(number)]  # places of fields that must not be asked for
        self._by_call: list[set[int]] = [set() for _ in range(number)]  # rows of fields that a call gives instead
        self._prepared: list[tuple[list[Any], list[Any]]] = [([], []) for _ in range(number)]

    def _find_calls(self, function: Any) -> None:
        """Give each call its slot. What is asked instead has the slot of its own or of what it stands in for."""
        slots: dict[tuple[str, tuple[int, ...]], _Slot] = {}
        self._call_of: dict[int, tuple[int, Call]] = {}  # row -> the slot that gives it
        self._instead: dict[int, tuple[int, Call]] = {}  # the same for rows of fields, where a field is not known
        for row, metric in enumerate(METRICS):
            spec = metric.nvml.call if isinstance(metric.nvml, Field) else metric.nvml
            if not isinstance(spec, Call):
                continue
            key = (spec.function, spec.arguments)
            slot = slots.setdefault(key, _Slot([], spec.instances))
            slot.fast |= metric.tier == "fast"
            if not slot.ways:
                way: Call | None = spec
                while way is not None:
                    if (pointer := function(way.function)) is not None:
                        slot.ways.append((pointer, way, (spec.offset - way.offset) // 4))
                    way = way.older
            rows = self._call_of if spec is metric.nvml else self._instead
            rows[row] = (list(slots).index(key), spec)
        self._slots = list(slots.values())
        self._always = {slot for slot, _ in self._call_of.values()}

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
        wider = [] if instance else self._settle_fields(device, handle)
        missing = {} if instance else {row: at for row, at in self._instead.items() if not self._knows(device, row)}
        wanted = self._always | {slot for slot, _ in missing.values()}
        ready: tuple[list[Any], list[Any]] = ([], [])
        for number, slot in enumerate(self._slots):
            if number in wanted and (slot.instances or not instance):
                self._settle_call(device, handle, number, ready)
        self._prepared[device] = ready
        self._by_call[device] = {row for row, (slot, _) in missing.items() if self._codes[device, slot] != _NO_FUNCTION}
        return wider

    def _settle_call(self, device: int, handle: Any, number: int, ready: tuple[list[Any], list[Any]]) -> None:
        """Find the function of a slot that this device supports."""
        place = self._out + number * _SLOT
        self._codes[device, number] = _NO_FUNCTION
        for pointer, spec, shift in self._slots[number].ways:
            start = device * self._width + place
            self._words[start : start + len(spec.preset)] = spec.preset
            target = ctypes.c_void_p(self._line[device] + 4 * (place + shift))
            arguments = (handle, *map(ctypes.c_uint, spec.arguments), target)
            self._codes[device, number] = code = pointer(*arguments)
            if meaning(code) != Status.UNSUPPORTED:
                ready[1].append((number, pointer, arguments))
                if self._slots[number].fast:
                    ready[0].append((number, pointer, arguments))
                return

    def attach(self, device: int, handle: Any, window_ms: int | None) -> None:
        """From now on read the prepared device, whose reported power is a mean over `window_ms`."""
        self._handles[device] = handle
        self._words[self._windows_at + device] = window_ms or 0
        known = Status.OK if window_ms is not None else Status.UNSUPPORTED
        for row, metric in enumerate(METRICS):
            spec = metric.nvml
            if self._instance[device] and row not in self._call_of:
                code = self._constant(Status.UNREAD)
            elif row in self._by_call[device]:
                code = device * self._width + self._returned + self._instead[row][0]
            elif isinstance(spec, Field):
                code = self._field(device, self._fields.index(self._first(row))) + _RET
                if any(self._fields[place][0] == row for place in self._refused[device]):
                    code = self._constant(Status.UNSUPPORTED)
            elif isinstance(spec, Call):
                code = device * self._width + self._returned + self._call_of[row][0]
            elif isinstance(spec, Stamp):
                place = next(p for r, p in self._stamped if r == row)
                code = self._field(device, place) + _RET
                if place in self._refused[device]:
                    code = self._constant(Status.UNSUPPORTED)
            else:
                code = self._constant(known if isinstance(spec, Part) else Status.UNSUPPORTED)
                self._value_index[row, device, 0] = self._windows_at + device
            self._code_index[row, device] = code
        by_call = {row: self._instead[row] for row in self._by_call[device]}
        for row, (call, spec) in (self._call_of | by_call).items():
            low = device * self._width + self._out + call * _SLOT + spec.offset // 4
            self._value_index[row, device] = (low, low + 1 if spec.type == "u8" else self._zeros)
        self._types = b""

    def _field(self, device: int, place: int) -> int:
        return device * self._width + 10 * place

    def _knows(self, device: int, row: int) -> bool:
        """Whether the device answers all fields of a metric, or fails to for now."""
        places = [place for place, (r, _) in enumerate(self._fields) if r == row]
        return all(meaning(int(self._raw["ret"][device, p])) != Status.UNSUPPORTED for p in places) and not (
            self._refused[device].intersection(places)
        )

    def _settle_fields(self, device: int, handle: Any) -> list[int]:
        """Find out what the device answers: each field's scope, and fields for which it refuses a whole call."""
        line = self._raw[device]
        for place, (row, field) in enumerate(self._fields):
            spec = METRICS[row].nvml
            assert isinstance(spec, Field)
            line["id"][place], line["scope"][place] = field, spec.scopes[0]
        self._refused[device] = set()
        self._asked[device] = everything = (self._fast_fields, len(self._fields))
        if self._get_fields is None:
            self._asked[device] = (0, 0)
            line["ret"] = _NO_FUNCTION
            return []
        code = self._read_fields(device, handle, everything[1])
        if code and meaning(code) in (Status.UNSUPPORTED, Status.FAILED):
            self._do_without(device, handle)
        wider = []
        for place, (row, field) in enumerate(self._fields):
            spec = METRICS[row].nvml
            assert isinstance(spec, Field)
            if len(spec.scopes) == 1 or place in self._refused[device] or line["ret"][place] == 0:
                continue
            before = int(line["ret"][place])
            for scope in spec.scopes[1:] if meaning(before) == Status.UNSUPPORTED else ():
                line["scope"][place] = scope
                if self._read_field(device, handle, place) == 0 and line["ret"][place] == 0:
                    wider.append(field)
                    break
            else:
                line["scope"][place], line["ret"][place] = spec.scopes[0], before
        return wider

    def _do_without(self, device: int, handle: Any) -> None:
        """A driver refused all fields at once: find those that it refuses alone, and ask for another in their place."""
        line = self._raw[device]
        codes = [self._read_field(device, handle, place) for place in range(len(self._fields))]
        answered = [place for place, code in enumerate(codes) if code == 0]
        self._refused[device] = {place for place, code in enumerate(codes) if meaning(code) == Status.UNSUPPORTED}
        if not answered:
            if len(self._refused[device]) == len(codes):
                self._asked[device] = (0, 0)
            return
        for place in self._refused[device]:
            line["id"][place], line["scope"][place] = line["id"][answered[0]], line["scope"][answered[0]]

    def detach(self, device: int, status: Status) -> None:
        """Read this device no more; what it would give has this status."""
        self._handles[device] = None
        self.silent[device] = status
        self._code_index[:, device] = self._constant(status)

    def attached(self, device: int) -> bool:
        """Whether the device is being read."""
        return self._handles[device] is not None

    def _read_fields(self, device: int, handle: Any, number: int) -> int:
        code = int(self._get_fields(handle, number, self._targets[device]))
        if code:  # the call as a whole failed: no field was looked at
            self._raw["ret"][device] = code
        return code

    def _read_field(self, device: int, handle: Any, place: int) -> int:
        code = int(self._get_fields(handle, 1, ctypes.c_void_p(self._line[device] + 40 * place)))
        if code:
            self._raw["ret"][device, place] = code
        return code

    def read(self, device: int, *, slow: bool) -> None:
        """Read one device; see `Backend.read`."""
        handle = self._handles[device]
        if handle is None:
            return
        if asked := self._asked[device][slow]:
            self._read_fields(device, handle, asked)
        codes = self._code_views[device]
        for call, pointer, arguments in self._prepared[device][slow]:
            codes[call] = pointer(*arguments)
        self._tier[device] = _SLOW if slow else _FAST

    # -- gathering ----------------------------------------------------------------------------------------

    def sweep(self, stamps: list[int]) -> Sweep:
        """The values read since the last sweep, and what became of each; see `Backend.sweep`."""
        slow = _SLOW in self._tier
        status = self._status
        np.take(self._words, self._code_index, out=self._taken, mode="clip")
        np.take(MEANING, self._taken, out=status, mode="clip")
        if slow or (now := status.tobytes()) != self._statuses:
            self._notice_types()
            now = status.tobytes()
        self._statuses = now
        np.take(self._words, self._value_index, out=self._value_words, mode="clip")
        for row, view in self._signed:
            self._values[row] = view
        self._date(stamps)
        for row, device, place in self._odd:
            self._values[row, device] = _odd(self._raw["type"][device, place], self._raw["v"][device, place])
        self._finish(slow)
        if 0 in self._tier:
            for device in range(self.number):
                if not self._tier[device] and self._handles[device] is not None:
                    status[:, device] = Status.UNREAD
        self._tier = [0] * self.number
        return Sweep(self._values, status)

    def _finish(self, slow: bool) -> None:
        """Sums of fields, other units, and what was not read."""
        if not slow:
            self._status[_SLOW_ROWS] = Status.UNREAD
        for row, place in self._further:
            if not slow and _SLOW_ROWS[row]:
                continue
            self._values[row] += self._raw["v"][:, place].astype(np.int64) & 0xFFFFFFFF
            np.maximum(self._status[row], MEANING[np.minimum(self._raw["ret"][:, place], 999)], out=self._status[row])
        for row, metric in enumerate(METRICS):
            if metric.scale != 1 and (slow or metric.tier == "fast"):
                self._values[row] *= metric.scale
        for device, tier in enumerate(self._tier):
            if tier != _SLOW and self._handles[device] is not None:
                self._status[_SLOW_ROWS, device] = Status.UNREAD

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
                if row in self._by_call[device]:
                    continue
                low = self._field(device, place) + _VALUE
                kind = int(types[device, place])
                self._value_index[row, device] = (low, self._zeros if kind == _UINT else low + 1)
                if kind in (_DOUBLE, _INT, _SHORT):
                    self._odd.append((row, device, place))


def _odd(kind: int, value: np.uint64) -> int:
    """A field value that is a double, a signed int or a short; 0 for what is no number."""
    if kind == _SHORT:
        return int(value) & 0xFFFF
    if kind == _INT:
        return int(np.uint32(value & np.uint64(0xFFFFFFFF)).view(np.int32))
    number = float(value.view(np.float64))
    return round(number) if abs(number) < 2.0**62 else 0
