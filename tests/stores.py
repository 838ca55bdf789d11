"""Stores of tests, made in a few milliseconds: the views for other DuckDB clients take a third of a second to make."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from whorl.store import Store


@functools.cache
def _template() -> Path:
    """An empty store, made once in each process."""
    folder = Path(tempfile.mkdtemp(prefix="whorl-template-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Store.create(folder / "store").root


def new_store(path: str | Path) -> Store:
    """The store at `path`, empty where there was none; the views of its `whorl.duckdb` show another store.

    For what is read through whorl, or by `plain_client`. Tests of the making of stores and of views use `Store.create`.
    """
    root, template = Path(path), _template()
    if not root.exists():
        shutil.copytree(template, root)
        about = root / "store.toml"
        about.write_text(about.read_text().replace(str(template), str(root.resolve())))
    return Store.open(root)


@contextlib.contextmanager
def copied_stores() -> Iterator[None]:
    """While it lasts, a command called in this process that makes a store gets a copy, as by `new_store`."""
    create = Store.create
    _template()

    def copied(path: str | Path) -> Store:
        if not Path(path).exists():
            with contextlib.suppress(OSError):
                return new_store(path)
        return create(path)  # what is there, and what cannot be made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create", copied)
        yield


def plain_client(root: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB client that knows nothing of whorl, and looks at the store at `root` by its views. Close it."""
    connection = duckdb.connect(root / "whorl.duckdb", read_only=True)
    place = str(root.resolve()).replace("'", "''")
    connection.execute(f"SET VARIABLE whorl_store = '{place}'")  # as after a store was moved
    return connection
