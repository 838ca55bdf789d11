"""`whorl.duckdb`: views and macros over the Parquet files, for any DuckDB client.

The file holds no data and is never held open, so that clients read while collectors write. Five facts of
DuckDB shape it:

* A relative path in a view is resolved against the *client's* working folder, and a view cannot ask where its own
  file lies. But the setting `temp_directory` says where the file lies that the client opened. So a copied or moved
  store that is opened itself reads its own files. The views also carry the absolute path at which they were written,
  for clients that attach the file to another database. There a query fails with a sentence if the views could be
  those of another place (see `_right`): after copying, until a whorl command has opened the copy.
* `[`, `*` and `?` in a path are a pattern. The views escape them in the store's path. So the store's folder may have
  any UTF-8 name without a backslash; DuckDB takes a backslash for a separator.
* A glob that matches no file is an error. Every table folder therefore holds `_schema.parquet`: no rows, all
  columns. It also gives the views their types.
* A view cannot take its list of files from a query. So it lists every file, and leaves out the rows of files that
  `replaced/` names (see `replacing`). Most of the time `replaced/` is empty, and this costs nothing.
* A damaged file under a glob fails the whole query. A plain client then sees an error that names the file;
  `whorl sql` checks every file first and reads the others.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreError
from ..columns import Column
from ..rows.arranging import KEY
from ..schema import CATALOG, FORMAT, LATE, LATEST, TABLES, TELEMETRY, Table
from ..system.files import write_bytes
from ..views import VIEWS

if TYPE_CHECKING:
    import duckdb

_SPECIAL = re.compile(r"([\[*?])")


_OPENED = rf"nullif(regexp_extract(current_setting('temp_directory'), '(?s)^(.*)/{re.escape(CATALOG)}\.tmp$', 1), '')"
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


def pattern(path: Path | str) -> str:
    """`path` for `read_parquet`, escaped so that it names one file."""
    return _SPECIAL.sub(r"[\1]", str(path))


def literal(path: Path) -> str:
    """As `pattern`, as an SQL string literal."""
    return quoted(pattern(path))


def select_list(spec: Table, present: frozenset[str] | None = None, names: frozenset[str] | None = None) -> str:
    """The table's columns, or those of some `names`, cast to their types.

    `present` names the columns that the files have, with the right types: they need no cast, and the others read as
    NULL.
    """
    parts = []
    for column in spec.columns:
        if names is not None and column.name not in names:
            continue
        known = f'"{column.name}"' if present is None or column.name in present else "NULL"
        cast = present is None or column.name not in present
        parts.append(f'CAST({known} AS {column.type}) AS "{column.name}"' if cast else known)
    return ", ".join(parts)


@functools.cache
def columns_of_views() -> dict[str, list[Column]]:
    """The columns of each view: of the first table in its query that has such a column, or its own."""
    import duckdb

    found: dict[str, list[Column]] = {}
    with contextlib.closing(duckdb.connect()) as connection:
        for spec in TABLES:
            columns = ", ".join(f'"{column.name}" {column.type}' for column in spec.columns)
            connection.execute(f"CREATE TABLE {spec.name} ({columns})")
        for view in VIEWS:
            named = {spec.name: re.search(rf"\b{spec.name}\b", view.sql) for spec in TABLES}
            read = sorted((at.start(), name) for name, at in named.items() if at)
            known = {(column.name, column.type): column for column in view.made}
            for _, name in read:
                for column in next(spec for spec in TABLES if spec.name == name).columns:
                    known.setdefault((column.name, column.type), column)
            told = connection.execute(f"DESCRIBE {view.sql}").fetchall()
            found[view.name] = [known[name, kind] for name, kind, *_ in told]
    return found


def write(root: Path) -> None:
    """Write the catalogue of the store at `root`, replacing an older one in one step."""
    import duckdb

    try:
        # DuckDB makes the file on a local disk. It needs locks, which not every shared file system has. It also cannot
        # make a file in a folder with a question mark in its name, though it can read one.
        with tempfile.TemporaryDirectory(prefix="whorl-") as folder:
            local = Path(folder, "made.duckdb")  # by its own name it would be a store (see `_OPENED`)
            with contextlib.closing(duckdb.connect(str(local))) as connection:
                _define(connection, root.resolve())
            content = local.read_bytes()
    except duckdb.Error as error:
        raise StoreError(f"cannot make {CATALOG}: {str(error).splitlines()[0]}") from error
    except OSError as error:
        raise StoreError(
            f"cannot make {CATALOG} in a folder for temporary files ({error.strerror}): free some space there, or set "
            f"TMPDIR to a folder that this user may write to"
        ) from error
    write_bytes(root / CATALOG, content)


def _right(written: Path) -> str:
    """Whether the views read the files beside their own file, as an expression.

    They do if the client says where (the variable), and if it opened this file and no other store. They also do if
    this file is attached at the place where it was written, and no copy of it.
    """
    here = quoted(str(written))
    stores = f"(SELECT count(*) FROM duckdb_databases() WHERE ends_with(path, '/{CATALOG}'))"
    there = f"{here} || '/{CATALOG}' IN (SELECT path FROM duckdb_databases() WHERE path IS NOT NULL)"
    with_these = f"(SELECT count(*) FROM duckdb_views() WHERE view_name = 'runs' AND contains(sql, {quoted(here)}))"
    return (
        f"getvariable('whorl_store') IS NOT NULL OR ({_OPENED} IS NOT NULL AND {stores} = 1) "
        f"OR (coalesce({_OPENED}, {here}) = {here} AND {there} AND {with_these} = 1)"
    )


def _define(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    place = f"coalesce(getvariable('whorl_store'), {_OPENED}, {quoted(str(root))})"
    escaped = f"regexp_replace({place}, {quoted(_SPECIAL.pattern)}, '[\\1]', 'g')"
    connection.execute("BEGIN")  # each of some 300 statements would commit
    for spec in TABLES:
        rows = f"{_common(escaped, root, late=spec == TELEMETRY)} {_select(spec, escaped)}"
        connection.execute(f"CREATE VIEW {spec.name} AS WITH {rows}")
        connection.execute(f"COMMENT ON VIEW {spec.name} IS {quoted('One row: ' + spec.row)}")
        for column in spec.columns:
            text = f"{column.description} [{column.unit}]" if column.unit else column.description
            connection.execute(f'COMMENT ON COLUMN {spec.name}."{column.name}" IS {quoted(text)}')
    for view in VIEWS:
        # Each table is read once: what changes places between two tables does so at once.
        parts = [_common(escaped, root, late=TELEMETRY.name in view.sql)]
        parts += [f"{t.name} AS NOT MATERIALIZED ({_select(t, escaped)})" for t in TABLES if t.name in view.sql]
        connection.execute(f"CREATE VIEW {view.name} AS WITH {', '.join(parts)} {view.sql}")
        connection.execute(f"COMMENT ON VIEW {view.name} IS {quoted('One row: ' + view.row)}")
    connection.execute(f"CREATE MACRO whorl_format() AS {FORMAT}")
    connection.execute(f"CREATE MACRO whorl_store() AS {place}")
    connection.execute("COMMIT")
    connection.execute("CHECKPOINT")


def _select(spec: Table, root: str) -> str:
    """The rows of a table for a client that has only the files; `root` is an expression."""
    if spec == LATEST:
        return (
            f"SELECT {select_list(spec)} FROM (FROM {_read(root, 'latest/*')} ANTI JOIN elsewhere ON gpu = says) "
            "QUALIFY row_number() OVER (PARTITION BY cluster, gpu ORDER BY ts DESC, written DESC NULLS LAST) = 1"
        )
    rows = f"SELECT {select_list(spec)} FROM {_shown(spec, root)}"
    if spec != TELEMETRY:
        return rows
    same = " AND ".join(f"s.{name} IS NOT DISTINCT FROM l.{name}" for name in KEY)
    return f"SELECT * FROM ({rows}) s ANTI JOIN late l ON {same} UNION ALL FROM late"


def _common(root: str, written: Path, *, late: bool) -> str:
    """The files that are left out and, of telemetry, the late rows, as common tables; and an error if the place is not
    the right one.

    Each is read once, so that a query sees one state. Every view joins with `hidden` or `elsewhere`.
    """
    found = (
        f"elsewhere AS MATERIALIZED (SELECT error({quoted(_ELSEWHERE.format(written))} || d.path)::VARCHAR AS says "
        f"FROM (SELECT string_agg(path, ', ') AS path FROM duckdb_databases()) d WHERE NOT ({_right(written)})), "
        f"hidden AS MATERIALIZED (SELECT table_name, file FROM {_read(root, 'replaced/*')} "
        "GROUP BY table_name, file HAVING arg_max(hidden, step) UNION ALL SELECT says, says FROM elsewhere)"
    )
    if not late:
        return found
    return (
        f"{found}, late AS MATERIALIZED (SELECT {select_list(TELEMETRY)} FROM {_shown(LATE, root)} "
        f"QUALIFY row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY written DESC) = 1)"
    )


def _shown(spec: Table, root: str) -> str:
    """The rows of a table's files that are not left out, with the file's name."""
    files = _read(root, f"{spec.name}/**/*", filename=True)
    name = "regexp_extract(f.filename, '(day=[^/]+/)?([^/]+/)?[^/]+$')"  # as `replacing.key` names a file
    return f"(FROM {files} f ANTI JOIN hidden h ON h.table_name = {quoted(spec.name)} AND {name} = h.file)"


def _read(root: str, pattern: str, *, filename: bool = False) -> str:
    more = ", filename = true" if filename else ""
    return f"read_parquet({root} || '/{pattern}.parquet', union_by_name = true, hive_partitioning = false{more})"
