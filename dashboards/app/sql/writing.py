"""A whole answer as a CSV or Parquet file, part by part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ....errors import QueryError
from ...answers.texts import FORMULA, NUMBER, distinct, is_number
from .cells import texts

if TYPE_CHECKING:
    import pyarrow as pa

Form: TypeAlias = Literal["csv", "parquet"]
_ROWS, _BYTES = 100_000, 32_000_000  # of what is written at once

Make = Callable[[Any], Any]  # a column as the file has it


def write(parts: pa.RecordBatchReader, form: Form, path: Path, most_bytes: int) -> tuple[int, int]:
    """Write the rows to a file; how many rows, and its bytes. Raises QueryError where it exceeds `most_bytes`.

    In CSV, a text that a spreadsheet would take for a formula gets an apostrophe in front. Parquet has it as it is.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    makes = [_csv(field.type) if form == "csv" else _parquet(field.type) for field in parts.schema]
    names = distinct(parts.schema.names)
    if form == "csv":
        names = _harmless(pa.array(names, pa.large_string())).to_pylist()
    kinds = [make(pa.array([], field.type)).type for make, field in zip(makes, parts.schema, strict=True)]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    rows, held, held_bytes = 0, list[Any](), 0
    with (
        path.open("wb") as file,
        csv.CSVWriter(file, schema) if form == "csv" else pq.ParquetWriter(file, schema, compression="zstd") as to,
    ):

        def flush() -> None:
            to.write_table(pa.Table.from_batches(held, schema))
            _refuse_larger(file.tell(), most_bytes)

        for part in parts:
            columns = [make(column) for make, column in zip(makes, part.columns, strict=True)]
            held.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows, held_bytes = rows + part.num_rows, held_bytes + held[-1].nbytes
            if held_bytes > _BYTES or sum(batch.num_rows for batch in held) >= _ROWS:
                flush()
                held, held_bytes = [], 0
        flush()
    size = path.stat().st_size
    _refuse_larger(size, most_bytes)
    return rows, size


def _refuse_larger(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise QueryError(f"the file would be larger than {most_bytes / 1e6:,g} MB: choose fewer rows or columns")


def _csv(kind: Any) -> Make:
    """How CSV has columns of a type: numbers as they are, all else as harmless text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_number(kind):
        return lambda column: column
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda column: _harmless(pc.cast(column, pa.large_string()))
    return lambda column: _harmless(pa.array(texts(column), pa.large_string()))


def _parquet(kind: Any) -> Make:
    """How Parquet has columns of a type: as they are, or as text where it has no such type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.table({"x": pa.array([], kind)}), pa.BufferOutputStream())
    except pa.ArrowException:
        return lambda column: pa.array(texts(column), pa.large_string())
    return lambda column: column


def _harmless(column: Any) -> Any:
    """Texts of which a spreadsheet takes none for a formula."""
    import pyarrow as pa
    import pyarrow.compute as pc

    quote, nothing = pa.scalar("'", pa.large_string()), pa.scalar("", pa.large_string())
    formula = pc.and_not(pc.match_substring_regex(column, FORMULA), pc.match_substring_regex(column, NUMBER))
    return pc.if_else(formula, pc.binary_join_element_wise(quote, column, nothing), column)
