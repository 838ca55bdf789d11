"""Makes stores for tests in a few milliseconds, as copies: to make the views of a store takes a third of a second."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from whorl.store import Store, catalog
from whorl.store.journal_file import Ticks
from whorl.store.schema import CATALOG, arrow_schema
from whorl.store.system import files
from whorl.tests.building import build_once


@functools.cache
def _template() -> Path:
    """The path of an empty store, made once for all processes of shards.py, or in each process."""
    if built := os.environ.get("WHORL_TESTS_BUILT"):
        return build_once(Path(built).resolve(), "template", lambda folder: Store.create(folder / "store")) / "store"
    folder = Path(tempfile.mkdtemp(prefix="whorl-template-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Store.create(folder / "store").root


def new_store(path: str | Path) -> Store:
    """Open the store at `path`; make an empty one if there is none.

    The views in its `whorl.duckdb` show another store: read it through whorl or with `plain_client`. A test of views,
    or of how stores are made, uses `Store.create`.
    """
    root, template = Path(path), _template()
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(prefix=".new-", dir=root.parent))  # another thread sees all of a store, or none
        shutil.copytree(template, copy, dirs_exist_ok=True)
        about = copy / "store.toml"
        text = about.read_text().replace(str(template), str(root.resolve()))
        made_at = datetime.now(UTC).isoformat(timespec="microseconds")
        about.write_text(re.sub(r'(?m)^created = ".*"$', f'created = "{made_at}"', text))
        copy.rename(root)
    return Store.open(root)


@contextlib.contextmanager
def copied_stores() -> Iterator[None]:
    """Inside this context, commands called in this process make stores like `new_store`.

    Those that were copied or moved get a copy of views, too. A plain client that opens the views reads the store beside
    them; one that attaches them does not.
    """
    create, views = Store.create, (_template() / CATALOG).read_bytes()
    write_catalog = catalog.write

    def copied(path: str | Path) -> Store:
        if not Path(path).exists():
            with contextlib.suppress(OSError):
                return new_store(path)
        return create(path)  # the path exists, or no store can be made there

    def write(root: Path, *, complete: bool) -> None:
        if complete:
            files.write_bytes(root / CATALOG, views)
        else:
            write_catalog(root, complete=complete)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create", copied)
        patch.setattr(catalog, "write", write)
        yield


@contextlib.contextmanager
def open_stores() -> Iterator[None]:
    """Inside this context, a store is opened once and keeps its connection: for commands called in this process."""
    opened: dict[Path, Store] = {}
    open_it = Store.open

    def kept(path: str | Path) -> Store:
        root = Path(path).absolute()
        if root not in opened:
            opened[root] = open_it(path)
        return opened[root]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "open", kept)
        yield


def plain_client(root: Path) -> duckdb.DuckDBPyConnection:
    """A plain DuckDB connection to the views of the store at `root`, without whorl's code. The caller closes it."""
    return duckdb.connect(root / "whorl.duckdb", read_only=True)


def answers(store: Store, query: str) -> list[list[dict[str, Any]]]:
    """What whorl answers, and what another client of DuckDB answers."""
    with contextlib.closing(plain_client(store.root)) as client:
        return [store.sql(query).to_pylist(), client.sql(query).to_arrow_table().to_pylist()]


def ask(store: Path, query: str) -> list[dict[str, Any]]:
    """The rows of an answer, by a store that is opened anew."""
    rows: list[dict[str, Any]] = Store.open(store).sql(query).to_pylist()
    return rows


def rows_of_ticks(ticks: Ticks) -> pa.RecordBatch:
    """Readings as rows of telemetry, without the columns that they do not have."""
    gpus = {"cluster": [cluster for cluster, _ in ticks.gpus], "gpu": [gpu for _, gpu in ticks.gpus]}
    kinds = arrow_schema("telemetry")
    columns = {"ts": [*ticks.ts], **gpus, **ticks.by_name(), **ticks.texts}
    return pa.RecordBatch.from_pydict(
        {name: pa.array(column, kinds.field(name).type) for name, column in columns.items()}
    )
