"""Use pyarrow's compute functions and Parquet files without loading the packages around them.

`pyarrow.compute` and `pyarrow.parquet` build hundreds of functions and bring file systems with them: 16 MB of a
collector's memory for what it never uses. This module imports the compiled modules beneath them instead. If a release
of pyarrow has moved these, it imports the public packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The defaults of `pyarrow.parquet.ParquetWriter`, which the compiled writer must be given.
_DEFAULTS = {"version": "2.6", "writer_engine_version": "V2"}


def call(name: str, *arguments: Any, options: Any = None) -> Any:
    """The answer of one of Arrow's compute functions: `call("take", table, indices)`."""
    try:
        from pyarrow._compute import call_function
    except ImportError:
        from pyarrow.compute import call_function
    return call_function(name, list(arguments), options)


def integers(values: NDArray[Any]) -> Any:
    """A numpy array as an Arrow array that shares its memory. `pyarrow.array` would import masked arrays (8 MB)."""
    import numpy as np
    import pyarrow as pa

    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    own = np.ascontiguousarray(values, np.int32 if kind == pa.int32() else np.int64)
    return pa.Array.from_buffers(kind, len(own), [None, pa.py_buffer(own)])


def writer(file: IO[bytes], schema: Any, **options: Any) -> Any:
    """What writes tables of a schema into an open file, as one Parquet file: `options` are those of `pyarrow.parquet`.

    It has `write_table`, `add_key_value_metadata` and `close`.
    """
    try:
        from pyarrow._parquet import ParquetWriter

        return ParquetWriter(file, schema, **_DEFAULTS, **options)
    except (ImportError, TypeError, ValueError):
        import pyarrow.parquet as pq

        options.pop("max_rows_per_page", None)  # older releases do not know it, and have no such limit
        return pq.ParquetWriter(file, schema, **options)


def metadata(path: Path) -> Any:
    """The footer of a Parquet file. Raises OSError and pyarrow.ArrowException.

    If it is asked for its `schema`, the two keep each other, 70 kB, until Python looks for cycles (see `memory`).
    """
    try:
        from pyarrow._parquet import ParquetReader
    except ImportError:
        import pyarrow.parquet as pq

        return pq.read_metadata(path)
    import pyarrow as pa

    reader = ParquetReader()
    with pa.OSFile(str(path)) as source:
        reader.open(source)
        found = reader.metadata
        reader.close()
    return found


def read(path: Path, columns: list[str] | None = None) -> Any:
    """A small Parquet file as a table, checksums verified. Raises OSError and pyarrow.ArrowException."""
    try:
        from pyarrow._parquet import ParquetReader
    except ImportError:
        import pyarrow.parquet as pq

        return pq.read_table(path, columns=columns, page_checksum_verification=True, partitioning=None)
    import pyarrow as pa

    reader = ParquetReader()
    with pa.OSFile(str(path)) as source:
        reader.open(source, page_checksum_verification=True)
        try:
            names = reader.column_paths if columns is not None else []
            chosen = None if columns is None else [names.index([one]) for one in columns if [one] in names]
            return reader.read_all(column_indices=chosen, use_threads=False)
        finally:
            reader.close()
