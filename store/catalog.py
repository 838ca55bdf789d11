"""`whorl.duckdb`: views and macros over the Parquet files, for any DuckDB client.

The file holds no data and is never held open, so that clients read while collectors write. Three facts of
DuckDB shape it:

* A relative path in a view is resolved against the *client's* working folder. The views therefore carry the
  store's absolute path. After a store was moved, the next whorl command that opens it writes the file anew;
  a client that comes first says `SET VARIABLE whorl_store = '/new/place'` and reads at once.
* A glob that matches no file is an error. Every table folder therefore holds `_schema.parquet`: no rows, all
  columns. It also gives the views their types.
* A damaged file under a glob fails the whole query. A plain client then sees an error that names the file;
  `whorl sql` checks every file first and reads the others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import duckdb

from ..errors import StoreError
from .files import failed, temporary_name
from .schema import FORMAT, TABLES, VIEWS, Table

NAME = "whorl.duckdb"


def quoted(text: str) -> str:
    """`text` as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def select_list(spec: Table, present: set[str] | None = None) -> str:
    """The table's columns, cast to their types; a column outside `present` (where given) reads as NULL."""
    parts = []
    for column in spec.columns:
        source = f'"{column.name}"' if present is None or column.name in present else "NULL"
        parts.append(f'CAST({source} AS {column.type}) AS "{column.name}"')
    return ", ".join(parts)


def write(root: Path) -> None:
    """Write the catalogue of the store at `root`, replacing an older one in one step."""
    root = root.resolve()
    temporary = temporary_name(root / NAME)
    place = f"coalesce(getvariable('whorl_store'), {quoted(str(root))})"
    try:
        with contextlib.closing(duckdb.connect(str(temporary))) as connection:
            for spec in TABLES:
                files = f"{place} || '/{spec.name}/**/*.parquet'"
                connection.execute(
                    f"CREATE VIEW {spec.name} AS SELECT {select_list(spec)} "
                    f"FROM read_parquet({files}, union_by_name = true, hive_partitioning = false)"
                )
                connection.execute(f"COMMENT ON VIEW {spec.name} IS {quoted('One row: ' + spec.row)}")
                for column in spec.columns:
                    text = f"{column.description} [{column.unit}]" if column.unit else column.description
                    connection.execute(f'COMMENT ON COLUMN {spec.name}."{column.name}" IS {quoted(text)}')
            for view in VIEWS:
                connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
                connection.execute(f"COMMENT ON VIEW {view.name} IS {quoted('One row: ' + view.row)}")
            connection.execute(f"CREATE MACRO whorl_format() AS {FORMAT}")
            connection.execute(f"CREATE MACRO whorl_store() AS {place}")
            connection.execute("CHECKPOINT")
        temporary.replace(root / NAME)
    except duckdb.Error as error:
        raise StoreError(f"cannot write {root / NAME}: {error}") from error
    except OSError as error:
        raise failed("write", root / NAME, error) from error
    finally:
        for leftover in (temporary, Path(f"{temporary}.wal")):
            leftover.unlink(missing_ok=True)
