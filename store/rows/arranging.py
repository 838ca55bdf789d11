"""Put rows in the order and the types of their table. Many rows are sorted by numbers instead of strings.

A store's large tables are sorted by strings and times. Sorting the codes of a dictionary instead takes a tenth of the
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import StoreError
from ..schema import Table, arrow_schema
from ..system import light

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

KEY = ("cluster", "gpu", "ts")
DAY = 86_400 * 10**9  # ns


def conform(spec: Table, data: pa.Table, *, lean: bool = False) -> pa.Table:
    """`data` with exactly the table's columns, in order and type; a column it lacks is NULL.

    With `lean` it has only the columns of its key and those of `data`: for a million rows, columns of NULLs take longer
    to make than to store. Raises StoreError for a column that the table does not have, and for values that do not fit.
    """
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    if lean:
        fields = [field for field in schema if field.name in data.column_names or field.name in KEY]
        schema = pa.schema(fields, schema.metadata)
    extra = set(data.column_names) - set(schema.names)
    if extra:
        raise StoreError(f"table {spec.name} has no column {', '.join(sorted(extra))}")
    columns: list[Any] = []
    for field in schema:
        try:
            if field.name not in data.column_names:
                columns.append(pa.nulls(len(data), field.type))
            elif data[field.name].type == field.type:
                columns.append(data[field.name])
            else:
                columns.append(data[field.name].cast(field.type))
        except pa.ArrowException as error:
            raise StoreError(f"table {spec.name}, column {field.name}: {error}") from error
    if spec.partitioned and columns[schema.names.index("ts")].null_count:
        number = columns[schema.names.index("ts")].null_count
        raise StoreError(f"{number} rows of table {spec.name} have no ts, so they belong to no day")
    return pa.table(columns, schema=schema)


def numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A column of integers or times as int64; NULL becomes 0."""
    import numpy as np
    import pyarrow as pa

    whole = one(column)
    if pa.types.is_timestamp(whole.type):
        whole = whole.view(pa.int64())
    if whole.null_count:
        whole = light.call("coalesce", whole, pa.scalar(0, whole.type))
    return whole.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)  # type: ignore[no-any-return]


def one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def ranks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str | None]]:
    """Code a column of strings: each row's position in the sorted list of values (NULL last), and this list."""
    import numpy as np
    import pyarrow as pa

    coded = light.call("dictionary_encode", one(column))
    values = coded.dictionary.to_pylist()
    order = sorted(range(len(values)), key=lambda i: values[i].encode())
    rank = np.empty(len(values) + 1, np.int64)
    rank[order] = np.arange(len(values))
    rank[-1] = len(values)
    indices = coded.indices
    codes = numbers(pa.chunked_array([indices]))
    if indices.null_count:
        codes = np.where(light.call("is_null", indices).to_numpy(zero_copy_only=False), -1, codes)
    return rank[codes], [values[i] for i in order] + ([None] if indices.null_count else [])


def gpu_codes(data: pa.Table) -> tuple[NDArray[np.int64], list[tuple[str | None, str | None]]]:
    """For each row the number of its (cluster, gpu), sorted by gpu and then cluster; and the list of these."""
    import numpy as np

    gpu, gpus = ranks(data["gpu"])
    cluster, clusters = ranks(data["cluster"])
    if len(clusters) <= 1:
        return gpu, [(clusters[0] if clusters else None, name) for name in gpus]
    pairs, codes = np.unique(gpu * len(clusters) + cluster, return_inverse=True)
    return codes, [(clusters[pair % len(clusters)], gpus[pair // len(clusters)]) for pair in pairs.tolist()]


def order_of(codes: NDArray[np.int64], ts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order of the rows by code, then time. Rows with the same code and time keep their order."""
    import numpy as np

    if len(ts) > 1 and np.all(ts[1:] >= ts[:-1]):
        narrow = codes.astype(np.uint16) if len(codes) and codes.max() < 1 << 16 else codes
        return np.argsort(narrow, kind="stable")  # a radix sort for 16 bits
    return np.lexsort((ts, codes))


def last_of_each(codes: NDArray[np.int64], ts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are the last ones with their code and time; the rows are sorted by both."""
    import numpy as np

    last = np.ones(len(ts), bool)
    if len(ts) > 1:
        last[:-1] = (codes[1:] != codes[:-1]) | (ts[1:] != ts[:-1])
    return last


def take(data: pa.Table, rows: NDArray[Any]) -> pa.Table:
    """Some rows of a table, by position. Columns that hold only NULL are made anew, which is quicker."""
    import pyarrow as pa

    indices = light.integers(rows)
    columns = []
    for column in data.columns:
        if column.null_count == len(data):
            columns.append(pa.nulls(len(rows), column.type))
        else:
            whole = column.combine_chunks()
            columns.append(light.call("take", whole, indices))
    return pa.table(columns, schema=data.schema)


def sort(spec: Table, data: pa.Table) -> pa.Table:
    """The rows in the table's order. Telemetry keeps one row for each GPU and instant: the last one given."""
    import numpy as np

    if len(data) < 2 or not spec.sorted_by:
        return data
    if not {"gpu", "ts", "cluster"} <= set(data.column_names) or spec.sorted_by != ("gpu", "ts"):
        from pyarrow._compute import SortOptions  # as in `light`

        keys = [(name, "ascending") for name in spec.sorted_by if name in data.column_names]
        if not keys:
            return data
        return take(data, light.call("sort_indices", data, options=SortOptions(keys)).to_numpy())
    codes, _ = gpu_codes(data)
    ts = numbers(data["ts"])
    order = order_of(codes, ts)
    codes, ts = codes[order], ts[order]
    if spec.partitioned and not spec.made:
        last = last_of_each(codes, ts)
        if not last.all():
            order = order[last]
    if len(order) == len(data) and np.array_equal(order, np.arange(len(order))):
        return data
    return take(data, order)


def days(data: pa.Table) -> list[tuple[str, pa.Table]]:
    """The rows by day of `ts` (UTC), as YYYY-MM-DD, in order of the days."""
    import numpy as np

    number = numbers(data["ts"]) // DAY
    if not len(number):
        return []
    first, last = int(number.min()), int(number.max())
    if first == last:
        return [(day_name(first), data)]
    ordered = np.sort(number)  # not np.unique, which brings in all of numpy.ma
    found = ordered[np.append(True, ordered[1:] != ordered[:-1])].tolist()
    return [(day_name(day), take(data, np.flatnonzero(number == day))) for day in found]


def day_name(number: int) -> str:
    """The day as YYYY-MM-DD, from the number of days since 1 January 1970."""
    import numpy as np

    return str(np.datetime64(number, "D"))
