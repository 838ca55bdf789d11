"""Which row of a key counts. The key of a reading is (cluster, gpu, ts); of rows with one key the one written last.

Tables by days are sorted by (gpu, ts). Rows are ordered by numbers: the codes of GPUs and the times, in us.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .file_names import DAY_US, Bounds, day_folder, gpu_hash, gpu_hashes
from .parquet import WRITTEN
from .schema import KEY, LATE, TELEMETRY, Table, arrow_schema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

KEY_RECORD = "{" + ", ".join(f"'{name}': {name}" for name in KEY) + "}"
"""The key of a reading as an expression. `KEY_RECORD NOT IN (SELECT KEY_RECORD FROM late)` looks into a table of late
rows; for an anti join DuckDB may make a table of all others."""

_NEVER = -(2**63)


def conform(spec: Table, rows: pa.Table, *, dated: bool = False) -> pa.Table:
    """Rows in the types of their table, in the order of its columns; times lose what is below a microsecond.

    `dated`: they may have the column `written` besides. Raises StoreError for a column that the table does not have,
    and for values that do not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = arrow_schema(spec.name)
    if dated and WRITTEN not in schema.names:
        schema = schema.append(pa.field(WRITTEN, pa.int64()))
    unknown = set(rows.column_names) - set(schema.names)
    if unknown:
        raise StoreError(f"table {spec.name} has no column {', '.join(sorted(unknown))}")
    fields = [field for field in schema if field.name in rows.column_names]
    columns = []
    for field in fields:
        column = rows[field.name]
        try:
            if pa.types.is_timestamp(column.type) and column.type != field.type:
                column = pc.floor_temporal(column.cast(pa.timestamp(column.type.unit)), unit="microsecond")
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise StoreError(f"table {spec.name}, column {field.name}: {str(error).splitlines()[0]}") from error
    shaped = pa.table(columns, schema=pa.schema(fields, schema.metadata))
    if spec.partitioned:
        absent = shaped["ts"].null_count if "ts" in shaped.column_names else len(shaped)
        if absent:
            raise StoreError(f"{absent} rows of table {spec.name} have no ts, so they belong to no day")
        shaped = with_key(shaped)
    return shaped


def with_key(rows: pa.Table) -> pa.Table:
    """Rows with the columns of the key; those that are missing are NULL."""
    import pyarrow as pa

    for name in KEY[:2]:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows), pa.string()))
    return rows


def times(rows: pa.Table) -> NDArray[np.int64]:
    """The column `ts` in us since 1970."""
    import numpy as np
    import pyarrow as pa

    column = rows["ts"]
    if column.type != pa.timestamp("us"):
        column = column.cast(pa.timestamp("us"), safe=False)
    return np.asarray(column.cast(pa.int64()).to_numpy())


def written_ns(rows: pa.Table) -> NDArray[np.int64]:
    """When rows were written; the earliest time where they do not say."""
    import numpy as np

    if WRITTEN not in rows.column_names:
        return np.full(len(rows), _NEVER)
    return np.asarray(rows[WRITTEN].fill_null(_NEVER).to_numpy())


def with_written(rows: pa.Table, written_ns: int) -> pa.Table:
    """Rows that were written at `written_ns`, unless they say themselves."""
    import numpy as np
    import pyarrow as pa

    if WRITTEN in rows.column_names:
        return rows.set_column(rows.column_names.index(WRITTEN), WRITTEN, rows[WRITTEN].fill_null(written_ns))
    return rows.append_column(WRITTEN, pa.array(np.full(len(rows), written_ns, np.int64)))


def without_written(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([WRITTEN]) if WRITTEN in rows.column_names else rows


def codes_of(rows: pa.Table) -> tuple[NDArray[np.int64], list[tuple[str | None, str | None]]]:
    """For each row the number of its (cluster, gpu), in the order of gpu and then cluster; and the list of these."""
    import numpy as np

    gpu, gpus = _ranks(rows["gpu"])
    cluster, clusters = _ranks(rows["cluster"])
    if len(clusters) == 1:
        return gpu, [(clusters[0], name) for name in gpus]
    pairs, codes = np.unique(gpu * max(1, len(clusters)) + cluster, return_inverse=True)
    return codes, [(clusters[pair % len(clusters)], gpus[pair // len(clusters)]) for pair in pairs.tolist()]


def _ranks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str | None]]:
    """Each row's position in the sorted list of the values (NULL last), and this list."""
    import numpy as np
    import pyarrow.compute as pc

    # Encoded before they are joined: the texts of 50 million rows are more than an array of texts can hold.
    coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    order = pc.sort_indices(coded.dictionary)
    rank = np.append(np.argsort(order.to_numpy()), len(order))
    names = coded.dictionary.take(order).to_pylist() + [None] * bool(coded.indices.null_count)
    return rank[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], names


def newest(rows: pa.Table) -> pa.Table:
    """For each key the row that was written last, of equals the one that stands last; sorted by gpu and time."""
    import numpy as np

    if not len(rows):
        return rows
    codes, _ = codes_of(rows)
    ts = times(rows)
    if len(ts) == 1 or np.all((codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & (ts[1:] > ts[:-1]))):
        return rows
    order = np.lexsort((written_ns(rows), ts, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(ts[order]) == 0)
    return rows.take(order[np.append(~same, True)])


def sort(spec: Table, rows: pa.Table) -> pa.Table:
    """The rows in the order of their table; of telemetry one row for each key, of others as `Table.last_of` says."""
    if spec in (TELEMETRY, LATE):
        return newest(rows)
    keys = [(name, "ascending") for name in spec.sorted_by if name in rows.column_names]
    rows = rows.sort_by(keys) if keys and len(rows) > 1 else rows
    if spec.last_of:
        alike = zip(*(rows[name].to_pylist() for name in spec.last_of), strict=True)
        rows = rows.take(sorted({columns: number for number, columns in enumerate(alike)}.values()))
    return rows


def split(rows: pa.Table, others: Iterable[pa.Table], *, equal: bool = True) -> tuple[pa.Table, pa.Table]:
    """Split rows, which have `written`, into new ones and those that take the place of rows of `others`.

    `others` hold keys and `written`. Rows that were written before the one of their key in `others` are left out; of
    those that were written at the same time, `equal` says whether they count.
    """
    import pyarrow as pa

    rows = newest(rows)
    near = [_near(other_rows, rows) for other_rows in others] if len(rows) else []
    near = [other_rows for other_rows in near if len(other_rows)]
    if not near:
        return rows, rows.slice(0, 0)
    contested, last_written_ns = _matches(rows, pa.concat_tables(near, promote_options="permissive"))
    wins = written_ns(rows) >= last_written_ns + (0 if equal else 1)
    return rows.filter(pa.array(~contested)), rows.filter(pa.array(contested & wins))


def among(rows: pa.Table, keys: pa.Table) -> NDArray[np.bool_]:
    """Which rows have a key that is among `keys`."""
    return _matches(rows, keys)[0]


def without(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows whose key is not among `keys`."""
    import pyarrow as pa

    return rows.filter(pa.array(~among(rows, keys))) if len(keys) and len(rows) else rows


def _matches(rows: pa.Table, others: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """For each row whether `others` have its key, and when the newest of these was written."""
    import numpy as np
    import pyarrow as pa

    if not len(rows) or not len(others):
        return np.zeros(len(rows), bool), np.full(len(rows), _NEVER)
    keys = pa.concat_tables([part.select(list(KEY)) for part in (rows, others)], promote_options="permissive")
    codes, ts = codes_of(keys)[0], times(keys)
    order = np.lexsort((ts, codes))
    begins = np.append(True, (np.diff(codes[order]) != 0) | (np.diff(ts[order]) != 0))
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins) - 1
    of_rows, of_others = group[: len(rows)], group[len(rows) :]
    is_known = np.zeros(len(order), bool)
    is_known[of_others] = True
    last_written_ns = np.full(len(order), _NEVER)
    np.maximum.at(last_written_ns, of_others, written_ns(others))
    return is_known[of_rows], last_written_ns[of_rows]


def _near(others: pa.Table, rows: pa.Table) -> pa.Table:
    """Keys and `written` of `others` that are of the GPUs of some rows, between the first and the last of these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ts, other_times = times(rows), times(others)
    inside = pa.array((other_times >= ts.min()) & (other_times <= ts.max()))
    gpus = pc.unique(rows["gpu"]).cast(pa.string())
    of_gpus = pc.is_in(others["gpu"].cast(pa.string()), value_set=gpus)
    return others.select([*KEY, WRITTEN]).filter(pc.and_(of_gpus, inside))


def last_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """The last row of each GPU in some tables, of rows of one key as `newest`.

    A row that lies more than a day ahead, written by a clock that was wrong, is one only where its GPU has no other.
    """
    import numpy as np
    import pyarrow as pa

    rows = newest(with_key(pa.concat_tables(tables, promote_options="default")))
    if not len(rows):
        return rows
    codes, ts = codes_of(rows)[0], times(rows)
    order = np.lexsort((ts, ts <= ahead_us(), codes))
    return rows.take(order[np.append(np.diff(codes[order]) != 0, True)])


def ahead_us() -> int:
    """From this time on (us) a row lies ahead."""
    return time.time_ns() // 1000 + DAY_US


def bounds_of(rows: pa.Table) -> Bounds:
    """The bounds of rows; there must be one at least."""
    ts = times(rows)
    return Bounds(int(ts.min()), int(ts.max()), hashes_of(rows))


def bounds_by_gpu(rows: pa.Table) -> dict[int, Bounds]:
    """Between which times the rows of each GPU are, by `gpu_hash`; the rows are sorted by GPU and time."""
    import numpy as np

    codes, gpus = codes_of(rows)
    ts = times(rows)
    begins = np.flatnonzero(np.append(True, np.diff(codes) != 0))
    ends = np.append(begins[1:] - 1, len(codes) - 1)
    by_gpu: dict[int, Bounds] = {}
    for code, first_us, last_us in zip(codes[begins].tolist(), ts[begins].tolist(), ts[ends].tolist(), strict=True):
        gpu = gpu_hash(gpus[code][1])
        before = by_gpu.get(gpu, Bounds(first_us, last_us))
        by_gpu[gpu] = Bounds(min(first_us, before.first_us), max(last_us, before.last_us))
    return by_gpu


def hashes_of(rows: pa.Table) -> frozenset[int]:
    """The GPUs of rows, as names of files have them."""
    import pyarrow.compute as pc

    return gpu_hashes(pc.unique(rows["gpu"]).to_pylist())


def days(rows: pa.Table) -> list[tuple[str, pa.Table]]:
    """The rows by day of `ts` (UTC) with the folder of each, in order of the days."""
    import numpy as np
    import pyarrow as pa

    numbers: NDArray[Any] = times(rows) // DAY_US
    distinct = np.unique(numbers).tolist()
    if len(distinct) == 1:
        return [(day_folder(distinct[0]), rows)]
    return [(day_folder(number), rows.filter(pa.array(numbers == number))) for number in distinct]


def before(rows: pa.Table, until_us: int) -> tuple[pa.Table, pa.Table]:
    """Split rows: those before a time, and the others."""
    import pyarrow as pa

    early = times(rows) < until_us
    return rows.filter(pa.array(early)), rows.filter(pa.array(~early))
