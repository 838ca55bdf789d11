"""Reads many alike batches of a journal at once.

The ticks of a collector have the same columns, rows, names and places of numbers. Arrow takes 60 us to open one of
them, ten times as long as copying its numbers. So the first batch of a run is opened, and says where the numbers of the
others lie.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_FEWEST = 4  # batches


def run_from(content: bytes, here: int, size: int, batch: pa.RecordBatch, check: int) -> tuple[pa.RecordBatch, int]:
    """The sound batches from a place on that are like the first, `batch`, as one; and where they end.

    The first one has `size` bytes, the last `check` of which begin with its checksum; its last column, the checksum, is
    left out. If few are alike, this is the first batch alone.
    """
    import numpy as np
    import pyarrow as pa

    alone = batch.drop_columns(batch.schema.names[-1:]), here + size
    base = pa.py_buffer(content).address + here
    columns = batch.columns[:-1]
    same = [(0, 8 + int.from_bytes(content[here + 4 : here + 8], "little"))]  # what must not differ: the description
    for column in columns:
        buffers = column.buffers()
        places = [
            (one.address - base, one.address - base + one.size) for one in buffers if one is not None and one.size
        ]
        if any(not 0 <= begin <= end <= size for begin, end in places):
            return alone
        if _is_text(column):
            same += places
        elif buffers[1] is None:
            return alone
    first = [(begin, end, content[here + begin : here + end]) for begin, end in _together(same)]
    view, end, place = memoryview(content), here + size, size - check
    while end + size <= len(content) and _is_alike(content, end, first):
        if content[end + place : end + place + 4] != zlib.crc32(view[end : end + place]).to_bytes(4, "little"):
            break
        end += size
    number = (end - here) // size
    if number < _FEWEST:
        return alone
    rows = np.frombuffer(content, np.uint8, number * size, here).reshape(number, size)
    joined = [_joined(column, rows, base) for column in columns]
    return pa.RecordBatch.from_arrays(joined, schema=alone[0].schema), end


def _is_text(column: pa.Array) -> bool:
    """Whether a column is something else than numbers of whole bytes."""
    return len(column.buffers()) > 2 or column.type.bit_width % 8 != 0


def _together(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places in order; those that only padding separates are one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(places):
        if joined and begin < joined[-1][1] + 8:
            before = joined.pop()
            begin, end = before[0], max(end, before[1])
        joined.append((begin, end))
    return joined


def _is_alike(content: bytes, here: int, first: list[tuple[int, int, bytes]]) -> bool:
    for begin, end, text in first:  # noqa: SIM110 - called for every batch; a generator takes twice as long
        if content[here + begin : here + end] != text:
            return False
    return True


def _joined(column: pa.Array, rows: NDArray[np.uint8], base: int) -> pa.Array:
    """A column of all batches: `column` is that of the first, whose bytes begin at the address `base`."""
    import numpy as np
    import pyarrow as pa

    buffers, number = column.buffers(), len(column)
    if _is_text(column):
        return pa.concat_arrays([column] * len(rows))
    valid, values = (None if one is None else one.address - base for one in buffers)
    assert values is not None
    numbers = np.ascontiguousarray(rows[:, values : values + number * column.type.bit_width // 8])
    bits = None
    if valid is not None:
        every = np.unpackbits(rows[:, valid : valid + (number + 7) // 8], axis=1, bitorder="little")[:, :number]
        bits = pa.py_buffer(np.packbits(every.reshape(-1), bitorder="little"))
    return pa.Array.from_buffers(column.type, len(rows) * number, [bits, pa.py_buffer(numbers)])
