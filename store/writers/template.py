"""A batch in the journal's encoding. For every append, only its numbers are filled in anew.

Nearly every tick of a collector has the same columns, GPUs and NULLs as the one before. Only numbers differ, and they
lie at the same places in the message. Filling them in costs a tenth of encoding a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from ..rows import journal_file

if TYPE_CHECKING:
    import pyarrow as pa


class Template:
    """A message of the journal file `stream`, to be filled in. `offsets` gives the place of each column's values.

    `journal_file.encode` made `message`; texts and NULLs are those of the batch it was made from. The values of a
    column lie one after another from `offsets[column]` on, in the column's own type.
    """

    def __init__(self, stream: Any, message: bytearray, schema: pa.Schema, rows: int) -> None:
        import pyarrow as pa

        self.stream, self.message, self.rows = stream, message, rows
        content = pa.py_buffer(message)
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(content), schema)
        self.offsets: dict[str, int] = {}
        for name, column in zip(schema.names, batch.columns, strict=True):
            values = column.buffers()[1]
            if values is not None and pa.types.is_primitive(column.type):
                self.offsets[name] = values.address - content.address
        self._check = check = self.offsets[journal_file.CHECK]
        begin = self.offsets[journal_file.WRITTEN]
        self._written = slice(begin, begin + 8 * rows)
        self._checked = memoryview(message)[:check]

    def sealed(self, written: int) -> bytearray:
        """The filled-in message, with the time of writing and its checksum."""
        message = self.message
        message[self._written] = written.to_bytes(8, "little", signed=True) * self.rows
        message[self._check : self._check + 4] = crc32(self._checked).to_bytes(4, "little")
        return message
