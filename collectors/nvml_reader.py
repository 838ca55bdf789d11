"""Reads the metrics of one device through NVML, into one buffer that is kept between ticks.

The pynvml wrapper allocates new arrays at every call and reads their values one by one, which costs more than all the
rest of a sweep. Here each device has one buffer: first its field values, which one call fills, then a slot for each
other call. The constructor finds out which calls and fields the device supports. Each tick then makes these
calls, and one `struct.unpack` reads all values. Nearly always it is half a millisecond and more since the processor
last saw this code and these objects. So little of both is needed: devices that are alike share theirs.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ..store.metrics import FAST, METRICS, Call, Field, Metric, Part, Stamp
from . import nvml_gpm
from .backends import Status

_FIELD = "IIqqII"  # nvmlFieldValue_t: id, scope, time stamp, latency, type, return code; then 8 bytes of value
_RETURNED, _WORDS = 5, 7
_READ = "24xQ"  # of it, what a tick reads: type and return code as one word, and the value
_TOLD_READ, _VALUE_READ, _WORDS_READ = 0, 1, 2
_LOW, _HIGH = 2**32 - 1, 32  # of such a word: the type is in the low half
_FIELD_BYTES, _STAMP = 40, 8  # and where its time stamp lies
_DOUBLE, _UINT, _LONG = 0, 1, 3  # types: most values are unsigned long long
_BY_TYPE = {  # types shorter than 8 bytes, whose other bytes are undefined; all other types have 8
    _DOUBLE: "d",
    _UINT: "I4x",
    5: "i4x",
    6: "H6x",
    4: "q",
}
_CODES = {"u4": "I", "i4": "i", "u8": "Q"}
_OTHER_CLOCK_US = 60_000_000  # a time stamp that is off by more than this comes from another clock
_MOST = 2**63 - 1
_SIGNED = "degC"  # the only unit in which a value may be below 0
_NONE = Status.UNSUPPORTED
_NOT_SUPPORTED = 3
_EVERY = tuple(range(len(METRICS)))
_NO_VALUES = [0] * len(FAST)
Taken = tuple[list[int], bytes]  # values and statuses of a device
_stamp_at = struct.Struct("<q").unpack_from
_MEANINGS = {
    0: Status.OK,
    **dict.fromkeys((2, 3, 13, 25, 26), Status.UNSUPPORTED),  # invalid argument, no such function or version
    4: Status.DENIED,
    **dict.fromkeys((15, 16, 28), Status.LOST),  # lost, requires a reset, not found
    **dict.fromkeys((1, 9, 18), Status.DRIVER),  # uninitialised, not loaded, library and driver of two versions
}


def meaning(code: int) -> Status:
    """What a return code of NVML means."""
    return _MEANINGS.get(code, Status.FAILED)


@dataclass
class _PreparedCall:
    """A call that is made at every tick (`fast`) or at slow ticks only, and the metrics that it gives."""

    pointer: Any
    arguments: tuple[Any, ...]
    slot: int  # offset of its structure in the buffer
    code: int  # its first return code
    fast: bool = False
    rows: dict[int, Call] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the values of a fast or slow tick lie in the buffer."""

    rows: tuple[int, ...]
    """The metrics that are taken."""
    types: tuple[int, ...]
    """Of the field values, as the driver gives them."""
    unpack: Callable[[Any], tuple[Any, ...]]
    fields_end: int
    """How many words the field values have; those of the calls follow."""
    pick: itemgetter[Any]
    """The word of each metric."""
    further: tuple[tuple[int, int], ...]
    """Position in `rows` and word: the further parts of sums."""
    scaled: tuple[tuple[int, int], ...]
    rounded: tuple[int, ...]
    stamps: tuple[tuple[int, int], ...]
    """Position in `rows` and number of the field value whose time stamp it is."""
    short: tuple[tuple[int, int], ...]
    """Position in `rows` and word: what the driver gives in 32 bits for a column of 64."""


_layouts: dict[object, _Layout] = {}


class Reader:
    """Reads one device by its handle. `function(name)` gives a C function of the library, or None.

    For a MIG `instance` only the calls that instances support are made. `window_ms` is the averaging time of its power
    readings. `profiling` gives the profiling metrics. `of_module` is true if its instantaneous power is that of the
    whole module.
    """

    def __init__(
        self,
        handle: Any,
        function: Callable[[str], Any],
        *,
        instance: bool = False,
        window_ms: int | None = None,
        profiling: nvml_gpm.Profiling | None = None,
    ) -> None:
        self._device = ctypes.byref(handle.contents)  # ctypes takes it as it is; a pointer it would convert every time
        self.of_module = False
        self._function, self._instance = function, instance
        self._slots = _FIELD_BYTES * sum(len(m.nvml.ids) for m in METRICS if isinstance(m.nvml, Field))
        self._constants = self._slots + sum(map(_slot_bytes, METRICS))  # two values after the slots: 0 and `window_ms`
        self._profiled = self._constants + 16  # where the values of profiling lie
        self._memory = ctypes.create_string_buffer(self._profiled + 8 * len(nvml_gpm.ROWS))
        struct.pack_into("<qq", self._memory, self._constants, 0, window_ms or 0)
        self._get_fields: Any = None if instance else function("nvmlDeviceGetFieldValues")
        self._fields: list[tuple[int, int, int]] = []  # (row of the metric, field id, scope), the fast tier first
        codes = self._settle_fields() if self._get_fields is not None else []
        missing = {row for (row, _, _), code in zip(self._fields, codes, strict=True) if meaning(code) == _NONE}
        known = {row for row, _, _ in self._fields} - missing
        self._calls = self._settle_calls(known)
        by_call = {row for call in self._calls if meaning(call.code) != _NONE for row in call.rows}
        self._fields = [one for one in self._fields if one[0] not in by_call]
        self._write_fields()
        self._number = sum(METRICS[row].tier == "fast" for row, _, _ in self._fields), len(self._fields)
        self._calls = [call for call in self._calls if meaning(call.code) != _NONE]
        self._made = [[(a.pointer, a.arguments) for a in self._calls if slow or a.fast] for slow in (False, True)]
        self._unasked = [Status.UNREAD if instance else Status.UNSUPPORTED] * len(METRICS)
        if window_ms is not None and not instance:
            for row, metric in enumerate(METRICS):
                if isinstance(metric.nvml, Part):
                    self._unasked[row] = Status.OK
        if profiling is not None and profiling.refused:
            for row in nvml_gpm.ROWS:
                self._unasked[row] = meaning(profiling.refused)
        self._profiling = None if profiling is None or profiling.refused else profiling
        # Since the last `take`: whether the device was read, and the return codes of the calls.
        self._was_read, self._slow, self._refused, self._codes = False, False, 0, [0]
        self._returned: list[object] = [None, None]  # of fast and slow ticks: the return codes that ...
        self._status = [b"", b""]  # ... gave these statuses
        self._layouts = [self._layout((_LONG,) * len(self._fields), slow=slow) for slow in (False, True)]

    # -- what the device supports -------------------------------------------------------------------------

    def _settle_fields(self) -> list[int]:
        """Find which fields to read, and in which scope; returns the return code of each.

        A field that makes the driver refuse the whole call is left out.
        """
        fast_first = sorted(enumerate(METRICS), key=lambda one: one[1].tier)
        self._fields = [
            (row, one, m.nvml.scopes[0]) for row, m in fast_first if isinstance(m.nvml, Field) for one in m.nvml.ids
        ]
        every = self._fields
        refused, codes = self._ask_fields(every)
        if refused and meaning(refused) in (_NONE, Status.FAILED):
            alone = [(one, *self._ask_fields([one])) for one in every]
            without = {one[0] for one, refused, _ in alone if meaning(refused) == _NONE}
            every = [one for one, _, _ in alone if one[0] not in without]
            codes = [code for one, _, (code,) in alone if one[0] not in without]
        for at, (row, one, _) in enumerate(every):
            spec = METRICS[row].nvml
            assert isinstance(spec, Field)
            for scope in spec.scopes[1:] if meaning(codes[at]) == _NONE else ():
                if self._ask_fields([(row, one, scope)]) == (0, [0]):
                    every[at], codes[at], self.of_module = (row, one, scope), 0, True
                    break
        self._fields = every
        return codes

    def _ask_fields(self, fields: list[tuple[int, int, int]]) -> tuple[int, list[int]]:
        """Read some fields; the return code of the call, and that of each field."""
        self._fields = fields
        self._write_fields()
        refused = int(self._get_fields(self._device, len(fields), self._memory))
        words = struct.unpack_from(f"<{f'{_FIELD}Q' * len(fields)}", self._memory)
        return refused, [refused or code for code in words[_RETURNED::_WORDS]]

    def _write_fields(self) -> None:
        for at, (_, one, scope) in enumerate(self._fields):
            struct.pack_into(f"<{_FIELD}Q", self._memory, _FIELD_BYTES * at, one, scope, 0, 0, _LONG, 0, 0)

    def _settle_calls(self, known: set[int]) -> list[_PreparedCall]:
        """Find a function for each metric that is no field value, or whose field the device lacks (not in `known`)."""
        found: dict[tuple[str, tuple[int, ...]], _PreparedCall] = {}
        slot = self._slots
        for row, metric in enumerate(METRICS):
            spec = metric.nvml
            if isinstance(spec, Field):
                spec = None if row in known or self._instance else spec.call
            if not isinstance(spec, Call) or (self._instance and not spec.instances):
                continue
            key = (spec.function, spec.arguments)
            call = found.get(key) or self._supported(spec, slot)
            if call is not None:
                if key not in found:
                    found[key], slot = call, slot + _slot_bytes(metric)
                call.rows[row] = spec
                call.fast |= metric.tier == "fast"
        return list(found.values())

    def _supported(self, spec: Call, slot: int) -> _PreparedCall | None:
        """A call of the newest version of the function that the device supports; None if the library has none."""
        way: Call | None = spec
        call = None
        while way is not None:
            pointer = self._function(way.function)
            if pointer is not None:
                struct.pack_into(f"<{len(way.preset)}I", self._memory, slot, *way.preset)
                # Shifted, so that the value of an older function lies where the newest one puts it.
                begin = slot + spec.offset - way.offset
                targets = [ctypes.byref(self._memory, begin + 8 * at) for at in range(way.outputs)]
                arguments = (self._device, *way.arguments, *targets)
                call = _PreparedCall(pointer, arguments, slot, int(pointer(*arguments)))
                if way.only_if and not any(self._memory[begin : begin + 4]):
                    call.code = _NOT_SUPPORTED
                if meaning(call.code) != _NONE:
                    break
            way = way.older
        return call

    def _layout(self, types: tuple[int, ...], *, slow: bool) -> _Layout:
        """How to read the buffer after a fast or slow `read`. `types` are those of the field values that it filled."""
        fields = self._fields[: self._number[slow]]
        types = types[: len(fields)]
        places: dict[int, list[int]] = {}  # row of the metric -> its position, or those of the parts of its sum
        small = {_WORDS_READ * at + _VALUE_READ for at, kind in enumerate(types) if kind == _UINT}
        layout = "<"
        for at, ((row, _, _), kind) in enumerate(zip(fields, types, strict=True)):
            layout += _READ + _BY_TYPE.get(kind, "Q")
            places.setdefault(row, []).append(_WORDS_READ * at + _VALUE_READ)
        fields_end = words = _WORDS_READ * len(types)
        end = _FIELD_BYTES * len(types)
        for call in self._calls:
            for row, spec in sorted(call.rows.items(), key=lambda one: one[1].offset) if slow or call.fast else ():
                begin = call.slot + spec.offset
                layout += f"{begin - end}x{_CODES[spec.type]}"
                small |= {words} if spec.type == "u4" else set()
                places[row], words, end = [words], words + 1, begin + struct.calcsize(_CODES[spec.type])
        rows = _EVERY if slow else FAST
        layout = f"{layout}{self._constants - end}x"
        nothing, window = words, words + 1
        read = set(places)  # the values of profiling come scaled
        profiled = len(nvml_gpm.ROWS) if slow and self._profiling is not None else 0
        places |= {row: [window + 1 + at] for at, row in enumerate(nvml_gpm.ROWS[:profiled])}
        every = [places.get(row, [window if isinstance(METRICS[row].nvml, Part) else nothing]) for row in rows]
        floats = {_WORDS_READ * at + _VALUE_READ for at, kind in enumerate(types) if kind == _DOUBLE}
        stamped = {one: at for at, (_, one, _) in enumerate(fields)}
        stamps = tuple(
            (at, stamped[spec.id])
            for at, spec in enumerate(METRICS[row].nvml for row in rows)
            if isinstance(spec, Stamp) and spec.id in stamped
        )
        scaled = [(at, METRICS[row].scale) for at, row in enumerate(rows) if METRICS[row].scale != 1 and row in read]
        made = _Layout(
            rows,
            types,
            struct.Struct(f"{layout}{2 + profiled}q").unpack_from,
            fields_end,
            itemgetter(*(parts[0] for parts in every)),
            further=tuple((at, word) for at, parts in enumerate(every) for word in parts[1:]),
            scaled=tuple(scaled),
            rounded=tuple(at for at, parts in enumerate(every) if floats.intersection(parts)),
            stamps=stamps,
            short=tuple(
                (at, word)
                for at, parts in enumerate(every)
                for word in parts
                if word in small and METRICS[rows[at]].bits == 64
            ),
        )
        return _layouts.setdefault((layout, slow, types, str(every), stamps, made.scaled), made)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, *, slow: bool) -> None:
        """Read the fast metrics, and if `slow` the slow ones too, into the buffer; `take` returns them."""
        if number := self._number[slow]:
            self._refused = self._get_fields(self._device, number, self._memory)
        self._codes = [pointer(*arguments) for pointer, arguments in self._made[slow]]
        if slow and self._profiling is not None:
            self._profiling.look()
            struct.pack_into(f"<{len(nvml_gpm.ROWS)}q", self._memory, self._profiled, *self._profiling.values)
            self._codes += self._profiling.codes
        self._was_read, self._slow = True, slow

    def take(self, stamp_ns: int) -> Taken:
        """The values of the last `read`, made at UTC `stamp_ns`: those of all metrics or of `FAST`; statuses of all.

        All are UNREAD if nothing was read since the last call.
        """
        if not self._was_read:
            return silent(Status.UNREAD)
        self._was_read = False
        slow = self._slow
        layout = self._layouts[slow]
        words = layout.unpack(self._memory)
        types_and_codes = words[_TOLD_READ : layout.fields_end : _WORDS_READ]
        returned = (self._refused, types_and_codes, self._codes)
        if returned != self._returned[slow]:
            types = tuple([word & _LOW for word in types_and_codes])
            if types != layout.types:
                layout = self._layouts[slow] = self._layout(types, slow=slow)
                words = layout.unpack(self._memory)
            self._returned[slow], self._status[slow] = (
                returned,
                self._statuses([word >> _HIGH for word in types_and_codes]),
            )
        values, status = list(layout.pick(words)), self._status[slow]
        for at in layout.rounded:
            values[at] = round(values[at]) if abs(values[at]) < 2.0**62 else _MOST + 1
        for at, word in layout.further:
            values[at] += words[word]
        for at, scale in layout.scaled:
            values[at] *= scale
        for at, word in layout.short:
            if words[word] == _LOW:  # all bits set
                values[at] = _MOST + 1
        for at, one in layout.stamps:
            age = stamp_ns // 1000 - _stamp_at(self._memory, _FIELD_BYTES * one + _STAMP)[0]
            values[at] = max(age, 0)
            if abs(age) > _OTHER_CLOCK_US and status[layout.rows[at]] == Status.OK:
                values[at], status = 0, _with(status, layout.rows[at], Status.UNSUPPORTED)
        if max(values) > _MOST or min(values) < 0:  # all bits set means no value: no counter gets so far
            for at, row in enumerate(layout.rows):
                if values[at] > _MOST or (values[at] < 0 and METRICS[row].unit != _SIGNED):
                    values[at] = 0
                    if status[row] == Status.OK:
                        status = _with(status, row, Status.FAILED)
        return values, status

    def _statuses(self, returned: list[int]) -> bytes:
        """The status of each metric, from the return codes of the field values and the calls."""
        worst: dict[int, Status] = {}  # the worst status of the parts of a sum
        for (row, _, _), code in zip(self._fields[: len(returned)], returned, strict=True):
            worst[row] = max(worst.get(row, Status.OK), meaning(self._refused or code))
        found = [worst.get(row, unasked) for row, unasked in enumerate(self._unasked)]
        layout = self._layouts[self._slow]
        for at, one in layout.stamps:
            found[layout.rows[at]] = meaning(self._refused or returned[one])
        made = [tuple(call.rows) for call in self._calls if self._slow or call.fast]
        if self._slow and self._profiling is not None:
            made += [(row,) for row in nvml_gpm.ROWS]
        for rows, code in zip(made, self._codes, strict=True):
            for row in rows:
                found[row] = Status.UNREAD if code == nvml_gpm.NOT_YET else meaning(code)
        if not self._slow:
            for row, metric in enumerate(METRICS):
                if metric.tier == "slow":
                    found[row] = Status.UNREAD
        return bytes(found)


def silent(status: Status) -> Taken:
    """What `Reader.take` gives of a device of which nothing is known, for this reason."""
    return _NO_VALUES, bytes([status]) * len(METRICS)


def _slot_bytes(metric: Metric) -> int:
    """How much of the buffer the call of a metric needs, and of those that stand in for it."""
    spec = metric.nvml.call if isinstance(metric.nvml, Field) else metric.nvml
    return -(-max(spec.size, 8 * spec.outputs) // 8) * 8 if isinstance(spec, Call) else 0


def _with(status: bytes, row: int, one: Status) -> bytes:
    return status[:row] + bytes([one]) + status[row + 1 :]
