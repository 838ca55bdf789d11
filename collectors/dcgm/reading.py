"""What the engine has kept, as arrays: every sample since a time, by a callback of our own.

The engine calls back once for each value. Bindings that make objects of them lose values that they cannot convert,
without an error; here the first bytes of a value are copied, and all of them are looked at together afterwards.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.metrics import METRICS
from ..backends import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .bindings import Bindings

XID = 230
OF_XID = len(METRICS)  # where rows of metrics end: of samples of the field of XIDs
_HEAD = np.dtype(  # of DCGM's c_dcgmFieldValue_v1
    [
        ("version", "<u4"),
        ("field", "<u2"),
        ("type", "<i2"),
        ("status", "<i4"),
        ("unused", "<i4"),
        ("ts", "<i8"),
        ("value", "<i8"),
    ]
)
_BYTES, _STRIDE = _HEAD.itemsize, 4120
_WIDE = 2.0**62  # no metric comes near it
_DOUBLE, _INT, _TIME = ord("d"), ord("i"), ord("t")
BLANK, BLANK_DOUBLE, BLANK_WORD = 0x7FFFFFFFFFFFFFF0, float(2**47), 0x7FFFFFF0  # these and what is above are no values
# What a blank says by its distance from the first one; the first itself is: nothing measured yet.
_BLANKS = np.array([Status.UNREAD, Status.UNSUPPORTED, Status.UNSUPPORTED, Status.DENIED], np.uint8)
# Status codes of DCGM on a value
_CODES = {
    0: Status.OK,
    -6: Status.UNSUPPORTED,
    -14: Status.UNREAD,  # no data
    -15: Status.UNREAD,  # stale
    -16: Status.UNREAD,  # not watched
    -17: Status.DENIED,
    -18: Status.LOST,
    -19: Status.LOST,  # reset required
}

_Entity = int  # group of the entity << 32 | its id


def entity_key(group: int, number: int) -> _Entity:
    """An entity (a GPU, an instance) as one number."""
    return group << 32 | number


@dataclass
class Samples:
    """Samples: arrays of one length. `value` counts only where the status is OK."""

    device: NDArray[np.intp]
    row: NDArray[np.intp]  # of METRICS
    ts: NDArray[np.int64]  # us since 1970, by the engine
    value: NDArray[np.int64]  # in the unit of the metric
    status: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ts)

    def pick(self, which: NDArray[Any] | slice) -> Samples:
        """Some of them, by positions or by a mask."""
        return Samples(self.device[which], self.row[which], self.ts[which], self.value[which], self.status[which])

    @classmethod
    def none(cls) -> Samples:
        """No samples."""
        whole = np.zeros(0, np.intp)
        return cls(whole, whole, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))

    @classmethod
    def joined(cls, parts: list[Samples]) -> Samples:
        """Those of several reads, one after the other."""
        if not parts:
            return cls.none()
        return cls(
            np.concatenate([one.device for one in parts]),
            np.concatenate([one.row for one in parts]),
            np.concatenate([one.ts for one in parts]),
            np.concatenate([one.value for one in parts]),
            np.concatenate([one.status for one in parts]),
        )


def _tables() -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """By number of a field: its row of METRICS (-1: none), what a value is multiplied by, and the first blank that
    whole numbers of it may have besides `BLANK`: only a counter can come to that of 32 bits."""
    rows, scales = np.full(2**16, -1, np.intp), np.ones(2**16, np.int64)
    blanks = np.full(2**16, BLANK_WORD)
    for row, metric in enumerate(METRICS):
        if metric.dcgm is not None:
            rows[metric.dcgm.id], scales[metric.dcgm.id] = row, metric.dcgm.scale
            if metric.kind == "counter":
                blanks[metric.dcgm.id] = BLANK
    rows[XID] = OF_XID
    return rows, scales, blanks


class Reader:
    """Reads samples of watched fields over one connection. `positions` says which entity is which device."""

    def __init__(self, bindings: Bindings, handle: Any, positions: dict[_Entity, int]) -> None:
        self._since = bindings.agent.dcgmGetValuesSince_v2
        self._handle = handle
        known = sorted(positions)
        self._entities = np.array(known, np.int64)
        self._devices = np.array([positions[one] for one in known], np.intp)
        self._rows, self._scales, self._blanks = _tables()
        self._heads: list[bytes] = []
        self._from: list[_Entity] = []
        self._failure: BaseException | None = None
        # Called by C. It lives as long as this object does.
        self._callback = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
        )(self._keeper())

    def _keeper(self) -> Any:
        """What the engine calls with values. An error in it would vanish: it is kept, and ends the read."""
        copy, keep_head, keep_entity = ctypes.string_at, self._heads.append, self._from.append

        def keep(group: int, number: int, values: int, count: int, _: object) -> int:
            try:
                keep_head(copy(values, _BYTES))
                keep_entity(group << 32 | number)
                for more in range(1, count):
                    keep_head(copy(values + more * _STRIDE, _BYTES))
                    keep_entity(group << 32 | number)
            except BaseException as error:
                self._failure = error
                return 1
            return 0

        return keep

    def read(self, group: Any, fields: Any, since_us: int) -> tuple[Samples, int]:
        """The samples of a group's watched fields from `since_us` on, and the engine's time just after, us.

        Raises DCGM's error where the engine refuses or is gone.
        """
        self._heads.clear()
        self._from.clear()
        try:
            later = self._since(self._handle, group, fields, since_us, self._callback, None)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            return self._decode(), int(later)
        finally:
            self._heads.clear()
            self._from.clear()

    def _decode(self) -> Samples:
        if not self._heads:
            return Samples.none()
        heads = np.frombuffer(b"".join(self._heads), _HEAD)
        entities = np.array(self._from, np.int64)
        place = np.minimum(np.searchsorted(self._entities, entities), len(self._entities) - 1)
        rows = self._rows[heads["field"]]
        # A field without a value yet comes back on every read, with the time 0.
        good = (heads["ts"] > 0) & (rows >= 0) & (self._entities[place] == entities)
        heads, place, rows = heads[good], place[good], rows[good]
        fields = heads["field"]
        value, status = _values(heads, self._scales[fields], self._blanks[fields])
        return Samples(self._devices[place], rows, heads["ts"].copy(), value, status)


def _values(
    heads: NDArray[Any], scale: NDArray[np.int64], first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Values in the units of their metrics, and their statuses; `first` is the first blank of each, but for floats."""
    whole, kind, codes = np.ascontiguousarray(heads["value"]), heads["type"], heads["status"]
    real = whole.view(np.float64)
    is_real = kind == _DOUBLE
    status = np.zeros(len(heads), np.uint8)
    if codes.any():
        for code in set(codes.tolist()):
            status[codes == code] = _CODES.get(code, Status.FAILED)
    status[~(is_real | (kind == _INT) | (kind == _TIME))] = Status.UNSUPPORTED
    first = np.where((whole >= first) & (whole <= first + 0xF), first, BLANK)
    with np.errstate(invalid="ignore"):
        blank = np.where(is_real, ~(np.abs(real) < BLANK_DOUBLE), whole >= first)  # what is no number is no value
        which = np.flatnonzero(blank & (status == Status.OK))
        if len(which):
            beyond = np.where(is_real[which], real[which] - BLANK_DOUBLE, (whole - first)[which])
            status[which] = _BLANKS[np.clip(np.nan_to_num(beyond), 0, 3).astype(np.intp)]
        far = np.abs(np.where(is_real, real, whole)) >= _WIDE / scale
    status[far & (status == Status.OK)] = Status.FAILED
    keep = status == Status.OK
    value = np.zeros(len(heads), np.int64)
    rounded = np.rint(np.where(keep & is_real, real, 0.0) * scale)
    value[keep] = np.where(is_real, rounded.astype(np.int64), np.where(keep, whole, 0) * scale)[keep]
    return value, status
