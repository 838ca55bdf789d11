"""`whorl.duckdb`: views and macros over the Parquet files, for any DuckDB client.

The file holds no data and is never held open, so that clients read while collectors write. Five facts of
DuckDB shape it:

* A relative path in a view is resolved against the *client's* working folder, and a view cannot ask where its own
  file lies. But the setting `temp_directory` says where the file lies that the client opened. So a copied or moved
  store that is opened itself reads its own files. The views also carry the absolute path at which they were written,
  for clients that attach the file to another database. There a query fails with a sentence if the views could be
  those of another place (see `_hidden`): after copying, until a whorl command has opened the copy.
* `[`, `*` and `?` in a path are a pattern. The views escape them in the store's path. So the store's folder may have
  any UTF-8 name without a backslash; DuckDB takes a backslash for a separator.
* A glob that matches no file is an error. Every table folder therefore holds `_schema.parquet`: no rows, all
  columns. It also gives the views their types.
* A view cannot take its list of files from a query. So it lists every file, and leaves out the rows of those that the
  newest note in `replaced/` hides.
* A damaged file under a glob fails the whole query. A plain client then sees an error that names the file;
  `whorl sql` checks every file first and reads the others.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from .keys import KEY_RECORD
from .schema import CATALOG, FORMAT, KEY, LATE, LATEST, REPLACED, TABLES, TELEMETRY, Column, Table
from .system.files import write_bytes
from .views import FIND, NOTE, PLAIN_VIEWS, VIEWS, WINDOW, WINDOW_FIGURES, View

if TYPE_CHECKING:
    import duckdb

_TEMPORARY = f"/{CATALOG}.tmp"
_OPENED = (
    f"CASE WHEN ends_with(current_setting('temp_directory'), '{_TEMPORARY}') "
    f"THEN left(current_setting('temp_directory'), -{len(_TEMPORARY)}) END"
)
"""The folder of the store whose `whorl.duckdb` a client opened, as an expression; NULL if it opened something else."""
_ELSEWHERE = (
    "this whorl store may be a copy of {0}: run `whorl store status --store FOLDER` once with its own folder, then "
    "attach FOLDER/whorl.duckdb by its full path to a DuckDB that was opened without a file; or SET VARIABLE "
    "whorl_store = 'FOLDER'. "
    "Attached is "
)


def quoted(text: str | None) -> str:
    """`text` as an SQL string literal, or NULL."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


@functools.cache
def columns_of_views() -> dict[str, list[Column]]:
    """The columns of each view: of the first table in its query that has such a column, or its own."""
    import duckdb

    columns: dict[str, list[Column]] = {}
    with contextlib.closing(duckdb.connect()) as connection:
        for spec in TABLES:
            typed = ", ".join(f'"{column.name}" {column.type}' for column in spec.columns)
            connection.execute(f"CREATE TABLE {spec.name} ({typed})")
        arguments = ", ".join(WINDOW)
        connection.execute(f"CREATE MACRO {NOTE}({arguments}) AS 0")
        connection.execute(f"CREATE MACRO {FIND}(number) AS NULL::{WINDOW_FIGURES}")
        for view in VIEWS:
            words = re.findall(r"\w+", view.sql)
            sources = sorted((spec for spec in TABLES if spec.name in words), key=lambda spec: words.index(spec.name))
            meaning = {(column.name, column.type): column for column in view.made}
            for column in (column for spec in sources for column in spec.columns):
                meaning.setdefault((column.name, column.type), column)
            described = connection.execute(f"DESCRIBE {view.sql}").fetchall()
            columns[view.name] = [meaning[name, kind] for name, kind, *_ in described]
    return columns


def write(root: Path, *, complete: bool) -> None:
    """Write the catalogue of the store at `root`, replacing an older one in one step.

    `complete`: whether all files have all columns.
    """
    import duckdb

    try:
        # DuckDB makes the file on a local disk. It needs locks, which not every shared file system has. It also cannot
        # make a file in a folder with a question mark in its name, though it can read one.
        with tempfile.TemporaryDirectory(prefix="whorl-") as folder:
            local = Path(folder, "made.duckdb")  # by its own name it would be a store (see `_OPENED`)
            with contextlib.closing(duckdb.connect(str(local))) as connection:
                _define(connection, root.resolve(), complete=complete)
            content = local.read_bytes()
    except duckdb.Error as error:
        raise StoreError(f"cannot make {CATALOG}: {str(error).splitlines()[0]}") from error
    except OSError as error:
        raise StoreError(
            f"cannot make {CATALOG} in a folder for temporary files ({error.strerror}): free some space there, or set "
            f"TMPDIR to a folder that this user may write to"
        ) from error
    write_bytes(root / CATALOG, content)


def _define(connection: duckdb.DuckDBPyConnection, root: Path, *, complete: bool) -> None:
    """Make the macros and views. What all views share is a macro: to parse it again takes longer than all else."""
    place = f"coalesce(getvariable('whorl_store'), {_OPENED}, {quoted(str(root))})"
    connection.execute(
        f"BEGIN; CREATE MACRO whorl_format() AS {FORMAT}; CREATE MACRO whorl_store() AS {place}; "
        "CREATE MACRO whorl_files(files) AS "
        "replace(replace(replace(whorl_store(), '[', '[[]'), '*', '[*]'), '?', '[?]') || files; "
        f"CREATE MACRO whorl_hidden(written) AS TABLE {_hidden()}; "
        f"CREATE MACRO whorl_meanings() AS TABLE {_meanings()}"
    )
    common = functools.partial(_common, root, complete=complete)
    for spec in TABLES:
        connection.execute(f"CREATE VIEW {spec.name} AS WITH {common([spec])} {_select(spec, complete=complete)}")
    for view in PLAIN_VIEWS:
        # Each table is read once: what changes places between two tables does so at once.
        sources = [spec for spec in TABLES if re.search(rf"\b{spec.name}\b", view.sql)]
        tables = "".join(f", {spec.name} AS NOT MATERIALIZED ({_select(spec, complete=complete)})" for spec in sources)
        connection.execute(f"CREATE VIEW {view.name} AS WITH {common(sources)}{tables} {view.sql}")
    connection.execute("COMMIT")


def _common(root: Path, sources: Sequence[Table], *, complete: bool) -> str:
    """What the tables of one query have in common; it is read once, so that a query sees one state."""
    hidden = f"hidden AS MATERIALIZED (FROM whorl_hidden({quoted(str(root))}))"
    if TELEMETRY not in sources:
        return hidden
    newest = f"row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY written DESC) = 1"
    return f"{hidden}, late AS MATERIALIZED ({_shown(LATE, TELEMETRY, complete=complete)} QUALIFY {newest})"


def _select(spec: Table, *, complete: bool) -> str:
    """The rows of a table for a client that has only the files."""
    if spec == LATEST:
        newest = "PARTITION BY cluster, gpu ORDER BY ts DESC, written DESC NULLS LAST"
        return f"{_shown(spec, spec, complete=complete)} QUALIFY row_number() OVER ({newest}) = 1"
    rows = _shown(spec, spec, complete=complete)
    if spec != TELEMETRY:
        return rows
    return f"SELECT * FROM ({rows}) WHERE {KEY_RECORD} NOT IN (SELECT {KEY_RECORD} FROM late) UNION ALL FROM late"


def _shown(spec: Table, columns: Table, *, complete: bool) -> str:
    """The rows of a table's files that are not left out, with the `columns` of a table."""
    names = ", ".join(f'f."{name}"' for name in columns.names)
    # Below the folder of a table by days lies its Delta log, too: no name of a Parquet file in it has an underscore.
    place = "**/*_*.parquet" if spec.partitioned else "*.parquet"
    files = read(f"whorl_files('/{spec.name}/{place}')", spec, "filename = true", complete=complete)
    return f"SELECT {names} FROM {files} f WHERE f.filename NOT IN (SELECT file FROM hidden)"


def read(files: str, spec: Table, options: str = "filename = false", *, complete: bool) -> str:
    """SQL: the rows of files of a table. Where they are not `complete`, DuckDB looks at all files first for columns."""
    rows = f"read_parquet({files}, hive_partitioning = false, {options}"
    if complete or not any(column.added or column.grown for column in spec.columns):
        return f"{rows})"
    return f"({spec.nothing} UNION ALL BY NAME FROM {rows}, union_by_name = true))"


def _meanings() -> str:
    """What a row of each table and view is, and what its columns hold, as one text: DuckDB would take long to parse a
    COMMENT on each."""
    relations: tuple[Table | View, ...] = (*TABLES, *PLAIN_VIEWS)
    lines = ["\t".join((relation.name, "", "", f"one row: {relation.row}")) for relation in relations]
    lines += ["\t".join((t.name, column.name, column.unit, column.description)) for t in TABLES for column in t.columns]
    heads = ("table_name", "column_name", "unit", "meaning")
    parts = ", ".join(
        f"nullif(split_part(line, chr(9), {number}), '') AS {head}" for number, head in enumerate(heads, 1)
    )
    return f"SELECT {parts} FROM (SELECT unnest(string_split({quoted(chr(10).join(lines))}, chr(10))) AS line)"


def _hidden() -> str:
    """The files that the newest note leaves out, and an error if the views do not read the files beside their own file.

    They do if the client says where (the variable), and if it opened this file and no other store. They also do if this
    file is attached at the place where it was `written`, and no copy of it.
    """
    stores = f"(SELECT count(*) FROM duckdb_databases() WHERE ends_with(path, '/{CATALOG}'))"
    attached = f"written || '/{CATALOG}' IN (SELECT path FROM duckdb_databases() WHERE path IS NOT NULL)"
    in_quotes = "chr(39) || replace(written, chr(39), chr(39) || chr(39)) || chr(39)"
    with_these = f"(SELECT count(*) FROM duckdb_views() WHERE view_name = 'runs' AND contains(sql, {in_quotes}))"
    notes = read("whorl_files('/replaced/*.parquet')", REPLACED, complete=True)
    return (
        f"SELECT whorl_store() || '/' || file AS file FROM {notes} "
        "QUALIFY hidden AND number = max(number) OVER () UNION ALL "
        f"SELECT error(format({quoted(_ELSEWHERE)}, written) || (SELECT string_agg(path, ', ') FROM duckdb_databases())"
        f")::VARCHAR WHERE NOT (getvariable('whorl_store') IS NOT NULL OR ({_OPENED} IS NOT NULL AND {stores} = 1) "
        f"OR (coalesce({_OPENED}, written) = written AND {attached} AND {with_these} = 1))"
    )
