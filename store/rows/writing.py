"""Write rows as Parquet files, tuned for their table, under temporary names or in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schema import LATE, LATEST, MINUTES, TELEMETRY, Table
from ..system import light
from ..system.files import create, failed, make_folder, remove, rename, sync, temporary_name
from . import arranging, footers, placing

if TYPE_CHECKING:
    import pyarrow as pa

_QUICK, _SMALL = 3, 15  # zstd levels: for files soon replaced, and for those that stay (7 % smaller, 4 times the CPU)

_KEPT = {"ts", "cluster", "gpu", "written"}
# Rows, half as many as in DuckDB's own tables: it gives a group to one thread, skips groups by GPU and time, and for
# the rows of one GPU it decodes a whole group. More groups take longer to plan. Each group is one page of every column:
# where a page ends within the 2,048 rows that DuckDB takes at once, it expands the GPUs' names row by row.
_ROW_GROUP = 61_440


def replace_parquet(path: Path, spec: Table, data: pa.Table) -> None:
    """Write one Parquet file atomically, replacing an older one. Only for files that can be made again."""
    temporary = temporary_name(path)
    try:
        make_folder(path.parent)
        write_parquet(temporary, spec, data)
        rename(temporary, path)
    except OSError as error:
        remove(temporary)
        raise failed("write", path, error) from error


def write_parquet(
    path: Path, spec: Table, data: pa.Table, metadata: Mapping[str, str] | None = None, *, stays: bool = False
) -> None:
    """Write one Parquet file, tuned for the table, and make it durable. `stays`: it is not soon replaced by another.

    A column that holds only NULL is left out; readers take it for NULL. A file without rows has every column.
    """
    if len(data):
        kept = [name for name in data.column_names if name in _KEPT or data[name].null_count < len(data)]
        data = data.select(kept or data.column_names[:1])
    if metadata:
        known = data.schema.metadata or {}
        data = data.replace_schema_metadata({**known, **{k.encode(): v.encode() for k, v in metadata.items()}})
    with growing(path, spec, data.schema, stays=stays) as write:
        write(data)


@contextlib.contextmanager
def growing(
    path: Path, spec: Table, schema: pa.Schema, *, stays: bool = False,
    metadata: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[Callable[[pa.Table], None]]:  # fmt: skip
    """A Parquet file, tuned for the table, that is written piece by piece, and durable at the end.

    Every piece has the columns of `schema` and becomes a row group. `metadata` is asked at the end.
    """
    if footers.CHECK in (schema.metadata or {}):  # of the file that the rows were read from
        schema = schema.with_metadata({key: text for key, text in schema.metadata.items() if key != footers.CHECK})
    with os.fdopen(create(path), "w+b") as file:
        writer = light.writer(
            file,
            schema,
            **_codecs(spec, schema.names, stays=stays),
            max_rows_per_page=_ROW_GROUP,
            write_page_checksum=True,
            store_schema=True,
        )
        try:
            yield lambda data: writer.write_table(data, row_group_size=_ROW_GROUP)
            writer.add_key_value_metadata({**metadata(), footers.CHECK.decode(): footers.UNCHECKED.decode()})
        finally:
            writer.close()
        file.flush()
        footers.seal(file.fileno())
        sync(file.fileno())


def _codecs(spec: Table, names: list[str], *, stays: bool) -> dict[str, Any]:
    """How the columns are encoded and compressed, as options of the writer.

    Telemetry that stays is written for quick queries: power as it is, counters and times as differences, both
    uncompressed; the other columns as dictionaries, with LZ4. That takes 1.6 times the space of zstd.
    """
    encoded = {c.name: c.encoding for c in spec.columns if c.encoding} | {"written": "DELTA_BINARY_PACKED"}
    encoded = {name: code for name, code in encoded.items() if name in names}
    dictionary = [name for name in names if name not in encoded]
    if spec != TELEMETRY or not stays:
        level = {"compression": "zstd", "compression_level": _SMALL if stays else _QUICK}
        return {**level, "use_dictionary": dictionary, "column_encoding": encoded or None}
    return {
        "compression": {name: "none" if name in encoded else "lz4" for name in names},
        "use_dictionary": dictionary,
        "column_encoding": {n: "PLAIN" if code == "BYTE_STREAM_SPLIT" else code for n, code in encoded.items()},
    }


def placed(root: Path, spec: Table, data: pa.Table, name: str, writer: str = "") -> list[tuple[Path, Table, pa.Table]]:
    """Where rows go: one file, or for a partitioned table one file a day, in a folder of the `writer` if one is given.

    A collector that publishes looks only into its own folder, not at the files of a thousand others.
    """
    if not spec.partitioned:
        return [(root / spec.name / f"{name}.parquet", spec, data)]
    folder = root / spec.name
    return [(folder / f"day={day}" / writer / f"{name}.parquet", spec, part) for day, part in arranging.days(data)]


def write_temporary(
    parts: Iterable[tuple[Path, Table, pa.Table]], text: Mapping[str, str] | None = None, *, stays: bool = False
) -> dict[Path, Path]:
    """Write rows under temporary names beside their places.

    Returns a map from temporary name to place. Raises OSError.
    """
    moves: dict[Path, Path] = {}
    try:
        for final, spec, data in parts:
            make_folder(final.parent)
            temporary = temporary_name(final)
            moves[temporary] = final
            write_parquet(temporary, spec, data, metadata_of(spec, data) | dict(text or {}), stays=stays)
    except BaseException:
        for temporary in moves:
            remove(temporary)
        raise
    return moves


def metadata_of(spec: Table, data: pa.Table) -> dict[str, str]:
    """The metadata of a file about its rows."""
    if spec not in (TELEMETRY, LATE, LATEST, MINUTES) or not len(data):
        return {}
    return placing.as_metadata(placing.bounds_of(data))
